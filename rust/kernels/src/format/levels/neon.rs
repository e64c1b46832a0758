//! Levels in NEON registers: nibbles through a byte look-up in the table.

use std::arch::aarch64::*;

use super::Levels;
use crate::matmul::neon::{Super128, load, load_wide, read};

impl<F: Levels> Super128 for F {
    const MOST: i32 = F::OFFSET - 1;
    const SUB: usize = F::SUB;

    #[inline(always)]
    unsafe fn scale(words: *const u8, _halves: *const u8) -> float32x4_t {
        // SAFETY: word 0 holds the scales of the rows, as f32.
        unsafe { vreinterpretq_f32_u32(load_wide(words, 0)) }
    }

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [int32x4_t; 16] {
        // SAFETY: the words after the first hold the scales, one signed byte each.
        unsafe {
            let mut scales = [vdupq_n_s32(0); 16];
            for q in 0..64 / F::SUB {
                let four = vreinterpretq_s32_u32(load_wide(words, 1 + q));
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
        // SAFETY: each 32 weights have four words, after the scales; the table is 16 readable bytes.
        unsafe {
            let bytes = load(words, F::NIBBLES + 4 * (4 * half + RUN) + g % 4);
            // Low nibbles first; a shift to the left by a negative number goes to the right.
            let nibbles = vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-4 * (g / 4) as i8)), vdupq_n_u8(15));
            vqtbl1q_s8(read(F::TABLE.as_ptr().cast()), nibbles)
        }
    }
}
