//! The proposers of one sequence: which hidden rows a forward copies for them, and who gets which.
//!
//! - **B1** Only proposers that may draft have hidden rows copied. Each has the layers that it reads side by side, in its own order.
//! - **B2** After a forward that the sequence took rows from, `settle` gives each of them the positions that were kept; `rewind` follows every step back.
//!
//! Cost: a copy of each tapped row in the forward, and another into what waits for the head.

use std::sync::Arc;

use quoth_kernels::attend::KvKind;

use super::{Drafter, Guess, Hidden, Kept, Proposer};
use crate::decode::Clock;
use crate::error::{Error, Result};
use crate::model::{Model, Taps};

/// A proposer and what it is made of.
struct One {
    drafter: Arc<dyn Drafter>,
    proposer: Box<dyn Proposer>,
    /// Where its layers begin among those of this forward; `None`: nothing is copied for it.
    tapped: Option<usize>,
}

/// A proposer that was told of kept positions.
pub(crate) struct Taught {
    /// Its number.
    pub(crate) number: usize,
    /// What that took.
    pub(crate) ns: u64,
    /// Why it cannot go on, if so.
    pub(crate) failed: Option<Error>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Attached {
    all: Vec<One>,
    n_embd: usize,
    /// Tapped layers of this forward, its tokens, and the hidden rows.
    layers: Vec<usize>,
    tokens: usize,
    hidden: Vec<f32>,
}

impl Attached {
    /// A proposer of each drafter.
    ///
    /// # Errors
    /// No kind of cache can store heads of a drafter's width.
    pub(crate) fn new(drafters: &[Arc<dyn Drafter>], target: &Model, kind: KvKind) -> Result<Attached> {
        // A head of another width may not divide into the blocks of a q8_0 cache; halves always do.
        let proposer = |drafter: &Arc<dyn Drafter>| {
            drafter.clone().proposer(kind).or_else(|_| drafter.clone().proposer(KvKind::F16))
        };
        let one = |drafter: &Arc<dyn Drafter>| {
            Ok(One { drafter: drafter.clone(), proposer: proposer(drafter)?, tapped: None })
        };
        let all = drafters.iter().map(one).collect::<Result<_>>()?;
        Ok(Attached { all, n_embd: target.config().n_embd, ..Attached::default() })
    }

    /// Decides for which proposers a forward of so many tokens copies hidden rows.
    pub(crate) fn tap(&mut self, tokens: usize, wanted: impl Fn(usize) -> bool) {
        self.layers.clear();
        self.tokens = tokens;
        for (i, one) in self.all.iter_mut().enumerate() {
            one.tapped = wanted(i).then_some(self.layers.len());
            if one.tapped.is_some() {
                self.layers.extend_from_slice(one.drafter.taps());
            }
        }
        let n = self.layers.len() * tokens * self.n_embd;
        if self.hidden.len() < n {
            self.hidden.resize(n, 0.0);
        }
    }

    /// Whether a forward copied hidden rows that no proposer was told of.
    pub(crate) fn is_tapped(&self) -> bool {
        self.all.iter().any(|one| one.tapped.is_some())
    }

    /// Where the forward copies them to.
    pub(crate) fn taps(&mut self) -> Taps<'_> {
        let n = self.layers.len() * self.tokens * self.n_embd;
        Taps { layers: &self.layers, out: &mut self.hidden[..n] }
    }

    /// Tells proposers of `n` kept positions from `first` on, the first ones of the forward.
    pub(crate) fn settle(&mut self, history: &[u32], first: usize, n: usize, clock: &mut dyn Clock) -> Vec<Taught> {
        let mut taught = Vec::new();
        let size = self.tokens * self.n_embd;
        for (i, one) in self.all.iter_mut().enumerate() {
            let Some(at) = one.tapped.take().filter(|_| n > 0) else { continue };
            let values = &self.hidden[at * size..(at + one.drafter.taps().len()) * size];
            let hidden = Hidden { values, stride: self.tokens, n_embd: self.n_embd };
            let start = clock.now_ns();
            let failed = one.proposer.settle(Kept { history, first, n, hidden }).err();
            taught.push(Taught { number: i, ns: clock.now_ns() - start, failed });
        }
        taught
    }

    /// The forward gave nothing.
    pub(crate) fn drop_taps(&mut self) {
        self.all.iter_mut().for_each(|one| one.tapped = None);
    }

    /// Whether proposer `i` can guess what follows `history`.
    pub(crate) fn is_ready(&self, i: usize, history: &[u32]) -> bool {
        self.all[i].proposer.is_ready(history)
    }

    /// Lets proposer `i` guess what follows `history`, up to `most` tokens.
    ///
    /// # Errors
    /// It cannot go on.
    pub(crate) fn propose(
        &mut self,
        i: usize,
        history: &[u32],
        most: usize,
        take: &mut dyn FnMut(Guess) -> bool,
    ) -> Result<()> {
        self.all[i].proposer.propose(history, most, take)
    }

    /// Forgets positions from `n` on.
    pub(crate) fn rewind(&mut self, n: usize) {
        self.all.iter_mut().for_each(|one| one.proposer.rewind(n));
    }

    /// Takes over what another sequence's proposers of the same drafters keep.
    ///
    /// # Errors
    /// Memory ran out.
    pub(crate) fn go_on_from(&mut self, other: &Attached) -> Result<()> {
        for one in &mut self.all {
            if let Some(same) = other.all.iter().find(|same| Arc::ptr_eq(&same.drafter, &one.drafter)) {
                one.proposer = same.proposer.fork()?;
            }
        }
        Ok(())
    }
}
