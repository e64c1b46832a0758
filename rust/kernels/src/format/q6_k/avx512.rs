//! Q6_K in AVX-512 registers.

use std::arch::x86_64::*;

use super::Q6K;
use crate::matmul::avx512::{Super512, load, run_of_nibbles};

impl Super512 for Q6K {
    const SUB: usize = 16;

    #[inline(always)]
    unsafe fn scales(words: *const u8, _halves: *const u8) -> [__m512i; 16] {
        // SAFETY: words 48 to 51 hold the scales, one signed byte each.
        unsafe {
            let mut scales = [_mm512_setzero_si512(); 16];
            for q in 0..4 {
                let four = load(words, 48 + q);
                scales[4 * q] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(four));
                scales[4 * q + 1] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(four));
                scales[4 * q + 2] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(four));
                scales[4 * q + 3] = _mm512_srai_epi32::<24>(four);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn mins(_words: *const u8) -> [__m512i; 8] {
        // SAFETY: no memory is touched.
        unsafe { [_mm512_setzero_si512(); 8] }
    }

    #[inline(always)]
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize) -> [__m512i; 8] {
        // SAFETY: 16 words of nibbles and 8 of upper pairs a half, by the caller.
        unsafe {
            let at = 16 * half + 8 * (RUN % 2);
            let mut codes =
                if RUN < 2 { run_of_nibbles::<false>(words, at) } else { run_of_nibbles::<true>(words, at) };
            let mask = _mm512_set1_epi8(0x30);
            for (w, code) in codes.iter_mut().enumerate() {
                let pairs = load(words, 32 + 8 * half + w);
                let upper = match RUN {
                    0 => _mm512_slli_epi16::<4>(pairs),
                    1 => _mm512_slli_epi16::<2>(pairs),
                    2 => pairs,
                    _ => _mm512_srli_epi16::<2>(pairs),
                };
                // code | (upper & mask)
                *code = _mm512_ternarylogic_epi32::<0xf8>(*code, upper, mask);
            }
            codes
        }
    }
}
