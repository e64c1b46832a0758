//! How much to draft: the cascade's options, and the choice of a length from what a draft is expected to bring.
//!
//! In: options; acceptance rates and costs. Out: budgets, to `cascade`.
//!
//! P1  `Fixed`: a match of l tokens drafts up to `budget_factor * (1 + l)`.
//! P2  `BestRate`: a draft of d tokens is expected to commit 1 + e(d) tokens for cost(d), where e(d) sums the products of the
//!     acceptance rates along the draft. The best d maximises its gain over a plain step, e(d) - r * (cost(d) - 1).
//! P3  r is what a plain step's time is worth: the tokens per plain step that this stream has lately been decoded at, at
//!     least 1. (Maximising tokens over cost step by step would let a meagre draft delay the rich one after it.)
//! P4  Options refuse nonsense by name, when a cascade is built.

use crate::cost::CostTable;
use crate::error::{OptionsError, check_range};
use crate::score::Score;
use crate::window::MAX_WINDOW;

/// The longest recycling chain, and the longest match factor.
const MAX_CHAIN: usize = 64;

/// How the length of a draft is chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// In proportion to the match.
    Fixed {
        /// Tokens per matched token and one, 1 to 64.
        budget_factor: usize,
    },
    /// By expected committed tokens against cost, from acceptance learned per source and match length.
    BestRate {
        /// Cost of a verification on this machine.
        costs: CostTable,
    },
}

/// Knobs of the cascade. The defaults are meant for everyone.
#[derive(Debug, Clone, PartialEq)]
pub struct CascadeOptions {
    /// How much a source drafts.
    pub policy: Policy,
    /// Shortest match that drafts, 1 to 64.
    pub min_match: usize,
    /// Shortest draft worth suggesting, 1 to 64: the decoder's own bound, or drafts are counted that it never verifies.
    pub min_draft: usize,
    /// Whether to keep the recycling matrix.
    pub recycling: bool,
    /// Longest recycling draft, `min_draft` to 64.
    pub chain: usize,
    /// Drafted tokens over which a source is judged, 1 to 64. `Fixed` only, as the next two.
    pub mute_window: usize,
    /// Acceptance under which it is muted, 0 (never) to 1.
    pub mute_below: f64,
    /// Committed tokens for which it is muted, 1 to 1,000,000.
    pub mute_tokens: usize,
}

impl Default for CascadeOptions {
    fn default() -> Self {
        Self {
            policy: Policy::Fixed { budget_factor: 2 },
            min_match: 2,
            min_draft: 2,
            recycling: true,
            chain: 8,
            mute_window: 64,
            mute_below: 0.20,
            mute_tokens: 128,
        }
    }
}

impl CascadeOptions {
    /// Options that follow a measured curve: `BestRate`, any match, and the shortest draft that pays under `costs`.
    pub fn for_costs(costs: &CostTable) -> Self {
        let policy = Policy::BestRate { costs: costs.clone() };
        Self { policy, min_match: 1, min_draft: costs.shortest_draft(), ..Self::default() }
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn validate(&self) -> Result<(), OptionsError> {
        if let Policy::Fixed { budget_factor } = self.policy {
            check_range("budget_factor", budget_factor, 1, MAX_CHAIN)?;
        }
        check_range("min_match", self.min_match, 1, MAX_CHAIN)?;
        check_range("min_draft", self.min_draft, 1, MAX_CHAIN)?;
        check_range("chain", self.chain, self.min_draft, MAX_CHAIN)?;
        check_range("mute_window", self.mute_window, 1, MAX_WINDOW)?;
        check_range("mute_below", self.mute_below, 0.0, 1.0)?;
        check_range("mute_tokens", self.mute_tokens, 1, 1_000_000)
    }
}

/// The costs of `BestRate`, one a draft length, and the rate that they are weighed at.
#[derive(Debug, Clone)]
pub(crate) struct Rater {
    costs: CostTable,
    scale: f64,
    /// `extra[d]`: cost of verifying d tokens above a plain step; the last entry holds for longer drafts.
    extra: Vec<f64>,
    rate: f64,
}

/// A draft length and what it is expected to gain over a plain step, in tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    pub(crate) len: usize,
    pub(crate) gain: f64,
}

/// How fast the rate follows, per step.
const RATE_STEP: f64 = 1.0 / 32.0;
const MAX_RATE: f64 = 16.0;

impl Rater {
    pub(crate) fn new(costs: &CostTable) -> Self {
        let mut rater = Self { costs: costs.clone(), scale: 0.0, extra: Vec::new(), rate: 1.0 };
        rater.set_scale(1.0);
        rater
    }

    /// Takes a live correction of the cost table, as the gate measures it. Changes under 2 % are left for later.
    pub(crate) fn set_scale(&mut self, scale: f64) {
        if (scale - self.scale).abs() > 0.02 * self.scale {
            let last = self.costs.points().last().map_or(0, |point| point.k);
            self.scale = scale;
            self.extra.clear();
            self.extra
                .extend((0..=last).map(|k| if k == 0 { 0.0 } else { (scale * self.costs.cost(k)).max(1.0) - 1.0 }));
        }
    }

    #[inline]
    fn extra(&self, drafted: usize) -> f64 {
        self.extra[drafted.min(self.extra.len() - 1)]
    }

    /// Notes that a step which verified `drafted` tokens (0: a plain step) committed `committed`.
    pub(crate) fn record(&mut self, drafted: usize, committed: usize) {
        // Tokens per cost as a ratio of sums, the sums forgetting at the same pace: r' = r + s * (tokens - r * cost).
        let cost = 1.0 + self.extra(drafted);
        self.rate = (self.rate + RATE_STEP * (committed as f64 - self.rate * cost)).clamp(1.0, MAX_RATE);
    }

    /// The best length from `min` to `max` for a draft whose token i is right with `score`'s rate at `match_len + i * growth`.
    /// `None` if no length gains.
    #[inline]
    pub(crate) fn choose(
        &self,
        score: &Score,
        match_len: usize,
        growth: usize,
        min: usize,
        max: usize,
    ) -> Option<Choice> {
        let (mut survivors, mut expected) = (1.0, 0.0);
        let mut best = Choice { len: 0, gain: 0.0 };
        for len in 1..=max {
            survivors *= score.rate(match_len + (len - 1) * growth);
            expected += survivors;
            let gain = expected - self.rate * self.extra(len);
            if len >= min && gain > best.gain {
                best = Choice { len, gain };
            }
        }
        (best.len > 0).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostPoint;

    fn costs(points: &[(usize, f64)]) -> CostTable {
        CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test").unwrap()
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        let ok = CascadeOptions::default();
        assert_eq!(ok.validate(), Ok(()));
        let fixed = |budget_factor| Policy::Fixed { budget_factor };
        let cases = [
            ("budget_factor", CascadeOptions { policy: fixed(0), ..ok.clone() }),
            ("min_match", CascadeOptions { min_match: 0, ..ok.clone() }),
            ("min_draft", CascadeOptions { min_draft: 0, ..ok.clone() }),
            ("chain", CascadeOptions { chain: 1, ..ok.clone() }),
            ("mute_window", CascadeOptions { mute_window: 65, ..ok.clone() }),
            ("mute_below", CascadeOptions { mute_below: f64::NAN, ..ok.clone() }),
            ("mute_below", CascadeOptions { mute_below: 1.5, ..ok.clone() }),
            ("mute_tokens", CascadeOptions { mute_tokens: 0, ..ok.clone() }),
        ];
        for (name, options) in cases {
            assert_eq!(options.validate().map_err(|error| error.option), Err(name));
        }
    }

    #[test]
    fn the_shortest_draft_follows_the_costs() {
        assert_eq!(CascadeOptions::for_costs(&costs(&[(1, 1.03)])).min_draft, 1);
        assert_eq!(CascadeOptions::for_costs(&costs(&[(1, 1.06)])).min_draft, 2);
    }

    /// The chosen length against trying every length by hand.
    #[test]
    fn the_choice_is_the_length_of_greatest_expected_gain() {
        let mut dice = crate::oracle::Dice(9);
        for _ in 0..300 {
            let mut score = Score::of_matches();
            for _ in 0..dice.below(400) {
                score.record(dice.below(20) as usize, dice.chance(0.6));
            }
            let mut points = vec![];
            for k in [1, 2, 4, 8, 16] {
                points.push((k, 1.0 + f64::from(dice.below(100 * k)) / 100.0));
            }
            let points: Vec<_> = points.iter().map(|&(k, cost)| (k as usize, cost)).collect();
            let table = costs(&points);
            let mut rater = Rater::new(&table);
            for _ in 0..200 {
                let drafted = dice.below(5) as usize;
                rater.record(drafted, 1 + dice.below(1 + drafted as u32) as usize);
            }
            let (match_len, min) = (1 + dice.below(12) as usize, 1 + dice.below(2) as usize);
            let gain = |len: usize| {
                let product = |n: usize| (0..n).map(|i| score.rate(match_len + i)).product::<f64>();
                (1..=len).map(product).sum::<f64>() - rater.rate * (table.cost(len) - 1.0)
            };
            let best = (min..=16).map(gain).fold(0.0, f64::max);
            match rater.choose(&score, match_len, 1, min, 16) {
                Some(choice) => {
                    assert!(choice.gain > 0.0 && (choice.gain - best).abs() < 1e-9, "{choice:?} of {best}");
                    assert!((choice.gain - gain(choice.len)).abs() < 1e-9);
                }
                None => assert!(best < 1e-9, "nothing of {best}"),
            }
        }
    }

    #[test]
    fn the_rate_tends_to_tokens_per_cost() {
        let mut rater = Rater::new(&costs(&[(4, 1.5)]));
        for _ in 0..2000 {
            rater.record(4, 4);
            rater.record(0, 1);
        }
        assert!((rater.rate - 5.0 / 2.5).abs() < 0.1, "{}", rater.rate);
        for _ in 0..2000 {
            rater.record(4, 1);
        }
        assert_eq!(rater.rate, 1.0, "a plain step is never worth less than a token");
    }
}
