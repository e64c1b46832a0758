//! Q6_K in NEON registers.

use std::arch::aarch64::*;

use super::Q6K;
use crate::matmul::neon::{Super128, load, load_wide, nibble};

impl Super128 for Q6K {
    const MOST: i32 = 32;
    const SUB: usize = 16;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [int32x4_t; 16] {
        // SAFETY: words 48 to 51 hold the scales, one signed byte each.
        unsafe {
            let mut scales = [vdupq_n_s32(0); 16];
            for q in 0..4 {
                let four = vreinterpretq_s32_u32(load_wide(words, 48 + q));
                scales[4 * q] = vshrq_n_s32::<24>(vshlq_n_s32::<24>(four));
                scales[4 * q + 1] = vshrq_n_s32::<24>(vshlq_n_s32::<16>(four));
                scales[4 * q + 2] = vshrq_n_s32::<24>(vshlq_n_s32::<8>(four));
                scales[4 * q + 3] = vshrq_n_s32::<24>(four);
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
        // SAFETY: 16 words of nibbles and 8 of upper pairs a half, by the caller.
        unsafe {
            let at = 16 * half + 8 * (RUN % 2) + g;
            let low = if RUN < 2 { nibble::<false>(words, at) } else { nibble::<true>(words, at) };
            let pairs = load(words, 32 + 8 * half + g);
            let upper = match RUN {
                0 => vshlq_n_u8::<4>(pairs),
                1 => vshlq_n_u8::<2>(pairs),
                2 => pairs,
                _ => vshrq_n_u8::<2>(pairs),
            };
            let code = vorrq_u8(low, vandq_u8(upper, vdupq_n_u8(0x30)));
            vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(32))
        }
    }
}
