//! A lane: a drafter whose guesses take time, as the speculator sees it. It may be a head that reads a model's hidden rows, or a smaller model; here it is a
//! name, a gate, what its guesses take and how often they are right.
//!
//! In: times of guesses, what became of them. Out: what a draft of each length is expected to bring and to take, to the speculator.
//!
//! L1  Before it drafts, a token at depth d is right with the rate of that depth where those before it were; once a token is there, with the rate of its
//!     level, which is how sure the drafter is of it.
//! L2  The first guess takes other time than each further one: it catches up with what was committed since. Both follow what was timed, in ns; before
//!     the first, and before a plain step was timed, a guess takes what its maker assumes.
//! L3  Verified tokens teach the rates of their depth and level. A guess that was not verified teaches its depth the rate of its level: otherwise a lane whose
//!     guesses are never sure enough would be asked again and again. A token that was not sampled, because a stop ended the step before it, teaches nothing.
//! L4  A lane has a gate of its own, by its own cost: a lane that loses does not close the others.
//! L5  A lane that nothing favours for `DOZE` steps, which are plain then, falls asleep: it learns nothing of what is committed. After `nap` such steps it
//!     wakes and drafts a little, `TRIES` times, to see whether it should draft again. Each vain try doubles the nap, up to `MAX_NAP`.
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

/// Plain steps after which a lane falls asleep, and after which it wakes the first time.
const DOZE: u32 = 8;
const FIRST_NAP: u32 = 64;
const MAX_NAP: u32 = 1024;
/// Drafts of a lane that has woken.
const TRIES: u32 = 4;

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
    /// Plain steps since it was favoured, the length of its nap, and tries since it woke (L5).
    idle: u32,
    nap: u32,
    tries: u32,
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
            idle: 0,
            nap: FIRST_NAP,
            tries: 0,
            allowed: false,
            spent_ns: 0,
            ns: 0,
        }
    }

    /// Begins a request.
    pub(crate) fn begin_request(&mut self) {
        self.gate.begin_request();
        self.favoured();
        self.ns = 0;
    }

    /// Asks the gate, once a step. Time that it has spent before, on a prompt, is no step's.
    pub(crate) fn ask(&mut self) {
        self.spent_ns = 0;
        self.allowed = self.failed.is_none() && self.gate.allows();
    }

    /// Whether it may draft in the steps to come, so that it must know what is committed.
    pub(crate) fn listens(&self) -> bool {
        let awake = self.idle < DOZE || self.idle >= self.nap;
        self.failed.is_none() && self.gate.state() != GateState::Closed && awake
    }

    /// It is expected to gain.
    pub(crate) fn favoured(&mut self) {
        (self.idle, self.nap, self.tries) = (0, FIRST_NAP, 0);
    }

    /// The step would be plain, and the lane is not expected to gain.
    pub(crate) fn passed_over(&mut self) {
        self.idle = self.idle.saturating_add(1);
    }

    /// Whether it is to draft although nothing favours it.
    pub(crate) fn tries(&self) -> bool {
        self.idle >= self.nap || self.gate.state() == GateState::Probing
    }

    /// It drafts for that reason.
    pub(crate) fn tried(&mut self) {
        self.tries += 1;
        if self.tries >= TRIES {
            (self.idle, self.nap, self.tries) = (DOZE, (2 * self.nap).min(MAX_NAP), 0);
        }
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

    /// Guesses of these levels, at this depth and the following ones, were not verified.
    pub(crate) fn unverified(&mut self, depth: usize, levels: &[usize]) {
        for (i, level) in levels.iter().enumerate() {
            let chance = self.level_rate(*level) as f32;
            self.depths.expect((depth + i).min(DEPTHS - 1), chance);
        }
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
