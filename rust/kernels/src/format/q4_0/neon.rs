//! Q4_0 codes in NEON registers.

use std::arch::aarch64::*;

use super::Q4_0;
use crate::matmul::neon::{Small128, nibbles};

impl Small128 for Q4_0 {
    const MOST: i32 = 15;

    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> int8x16_t {
        // SAFETY: four words by the caller.
        unsafe { vreinterpretq_s8_u8(nibbles::<G>(words, 0)) }
    }
}
