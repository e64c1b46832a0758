//! IQ4_NL codes in AVX-512 registers: nibbles through a byte shuffle of the table.

use std::arch::x86_64::*;

use super::{Iq4Nl, LEVELS};
use crate::matmul::avx512::{Small512, nibbles};

impl Small512 for Iq4Nl {
    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> __m512i {
        // SAFETY: four words by the caller.
        unsafe { levels::<G>(&LEVELS, words, 0) }
    }
}

/// What a table says to group `G` of a 32-wide block of nibbles in words `first .. first + 4`.
///
/// # Safety
/// `words` must have those words of 16 rows, `G` be below 8.
#[inline(always)]
pub(in crate::format) unsafe fn levels<const G: usize>(table: &[u8; 16], words: *const u8, first: usize) -> __m512i {
    // SAFETY: the words by the caller; the table is 16 readable bytes.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(table, nibbles::<G>(words, first))
    }
}
