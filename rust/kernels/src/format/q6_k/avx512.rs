//! Q6_K in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q6K;
use crate::matmul::avx512::{Super512, both_nibbles, load};

impl Super512 for Q6K {
    const SUB: usize = 16;
    const RUNS: [[usize; 2]; 2] = [[0, 2], [1, 3]];

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m512i; 16] {
        // SAFETY: words 48 to 51 hold the scales, one signed byte each.
        unsafe {
            let mut scales = [_mm512_setzero_si512(); 16];
            for q in 0..4 {
                let four = load(words, 48 + q);
                scales[4 * q] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(four));
                scales[4 * q + 1] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(four));
                scales[4 * q + 2] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(four));
                scales[4 * q + 3] = _mm512_srai_epi32::<24>(four);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m512i; 8] {
        // SAFETY: words 48 to 51 hold the scales, one signed byte each. Bytes 0 and 2 of a word, then 1 and 3, sign-extended.
        unsafe {
            let mut pairs = [_mm512_setzero_si512(); 8];
            for q in 0..4 {
                let four = load(words, 48 + q);
                pairs[2 * q] = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(four));
                pairs[2 * q + 1] = _mm512_srai_epi16::<8>(four);
            }
            pairs
        }
    }

    #[inline(always)]
    unsafe fn codes<const P: usize, const G: usize>(words: *const u8, half: usize) -> [__m512i; 2] {
        // SAFETY: 16 words of nibbles and 8 of upper pairs a half, by the caller.
        unsafe {
            let codes = both_nibbles(words, 16 * half + 8 * P + G);
            let pairs = load(words, 32 + 8 * half + G);
            let mask = _mm512_set1_epi8(0x30);
            let upper = if P == 0 {
                [_mm512_slli_epi16::<4>(pairs), pairs]
            } else {
                [_mm512_slli_epi16::<2>(pairs), _mm512_srli_epi16::<2>(pairs)]
            };
            // code | (upper & mask)
            [
                _mm512_ternarylogic_epi32::<0xf8>(codes[0], upper[0], mask),
                _mm512_ternarylogic_epi32::<0xf8>(codes[1], upper[1], mask),
            ]
        }
    }
}
