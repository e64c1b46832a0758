//! What a decode did, in counts and nanoseconds.

/// Counts and times of one request. Times are wall-clock nanoseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecodeStats {
    /// Prompt tokens that were computed.
    pub prefill_tokens: u64,
    /// From the start of the request to its first committed token.
    pub prefill_ns: u64,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: u64,
    /// Steps after the first token: forwards of the model.
    pub steps: u64,
    /// Steps that verified a draft.
    pub verify_steps: u64,
    /// Steps without a draft.
    pub plain_steps: u64,
    /// Committed tokens, the one that completes a stop included.
    pub committed: u64,
    /// Random draws; equals `committed` when sampling, 0 when greedy.
    pub draws: u64,
    /// Drafted tokens that were verified.
    pub drafted: u64,
    /// Drafted tokens that were committed.
    pub accepted: u64,
    /// Tokens committed after a draft that was accepted whole.
    pub bonus: u64,
    /// All steps together.
    pub decode_ns: u64,
    /// Of those, asking sources and telling them.
    pub draft_ns: u64,
    /// Of those, forwards that verified a draft.
    pub verify_ns: u64,
    /// Of those, sampling and log-probabilities.
    pub sample_ns: u64,
    /// Computing what constraints allow, on a thread beside the forwards.
    pub mask_ns: u64,
    /// Committed tokens that were the only ones allowed.
    pub forced: u64,
    /// Length of the longest draft that was verified.
    pub longest_draft: u64,
}

impl DecodeStats {
    /// Committed tokens a step, without the first token, which the prefill gave. 0 before the first step.
    pub fn tokens_per_step(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.committed.saturating_sub(1) as f64 / self.steps as f64 }
    }

    /// Accepted tokens a drafted one, 0 to 1.
    pub fn acceptance(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.accepted as f64 / self.drafted as f64 }
    }
}
