//! The greatest logits of a row that is never held as a whole: their ids, best first.
//!
//! In: pieces of a row, in ascending columns, while they are in the first cache. Out: the K greatest, to the decoder, which then needs no row.
//!
//! - Order: descending value, then ascending id; +0 and −0 are equal. −∞ is never named.
//! - The first NaN is remembered: a row that holds one has no greatest.
//!
//! Cost: one comparison a logit, vectors of them in every set; the rare logit above the floor is inserted.

use crate::lanes::{Lanes, stamp};
use crate::set::KernelSet;

stamp!(above, above_body, (row: &[f32], floor: f32, from: usize) -> Option<usize>);
pub(crate) type AboveFn = unsafe fn(&[f32], f32, usize) -> Option<usize>;
pub(crate) const SCALAR: AboveFn = above::scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: AboveFn = above::avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: AboveFn = above::avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) const NEON: AboveFn = above::neon;

/// Logits that are compared at once.
const BLOCK: usize = 64;

/// Start of the first block at or after `from` (a multiple of [`BLOCK`]) with a value that is not at most `floor`: above it, or NaN.
///
/// # Safety
/// The CPU must have the set of `L`, whose instructions the compiler uses for this loop.
#[inline(always)]
unsafe fn above_body<L: Lanes>(row: &[f32], floor: f32, from: usize) -> Option<usize> {
    let beats = |x: &f32| x.is_nan() || *x > floor;
    let mut at = from;
    for block in row[from..].chunks(BLOCK) {
        // Not `any`: without an early exit the comparisons become vectors.
        if block.iter().fold(false, |found, x| found | beats(x)) {
            return Some(at);
        }
        at += BLOCK;
    }
    None
}

/// The K greatest logits of a row seen so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Best {
    k: usize,
    entries: Vec<(f32, u32)>,
    nan: Option<u32>,
}

impl Best {
    /// Nothing seen; keeps the `k` greatest, at least one.
    pub fn new(k: usize) -> Self {
        Best { k: k.max(1), entries: Vec::with_capacity(k.max(1) + 1), nan: None }
    }

    /// How many it keeps.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Forgets everything and keeps the `k` greatest from now on.
    pub fn reset(&mut self, k: usize) {
        self.k = k.max(1);
        self.entries.clear();
        self.nan = None;
    }

    /// Looks at logits `first ..`. Columns must come in ascending order.
    pub fn scan(&mut self, set: &KernelSet, row: &[f32], first: u32) {
        let mut from = 0;
        // SAFETY: the set's functions run on this CPU.
        while let Some(at) = unsafe { (set.above_fn())(row, self.floor(), from) } {
            let block = &row[at..row.len().min(at + BLOCK)];
            for (i, x) in block.iter().enumerate() {
                let id = first + (at + i) as u32;
                if x.is_nan() {
                    self.nan.get_or_insert(id);
                } else if *x > self.floor() {
                    self.insert(*x, id);
                }
            }
            from = at + BLOCK;
            if from >= row.len() {
                return;
            }
        }
    }

    /// What a logit must exceed to be among the greatest.
    fn floor(&self) -> f32 {
        if self.entries.len() == self.k { self.entries[self.k - 1].0 } else { f32::NEG_INFINITY }
    }

    fn insert(&mut self, x: f32, id: u32) {
        let at = self.entries.partition_point(|(y, other)| *y > x || *y == x && *other < id);
        self.entries.insert(at, (x, id));
        self.entries.truncate(self.k);
    }

    /// Takes in what another saw of the same row.
    pub fn merge(&mut self, other: &Best) {
        self.nan = match (self.nan, other.nan) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        for (x, id) in &other.entries {
            self.insert(*x, *id);
        }
    }

    /// The ids, best first; fewer than K if the row has fewer logits above −∞.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.entries.iter().map(|(_, id)| *id)
    }

    /// The logits of [`Self::ids`].
    pub fn values(&self) -> impl ExactSizeIterator<Item = f32> + '_ {
        self.entries.iter().map(|(x, _)| *x)
    }

    /// The lowest id whose logit is NaN.
    pub fn nan(&self) -> Option<u32> {
        self.nan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::tests::Random;

    /// Sorts everything.
    fn by_sorting(row: &[f32], k: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..row.len() as u32).filter(|i| row[*i as usize] > f32::NEG_INFINITY).collect();
        ids.sort_by(|a, b| row[*b as usize].partial_cmp(&row[*a as usize]).unwrap().then(a.cmp(b)));
        ids.truncate(k);
        ids
    }

    #[test]
    fn pieces_of_any_size_give_what_sorting_the_row_gives() {
        let mut random = Random(8);
        for n in [1, 63, 64, 65, 1000, 5000] {
            for k in [1, 2, 8, 70] {
                // Few distinct values, so that ties are common; zeros of both signs among them.
                let row: Vec<f32> = (0..n)
                    .map(|_| match random.below(12) {
                        0 => -0.0,
                        1 => f32::NEG_INFINITY,
                        2 => f32::INFINITY,
                        v => (v as f32 - 6.0) * if random.below(3) == 0 { 1.0 } else { 0.1 },
                    })
                    .collect();
                for set in KernelSet::available() {
                    let cut = random.below(n + 1);
                    let mut whole = Best::new(k);
                    whole.scan(&set, &row, 0);
                    let (mut left, mut right) = (Best::new(k), Best::new(k));
                    left.scan(&set, &row[..cut], 0);
                    right.scan(&set, &row[cut..], cut as u32);
                    right.merge(&left);
                    let expected = by_sorting(&row, k);
                    assert_eq!(whole.ids().collect::<Vec<_>>(), expected, "{set:?} n={n} k={k}");
                    assert_eq!(right.ids().collect::<Vec<_>>(), expected, "{set:?} n={n} k={k} cut={cut}");
                    assert_eq!(whole.nan(), None);
                }
            }
        }
    }

    #[test]
    fn the_first_nan_is_remembered_wherever_it_is() {
        for at in [0, 1, 63, 64, 199] {
            let mut row = vec![1.0; 200];
            row[at] = f32::NAN;
            row[199] = f32::NAN;
            for set in KernelSet::available() {
                let mut best = Best::new(2);
                best.scan(&set, &row, 1000);
                assert_eq!(best.nan(), Some(1000 + at as u32));
                let mut other = Best::new(2);
                other.merge(&best);
                assert_eq!(other.nan(), best.nan());
            }
        }
    }
}
