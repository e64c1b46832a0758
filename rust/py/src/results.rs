//! What the core tells Python: frozen classes with named fields, one for each result of the engine. Nothing is computed here.

use pyo3::prelude::*;
use quoth_engine::{decode, sample, schedule};

use crate::errors::to_py;

/// What a step handed out.
#[pyclass(module = "quoth._core", frozen, get_all)]
pub(crate) struct Step {
    tokens: Vec<u32>,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    drafted: usize,
    accepted: usize,
    source: Option<String>,
    finish: Option<Finish>,
}

impl From<decode::Step> for Step {
    fn from(step: decode::Step) -> Self {
        Step {
            tokens: step.tokens,
            text: step.text,
            logprobs: step.logprobs.into_iter().map(TokenLogprobs::from).collect(),
            drafted: step.drafted,
            accepted: step.accepted,
            source: step.source,
            finish: step.finish.map(Finish::from),
        }
    }
}

/// Why a generation ended: `stop` (also where a constraint's answer is complete), `length` or `context`; the token that completed a stop, or the index of the stop text.
#[pyclass(module = "quoth._core", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct Finish {
    reason: &'static str,
    stop_id: Option<u32>,
    stop_text: Option<usize>,
}

impl From<decode::Finish> for Finish {
    fn from(finish: decode::Finish) -> Self {
        let (reason, stop_id, stop_text) = match finish {
            decode::Finish::StopId(id) => ("stop", Some(id), None),
            decode::Finish::StopText(index) => ("stop", None, Some(index)),
            decode::Finish::Length => ("length", None, None),
            decode::Finish::Context => ("context", None, None),
            decode::Finish::Complete => ("stop", None, None),
        };
        Finish { reason, stop_id, stop_text }
    }
}

/// The log-probability of the chosen token, and the most probable tokens with theirs, best first.
#[pyclass(module = "quoth._core", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct TokenLogprobs {
    logprob: f32,
    top: Vec<(u32, f32)>,
}

impl From<sample::TokenLogprobs> for TokenLogprobs {
    fn from(found: sample::TokenLogprobs) -> Self {
        TokenLogprobs { logprob: found.chosen, top: found.top }
    }
}

/// Counts and times of a request.
#[pyclass(module = "quoth._core", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct DecodeStats {
    prefill_tokens: u64,
    prefill_ns: u64,
    cached_tokens: u64,
    steps: u64,
    verify_steps: u64,
    plain_steps: u64,
    committed: u64,
    draws: u64,
    drafted: u64,
    accepted: u64,
    bonus: u64,
    decode_ns: u64,
    draft_ns: u64,
    verify_ns: u64,
    sample_ns: u64,
    mask_ns: u64,
    forced: u64,
    longest_draft: u64,
    tokens_per_step: f64,
    acceptance: f64,
}

impl From<&decode::DecodeStats> for DecodeStats {
    fn from(s: &decode::DecodeStats) -> Self {
        DecodeStats {
            prefill_tokens: s.prefill_tokens,
            prefill_ns: s.prefill_ns,
            cached_tokens: s.cached_tokens,
            steps: s.steps,
            verify_steps: s.verify_steps,
            plain_steps: s.plain_steps,
            committed: s.committed,
            draws: s.draws,
            drafted: s.drafted,
            accepted: s.accepted,
            bonus: s.bonus,
            decode_ns: s.decode_ns,
            draft_ns: s.draft_ns,
            verify_ns: s.verify_ns,
            sample_ns: s.sample_ns,
            mask_ns: s.mask_ns,
            forced: s.forced,
            longest_draft: s.longest_draft,
            tokens_per_step: s.tokens_per_step(),
            acceptance: s.acceptance(),
        }
    }
}

/// What speculation did in a request.
#[pyclass(module = "quoth._core", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct SpeculationStats {
    gate: GateStats,
    sources: Vec<SourceStats>,
}

impl From<decode::SpeculationStats> for SpeculationStats {
    fn from(s: decode::SpeculationStats) -> Self {
        SpeculationStats {
            gate: GateStats {
                state: if s.disabled.is_some() { "disabled".to_owned() } else { s.gate.state.to_string() },
                estimated_speedup: s.gate.estimated_speedup,
                trips: s.gate.trips,
                probes: s.gate.probes,
                reopened: s.gate.reopened,
                closed_steps: s.gate.closed_steps,
                probe_in: s.gate.probe_in,
                scale: s.costs.scale,
                plain_ns: s.costs.plain_ns,
                costs: s.costs.provenance,
                reason: s.disabled.or(s.gate.reason.map(|r| r.to_string())),
            },
            sources: s.sources.into_iter().map(SourceStats::from).collect(),
        }
    }
}

/// What the gate did and why.
#[pyclass(module = "quoth._core", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct GateStats {
    state: String,
    estimated_speedup: Option<f64>,
    trips: u64,
    probes: u64,
    reopened: u64,
    closed_steps: u64,
    probe_in: u32,
    scale: f64,
    plain_ns: Option<f64>,
    costs: String,
    reason: Option<String>,
}

/// What one source of drafts did.
#[pyclass(module = "quoth._core", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct SourceStats {
    name: String,
    drafts: u64,
    drafted: u64,
    accepted: u64,
    grafted: u64,
    ns: u64,
    tried_at: Vec<u64>,
    accepted_at: Vec<u64>,
    reason: Option<String>,
}

impl From<quoth_draft::SourceStats> for SourceStats {
    fn from(s: quoth_draft::SourceStats) -> Self {
        SourceStats {
            name: s.name.to_string(),
            drafts: s.drafts,
            drafted: s.drafted,
            accepted: s.accepted,
            grafted: s.grafted,
            ns: s.ns,
            tried_at: s.depths.iter().map(|depth| depth.tried).collect(),
            accepted_at: s.depths.iter().map(|depth| depth.right).collect(),
            reason: s.reason,
        }
    }
}

/// A step of a scheduler's task: what it handed out, or the exception that ended it; when the task is over, what it did.
#[pyclass(module = "quoth._core", frozen, get_all)]
pub(crate) struct Event {
    task: u64,
    step: Option<Py<Step>>,
    error: Option<PyErr>,
    outcome: Option<Py<Outcome>>,
}

impl Event {
    pub(crate) fn new(py: Python<'_>, event: schedule::Event) -> PyResult<Self> {
        let (step, error) = match event.step {
            Ok(step) => (Some(Py::new(py, Step::from(step))?), None),
            Err(error) => (None, Some(to_py(py, error))),
        };
        let outcome = event.outcome.map(|outcome| Py::new(py, Outcome::from(*outcome))).transpose()?;
        Ok(Event { task: event.id.0, step, error, outcome })
    }
}

/// What a scheduler's task did.
#[pyclass(module = "quoth._core", frozen, get_all)]
pub(crate) struct Outcome {
    stats: DecodeStats,
    speculation: Option<SpeculationStats>,
}

impl From<schedule::Outcome> for Outcome {
    fn from(outcome: schedule::Outcome) -> Self {
        Outcome {
            stats: DecodeStats::from(&outcome.stats),
            speculation: outcome.speculation.map(SpeculationStats::from),
        }
    }
}
