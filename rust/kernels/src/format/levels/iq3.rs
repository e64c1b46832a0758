//! IQ3_XXS: `w = d·(2s + 1)/4·±magnitude`, IQ3_S: `w = d·(2s + 1)·±magnitude`: points of four out of eight magnitudes from grids of 256 and 512, four-bit
//! scales s for each 32 weights.

use super::{Decoded, EvenLevels, OddLevels, even_signs, grids, long, nibble, put_signed, repack};
use crate::format::{Repack, half_at};

/// d; for each four weights the index of a point; for each 32 weights four times seven bits of signs and the scale.
pub(crate) const IQ3_XXS: Repack = repack!(EvenLevels, 98, read_xxs);
/// d; for each four weights the lower eight bits of a point; for each four its ninth bit; for each eight a byte of signs; a nibble of scale for each 32 weights.
pub(crate) const IQ3_S: Repack = repack!(OddLevels, 110, read_s);

fn read_xxs(file: &[u8]) -> Decoded {
    let (mut nibbles, mut scales) = ([0; 256], [0; 16]);
    for (p, nibbles) in nibbles.chunks_exact_mut(4).enumerate() {
        let bits = long(file, 66, p / 8);
        let signs = even_signs(bits >> (7 * (p % 8 / 2))) >> (4 * (p % 2));
        put_signed(nibbles, grids::IQ3_XXS[usize::from(file[2 + p])], signs);
        scales[p / 8] = 2 * (bits >> 28) as u8 + 1;
    }
    Decoded { nibbles, scales, d: half_at(file, 0) * 0.25 }
}

fn read_s(file: &[u8]) -> Decoded {
    let (mut nibbles, mut scales) = ([0; 256], [0; 16]);
    for (p, nibbles) in nibbles.chunks_exact_mut(4).enumerate() {
        let high = file[66 + p / 8] >> (p % 8) & 1;
        let point = grids::IQ3_S[usize::from(file[2 + p]) | usize::from(high) << 8];
        put_signed(nibbles, point, nibble(file, 74, p));
        scales[p / 8] = 2 * nibble(file, 106, p / 8) + 1;
    }
    Decoded { nibbles, scales, d: half_at(file, 0) }
}
