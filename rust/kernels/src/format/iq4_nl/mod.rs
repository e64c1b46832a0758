//! IQ4_NL: `w = d·TABLE[nibble]`, 32 nibbles into a fixed table and a half-precision scale. 18 bytes. As a code: `TABLE[nibble] + 128`.
//!
//! Integers: |Σ code·a| ≤ 32·241·127 = 979,424, the offset at most 520,192: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Small, SmallBlock, half_at, nibbles, words_from};

/// The sixteen levels, denser near zero. A constant of the file format.
pub const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The table as unsigned codes.
pub(super) const LEVELS: [u8; 16] = super::levels_above(&TABLE, 128);

pub(crate) struct Iq4Nl;

impl Block for Iq4Nl {
    const FORMAT: Format = Format::IQ4_NL;
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const WORDS: &'static [usize] = &words_from::<4>(2);
    const HALVES: &'static [usize] = &[0];
}

impl SmallBlock for Iq4Nl {
    const OFFSET: i32 = 128;
    const MIN: bool = false;
    fn unpack(block: &[u8]) -> Small {
        Small { codes: nibbles(&block[2..]).map(level), d: half_at(block, 0), m: 0.0 }
    }
}

/// The unsigned code of a nibble.
pub(super) fn level(nibble: u8) -> u8 {
    LEVELS[usize::from(nibble)]
}
