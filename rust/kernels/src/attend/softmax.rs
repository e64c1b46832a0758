//! The steps of attention between the products: weights of a chunk, and how chunks are merged.

use super::cache::HALF_MAX;
use crate::half::f16_to_f32;
use crate::lanes::{Lanes, stamp};
use crate::order::LANES;

stamp!(softmax, softmax_body, (scores: &mut [f32]) -> (f32, f32));
stamp!(scale, scale_body, (p: &[f32], scales: &[u16], out: &mut [f32]));
stamp!(halve, halve_body, (x: &[f32], out: &mut [u16]));
stamp!(combine, combine_body, (before: Sums<'_>, chunk: Sums<'_>) -> Combined);
stamp!(merge, merge_body, (total: &mut [f32], old: f32, o: &[f32], new: f32));

/// The functions of a set.
#[derive(Clone, Copy)]
pub(crate) struct AttendFns {
    /// Scores to weights in place; returns the greatest score and the sum of the weights. The length must be a multiple of 16.
    pub(crate) softmax: unsafe fn(&mut [f32]) -> (f32, f32),
    /// `out = p · scale`, scales in half precision.
    pub(crate) scale: unsafe fn(&[f32], &[u16], &mut [f32]),
    /// Numbers to halves, saturating at ±65504; NaN stays.
    pub(crate) halve: unsafe fn(&[f32], &mut [u16]),
    /// Greatest scores and sums of two parts of up to 16 queries, as one (A3).
    pub(crate) combine: unsafe fn(Sums<'_>, Sums<'_>) -> Combined,
    /// `total = fma(o, new, total · old)`. The length must be a multiple of 16.
    pub(crate) merge: unsafe fn(&mut [f32], f32, &[f32], f32),
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
    scale: scale::scalar,
    halve: halve::scalar,
    combine: combine::scalar,
    merge: merge::scalar,
};
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: AttendFns = AttendFns {
    softmax: softmax::avx2,
    scale: scale::avx2,
    halve: halve::avx2,
    combine: combine::avx2,
    merge: merge::avx2,
};
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: AttendFns = AttendFns {
    softmax: softmax::avx512,
    scale: scale::avx512,
    halve: halve::avx512,
    combine: combine::avx512,
    merge: merge::avx512,
};
#[cfg(target_arch = "aarch64")]
pub(crate) const NEON: AttendFns = AttendFns {
    softmax: softmax::neon,
    scale: scale::neon,
    halve: halve::neon,
    combine: combine::neon,
    merge: merge::neon,
};

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
unsafe fn scale_body<L: Lanes>(p: &[f32], scales: &[u16], out: &mut [f32]) {
    assert!(p.len() == scales.len() && p.len() == out.len());
    for ((p, scales), out) in p.chunks_exact(16).zip(scales.chunks_exact(16)).zip(out.chunks_exact_mut(16)) {
        let wide: [f32; 16] = std::array::from_fn(|i| f16_to_f32(scales[i]));
        // SAFETY: all three have 16 elements.
        unsafe { L::load(p.as_ptr()).mul(L::load(wide.as_ptr())).store(out.as_mut_ptr()) };
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
