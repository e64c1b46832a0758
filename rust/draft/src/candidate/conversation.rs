//! The conversation as a candidate: what came after the longest end of the stream that has occurred before.
//!
//! In: the stream's own index, which the cascade keeps. Out: quotations of the stream, without end: past its end a repetition goes on with itself.
//!
//! Cost: nothing beyond the index.

use std::sync::Arc;

use super::{Candidate, Now, Offer};
use crate::policy::CascadeOptions;
use crate::score::{BUCKETS, BucketRate, Score};

#[derive(Debug)]
pub(super) struct Conversation {
    name: Arc<str>,
    min_match: usize,
    score: Score,
}

impl Conversation {
    pub(super) fn new(options: &CascadeOptions) -> Self {
        Self { name: "conversation".into(), min_match: options.min_match, score: Score::of_matches() }
    }
}

impl Candidate for Conversation {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn offer(&mut self, now: Now<'_>, token: u32, max: usize, offer: &mut Offer) {
        let match_len = now.stream.match_len();
        if now.last == Some(token) && match_len >= self.min_match {
            self.score.reach(match_len, 1, max, &mut offer.reach);
        }
    }

    fn draft(&mut self, now: Now<'_>, _token: u32, n: usize, out: &mut Vec<u32>) {
        now.stream.draft(n, out);
    }

    fn graft(&self, now: Now<'_>, guessed: &[u32], max: usize, offer: &mut Offer, out: &mut Vec<u32>) {
        let (state, len) = now.stream.foresee(guessed);
        if len as usize >= self.min_match {
            out.extend(now.stream.after(state).take(max));
            self.score.reach(len as usize, 1, out.len(), &mut offer.reach);
        }
    }

    fn learn(&mut self, now: Now<'_>, token: u32, scored: bool) {
        if scored && let Some(next) = now.stream.next_token() {
            self.score.record(now.stream.match_len(), next == token);
        }
    }

    fn rewind(&mut self, _now: Now<'_>, _history: &[u32]) {}

    fn rates(&self) -> [BucketRate; BUCKETS] {
        self.score.table()
    }

    fn shut(&self, now: Now<'_>) -> Option<String> {
        now.stream.failed().map(|error| error.to_string())
    }
}
