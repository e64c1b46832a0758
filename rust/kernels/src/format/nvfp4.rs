//! NVFP4, repacked to F16: `w = d_s·TABLE[nibble]`, the table of MXFP4, four sub-blocks of 16 with scales d_s of eight bits (UE4M3). 36 bytes for 64 weights: four
//! scales; for each sub-block eight bytes of nibbles, low ones first.
//!
//! A product of blocks of 32 has one scale a block, and a float scale for each 16 weights is none of its forms. But a weight is a number of F16: a level has
//! two significant bits, a scale four, and their products lie between 2^-10 and 2,880. So panels are those of F16, and meet activations as they are. The price
//! is memory: 16 bits a weight instead of 4.5.

use super::Repack;
use super::mxfp4::TABLE;
use crate::half::f32_to_f16;

pub(crate) const NVFP4: Repack = Repack { len: 64, bytes: 36, write };

fn write(file: &[u8], blocks: &mut [u8]) {
    for (i, half) in blocks.chunks_exact_mut(2).enumerate() {
        let (s, l) = (i / 16, i % 16);
        let nibble = file[4 + 8 * s + l % 8] >> (4 * (l / 8)) & 15;
        let weight = scale(file[s]) * f32::from(TABLE[usize::from(nibble)]);
        half.copy_from_slice(&f32_to_f16(weight).to_le_bytes());
    }
}

/// Half of the number that four bits of exponent and three of fraction name, since the levels are doubled. The sign does not count, except that 0x7f, which is
/// no number, is taken as 0.
fn scale(byte: u8) -> f32 {
    let (exponent, fraction) = (u32::from(byte >> 3 & 15), byte & 7);
    match exponent {
        _ if byte == 0x7f => 0.0,
        0 => f32::from(fraction) * f32::from_bits((127 - 10) << 23),
        _ => f32::from(8 + fraction) * f32::from_bits((127 - 11 + exponent) << 23),
    }
}
