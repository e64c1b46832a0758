//! Replay: a recorded token stream fed to a speculator as if a model had produced it, to measure drafting alone.
//!
//! In: a trace, a speculator, and what verifications truly cost. Out: what each step would have done and the speedup.
//!
//! Y1  A verification accepts the common prefix of the draft and the trace, and commits one token more, from the trace.
//! Y2  Every token of the trace after the prompt is committed exactly once, in order, whatever the source does.
//! Y3  Time is made of numbers: a plain step takes `plain_ns`, a verification `costs` times that. The speculator's costs learn from these.
//! Y4  A bare trace has no logits: `observe_topk` is never called, so recycling learns from committed pairs alone. A
//!     [`Turn`] may carry the most probable tokens of its rows; then each verification shows the source those of the rows
//!     that it sampled, as a decoder does.
//! Y5  Drafts are bounded, cut and recorded by the [`Speculator`], the one that decoders use.
//! Y6  A turn begins as a decoder's request does: the speculator hears of it, the source observes what the prompt adds to the
//!     history (or starts anew from it), and the first token comes with the prompt, not with a step.
//!
//! Cost: that of the speculator; the loop adds nothing that grows with the trace.

use crate::cost::TimedStep;
use crate::error::{OptionsError, check_range};
use crate::ledger::SourceStats;
use crate::source::SourceError;
use crate::speculator::{Bounds, Load, Speculator};
use crate::table::CostTable;

#[cfg(test)]
mod tests;

/// What a replay assumes about the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayOptions {
    /// Tokens at the start of the trace that are a prompt.
    pub prompt_tokens: usize,
    /// A plain step in ns, at least 1.
    pub plain_ns: u64,
    /// What a suggestion takes in ns, found or not.
    pub draft_ns: u64,
    /// What verifications truly cost. The speculator has a table of its own, which may be wrong.
    pub costs: CostTable,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { prompt_tokens: 0, plain_ns: 10_000_000, draft_ns: 1_000, costs: CostTable::default() }
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
#[derive(Debug, Clone, PartialEq, Default)]
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
    /// What each part of the source did.
    pub sources: Vec<SourceStats>,
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

    /// Adds what the sources did in a request.
    fn add_sources(&mut self, sources: Vec<SourceStats>) {
        for new in sources {
            match self.sources.iter_mut().find(|old| old.name == new.name) {
                Some(old) => {
                    old.drafts += new.drafts;
                    old.drafted += new.drafted;
                    old.accepted += new.accepted;
                    old.reason = new.reason;
                }
                None => self.sources.push(new),
            }
        }
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

/// Feeds `trace` through `speculator`; `each` sees every step.
///
/// # Errors
/// An option is out of its range, or the source failed.
pub fn replay(
    trace: &[u32],
    speculator: &mut Speculator,
    options: &ReplayOptions,
    mut each: impl FnMut(&ReplayStep),
) -> Result<ReplayReport, ReplayError> {
    check_range("plain_ns", options.plain_ns, 1, u64::MAX)?;
    check_range("prompt_tokens", options.prompt_tokens, 0, trace.len())?;
    speculator.observe(&trace[..options.prompt_tokens]);
    let mut report = ReplayReport::default();
    let part = Part { stream: trace, first: options.prompt_tokens, rows: &[], width: 0, stopped: false, stops: &[] };
    steps(&part, speculator, options, &mut report, &mut each)?;
    report.add_sources(speculator.stats().sources);
    Ok(report)
}

/// Feeds the turns of a session through `speculator`; `each` sees every step, its place counted in the turn's stream.
///
/// # Errors
/// An option is out of its range, a turn's `top` does not fit its answer, or the source failed.
pub fn replay_turns(
    turns: &[Turn<'_>],
    speculator: &mut Speculator,
    options: &ReplayOptions,
    mut each: impl FnMut(&ReplayStep),
) -> Result<ReplayReport, ReplayError> {
    check_range("plain_ns", options.plain_ns, 1, u64::MAX)?;
    let mut report = ReplayReport::default();
    let mut history: Vec<u32> = Vec::new();
    for turn in turns {
        if !turn.top.is_empty() {
            check_range("top", turn.top.len(), turn.answer.len() * turn.width, turn.answer.len() * turn.width)?;
        }
        speculator.begin_request();
        if turn.prompt.starts_with(&history) {
            speculator.observe(&turn.prompt[history.len()..]);
        } else {
            speculator.rebuild(turn.prompt);
        }
        history.clear();
        history.extend_from_slice(turn.prompt);
        history.extend_from_slice(turn.answer);
        let first = history.len().min(turn.prompt.len() + 1);
        let mut stops = turn.stops.to_vec();
        stops.sort_unstable();
        let part = Part {
            stream: &history,
            first,
            rows: turn.top.get(turn.width..).unwrap_or_default(),
            width: turn.width,
            stopped: turn.stopped,
            stops: &stops,
        };
        if turn.prompt.len() < first && (first < history.len() || !turn.stopped) {
            speculator.observe(&history[turn.prompt.len()..first]);
        }
        steps(&part, speculator, options, &mut report, &mut each)?;
        report.add_sources(speculator.stats().sources);
        if turn.stopped {
            history.pop();
        }
    }
    Ok(report)
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
    /// Tokens that no draft holds, ascending.
    stops: &'a [u32],
}

fn steps(
    part: &Part<'_>,
    speculator: &mut Speculator,
    options: &ReplayOptions,
    report: &mut ReplayReport,
    each: &mut impl FnMut(&ReplayStep),
) -> Result<(), ReplayError> {
    let stream = part.stream;
    let known = stream.len() - usize::from(part.stopped);
    let wants_rows = !part.rows.is_empty() && speculator.topk() > 0;
    let mut pos = part.first;
    while pos < stream.len() {
        // The carried token is not cached yet.
        let cached = pos.saturating_sub(1);
        let bounds = Bounds {
            room: usize::MAX,
            wanted: stream.len() - pos,
            n_vocab: usize::MAX,
            stop_ids: part.stops,
            forced: &[],
            certain: 0,
        };
        let draft = speculator.propose(&stream[..pos], bounds, Load { cached, ..Load::default() });
        let (drafted, accepted) = (draft.len(), draft.accepted(&stream[pos..]));
        let allowed = speculator.allowed();
        let committed = accepted + 1;
        let draft_ns = if allowed { options.draft_ns } else { 0 };
        let step_ns = (options.costs.cost(drafted, cached) * options.plain_ns as f64) as u64 + draft_ns;
        // The source never hears of a stop; a step that committed nothing else settles no draft.
        match &stream[pos..known.min(pos + committed)] {
            [] => speculator.drop_pending(),
            new => speculator.observe(new),
        }
        let costs = speculator.costs().clone();
        let ns = if drafted == 0 { step_ns - draft_ns } else { step_ns };
        costs.lock().observe(TimedStep { rows: drafted + 1, spans: 1, cached, drafted, ns });
        if drafted == 0 {
            speculator.record_plain(draft_ns);
        } else {
            if wants_rows {
                let (topk, width) = (speculator.topk(), part.width);
                for at in pos..pos + committed {
                    let row = &part.rows[(at - part.first) * width..][..width.min(topk)];
                    speculator.capture(row.iter().copied());
                }
                speculator.observe_topk(&stream[pos - 1..pos + committed - 1]);
            }
            let cost = costs.lock().draft_cost(drafted, drafted + 1, 1, cached);
            speculator.record_verify(accepted, committed, Some(cost));
        }
        if let Some(error) = speculator.disabled() {
            return Err(error.clone().into());
        }
        let cost = step_ns as f64 / options.plain_ns as f64;
        let step = ReplayStep { pos, allowed, drafted, accepted, committed, cost };
        report.add(&step);
        each(&step);
        pos += committed;
    }
    Ok(())
}
