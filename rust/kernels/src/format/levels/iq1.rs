//! IQ1_S, IQ1_M: `w = d·(2s + 1)/8·(8g ± 1)`, points of eight numbers g out of −1, 0, 1 from a grid of 2048, three-bit scales s.

use super::{Decoded, LowLevels, grids, nibble, repack, short};
use crate::format::{Repack, half_at};
use crate::half::f16_to_f32;

/// d; for each eight weights the lower eight bits of a point; for each 32 weights four times three more bits, the scale, and whether they are shifted down.
pub(crate) const IQ1_S: Repack = repack!(LowLevels, 50, read_s);
/// For each eight weights the lower eight bits of a point; for each eight three more bits and whether they are shifted down; four 16-bit numbers of four scales
/// each, for 16 weights, and in their upper four bits, together, d.
pub(crate) const IQ1_M: Repack = repack!(LowLevels, 56, read_m);

/// Nibbles of a point whose eight numbers are shifted down or up.
fn put_shifted(nibbles: &mut [u8], point: u16, down: bool) {
    for (i, nibble) in nibbles.iter_mut().enumerate() {
        *nibble = (point >> (2 * i)) as u8 & 3 | if down { 4 } else { 12 };
    }
}

fn read_s(file: &[u8]) -> Decoded {
    let mut nibbles = [0; 256];
    for (p, nibbles) in nibbles.chunks_exact_mut(8).enumerate() {
        let bits = short(file, 34, p / 4);
        let high = usize::from(bits >> (3 * (p % 4)) & 7);
        put_shifted(nibbles, grids::IQ1[usize::from(file[2 + p]) | high << 8], bits & 0x8000 != 0);
    }
    let scales = std::array::from_fn(|s| 2 * (short(file, 34, s / 2) >> 12 & 7) as u8 + 1);
    Decoded { nibbles, scales, d: half_at(file, 0) * 0.125 }
}

fn read_m(file: &[u8]) -> Decoded {
    let mut nibbles = [0; 256];
    for (p, nibbles) in nibbles.chunks_exact_mut(8).enumerate() {
        let bits = nibble(file, 32, p);
        put_shifted(nibbles, grids::IQ1[usize::from(file[p]) | usize::from(bits & 7) << 8], bits & 8 != 0);
    }
    let scales = std::array::from_fn(|s| 2 * (short(file, 48, s / 4) >> (3 * (s % 4)) & 7) as u8 + 1);
    let d = (0..4).fold(0, |d, i| d | short(file, 48, i) >> 12 << (4 * i));
    Decoded { nibbles, scales, d: f16_to_f32(d) * 0.125 }
}
