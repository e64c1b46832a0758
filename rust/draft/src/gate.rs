//! The gate: whether drafting pays on this text and this machine, and how long a draft may be.
//!
//! In: what each step committed and how long it took. Out: "may the next step draft, how much", to the decoder.
//!
//! G1  Costs are in plain steps. A verification of k tokens costs max(scale * table(k), 1), plus what was spent since the
//!     last one on asking for drafts that did not come.
//! G2  The estimated speedup is the sum of committed tokens over the sum of costs, over the last `window` verifications: a
//!     ratio of sums. Plain steps are not in it: they are the same with and without a gate.
//! G3  States: *open*; *closed*, for `wait` asked steps; *probing*, for `probe_steps` verifications, after which the
//!     estimate must reach `min_speedup + probe_margin`. A failed probe doubles the wait; closing from open starts again at
//!     `reprobe_after`. A wait is never so short that the loss just made exceeds `loss_share` of it, nor over `reprobe_max`.
//! G4  `balance` is what drafting has gained since the gate last opened (committed minus cost, minus idle drafting above
//!     `idle_share`), kept at most at `credit`. Open or probing, the gate closes when two verifications or more are in the
//!     ring, the estimate is under `min_speedup` *and* the balance is at -`max_debt` or below; idle drafting closes it on
//!     the balance alone. So a dip costs no more than what drafting has earned and `max_debt`, and a few cheap misses, which
//!     prove nothing, do not shut out a text that would have gained.
//! G5  After the ring was emptied the first draft is so short that it risks at most `first_risk` plain steps.
//! G6  A verification is timed against a plain step, so there must be one: after `baseline_after` timed verifications
//!     without any, and later after `baseline_every`, one step is refused a draft. Otherwise a stream of good drafts would
//!     never show that the table is wrong, or that steps have grown dearer with the context.
//! G7  Time comes in as numbers. The same calls give the same decisions.
//!
//! What useless drafts lose is then bounded: per probe `max_debt` and the excess of one verification, and probes grow
//! rarer, to one in `reprobe_max` steps.
//! Cost: constant per step. Sources: Fucina's cost gate (G2, G3, budget, rescale); G1's whole step, G4 and G5 are ours.

use std::collections::VecDeque;
use std::fmt;

use crate::cost::{CostTable, MAX_DRAFT};
use crate::error::{OptionsError, check_range};

#[cfg(test)]
mod tests;

/// How much of a new live measurement enters the scale, and between which bounds one may lie.
const SCALE_STEP: f64 = 0.2;
const SCALE_BOUNDS: (f64, f64) = (0.25, 4.0);
/// How much of a new plain step enters the running plain step.
const PLAIN_STEP: f64 = 0.25;

/// Knobs of the gate. The defaults are meant for everyone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateOptions {
    /// Verifications in the ring, 2 to 4096.
    pub window: usize,
    /// Least estimated speedup that keeps the gate open, 0.5 to 10.
    pub min_speedup: f64,
    /// What a probe must show above `min_speedup`, 0 to 10.
    pub probe_margin: f64,
    /// Closed steps before the first probe, at least 1.
    pub reprobe_after: u32,
    /// Most closed steps before a probe, at least `reprobe_after`.
    pub reprobe_max: u32,
    /// Verifications in a probe, 1 to `window`.
    pub probe_steps: usize,
    /// Shortest draft that the decoder verifies, 1 to 4096.
    pub min_draft: usize,
    /// Whether recent acceptance limits the next draft.
    pub adapt_budget: bool,
    /// Most plain steps that the first verification after an empty ring may cost above a plain step, 0 to 1000.
    pub first_risk: f64,
    /// Debt in plain steps that closes the gate if the estimate agrees, 0 to 1000.
    pub max_debt: f64,
    /// Gain in plain steps that a run may lose again before a bad estimate closes the gate, 0 to 1000.
    pub credit: f64,
    /// Share of the following wait that the loss of a closed phase may amount to, 0.001 to 1.
    pub loss_share: f64,
    /// Share of a plain step that drafting may take without counting as debt when no draft comes of it, 0 to 1.
    pub idle_share: f64,
    /// Timings left out of the live scale: of the first steps, and of the first verifications. First runs are slow.
    pub warmup: u32,
    /// Timed verifications after which a plain step is asked for if none was timed yet, at least 1.
    pub baseline_after: u32,
    /// Timed verifications after which another plain step is asked for, at least 1.
    pub baseline_every: u32,
}

impl Default for GateOptions {
    fn default() -> Self {
        Self {
            window: 16,
            min_speedup: 1.0,
            probe_margin: 0.10,
            reprobe_after: 128,
            reprobe_max: 1024,
            probe_steps: 4,
            min_draft: 2,
            adapt_budget: true,
            first_risk: 0.5,
            max_debt: 1.0,
            credit: 8.0,
            loss_share: 0.01,
            idle_share: 0.01,
            warmup: 1,
            baseline_after: 8,
            baseline_every: 256,
        }
    }
}

impl GateOptions {
    /// The defaults, with the shortest draft that pays under `costs`.
    pub fn for_costs(costs: &CostTable) -> Self {
        Self { min_draft: costs.shortest_draft(), ..Self::default() }
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn validate(&self) -> Result<(), OptionsError> {
        check_range("window", self.window, 2, 4096)?;
        check_range("min_speedup", self.min_speedup, 0.5, 10.0)?;
        check_range("probe_margin", self.probe_margin, 0.0, 10.0)?;
        check_range("reprobe_after", self.reprobe_after, 1, u32::MAX)?;
        check_range("reprobe_max", self.reprobe_max, self.reprobe_after, u32::MAX)?;
        check_range("probe_steps", self.probe_steps, 1, self.window)?;
        check_range("min_draft", self.min_draft, 1, MAX_DRAFT)?;
        check_range("first_risk", self.first_risk, 0.0, 1000.0)?;
        check_range("max_debt", self.max_debt, 0.0, 1000.0)?;
        check_range("credit", self.credit, 0.0, 1000.0)?;
        check_range("loss_share", self.loss_share, 0.001, 1.0)?;
        check_range("idle_share", self.idle_share, 0.0, 1.0)?;
        check_range("baseline_after", self.baseline_after, 1, u32::MAX)?;
        check_range("baseline_every", self.baseline_every, 1, u32::MAX)
    }
}

/// Whether the gate lets drafts through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GateState {
    /// Drafting pays, or has not been shown not to.
    #[default]
    Open,
    /// Drafting did not pay; plain steps until the wait is over.
    Closed,
    /// A few verifications decide.
    Probing,
}

impl fmt::Display for GateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Probing => "probing",
        })
    }
}

/// Why the gate last closed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GateReason {
    /// Verifications committed less than they cost.
    Loss {
        /// Verifications judged.
        verifies: usize,
        /// Tokens that they committed.
        committed: u64,
        /// What they cost, in plain steps.
        cost: f64,
    },
    /// Drafting took time and brought no drafts that paid for it.
    Idle {
        /// Share of a plain step that the last fruitless suggestion took.
        share: f64,
    },
}

impl fmt::Display for GateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss { verifies, committed, cost } => {
                write!(f, "{verifies} verifications committed {committed} tokens at the cost of {cost:.1} plain steps")
            }
            Self::Idle { share } => write!(f, "drafting took {share:.2} plain steps and found nothing to verify"),
        }
    }
}

/// What the gate has seen and decided.
#[derive(Debug, Clone, PartialEq)]
pub struct GateStats {
    /// The state now.
    pub state: GateState,
    /// Committed tokens per cost over the ring; `None` while the ring is empty.
    pub estimated_speedup: Option<f64>,
    /// How often the gate closed from open.
    pub trips: u64,
    /// Probes begun.
    pub probes: u64,
    /// Probes that opened the gate.
    pub reopened: u64,
    /// Steps that a closed gate refused a draft.
    pub closed_steps: u64,
    /// Asked steps until the next probe; 0 unless closed.
    pub probe_in: u32,
    /// Live correction of the cost table.
    pub scale: f64,
    /// The running plain step in ns; `None` before one was timed.
    pub plain_ns: Option<f64>,
    /// Why the gate last closed.
    pub reason: Option<GateReason>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    committed: usize,
    accepted: usize,
    drafted: usize,
    cost: f64,
}

/// Decides step by step whether to draft.
#[derive(Debug, Clone)]
pub struct Gate {
    options: GateOptions,
    costs: CostTable,
    state: GateState,
    ring: VecDeque<Entry>,
    balance: f64,
    /// Cost of fruitless drafting that no ring entry carries yet.
    idle: f64,
    wait: u32,
    waited: u32,
    probe_left: usize,
    scale: f64,
    plain_ns: Option<f64>,
    plain_seen: u32,
    verify_seen: u32,
    /// Timed verifications since the last plain step.
    unbased: u32,
    trips: u64,
    probes: u64,
    reopened: u64,
    closed_steps: u64,
    reason: Option<GateReason>,
}

impl Gate {
    /// An open gate over `costs`.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn new(costs: CostTable, options: GateOptions) -> Result<Self, OptionsError> {
        options.validate()?;
        Ok(Self {
            options,
            costs,
            state: GateState::Open,
            ring: VecDeque::with_capacity(options.window),
            balance: 0.0,
            idle: 0.0,
            wait: options.reprobe_after,
            waited: 0,
            probe_left: 0,
            scale: 1.0,
            plain_ns: None,
            plain_seen: 0,
            verify_seen: 0,
            unbased: 0,
            trips: 0,
            probes: 0,
            reopened: 0,
            closed_steps: 0,
            reason: None,
        })
    }

    /// The options it was made with.
    pub fn options(&self) -> &GateOptions {
        &self.options
    }

    /// The table it was made with.
    pub fn costs(&self) -> &CostTable {
        &self.costs
    }

    /// The state now.
    pub fn state(&self) -> GateState {
        self.state
    }

    /// Whether this step may draft. Asked once a step: while closed, each asking is a step of the wait.
    pub fn allows(&mut self) -> bool {
        if self.state != GateState::Closed {
            let options = &self.options;
            let patience = if self.plain_ns.is_some() { options.baseline_every } else { options.baseline_after };
            return self.unbased < patience;
        }
        self.waited = self.waited.saturating_add(1);
        if self.waited < self.wait {
            self.closed_steps += 1;
            return false;
        }
        self.state = GateState::Probing;
        self.probe_left = self.options.probe_steps;
        self.probes += 1;
        true
    }

    /// Says that another request begins. A wait that earlier text has drawn out shrinks to `reprobe_after`, steps already
    /// waited included, so that a request which can gain is not held shut by one that could not; and of what earlier text
    /// has shown only as much as a probe would still counts, so that this one cannot lose what that one earned.
    pub fn begin_request(&mut self) {
        self.wait = self.wait.min(self.options.reprobe_after);
        self.balance = self.balance.min(0.0);
        while self.ring.len() > self.options.probe_steps {
            self.ring.pop_front();
        }
    }

    /// The longest draft worth asking for: at most `max_draft`, at least `min_draft` if that is not less.
    pub fn budget(&self, max_draft: usize) -> usize {
        if !self.options.adapt_budget {
            return max_draft;
        }
        let min_draft = self.options.min_draft;
        let (accepted, drafted) = self.ring.iter().fold((0, 0), |(a, d), e| (a + e.accepted, d + e.drafted));
        let cap = if drafted == 0 {
            let affordable = |k: &usize| self.verify_cost(*k) <= 1.0 + self.options.first_risk;
            (min_draft..=max_draft).rev().find(affordable).unwrap_or(min_draft)
        } else {
            min_draft.max(2 + (accepted * max_draft).div_ceil(drafted))
        };
        cap.min(max_draft)
    }

    /// Records a plain step of `ns` nanoseconds in all, `draft_ns` of them spent asking for a draft (0 if none was asked
    /// for). A step of 0 ns was not timed.
    pub fn record_plain(&mut self, ns: u64, draft_ns: u64) {
        let plain = ns.saturating_sub(draft_ns);
        self.unbased = 0;
        if plain > 0 {
            self.plain_seen = self.plain_seen.saturating_add(1);
            if self.plain_seen.saturating_add(self.verify_seen) > self.options.warmup {
                let sample = plain as f64;
                self.plain_ns =
                    Some(self.plain_ns.map_or(sample, |old| PLAIN_STEP * sample + (1.0 - PLAIN_STEP) * old));
            }
        }
        let Some(plain_ns) = self.plain_ns else { return };
        if draft_ns == 0 || self.state == GateState::Closed {
            return;
        }
        let share = draft_ns as f64 / plain_ns;
        self.idle += share;
        self.balance -= (share - self.options.idle_share).max(0.0);
        if self.balance <= -self.options.max_debt && share > self.options.idle_share {
            self.close(GateReason::Idle { share });
        }
    }

    /// Records a verification: tokens drafted, accepted, committed, and `ns` nanoseconds for the whole step (0: not timed).
    /// One that a closed gate did not allow only enters the live scale.
    pub fn record_verify(&mut self, drafted: usize, accepted: usize, committed: usize, ns: u64) {
        self.rescale(drafted, ns);
        if self.state == GateState::Closed {
            return;
        }
        let cost = self.verify_cost(drafted);
        let idle = std::mem::take(&mut self.idle);
        if self.ring.len() == self.options.window {
            self.ring.pop_front();
        }
        self.ring.push_back(Entry { committed, accepted, drafted, cost: cost + idle });
        self.balance = (self.balance + committed as f64 - self.options.min_speedup * cost).min(self.options.credit);
        self.judge();
    }

    /// What the gate has seen and decided.
    pub fn stats(&self) -> GateStats {
        let probe_in = if self.state == GateState::Closed { self.wait.saturating_sub(self.waited) } else { 0 };
        GateStats {
            state: self.state,
            estimated_speedup: (!self.ring.is_empty()).then(|| self.estimate()),
            trips: self.trips,
            probes: self.probes,
            reopened: self.reopened,
            closed_steps: self.closed_steps,
            probe_in,
            scale: self.scale,
            plain_ns: self.plain_ns,
            reason: self.reason,
        }
    }

    /// Cost of verifying `k` tokens as the table and the live scale have it, in plain steps.
    pub fn verify_cost(&self, k: usize) -> f64 {
        (self.scale * self.costs.cost(k)).max(1.0)
    }

    fn rescale(&mut self, drafted: usize, ns: u64) {
        if ns == 0 {
            return;
        }
        self.verify_seen = self.verify_seen.saturating_add(1);
        self.unbased = self.unbased.saturating_add(1);
        let Some(plain_ns) = self.plain_ns.filter(|_| self.verify_seen > self.options.warmup) else { return };
        let measured = (ns as f64 / plain_ns).max(1.0);
        let (low, high) = SCALE_BOUNDS;
        let sample = (measured / self.costs.cost(drafted)).clamp(low, high);
        self.scale = (SCALE_STEP * sample + (1.0 - SCALE_STEP) * self.scale).clamp(low, high);
    }

    fn estimate(&self) -> f64 {
        let (committed, cost) = self.sums();
        if self.ring.is_empty() { f64::INFINITY } else { committed as f64 / cost }
    }

    /// Sums over the ring, taken anew each time: it is short, and a running sum of floats drifts.
    fn sums(&self) -> (u64, f64) {
        self.ring.iter().fold((0, 0.0), |(committed, cost), e| (committed + e.committed as u64, cost + e.cost))
    }

    fn judge(&mut self) {
        let losing = self.ring.len() >= 2
            && self.estimate() < self.options.min_speedup
            && self.balance <= -self.options.max_debt;
        let probing = self.state == GateState::Probing;
        self.probe_left = self.probe_left.saturating_sub(1);
        if losing {
            self.close(self.loss());
        } else if probing && self.probe_left == 0 {
            if self.estimate() >= self.options.min_speedup + self.options.probe_margin {
                self.state = GateState::Open;
                self.reopened += 1;
            } else {
                self.close(self.loss());
            }
        }
    }

    fn loss(&self) -> GateReason {
        let (committed, cost) = self.sums();
        GateReason::Loss { verifies: self.ring.len(), committed, cost }
    }

    fn close(&mut self, reason: GateReason) {
        let wait = if self.state == GateState::Open {
            self.trips += 1;
            self.options.reprobe_after
        } else {
            self.wait.saturating_mul(2)
        };
        // The cast saturates, and turns a gain into 0.
        let earned = (-self.balance / self.options.loss_share).ceil() as u32;
        self.wait = wait.max(earned).min(self.options.reprobe_max);
        self.state = GateState::Closed;
        self.reason = Some(reason);
        self.waited = 0;
        self.ring.clear();
        self.balance = 0.0;
        self.idle = 0.0;
    }
}
