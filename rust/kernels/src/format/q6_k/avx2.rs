//! Q6_K in AVX2 registers.

use std::arch::x86_64::*;

use super::Q6K;
use crate::matmul::avx2::{Super256, load, run_of_nibbles};

impl Super256 for Q6K {
    const MOST: i32 = 63;
    const SUB: usize = 16;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m256i; 16] {
        // SAFETY: words 48 to 51 hold the scales, one signed byte each.
        unsafe {
            let mut scales = [_mm256_setzero_si256(); 16];
            for q in 0..4 {
                let four = load(words, 48 + q);
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
        // SAFETY: words 48 to 51 hold the scales, one signed byte each. Bytes 0 and 2 of a word, then 1 and 3, sign-extended.
        unsafe {
            let mut pairs = [_mm256_setzero_si256(); 8];
            for q in 0..4 {
                let four = load(words, 48 + q);
                pairs[2 * q] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(four));
                pairs[2 * q + 1] = _mm256_srai_epi16::<8>(four);
            }
            pairs
        }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m256i; 8] {
        // SAFETY: 16 words of nibbles and 8 of upper pairs a half, by the caller.
        unsafe {
            let at = 16 * half + 8 * (RUN % 2);
            let mut codes =
                if RUN < 2 { run_of_nibbles::<false>(words, at) } else { run_of_nibbles::<true>(words, at) };
            let mask = _mm256_set1_epi8(0x30);
            for (w, code) in codes.iter_mut().enumerate() {
                let pairs = load(words, 32 + 8 * half + w);
                let upper = match RUN {
                    0 => _mm256_slli_epi16::<4>(pairs),
                    1 => _mm256_slli_epi16::<2>(pairs),
                    2 => pairs,
                    _ => _mm256_srli_epi16::<2>(pairs),
                };
                *code = _mm256_or_si256(*code, _mm256_and_si256(upper, mask));
            }
            codes
        }
    }
}
