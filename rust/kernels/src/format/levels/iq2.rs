//! IQ2_XXS, IQ2_XS, IQ2_S: `w = d·(2s + 1)/8·±{8, 25, 43}`, points of eight magnitudes from grids of 256, 512 and 1024, four-bit scales s.

use super::{Decoded, LowLevels, even_signs, grids, long, nibble, put_signed, repack, short};
use crate::format::{Repack, half_at};

/// d; for each 32 weights four indices of points, then four times seven bits of signs and the scale.
pub(crate) const IQ2_XXS: Repack = repack!(LowLevels, 66, read_xxs);
/// d; for each eight weights nine bits of a point and seven of signs; a nibble of scale for each 16 weights.
pub(crate) const IQ2_XS: Repack = repack!(LowLevels, 74, read_xs);
/// d; for each eight weights the lower eight bits of a point; for each eight a byte of signs; for each eight two more bits of the point; a nibble of scale for
/// each 16 weights.
pub(crate) const IQ2_S: Repack = repack!(LowLevels, 82, read_s);

fn read_xxs(file: &[u8]) -> Decoded {
    let mut nibbles = [0; 256];
    for (p, nibbles) in nibbles.chunks_exact_mut(8).enumerate() {
        let (s, l) = (p / 4, p % 4);
        let signs = even_signs(long(file, 2, 2 * s + 1) >> (7 * l));
        put_signed(nibbles, grids::IQ2_XXS[usize::from(file[2 + 8 * s + l])], signs);
    }
    let scales = std::array::from_fn(|s| 2 * (long(file, 2, s / 2 * 2 + 1) >> 28) as u8 + 1);
    Decoded { nibbles, scales, d: half_at(file, 0) * 0.125 }
}

fn read_xs(file: &[u8]) -> Decoded {
    let mut nibbles = [0; 256];
    for (p, nibbles) in nibbles.chunks_exact_mut(8).enumerate() {
        let bits = short(file, 2, p);
        put_signed(nibbles, grids::IQ2_XS[usize::from(bits & 511)], even_signs(u32::from(bits >> 9)));
    }
    let scales = std::array::from_fn(|s| 2 * nibble(file, 66, s) + 1);
    Decoded { nibbles, scales, d: half_at(file, 0) * 0.125 }
}

fn read_s(file: &[u8]) -> Decoded {
    let mut nibbles = [0; 256];
    for (p, nibbles) in nibbles.chunks_exact_mut(8).enumerate() {
        let high = file[66 + p / 4] >> (2 * (p % 4)) & 3;
        put_signed(nibbles, grids::IQ2_S[usize::from(file[2 + p]) | usize::from(high) << 8], file[34 + p]);
    }
    let scales = std::array::from_fn(|s| 2 * nibble(file, 74, s) + 1);
    Decoded { nibbles, scales, d: half_at(file, 0) * 0.125 }
}
