//! Q5_K in NEON registers.

use std::arch::aarch64::*;

use super::Q5K;
use crate::format::q4_k::neon::{six_bit_mins, six_bit_scales, sub_nibble};
use crate::matmul::neon::{Super128, add_where, load};

impl Super128 for Q5K {
    const MOST: i32 = 31;
    const SUB: usize = 32;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [int32x4_t; 16] {
        // SAFETY: three words of scales by the caller.
        unsafe { six_bit_scales(words) }
    }

    #[inline(always)]
    unsafe fn mins(words: *const u8) -> [int16x4_t; 16] {
        // SAFETY: three words of scales by the caller.
        unsafe { six_bit_mins(words) }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize, g: usize) -> int8x16_t {
        // SAFETY: eight words of fifth bits follow the scales, then the nibbles. Bit `4 · half + RUN` of a byte is this sub-block's.
        unsafe {
            let code = sub_nibble::<RUN>(words, 11 + g, half);
            vreinterpretq_s8_u8(add_where(code, load(words, 3 + g), vdupq_n_u8(1 << (4 * half + RUN)), 16))
        }
    }
}
