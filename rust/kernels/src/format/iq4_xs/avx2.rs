//! IQ4_XS in AVX2 registers.

use std::arch::x86_64::*;

use super::Iq4Xs;
use crate::format::iq4_nl::TABLE;
use crate::format::iq4_nl::avx2::levels;
use crate::matmul::avx2::{Super256, load};

impl Super256 for Iq4Xs {
    const MOST: i32 = 128;
    const SUB: usize = 32;

    #[inline(always)]
    unsafe fn scales(words: *const u8, halves: *const u8) -> [__m256i; 16] {
        // SAFETY: word 0 holds the low nibbles, half 1 the upper pairs, of 16 rows by the caller.
        unsafe {
            let low = load(words, 0);
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves.add(32).cast()));
            let mut scales = [_mm256_setzero_si256(); 16];
            for (s, scale) in scales.iter_mut().take(8).enumerate() {
                let low =
                    _mm256_and_si256(_mm256_srl_epi32(low, _mm_cvtsi32_si128(4 * s as i32)), _mm256_set1_epi32(15));
                let high =
                    _mm256_and_si256(_mm256_srl_epi32(high, _mm_cvtsi32_si128(2 * s as i32)), _mm256_set1_epi32(3));
                let six = _mm256_or_si256(low, _mm256_slli_epi32::<4>(high));
                *scale = _mm256_sub_epi32(six, _mm256_set1_epi32(32));
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn pairs(_words: *const u8, _halves: *const u8) -> [__m256i; 8] {
        // SAFETY: no memory is touched. Levels are signed already, so there is no offset to make good.
        unsafe { [_mm256_setzero_si256(); 8] }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m256i; 8] {
        // SAFETY: sub-block `4 · half + RUN` has four words after the first.
        unsafe { levels(&TABLE, words, 1 + 4 * (4 * half + RUN)) }
    }
}
