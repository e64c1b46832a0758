//! Sixteen virtual lanes, the vector type of every float kernel that is not a product (N3).
//!
//! A kernel is written once over [`Lanes`] and stamped out for each set with [`stamp!`]. An implementation performs per lane exactly the operation
//! that [`Scalar`] performs, so the sets agree by construction: AVX-512 has one register, AVX2 two, NEON four, plain code an array.

use crate::order;

/// Sixteen floats. Every operation works lane by lane.
///
/// # Safety
/// Every function needs the instructions of its set; those with pointers need 16 valid elements. Callers are stamped entry points, which state both.
pub(crate) unsafe trait Lanes: Copy {
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(at: *const f32) -> Self;
    unsafe fn store(self, at: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self · b + c`, fused.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// `self · b − c`, fused.
    unsafe fn fms(self, b: Self, c: Self) -> Self;
    /// `self > other ? self : other`, so a NaN in `self` yields `other`.
    unsafe fn max(self, other: Self) -> Self;
    /// `bound < self ? bound : self`, so a NaN stays.
    unsafe fn at_most(self, bound: Self) -> Self;
    /// Half precision, half to even.
    unsafe fn to_half(self) -> [u16; 16];
    /// [`order::exp`].
    unsafe fn exp(self) -> Self;
    /// [`order::exp2`]; every lane is at most 0, or NaN.
    unsafe fn exp2(self) -> Self;
    /// 16 half-precision numbers, widened; a NaN stays one.
    unsafe fn from_half(at: *const u16) -> Self;
    /// Numbers from 0 to 255 as bytes, half to even; a NaN becomes 0.
    unsafe fn put_bytes(self, at: *mut u8);

    /// [`Self::put_bytes`] for four times 16 numbers.
    #[inline(always)]
    unsafe fn put_bytes_of_four(four: [Self; 4], at: *mut u8) {
        for (i, x) in four.into_iter().enumerate() {
            // SAFETY: passed on.
            unsafe { x.put_bytes(at.add(16 * i)) };
        }
    }

    /// [`Self::greatest`] of two.
    #[inline(always)]
    unsafe fn greatest_of_two(two: [Self; 2]) -> [f32; 2] {
        // SAFETY: passed on.
        unsafe { [two[0].greatest(), two[1].greatest()] }
    }

    /// The magnitude.
    unsafe fn abs(self) -> Self;
    /// The magnitude of `self` with the sign bit of `other`; the sign of `self` must be clear.
    unsafe fn with_sign_of(self, other: Self) -> Self;

    /// The lanes as an array.
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; 16] {
        let mut lanes = [0.0; 16];
        // SAFETY: the array has 16 floats.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes
    }

    /// [`order::fold`].
    #[inline(always)]
    unsafe fn fold(self) -> f32 {
        // SAFETY: passed on.
        order::fold(&unsafe { self.to_array() })
    }

    /// The greatest lane, by the halves of [`order::fold`]; no lane may be NaN. Which of two zeros is left open.
    #[inline(always)]
    unsafe fn greatest(self) -> f32 {
        // SAFETY: passed on.
        unsafe { self.to_array() }.into_iter().fold(f32::NEG_INFINITY, |m, s| if s > m { s } else { m })
    }

    /// [`order::silu`].
    #[inline(always)]
    unsafe fn silu(self) -> Self {
        // SAFETY: passed on. Negation flips the sign bit, as in the scalar formula: 0 − x would differ for x = 0.
        unsafe {
            let negated = self.mul(Self::splat(-1.0));
            self.div(Self::splat(1.0).add(negated.exp()))
        }
    }

    /// [`order::gelu`].
    #[inline(always)]
    unsafe fn gelu(self) -> Self {
        // SAFETY: passed on.
        unsafe {
            let one = Self::splat(1.0);
            let cubic = Self::splat(order::GELU_CUBIC).mul(self).fma(self, one);
            let inner = Self::splat(order::GELU_SCALE).mul(self).mul(cubic);
            Self::splat(0.5).mul(self).mul(one.add(inner.tanh()))
        }
    }

    /// [`order::tanh`].
    #[inline(always)]
    unsafe fn tanh(self) -> Self {
        // SAFETY: passed on.
        unsafe {
            let one = Self::splat(1.0);
            let magnitude = self.abs();
            let t = one.sub(Self::splat(2.0).div(magnitude.add(magnitude).exp().add(one)));
            t.with_sign_of(self)
        }
    }
}

/// Plain code: the specification.
#[derive(Clone, Copy)]
pub(crate) struct Scalar([f32; 16]);

impl Scalar {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Scalar(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

// SAFETY: needs no instructions beyond the target's; pointers as the trait demands.
unsafe impl Lanes for Scalar {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Scalar([x; 16])
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: 16 floats by the caller; the array's alignment is a float's.
        Scalar(unsafe { at.cast::<[f32; 16]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: as in `load`.
        unsafe { at.cast::<[f32; 16]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Scalar(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn fms(self, b: Self, c: Self) -> Self {
        Scalar(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], -c.0[i])))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn at_most(self, bound: Self) -> Self {
        self.zip(bound, |x, bound| if bound < x { bound } else { x })
    }
    #[inline(always)]
    unsafe fn to_half(self) -> [u16; 16] {
        self.0.map(crate::half::f32_to_f16)
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        Scalar(self.0.map(order::exp))
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        Scalar(self.0.map(order::exp2))
    }
    #[inline(always)]
    unsafe fn from_half(at: *const u16) -> Self {
        // SAFETY: 16 halves by the caller.
        Scalar(unsafe { at.cast::<[u16; 16]>().read_unaligned() }.map(crate::half::f16_to_f32))
    }
    #[inline(always)]
    unsafe fn put_bytes(self, at: *mut u8) {
        // SAFETY: 16 bytes by the caller. The conversion turns a NaN into 0.
        unsafe { at.cast::<[u8; 16]>().write_unaligned(self.0.map(|x| x.round_ties_even() as u8)) };
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        Scalar(self.0.map(|x| f32::from_bits(x.to_bits() & 0x7fff_ffff)))
    }
    #[inline(always)]
    unsafe fn with_sign_of(self, other: Self) -> Self {
        self.zip(other, |a, b| f32::from_bits(a.to_bits() | b.to_bits() & 0x8000_0000))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Lanes, order};

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

    /// One AVX-512 register. Needs AVX-512 F.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512);

    // SAFETY: intrinsics on registers need only the instruction set, loads and stores also 16 elements; the trait demands both of callers.
    unsafe impl Lanes for Avx512 {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_set1_ps(x) })
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> Self {
            // SAFETY: 16 elements at `at`, and the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_loadu_ps(at) })
        }
        #[inline(always)]
        unsafe fn store(self, at: *mut f32) {
            // SAFETY: 16 elements at `at`, and the CPU has the set, by the caller.
            unsafe { _mm512_storeu_ps(at, self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn div(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
        }
        #[inline(always)]
        unsafe fn fms(self, b: Self, c: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_fmsub_ps(self.0, b.0, c.0) })
        }
        #[inline(always)]
        unsafe fn max(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller. `vmaxps` returns its second operand unless the first is greater.
            Avx512(unsafe { _mm512_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn at_most(self, bound: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller. `vminps` returns its second operand unless the first is smaller.
            Avx512(unsafe { _mm512_min_ps(bound.0, self.0) })
        }
        #[inline(always)]
        unsafe fn to_half(self) -> [u16; 16] {
            let mut halves = [0; 16];
            // SAFETY: the array has 32 bytes; the CPU has the set, by the caller.
            unsafe {
                _mm256_storeu_si256(halves.as_mut_ptr().cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0))
            };
            halves
        }
        #[inline(always)]
        unsafe fn exp(self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe {
                let clamped = _mm512_min_ps(_mm512_set1_ps(order::EXP_MAX), self.0);
                let n = _mm512_roundscale_ps::<NEAREST>(_mm512_mul_ps(clamped, _mm512_set1_ps(order::LOG2_E)));
                let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-order::LN2_HIGH), clamped);
                let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-order::LN2_LOW), r);
                let mut p = _mm512_set1_ps(order::EXP_POLY[0]);
                for c in &order::EXP_POLY[1..] {
                    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
                }
                let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
                let power = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent));
                let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, _mm512_set1_ps(order::EXP_MIN));
                Avx512(_mm512_maskz_mul_ps(kept, p, power))
            }
        }
        #[inline(always)]
        unsafe fn exp2(self) -> Self {
            // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller. Scaling by 2^n is exact, as adding n to the exponent is.
            unsafe {
                let n = _mm512_roundscale_ps::<NEAREST>(self.0);
                let r = _mm512_sub_ps(self.0, n);
                let mut p = _mm512_set1_ps(order::EXP2_POLY[0]);
                for c in &order::EXP2_POLY[1..] {
                    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
                }
                let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, _mm512_set1_ps(order::EXP2_MIN));
                Avx512(_mm512_maskz_scalef_ps(kept, p, n))
            }
        }
        #[inline(always)]
        unsafe fn from_half(at: *const u16) -> Self {
            // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) })
        }
        #[inline(always)]
        unsafe fn put_bytes(self, at: *mut u8) {
            // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller. A NaN becomes 2^31, whose lowest byte is 0.
            unsafe { _mm_storeu_si128(at.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0))) };
        }
        #[inline(always)]
        unsafe fn put_bytes_of_four(four: [Self; 4], at: *mut u8) {
            // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller. Packing saturates: −2^31, which a NaN becomes, to 0. It works on quarters of registers, so that afterwards quarter q holds four
            // bytes of quarter q of each of the four.
            unsafe {
                let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                let low = _mm512_packs_epi32(_mm512_cvtps_epi32(four[0].0), _mm512_cvtps_epi32(four[1].0));
                let high = _mm512_packs_epi32(_mm512_cvtps_epi32(four[2].0), _mm512_cvtps_epi32(four[3].0));
                let bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
                _mm512_storeu_si512(at.cast(), bytes);
            }
        }
        #[inline(always)]
        unsafe fn greatest_of_two(two: [Self; 2]) -> [f32; 2] {
            // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller. The lanes of both are folded side by side.
            unsafe {
                let a = _mm256_max_ps(_mm512_castps512_ps256(two[0].0), upper(two[0].0));
                let b = _mm256_max_ps(_mm512_castps512_ps256(two[1].0), upper(two[1].0));
                let x = _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
                let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
                [_mm_cvtss_f32(x), _mm_cvtss_f32(_mm_movehdup_ps(x))]
            }
        }
        #[inline(always)]
        unsafe fn abs(self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx512(unsafe { _mm512_abs_ps(self.0) })
        }
        #[inline(always)]
        unsafe fn with_sign_of(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller. self | (other & sign).
            unsafe {
                let sign = _mm512_set1_epi32(i32::MIN);
                Avx512(_mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xf8>(
                    _mm512_castps_si512(self.0),
                    _mm512_castps_si512(other.0),
                    sign,
                )))
            }
        }
        #[inline(always)]
        unsafe fn fold(self) -> f32 {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { fold_half(_mm256_add_ps(_mm512_castps512_ps256(self.0), upper(self.0))) }
        }
        #[inline(always)]
        unsafe fn greatest(self) -> f32 {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { greatest_half(_mm256_max_ps(_mm512_castps512_ps256(self.0), upper(self.0))) }
        }
    }

    /// Lanes 8–15.
    #[inline(always)]
    unsafe fn upper(x: __m512) -> __m256 {
        // SAFETY: registers only; the CPU has the set, by the caller. The cast is to what AVX-512 F alone can extract.
        unsafe { _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x))) }
    }

    /// The lower three steps of [`order::fold`].
    #[inline(always)]
    unsafe fn fold_half(x: __m256) -> f32 {
        // SAFETY: registers only; the CPU has the set, by the caller.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }

    /// The lower three steps of [`Lanes::greatest`].
    #[inline(always)]
    unsafe fn greatest_half(x: __m256) -> f32 {
        // SAFETY: registers only; the CPU has the set, by the caller.
        unsafe {
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }

    /// Two AVX2 registers, lanes 0–7 and 8–15. Needs AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2([__m256; 2]);

    macro_rules! both {
        ($f:ident, $($v:expr),+) => { Avx2([$f($($v.0[0]),+), $f($($v.0[1]),+)]) };
    }

    #[inline(always)]
    unsafe fn exp_half(x: __m256) -> __m256 {
        // SAFETY: registers only; the CPU has the set, by the caller.
        unsafe {
            let clamped = _mm256_min_ps(_mm256_set1_ps(order::EXP_MAX), x);
            let n = _mm256_round_ps::<NEAREST>(_mm256_mul_ps(clamped, _mm256_set1_ps(order::LOG2_E)));
            let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-order::LN2_HIGH), clamped);
            let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-order::LN2_LOW), r);
            let mut p = _mm256_set1_ps(order::EXP_POLY[0]);
            for c in &order::EXP_POLY[1..] {
                p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
            }
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            let power = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent));
            let kept = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(order::EXP_MIN));
            _mm256_and_ps(_mm256_mul_ps(p, power), kept)
        }
    }

    #[inline(always)]
    unsafe fn exp2_half(x: __m256) -> __m256 {
        // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
        unsafe {
            let n = _mm256_round_ps::<NEAREST>(x);
            let r = _mm256_sub_ps(x, n);
            let mut p = _mm256_set1_ps(order::EXP2_POLY[0]);
            for c in &order::EXP2_POLY[1..] {
                p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
            }
            let exponent = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(n));
            let scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
            let kept = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(order::EXP2_MIN));
            _mm256_and_ps(scaled, kept)
        }
    }

    // SAFETY: intrinsics on registers need only the instruction set, loads and stores also 16 elements; the trait demands both of callers.
    unsafe impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            Avx2(unsafe { [_mm256_set1_ps(x); 2] })
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> Self {
            // SAFETY: 16 elements at `at`, and the CPU has the set, by the caller.
            Avx2(unsafe { [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))] })
        }
        #[inline(always)]
        unsafe fn store(self, at: *mut f32) {
            // SAFETY: 16 elements at `at`, and the CPU has the set, by the caller.
            unsafe {
                _mm256_storeu_ps(at, self.0[0]);
                _mm256_storeu_ps(at.add(8), self.0[1]);
            }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { both!(_mm256_add_ps, self, other) }
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { both!(_mm256_sub_ps, self, other) }
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { both!(_mm256_mul_ps, self, other) }
        }
        #[inline(always)]
        unsafe fn div(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { both!(_mm256_div_ps, self, other) }
        }
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { both!(_mm256_fmadd_ps, self, b, c) }
        }
        #[inline(always)]
        unsafe fn fms(self, b: Self, c: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { both!(_mm256_fmsub_ps, self, b, c) }
        }
        #[inline(always)]
        unsafe fn max(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller. `vmaxps` returns its second operand unless the first is greater.
            unsafe { both!(_mm256_max_ps, self, other) }
        }
        #[inline(always)]
        unsafe fn at_most(self, bound: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller. `vminps` returns its second operand unless the first is smaller.
            unsafe { both!(_mm256_min_ps, bound, self) }
        }
        #[inline(always)]
        unsafe fn to_half(self) -> [u16; 16] {
            let mut halves = [0; 16];
            // SAFETY: the array has twice 16 bytes; the CPU has the set, by the caller.
            unsafe {
                _mm_storeu_si128(halves.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0[0]));
                _mm_storeu_si128(
                    halves[8..].as_mut_ptr().cast(),
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0[1]),
                );
            }
            halves
        }
        #[inline(always)]
        unsafe fn exp(self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { both!(exp_half, self) }
        }
        #[inline(always)]
        unsafe fn exp2(self) -> Self {
            // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
            unsafe { both!(exp2_half, self) }
        }
        #[inline(always)]
        unsafe fn from_half(at: *const u16) -> Self {
            // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
            Avx2(unsafe {
                [_mm256_cvtph_ps(_mm_loadu_si128(at.cast())), _mm256_cvtph_ps(_mm_loadu_si128(at.add(8).cast()))]
            })
        }
        #[inline(always)]
        unsafe fn put_bytes(self, at: *mut u8) {
            // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller. Packing saturates: −2^31, which a NaN becomes, to 0. It works on halves of registers.
            unsafe {
                let words = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0[0]), _mm256_cvtps_epi32(self.0[1]));
                let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
                let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
                _mm_storeu_si128(at.cast(), bytes);
            }
        }
        #[inline(always)]
        unsafe fn abs(self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe {
                let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff));
                Avx2(self.0.map(
                    #[inline(always)]
                    |x| _mm256_and_ps(x, magnitude),
                ))
            }
        }
        #[inline(always)]
        unsafe fn with_sign_of(self, other: Self) -> Self {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe {
                let sign = Avx2([_mm256_set1_ps(-0.0); 2]);
                let sign = both!(_mm256_and_ps, other, sign);
                both!(_mm256_or_ps, self, sign)
            }
        }
        #[inline(always)]
        unsafe fn fold(self) -> f32 {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { fold_half(_mm256_add_ps(self.0[0], self.0[1])) }
        }
        #[inline(always)]
        unsafe fn greatest(self) -> f32 {
            // SAFETY: registers only; the CPU has the set, by the caller.
            unsafe { greatest_half(_mm256_max_ps(self.0[0], self.0[1])) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Stamps a kernel written over [`Lanes`] for each set: `stamp!(name, body, (argument: type, …) -> result)` makes a module `name` with `scalar`, `avx2`,
/// `avx512` and `neon`, each an `unsafe fn` whose one demand is that the CPU has the set.
macro_rules! stamp {
    ($name:ident, $body:ident, ($($arg:ident : $ty:ty),*) $(-> $out:ty)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            /// # Safety
            /// None beyond the body's.
            pub(super) unsafe fn scalar($($arg: $ty),*) $(-> $out)? {
                // SAFETY: plain code needs no instructions.
                unsafe { $body::<$crate::lanes::Scalar>($($arg),*) }
            }
            /// # Safety
            /// The CPU must have AVX2, FMA and F16C.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            pub(super) unsafe fn avx2($($arg: $ty),*) $(-> $out)? {
                // SAFETY: the caller has the set.
                unsafe { $body::<$crate::lanes::Avx2>($($arg),*) }
            }
            /// # Safety
            /// The CPU must have AVX-512 F.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
            pub(super) unsafe fn avx512($($arg: $ty),*) $(-> $out)? {
                // SAFETY: the caller has the set.
                unsafe { $body::<$crate::lanes::Avx512>($($arg),*) }
            }
            /// # Safety
            /// The CPU must have NEON.
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            pub(super) unsafe fn neon($($arg: $ty),*) $(-> $out)? {
                // SAFETY: the caller has the set.
                unsafe { $body::<$crate::lanes::Neon>($($arg),*) }
            }
        }
    };
}
pub(crate) use stamp;

/// Applies `f` to sixteen elements of `a` and `b` at a time, results to `out`; the tail goes through a padded copy.
///
/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
pub(crate) unsafe fn zip<L: Lanes>(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(L, L) -> L) {
    assert!(a.len() == out.len() && b.len() == out.len());
    let whole = out.len() / 16 * 16;
    let mut i = 0;
    while i < whole {
        // SAFETY: i + 16 elements exist in all three.
        unsafe { f(L::load(a.as_ptr().add(i)), L::load(b.as_ptr().add(i))).store(out.as_mut_ptr().add(i)) };
        i += 16;
    }
    if whole < out.len() {
        let (mut pa, mut pb, mut po) = ([0.0; 16], [0.0; 16], [0.0; 16]);
        pa[..a.len() - whole].copy_from_slice(&a[whole..]);
        pb[..b.len() - whole].copy_from_slice(&b[whole..]);
        // SAFETY: arrays of 16.
        unsafe { f(L::load(pa.as_ptr()), L::load(pb.as_ptr())).store(po.as_mut_ptr()) };
        let rest = out.len() - whole;
        out[whole..].copy_from_slice(&po[..rest]);
    }
}

/// `b = f(a, b)`, sixteen elements at a time; the tail goes through a padded copy.
///
/// # Safety
/// The CPU must have the set of `L`.
#[inline(always)]
pub(crate) unsafe fn update<L: Lanes>(a: &[f32], b: &mut [f32], f: impl Fn(L, L) -> L) {
    assert_eq!(a.len(), b.len());
    let (mut a, mut b) = (a.chunks_exact(16), b.chunks_exact_mut(16));
    for (a, b) in (&mut a).zip(&mut b) {
        // SAFETY: 16 elements each.
        unsafe { f(L::load(a.as_ptr()), L::load(b.as_ptr())).store(b.as_mut_ptr()) };
    }
    let (a, b) = (a.remainder(), b.into_remainder());
    let (mut pa, mut pb) = ([0.0; 16], [0.0; 16]);
    pa[..a.len()].copy_from_slice(a);
    pb[..b.len()].copy_from_slice(b);
    // SAFETY: arrays of 16.
    unsafe { f(L::load(pa.as_ptr()), L::load(pb.as_ptr())).store(pb.as_mut_ptr()) };
    b.copy_from_slice(&pb[..b.len()]);
}
