//! Acceptance by match length: how likely a source's next token is right, learned without drafting it.
//!
//! In: after each committed token, whether the source would have named it, with the length of the match that it came from.
//! Out: the chance that each token of a draft is reached and right, to the candidates.
//!
//! A1  Lengths share buckets that widen: 0, 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-32, 33 and more.
//! A2  Within an accepted draft a match grows by one a token, so draft token i of a match of length l counts as length
//!     l + i, and its expectation is the product of the rates on the way.
//! A3  A rate starts at a prior worth `PRIOR` observations and follows the last `MEMORY` or so.
//!
//! Every committed token scores every source that had an opinion, drafted or not: rates need no probing, and one that fell
//! recovers by itself. Match length predicts acceptance (AUC 0.82 on code), but not everywhere (0.32 on SQL), which
//! is why the rates are learned per source and not fixed. Source: goinfer's calibration study.

/// Number of buckets.
pub const BUCKETS: usize = 11;

const FIRST_LENGTHS: [usize; BUCKETS] = [0, 1, 2, 3, 4, 5, 7, 9, 13, 17, 33];
/// A little under what prose and code show (0.13-0.28 after one token, 0.24-0.56 after two, 0.9 after seventeen): a stream
/// must earn its long drafts.
const MATCH_PRIOR: [f32; BUCKETS] = [0.05, 0.15, 0.35, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.88, 0.92];
const PRIOR: u16 = 8;
const MEMORY: u16 = 128;

/// The rate of one bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BucketRate {
    /// Shortest match length in the bucket.
    pub from: usize,
    /// Estimated probability that the next token is right, 0 to 1.
    pub rate: f64,
    /// Observations, up to a bound, the prior not counted.
    pub seen: usize,
    /// All observations.
    pub asked: u64,
    /// Of those, how often the named token was the right one.
    pub right: u64,
}

/// Rates of a few classes, each of which follows its observations as A3 says.
#[derive(Debug, Clone)]
pub(crate) struct Rates<const N: usize> {
    rates: [f32; N],
    weights: [u16; N],
}

impl<const N: usize> Rates<N> {
    pub(crate) fn new(rates: [f32; N]) -> Self {
        Self { rates, weights: [PRIOR; N] }
    }

    pub(crate) fn rate(&self, class: usize) -> f64 {
        f64::from(self.rates[class])
    }

    pub(crate) fn record(&mut self, class: usize, right: bool) {
        self.expect(class, if right { 1.0 } else { 0.0 });
    }

    /// Notes an observation that is itself a chance.
    pub(crate) fn expect(&mut self, class: usize, chance: f32) {
        self.weights[class] = (self.weights[class] + 1).min(MEMORY);
        self.rates[class] += (chance - self.rates[class]) / f32::from(self.weights[class]);
    }
}

/// Acceptance rates of one source.
#[derive(Debug, Clone)]
pub(crate) struct Score {
    rates: Rates<BUCKETS>,
    asked: [u64; BUCKETS],
    right: [u64; BUCKETS],
}

fn bucket(match_len: usize) -> usize {
    match match_len {
        0..=4 => match_len,
        5..=6 => 5,
        7..=8 => 6,
        9..=12 => 7,
        13..=16 => 8,
        17..=32 => 9,
        _ => 10,
    }
}

impl Score {
    /// Priors of a source that matches suffixes.
    pub(crate) fn of_matches() -> Self {
        Self::of(MATCH_PRIOR)
    }

    /// Priors of a source whose guesses do not depend on a match.
    pub(crate) fn of_guesses() -> Self {
        Self::of([0.25; BUCKETS])
    }

    /// Priors of drafted tokens by their depth.
    pub(crate) fn of_depths() -> Self {
        Self::of([0.5; BUCKETS])
    }

    fn of(rates: [f32; BUCKETS]) -> Self {
        Self { rates: Rates::new(rates), asked: [0; BUCKETS], right: [0; BUCKETS] }
    }

    /// Notes whether the token named after a match of `match_len` tokens was the right one.
    #[inline]
    pub(crate) fn record(&mut self, match_len: usize, right: bool) {
        let at = bucket(match_len);
        self.asked[at] += 1;
        self.right[at] += u64::from(right);
        self.rates.record(at, right);
    }

    #[inline]
    pub(crate) fn rate(&self, match_len: usize) -> f64 {
        self.rates.rate(bucket(match_len))
    }

    /// Writes the chances that each of `n` tokens is reached and right, of which token i is right with the rate at `match_len + i * growth`.
    #[inline]
    pub(crate) fn reach(&self, match_len: usize, growth: usize, n: usize, out: &mut Vec<f64>) {
        let mut reach = 1.0;
        out.extend((0..n).map(|i| {
            reach *= self.rate(match_len + i * growth);
            reach
        }));
    }

    pub(crate) fn table(&self) -> [BucketRate; BUCKETS] {
        std::array::from_fn(|i| BucketRate {
            from: FIRST_LENGTHS[i],
            rate: self.rates.rate(i),
            seen: usize::from(self.rates.weights[i] - PRIOR),
            asked: self.asked[i],
            right: self.right[i],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Dice;

    #[test]
    fn each_bucket_begins_where_the_table_says() {
        for (i, &from) in FIRST_LENGTHS.iter().enumerate() {
            assert_eq!(bucket(from), i);
            assert!(from == 0 || bucket(from - 1) == i - 1);
        }
        assert_eq!(bucket(usize::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_rate_finds_the_frequency_and_follows_when_it_changes() {
        let mut dice = Dice(3);
        let mut score = Score::of_matches();
        for frequency in [0.9, 0.2, 0.6] {
            let mut sum = 0.0;
            for i in 0..2000 {
                score.record(6, dice.chance(frequency));
                if i >= 1000 {
                    sum += score.rate(5) / 1000.0;
                }
            }
            assert!((sum - frequency).abs() < 0.03, "{sum} for {frequency}");
        }
        assert_eq!(score.rate(2), f64::from(MATCH_PRIOR[2]), "other buckets keep their prior");
        let five = score.table()[5];
        assert_eq!((five.seen, five.asked), (usize::from(MEMORY - PRIOR), 6000));
        assert!((five.right as f64 / 6000.0 - (0.9 + 0.2 + 0.6) / 3.0).abs() < 0.02, "{five:?}");
    }

    #[test]
    fn first_observations_weigh_as_much_as_the_prior_says() {
        let mut score = Score::of_guesses();
        score.record(0, true);
        assert!((score.rate(0) - (0.25 * 8.0 + 1.0) / 9.0).abs() < 1e-6);
    }
}
