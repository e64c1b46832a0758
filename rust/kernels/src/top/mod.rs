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

    /// As [`Self::scan`], but only ids whose bit is set in `allowed` (bit `id % 32` of word `id / 32`) can be among the greatest. A NaN counts wherever it is.
    pub fn scan_allowed(&mut self, set: &KernelSet, row: &[f32], first: u32, allowed: &[u32]) {
        // Nothing exceeds +inf, so only a NaN is found.
        // SAFETY: the set's functions run on this CPU.
        if let Some(at) = unsafe { (set.above_fn())(row, f32::INFINITY, 0) }
            && let Some(i) = row[at..].iter().position(|x| x.is_nan())
        {
            self.nan.get_or_insert(first + (at + i) as u32);
        }
        for (i, block) in row.chunks(BLOCK).enumerate() {
            let id = first + (i * BLOCK) as u32;
            let mut bits = bits(allowed, id);
            if block.len() < BLOCK {
                bits &= (1 << block.len()) - 1;
            }
            // Where all are allowed, one comparison of vectors says whether to look closer.
            // SAFETY: the set's functions run on this CPU.
            if bits == u64::MAX && unsafe { (set.above_fn())(block, self.floor(), 0) }.is_none() {
                continue;
            }
            while bits != 0 {
                let at = bits.trailing_zeros();
                bits &= bits - 1;
                let x = block[at as usize];
                if x > self.floor() {
                    self.insert(x, id + at);
                }
            }
        }
    }

    /// Keeps this id alone, whatever its logit.
    pub fn only(&mut self, id: u32) {
        self.entries.clear();
        self.entries.push((f32::INFINITY, id));
        self.nan = None;
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

/// The 64 bits of `words` from bit `from` on; those beyond the last word are clear.
fn bits(words: &[u32], from: u32) -> u64 {
    let (at, shift) = (from as usize / 32, from % 32);
    let word = |i: usize| u128::from(words.get(at + i).copied().unwrap_or(0)) << (32 * i);
    ((word(0) | word(1) | word(2)) >> shift) as u64
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
    fn the_greatest_allowed_are_those_of_the_row_with_minus_infinity_elsewhere() {
        let mut random = Random(9);
        for n in [1, 63, 64, 65, 1000, 5000] {
            for (k, share) in [(1, 0), (1, 1), (2, 50), (8, 99), (70, 100)] {
                let row: Vec<f32> = (0..n).map(|_| random.below(9) as f32 - 4.0).collect();
                // Some words are full, some empty, as masks of grammars are.
                let full: Vec<bool> = (0..n / 32 + 1).map(|_| random.below(100) < share).collect();
                let allows = |random: &mut Random, i: usize| full[i / 32] || random.below(100) < share;
                let allowed: Vec<bool> = (0..n).map(|i| allows(&mut random, i)).collect();
                let mut words = vec![0; n / 32 + 1];
                (0..n).filter(|i| allowed[*i]).for_each(|i| words[i / 32] |= 1 << (i % 32));
                let masked: Vec<f32> =
                    row.iter().zip(&allowed).map(|(x, a)| if *a { *x } else { f32::NEG_INFINITY }).collect();
                for set in KernelSet::available() {
                    let cut = random.below(n + 1) / 16 * 16;
                    let (mut left, mut right) = (Best::new(k), Best::new(k));
                    left.scan_allowed(&set, &row[..cut], 0, &words);
                    right.scan_allowed(&set, &row[cut..], cut as u32, &words);
                    right.merge(&left);
                    assert_eq!(
                        right.ids().collect::<Vec<_>>(),
                        by_sorting(&masked, k),
                        "{set:?} n={n} k={k} cut={cut}"
                    );
                    assert_eq!(right.nan(), None);
                    if n > 1 {
                        let mut holed = row.clone();
                        holed[n / 2] = f32::NAN;
                        let mut best = Best::new(k);
                        best.scan_allowed(&set, &holed, 0, &words);
                        assert_eq!(best.nan(), Some(n as u32 / 2), "{set:?} n={n}");
                    }
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
