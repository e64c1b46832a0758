//! Q5_1 codes in AVX2 registers.

use std::arch::x86_64::*;

use super::Q5_1;
use crate::format::q5_0::avx2::five_bits;
use crate::matmul::avx2::Small256;

impl Small256 for Q5_1 {
    const MOST: i32 = 31;

    #[inline(always)]
    unsafe fn codes(words: *const u8) -> [__m256i; 8] {
        // SAFETY: five words by the caller.
        unsafe { five_bits(words) }
    }
}
