//! Q5_0 codes in AVX2 registers.

use std::arch::x86_64::*;

use super::Q5_0;
use crate::matmul::avx2::{Small256, add_where, load, nibbles};

impl Small256 for Q5_0 {
    const MOST: i32 = 31;

    #[inline(always)]
    unsafe fn codes(words: *const u8) -> [__m256i; 8] {
        // SAFETY: five words by the caller.
        unsafe { five_bits(words) }
    }
}

/// Nibbles of words 1 to 4 with the fifth bits of word 0.
///
/// Bit i of word 0 belongs to weight i, so group g wants bits 4g to 4g + 3, one in each byte: its byte of the word is copied into all four bytes, and
/// byte j tests bit 4·(g % 2) + j.
///
/// # Safety
/// `words` must have five words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn five_bits(words: *const u8) -> [__m256i; 8] {
    // SAFETY: passed on.
    unsafe {
        let fifth = load(words, 0);
        let mut codes = nibbles(words, 1);
        // Byte j of a lane selects the byte that holds its bit: groups 0 and 1 lie in byte 0, groups 2 and 3 in byte 1, and so on.
        let own_bit = [_mm256_set1_epi32(0x0804_0201), _mm256_set1_epi32(0x8040_2010_u32 as i32)];
        for (g, code) in codes.iter_mut().enumerate() {
            let byte = (g / 2) as i32;
            let lane =
                _mm256_set_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0, 0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0);
            let pick = _mm256_add_epi32(lane, _mm256_set1_epi32(byte * 0x0101_0101));
            let spread = _mm256_shuffle_epi8(fifth, pick);
            *code = add_where(*code, spread, own_bit[g % 2], 16);
        }
        codes
    }
}
