//! Q3_K in NEON registers.

use std::arch::aarch64::*;

use super::Q3K;
use crate::matmul::neon::{Super128, add_where, bytes, load, load_wide};

impl Super128 for Q3K {
    const MOST: i32 = 4;
    const SUB: usize = 16;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [int32x4_t; 16] {
        // SAFETY: words 24 and 25 hold the low nibbles, word 26 the upper pairs, by the caller.
        unsafe {
            let nibble = vdupq_n_u32(0x0f0f_0f0f);
            let (first, second, upper) = (load_wide(words, 24), load_wide(words, 25), load_wide(words, 26));
            let pair = vdupq_n_u32(0x3030_3030);
            // Byte j of word q is scale 4q + j, not yet less 32.
            let packed = [
                vorrq_u32(vandq_u32(first, nibble), vandq_u32(vshlq_n_u32::<4>(upper), pair)),
                vorrq_u32(vandq_u32(second, nibble), vandq_u32(vshlq_n_u32::<2>(upper), pair)),
                vorrq_u32(vandq_u32(vshrq_n_u32::<4>(first), nibble), vandq_u32(upper, pair)),
                vorrq_u32(vandq_u32(vshrq_n_u32::<4>(second), nibble), vandq_u32(vshrq_n_u32::<2>(upper), pair)),
            ];
            let mut scales = [vdupq_n_s32(0); 16];
            for (q, four) in packed.into_iter().enumerate() {
                for (j, scale) in bytes(four).into_iter().enumerate() {
                    scales[4 * q + j] = vsubq_s32(vreinterpretq_s32_u32(scale), vdupq_n_s32(32));
                }
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn mins(_words: *const u8) -> [int16x4_t; 16] {
        unreachable!("this format has no minimums")
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize, g: usize) -> int8x16_t {
        // SAFETY: words 0 to 7 hold the third bits, then 8 words of pairs a half, by the caller. Bit `4 · half + RUN` of a byte is this run's.
        unsafe {
            let bit = vdupq_n_u8(1 << (4 * half + RUN));
            let code = add_where(pair::<RUN>(words, 8 + 8 * half + g), load(words, g), bit, 4);
            vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(4))
        }
    }
}

/// Bit pair `RUN` of the bytes of a word.
///
/// # Safety
/// `words` must have word `w` of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn pair<const RUN: usize>(words: *const u8, w: usize) -> uint8x16_t {
    // SAFETY: passed on.
    unsafe {
        let bytes = load(words, w);
        match RUN {
            0 => vandq_u8(bytes, vdupq_n_u8(3)),
            1 => vandq_u8(vshrq_n_u8::<2>(bytes), vdupq_n_u8(3)),
            2 => vandq_u8(vshrq_n_u8::<4>(bytes), vdupq_n_u8(3)),
            _ => vshrq_n_u8::<6>(bytes),
        }
    }
}
