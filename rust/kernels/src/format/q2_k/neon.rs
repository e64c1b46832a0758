//! Q2_K in NEON registers.

use std::arch::aarch64::*;

use super::Q2K;
use crate::format::q3_k::neon::pair;
use crate::matmul::neon::{Super128, bytes, load, load_wide};

impl Super128 for Q2K {
    const MOST: i32 = 3;
    const SUB: usize = 16;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [int32x4_t; 16] {
        // SAFETY: words 0 to 3 hold a scale and a minimum a byte, by the caller.
        unsafe {
            let mut scales = [vdupq_n_s32(0); 16];
            for q in 0..4 {
                let four = bytes(vandq_u32(load_wide(words, q), vdupq_n_u32(0x0f0f_0f0f)));
                for (j, scale) in four.into_iter().enumerate() {
                    scales[4 * q + j] = vreinterpretq_s32_u32(scale);
                }
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn mins(words: *const u8) -> [int16x4_t; 16] {
        // SAFETY: words 0 to 3 hold a scale and a minimum a byte, by the caller.
        unsafe {
            let mut mins = [vdup_n_s16(0); 16];
            for q in 0..4 {
                let four = bytes(vreinterpretq_u32_u8(vshrq_n_u8::<4>(load(words, q))));
                for (j, min) in four.into_iter().enumerate() {
                    mins[4 * q + j] = vreinterpret_s16_u16(vmovn_u32(min));
                }
            }
            mins
        }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize, g: usize) -> int8x16_t {
        // SAFETY: 8 words of pairs a half, after the four of scales.
        unsafe { vreinterpretq_s8_u8(pair::<RUN>(words, 4 + 8 * half + g)) }
    }
}
