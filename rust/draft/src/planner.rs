//! The planner: how much of each sequence's draft a step verifies, when several sequences share it.
//!
//! In: the reach of each offered draft, the costs. Out: how many rows each sequence gets.
//!
//! N1  Offered rows are taken in order of their reach, the greatest first; as reach never increases along a draft, any number of rows taken so is a
//!     prefix of each draft. Ties go to the sequence that stands first.
//! N2  Of all numbers n of rows the step takes the one that maximises sum(reach) - r * (c(R + n) - c(R)), where R are the rows without drafts and c is
//!     [`CostModel::cost`]. If two gain alike, the smaller.
//! N3  r is what a plain step's time is worth to the batch: B / c(B), the rate of its B sequences without drafts, times the factor by which drafts have
//!     lately raised that rate, at least 1. (As P2 in `policy`: maximising tokens over cost step by step would let meagre drafts delay the rich ones
//!     after them. The factor outlasts a change of B, the rate would not.)
//! N4  A sequence that is alone in its step keeps its whole draft: its source has weighed the same costs already.
//!
//! Cost: a sort of the offered rows, one cost for each.

use crate::cost::CostModel;

#[cfg(test)]
mod tests;

/// How fast the factor follows, per step.
const RATE_STEP: f64 = 1.0 / 32.0;
const MAX_FACTOR: f64 = 16.0;

/// The rows of a step before drafts are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseStep {
    /// Rows without drafts: the carried tokens, and rows of prompts.
    pub rows: usize,
    /// Sequences.
    pub spans: usize,
    /// Cached tokens of a sequence, the mean of all.
    pub cached: usize,
}

/// Plans the steps of one engine.
#[derive(Debug, Clone)]
pub struct Planner {
    /// How many times as many tokens per cost steps have lately committed as without drafts.
    factor: f64,
}

impl Default for Planner {
    fn default() -> Self {
        Self { factor: 1.0 }
    }
}

impl Planner {
    /// A planner that has not seen a step.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many tokens of each draft are verified: `offers` holds the reach of each sequence's draft ([`crate::Draft::reach`]), empty where there is none.
    pub fn plan(&self, offers: &[&[f64]], step: BaseStep, costs: &CostModel) -> Vec<usize> {
        let mut taken = vec![0; offers.len()];
        if let ([alone], 1) = (offers, step.spans) {
            taken[0] = alone.len();
            return taken;
        }
        let mut rows: Vec<Row> = Vec::with_capacity(offers.iter().map(|reach| reach.len()).sum());
        for (sequence, reach) in offers.iter().enumerate() {
            rows.extend(reach.iter().map(|&reach| Row { sequence, reach }));
        }
        // The sort is stable, so the rows of one draft stay in order.
        rows.sort_by(|a, b| b.reach.total_cmp(&a.reach));
        let priced = costs.priced(step.spans, step.cached);
        let (without, rate) = (priced.cost(step.rows), self.factor * step.spans as f64 / priced.cost(step.spans));
        let (mut expected, mut best, mut best_gain) = (0.0, 0, 0.0);
        for (i, row) in rows.iter().enumerate() {
            expected += row.reach;
            let gain = expected - rate * (priced.cost(step.rows + i + 1) - without);
            if gain > best_gain {
                (best, best_gain) = (i + 1, gain);
            }
        }
        rows[..best].iter().for_each(|row| taken[row.sequence] += 1);
        taken
    }

    /// Notes that a step which verified `drafted` tokens beside `step` committed `tokens`, over all sequences. Steps with rows of prompts say nothing.
    pub fn record(&mut self, step: BaseStep, drafted: usize, tokens: usize, costs: &CostModel) {
        if step.rows == step.spans {
            let priced = costs.priced(step.spans, step.cached);
            let cost = priced.cost(step.rows + drafted) / priced.cost(step.spans);
            let tokens = tokens as f64 / step.spans as f64;
            // A ratio of sums, the sums forgetting at the same pace, as in `policy`.
            self.factor = (self.factor + RATE_STEP * (tokens - self.factor * cost)).clamp(1.0, MAX_FACTOR);
        }
    }
}

/// A row that a draft offers.
#[derive(Debug, Clone, Copy)]
struct Row {
    sequence: usize,
    reach: f64,
}
