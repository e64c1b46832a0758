//! Q4_1 codes in AVX2 registers.

use std::arch::x86_64::*;

use super::Q4_1;
use crate::matmul::avx2::{Small256, nibbles};

impl Small256 for Q4_1 {
    const MOST: i32 = 15;

    #[inline(always)]
    unsafe fn codes(words: *const u8) -> [__m256i; 8] {
        // SAFETY: four words by the caller.
        unsafe { nibbles(words, 0) }
    }
}
