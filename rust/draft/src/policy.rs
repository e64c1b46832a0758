//! How much to draft: the cascade's options, and the choice of a length from what a draft is expected to bring.
//!
//! In: options; offers and a budget. Out: lengths, to `cascade`.
//!
//! P1  A draft of d tokens is expected to commit 1 + e(d) tokens, where e(d) sums the chances that its tokens are reached and right, for 1 + x(d) plain
//!     steps, where x(d) is the budget's extra cost of d tokens and what drafting them takes. The best d maximises its gain over a plain step,
//!     e(d) - r * x(d).
//! P2  r is what a plain step's time is worth: the tokens per plain step that this stream has lately been decoded at, at
//!     least 1. (Maximising tokens over cost step by step would let a meagre draft delay the rich one after it.)
//! P3  No table of costs is kept here: each budget carries the costs of its own step.
//! P4  Options refuse nonsense by name, when a cascade is built.

use crate::candidate::Offer;
use crate::error::{OptionsError, check_range};
use crate::source::Budget;

/// The longest recycling chain, and the longest match that may be asked for.
const MAX_CHAIN: usize = 64;

/// Knobs of the cascade. The defaults are meant for everyone.
#[derive(Debug, Clone, PartialEq)]
pub struct CascadeOptions {
    /// Shortest match that is quoted from, 1 to 64.
    pub min_match: usize,
    /// Whether to recycle: 4 bytes a token of the vocabulary.
    pub recycling: bool,
    /// Longest recycling draft, 1 to 64.
    pub chain: usize,
}

impl Default for CascadeOptions {
    fn default() -> Self {
        Self { min_match: 1, recycling: true, chain: 8 }
    }
}

impl CascadeOptions {
    /// Checks every range.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn validate(&self) -> Result<(), OptionsError> {
        check_range("min_match", self.min_match, 1, MAX_CHAIN)?;
        check_range("chain", self.chain, 1, MAX_CHAIN)
    }
}

/// The chooser of lengths: what a plain step's time is worth on this stream.
#[derive(Debug, Clone)]
pub(crate) struct Rater {
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
    pub(crate) fn new() -> Self {
        Self { rate: 1.0 }
    }

    /// Notes that a step which cost `extra` above a plain step (0: a plain step) committed `committed` tokens.
    pub(crate) fn record(&mut self, extra: f64, committed: usize) {
        // Tokens per cost as a ratio of sums, the sums forgetting at the same pace: r' = r + s * (tokens - r * cost).
        let cost = 1.0 + extra;
        self.rate = (self.rate + RATE_STEP * (committed as f64 - self.rate * cost)).clamp(1.0, MAX_RATE);
    }

    /// What a plain step's time is worth (P2).
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// The gain of a whole draft over a plain step; 0 without one.
    pub(crate) fn gain(&self, reach: &[f64], extra: &[f64]) -> f64 {
        if reach.is_empty() { 0.0 } else { reach.iter().sum::<f64>() - self.rate * extra[reach.len()] }
    }

    /// The best length of an offer within a budget. `None` if no length gains.
    #[inline]
    pub(crate) fn choose(&self, offer: &Offer, budget: &Budget<'_>) -> Option<Choice> {
        let mut expected = 0.0;
        let mut best = Choice { len: 0, gain: 0.0 };
        for (i, reach) in offer.reach.iter().take(budget.max_tokens).enumerate() {
            let len = i + 1;
            expected += reach;
            let gain = expected - self.rate * (budget.extra(len) + offer.cost(len));
            if len >= budget.min_tokens && gain > best.gain {
                best = Choice { len, gain };
            }
        }
        (best.len > 0).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Dice;
    use crate::score::Score;

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        let ok = CascadeOptions::default();
        assert_eq!(ok.validate(), Ok(()));
        let cases = [
            ("min_match", CascadeOptions { min_match: 0, ..ok.clone() }),
            ("min_match", CascadeOptions { min_match: 65, ..ok.clone() }),
            ("chain", CascadeOptions { chain: 0, ..ok.clone() }),
        ];
        for (name, options) in cases {
            assert_eq!(options.validate().map_err(|error| error.option), Err(name));
        }
    }

    /// The chosen length against trying every length by hand.
    #[test]
    fn the_choice_is_the_length_of_greatest_expected_gain() {
        let mut dice = Dice(9);
        for _ in 0..300 {
            let mut score = Score::of_matches();
            for _ in 0..dice.below(400) {
                score.record(dice.below(20) as usize, dice.chance(0.6));
            }
            let extra: Vec<f64> = (0..17).map(|k| f64::from(dice.below(1 + 100 * k)) / 100.0).collect();
            let mut rater = Rater::new();
            for _ in 0..200 {
                let drafted = dice.below(5) as usize;
                rater.record(extra[drafted], 1 + dice.below(1 + drafted as u32) as usize);
            }
            let (match_len, min) = (1 + dice.below(12) as usize, 1 + dice.below(2) as usize);
            let (once, each) = (f64::from(dice.below(3)) / 20.0, f64::from(dice.below(3)) / 50.0);
            let mut offer = Offer { once, each, ..Offer::default() };
            score.reach(match_len, 1, 20, &mut offer.reach);
            let gain = |len: usize| {
                let product = |n: usize| (0..n).map(|i| score.rate(match_len + i)).product::<f64>();
                (1..=len).map(product).sum::<f64>() - rater.rate * (extra[len] + once + each * len as f64)
            };
            let best = (min..=16).map(gain).fold(0.0, f64::max);
            match rater.choose(&offer, &Budget { min_tokens: min, max_tokens: 16, extra: &extra, ahead: 0 }) {
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
        let mut rater = Rater::new();
        for _ in 0..2000 {
            rater.record(0.5, 4);
            rater.record(0.0, 1);
        }
        assert!((rater.rate - 5.0 / 2.5).abs() < 0.1, "{}", rater.rate);
        for _ in 0..2000 {
            rater.record(3.0, 1);
        }
        assert_eq!(rater.rate, 1.0, "a plain step is never worth less than a token");
    }
}
