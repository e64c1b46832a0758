//! Levels in AVX-512 registers: nibbles through a byte shuffle of the table.

use std::arch::x86_64::*;

use super::Levels;
use crate::format::iq4_nl::avx512::levels;
use crate::matmul::avx512::{Super512, load};

impl<F: Levels> Super512 for F {
    const SUB: usize = F::SUB;
    const RUNS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

    #[inline(always)]
    unsafe fn scale(words: *const u8, _halves: *const u8) -> __m512 {
        // SAFETY: word 0 holds the scales of 16 rows, as f32.
        unsafe { _mm512_castsi512_ps(load(words, 0)) }
    }

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m512i; 16] {
        // SAFETY: the words after the first hold the scales, one signed byte each.
        unsafe {
            let mut scales = [_mm512_setzero_si512(); 16];
            for q in 0..64 / F::SUB {
                let four = load(words, 1 + q);
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
        // SAFETY: as in `scales`. Bytes 0 and 2 of a word, then 1 and 3, sign-extended.
        unsafe {
            let mut pairs = [_mm512_setzero_si512(); 8];
            for q in 0..64 / F::SUB {
                let four = load(words, 1 + q);
                pairs[2 * q] = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(four));
                pairs[2 * q + 1] = _mm512_srai_epi16::<8>(four);
            }
            pairs
        }
    }

    #[inline(always)]
    unsafe fn codes<const P: usize, const G: usize>(words: *const u8, half: usize) -> [__m512i; 2] {
        // SAFETY: each 32 weights have four words, after the scales.
        unsafe {
            let first = F::NIBBLES + 4 * (4 * half + 2 * P);
            [levels::<G>(F::CODES, words, first), levels::<G>(F::CODES, words, first + 4)]
        }
    }
}
