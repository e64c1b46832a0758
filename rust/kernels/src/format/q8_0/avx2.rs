//! Q8_0 levels in AVX2 registers: the signed bytes as they are.

use std::arch::x86_64::*;

use super::Q8_0;
use crate::matmul::avx2::{Small256, load};

impl Small256 for Q8_0 {
    const MOST: i32 = 128;

    #[inline(always)]
    unsafe fn codes(words: *const u8) -> [__m256i; 8] {
        // SAFETY: eight words by the caller.
        unsafe {
            let mut codes = [_mm256_setzero_si256(); 8];
            for (w, code) in codes.iter_mut().enumerate() {
                *code = load(words, w);
            }
            codes
        }
    }
}
