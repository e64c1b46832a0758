//! IQ4_NL levels in NEON registers: nibbles through a byte look-up in the table.

use std::arch::aarch64::*;

use super::{Iq4Nl, TABLE};
use crate::matmul::neon::{Small128, nibbles, read};

impl Small128 for Iq4Nl {
    const MOST: i32 = 128;

    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> int8x16_t {
        // SAFETY: four words by the caller; the table is 16 readable bytes.
        unsafe { vqtbl1q_s8(read(TABLE.as_ptr().cast()), nibbles::<G>(words, 0)) }
    }
}
