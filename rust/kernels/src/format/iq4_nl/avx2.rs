//! IQ4_NL levels in AVX2 registers: nibbles through a byte shuffle of the table.

use std::arch::x86_64::*;

use super::{Iq4Nl, TABLE};
use crate::matmul::avx2::{Small256, nibbles};

impl Small256 for Iq4Nl {
    const MOST: i32 = 128;

    #[inline(always)]
    unsafe fn codes(words: *const u8) -> [__m256i; 8] {
        // SAFETY: four words by the caller.
        unsafe { levels(&TABLE, words, 0) }
    }
}

/// What a table of bytes says to a 32-wide block of nibbles in words `first .. first + 4`.
///
/// # Safety
/// `words` must have those words of 16 rows.
#[inline(always)]
pub(in crate::format) unsafe fn levels<T>(table: &[T; 16], words: *const u8, first: usize) -> [__m256i; 8] {
    // SAFETY: the words by the caller; the table is 16 readable bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        nibbles(words, first).map(
            #[inline(always)]
            |n| _mm256_shuffle_epi8(table, n),
        )
    }
}
