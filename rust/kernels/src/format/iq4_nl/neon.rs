//! IQ4_NL levels in NEON registers: nibbles through a byte look-up in the table.

use std::arch::aarch64::*;

use super::{Iq4Nl, TABLE};
use crate::matmul::neon::{Small128, nibbles};

impl Small128 for Iq4Nl {
    const MOST: i32 = 128;

    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> int8x16_t {
        // SAFETY: four words by the caller.
        unsafe { levels::<G>(words, 0) }
    }
}

/// Signed levels of group `G` of a 32-wide block of nibbles in words `first .. first + 4`.
///
/// # Safety
/// `words` must have those words of 16 rows, `G` be below 8.
#[inline(always)]
pub(in crate::format) unsafe fn levels<const G: usize>(words: *const u8, first: usize) -> int8x16_t {
    // SAFETY: the words by the caller; the table is 16 readable bytes.
    unsafe { vqtbl1q_s8(vld1q_s8(TABLE.as_ptr()), nibbles::<G>(words, first)) }
}
