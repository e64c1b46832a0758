//! The contract between a draft source and the [`crate::Speculator`], which speaks for the decoder.
//!
//! In: committed tokens, top-k rows from verification, a budget. Out: a draft, which the decoder verifies.
//!
//! S1  A source decides what is guessed, never what is committed: any source yields the same text.
//! S2  `observe` sees each committed token exactly once, in order, the prompt included; rejected drafts never reach it.
//! S3  The order within a step is: `suggest`, verification, `observe` (all tokens of the step in one call), `observe_topk`.
//! S4  A source may be wrong, lie about lengths and probabilities, name impossible tokens or fail. The speculator clamps the draft, drops it,
//!     or stops asking; it relies on none of what a source promises.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One verified row: the token that went in and the tokens that the model found most probable after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopkRow<'a> {
    /// The input token of the row.
    pub token: u32,
    /// Token ids, most probable first, taken before penalties. May be shorter or longer than asked for.
    pub top: &'a [u32],
}

/// A source that failed, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceError(pub String);

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the draft source failed: {}", self.0)
    }
}

impl std::error::Error for SourceError {}

/// How much a source may draft, and what that costs.
#[derive(Debug, Clone, Copy)]
pub struct Budget<'a> {
    /// Shorter drafts are not verified; at least 1.
    pub min_tokens: usize,
    /// Longer ones are cut; at least `min_tokens`.
    pub max_tokens: usize,
    /// `extra[d]`: cost above a plain step of verifying d tokens, in plain steps, on this machine, at this context, beside the sequences of this step.
    /// From 0 to `max_tokens`.
    pub extra: &'a [f64],
    /// How many tokens at the end of the context are foretold by a constraint, certain or nearly so, and not committed yet. The draft goes on behind them.
    pub ahead: usize,
}

impl Budget<'_> {
    /// A budget in which verification costs nothing.
    pub fn free(max_tokens: usize) -> Self {
        Self { min_tokens: 1, max_tokens, extra: &[], ahead: 0 }
    }

    /// `extra[drafted]`; where the list ends, its last entry.
    #[inline]
    pub fn extra(&self, drafted: usize) -> f64 {
        self.extra.get(drafted).or(self.extra.last()).copied().unwrap_or(0.0)
    }
}

/// Guessed tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// The tokens, in order.
    pub tokens: Vec<u32>,
    /// For each token the chance that it is reached and right, 0 to 1, never increasing. Empty if the source has no opinion.
    pub reach: Vec<f64>,
    /// Which part of the source made it.
    pub source: Option<Arc<str>>,
}

impl Draft {
    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Forgets all of it.
    pub fn clear(&mut self) {
        self.truncate(0);
        self.source = None;
    }

    /// Keeps the first `n` tokens.
    pub fn truncate(&mut self, n: usize) {
        self.tokens.truncate(n);
        self.reach.truncate(n);
    }

    /// How many of its tokens `next` begins with.
    pub fn accepted(&self, next: &[u32]) -> usize {
        self.tokens.iter().zip(next).take_while(|(a, b)| a == b).count()
    }
}

/// A part of a source that makes drafts of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// As in [`Draft::source`]: `conversation`, `reference-1`, `recycling`, or a name of the user's.
    pub name: Arc<str>,
    /// Why it drafts nothing any more, if so.
    pub shut: Option<String>,
}

/// Guesses the tokens that come next. Must be deterministic: the proposal is a point, not a distribution.
pub trait DraftSource: Send {
    /// Fills `draft`, which arrives empty, with up to `budget.max_tokens` guessed tokens. No guess is a good answer.
    ///
    /// `context` is the committed text and ends with the carried token; behind it stand `budget.ahead` tokens that are certain to come. A suggestion is *pending* until the next
    /// `observe` (which settles it), `suggest` (which forgets it) or `truncate_pending`.
    ///
    /// # Errors
    /// The source failed. What it left in `draft` is ignored.
    fn suggest(&mut self, context: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError>;

    /// Learns tokens that were committed: a whole prompt, or all tokens of one step.
    ///
    /// # Errors
    /// The source failed and may have missed tokens.
    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError>;

    /// How many of the most probable tokens it wants per verified row; at 0 they are never computed.
    fn topk(&self) -> usize {
        0
    }

    /// Learns from the rows of a verification that were sampled. Called after the `observe` of the same step.
    ///
    /// # Errors
    /// The source failed and may have missed rows.
    fn observe_topk(&mut self, _rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        Ok(())
    }

    /// Says that only the first `n` tokens of the pending draft will be verified.
    fn truncate_pending(&mut self, _n: usize) {}

    /// Says that a draft of another drafter is verified in this step, at so many plain steps above a plain step; `observe` then tells what was committed on
    /// it. `None`: it is not verified after all. A pending draft was given up before ([`Self::truncate_pending`]).
    fn give_way(&mut self, _extra: Option<f64>) {}

    /// Fills `draft`, which arrives empty, with what the source would quote after `context` and `guessed`, tokens that another drafter guesses: up to `max`
    /// tokens, each with its chance. No quotation is a good answer. Nothing of this is pending.
    ///
    /// # Errors
    /// The source failed.
    fn graft(
        &mut self,
        _context: &[u32],
        _guessed: &[u32],
        _max: usize,
        _draft: &mut Draft,
    ) -> Result<(), SourceError> {
        Ok(())
    }

    /// Forgets the stream and learns `history` in its place: the decoder went back to an earlier point. References stay.
    ///
    /// # Errors
    /// The source failed; the decoder asks it no more.
    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError>;

    /// The parts that it names in its drafts. Empty if it is one whole.
    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }
}

/// A source that its maker keeps a handle to, for instance to add references while a decoder drafts from it.
impl<S: DraftSource> DraftSource for Arc<Mutex<S>> {
    fn suggest(&mut self, context: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        locked(self).suggest(context, budget, draft)
    }
    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        locked(self).observe(committed)
    }
    fn topk(&self) -> usize {
        locked(self).topk()
    }
    fn observe_topk(&mut self, rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        locked(self).observe_topk(rows)
    }
    fn truncate_pending(&mut self, n: usize) {
        locked(self).truncate_pending(n);
    }
    fn give_way(&mut self, extra: Option<f64>) {
        locked(self).give_way(extra);
    }
    fn graft(&mut self, context: &[u32], guessed: &[u32], max: usize, draft: &mut Draft) -> Result<(), SourceError> {
        locked(self).graft(context, guessed, max, draft)
    }
    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        locked(self).rebuild(history)
    }
    fn parts(&self) -> Vec<Part> {
        locked(self).parts()
    }
}

fn locked<S>(source: &Arc<Mutex<S>>) -> MutexGuard<'_, S> {
    source.lock().unwrap_or_else(PoisonError::into_inner)
}
