//! The contract between the decoder and whoever guesses the next tokens.
//!
//! In: committed tokens, top-k rows from verification. Out: a draft that the decoder verifies.
//!
//! S1  A source decides what is guessed, never what is committed: any source yields the same text.
//! S2  `observe` sees each committed token exactly once, in order, the prompt included; rejected drafts never reach it.
//! S3  The order within a step is: `suggest`, verification, `observe` (all tokens of the step in one call), `observe_topk`.
//! S4  A source may be wrong, lie about lengths, name impossible tokens or fail. The caller clamps the draft, drops it,
//!     or stops asking; it relies on none of what a source promises.

use std::fmt;

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

/// What one source has done so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SourceStats {
    /// `conversation`, `reference-1`, `recycling`, or the name of a user's source.
    pub name: String,
    /// Drafts that were verified.
    pub drafts: u64,
    /// Tokens in those drafts.
    pub drafted: u64,
    /// Tokens among them that were committed.
    pub accepted: u64,
    /// How often the source was muted.
    pub mutes: u64,
    /// Whether it is muted or shut now.
    pub muted: bool,
    /// Why it is, or last was, muted or shut.
    pub reason: Option<String>,
}

impl SourceStats {
    /// Accepted tokens per drafted token, 0 to 1; 0 if nothing was drafted.
    pub fn acceptance(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.accepted as f64 / self.drafted as f64 }
    }
}

/// Guesses the tokens that come next. Must be deterministic: the proposal is a point, not a distribution.
pub trait DraftSource: Send {
    /// Appends up to `max_tokens` guessed tokens to `out`, which arrives empty. No guess is a good answer.
    ///
    /// `context` is the committed text and ends with the carried token. A suggestion is *pending* until the next
    /// `observe` (which settles it), `suggest` (which forgets it) or `truncate_pending`.
    ///
    /// # Errors
    /// The source failed. What it left in `out` is ignored.
    fn suggest(&mut self, context: &[u32], max_tokens: usize, out: &mut Vec<u32>) -> Result<(), SourceError>;

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

    /// Forgets the stream and learns `history` in its place: the decoder went back to an earlier point. References stay.
    ///
    /// # Errors
    /// The source failed; the decoder asks it no more.
    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError>;

    /// What it has done so far, an entry for each part that drafts. Empty if it does not count.
    fn stats(&self) -> Vec<SourceStats> {
        Vec::new()
    }
}
