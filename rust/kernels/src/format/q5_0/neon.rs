//! Q5_0 codes in NEON registers.

use std::arch::aarch64::*;

use super::Q5_0;
use crate::matmul::neon::{Small128, add_where, load, nibbles, read};

impl Small128 for Q5_0 {
    const MOST: i32 = 31;

    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> int8x16_t {
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
pub(in crate::format) unsafe fn five_bits<const G: usize>(words: *const u8) -> int8x16_t {
    // SAFETY: passed on; the constant is 16 readable bytes.
    unsafe {
        let own_bit = vreinterpretq_u8_u32(vdupq_n_u32(if G.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010 }));
        let pick = const { pick(G / 2) };
        let spread = vqtbl1q_u8(load(words, 0), read(pick.as_ptr()));
        vreinterpretq_s8_u8(add_where(nibbles::<G>(words, 1), spread, own_bit, 16))
    }
}

/// Indices that copy byte `byte` of each 32-bit lane into all four bytes of the lane.
const fn pick(byte: usize) -> [u8; 16] {
    let mut indices = [0; 16];
    let mut i = 0;
    while i < 16 {
        indices[i] = (i / 4 * 4 + byte) as u8;
        i += 1;
    }
    indices
}
