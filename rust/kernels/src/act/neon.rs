//! The packing formula with NEON.

use std::arch::aarch64::*;

use super::{
    AMAX_MIN, ActKind, EXTRAS_32, EXTRAS_256, OFFSETS_32, PAIRS_16, PAIRS_32, pack_scalar, pair_first, shorten,
};

/// Packs one tile.
///
/// # Safety
/// The CPU must have NEON.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn pack(kind: ActKind, x: &[f32], k: usize, groups: &mut [u32], extras: &mut [u32]) {
    if kind == ActKind::F32 {
        return pack_scalar(kind, x, k, groups, extras);
    }
    let m = x.len() / k;
    let len = kind.block();
    let mut sums = [0i32; 16];
    for (r, row) in x.chunks_exact(k).enumerate() {
        for (b, block) in row.chunks_exact(len).enumerate() {
            let d = quantize(block, m, &mut groups[b * len / 4 * m + r..], &mut sums[..len / 16]);
            if kind == ActKind::Q32 {
                put_extras_32(d, sums[0] + sums[1], m, &mut extras[b * EXTRAS_32 * m + r..]);
            } else {
                put_extras_256(d, &sums, m, &mut extras[b * EXTRAS_256 * m + r..]);
            }
        }
    }
}

/// Quantizes one block: every `m`-th word of `groups` gets four codes, `sums` the sum of each 16 codes; returns `d`, not yet shortened.
#[target_feature(enable = "neon")]
fn quantize(x: &[f32], m: usize, groups: &mut [u32], sums: &mut [i32]) -> f32 {
    // The order of magnitudes is that of their bits, and a NaN is the greatest.
    let mut most = vdupq_n_u32(0);
    for four in x.chunks_exact(4) {
        // SAFETY: 4 floats.
        let v = unsafe { vld1q_f32(four.as_ptr()) };
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(v)));
    }
    let amax = f32::from_bits(vmaxvq_u32(most));
    if !amax.is_finite() || amax < AMAX_MIN {
        groups.iter_mut().step_by(m).take(x.len() / 4).for_each(|word| *word = 0);
        sums.fill(0);
        return if amax < AMAX_MIN { 0.0 } else { f32::NAN };
    }
    let inverse = 127.0 / amax;
    for (s, (sixteen, sum)) in x.chunks_exact(16).zip(sums).enumerate() {
        // SAFETY: 16 floats. A code is within ±127, so narrowing keeps it.
        let codes: [int32x4_t; 4] = std::array::from_fn(|i| unsafe {
            vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(sixteen.as_ptr().add(4 * i)), inverse))
        });
        *sum = vaddvq_s32(vaddq_s32(vaddq_s32(codes[0], codes[1]), vaddq_s32(codes[2], codes[3])));
        let low = vcombine_s16(vmovn_s32(codes[0]), vmovn_s32(codes[1]));
        let high = vcombine_s16(vmovn_s32(codes[2]), vmovn_s32(codes[3]));
        let mut words = [0u32; 4];
        // SAFETY: 16 bytes.
        unsafe { vst1q_s8(words.as_mut_ptr().cast(), vcombine_s8(vmovn_s16(low), vmovn_s16(high))) };
        for (g, word) in words.into_iter().enumerate() {
            groups[(4 * s + g) * m] = word;
        }
    }
    amax / 127.0
}

fn put_extras_32(d: f32, total: i32, m: usize, e: &mut [u32]) {
    let d = shorten(d);
    e[0] = d.to_bits();
    e[m] = (d * total as f32).to_bits();
    for (i, offset) in OFFSETS_32.into_iter().enumerate() {
        e[(2 + i) * m] = (-offset * total) as u32;
    }
}

fn put_extras_256(d: f32, sums_16: &[i32; 16], m: usize, e: &mut [u32]) {
    let sums_32: [i32; 8] = std::array::from_fn(|s| sums_16[2 * s] + sums_16[2 * s + 1]);
    let pair = |sums: &[i32], q: usize| {
        u32::from(sums[pair_first(q)] as u16) | u32::from(sums[pair_first(q) + 2] as u16) << 16
    };
    e[0] = d.to_bits();
    for q in 0..4 {
        e[(PAIRS_32 + q) * m] = pair(&sums_32, q);
    }
    for q in 0..8 {
        e[(PAIRS_16 + q) * m] = pair(sums_16, q);
    }
}
