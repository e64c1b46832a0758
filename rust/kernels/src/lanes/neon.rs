//! Sixteen virtual lanes in four NEON registers, lanes 0–3, 4–7, 8–11 and 12–15.

use std::arch::aarch64::*;

use super::{Lanes, order};

/// Four registers. Needs NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon([float32x4_t; 4]);

macro_rules! all {
    ($f:ident, $($v:expr),+) => { Neon([$f($($v.0[0]),+), $f($($v.0[1]),+), $f($($v.0[2]),+), $f($($v.0[3]),+)]) };
}

/// `fmla` adds to its first operand.
#[inline(always)]
unsafe fn fma_quarter(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
    // SAFETY: no memory is touched; NEON by the caller.
    unsafe { vfmaq_f32(c, a, b) }
}

/// A negated addend is exact, so this rounds once, as `mul_add(b, -c)` does.
#[inline(always)]
unsafe fn fms_quarter(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
    // SAFETY: no memory is touched; NEON by the caller.
    unsafe { vfmaq_f32(vnegq_f32(c), a, b) }
}

/// Comparison and choice: `fmax` would let a NaN through and order the zeros.
#[inline(always)]
unsafe fn max_quarter(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: no memory is touched; NEON by the caller.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// `a < b ? a : b`.
#[inline(always)]
unsafe fn least_quarter(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: no memory is touched; NEON by the caller.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// In assembly, because the intrinsics ask for half-precision arithmetic, which this does not need.
#[inline(always)]
unsafe fn half_quarter(x: float32x4_t) -> uint16x4_t {
    let half: uint16x4_t;
    // SAFETY: `fcvtn` touches nothing but the named registers and the float status, which no code reads.
    unsafe {
        std::arch::asm!(
            "fcvtn {half:v}.4h, {x:v}.4s",
            half = lateout(vreg) half,
            x = in(vreg) x,
            options(pure, nomem, nostack),
        );
    }
    half
}

#[inline(always)]
unsafe fn exp_quarter(x: float32x4_t) -> float32x4_t {
    // SAFETY: no memory is touched; NEON by the caller.
    unsafe {
        let clamped = least_quarter(vdupq_n_f32(order::EXP_MAX), x);
        let n = vrndnq_f32(vmulq_f32(clamped, vdupq_n_f32(order::LOG2_E)));
        let r = vfmaq_f32(clamped, n, vdupq_n_f32(-order::LN2_HIGH));
        let r = vfmaq_f32(r, n, vdupq_n_f32(-order::LN2_LOW));
        let mut p = vdupq_n_f32(order::EXP_POLY[0]);
        for c in &order::EXP_POLY[1..] {
            p = vfmaq_f32(vdupq_n_f32(*c), p, r);
        }
        let exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
        let power = vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent));
        let gone = vcltq_f32(x, vdupq_n_f32(order::EXP_MIN));
        vbslq_f32(gone, vdupq_n_f32(0.0), vmulq_f32(p, power))
    }
}

/// An `n` of NaN is 0, so a NaN stays.
#[inline(always)]
unsafe fn exp2_quarter(x: float32x4_t) -> float32x4_t {
    // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
    unsafe {
        let n = vrndnq_f32(x);
        let r = vsubq_f32(x, n);
        let mut p = vdupq_n_f32(order::EXP2_POLY[0]);
        for c in &order::EXP2_POLY[1..] {
            p = vfmaq_f32(vdupq_n_f32(*c), p, r);
        }
        let exponent = vshlq_n_s32::<23>(vcvtq_s32_f32(n));
        let scaled = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), exponent));
        vbslq_f32(vcltq_f32(x, vdupq_n_f32(order::EXP2_MIN)), vdupq_n_f32(0.0), scaled)
    }
}

/// In assembly, because the intrinsics ask for half-precision arithmetic, which this does not need.
#[inline(always)]
unsafe fn widened_quarter(half: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: `fcvtl` touches nothing but the named registers and the float status, which no code reads.
    unsafe {
        std::arch::asm!(
            "fcvtl {wide:v}.4s, {half:v}.4h",
            wide = lateout(vreg) wide,
            half = in(vreg) half,
            options(pure, nomem, nostack),
        );
    }
    wide
}

#[inline(always)]
unsafe fn signed_quarter(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: no memory is touched; NEON by the caller.
    unsafe {
        let sign = vandq_u32(vreinterpretq_u32_f32(b), vdupq_n_u32(0x8000_0000));
        vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(a), sign))
    }
}

// SAFETY: intrinsics on registers need only NEON, loads and stores also 16 elements; the trait demands both of callers.
unsafe impl Lanes for Neon {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        Neon(unsafe { [vdupq_n_f32(x); 4] })
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: 16 elements at `at`, and NEON, by the caller.
        Neon(unsafe { [vld1q_f32(at), vld1q_f32(at.add(4)), vld1q_f32(at.add(8)), vld1q_f32(at.add(12))] })
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        for (i, quarter) in self.0.into_iter().enumerate() {
            // SAFETY: 16 elements at `at`, and NEON, by the caller.
            unsafe { vst1q_f32(at.add(4 * i), quarter) };
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(vaddq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(vsubq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(vmulq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(vdivq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(fma_quarter, self, b, c) }
    }
    #[inline(always)]
    unsafe fn fms(self, b: Self, c: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(fms_quarter, self, b, c) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(max_quarter, self, other) }
    }
    #[inline(always)]
    unsafe fn at_most(self, bound: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(least_quarter, bound, self) }
    }
    #[inline(always)]
    unsafe fn to_half(self) -> [u16; 16] {
        let mut halves = [0u16; 16];
        for (i, quarter) in self.0.into_iter().enumerate() {
            // SAFETY: the array has four times 4 elements; NEON by the caller.
            unsafe { vst1_u16(halves[4 * i..].as_mut_ptr(), half_quarter(quarter)) };
        }
        halves
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(exp_quarter, self) }
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
        unsafe { all!(exp2_quarter, self) }
    }
    #[inline(always)]
    unsafe fn from_half(at: *const u16) -> Self {
        // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
        unsafe {
            Neon([
                widened_quarter(vld1_u16(at)),
                widened_quarter(vld1_u16(at.add(4))),
                widened_quarter(vld1_u16(at.add(8))),
                widened_quarter(vld1_u16(at.add(12))),
            ])
        }
    }
    #[inline(always)]
    unsafe fn put_bytes(self, at: *mut u8) {
        // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller. The conversion turns a NaN into 0.
        unsafe {
            let two = |a: float32x4_t, b: float32x4_t| {
                vmovn_u16(vcombine_u16(vmovn_u32(vcvtnq_u32_f32(a)), vmovn_u32(vcvtnq_u32_f32(b))))
            };
            vst1q_u8(at, vcombine_u8(two(self.0[0], self.0[1]), two(self.0[2], self.0[3])));
        }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller. `fabs` clears the sign bit of anything, a NaN included.
        unsafe { all!(vabsq_f32, self) }
    }
    #[inline(always)]
    unsafe fn with_sign_of(self, other: Self) -> Self {
        // SAFETY: no memory is touched; NEON by the caller.
        unsafe { all!(signed_quarter, self, other) }
    }
}
