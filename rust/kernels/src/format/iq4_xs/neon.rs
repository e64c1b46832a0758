//! IQ4_XS in NEON registers.

use std::arch::aarch64::*;

use super::Iq4Xs;
use crate::format::iq4_nl::TABLE;
use crate::matmul::neon::{Super128, load, load_wide, read};

impl Super128 for Iq4Xs {
    const MOST: i32 = 127;
    const SUB: usize = 32;

    #[inline(always)]
    unsafe fn scales(words: *const u8, halves: *const u8) -> [int32x4_t; 16] {
        // SAFETY: word 0 holds the low nibbles, half 1 the upper pairs, of 16 rows by the caller.
        unsafe {
            let low = load_wide(words, 0);
            let high = vmovl_u16(read(halves.add(32)));
            let mut scales = [vdupq_n_s32(0); 16];
            for (s, scale) in scales.iter_mut().take(8).enumerate() {
                // A shift to the left by a negative number goes to the right.
                let low = vandq_u32(vshlq_u32(low, vdupq_n_s32(-4 * s as i32)), vdupq_n_u32(15));
                let high = vandq_u32(vshlq_u32(high, vdupq_n_s32(-2 * s as i32)), vdupq_n_u32(3));
                let six = vorrq_u32(low, vshlq_n_u32::<4>(high));
                *scale = vsubq_s32(vreinterpretq_s32_u32(six), vdupq_n_s32(32));
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
        // SAFETY: sub-block `4 · half + RUN` has four words after the first, by the caller; the table is 16 readable bytes.
        unsafe {
            let bytes = load(words, 1 + 4 * (4 * half + RUN) + g % 4);
            // Low nibbles first; a shift to the left by a negative number goes to the right.
            let nibbles = vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-4 * (g / 4) as i8)), vdupq_n_u8(15));
            vqtbl1q_s8(read(TABLE.as_ptr().cast()), nibbles)
        }
    }
}
