//! Q5_0 codes in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q5_0;
use crate::matmul::avx512::{Small512, load, nibbles};

impl Small512 for Q5_0 {
    #[inline(always)]
    unsafe fn codes(words: *const u8) -> [__m512i; 8] {
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
pub(in crate::format) unsafe fn five_bits(words: *const u8) -> [__m512i; 8] {
    // SAFETY: passed on.
    unsafe {
        let fifth = load(words, 0);
        let mut codes = nibbles(words, 1);
        // Byte j of a lane selects the byte that holds its bit: groups 0 and 1 lie in byte 0, groups 2 and 3 in byte 1, and so on.
        let own_bit = [_mm512_set1_epi32(0x0804_0201), _mm512_set1_epi32(0x8040_2010_u32 as i32)];
        let sixteen = _mm512_set1_epi8(16);
        for (g, code) in codes.iter_mut().enumerate() {
            let byte = (g / 2) as i32;
            let pick = _mm512_set4_epi32(
                0x0c0c_0c0c + byte * 0x0101_0101,
                0x0808_0808 + byte * 0x0101_0101,
                0x0404_0404 + byte * 0x0101_0101,
                byte * 0x0101_0101,
            );
            let spread = _mm512_shuffle_epi8(fifth, pick);
            let set = _mm512_test_epi8_mask(spread, own_bit[g % 2]);
            *code = _mm512_mask_add_epi8(*code, set, *code, sixteen);
        }
        codes
    }
}
