//! Weighted values in integers with NEON: four columns in a register, a panel at a time, up to four queries a walk.
//!
//! NEON's byte products are of two signed or two unsigned numbers. So a value v is taken as the unsigned byte v + 128, and 128 · Σ code is taken off the sum in
//! the end: at most 128 · 255 · 255 = 8,323,200 on the way. With dotprod `udot` adds four products; without it `umull` makes single ones, which 16 bits hold,
//! and `uadalp` adds those in pairs into 32 bits.

use std::arch::aarch64::*;

use super::{BLOCK, CHUNK, MAX_TILE, PANEL, PANEL_BYTES, QUAD, QUAD_BYTES, QUADS, Tile, VALUE_PART};
use crate::matmul::neon::read;

/// Quarters of a panel: columns of a register.
const QUARTERS: usize = 4;

/// The body once for each number, as a constant: lanes must be constants.
macro_rules! each {
    ($N:ident in [$($n:literal)+] $body:block) => {
        $({
            const $N: usize = $n;
            $body
        })+
    };
}

/// A way to add products of unsigned bytes: one sum of four columns, under way.
trait Dot {
    type Sum: Copy;

    /// # Safety
    /// (Of each function:) the CPU must have the instructions of this way.
    unsafe fn zero() -> Self::Sum;
    /// Adds, for each column, four values times the four codes of lane `LANE`.
    unsafe fn add<const LANE: i32>(sum: &mut Self::Sum, values: uint8x16_t, codes: uint32x4_t);
    unsafe fn total(sum: Self::Sum) -> uint32x4_t;
}

/// `udot`.
struct Udot;

impl Dot for Udot {
    type Sum = uint32x4_t;

    #[inline(always)]
    unsafe fn zero() -> uint32x4_t {
        // SAFETY: no memory is touched.
        unsafe { vdupq_n_u32(0) }
    }

    #[inline(always)]
    unsafe fn add<const LANE: i32>(sum: &mut uint32x4_t, values: uint8x16_t, codes: uint32x4_t) {
        // SAFETY: passed on.
        unsafe { udot::<LANE>(sum, values, codes) };
    }

    #[inline(always)]
    unsafe fn total(sum: uint32x4_t) -> uint32x4_t {
        sum
    }
}

/// In assembly, because the intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn udot<const LANE: i32>(sum: &mut uint32x4_t, values: uint8x16_t, codes: uint32x4_t) {
    // SAFETY: touches nothing but the named registers.
    unsafe {
        std::arch::asm!(
            "udot {sum:v}.4s, {values:v}.16b, {codes:v}.4b[{lane}]",
            sum = inout(vreg) *sum,
            values = in(vreg) values,
            codes = in(vreg) codes,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
}

/// `umull` and `uadalp`.
struct Umull;

impl Dot for Umull {
    /// Two sums a column: columns 0 and 1, columns 2 and 3.
    type Sum = [uint32x4_t; 2];

    #[inline(always)]
    unsafe fn zero() -> [uint32x4_t; 2] {
        // SAFETY: no memory is touched.
        unsafe { [vdupq_n_u32(0); 2] }
    }

    #[inline(always)]
    unsafe fn add<const LANE: i32>(sum: &mut [uint32x4_t; 2], values: uint8x16_t, codes: uint32x4_t) {
        // SAFETY: no memory is touched.
        unsafe {
            let codes = vreinterpretq_u8_u32(vdupq_laneq_u32::<LANE>(codes));
            sum[0] = vpadalq_u16(sum[0], vmull_u8(vget_low_u8(values), vget_low_u8(codes)));
            sum[1] = vpadalq_u16(sum[1], vmull_high_u8(values, codes));
        }
    }

    #[inline(always)]
    unsafe fn total(sum: [uint32x4_t; 2]) -> uint32x4_t {
        // SAFETY: no memory is touched.
        unsafe { vpaddq_u32(sum[0], sum[1]) }
    }
}

/// # Safety
/// The CPU must have NEON.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn base(t: Tile<'_>) {
    // SAFETY: passed on.
    unsafe { weigh::<Umull>(t) };
}

/// # Safety
/// The CPU must have NEON and dotprod.
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn with_dotprod(t: Tile<'_>) {
    // SAFETY: passed on.
    unsafe { weigh::<Udot>(t) };
}

#[inline(always)]
unsafe fn weigh<D: Dot>(mut t: Tile<'_>) {
    t.check();
    for panel in 0..2 * t.blocks {
        let mut row = 0;
        // SAFETY: passed on; sizes were checked, and rows `row .. row + R` are rows of the tile.
        unsafe {
            while t.rows - row >= 4 {
                rows::<D, 4>(&mut t, panel, row);
                row += 4;
            }
            match t.rows - row {
                1 => rows::<D, 1>(&mut t, panel, row),
                2 => rows::<D, 2>(&mut t, panel, row),
                3 => rows::<D, 3>(&mut t, panel, row),
                _ => {}
            }
        }
    }
}

/// `R` rows from `row` on, the 16 columns of a panel.
///
/// # Safety
/// The CPU must have the instructions of `D`; panel and rows are the tile's, whose sizes [`Tile::check`] has checked.
#[inline(always)]
unsafe fn rows<D: Dot, const R: usize>(t: &mut Tile<'_>, panel: usize, row: usize) {
    let (stride, block) = (t.stride(), panel / 2);
    // SAFETY: reads quads of one of the tile's panels and codes of its rows, 16 slots at a time, and writes 16 columns of their results.
    unsafe {
        let values = t.values.as_ptr().add(panel * PANEL_BYTES);
        let codes = t.codes.as_ptr().add(block * BLOCK + row * CHUNK);
        let mut sum = [[D::zero(); R]; QUARTERS];
        let mut taken = [vdupq_n_u32(0); R];
        for sixteen in t.panels.clone() {
            let mut w = [vdupq_n_u32(0); R];
            for r in 0..R {
                w[r] = read(codes.add(r * CHUNK + sixteen * PANEL));
                taken[r] = vpadalq_u16(taken[r], vpaddlq_u8(vreinterpretq_u8_u32(w[r])));
            }
            each!(J in [0 1 2 3] {
                let quad = values.add((sixteen * QUADS + J) * QUAD_BYTES);
                for (quarter, sum) in sum.iter_mut().enumerate() {
                    let v = veorq_u8(read(quad.add(quarter * QUAD_BYTES / QUARTERS)), vdupq_n_u8(0x80));
                    for r in 0..R {
                        D::add::<{ J as i32 }>(&mut sum[r], v, w[r]);
                    }
                }
            });
        }
        for r in 0..R {
            let offset = vdupq_n_s32(128 * vaddvq_u32(taken[r]) as i32);
            let factor = vdupq_n_f32(t.factors[block * MAX_TILE + row + r]);
            for (quarter, sum) in sum.iter().enumerate() {
                let total = vsubq_s32(vreinterpretq_s32_u32(D::total(sum[r])), offset);
                let at = (row + r) * stride + block * VALUE_PART + panel % 2 * PANEL + quarter * PANEL / QUARTERS;
                vst1q_f32(t.out.as_mut_ptr().add(at), vmulq_f32(factor, vcvtq_f32_s32(total)));
            }
        }
    }
}
