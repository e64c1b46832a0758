//! The k highest logits of a row, without sorting it.
//!
//! In: a row. Out: their ids, to top-k filtering, to log-probabilities and to token recycling.
//!
//! 1. Order: descending logit, then ascending id. +0 and -0 are equal.
//! 2. Exact for every k. A NaN is never named; rows that hold one are refused before they come here.
//! 3. The result does not depend on how the standard library selects or sorts: all keys are different.
//!
//! The k-th highest of the block maxima is a floor for the k-th highest logit: k blocks reach it, so k logits do. What lies
//! above the floor is in fewer than k blocks; of what equals it the first k are enough. So one pass makes the maxima and a
//! second looks into about k blocks, whatever the row looks like: at most 64·k + k candidates are ever compared.
//! With more than a quarter as many as there are blocks that is no gain, and the whole row becomes candidates.
//! Cost: one read of the row and O(blocks + 64·k); 8·k to 8·`n_vocab` bytes of scratch.

use super::scan::{BLOCK, scan};

/// Scratch space for finding the highest logits.
#[derive(Debug, Default)]
pub(super) struct TopK {
    heads: Vec<u64>,
    keys: Vec<u64>,
}

/// Orders by descending logit, then ascending id.
#[inline(always)]
pub(super) fn key(logit: f32, id: usize) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | id as u64
}

impl TopK {
    /// The `k` highest logits as keys whose low halves are ids; in no order. `maxima` are the scan's.
    fn select(&mut self, row: &[f32], maxima: &[f32], k: usize) -> &mut [u64] {
        let k = k.min(row.len());
        self.keys.clear();
        if k == 0 {
            return &mut self.keys;
        }
        if k <= maxima.len() / 4 {
            self.heads.clear();
            self.heads.extend(maxima.iter().enumerate().map(|(block, &m)| key(m, block)));
            let (_, &mut border, _) = self.heads.select_nth_unstable(k - 1);
            let floor = maxima[border as u32 as usize];
            self.collect(row, maxima, floor, k);
        } else {
            self.keys.extend(row.iter().enumerate().filter(|(_, x)| !x.is_nan()).map(|(id, &x)| key(x, id)));
        }
        if self.keys.len() > k {
            self.keys.select_nth_unstable(k - 1);
            self.keys.truncate(k);
        }
        &mut self.keys
    }

    /// Everything above the floor, and the first `k` that equal it.
    fn collect(&mut self, row: &[f32], maxima: &[f32], floor: f32, k: usize) {
        let mut equal = 0;
        for (block, &high) in maxima.iter().enumerate() {
            if high > floor || (high == floor && equal < k) {
                let start = block * BLOCK;
                for (id, &x) in (start..).zip(&row[start..row.len().min(start + BLOCK)]) {
                    if x > floor {
                        self.keys.push(key(x, id));
                    } else if x == floor && equal < k {
                        self.keys.push(key(x, id));
                        equal += 1;
                    }
                }
            }
        }
    }

    /// Writes the ids of the `k` highest logits into `ids`, ascending by id.
    pub(super) fn by_id(&mut self, row: &[f32], maxima: &[f32], k: usize, ids: &mut Vec<u32>) {
        ids.clear();
        ids.extend(self.select(row, maxima, k).iter().map(|&key| key as u32));
        ids.sort_unstable();
    }

    /// Writes the ids of the highest logits into `ids`, best first; returns how many.
    pub(super) fn by_rank(&mut self, row: &[f32], maxima: &[f32], ids: &mut [u32]) -> usize {
        let keys = self.select(row, maxima, ids.len());
        keys.sort_unstable();
        for (id, &key) in ids.iter_mut().zip(keys.iter()) {
            *id = key as u32;
        }
        keys.len()
    }
}

/// Writes the ids of the `out.len()` highest logits into `out`: descending, ties to the lower id.
///
/// Returns how many were written: less than asked for only if the row has fewer numbers. NaNs are left out.
pub fn topk_ids(row: &[f32], out: &mut [u32]) -> usize {
    let mut maxima = Vec::with_capacity(row.len().div_ceil(BLOCK));
    let _ = scan(row, &mut maxima);
    TopK::default().by_rank(row, &maxima, out)
}
