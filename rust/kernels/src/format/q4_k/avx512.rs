//! Q4_K in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q4K;
use crate::matmul::avx512::{Super512, both_nibbles, load};

impl Super512 for Q4K {
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
        // SAFETY: two sub-blocks share eight words, after the three of scales.
        unsafe { both_nibbles(words, 3 + 8 * (2 * half + P) + G) }
    }
}

/// Byte j of each lane of the result is the scale of sub-block j, and of sub-block 4 + j.
#[inline(always)]
unsafe fn packed_scales(words: *const u8) -> [__m512i; 2] {
    // SAFETY: three words by the caller.
    unsafe {
        let (first, last) = (load(words, 0), load(words, 2));
        let low = _mm512_and_si512(last, _mm512_set1_epi32(0x0f0f_0f0f));
        let high = _mm512_and_si512(_mm512_srli_epi32::<2>(first), _mm512_set1_epi32(0x3030_3030));
        [_mm512_and_si512(first, _mm512_set1_epi32(0x3f3f_3f3f)), _mm512_or_si512(low, high)]
    }
}

/// Likewise the minimums.
#[inline(always)]
unsafe fn packed_mins(words: *const u8) -> [__m512i; 2] {
    // SAFETY: three words by the caller.
    unsafe {
        let (second, last) = (load(words, 1), load(words, 2));
        let low = _mm512_and_si512(_mm512_srli_epi32::<4>(last), _mm512_set1_epi32(0x0f0f_0f0f));
        let high = _mm512_and_si512(_mm512_srli_epi32::<2>(second), _mm512_set1_epi32(0x3030_3030));
        [_mm512_and_si512(second, _mm512_set1_epi32(0x3f3f_3f3f)), _mm512_or_si512(low, high)]
    }
}

/// The eight six-bit scales of words 0 to 2 as 32-bit lanes, then padding.
///
/// # Safety
/// `words` must have three words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn six_bit_scales(words: *const u8) -> [__m512i; 16] {
    // SAFETY: passed on.
    unsafe {
        let mask = _mm512_set1_epi32(255);
        let mut scales = [_mm512_setzero_si512(); 16];
        for (q, four) in packed_scales(words).into_iter().enumerate() {
            scales[4 * q] = _mm512_and_si512(four, mask);
            scales[4 * q + 1] = _mm512_and_si512(_mm512_srli_epi32::<8>(four), mask);
            scales[4 * q + 2] = _mm512_and_si512(_mm512_srli_epi32::<16>(four), mask);
            scales[4 * q + 3] = _mm512_srli_epi32::<24>(four);
        }
        scales
    }
}

/// The eight six-bit minimums as pairs (0, 2), (1, 3), (4, 6), (5, 7) of 16-bit lanes, then padding.
///
/// # Safety
/// As [`six_bit_scales`].
#[inline(always)]
pub(in crate::format) unsafe fn six_bit_mins(words: *const u8) -> [__m512i; 8] {
    // SAFETY: passed on.
    unsafe {
        let mask = _mm512_set1_epi32(0x00ff_00ff);
        let mut mins = [_mm512_setzero_si512(); 8];
        for (q, four) in packed_mins(words).into_iter().enumerate() {
            mins[2 * q] = _mm512_and_si512(four, mask);
            mins[2 * q + 1] = _mm512_and_si512(_mm512_srli_epi32::<8>(four), mask);
        }
        mins
    }
}
