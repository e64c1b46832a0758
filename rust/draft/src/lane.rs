//! A lane: a drafter whose guesses take time, as the speculator sees it. It may be a head that reads a model's hidden rows, or a smaller model; here it is a
//! name, a gate, what its guesses take and how often they are right.
//!
//! In: times of guesses, what became of them. Out: what a draft of each length is expected to bring and to take, to the speculator.
//!
//! L1  Before it drafts, a token at depth d is right with the rate of that depth where those before it were; once a token is there, with the rate of its
//!     level, which is how sure the drafter is of it.
//! L2  The first guess takes other time than each further one: it catches up with what was committed since. Both follow what was timed, in ns; before
//!     the first, and before a plain step was timed, a guess takes what its maker assumes.
//! L3  Only verified tokens teach rates. A token that was not sampled, because a stop ended the step before it, teaches nothing.
//! L4  A lane has a gate of its own, by its own cost: a lane that loses does not close the others.
//!
//! Cost: constant per guess.

use std::sync::Arc;

use crate::gate::{Gate, GateState};
use crate::score::Rates;

/// Levels of sureness of a guess.
pub const LEVELS: usize = 8;

/// Depths with rates of their own; deeper ones share the last.
const DEPTHS: usize = 8;

/// What tokens of each level are right with, before any was verified: a little under what heads show, as for matches.
const LEVEL_PRIOR: [f32; LEVELS] = [0.25, 0.3, 0.35, 0.42, 0.5, 0.6, 0.72, 0.85];
const DEPTH_PRIOR: [f32; DEPTHS] = [0.45; DEPTHS];

/// How much of a new time enters the running one.
const TIME_STEP: f64 = 0.1;

/// Drafted and accepted tokens of one depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DepthCount {
    /// Tokens that were verified at this depth where those before them were right.
    pub tried: u64,
    /// Those that were right.
    pub right: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) name: Arc<str>,
    pub(crate) gate: Gate,
    /// Why it is asked no more, if so.
    pub(crate) failed: Option<String>,
    /// What a guess takes in plain steps, before it was timed.
    assumed: f64,
    first_ns: Option<f64>,
    each_ns: Option<f64>,
    depths: Rates<DEPTHS>,
    levels: Rates<LEVELS>,
    /// Whether the gate let it draft in this step.
    pub(crate) allowed: bool,
    /// Time of its guesses in this step, in ns, not entered yet.
    pub(crate) spent_ns: u64,
    /// Of this request.
    pub(crate) ns: u64,
}

impl Lane {
    pub(crate) fn new(name: Arc<str>, gate: Gate, assumed: f64) -> Self {
        Self {
            name,
            gate,
            failed: None,
            assumed,
            first_ns: None,
            each_ns: None,
            depths: Rates::new(DEPTH_PRIOR),
            levels: Rates::new(LEVEL_PRIOR),
            allowed: false,
            spent_ns: 0,
            ns: 0,
        }
    }

    /// Begins a request.
    pub(crate) fn begin_request(&mut self) {
        self.gate.begin_request();
        self.ns = 0;
    }

    /// Asks the gate, once a step.
    pub(crate) fn ask(&mut self) {
        self.allowed = self.failed.is_none() && self.gate.allows();
    }

    /// Whether it may draft in the steps to come, so that it must know what is committed.
    pub(crate) fn listens(&self) -> bool {
        self.failed.is_none() && self.gate.state() != GateState::Closed
    }

    /// What its first guess of a step and each further one take, in plain steps of `plain_ns`.
    pub(crate) fn cost(&self, plain_ns: Option<f64>) -> GuessCost {
        let of = |ns: Option<f64>| ns.zip(plain_ns).map_or(self.assumed, |(ns, plain)| ns / plain);
        GuessCost { first: of(self.first_ns), each: of(self.each_ns.or(self.first_ns)) }
    }

    /// The rate of depth d (L1).
    pub(crate) fn depth_rate(&self, depth: usize) -> f64 {
        self.depths.rate(depth.min(DEPTHS - 1))
    }

    /// The rate of a level (L1).
    pub(crate) fn level_rate(&self, level: usize) -> f64 {
        self.levels.rate(level.min(LEVELS - 1))
    }

    /// A guess at this depth took so long.
    pub(crate) fn timed(&mut self, depth: usize, ns: u64) {
        self.spent_ns += ns;
        self.ns += ns;
        let time = if depth == 0 { &mut self.first_ns } else { &mut self.each_ns };
        let sample = ns as f64;
        // A thread that waited for the machine says nothing about guesses.
        let sample = time.map_or(sample, |old| sample.min(4.0 * old));
        *time = Some(time.map_or(sample, |old| old + TIME_STEP * (sample - old)));
    }

    /// What became of its tokens: `levels` of those that it guessed itself, of which `accepted` were right and the next one was not, if it was `sampled`.
    pub(crate) fn learn(&mut self, levels: &[usize], accepted: usize, sampled: bool) {
        for (depth, level) in levels.iter().enumerate().take(accepted + usize::from(sampled)) {
            let right = depth < accepted;
            self.depths.record(depth.min(DEPTHS - 1), right);
            self.levels.record((*level).min(LEVELS - 1), right);
        }
    }
}

/// What guesses take, in plain steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GuessCost {
    pub(crate) first: f64,
    pub(crate) each: f64,
}

impl GuessCost {
    /// What `n` guesses take.
    pub(crate) fn of(self, n: usize) -> f64 {
        if n == 0 { 0.0 } else { self.first + self.each * (n - 1) as f64 }
    }
}
