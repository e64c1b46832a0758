//! Replay: a recorded token stream fed to a source and the gate as if a model had produced it, to measure drafting alone.
//!
//! In: a trace, a source, a gate, and what verifications truly cost. Out: what each step would have done and the speedup.
//!
//! Y1  A verification accepts the common prefix of the draft and the trace, and commits one token more, from the trace.
//! Y2  Every token of the trace after the prompt is committed exactly once, in order, whatever the source does.
//! Y3  Time is made of numbers: a plain step takes `plain_ns`, a verification `costs` times that. The gate sees these.
//! Y4  A trace has no logits: `observe_topk` is never called, so recycling learns from committed bigrams alone.
//!
//! Cost: that of the source and the gate; the loop adds nothing that grows with the trace.

use crate::cost::CostTable;
use crate::error::{OptionsError, check_range};
use crate::gate::Gate;
use crate::source::{DraftSource, SourceError};

#[cfg(test)]
mod tests;

/// What a replay assumes about the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayOptions {
    /// Longest draft, 1 to 4096.
    pub max_draft: usize,
    /// Tokens at the start of the trace that are a prompt.
    pub prompt_tokens: usize,
    /// A plain step in ns, at least 1.
    pub plain_ns: u64,
    /// What a suggestion takes in ns, found or not.
    pub draft_ns: u64,
    /// What verifications truly cost. The gate has its own table, which may be wrong.
    pub costs: CostTable,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { max_draft: 16, prompt_tokens: 0, plain_ns: 10_000_000, draft_ns: 1_000, costs: CostTable::default() }
    }
}

/// One replayed step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplayStep {
    /// Place of the step's first committed token in the trace.
    pub pos: usize,
    /// Whether the gate let the step draft.
    pub allowed: bool,
    /// Tokens verified; 0 in a plain step.
    pub drafted: usize,
    /// Tokens of them that the trace continues with.
    pub accepted: usize,
    /// Tokens committed.
    pub committed: usize,
    /// What the step took, in plain steps.
    pub cost: f64,
}

/// Sums over a replay.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReplayReport {
    /// Tokens committed.
    pub tokens: u64,
    /// Steps, of both kinds.
    pub steps: u64,
    /// Steps that verified a draft.
    pub verify_steps: u64,
    /// Steps that the gate refused a draft.
    pub closed_steps: u64,
    /// Tokens verified.
    pub drafted: u64,
    /// Tokens of them accepted.
    pub accepted: u64,
    /// What all steps took, in plain steps.
    pub cost: f64,
}

impl ReplayReport {
    /// Committed tokens per step; 0 without a step.
    pub fn tokens_per_step(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.tokens as f64 / self.steps as f64 }
    }

    /// Accepted per drafted token, 0 to 1; 0 if nothing was drafted.
    pub fn acceptance(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.accepted as f64 / self.drafted as f64 }
    }

    /// Time of plain decoding over the time of this; 1 without a step.
    pub fn speedup(&self) -> f64 {
        if self.steps == 0 { 1.0 } else { self.tokens as f64 / self.cost }
    }

    fn add(&mut self, step: &ReplayStep) {
        self.tokens += step.committed as u64;
        self.steps += 1;
        self.verify_steps += u64::from(step.drafted > 0);
        self.closed_steps += u64::from(!step.allowed);
        self.drafted += step.drafted as u64;
        self.accepted += step.accepted as u64;
        self.cost += step.cost;
    }
}

/// Why a replay ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayError {
    /// An option is out of its range.
    Options(OptionsError),
    /// The source failed.
    Source(SourceError),
}

impl std::fmt::Display for ReplayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Options(error) => error.fmt(f),
            Self::Source(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<OptionsError> for ReplayError {
    fn from(error: OptionsError) -> Self {
        Self::Options(error)
    }
}

impl From<SourceError> for ReplayError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

/// Feeds `trace` through `source` and `gate`; `each` sees every step.
///
/// # Errors
/// An option is out of its range, or the source failed.
pub fn replay(
    trace: &[u32],
    source: &mut dyn DraftSource,
    gate: &mut Gate,
    options: &ReplayOptions,
    mut each: impl FnMut(&ReplayStep),
) -> Result<ReplayReport, ReplayError> {
    check_range("max_draft", options.max_draft, 1, crate::cost::MAX_DRAFT)?;
    check_range("prompt_tokens", options.prompt_tokens, 0, trace.len())?;
    check_range("plain_ns", options.plain_ns, 1, u64::MAX)?;
    let ns = |cost: f64| (cost * options.plain_ns as f64) as u64;
    let mut report = ReplayReport::default();
    let mut draft = Vec::with_capacity(options.max_draft);
    let mut pos = options.prompt_tokens;
    source.observe(&trace[..pos])?;
    while pos < trace.len() {
        let allowed = gate.allows();
        draft.clear();
        if allowed {
            let budget = gate.budget(options.max_draft).min(trace.len() - pos - 1);
            if budget >= gate.options().min_draft {
                source.suggest(&trace[..pos], budget, &mut draft)?;
                draft.truncate(budget);
            }
            if draft.len() < gate.options().min_draft {
                draft.clear();
            }
        }
        let accepted = draft.iter().zip(&trace[pos..]).take_while(|(a, b)| a == b).count();
        let committed = accepted + 1;
        let draft_ns = if allowed { options.draft_ns } else { 0 };
        let step_ns = ns(options.costs.cost(draft.len())) + draft_ns;
        source.observe(&trace[pos..pos + committed])?;
        if draft.is_empty() {
            gate.record_plain(step_ns, draft_ns);
        } else {
            gate.record_verify(draft.len(), accepted, committed, step_ns);
        }
        let cost = step_ns as f64 / options.plain_ns as f64;
        let step = ReplayStep { pos, allowed, drafted: draft.len(), accepted, committed, cost };
        report.add(&step);
        each(&step);
        pos += committed;
    }
    Ok(report)
}
