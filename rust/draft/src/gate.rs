//! The gate: whether drafting pays on this text and this machine, and how long a draft may be.
//!
//! In: what each step of a sequence committed and what it cost. Out: "may the next step draft, how much", to `speculator`.
//!
//! G1  Costs are in plain steps, as [`crate::CostModel::draft_cost`] has them. What was spent since the last verification on asking for drafts that did
//!     not come is added to the next one.
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
//! G6  Costs come in as numbers. The same calls give the same decisions.
//!
//! What useless drafts lose is then bounded: per probe `max_debt` and the excess of two verifications, and probes grow
//! rarer, to one in `reprobe_max` steps.
//! Cost: constant per step. Sources: Fucina's cost gate (G2, G3, budget); G4 and G5 are ours.

use std::collections::VecDeque;

use crate::error::OptionsError;

mod options;
mod stats;
#[cfg(test)]
mod tests;

pub use options::GateOptions;
pub use stats::{GateReason, GateState, GateStats};

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
    state: GateState,
    ring: VecDeque<Entry>,
    balance: f64,
    /// Cost of fruitless drafting that no ring entry carries yet.
    idle: f64,
    wait: u32,
    waited: u32,
    probe_left: usize,
    trips: u64,
    probes: u64,
    reopened: u64,
    closed_steps: u64,
    reason: Option<GateReason>,
}

impl Gate {
    /// An open gate.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn new(options: GateOptions) -> Result<Self, OptionsError> {
        options.validate()?;
        Ok(Self {
            options,
            state: GateState::Open,
            ring: VecDeque::with_capacity(options.window),
            balance: 0.0,
            idle: 0.0,
            wait: options.reprobe_after,
            waited: 0,
            probe_left: 0,
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

    /// The state now.
    pub fn state(&self) -> GateState {
        self.state
    }

    /// Whether this step may draft. Asked once a step: while closed, each asking is a step of the wait.
    pub fn allows(&mut self) -> bool {
        if self.state != GateState::Closed {
            return true;
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

    /// The longest draft worth asking for: at most `max_draft`, at least `min_draft` if that is not less. `extra[d]` is what a draft of d tokens adds to a
    /// plain step; where it ends, longer drafts cannot be had.
    pub fn budget(&self, max_draft: usize, extra: &[f64]) -> usize {
        if !self.options.adapt_budget {
            return max_draft;
        }
        let min_draft = self.options.min_draft;
        let (accepted, drafted) = self.ring.iter().fold((0, 0), |(a, d), e| (a + e.accepted, d + e.drafted));
        let cap = if drafted == 0 {
            let affordable = |k: &usize| 1.0 + extra[*k] <= 1.0 + self.options.first_risk;
            let longest = max_draft.min(extra.len().saturating_sub(1));
            (min_draft..=longest).rev().find(affordable).unwrap_or(min_draft)
        } else {
            min_draft.max(2 + (accepted * max_draft).div_ceil(drafted))
        };
        cap.min(max_draft)
    }

    /// Records a plain step before which a suggestion that did not come took `idle` plain steps; 0 if none was asked for.
    pub fn record_plain(&mut self, idle: f64) {
        if idle <= 0.0 || self.state == GateState::Closed {
            return;
        }
        self.idle += idle;
        self.balance -= (idle - self.options.idle_share).max(0.0);
        if self.balance <= -self.options.max_debt && idle > self.options.idle_share {
            self.close(GateReason::Idle { share: idle });
        }
    }

    /// Records a verification: tokens drafted, accepted, committed, and what the step cost. A closed gate, which did not allow it, does not count it.
    pub fn record_verify(&mut self, drafted: usize, accepted: usize, committed: usize, cost: f64) {
        if self.state == GateState::Closed {
            return;
        }
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
            reason: self.reason,
        }
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
