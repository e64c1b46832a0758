//! A reference as a candidate: what comes after the longest end of the stream that occurs in a document.
//!
//! In: a frozen index, the stream's tokens. Out: quotations of the document, up to its end.
//!
//! A reference that is added late stands where it would stand if it had been there from the start (`catch_up`).

use std::sync::Arc;

use super::{Candidate, Now, Offer};
use crate::frozen::{Cursor, FrozenIndex};
use crate::policy::CascadeOptions;
use crate::score::{BUCKETS, BucketRate, Score};
use crate::suffix::SuffixIndex;

#[derive(Debug)]
pub(crate) struct Reference {
    name: Arc<str>,
    min_match: usize,
    index: Arc<FrozenIndex>,
    cursor: Cursor,
    score: Score,
}

impl Reference {
    /// A reader of `index`, brought to the end of `stream`.
    pub(crate) fn new(name: Arc<str>, index: Arc<FrozenIndex>, options: &CascadeOptions, stream: &SuffixIndex) -> Self {
        let score = Score::of_matches();
        let mut reference = Self { name, min_match: options.min_match, index, cursor: Cursor::default(), score };
        reference.catch_up(stream);
        reference
    }

    /// Moves the cursor to where the end of the stream leaves it. No match is longer than the document, so no more of the
    /// stream needs reading.
    fn catch_up(&mut self, stream: &SuffixIndex) {
        self.cursor = Cursor::default();
        for token in stream.tokens().skip(stream.len().saturating_sub(self.index.len())) {
            self.index.advance(&mut self.cursor, token);
        }
    }
}

impl Candidate for Reference {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn offer(&mut self, now: Now<'_>, token: u32, max: usize, offer: &mut Offer) {
        let match_len = self.cursor.match_len();
        if now.last == Some(token) && match_len >= self.min_match {
            let available = self.index.available(&self.cursor);
            self.score.reach(match_len, 1, max.min(available), &mut offer.reach);
        }
    }

    fn draft(&mut self, _now: Now<'_>, _token: u32, n: usize, out: &mut Vec<u32>) {
        self.index.draft(&self.cursor, n, out);
    }

    fn graft(&self, _now: Now<'_>, guessed: &[u32], max: usize, offer: &mut Offer, out: &mut Vec<u32>) {
        let mut cursor = self.cursor;
        guessed.iter().for_each(|token| self.index.advance(&mut cursor, *token));
        if cursor.match_len() >= self.min_match {
            self.index.draft(&cursor, max, out);
            self.score.reach(cursor.match_len(), 1, out.len(), &mut offer.reach);
        }
    }

    fn learn(&mut self, _now: Now<'_>, token: u32, scored: bool) {
        if scored && let Some(next) = self.index.next_token(&self.cursor) {
            self.score.record(self.cursor.match_len(), next == token);
        }
        self.index.advance(&mut self.cursor, token);
    }

    fn rewind(&mut self, now: Now<'_>, _history: &[u32]) {
        self.catch_up(now.stream);
    }

    fn rates(&self) -> [BucketRate; BUCKETS] {
        self.score.table()
    }
}
