//! MXFP4 in AVX2 registers: nibbles through a byte shuffle of the table.

use std::arch::x86_64::*;

use super::{LEVELS, Mxfp4};
use crate::format::iq4_nl::avx2::levels;
use crate::matmul::avx2::Small256;

impl Small256 for Mxfp4 {
    const MOST: i32 = 31;

    #[inline(always)]
    unsafe fn codes(words: *const u8) -> [__m256i; 8] {
        // SAFETY: four words by the caller.
        unsafe { levels(&LEVELS, words, 0) }
    }

    #[inline(always)]
    unsafe fn scale(at: *const u8) -> __m256 {
        // SAFETY: eight bytes by the caller.
        unsafe {
            // e, as the exponent of a float. Its half has e − 1 there; below that it is a subnormal number: half its first bit, or a quarter for e = 0.
            let e = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())));
            let quarter = _mm256_set1_epi32(0x0020_0000);
            let subnormal = _mm256_add_epi32(quarter, _mm256_min_epi32(e, quarter));
            let half = _mm256_sub_epi32(e, _mm256_set1_epi32(1 << 23));
            _mm256_castsi256_ps(_mm256_max_epi32(half, subnormal))
        }
    }
}
