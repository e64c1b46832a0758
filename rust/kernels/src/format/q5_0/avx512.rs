//! Q5_0 codes in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q5_0;
use crate::matmul::avx512::{Small512, load, nibbles};

impl Small512 for Q5_0 {
    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> __m512i {
        // SAFETY: five words by the caller.
        unsafe { five_bits::<G>(words) }
    }
}

/// Nibbles of words 1 to 4 with the fifth bits of word 0.
///
/// Bit i of word 0 belongs to weight i, so group G wants bits 4G to 4G + 3, one in each byte: its byte of the word is copied into all four bytes, and
/// byte j tests bit 4·(G % 2) + j.
///
/// # Safety
/// `words` must have five words of 16 rows, `G` be below 8.
#[inline(always)]
pub(in crate::format) unsafe fn five_bits<const G: usize>(words: *const u8) -> __m512i {
    // SAFETY: passed on.
    unsafe {
        let own_bit = _mm512_set1_epi32(if G.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010_u32 as i32 });
        let byte = 0x0101_0101 * (G / 2) as i32;
        let pick = _mm512_set4_epi32(0x0c0c_0c0c + byte, 0x0808_0808 + byte, 0x0404_0404 + byte, byte);
        let set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(load(words, 0), pick), own_bit);
        let code = nibbles::<G>(words, 1);
        _mm512_mask_add_epi8(code, set, code, _mm512_set1_epi8(16))
    }
}
