//! Q5_K in AVX2 registers.

use std::arch::x86_64::*;

use super::Q5K;
use crate::format::q4_k::avx2::{six_bit_mins, six_bit_scales, sub_nibbles};
use crate::matmul::avx2::{Super256, add_where, load};

impl Super256 for Q5K {
    const MOST: i32 = 31;
    const SUB: usize = 32;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m256i; 16] {
        // SAFETY: three words of scales by the caller.
        unsafe { six_bit_scales(words) }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m256i; 8] {
        // SAFETY: three words of scales by the caller.
        unsafe { six_bit_mins(words) }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m256i; 8] {
        // SAFETY: eight words of fifth bits follow the scales, then the nibbles. Bit `4 · half + RUN` of a byte is this sub-block's.
        unsafe {
            let mut codes = sub_nibbles::<RUN>(words, 11, half);
            let bit = _mm256_set1_epi8((1u32 << (4 * half + RUN)) as u8 as i8);
            for (w, code) in codes.iter_mut().enumerate() {
                *code = add_where(*code, load(words, 3 + w), bit, 16);
            }
            codes
        }
    }
}
