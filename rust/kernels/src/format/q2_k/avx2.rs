//! Q2_K in AVX2 registers.

use std::arch::x86_64::*;

use super::Q2K;
use crate::format::q3_k::avx2::pairs;
use crate::matmul::avx2::{Super256, load};

impl Super256 for Q2K {
    const MOST: i32 = 3;
    const SUB: usize = 16;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m256i; 16] {
        // SAFETY: words 0 to 3 hold a scale and a minimum a byte, by the caller.
        unsafe {
            let mask = _mm256_set1_epi32(15);
            let mut scales = [_mm256_setzero_si256(); 16];
            for q in 0..4 {
                let four = load(words, q);
                scales[4 * q] = _mm256_and_si256(four, mask);
                scales[4 * q + 1] = _mm256_and_si256(_mm256_srli_epi32::<8>(four), mask);
                scales[4 * q + 2] = _mm256_and_si256(_mm256_srli_epi32::<16>(four), mask);
                scales[4 * q + 3] = _mm256_and_si256(_mm256_srli_epi32::<24>(four), mask);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m256i; 8] {
        // SAFETY: words 0 to 3 hold a scale and a minimum a byte, by the caller. Pairs (0, 2) and (1, 3) of each word, as the activations' sums are paired.
        unsafe {
            let mask = _mm256_set1_epi32(0x000f_000f);
            let mut mins = [_mm256_setzero_si256(); 8];
            for q in 0..4 {
                let four = load(words, q);
                mins[2 * q] = _mm256_and_si256(_mm256_srli_epi32::<4>(four), mask);
                mins[2 * q + 1] = _mm256_and_si256(_mm256_srli_epi32::<12>(four), mask);
            }
            mins
        }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m256i; 8] {
        // SAFETY: 8 words of pairs a half, after the four of scales.
        unsafe { pairs::<RUN>(words, 4 + 8 * half) }
    }
}
