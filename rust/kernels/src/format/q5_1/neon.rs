//! Q5_1 codes in NEON registers.

use std::arch::aarch64::*;

use super::Q5_1;
use crate::format::q5_0::neon::five_bits;
use crate::matmul::neon::Small128;

impl Small128 for Q5_1 {
    const MOST: i32 = 31;

    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> int8x16_t {
        // SAFETY: five words by the caller.
        unsafe { five_bits::<G>(words) }
    }
}
