//! The products as plain code: the specification (M1, M2), and the test mode that multiplies dequantized weights.

use super::{Tile, TileFn};
use crate::act::{ActKind, unpack_row};
use crate::attend::Values;
use crate::format::{Block, F32, Float, Format, Layout, PANEL, SmallBlock, SuperBlock, half_at, with_shape};

/// The micro-kernel of a format.
pub(crate) fn multiply(format: Format) -> TileFn {
    with_shape!(format, F => small: small::<F>, large: large::<F>, float: float::<F>)
}

/// The micro-kernel of the test mode: `acc = fma(w, x, acc)` on dequantized weights and float activations.
pub(crate) fn multiply_expanded(format: Format) -> TileFn {
    with_shape!(format, F => small: expanded::<F>, large: expanded::<F>, float: expanded::<F>)
}

/// The micro-kernel of attention for cached numbers: `acc = fma(number, x, acc)` in ascending order, on rows that are not packed and on several panels.
pub(crate) fn weigh(values: Values) -> TileFn {
    match values {
        Values::F32 => weigh_f32,
        Values::F16 => weigh_f16,
    }
}

/// # Safety
/// As [`TileFn`].
unsafe fn weigh_f32(t: &Tile) {
    // SAFETY: passed on; a value is four bytes.
    unsafe { weigh_with(t, 4, |panel, i| F32::widen(&panel[4 * i..])) };
}

/// # Safety
/// As [`TileFn`].
unsafe fn weigh_f16(t: &Tile) {
    // SAFETY: passed on; a value is two bytes.
    unsafe { weigh_with(t, 2, |panel, i| half_at(panel, 2 * i)) };
}

/// # Safety
/// As [`TileFn`]; a number has `width` bytes.
unsafe fn weigh_with(t: &Tile, width: usize, value: impl Fn(&[u8], usize) -> f32) {
    for t in (0..t.panels.0).map(|p| t.one(p)) {
        // SAFETY: a panel has 16 numbers for each of `blocks`; rows lie `act_stride` apart.
        let (panel, x) = unsafe {
            (
                std::slice::from_raw_parts(t.panel, t.blocks * PANEL * width),
                std::slice::from_raw_parts(t.act, (t.rows - 1) * t.act_stride + t.blocks),
            )
        };
        for r in 0..t.rows {
            for lane in 0..PANEL {
                let mut acc = 0f32;
                for i in 0..t.blocks {
                    acc = value(panel, i * PANEL + lane).mul_add(f32::from_bits(x[r * t.act_stride + i]), acc);
                }
                // SAFETY: passed on.
                unsafe { store(&t, r, lane, acc) };
            }
        }
    }
}

/// The safe view of a tile.
struct View<'a> {
    panel: &'a [u8],
    act: &'a [u32],
}

/// # Safety
/// As [`TileFn`], for format `F` and activations of `kind`.
unsafe fn view<F: Block>(t: &Tile, kind: ActKind) -> View<'_> {
    // SAFETY: a panel has 16 rows of `blocks` blocks; a tile has `rows` rows of `row_words` words.
    unsafe {
        View {
            panel: std::slice::from_raw_parts(t.panel, PANEL * t.blocks * F::BYTES),
            act: std::slice::from_raw_parts(t.act, t.rows * kind.row_words(t.k)),
        }
    }
}

/// # Safety
/// As [`TileFn`].
unsafe fn store(t: &Tile, r: usize, lane: usize, value: f32) {
    if lane < t.columns {
        // SAFETY: row and column lie inside what the tile's maker promised.
        unsafe { *t.out.add(r * t.stride + lane) = value };
    }
}

unsafe fn small<F: SmallBlock>(t: &Tile) {
    // SAFETY: passed on.
    let v = unsafe { view::<F>(t, ActKind::Q32) };
    let extras = t.k / 4 * t.rows;
    let mut raw = [0u8; 64];
    for lane in 0..PANEL {
        let mut acc = [0f32; crate::act::MAX_TILE];
        for b in 0..t.blocks {
            Layout::of::<F>().gather(v.panel, t.blocks, lane, b, &mut raw[..F::BYTES]);
            let w = F::unpack(&raw[..F::BYTES]);
            for (r, acc) in acc[..t.rows].iter_mut().enumerate() {
                let mut a = [0i8; 32];
                let d = unpack_row(ActKind::Q32, v.act, t.rows, t.k, r, b, &mut a);
                let sum: i32 = w.codes.iter().zip(a).map(|(c, a)| (i32::from(*c) - F::OFFSET) * i32::from(a)).sum();
                *acc = (w.d * d).mul_add(sum as f32, *acc);
                if F::MIN {
                    let scaled_sum = f32::from_bits(v.act[extras + (b * crate::act::EXTRAS_32 + 1) * t.rows + r]);
                    *acc = w.m.mul_add(scaled_sum, *acc);
                }
            }
        }
        for (r, acc) in acc[..t.rows].iter().enumerate() {
            // SAFETY: passed on.
            unsafe { store(t, r, lane, *acc) };
        }
    }
}

unsafe fn large<F: SuperBlock>(t: &Tile) {
    // SAFETY: passed on.
    let v = unsafe { view::<F>(t, ActKind::Q256) };
    let mut raw = [0u8; 256];
    for lane in 0..PANEL {
        let mut acc = [0f32; crate::act::MAX_TILE];
        for b in 0..t.blocks {
            Layout::of::<F>().gather(v.panel, t.blocks, lane, b, &mut raw[..F::BYTES]);
            let w = F::unpack(&raw[..F::BYTES]);
            for (r, acc) in acc[..t.rows].iter_mut().enumerate() {
                let mut a = [0i8; 256];
                let d = unpack_row(ActKind::Q256, v.act, t.rows, t.k, r, b, &mut a);
                let (mut sum, mut least) = (0i32, 0i32);
                for s in 0..16 {
                    let (codes, a) = (&w.codes[16 * s..16 * (s + 1)], &a[16 * s..16 * (s + 1)]);
                    let part: i32 = codes.iter().zip(a).map(|(c, a)| (i32::from(*c) - F::OFFSET) * i32::from(*a)).sum();
                    sum += w.scales[s] * part;
                    least += w.mins[s] * a.iter().map(|a| i32::from(*a)).sum::<i32>();
                }
                *acc = (w.d * d).mul_add(sum as f32, *acc);
                if F::MIN {
                    *acc = (-(w.dmin * d)).mul_add(least as f32, *acc);
                }
            }
        }
        for (r, acc) in acc[..t.rows].iter().enumerate() {
            // SAFETY: passed on.
            unsafe { store(t, r, lane, *acc) };
        }
    }
}

unsafe fn float<F: Float>(t: &Tile) {
    // SAFETY: passed on.
    unsafe { expanded::<F>(t) };
}

unsafe fn expanded<F: Block>(t: &Tile) {
    // SAFETY: passed on.
    let v = unsafe { view::<F>(t, ActKind::F32) };
    let mut raw = [0u8; 256];
    let mut w = [0f32; 256];
    for lane in 0..PANEL {
        let mut acc = [0f32; crate::act::MAX_TILE];
        for b in 0..t.blocks {
            Layout::of::<F>().gather(v.panel, t.blocks, lane, b, &mut raw[..F::BYTES]);
            F::FORMAT.expand(&raw[..F::BYTES], &mut w[..F::LEN]);
            for (i, w) in w[..F::LEN].iter().enumerate() {
                let x = &v.act[(b * F::LEN + i) * t.rows..];
                for (r, acc) in acc[..t.rows].iter_mut().enumerate() {
                    *acc = w.mul_add(f32::from_bits(x[r]), *acc);
                }
            }
        }
        for (r, acc) in acc[..t.rows].iter().enumerate() {
            // SAFETY: passed on.
            unsafe { store(t, r, lane, *acc) };
        }
    }
}
