//! The products with NEON, and with its dot products (`sdot`) where the CPU has them: 4 outputs in a register, a quarter panel; up to 5 activation rows a walk.
//!
//! Codes meet activations as signed bytes: a code of up to 7 bits as it is, a wider one, or one whose offset is cheaper to take off at once, as a signed level.
//! `sdot` adds four products into 32 bits. Without it `smlal` adds single products into 16 bits, which hold `32,767 / (127·greatest level)` of them (at least
//! two: N7 keeps an activation away from −128), and `sadalp` adds those in pairs into 32 bits. Both ways give the same integers.

use std::arch::aarch64::*;

use super::{Tile, TileFn};
use crate::act::{EXTRAS_32, EXTRAS_256, MAX_TILE, OFFSETS_32, PAIRS_16, PAIRS_32, pair_first};
use crate::attend::Values;
use crate::format::{Bf16, Block, F16, F32, Format, PANEL, SmallBlock, SuperBlock, with_shape};

/// How NEON unpacks a format of 32-wide blocks. All pointers to words and halves are advanced to the quarter panel.
pub(crate) trait Small128: SmallBlock {
    /// The greatest magnitude of what [`Self::codes`] gives; 128 means signed levels, from which the offset is off.
    const MOST: i32;

    /// The codes of group `G` (weights 4G to 4G + 3) of a block, of four rows.
    ///
    /// # Safety
    /// `words` must point to the panel words of a whole block, and `G` be below 8.
    unsafe fn codes<const G: usize>(words: *const u8) -> int8x16_t;

    /// The scales of the lanes.
    ///
    /// # Safety
    /// `at` must have [`SmallBlock::SCALE_BYTES`] bytes of each lane, and the CPU the set's instructions.
    #[inline(always)]
    unsafe fn scale(at: *const u8) -> float32x4_t {
        // SAFETY: half-precision numbers, by the caller.
        unsafe { halves(at) }
    }
}

/// How NEON unpacks a format of 256-wide blocks.
pub(crate) trait Super128: SuperBlock {
    /// The greatest magnitude of what [`Self::codes`] gives.
    const MOST: i32;
    /// Weights that share a scale: 16 or 32.
    const SUB: usize;

    /// The scales as 32-bit lanes: 16 of them, or 8 and padding where [`Self::SUB`] is 32.
    ///
    /// # Safety
    /// `words` and `halves` must point to the panel words and halves of a whole block.
    unsafe fn scales(words: *const u8, halves: *const u8) -> [int32x4_t; 16];

    /// The minimums, likewise, as 16-bit lanes; not asked for in a format without.
    ///
    /// # Safety
    /// As [`Self::scales`].
    unsafe fn mins(words: *const u8) -> [int16x4_t; 16];

    /// Group `g` of run `RUN` (32 weights) in half `half` of a block, as signed levels: the offset is off.
    ///
    /// # Safety
    /// As [`Self::scales`]; `half` is 0 or 1, `RUN` 0 to 3, `g` 0 to 7.
    unsafe fn codes<const RUN: usize>(words: *const u8, half: usize, g: usize) -> int8x16_t;

    /// The blocks' scales `d`.
    ///
    /// # Safety
    /// As [`Self::scales`].
    #[inline(always)]
    unsafe fn scale(_words: *const u8, tail: *const u8) -> float32x4_t {
        // SAFETY: half-precision numbers, by the caller.
        unsafe { halves(tail) }
    }
}

/// How NEON widens a float format.
trait Float128 {
    /// Bytes of a number.
    const WIDTH: usize;

    /// 4 numbers.
    ///
    /// # Safety
    /// `at` must have 4 numbers.
    unsafe fn load(at: *const u8) -> float32x4_t;
}

impl Float128 for F32 {
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> float32x4_t {
        // SAFETY: 16 bytes by the caller.
        unsafe { read(at) }
    }
}

impl Float128 for F16 {
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> float32x4_t {
        // SAFETY: 8 bytes by the caller.
        unsafe { halves(at) }
    }
}

impl Float128 for Bf16 {
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> float32x4_t {
        // SAFETY: 8 bytes by the caller.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(read(at))) }
    }
}

/// The micro-kernel of a format; `dotprod` if the CPU has `sdot`.
pub(crate) fn multiply(format: Format, dotprod: bool) -> TileFn {
    if dotprod {
        with_shape!(format, F => small: with_dotprod::small::<F>, large: with_dotprod::large::<F>, float: float::<F, false>)
    } else {
        with_shape!(format, F => small: base::small::<F>, large: base::large::<F>, float: float::<F, false>)
    }
}

/// The micro-kernel of attention for cached numbers: rows that are not packed, several panels.
pub(crate) fn weigh(values: Values) -> TileFn {
    match values {
        Values::F32 => each_panel::<F32>,
        Values::F16 => each_panel::<F16>,
    }
}

/// The body once for each group of four weights, with its number as a constant: unpacking needs constant shifts, dot products constant lanes, and registers
/// only hold arrays whose indices are constants.
macro_rules! each_group {
    ($G:ident => $body:block) => { each!($G in [0 1 2 3 4 5 6 7] $body) };
}

/// Likewise for each activation row of a walk.
macro_rules! each_row {
    ($ROW:ident < $R:ident => $body:block) => { each!($ROW in [0 1 2 3 4] { if const { $ROW < $R } $body }) };
}

/// Likewise for each quarter panel of a walk.
macro_rules! each_quarter {
    ($QUARTER:ident < $Q:ident => $body:block) => { each!($QUARTER in [0 1 2 3] { if const { $QUARTER < $Q } $body }) };
}

macro_rules! each {
    ($N:ident in [$($n:literal)+] $body:block) => {
        $({
            const $N: usize = $n;
            $body
        })+
    };
}

/// A way to add products of bytes: one sum of four outputs, under way.
trait Dot {
    type Sum: Copy;

    /// # Safety
    /// (Of each function:) the CPU must have the instructions of this way.
    unsafe fn zero() -> Self::Sum;
    /// Adds, in each 32-bit lane, four codes times the four bytes of lane `LANE` of `a`.
    unsafe fn add<const LANE: i32>(sum: &mut Self::Sum, code: int8x16_t, a: int32x4_t);
    /// Makes room for as many more as 16 bits hold.
    unsafe fn flush(sum: &mut Self::Sum);
    unsafe fn total(sum: Self::Sum) -> int32x4_t;
}

/// How many products 16 bits hold.
const fn fit(most: i32) -> usize {
    (32_767 / (most * 127)) as usize
}

/// `sdot`.
struct Sdot;

impl Dot for Sdot {
    type Sum = int32x4_t;

    #[inline(always)]
    unsafe fn zero() -> int32x4_t {
        // SAFETY: no memory is touched.
        unsafe { vdupq_n_s32(0) }
    }

    #[inline(always)]
    unsafe fn add<const LANE: i32>(sum: &mut int32x4_t, code: int8x16_t, a: int32x4_t) {
        // SAFETY: passed on.
        unsafe { sdot::<LANE>(sum, code, a) };
    }

    #[inline(always)]
    unsafe fn flush(_sum: &mut int32x4_t) {}

    #[inline(always)]
    unsafe fn total(sum: int32x4_t) -> int32x4_t {
        sum
    }
}

/// In assembly, because the intrinsic is not stable; and so that the order of the source stands, which keeps unpacked codes few and short-lived.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn sdot<const LANE: i32>(sum: &mut int32x4_t, code: int8x16_t, a: int32x4_t) {
    // SAFETY: touches nothing but the named registers.
    unsafe {
        std::arch::asm!(
            "sdot {sum:v}.4s, {code:v}.16b, {a:v}.4b[{lane}]",
            sum = inout(vreg) *sum,
            code = in(vreg) code,
            a = in(vreg) a,
            lane = const LANE,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// `smlal` and `sadalp`.
struct Smlal;

/// Single products in 16 bits, of rows 0 and 1 and of rows 2 and 3; and their sums in 32 bits, two a row.
#[derive(Clone, Copy)]
struct Halfway {
    products: [int16x8_t; 2],
    pairs: [int32x4_t; 2],
}

impl Dot for Smlal {
    type Sum = Halfway;

    #[inline(always)]
    unsafe fn zero() -> Halfway {
        // SAFETY: no memory is touched.
        unsafe { Halfway { products: [vdupq_n_s16(0); 2], pairs: [vdupq_n_s32(0); 2] } }
    }

    #[inline(always)]
    unsafe fn add<const LANE: i32>(sum: &mut Halfway, code: int8x16_t, a: int32x4_t) {
        // SAFETY: no memory is touched.
        unsafe {
            let a = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(a));
            sum.products[0] = vmlal_s8(sum.products[0], vget_low_s8(code), vget_low_s8(a));
            sum.products[1] = vmlal_high_s8(sum.products[1], code, a);
        }
    }

    #[inline(always)]
    unsafe fn flush(sum: &mut Halfway) {
        // SAFETY: no memory is touched.
        unsafe {
            sum.pairs = [vpadalq_s16(sum.pairs[0], sum.products[0]), vpadalq_s16(sum.pairs[1], sum.products[1])];
            sum.products = [vdupq_n_s16(0); 2];
        }
    }

    #[inline(always)]
    unsafe fn total(mut sum: Halfway) -> int32x4_t {
        // SAFETY: no memory is touched.
        unsafe {
            Self::flush(&mut sum);
            vpaddq_s32(sum.pairs[0], sum.pairs[1])
        }
    }
}

/// A value wherever it lies.
#[repr(C, packed)]
struct Anywhere<T>(T);

/// Reads a value wherever it lies: one load instruction in every build. (The intrinsics' loads check their pointers in builds with debug assertions.)
///
/// # Safety
/// `at` must have the bytes of a `T`, for which any bytes must do.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(at: *const u8) -> T {
    // SAFETY: passed on; a packed struct has no alignment.
    unsafe { (*at.cast::<Anywhere<T>>()).0 }
}

/// `R` words of a tile.
///
/// # Safety
/// `at` must have them.
#[inline(always)]
unsafe fn words<const R: usize>(at: *const u32) -> [int32x4_t; 2] {
    // SAFETY: reads exactly R words.
    unsafe {
        let at = at.cast::<i32>();
        let zero = vdupq_n_s32(0);
        let two = |at: *const i32| vcombine_s32(read(at.cast()), vdup_n_s32(0));
        match R {
            1 => [vld1q_lane_s32::<0>(at, zero), zero],
            2 => [two(at), zero],
            3 => [vld1q_lane_s32::<2>(at.add(2), two(at)), zero],
            4 => [read(at.cast()), zero],
            _ => [read(at.cast()), vld1q_lane_s32::<0>(at.add(4), zero)],
        }
    }
}

/// [`words`] that are floats.
///
/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn numbers<const R: usize>(at: *const u32) -> [float32x4_t; 2] {
    // SAFETY: passed on.
    unsafe {
        let [low, high] = words::<R>(at);
        [vreinterpretq_f32_s32(low), vreinterpretq_f32_s32(high)]
    }
}

/// Four half-precision numbers, widened. In assembly, because the intrinsics ask for half-precision arithmetic, which this does not need.
#[inline(always)]
unsafe fn halves(at: *const u8) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: 8 bytes by the caller; `fcvtl` touches nothing but the named registers and the float status, which no code reads.
    unsafe {
        std::arch::asm!(
            "fcvtl {wide:v}.4s, {half:v}.4h",
            wide = lateout(vreg) wide,
            half = in(vreg) read::<uint16x4_t>(at),
            options(pure, nomem, nostack),
        );
    }
    wide
}

/// Fetches a line of the next panel.
#[inline(always)]
fn fetch(at: *const u8) {
    // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
    unsafe { std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags)) };
}

/// Fetches block `b` of the next panel; the quarter panels lie in the same lines, so one walk asks.
#[inline(always)]
fn prefetch<F: Block>(next: *const u8, blocks: usize, b: usize) {
    let word_bytes = F::WORD_BYTES;
    let half_bytes = F::TAIL_BYTES;
    for w in 0..F::WORDS.len() {
        fetch(next.wrapping_add(b * word_bytes + 64 * w));
    }
    fetch(next.wrapping_add(blocks * word_bytes + b * half_bytes));
}

/// Stores four columns from `lane` on, as far as the tile has them.
#[inline(always)]
unsafe fn store(t: &Tile, r: usize, lane: usize, acc: float32x4_t) {
    // SAFETY: only columns below `columns` of a row of the tile are written.
    unsafe {
        let at = t.out.add(r * t.stride);
        if t.columns >= lane + 4 {
            vst1q_f32(at.add(lane), acc);
        } else {
            let mut values = [0f32; 4];
            vst1q_f32(values.as_mut_ptr(), acc);
            for (c, value) in values.iter().enumerate().take(t.columns.saturating_sub(lane)) {
                *at.add(lane + c) = *value;
            }
        }
    }
}

/// Most activation rows of one walk.
const MOST_ROWS: usize = 5;
const _: () = assert!(MAX_TILE <= 2 * MOST_ROWS);

/// The walks of a tile: first row and number of rows of each.
#[inline(always)]
fn walks(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = if rows > MOST_ROWS { rows - rows / 2 } else { rows };
    [(0, first), (first, rows - first)].into_iter().filter(|(_, rows)| *rows > 0)
}

/// Rows `row .. row + R` of a tile times the panel, `Q` quarters at a time.
///
/// # Safety
/// As [`TileFn`]; the rows must be the tile's, and the CPU have what `D` needs.
#[inline(always)]
unsafe fn small_rows<F: Small128, D: Dot, const R: usize, const Q: usize>(t: &Tile, row: usize) {
    let m = t.rows;
    let word_bytes = F::WORD_BYTES;
    let half_bytes = F::TAIL_BYTES;
    let half_area = t.panel.wrapping_add(t.blocks * word_bytes);
    let act = t.act.wrapping_add(row);
    let extras = act.wrapping_add(t.k / 4 * m);
    for side in (0..4).step_by(Q) {
        // SAFETY: block b of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
        unsafe {
            let mut acc = [[vdupq_n_f32(0.0); R]; Q];
            for b in 0..t.blocks {
                if side == 0 && row == 0 {
                    prefetch::<F>(t.next, t.blocks, b);
                }
                let w = t.panel.add(b * word_bytes + 16 * side);
                let h = half_area.add(b * half_bytes + 4 * F::SCALE_BYTES * side);
                let a = act.add(b * 8 * m);
                let e = extras.add(b * EXTRAS_32 * m);
                let mut sum = [[D::zero(); R]; Q];
                each_group!(G => {
                    let x = words::<R>(a.add(G * m));
                    each_quarter!(QUARTER < Q => {
                        let code = F::codes::<G>(w.add(16 * QUARTER));
                        each_row!(ROW < R => {
                            D::add::<{ (ROW % 4) as i32 }>(&mut sum[QUARTER][ROW], code, x[ROW / 4]);
                            if const { (G + 1).is_multiple_of(fit(F::MOST)) } {
                                D::flush(&mut sum[QUARTER][ROW]);
                            }
                        });
                    });
                });
                let scale = numbers::<R>(e);
                // A format's offset times Σ is among the extras, negated.
                let offset = match OFFSETS_32.iter().position(|o| *o == F::OFFSET) {
                    Some(i) if F::MOST < 128 => words::<R>(e.add((2 + i) * m)),
                    _ => [vdupq_n_s32(0); 2],
                };
                each_quarter!(QUARTER < Q => {
                    let d = F::scale(h.add(4 * F::SCALE_BYTES * QUARTER));
                    each_row!(ROW < R => {
                        const LANE: i32 = (ROW % 4) as i32;
                        let total = vaddq_s32(D::total(sum[QUARTER][ROW]), vdupq_laneq_s32::<LANE>(offset[ROW / 4]));
                        let scale = vmulq_laneq_f32::<LANE>(d, scale[ROW / 4]);
                        acc[QUARTER][ROW] = vfmaq_f32(acc[QUARTER][ROW], scale, vcvtq_f32_s32(total));
                    });
                });
                if F::MIN {
                    let scaled_sum = numbers::<R>(e.add(m));
                    each_quarter!(QUARTER < Q => {
                        let min = halves(h.add(2 * PANEL + 8 * QUARTER));
                        each_row!(ROW < R => {
                            const LANE: i32 = (ROW % 4) as i32;
                            acc[QUARTER][ROW] = vfmaq_laneq_f32::<LANE>(acc[QUARTER][ROW], min, scaled_sum[ROW / 4]);
                        });
                    });
                }
            }
            store_rows(t, row, side, &acc);
        }
    }
}

/// As [`small_rows`].
///
/// # Safety
/// As [`small_rows`].
#[inline(always)]
unsafe fn large_rows<F: Super128, D: Dot, const R: usize, const Q: usize>(t: &Tile, row: usize) {
    let m = t.rows;
    let word_bytes = F::WORD_BYTES;
    let half_bytes = F::TAIL_BYTES;
    let half_area = t.panel.wrapping_add(t.blocks * word_bytes);
    let act = t.act.wrapping_add(row);
    let extras = act.wrapping_add(t.k / 4 * m);
    for side in (0..4).step_by(Q) {
        // SAFETY: block b of panel and tile, whose sizes the tile states; each offset stays inside its block's part.
        unsafe {
            let mut acc = [[vdupq_n_f32(0.0); R]; Q];
            for b in 0..t.blocks {
                if side == 0 && row == 0 {
                    prefetch::<F>(t.next, t.blocks, b);
                }
                let w = t.panel.add(b * word_bytes + 16 * side);
                let h = half_area.add(b * half_bytes + 8 * side);
                let a = act.add(b * 64 * m);
                let e = extras.add(b * EXTRAS_256 * m);
                let mut scales = [[vdupq_n_s32(0); 16]; Q];
                for (quarter, scales) in scales.iter_mut().enumerate() {
                    *scales = F::scales(w.add(16 * quarter), h.add(8 * quarter));
                }
                let mut sum = [[vdupq_n_s32(0); R]; Q];
                for half in 0..2 {
                    run::<F, D, R, Q, 0>(w, &scales, half, a, m, &mut sum);
                    run::<F, D, R, Q, 1>(w, &scales, half, a, m, &mut sum);
                    run::<F, D, R, Q, 2>(w, &scales, half, a, m, &mut sum);
                    run::<F, D, R, Q, 3>(w, &scales, half, a, m, &mut sum);
                }
                let scale = numbers::<R>(e);
                each_quarter!(QUARTER < Q => {
                    let d = F::scale(w.add(16 * QUARTER), h.add(8 * QUARTER));
                    each_row!(ROW < R => {
                        let scale = vmulq_laneq_f32::<{ (ROW % 4) as i32 }>(d, scale[ROW / 4]);
                        acc[QUARTER][ROW] = vfmaq_f32(acc[QUARTER][ROW], scale, vcvtq_f32_s32(sum[QUARTER][ROW]));
                    });
                });
                if F::MIN {
                    let least = least::<F, R, Q>(w, e, m);
                    each_quarter!(QUARTER < Q => {
                        let dmin = halves(h.add(2 * PANEL + 8 * QUARTER));
                        each_row!(ROW < R => {
                            let scale = vmulq_laneq_f32::<{ (ROW % 4) as i32 }>(dmin, scale[ROW / 4]);
                            acc[QUARTER][ROW] = vfmsq_f32(acc[QUARTER][ROW], scale, vcvtq_f32_s32(least[QUARTER][ROW]));
                        });
                    });
                }
            }
            store_rows(t, row, side, &acc);
        }
    }
}

/// The products of run `RUN` of half `half` of a block, times their scales.
///
/// # Safety
/// As [`large_rows`], which calls this.
#[inline(always)]
unsafe fn run<F: Super128, D: Dot, const R: usize, const Q: usize, const RUN: usize>(
    w: *const u8,
    scales: &[[int32x4_t; 16]; Q],
    half: usize,
    a: *const u32,
    m: usize,
    sum: &mut [[int32x4_t; R]; Q],
) {
    let groups = F::SUB / 4;
    // As many groups as 16 bits hold, without need to flush.
    let stretch = const { if fit(F::MOST) < F::SUB / 4 { fit(F::MOST) } else { F::SUB / 4 } };
    const { assert!((F::SUB / 4).is_multiple_of(if fit(F::MOST) < F::SUB / 4 { fit(F::MOST) } else { F::SUB / 4 })) };
    // SAFETY: passed on.
    unsafe {
        let mut a = a.add((4 * half + RUN) * 8 * m);
        for part in 0..32 / F::SUB {
            let mut sub = [[D::zero(); R]; Q];
            for first in (0..groups).step_by(stretch) {
                for g in first..first + stretch {
                    let x = words::<R>(a);
                    a = a.add(m);
                    each_quarter!(QUARTER < Q => {
                        let code = F::codes::<RUN>(w.add(16 * QUARTER), half, part * groups + g);
                        each_row!(ROW < R => {
                            D::add::<{ (ROW % 4) as i32 }>(&mut sub[QUARTER][ROW], code, x[ROW / 4]);
                        });
                    });
                }
                if stretch < groups {
                    each_quarter!(QUARTER < Q => {
                        each_row!(ROW < R => { D::flush(&mut sub[QUARTER][ROW]) });
                    });
                }
            }
            let s = (4 * half + RUN) * (32 / F::SUB) + part;
            each_quarter!(QUARTER < Q => {
                each_row!(ROW < R => {
                    let total = D::total(sub[QUARTER][ROW]);
                    sum[QUARTER][ROW] = vmlaq_s32(sum[QUARTER][ROW], total, scales[QUARTER][s]);
                });
            });
        }
    }
}

/// Σ min·Σa of a block.
///
/// # Safety
/// As [`large_rows`], which calls this; `e` points to the block's extras.
#[inline(always)]
unsafe fn least<F: Super128, const R: usize, const Q: usize>(
    w: *const u8,
    e: *const u32,
    m: usize,
) -> [[int32x4_t; R]; Q] {
    // SAFETY: passed on.
    unsafe {
        let mut mins = [[vdup_n_s16(0); 16]; Q];
        for (quarter, mins) in mins.iter_mut().enumerate() {
            *mins = F::mins(w.add(16 * quarter));
        }
        let mut least = [[vdupq_n_s32(0); R]; Q];
        let (count, first) = if F::SUB == 32 { (4, PAIRS_32) } else { (8, PAIRS_16) };
        for q in 0..count {
            // Each word holds the sums that belong to sub-blocks s and s + 2.
            let s = pair_first(q);
            let sums = words::<R>(e.add((first + q) * m)).map(
                #[inline(always)]
                |x| vreinterpretq_s16_s32(x),
            );
            each_quarter!(QUARTER < Q => {
                each_row!(ROW < R => {
                    const LANE: i32 = 2 * (ROW % 4) as i32;
                    let sums = sums[ROW / 4];
                    let one = vmlal_laneq_s16::<LANE>(least[QUARTER][ROW], mins[QUARTER][s], sums);
                    least[QUARTER][ROW] = vmlal_laneq_s16::<{ LANE + 1 }>(one, mins[QUARTER][s + 2], sums);
                });
            });
        }
        least
    }
}

/// # Safety
/// As [`large_rows`].
#[inline(always)]
unsafe fn store_rows<const R: usize, const Q: usize>(t: &Tile, row: usize, side: usize, acc: &[[float32x4_t; R]; Q]) {
    for (quarter, acc) in acc.iter().enumerate() {
        for (r, acc) in acc.iter().enumerate() {
            // SAFETY: passed on.
            unsafe { store(t, row + r, 4 * (side + quarter), *acc) };
        }
    }
}

/// The kernels, once for each way of adding: for each number of rows, the quarters whose sums the registers hold beside each other. One row needs many,
/// because each sum waits for its last product.
macro_rules! kernels {
    ($name:ident, $features:literal, $D:ty, [$($R:literal by $Q:literal),+]) => {
        mod $name {
            use super::*;

            /// # Safety
            /// As [`TileFn`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn small<F: Small128>(t: &Tile) {
                for (row, rows) in walks(t.rows) {
                    match rows {
                        // SAFETY: passed on; rows `row .. row + R` are rows of the tile.
                        $($R => unsafe { small_walk::<F, $R, $Q>(t, row) },)+
                        rows => unreachable!("no walk of {rows} rows"),
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn small_walk<F: Small128, const R: usize, const Q: usize>(t: &Tile, row: usize) {
                // SAFETY: passed on.
                unsafe { small_rows::<F, $D, R, Q>(t, row) }
            }

            /// # Safety
            /// As [`TileFn`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn large<F: Super128>(t: &Tile) {
                for (row, rows) in walks(t.rows) {
                    match rows {
                        // SAFETY: passed on; rows `row .. row + R` are rows of the tile.
                        $($R => unsafe { large_walk::<F, $R, $Q>(t, row) },)+
                        rows => unreachable!("no walk of {rows} rows"),
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn large_walk<F: Super128, const R: usize, const Q: usize>(t: &Tile, row: usize) {
                // SAFETY: passed on.
                unsafe { large_rows::<F, $D, R, Q>(t, row) }
            }
        }
    };
}

kernels!(base, "neon", Smlal, [1 by 4, 2 by 2, 3 by 1, 4 by 1, 5 by 1]);
kernels!(with_dotprod, "neon,dotprod", Sdot, [1 by 4, 2 by 4, 3 by 2, 4 by 2, 5 by 2]);

/// # Safety
/// As [`TileFn`].
#[target_feature(enable = "neon")]
unsafe fn each_panel<F: Float128>(t: &Tile) {
    for p in 0..t.panels.0 {
        // SAFETY: passed on.
        unsafe { float::<F, true>(&t.one(p)) };
    }
}

/// # Safety
/// As [`TileFn`].
#[target_feature(enable = "neon")]
unsafe fn float<F: Float128, const BY_ROW: bool>(t: &Tile) {
    for (row, rows) in walks(t.rows) {
        // SAFETY: passed on; rows `row .. row + R` are rows of the tile.
        unsafe {
            match rows {
                1 => float_rows::<F, 1, BY_ROW>(t, row),
                2 => float_rows::<F, 2, BY_ROW>(t, row),
                3 => float_rows::<F, 3, BY_ROW>(t, row),
                4 => float_rows::<F, 4, BY_ROW>(t, row),
                5 => float_rows::<F, 5, BY_ROW>(t, row),
                rows => unreachable!("no walk of {rows} rows"),
            }
        }
    }
}

/// In a packed tile the rows of a value lie together; else four values of a row are read at once.
#[target_feature(enable = "neon")]
unsafe fn float_rows<F: Float128, const R: usize, const BY_ROW: bool>(t: &Tile, row: usize) {
    const Q: usize = 4;
    let width = F::WIDTH * PANEL;
    let mut acc = [[vdupq_n_f32(0.0); R]; Q];
    // SAFETY: weight i of 16 rows and value i of R rows lie inside panel and tile.
    unsafe {
        if BY_ROW {
            let act = t.act.add(row * t.act_stride).cast::<f32>();
            let whole = t.blocks / 4 * 4;
            for i in (0..whole).step_by(4) {
                let mut x = [vdupq_n_f32(0.0); R];
                each_row!(ROW < R => { x[ROW] = read(act.add(ROW * t.act_stride + i).cast()) });
                each!(J in [0 1 2 3] {
                    each_quarter!(QUARTER < Q => {
                        let w = F::load(t.panel.add((i + J) * width + QUARTER * width / 4));
                        each_row!(ROW < R => {
                            acc[QUARTER][ROW] = vfmaq_laneq_f32::<{ J as i32 }>(acc[QUARTER][ROW], w, x[ROW]);
                        });
                    });
                });
            }
            for i in whole..t.blocks {
                each_quarter!(QUARTER < Q => {
                    let w = F::load(t.panel.add(i * width + QUARTER * width / 4));
                    each_row!(ROW < R => {
                        acc[QUARTER][ROW] = vfmaq_n_f32(acc[QUARTER][ROW], w, act.add(ROW * t.act_stride + i).read());
                    });
                });
            }
        } else {
            let act = t.act.add(row);
            for i in 0..t.blocks {
                fetch(t.next.wrapping_add(i * width));
                let x = numbers::<R>(act.add(i * t.rows));
                each_quarter!(QUARTER < Q => {
                    let w = F::load(t.panel.add(i * width + QUARTER * width / 4));
                    each_row!(ROW < R => {
                        const LANE: i32 = (ROW % 4) as i32;
                        acc[QUARTER][ROW] = vfmaq_laneq_f32::<LANE>(acc[QUARTER][ROW], w, x[ROW / 4]);
                    });
                });
            }
        }
        store_rows(t, row, 0, &acc);
    }
}

/// Word `w` of four rows.
///
/// # Safety
/// `words` must have it.
#[inline(always)]
pub(crate) unsafe fn load(words: *const u8, w: usize) -> uint8x16_t {
    // SAFETY: 16 bytes by the caller.
    unsafe { read(words.add(w * 64)) }
}

/// [`load`], as 32-bit lanes.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(crate) unsafe fn load_wide(words: *const u8, w: usize) -> uint32x4_t {
    // SAFETY: passed on.
    unsafe { vreinterpretq_u32_u8(load(words, w)) }
}

/// Low or high nibbles of a word.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(crate) unsafe fn nibble<const HIGH: bool>(words: *const u8, w: usize) -> uint8x16_t {
    // SAFETY: passed on.
    unsafe {
        let bytes = load(words, w);
        if HIGH { vshrq_n_u8::<4>(bytes) } else { vandq_u8(bytes, vdupq_n_u8(15)) }
    }
}

/// Group `G` of a 32-wide block of nibbles in words `first .. first + 4`: their low nibbles, then their high ones.
///
/// # Safety
/// As [`load`], for those words.
#[inline(always)]
pub(crate) unsafe fn nibbles<const G: usize>(words: *const u8, first: usize) -> uint8x16_t {
    // SAFETY: passed on.
    unsafe { if G < 4 { nibble::<false>(words, first + G) } else { nibble::<true>(words, first + G - 4) } }
}

/// Adds `value` to the bytes of `code` where the bytes of `mask` have the bit of `bits`.
///
/// # Safety
/// The CPU must have NEON. `code` has no bit of `value` set.
#[inline(always)]
pub(crate) unsafe fn add_where(code: uint8x16_t, mask: uint8x16_t, bits: uint8x16_t, value: u8) -> uint8x16_t {
    // SAFETY: no memory is touched.
    unsafe { vorrq_u8(code, vandq_u8(vtstq_u8(mask, bits), vdupq_n_u8(value))) }
}

/// The four bytes of each lane as lanes.
///
/// # Safety
/// The CPU must have NEON.
#[inline(always)]
pub(crate) unsafe fn bytes(four: uint32x4_t) -> [uint32x4_t; 4] {
    // SAFETY: no memory is touched.
    unsafe {
        let mask = vdupq_n_u32(255);
        [
            vandq_u32(four, mask),
            vandq_u32(vshrq_n_u32::<8>(four), mask),
            vandq_u32(vshrq_n_u32::<16>(four), mask),
            vshrq_n_u32::<24>(four),
        ]
    }
}
