//! Q3_K in AVX2 registers.

use std::arch::x86_64::*;

use super::Q3K;
use crate::matmul::avx2::{Super256, add_where, load};

impl Super256 for Q3K {
    const MOST: i32 = 7;
    const SUB: usize = 16;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m256i; 16] {
        // SAFETY: passed on.
        unsafe {
            let (byte, offset) = (_mm256_set1_epi32(255), _mm256_set1_epi32(32));
            let mut scales = [_mm256_setzero_si256(); 16];
            for (q, four) in packed_scales(words).into_iter().enumerate() {
                scales[4 * q] = _mm256_sub_epi32(_mm256_and_si256(four, byte), offset);
                scales[4 * q + 1] = _mm256_sub_epi32(_mm256_and_si256(_mm256_srli_epi32::<8>(four), byte), offset);
                scales[4 * q + 2] = _mm256_sub_epi32(_mm256_and_si256(_mm256_srli_epi32::<16>(four), byte), offset);
                scales[4 * q + 3] = _mm256_sub_epi32(_mm256_srli_epi32::<24>(four), offset);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m256i; 8] {
        // SAFETY: passed on.
        unsafe {
            let (bytes, offset) = (_mm256_set1_epi16(255), _mm256_set1_epi16(32));
            let mut pairs = [_mm256_setzero_si256(); 8];
            for (q, four) in packed_scales(words).into_iter().enumerate() {
                pairs[2 * q] = _mm256_sub_epi16(_mm256_and_si256(four, bytes), offset);
                pairs[2 * q + 1] = _mm256_sub_epi16(_mm256_srli_epi16::<8>(four), offset);
            }
            pairs
        }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m256i; 8] {
        // SAFETY: words 0 to 7 hold the third bits, then 8 words of pairs a half, by the caller.
        unsafe {
            let mut codes = pairs::<RUN>(words, 8 + 8 * half);
            let bit = _mm256_set1_epi8((1u32 << (4 * half + RUN)) as u8 as i8);
            for (w, code) in codes.iter_mut().enumerate() {
                *code = add_where(*code, load(words, w), bit, 4);
            }
            codes
        }
    }
}

/// Byte j of word q is scale 4q + j, not yet less 32.
#[inline(always)]
unsafe fn packed_scales(words: *const u8) -> [__m256i; 4] {
    // SAFETY: words 24 and 25 hold the low nibbles, word 26 the upper pairs, by the caller.
    unsafe {
        let nibble = _mm256_set1_epi32(0x0f0f_0f0f);
        let (first, second, upper) = (load(words, 24), load(words, 25), load(words, 26));
        let low = [
            _mm256_and_si256(first, nibble),
            _mm256_and_si256(second, nibble),
            _mm256_and_si256(_mm256_srli_epi32::<4>(first), nibble),
            _mm256_and_si256(_mm256_srli_epi32::<4>(second), nibble),
        ];
        let pair = _mm256_set1_epi32(0x3030_3030);
        [
            _mm256_or_si256(low[0], _mm256_and_si256(_mm256_slli_epi32::<4>(upper), pair)),
            _mm256_or_si256(low[1], _mm256_and_si256(_mm256_slli_epi32::<2>(upper), pair)),
            _mm256_or_si256(low[2], _mm256_and_si256(upper, pair)),
            _mm256_or_si256(low[3], _mm256_and_si256(_mm256_srli_epi32::<2>(upper), pair)),
        ]
    }
}

/// Bit pair `RUN` of the bytes of words `first .. first + 8`.
///
/// # Safety
/// `words` must have those words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn pairs<const RUN: usize>(words: *const u8, first: usize) -> [__m256i; 8] {
    // SAFETY: passed on.
    unsafe {
        let mut codes = [_mm256_setzero_si256(); 8];
        for (w, code) in codes.iter_mut().enumerate() {
            let bytes = load(words, first + w);
            let shifted = match RUN {
                0 => bytes,
                1 => _mm256_srli_epi16::<2>(bytes),
                2 => _mm256_srli_epi16::<4>(bytes),
                _ => _mm256_srli_epi16::<6>(bytes),
            };
            *code = _mm256_and_si256(shifted, _mm256_set1_epi8(3));
        }
        codes
    }
}
