//! Q8_0 levels in NEON registers: the signed bytes as they are.

use std::arch::aarch64::*;

use super::Q8_0;
use crate::matmul::neon::{Small128, load};

impl Small128 for Q8_0 {
    const MOST: i32 = 128;

    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> int8x16_t {
        // SAFETY: eight words by the caller.
        unsafe { vreinterpretq_s8_u8(load(words, G)) }
    }
}
