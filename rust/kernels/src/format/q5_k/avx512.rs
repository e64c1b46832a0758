//! Q5_K in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q5K;
use crate::format::q4_k::avx512::{six_bit_mins, six_bit_scales};
use crate::matmul::avx512::{Super512, both_nibbles, load};

impl Super512 for Q5K {
    const SUB: usize = 32;
    const RUNS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m512i; 16] {
        // SAFETY: three words of scales by the caller.
        unsafe { six_bit_scales(words) }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m512i; 8] {
        // SAFETY: three words of scales by the caller.
        unsafe { six_bit_mins(words) }
    }

    #[inline(always)]
    unsafe fn codes<const P: usize, const G: usize>(words: *const u8, half: usize) -> [__m512i; 2] {
        // SAFETY: eight words of fifth bits follow the scales, then the nibbles. Bit s of a byte is sub-block s's.
        unsafe {
            let fifth = load(words, 3 + G);
            let codes = both_nibbles(words, 11 + 8 * (2 * half + P) + G);
            let bit = [
                _mm512_set1_epi8((1u32 << (4 * half + 2 * P)) as u8 as i8),
                _mm512_set1_epi8((1u32 << (4 * half + 2 * P + 1)) as u8 as i8),
            ];
            let more = _mm512_set1_epi8(16);
            [
                _mm512_mask_add_epi8(codes[0], _mm512_test_epi8_mask(fifth, bit[0]), codes[0], more),
                _mm512_mask_add_epi8(codes[1], _mm512_test_epi8_mask(fifth, bit[1]), codes[1], more),
            ]
        }
    }
}
