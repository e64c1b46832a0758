//! MXFP4 in NEON registers: nibbles through a byte look-up in the table.

use std::arch::aarch64::*;

use super::{LEVELS, Mxfp4};
use crate::matmul::neon::{Small128, nibbles, read};

impl Small128 for Mxfp4 {
    const MOST: i32 = 28;

    #[inline(always)]
    unsafe fn codes<const G: usize>(words: *const u8) -> int8x16_t {
        // SAFETY: four words by the caller; the table is 16 readable bytes.
        unsafe { vqtbl1q_s8(read(LEVELS.as_ptr()), nibbles::<G>(words, 0)) }
    }

    #[inline(always)]
    unsafe fn scale(at: *const u8) -> float32x4_t {
        // SAFETY: four bytes by the caller.
        unsafe {
            // e, as the exponent of a float. Its half has e − 1 there; below that it is a subnormal number: half its first bit, or a quarter for e = 0.
            let bytes = vcreate_u8(u64::from(read::<u32>(at)));
            let e = vreinterpretq_s32_u32(vshlq_n_u32::<23>(vmovl_u16(vget_low_u16(vmovl_u8(bytes)))));
            let quarter = vdupq_n_s32(0x0020_0000);
            let subnormal = vaddq_s32(quarter, vminq_s32(e, quarter));
            let half = vsubq_s32(e, vdupq_n_s32(1 << 23));
            vreinterpretq_f32_s32(vmaxq_s32(half, subnormal))
        }
    }
}
