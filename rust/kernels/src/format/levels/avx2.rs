//! Levels in AVX2 registers: nibbles through a byte shuffle of the table.

use std::arch::x86_64::*;

use super::Levels;
use crate::format::iq4_nl::avx2::levels;
use crate::matmul::avx2::{Super256, load};

impl<F: Levels> Super256 for F {
    const MOST: i32 = 2 * F::OFFSET - 1;
    const SUB: usize = F::SUB;

    #[inline(always)]
    unsafe fn scale(words: *const u8, _halves: *const u8) -> __m256 {
        // SAFETY: word 0 holds the scales of the rows, as f32.
        unsafe { _mm256_castsi256_ps(load(words, 0)) }
    }

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m256i; 16] {
        // SAFETY: the words after the first hold the scales, one signed byte each.
        unsafe {
            let mut scales = [_mm256_setzero_si256(); 16];
            for q in 0..64 / F::SUB {
                let four = load(words, 1 + q);
                scales[4 * q] = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(four));
                scales[4 * q + 1] = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(four));
                scales[4 * q + 2] = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<8>(four));
                scales[4 * q + 3] = _mm256_srai_epi32::<24>(four);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m256i; 8] {
        // SAFETY: as in `scales`. Bytes 0 and 2 of a word, then 1 and 3, sign-extended.
        unsafe {
            let mut pairs = [_mm256_setzero_si256(); 8];
            for q in 0..64 / F::SUB {
                let four = load(words, 1 + q);
                pairs[2 * q] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(four));
                pairs[2 * q + 1] = _mm256_srai_epi16::<8>(four);
            }
            pairs
        }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m256i; 8] {
        // SAFETY: each 32 weights have four words, after the scales.
        unsafe { levels(F::CODES, words, F::NIBBLES + 4 * (4 * half + RUN)) }
    }
}
