//! The packing formula with AVX2.

use std::arch::x86_64::*;

use super::{
    AMAX_MIN, ActKind, EXTRAS_32, EXTRAS_256, OFFSETS_32, PAIRS_16, PAIRS_32, pack_scalar, pair_first, shorten,
};

/// Packs one tile with AVX2.
///
/// # Safety
/// The CPU must have AVX2.
pub(crate) unsafe fn pack_avx2(kind: ActKind, x: &[f32], k: usize, groups: &mut [u32], extras: &mut [u32]) {
    // SAFETY: passed on.
    unsafe { pack(kind, x, k, groups, extras) };
}

/// # Safety
/// The CPU must have AVX2.
unsafe fn pack(kind: ActKind, x: &[f32], k: usize, groups: &mut [u32], extras: &mut [u32]) {
    if kind == ActKind::F32 {
        return pack_scalar(kind, x, k, groups, extras);
    }
    let m = x.len() / k;
    let len = kind.block();
    for (r, row) in x.chunks_exact(k).enumerate() {
        let mut codes = [0i8; 256];
        let mut sums = [0i32; 16];
        for (b, block) in row.chunks_exact(len).enumerate() {
            // SAFETY: passed on.
            let d = unsafe { quantize(block, &mut codes[..len], &mut sums[..len / 16]) };
            for (g, four) in codes[..len].chunks_exact(4).enumerate() {
                groups[(b * len / 4 + g) * m + r] =
                    u32::from_le_bytes([four[0] as u8, four[1] as u8, four[2] as u8, four[3] as u8]);
            }
            if kind == ActKind::Q32 {
                let d = shorten(d);
                let total = sums[0] + sums[1];
                let e = &mut extras[b * EXTRAS_32 * m + r..];
                e[0] = d.to_bits();
                e[m] = (d * total as f32).to_bits();
                for (i, offset) in OFFSETS_32.into_iter().enumerate() {
                    e[(2 + i) * m] = (-offset * total) as u32;
                }
            } else {
                put_extras_256(d, &sums, &mut extras[b * EXTRAS_256 * m + r..], m);
            }
        }
    }
}

fn put_extras_256(d: f32, sums_16: &[i32; 16], e: &mut [u32], m: usize) {
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

/// The scale of a block from its greatest magnitude, and what its values are multiplied by; `None` if the codes are zero.
#[inline(always)]
fn scale(amax_bits: u32) -> (f32, Option<f32>) {
    let amax = f32::from_bits(amax_bits);
    if amax < AMAX_MIN {
        (0.0, None)
    } else if amax.is_finite() {
        (amax / 127.0, Some(127.0 / amax))
    } else {
        (f32::NAN, None)
    }
}

/// Quantizes one block: `codes` gets as many bytes as `x` has floats (a multiple of 32), `sums` the sum of each 16 of them; returns `d`.
#[target_feature(enable = "avx2")]
unsafe fn quantize(x: &[f32], codes: &mut [i8], sums: &mut [i32]) -> f32 {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let mut most = _mm256_setzero_si256();
    for eight in x.chunks_exact(8) {
        // SAFETY: 8 floats.
        let v = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
        most = _mm256_max_epu32(most, _mm256_and_si256(v, magnitude));
    }
    let mut lanes = [0u32; 8];
    // SAFETY: 8 words.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), most) };
    let (d, inverse) = scale(lanes.into_iter().fold(0, u32::max));
    let Some(inverse) = inverse else {
        codes.fill(0);
        sums.fill(0);
        return d;
    };
    let inverse = _mm256_set1_ps(inverse);
    for ((sixteen, codes), sum) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).zip(sums) {
        // SAFETY: 16 floats are read and 16 bytes written. The packs keep the order within 128-bit halves, so each half is packed alone.
        unsafe {
            let round = |at: *const f32| {
                let v = _mm256_mul_ps(_mm256_loadu_ps(at), inverse);
                _mm256_cvtps_epi32(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
            };
            let (low, high) = (round(sixteen.as_ptr()), round(sixteen.as_ptr().add(8)));
            let first = _mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
            let second = _mm_packs_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
            let bytes = _mm_packs_epi16(first, second);
            _mm_storeu_si128(codes.as_mut_ptr().cast(), bytes);
            let eight = _mm256_add_epi32(low, high);
            let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            *sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)));
        }
    }
    d
}
