//! The tokens that may still be drawn, and the filters that shorten the list.
//!
//! In: a row and its scan. Out: ids in ascending order with their weights, to [`super::pick`].
//!
//! 1. The list is ascending by id at every moment; filters only remove.
//! 2. Rank is descending logit, then ascending id. A filter keeps a prefix of the ranking, never empty.
//! 3. top-p keeps the shortest prefix whose mass reaches the share of the mass that entered it; the token that crosses stays.
//! 4. min-p keeps weights of at least the share; the best weight is 1 by [`super::exp`].
//!
//! top-p sorts only a short list. Of a long one it adds up the mass per range of distances below the best logit (in f32,
//! whose bits are ordered as the distances are), finds the range in which the share is reached, and goes on inside it with
//! finer ranges; after three rounds all distances in the range are equal, and what is left is sorted. The sums are taken in
//! the order of the list, so nothing depends on how a library partitions. Rounding: the mass above the crossing may differ by 1e-11 of the total from
//! a sum in rank order, hence so may the share at which the border moves.
//! Cost: a few linear passes; 16 bytes per listed token and 32 KB of range sums.

use super::exp::Curve;
use super::scan::BLOCK;
use super::topk::{TopK, key};

/// Lists up to this length are sorted.
const SHORT: usize = 1024;
/// Shift and mask of the three rounds: 12 + 9 + 10 bits of a distance (its sign is clear).
const ROUNDS: [(u32, u32); 3] = [(19, 0xfff), (10, 0x1ff), (0, 0x3ff)];

/// The list: ids and weights side by side. Logits are those of the list before it was shortened.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) ids: Vec<u32>,
    logits: Vec<f32>,
    high: f32,
    weights: Vec<f64>,
    keys: Vec<u64>,
    members: Vec<u32>,
    ranges: Vec<f64>,
}

impl Candidates {
    /// Lists the first tokens at +inf: beside one, no finite logit has any mass. They count as equal finite logits.
    pub(super) fn infinite(&mut self, row: &[f32], at_most: usize) {
        self.ids.clear();
        let infinite = (0..).zip(row).filter(|&(_, &x)| x == f32::INFINITY);
        self.ids.extend(infinite.map(|(id, _): (u32, _)| id).take(at_most));
        self.high = 0.0;
        self.logits.clear();
        self.logits.resize(self.ids.len(), 0.0);
    }

    /// Lists the `k` highest logits.
    pub(super) fn highest(&mut self, row: &[f32], maxima: &[f32], high: f32, k: usize, topk: &mut TopK) {
        topk.by_id(row, maxima, k, &mut self.ids);
        self.high = high;
        self.logits.clear();
        self.logits.extend(self.ids.iter().map(|&id| row[id as usize]));
    }

    /// Lists the tokens at most `reach` below the best.
    pub(super) fn within(&mut self, row: &[f32], maxima: &[f32], high: f32, reach: f32) {
        self.high = high;
        self.ids.clear();
        self.logits.clear();
        for (block, &top) in maxima.iter().enumerate() {
            if high - top <= reach {
                let start = block * BLOCK;
                let block = &row[start..row.len().min(start + BLOCK)];
                // Written without a branch: whether a token is listed is often a coin flip.
                let (mut ids, mut logits) = ([0; BLOCK], [0.0; BLOCK]);
                let mut len = 0;
                for (id, &logit) in (start as u32..).zip(block) {
                    // At most one is listed per logit, so the index is in range; the remainder tells the compiler.
                    (ids[len % BLOCK], logits[len % BLOCK]) = (id, logit);
                    len += usize::from(high - logit <= reach);
                }
                self.ids.extend_from_slice(&ids[..len]);
                self.logits.extend_from_slice(&logits[..len]);
            }
        }
    }

    /// Weighs the listed tokens; the weights stand in the order of the ids.
    pub(super) fn weigh(&mut self, curve: Curve) {
        self.weights.clear();
        let high = f64::from(self.high);
        self.weights.extend(self.logits.iter().map(|&logit| curve.weight(high - f64::from(logit))));
    }

    /// The weights, one per id.
    pub(super) fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// top-p: keeps the shortest prefix of the ranking that weighs at least `mass`.
    pub(super) fn nucleus(&mut self, mass: f64) {
        let Some(border) = self.crossing(mass) else { return };
        let logits = std::mem::take(&mut self.logits);
        self.retain(|place, _| key(logits[place], place) <= border);
        self.logits = logits;
    }

    /// min-p: keeps weights of at least `share`.
    pub(super) fn floor(&mut self, share: f64) {
        self.retain(|_, weight| weight >= share);
    }

    fn retain(&mut self, keep: impl Fn(usize, f64) -> bool) {
        let mut len = 0;
        for place in 0..self.ids.len() {
            let (id, weight) = (self.ids[place], self.weights[place]);
            (self.ids[len], self.weights[len]) = (id, weight);
            len += usize::from(keep(place, weight));
        }
        self.ids.truncate(len);
        self.weights.truncate(len);
    }

    /// The rank of the token that lifts the running mass to `mass`; none if all of them together do not.
    fn crossing(&mut self, mass: f64) -> Option<u64> {
        if self.ids.len() <= SHORT {
            self.members.clear();
            self.members.extend(0..self.ids.len() as u32);
            return self.walk(0.0, mass);
        }
        let mut above = 0.0;
        for (round, (shift, mask)) in ROUNDS.into_iter().enumerate() {
            let high = self.high;
            let range_of = |logit: f32| ((high - logit).to_bits() >> shift & mask) as usize;
            self.ranges.clear();
            self.ranges.resize(mask as usize + 1, 0.0);
            if round == 0 {
                for (&logit, &weight) in self.logits.iter().zip(&self.weights) {
                    self.ranges[range_of(logit)] += weight;
                }
            } else {
                for &i in &self.members {
                    self.ranges[range_of(self.logits[i as usize])] += self.weights[i as usize];
                }
            }
            let mut crossed = None;
            for (range, &weight) in self.ranges.iter().enumerate() {
                if weight > 0.0 {
                    // The last range with mass is kept if rounding leaves the sum short.
                    crossed = Some((range, above));
                    if above + weight >= mass {
                        break;
                    }
                    above += weight;
                }
            }
            let (range, before) = crossed?;
            above = before;
            if round == 0 {
                self.members.clear();
                let listed = (0..).zip(&self.logits).filter(|&(_, &logit)| range_of(logit) == range);
                self.members.extend(listed.map(|(i, _): (u32, _)| i));
            } else {
                self.members.retain(|&i| range_of(self.logits[i as usize]) == range);
            }
            if self.members.len() <= SHORT {
                break;
            }
        }
        self.walk(above, mass)
    }

    /// Ranks the members and adds them to `above` until `mass` is reached; the last one's rank if it never is.
    fn walk(&mut self, mut above: f64, mass: f64) -> Option<u64> {
        self.keys.clear();
        self.keys.extend(self.members.iter().map(|&i| key(self.logits[i as usize], i as usize)));
        self.keys.sort_unstable();
        for &key in &self.keys {
            above += self.weights[key as u32 as usize];
            if above >= mass {
                return Some(key);
            }
        }
        self.keys.last().copied()
    }
}
