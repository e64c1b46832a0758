//! Q3_K in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q3K;
use crate::matmul::avx512::{Super512, load};

impl Super512 for Q3K {
    const SUB: usize = 16;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m512i; 16] {
        // SAFETY: words 24 and 25 hold the low nibbles, word 26 the upper pairs, by the caller.
        unsafe {
            let nibble = _mm512_set1_epi32(0x0f0f_0f0f);
            let (first, second, upper) = (load(words, 24), load(words, 25), load(words, 26));
            let low = [
                _mm512_and_si512(first, nibble),
                _mm512_and_si512(second, nibble),
                _mm512_and_si512(_mm512_srli_epi32::<4>(first), nibble),
                _mm512_and_si512(_mm512_srli_epi32::<4>(second), nibble),
            ];
            let pair = _mm512_set1_epi32(0x3030_3030);
            let high = [
                _mm512_and_si512(_mm512_slli_epi32::<4>(upper), pair),
                _mm512_and_si512(_mm512_slli_epi32::<2>(upper), pair),
                _mm512_and_si512(upper, pair),
                _mm512_and_si512(_mm512_srli_epi32::<2>(upper), pair),
            ];
            let (byte, offset) = (_mm512_set1_epi32(255), _mm512_set1_epi32(32));
            let mut scales = [_mm512_setzero_si512(); 16];
            for q in 0..4 {
                let four = _mm512_or_si512(low[q], high[q]);
                scales[4 * q] = _mm512_sub_epi32(_mm512_and_si512(four, byte), offset);
                scales[4 * q + 1] = _mm512_sub_epi32(_mm512_and_si512(_mm512_srli_epi32::<8>(four), byte), offset);
                scales[4 * q + 2] = _mm512_sub_epi32(_mm512_and_si512(_mm512_srli_epi32::<16>(four), byte), offset);
                scales[4 * q + 3] = _mm512_sub_epi32(_mm512_srli_epi32::<24>(four), offset);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn mins(_words: *const u8) -> [__m512i; 8] {
        // SAFETY: no memory is touched.
        unsafe { [_mm512_setzero_si512(); 8] }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m512i; 8] {
        // SAFETY: words 0 to 7 hold the third bits, then 8 words of pairs a half, by the caller.
        unsafe {
            let mut codes = pairs::<RUN>(words, 8 + 8 * half);
            let bit = _mm512_set1_epi8((1u32 << (4 * half + RUN)) as u8 as i8);
            for (w, code) in codes.iter_mut().enumerate() {
                let set = _mm512_test_epi8_mask(load(words, w), bit);
                *code = _mm512_mask_add_epi8(*code, set, *code, _mm512_set1_epi8(4));
            }
            codes
        }
    }
}

/// Bit pair `RUN` of the bytes of words `first .. first + 8`.
///
/// # Safety
/// `words` must have those words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn pairs<const RUN: usize>(words: *const u8, first: usize) -> [__m512i; 8] {
    // SAFETY: passed on.
    unsafe {
        let mut codes = [_mm512_setzero_si512(); 8];
        for (w, code) in codes.iter_mut().enumerate() {
            let bytes = load(words, first + w);
            let shifted = match RUN {
                0 => bytes,
                1 => _mm512_srli_epi16::<2>(bytes),
                2 => _mm512_srli_epi16::<4>(bytes),
                _ => _mm512_srli_epi16::<6>(bytes),
            };
            *code = _mm512_and_si512(shifted, _mm512_set1_epi8(3));
        }
        codes
    }
}
