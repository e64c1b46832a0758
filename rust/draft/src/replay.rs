//! Replay: a recorded token stream fed to a source and the gate as if a model had produced it, to measure drafting alone.
//!
//! In: a trace, a source, a gate, and what verifications truly cost. Out: what each step would have done and the speedup.
//!
//! Y1  A verification accepts the common prefix of the draft and the trace, and commits one token more, from the trace.
//! Y2  Every token of the trace after the prompt is committed exactly once, in order, whatever the source does.
//! Y3  Time is made of numbers: a plain step takes `plain_ns`, a verification `costs` times that. The gate sees these.
//! Y4  A bare trace has no logits: `observe_topk` is never called, so recycling learns from committed bigrams alone. A
//!     [`Turn`] may carry the most probable tokens of its rows; then each verification shows the source those of the rows
//!     that it sampled, as a decoder does.
//! Y5  A draft is cut as a decoder cuts it, to what was asked for and before a stop, and the source is told.
//! Y6  A turn begins as a decoder's request does: the gate hears of it, the source observes what the prompt adds to the
//!     history (or starts anew from it), and the first token comes with the prompt, not with a step.
//!
//! Cost: that of the source and the gate; the loop adds nothing that grows with the trace.

use crate::cost::CostTable;
use crate::error::{OptionsError, check_range};
use crate::gate::Gate;
use crate::source::{DraftSource, SourceError, TopkRow};

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

/// One request of a recorded session: what was asked, and what the model answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turn<'a> {
    /// All tokens of the prompt, those included that earlier turns share with it.
    pub prompt: &'a [u32],
    /// Committed tokens, a stop that ended them included. None or one: there is no step.
    pub answer: &'a [u32],
    /// For each token of the answer the most probable tokens of its row, best first, `width` each; or nothing.
    pub top: &'a [u32],
    /// Tokens a row of `top`.
    pub width: usize,
    /// Whether the answer's last token is a stop, which the history does not keep.
    pub stopped: bool,
    /// Tokens that end an answer: a draft is cut before the first of them.
    pub stops: &'a [u32],
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
    check(options)?;
    check_range("prompt_tokens", options.prompt_tokens, 0, trace.len())?;
    source.observe(&trace[..options.prompt_tokens])?;
    let mut report = ReplayReport::default();
    let part = Part { stream: trace, first: options.prompt_tokens, rows: &[], width: 0, stopped: false, stops: &[] };
    steps(&part, source, gate, options, &mut report, &mut each)?;
    Ok(report)
}

/// Feeds the turns of a session through `source` and `gate`; `each` sees every step, its place counted in the turn's stream.
///
/// # Errors
/// An option is out of its range, a turn's `top` does not fit its answer, or the source failed.
pub fn replay_turns(
    turns: &[Turn<'_>],
    source: &mut dyn DraftSource,
    gate: &mut Gate,
    options: &ReplayOptions,
    mut each: impl FnMut(&ReplayStep),
) -> Result<ReplayReport, ReplayError> {
    check(options)?;
    let mut report = ReplayReport::default();
    let mut history: Vec<u32> = Vec::new();
    for turn in turns {
        if !turn.top.is_empty() {
            check_range("top", turn.top.len(), turn.answer.len() * turn.width, turn.answer.len() * turn.width)?;
        }
        gate.begin_request();
        if turn.prompt.starts_with(&history) {
            source.observe(&turn.prompt[history.len()..])?;
        } else {
            source.rebuild(turn.prompt)?;
        }
        history.clear();
        history.extend_from_slice(turn.prompt);
        history.extend_from_slice(turn.answer);
        let first = history.len().min(turn.prompt.len() + 1);
        let part = Part {
            stream: &history,
            first,
            rows: turn.top.get(turn.width..).unwrap_or_default(),
            width: turn.width,
            stopped: turn.stopped,
            stops: turn.stops,
        };
        if turn.prompt.len() < first && (first < history.len() || !turn.stopped) {
            source.observe(&history[turn.prompt.len()..first])?;
        }
        steps(&part, source, gate, options, &mut report, &mut each)?;
        if turn.stopped {
            history.pop();
        }
    }
    Ok(report)
}

fn check(options: &ReplayOptions) -> Result<(), OptionsError> {
    check_range("max_draft", options.max_draft, 1, crate::cost::MAX_DRAFT)?;
    check_range("plain_ns", options.plain_ns, 1, u64::MAX)
}

/// A stream, and the part of it that steps commit.
struct Part<'a> {
    stream: &'a [u32],
    /// The first token that a step commits.
    first: usize,
    /// The most probable tokens of the rows of `stream[first..]`, `width` each; or nothing.
    rows: &'a [u32],
    width: usize,
    /// Whether the source never hears of the last token.
    stopped: bool,
    /// Tokens that no draft holds.
    stops: &'a [u32],
}

fn steps(
    part: &Part<'_>,
    source: &mut dyn DraftSource,
    gate: &mut Gate,
    options: &ReplayOptions,
    report: &mut ReplayReport,
    each: &mut impl FnMut(&ReplayStep),
) -> Result<(), ReplayError> {
    let ns = |cost: f64| (cost * options.plain_ns as f64) as u64;
    let stream = part.stream;
    let known = stream.len() - usize::from(part.stopped);
    let wants_rows = !part.rows.is_empty() && source.topk() > 0;
    let mut draft = Vec::with_capacity(options.max_draft);
    let mut pos = part.first;
    while pos < stream.len() {
        let allowed = gate.allows();
        draft.clear();
        if allowed {
            let budget = gate.budget(options.max_draft).min(stream.len() - pos - 1);
            if budget >= gate.options().min_draft {
                source.suggest(&stream[..pos], budget, &mut draft)?;
                let given = draft.len();
                let end = draft.iter().position(|token| part.stops.contains(token));
                draft.truncate(end.unwrap_or(given).min(budget));
                if draft.len() < gate.options().min_draft {
                    draft.clear();
                }
                if draft.len() < given {
                    source.truncate_pending(draft.len());
                }
            }
        }
        let accepted = draft.iter().zip(&stream[pos..]).take_while(|(a, b)| a == b).count();
        let committed = accepted + 1;
        let draft_ns = if allowed { options.draft_ns } else { 0 };
        let step_ns = ns(options.costs.cost(draft.len())) + draft_ns;
        // Nobody hears of a stop; a step that committed nothing else settles no draft.
        match &stream[pos..known.min(pos + committed)] {
            [] => source.truncate_pending(0),
            new => source.observe(new)?,
        }
        if draft.is_empty() {
            gate.record_plain(step_ns, draft_ns);
        } else {
            if wants_rows {
                let width = part.width;
                let row = |at: usize| TopkRow {
                    token: stream[at - 1],
                    top: &part.rows[(at - part.first) * width..][..width.min(source.topk())],
                };
                let rows: Vec<_> = (pos..pos + committed).map(row).collect();
                source.observe_topk(&rows)?;
            }
            gate.record_verify(draft.len(), accepted, committed, step_ns);
        }
        let cost = step_ns as f64 / options.plain_ns as f64;
        let step = ReplayStep { pos, allowed, drafted: draft.len(), accepted, committed, cost };
        report.add(&step);
        each(&step);
        pos += committed;
    }
    Ok(())
}
