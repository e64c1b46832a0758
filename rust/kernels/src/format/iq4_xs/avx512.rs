//! IQ4_XS in AVX-512 registers.

use std::arch::x86_64::*;

use super::Iq4Xs;
use crate::format::iq4_nl::LEVELS;
use crate::format::iq4_nl::avx512::levels;
use crate::matmul::avx512::{Super512, load};

impl Super512 for Iq4Xs {
    const SUB: usize = 32;
    const RUNS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

    #[inline(always)]
    unsafe fn scales(words: *const u8, halves: *const u8) -> [__m512i; 16] {
        // SAFETY: word 0 holds the low nibbles, half 1 the upper pairs, of 16 rows by the caller.
        unsafe {
            let low = load(words, 0);
            let high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves.add(32).cast()));
            let mut scales = [_mm512_setzero_si512(); 16];
            for (s, scale) in scales.iter_mut().take(8).enumerate() {
                let low =
                    _mm512_and_si512(_mm512_srl_epi32(low, _mm_cvtsi32_si128(4 * s as i32)), _mm512_set1_epi32(15));
                let high =
                    _mm512_and_si512(_mm512_srl_epi32(high, _mm_cvtsi32_si128(2 * s as i32)), _mm512_set1_epi32(3));
                let six = _mm512_or_si512(low, _mm512_slli_epi32::<4>(high));
                *scale = _mm512_sub_epi32(six, _mm512_set1_epi32(32));
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, halves: *const u8) -> [__m512i; 8] {
        // SAFETY: word 0 holds the low nibbles, half 1 the upper pairs, of 16 rows by the caller. Pair q holds scales 4·(q/2) + q%2 and two further.
        unsafe {
            let scales = Self::scales(words, halves);
            let mut pairs = [_mm512_setzero_si512(); 8];
            for (q, pair) in pairs.iter_mut().enumerate().take(4) {
                let first = crate::act::pair_first(q);
                let low = _mm512_and_si512(scales[first], _mm512_set1_epi32(0xffff));
                *pair = _mm512_or_si512(low, _mm512_slli_epi32::<16>(scales[first + 2]));
            }
            pairs
        }
    }

    #[inline(always)]
    unsafe fn codes<const P: usize, const G: usize>(words: *const u8, half: usize) -> [__m512i; 2] {
        // SAFETY: each sub-block has four words, after the first.
        unsafe {
            let first = 1 + 4 * (4 * half + 2 * P);
            [levels::<G>(&LEVELS, words, first), levels::<G>(&LEVELS, words, first + 4)]
        }
    }
}
