//! Recycling as a candidate: the chain of newest successors of the carried token.
//!
//! In: committed pairs of tokens, best tokens of verified rows. Out: short drafts where no longer run repeats.
//!
//! Committed pairs outlast the rows that were sampled in the same step: after `learn_rows` they are noted again.

use std::sync::Arc;

use super::{Candidate, Now, Offer};
use crate::policy::CascadeOptions;
use crate::recycle::Recycler;
use crate::score::{BUCKETS, BucketRate, Score};
use crate::source::TopkRow;

#[derive(Debug)]
pub(super) struct Recycling {
    name: Arc<str>,
    chain: usize,
    recycler: Recycler,
    score: Score,
}

impl Recycling {
    pub(super) fn new(n_vocab: usize, options: &CascadeOptions) -> Self {
        let recycler = Recycler::new(n_vocab);
        Self { name: "recycling".into(), chain: options.chain, recycler, score: Score::of_guesses() }
    }
}

impl Candidate for Recycling {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn offer(&mut self, _now: Now<'_>, token: u32, max: usize, offer: &mut Offer) {
        let known = self.recycler.chain(token).take(max.min(self.chain)).count();
        // A guess is made from one token, wherever it stands in the chain.
        self.score.reach(0, 0, known, &mut offer.reach);
    }

    fn draft(&mut self, _now: Now<'_>, token: u32, n: usize, out: &mut Vec<u32>) {
        out.extend(self.recycler.chain(token).take(n));
    }

    fn learn(&mut self, now: Now<'_>, token: u32, scored: bool) {
        let Some(last) = now.last else { return };
        if scored && let Some(next) = self.recycler.first(last) {
            self.score.record(0, next == token);
        }
        self.recycler.promote(last, token);
    }

    fn learn_rows(&mut self, rows: &[TopkRow<'_>], recent: &[u32]) {
        rows.iter().for_each(|row| self.recycler.overwrite(row.token, row.top));
        recent.windows(2).for_each(|pair| self.recycler.promote(pair[0], pair[1]));
    }

    fn rewind(&mut self, _now: Now<'_>, history: &[u32]) {
        history.windows(2).for_each(|pair| self.recycler.promote(pair[0], pair[1]));
    }

    fn rates(&self) -> [BucketRate; BUCKETS] {
        self.score.table()
    }
}
