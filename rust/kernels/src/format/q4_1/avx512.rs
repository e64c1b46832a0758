//! Q4_1 codes in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q4_1;
use crate::matmul::avx512::{Small512, nibbles};

impl Small512 for Q4_1 {
    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> __m512i {
        // SAFETY: four words by the caller.
        unsafe { nibbles::<G>(words, 0) }
    }
}
