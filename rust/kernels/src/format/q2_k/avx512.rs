//! Q2_K in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q2K;
use crate::format::q3_k::avx512::two_pairs;
use crate::matmul::avx512::{Super512, load};

impl Super512 for Q2K {
    const SUB: usize = 16;
    const RUNS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m512i; 16] {
        // SAFETY: words 0 to 3 hold a scale and a minimum a byte, by the caller.
        unsafe {
            let mask = _mm512_set1_epi32(15);
            let mut scales = [_mm512_setzero_si512(); 16];
            for q in 0..4 {
                let four = load(words, q);
                scales[4 * q] = _mm512_and_si512(four, mask);
                scales[4 * q + 1] = _mm512_and_si512(_mm512_srli_epi32::<8>(four), mask);
                scales[4 * q + 2] = _mm512_and_si512(_mm512_srli_epi32::<16>(four), mask);
                scales[4 * q + 3] = _mm512_and_si512(_mm512_srli_epi32::<24>(four), mask);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m512i; 8] {
        // SAFETY: words 0 to 3 hold a scale and a minimum a byte, by the caller. Pairs (0, 2) and (1, 3) of each word, as the activations' sums are paired.
        unsafe {
            let mask = _mm512_set1_epi32(0x000f_000f);
            let mut mins = [_mm512_setzero_si512(); 8];
            for q in 0..4 {
                let four = load(words, q);
                mins[2 * q] = _mm512_and_si512(_mm512_srli_epi32::<4>(four), mask);
                mins[2 * q + 1] = _mm512_and_si512(_mm512_srli_epi32::<12>(four), mask);
            }
            mins
        }
    }

    #[inline(always)]
    unsafe fn codes<const P: usize, const G: usize>(words: *const u8, half: usize) -> [__m512i; 2] {
        // SAFETY: 8 words of pairs a half, after the four of scales.
        unsafe { two_pairs::<P>(words, 4 + 8 * half + G) }
    }
}
