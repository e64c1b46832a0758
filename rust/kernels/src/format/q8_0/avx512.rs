//! Q8_0 codes in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q8_0;
use crate::matmul::avx512::{Small512, load};

impl Small512 for Q8_0 {
    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> __m512i {
        // SAFETY: eight words by the caller.
        unsafe { _mm512_xor_si512(load(words, G), _mm512_set1_epi8(-128)) }
    }
}
