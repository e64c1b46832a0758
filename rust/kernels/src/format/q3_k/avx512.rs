//! Q3_K in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q3K;
use crate::matmul::avx512::{Super512, load};

impl Super512 for Q3K {
    const SUB: usize = 16;
    const RUNS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m512i; 16] {
        // SAFETY: passed on.
        unsafe {
            let (byte, offset) = (_mm512_set1_epi32(255), _mm512_set1_epi32(32));
            let mut scales = [_mm512_setzero_si512(); 16];
            for (q, four) in packed_scales(words).into_iter().enumerate() {
                scales[4 * q] = _mm512_sub_epi32(_mm512_and_si512(four, byte), offset);
                scales[4 * q + 1] = _mm512_sub_epi32(_mm512_and_si512(_mm512_srli_epi32::<8>(four), byte), offset);
                scales[4 * q + 2] = _mm512_sub_epi32(_mm512_and_si512(_mm512_srli_epi32::<16>(four), byte), offset);
                scales[4 * q + 3] = _mm512_sub_epi32(_mm512_srli_epi32::<24>(four), offset);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn pairs(words: *const u8, _halves: *const u8) -> [__m512i; 8] {
        // SAFETY: passed on.
        unsafe {
            let (bytes, offset) = (_mm512_set1_epi16(255), _mm512_set1_epi16(32));
            let mut pairs = [_mm512_setzero_si512(); 8];
            for (q, four) in packed_scales(words).into_iter().enumerate() {
                pairs[2 * q] = _mm512_sub_epi16(_mm512_and_si512(four, bytes), offset);
                pairs[2 * q + 1] = _mm512_sub_epi16(_mm512_srli_epi16::<8>(four), offset);
            }
            pairs
        }
    }

    #[inline(always)]
    unsafe fn codes<const P: usize, const G: usize>(words: *const u8, half: usize) -> [__m512i; 2] {
        // SAFETY: words 0 to 7 hold the third bits, then 8 words of pairs a half, by the caller.
        unsafe {
            let third = load(words, G);
            let codes = two_pairs::<P>(words, 8 + 8 * half + G);
            let bit = [
                _mm512_set1_epi8((1u32 << (4 * half + 2 * P)) as u8 as i8),
                _mm512_set1_epi8((1u32 << (4 * half + 2 * P + 1)) as u8 as i8),
            ];
            let more = _mm512_set1_epi8(4);
            [
                _mm512_mask_add_epi8(codes[0], _mm512_test_epi8_mask(third, bit[0]), codes[0], more),
                _mm512_mask_add_epi8(codes[1], _mm512_test_epi8_mask(third, bit[1]), codes[1], more),
            ]
        }
    }
}

/// Byte j of word q is scale 4q + j, not yet less 32.
#[inline(always)]
unsafe fn packed_scales(words: *const u8) -> [__m512i; 4] {
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
        [
            _mm512_or_si512(low[0], _mm512_and_si512(_mm512_slli_epi32::<4>(upper), pair)),
            _mm512_or_si512(low[1], _mm512_and_si512(_mm512_slli_epi32::<2>(upper), pair)),
            _mm512_or_si512(low[2], _mm512_and_si512(upper, pair)),
            _mm512_or_si512(low[3], _mm512_and_si512(_mm512_srli_epi32::<2>(upper), pair)),
        ]
    }
}

/// Bit pairs 2P and 2P + 1 of the bytes of a word.
///
/// # Safety
/// `words` must have word `w` of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn two_pairs<const P: usize>(words: *const u8, w: usize) -> [__m512i; 2] {
    // SAFETY: passed on.
    unsafe {
        let (bytes, mask) = (load(words, w), _mm512_set1_epi8(3));
        let shifted = if P == 0 {
            [bytes, _mm512_srli_epi16::<2>(bytes)]
        } else {
            [_mm512_srli_epi16::<4>(bytes), _mm512_srli_epi16::<6>(bytes)]
        };
        [_mm512_and_si512(shifted[0], mask), _mm512_and_si512(shifted[1], mask)]
    }
}
