//! The steps of attention between the products: weights of a chunk, and how chunks are merged.

use super::cache::HALF_MAX;
use super::{CHUNK, bytes};
use crate::act::MAX_TILE;
use crate::lanes::{Lanes, stamp};
use crate::order::{LANES, LOG2_E};

stamp!(softmax, softmax_body, (scores: &mut [f32]) -> (f32, f32));
stamp!(widen, widen_body, (halves: &[u8], out: &mut [f32]));
stamp!(weights, weights_body, (w: Weights<'_>));
stamp!(halve, halve_body, (x: &[f32], out: &mut [u16]));
stamp!(combine, combine_body, (before: Sums<'_>, chunk: Sums<'_>) -> Combined);
stamp!(merge, merge_body, (total: &mut [f32], old: f32, o: &[f32], new: f32));

/// The functions of a set.
#[derive(Clone, Copy)]
pub(crate) struct AttendFns {
    /// Scores to weights in place; returns the greatest score and the sum of the weights. The length must be a multiple of 16.
    pub(crate) softmax: unsafe fn(&mut [f32]) -> (f32, f32),
    /// Halves, two bytes each, to floats. The number must be a multiple of 16.
    pub(crate) widen: unsafe fn(&[u8], &mut [f32]),
    /// Weights of a tile of queries as bytes (A6).
    pub(crate) weights: unsafe fn(Weights<'_>),
    /// Codes of weights times codes of values (A6).
    pub(crate) weigh_bytes: unsafe fn(bytes::Tile<'_>),
    /// Numbers to halves, saturating at ±65504; NaN stays.
    pub(crate) halve: unsafe fn(&[f32], &mut [u16]),
    /// Greatest scores and sums of two parts of up to 16 queries, as one (A3).
    pub(crate) combine: unsafe fn(Sums<'_>, Sums<'_>) -> Combined,
    /// `total = fma(o, new, total · old)`. The length must be a multiple of 16.
    pub(crate) merge: unsafe fn(&mut [f32], f32, &[f32], f32),
}

/// Scores of a tile of queries, and what becomes of them. Everything begins at the first of `slots` slots, which are 16, 32, 64 or 128.
pub(crate) struct Weights<'a> {
    pub(super) slots: usize,
    pub(super) rows: usize,
    /// [`CHUNK`] a row. Become p.
    pub(super) scores: &'a mut [f32],
    /// Scales of values, [`CHUNK`] a block of columns.
    pub(super) scales: &'a [f32],
    /// [`bytes::BLOCK`] a block of columns, [`CHUNK`] a row.
    pub(super) codes: &'a mut [u8],
    /// What sums of codes are multiplied with, [`MAX_TILE`] a block of columns.
    pub(super) factors: &'a mut [f32],
    /// Greatest score a row.
    pub(super) m: &'a mut [f32; LANES],
    /// Sum of p a row.
    pub(super) l: &'a mut [f32; LANES],
}

/// Greatest scores and sums of weights, a lane a query.
pub(crate) type Sums<'a> = (&'a [f32; LANES], &'a [f32; LANES]);

/// What two parts are together, a lane a query.
#[derive(Debug)]
pub(crate) struct Combined {
    /// Greatest score.
    pub(crate) m: [f32; LANES],
    /// Sum of weights.
    pub(crate) l: [f32; LANES],
    /// Factor of what the first part has summed up.
    pub(crate) old: [f32; LANES],
    /// Factor of what the second part has.
    pub(crate) new: [f32; LANES],
}

pub(crate) const SCALAR: AttendFns = AttendFns {
    softmax: softmax::scalar,
    widen: widen::scalar,
    weights: weights::scalar,
    weigh_bytes: bytes::scalar::weigh,
    halve: halve::scalar,
    combine: combine::scalar,
    merge: merge::scalar,
};
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: AttendFns = AttendFns {
    softmax: softmax::avx2,
    widen: widen::avx2,
    weights: weights::avx2,
    weigh_bytes: bytes::avx2::base,
    halve: halve::avx2,
    combine: combine::avx2,
    merge: merge::avx2,
};
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2_VNNI: AttendFns = AttendFns { weigh_bytes: bytes::avx2::with_vnni, ..AVX2 };
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: AttendFns = AttendFns {
    softmax: softmax::avx512,
    widen: widen::avx512,
    weights: weights::avx512,
    weigh_bytes: bytes::avx512::weigh,
    halve: halve::avx512,
    combine: combine::avx512,
    merge: merge::avx512,
};
#[cfg(target_arch = "aarch64")]
pub(crate) const NEON: AttendFns = AttendFns {
    softmax: softmax::neon,
    widen: widen::neon,
    weights: weights::neon,
    weigh_bytes: bytes::neon::base,
    halve: halve::neon,
    combine: combine::neon,
    merge: merge::neon,
};
#[cfg(target_arch = "aarch64")]
pub(crate) const NEON_DOTPROD: AttendFns = AttendFns { weigh_bytes: bytes::neon::with_dotprod, ..NEON };

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn softmax_body<L: Lanes>(scores: &mut [f32]) -> (f32, f32) {
    assert_eq!(scores.len() % 16, 0);
    // SAFETY: every chunk has 16 floats.
    unsafe {
        let mut most = L::splat(f32::NEG_INFINITY);
        for s in scores.chunks_exact(16) {
            most = L::load(s.as_ptr()).max(most);
        }
        let m = most.greatest();
        let shift = L::splat(m);
        let mut sum = L::splat(0.0);
        for s in scores.chunks_exact_mut(16) {
            let p = L::load(s.as_ptr()).sub(shift).exp();
            p.store(s.as_mut_ptr());
            sum = sum.add(p);
        }
        (m, sum.fold())
    }
}

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn widen_body<L: Lanes>(halves: &[u8], out: &mut [f32]) {
    assert!(halves.len() == 2 * out.len() && out.len().is_multiple_of(16));
    for (halves, out) in halves.chunks_exact(32).zip(out.chunks_exact_mut(16)) {
        // SAFETY: 16 halves, which may lie anywhere, and 16 floats.
        unsafe { L::from_half(halves.as_ptr().cast()).store(out.as_mut_ptr()) };
    }
}

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn weights_body<L: Lanes>(w: Weights<'_>) {
    // SAFETY: passed on.
    unsafe {
        match w.slots {
            16 => weights_of::<L, 1>(w),
            32 => weights_of::<L, 2>(w),
            64 => weights_of::<L, 4>(w),
            128 => weights_of::<L, 8>(w),
            n => unreachable!("no {n} slots"),
        }
    }
}

/// For `N` times 16 slots. Each step is done for all rows before the next one: within a row every step waits for the one before.
///
/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn weights_of<L: Lanes, const N: usize>(w: Weights<'_>) {
    let blocks = w.scales.len().div_ceil(CHUNK);
    let ends = |blocks: usize, block: usize, row: usize| (blocks - 1) * block + (w.rows - 1) * row + 16 * N;
    assert!(
        w.rows > 0 && blocks > 0 && w.scores.len() >= ends(1, 0, CHUNK) && w.scales.len() >= ends(blocks, CHUNK, 0)
    );
    assert!(w.codes.len() >= ends(blocks, bytes::BLOCK, CHUNK) && w.factors.len() >= (blocks - 1) * MAX_TILE + w.rows);
    // SAFETY: every pointer has the 16 numbers that are read or written there: N times 16 follow each other in a row of a block.
    unsafe {
        for (scores, m) in w.scores.chunks(CHUNK).zip(&mut w.m[..w.rows]) {
            let mut most = L::load(scores.as_ptr()).max(L::splat(f32::NEG_INFINITY));
            for i in 1..N {
                most = L::load(scores.as_ptr().add(16 * i)).max(most);
            }
            *m = most.greatest();
        }
        for (row, scores) in w.scores.chunks_mut(CHUNK).take(w.rows).enumerate() {
            let (shift, unit) = (L::splat(w.m[row]), L::splat(LOG2_E));
            let mut sum = L::splat(0.0);
            for i in 0..N {
                let at = scores.as_mut_ptr().add(16 * i);
                let p = L::load(at).sub(shift).mul(unit).exp2();
                p.store(at);
                sum = sum.add(p);
            }
            w.l[row] = sum.fold();
        }
        for row in 0..w.rows {
            let p = w.scores.as_ptr().add(row * CHUNK);
            let mut block = 0;
            while block < blocks {
                let scales = w.scales.as_ptr().add(block * CHUNK);
                let codes = w.codes.as_mut_ptr().add(block * bytes::BLOCK + row * CHUNK);
                let factors = w.factors.as_mut_ptr().add(block * MAX_TILE + row);
                if block + 2 <= blocks {
                    code_blocks::<L, N, 2>(p, scales, codes, factors);
                } else {
                    code_blocks::<L, N, 1>(p, scales, codes, factors);
                }
                block += 2;
            }
        }
    }
}

/// Codes and factors of a row for `B` blocks of columns, which do not wait for each other's greatest weight.
///
/// # Safety
/// The CPU must have the set of `L`; the pointers have what [`Weights`] says, for `N` times 16 slots and `B` blocks.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "arrays with other orders of their axes are walked by the same numbers")]
unsafe fn code_blocks<L: Lanes, const N: usize, const B: usize>(
    p: *const f32,
    scales: *const f32,
    codes: *mut u8,
    factors: *mut f32,
) {
    // SAFETY: passed on.
    unsafe {
        let mut w = [[L::splat(0.0); N]; B];
        let mut most = [L::splat(0.0); B];
        for i in 0..N {
            let p = L::load(p.add(16 * i));
            for b in 0..B {
                w[b][i] = p.mul(L::load(scales.add(b * CHUNK + 16 * i)));
                most[b] = w[b][i].max(most[b]);
            }
        }
        let most = if B == 2 { L::greatest_of_two([most[0], most[B - 1]]) } else { [most[0].greatest(); 2] };
        for b in 0..B {
            *factors.add(b * MAX_TILE) = most[b] * bytes::UNIT;
            let inverse = L::splat(if most[b] > 0.0 { 255.0 / most[b] } else { 0.0 });
            let at = codes.add(b * bytes::BLOCK);
            for w in &mut w[b] {
                *w = w.mul(inverse);
            }
            let (fours, rest) = w[b].as_chunks::<4>();
            for (i, four) in fours.iter().enumerate() {
                L::put_bytes_of_four(*four, at.add(64 * i));
            }
            for (i, x) in rest.iter().enumerate() {
                x.put_bytes(at.add(64 * fours.len() + 16 * i));
            }
        }
    }
}

/// 16 numbers as halves, saturating.
///
/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn saturated<L: Lanes>(x: &[f32]) -> [u16; 16] {
    assert!(x.len() >= 16);
    // SAFETY: 16 floats. `max` yields its argument unless the bound is greater, so a NaN stays.
    unsafe { L::splat(-HALF_MAX).max(L::load(x.as_ptr()).at_most(L::splat(HALF_MAX))).to_half() }
}

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn halve_body<L: Lanes>(x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len());
    // SAFETY: whole chunks and the padded array have 16 floats.
    unsafe {
        let (chunks, mut outs) = (x.chunks_exact(16), out.chunks_exact_mut(16));
        let mut padded = [0.0; 16];
        padded[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        for (x, out) in chunks.zip(&mut outs) {
            out.copy_from_slice(&saturated::<L>(x));
        }
        let rest = outs.into_remainder();
        rest.copy_from_slice(&saturated::<L>(&padded)[..rest.len()]);
    }
}

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn combine_body<L: Lanes>(before: Sums<'_>, chunk: Sums<'_>) -> Combined {
    // SAFETY: every array has 16 floats.
    unsafe {
        let (m_before, m_chunk) = (L::load(before.0.as_ptr()), L::load(chunk.0.as_ptr()));
        let m = m_chunk.max(m_before);
        let (old, new) = (m_before.sub(m).exp(), m_chunk.sub(m).exp());
        let l = L::load(chunk.1.as_ptr()).fma(new, L::load(before.1.as_ptr()).mul(old));
        Combined { m: m.to_array(), l: l.to_array(), old: old.to_array(), new: new.to_array() }
    }
}

/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
unsafe fn merge_body<L: Lanes>(total: &mut [f32], old: f32, o: &[f32], new: f32) {
    assert!(total.len() == o.len() && o.len().is_multiple_of(16));
    // SAFETY: every chunk has 16 floats.
    unsafe {
        let (old, new) = (L::splat(old), L::splat(new));
        for (total, o) in total.chunks_exact_mut(16).zip(o.chunks_exact(16)) {
            let kept = L::load(total.as_ptr()).mul(old);
            L::load(o.as_ptr()).fma(new, kept).store(total.as_mut_ptr());
        }
    }
}
