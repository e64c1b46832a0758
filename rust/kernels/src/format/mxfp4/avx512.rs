//! MXFP4 in AVX-512 registers: nibbles through a byte shuffle of the table.

use std::arch::x86_64::*;

use super::{LEVELS, Mxfp4};
use crate::format::iq4_nl::avx512::levels;
use crate::matmul::avx512::Small512;

impl Small512 for Mxfp4 {
    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> __m512i {
        // SAFETY: four words by the caller.
        unsafe { levels::<G>(&LEVELS, words, 0) }
    }

    #[inline(always)]
    unsafe fn scale(at: *const u8) -> __m512 {
        // SAFETY: 16 bytes by the caller.
        unsafe {
            // e, as the exponent of a float. Its half has e − 1 there; below that it is a subnormal number: half its first bit, or a quarter for e = 0.
            let e = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())));
            let quarter = _mm512_set1_epi32(0x0020_0000);
            let subnormal = _mm512_add_epi32(quarter, _mm512_min_epi32(e, quarter));
            let half = _mm512_sub_epi32(e, _mm512_set1_epi32(1 << 23));
            _mm512_castsi512_ps(_mm512_max_epi32(half, subnormal))
        }
    }
}
