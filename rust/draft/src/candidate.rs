//! A candidate: one way of guessing, among which the cascade chooses each step.
//!
//! In: the observed stream, token by token. Out: an offer (how far, how likely, at what cost), and the draft if the offer is taken.
//!
//! A1  `offer` changes nothing that `learn` relies on: a candidate learns whether it drafts or not.
//! A2  `learn` gets each observed token before the stream has it, `rewind` a stream that has changed as a whole.
//! A3  An offer of n tokens is a promise of n: `draft` gives as many as are taken.
//!
//! How to add one: `docs/add-a-candidate.md`.

use std::fmt;
use std::sync::Arc;

use crate::policy::CascadeOptions;
use crate::score::{BUCKETS, BucketRate};
use crate::source::TopkRow;
use crate::suffix::SuffixIndex;

mod conversation;
mod recycling;
mod reference;

pub(crate) use reference::Reference;

/// What all candidates see of the stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now<'a> {
    /// The observed stream. Empty while its index is shut.
    pub(crate) stream: &'a SuffixIndex,
    /// The newest observed token, also when the index is shut.
    pub(crate) last: Option<u32>,
    /// Tokens that follow it, forced or guessed, and that the stream does not have yet.
    pub(crate) ahead: &'a [u32],
}

/// What a candidate could draft after the stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offer {
    /// For each token the chance that it is reached and right, never increasing. Empty: nothing to offer.
    pub(crate) reach: Vec<f64>,
    /// What drafting takes, in plain steps: once, and for each token. 0 for quoting.
    pub(crate) once: f64,
    pub(crate) each: f64,
}

impl Offer {
    /// Begins anew, with nothing.
    pub(crate) fn clear(&mut self) {
        self.reach.clear();
        (self.once, self.each) = (0.0, 0.0);
    }

    /// What drafting `n` tokens takes.
    pub(crate) fn cost(&self, n: usize) -> f64 {
        self.once + self.each * n as f64
    }
}

/// One way of guessing.
pub(crate) trait Candidate: Send + fmt::Debug {
    /// Its name in `stats`, unlike any other's.
    fn name(&self) -> &Arc<str>;

    /// Fills `offer`, which arrives empty, for a draft of at most `max` tokens after `token`.
    ///
    /// `token` is the last one that is known: the carried one, or the last one ahead. Without any ahead it is `now.last` unless a caller asks about a stream that the cascade was not told of: then a candidate that follows the
    /// stream has nothing to offer.
    fn offer(&mut self, now: Now<'_>, token: u32, max: usize, offer: &mut Offer);

    /// Appends the first `n` tokens of what it has just offered.
    fn draft(&mut self, now: Now<'_>, token: u32, n: usize, out: &mut Vec<u32>);

    /// Learns the token that follows `now`. `scored`: the token is of a step, so a guess about it counts as right or wrong; a prompt is text of another kind.
    fn learn(&mut self, now: Now<'_>, token: u32, scored: bool);

    /// Learns from verified rows. `recent` are the last committed tokens, in order.
    fn learn_rows(&mut self, _rows: &[TopkRow<'_>], _recent: &[u32]) {}

    /// The stream is another one now. `history` is all of it, also when its index is shut.
    fn rewind(&mut self, now: Now<'_>, history: &[u32]);

    /// Its acceptance by length of the match.
    fn rates(&self) -> [BucketRate; BUCKETS];

    /// Why it drafts nothing any more, if so.
    fn shut(&self, _now: Now<'_>) -> Option<String> {
        None
    }
}

/// The candidates of a new cascade, in the order in which they win ties. References are added behind the first.
pub(crate) fn registered(n_vocab: usize, options: &CascadeOptions) -> Vec<Box<dyn Candidate>> {
    let mut all: Vec<Box<dyn Candidate>> = vec![Box::new(conversation::Conversation::new(options))];
    if options.recycling {
        all.push(Box::new(recycling::Recycling::new(n_vocab, options)));
    }
    all
}
