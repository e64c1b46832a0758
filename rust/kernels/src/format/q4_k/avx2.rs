//! Q4_K in AVX2 registers.

use std::arch::x86_64::*;

use super::Q4K;
use crate::matmul::avx2::{Super256, load, run_of_nibbles};

impl Super256 for Q4K {
    const MOST: i32 = 15;
    const SUB: usize = 32;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m256i; 16] {
        // SAFETY: three words of scales by the caller.
        unsafe { six_bit_scales(words) }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m256i; 8] {
        // SAFETY: three words of scales by the caller.
        unsafe { six_bit_mins(words) }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m256i; 8] {
        // SAFETY: two sub-blocks share eight words, after the three of scales.
        unsafe { sub_nibbles::<RUN>(words, 3, half) }
    }
}

/// Nibbles of sub-block `4 · half + RUN`, of words that start at `first`.
///
/// # Safety
/// `words` must have the words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn sub_nibbles<const RUN: usize>(
    words: *const u8,
    first: usize,
    half: usize,
) -> [__m256i; 8] {
    let at = first + 8 * (2 * half + RUN / 2);
    // SAFETY: passed on.
    unsafe {
        if RUN.is_multiple_of(2) { run_of_nibbles::<false>(words, at) } else { run_of_nibbles::<true>(words, at) }
    }
}

/// Byte j of each lane of the result is the scale of sub-block j, and of sub-block 4 + j.
#[inline(always)]
unsafe fn packed_scales(words: *const u8) -> [__m256i; 2] {
    // SAFETY: three words by the caller.
    unsafe {
        let (first, last) = (load(words, 0), load(words, 2));
        let low = _mm256_and_si256(last, _mm256_set1_epi32(0x0f0f_0f0f));
        let high = _mm256_and_si256(_mm256_srli_epi32::<2>(first), _mm256_set1_epi32(0x3030_3030));
        [_mm256_and_si256(first, _mm256_set1_epi32(0x3f3f_3f3f)), _mm256_or_si256(low, high)]
    }
}

/// Likewise the minimums.
#[inline(always)]
unsafe fn packed_mins(words: *const u8) -> [__m256i; 2] {
    // SAFETY: three words by the caller.
    unsafe {
        let (second, last) = (load(words, 1), load(words, 2));
        let low = _mm256_and_si256(_mm256_srli_epi32::<4>(last), _mm256_set1_epi32(0x0f0f_0f0f));
        let high = _mm256_and_si256(_mm256_srli_epi32::<2>(second), _mm256_set1_epi32(0x3030_3030));
        [_mm256_and_si256(second, _mm256_set1_epi32(0x3f3f_3f3f)), _mm256_or_si256(low, high)]
    }
}

/// The eight six-bit scales of words 0 to 2 as 32-bit lanes, then padding.
///
/// # Safety
/// `words` must have three words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn six_bit_scales(words: *const u8) -> [__m256i; 16] {
    // SAFETY: passed on.
    unsafe {
        let mask = _mm256_set1_epi32(255);
        let mut scales = [_mm256_setzero_si256(); 16];
        for (q, four) in packed_scales(words).into_iter().enumerate() {
            scales[4 * q] = _mm256_and_si256(four, mask);
            scales[4 * q + 1] = _mm256_and_si256(_mm256_srli_epi32::<8>(four), mask);
            scales[4 * q + 2] = _mm256_and_si256(_mm256_srli_epi32::<16>(four), mask);
            scales[4 * q + 3] = _mm256_srli_epi32::<24>(four);
        }
        scales
    }
}

/// The eight six-bit minimums as pairs (0, 2), (1, 3), (4, 6), (5, 7) of 16-bit lanes, then padding.
///
/// # Safety
/// As [`six_bit_scales`].
#[inline(always)]
pub(in crate::format) unsafe fn six_bit_mins(words: *const u8) -> [__m256i; 8] {
    // SAFETY: passed on.
    unsafe {
        let mask = _mm256_set1_epi32(0x00ff_00ff);
        let mut mins = [_mm256_setzero_si256(); 8];
        for (q, four) in packed_mins(words).into_iter().enumerate() {
            mins[2 * q] = _mm256_and_si256(four, mask);
            mins[2 * q + 1] = _mm256_and_si256(_mm256_srli_epi32::<8>(four), mask);
        }
        mins
    }
}
