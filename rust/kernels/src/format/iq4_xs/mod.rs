//! IQ4_XS: `w = d·(s − 32)·TABLE[nibble]`, 8 sub-blocks of 32 with six-bit scales s. 136 bytes: d, the upper two bits of the scales (2 bytes), their
//! lower four bits (4 bytes), the nibbles.
//!
//! Integers: |Σ scale·Σ code·a| ≤ 32·241·127·256 = 250,734,592, and 128·|Σ scale·Σ a| ≤ 133,169,152: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::iq4_nl::level;
use super::{Block, Format, Super, SuperBlock, half_at, nibbles, words_from};

pub(crate) struct Iq4Xs;

impl Block for Iq4Xs {
    const FORMAT: Format = Format::IQ4_XS;
    const LEN: usize = 256;
    const BYTES: usize = 136;
    const WORDS: &'static [usize] = &words_from::<33>(4);
    const HALVES: &'static [usize] = &[0, 2];
}

impl SuperBlock for Iq4Xs {
    const OFFSET: i32 = 128;
    const MIN: bool = false;
    fn unpack(block: &[u8]) -> Super {
        let high = u16::from_le_bytes([block[2], block[3]]);
        let mut codes = [0; 256];
        let mut scales = [0; 16];
        for s in 0..8 {
            let low = block[4 + s / 2] >> (4 * (s % 2)) & 15;
            let scale = i32::from(low) | i32::from(high >> (2 * s) & 3) << 4;
            scales[2 * s] = scale - 32;
            scales[2 * s + 1] = scale - 32;
            codes[32 * s..32 * (s + 1)].copy_from_slice(&nibbles(&block[8 + 16 * s..]).map(level));
        }
        Super { codes, scales, mins: [0; 16], d: half_at(block, 0), dmin: 0.0 }
    }
}
