//! Q4_K in NEON registers.

use std::arch::aarch64::*;

use super::Q4K;
use crate::matmul::neon::{Super128, bytes, load_wide, nibble};

impl Super128 for Q4K {
    const MOST: i32 = 15;
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
        // SAFETY: two sub-blocks share eight words, after the three of scales.
        unsafe { vreinterpretq_s8_u8(sub_nibble::<RUN>(words, 3 + g, half)) }
    }
}

/// Nibbles of a group of sub-block `4 · half + RUN`; `first` is that group's word of the first sub-block.
///
/// # Safety
/// `words` must have the words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn sub_nibble<const RUN: usize>(
    words: *const u8,
    first: usize,
    half: usize,
) -> uint8x16_t {
    let at = first + 8 * (2 * half + RUN / 2);
    // SAFETY: passed on.
    unsafe { if RUN.is_multiple_of(2) { nibble::<false>(words, at) } else { nibble::<true>(words, at) } }
}

/// The eight six-bit scales of words 0 to 2, then padding.
///
/// # Safety
/// `words` must have three words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn six_bit_scales(words: *const u8) -> [int32x4_t; 16] {
    // SAFETY: passed on.
    unsafe {
        let (first, last) = (load_wide(words, 0), load_wide(words, 2));
        let low = vandq_u32(last, vdupq_n_u32(0x0f0f_0f0f));
        let high = vandq_u32(vshrq_n_u32::<2>(first), vdupq_n_u32(0x3030_3030));
        let packed = [vandq_u32(first, vdupq_n_u32(0x3f3f_3f3f)), vorrq_u32(low, high)];
        let mut scales = [vdupq_n_s32(0); 16];
        for (q, four) in packed.into_iter().enumerate() {
            for (j, scale) in bytes(four).into_iter().enumerate() {
                scales[4 * q + j] = vreinterpretq_s32_u32(scale);
            }
        }
        scales
    }
}

/// The eight six-bit minimums of words 0 to 2, then padding.
///
/// # Safety
/// As [`six_bit_scales`].
#[inline(always)]
pub(in crate::format) unsafe fn six_bit_mins(words: *const u8) -> [int16x4_t; 16] {
    // SAFETY: passed on.
    unsafe {
        let (second, last) = (load_wide(words, 1), load_wide(words, 2));
        let low = vandq_u32(vshrq_n_u32::<4>(last), vdupq_n_u32(0x0f0f_0f0f));
        let high = vandq_u32(vshrq_n_u32::<2>(second), vdupq_n_u32(0x3030_3030));
        let packed = [vandq_u32(second, vdupq_n_u32(0x3f3f_3f3f)), vorrq_u32(low, high)];
        let mut mins = [vdup_n_s16(0); 16];
        for (q, four) in packed.into_iter().enumerate() {
            for (j, min) in bytes(four).into_iter().enumerate() {
                mins[4 * q + j] = vreinterpret_s16_u16(vmovn_u32(min));
            }
        }
        mins
    }
}
