//! Q5_1 codes in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q5_1;
use crate::format::q5_0::avx512::five_bits;
use crate::matmul::avx512::Small512;

impl Small512 for Q5_1 {
    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> __m512i {
        // SAFETY: five words by the caller.
        unsafe { five_bits::<G>(words) }
    }
}
