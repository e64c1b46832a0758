//! MXFP4: `w = d·TABLE[nibble]`, 32 nibbles into a fixed table (twice the E2M1 numbers) and a scale that is a power of two. 17 bytes: the exponent e of the
//! scale, the nibbles. `d = 2^(e − 128)`, so there is no NaN and no zero among the scales. As a code: `TABLE[nibble] + 16`.
//!
//! Integers: |Σ code·a| ≤ 32·28·127 = 113,792, the offset at most 16·32·127 = 65,024: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Small, SmallBlock, nibbles, words_from};

/// The sixteen levels. A constant of the file format.
pub(super) const TABLE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The table as unsigned codes.
const LEVELS: [u8; 16] = super::levels_above(&TABLE, 16);

pub(crate) struct Mxfp4;

impl Block for Mxfp4 {
    const FORMAT: Format = Format::MXFP4;
    const LEN: usize = 32;
    const BYTES: usize = 17;
    const WORDS: &'static [usize] = &words_from::<4>(1);
    const HALVES: &'static [usize] = &[];
    const SINGLES: &'static [usize] = &[0];
}

impl SmallBlock for Mxfp4 {
    const OFFSET: i32 = 16;
    const MIN: bool = false;
    const SCALE_BYTES: usize = 1;
    fn unpack(block: &[u8]) -> Small {
        let codes = nibbles(&block[1..]).map(|nibble| LEVELS[usize::from(nibble)]);
        Small { codes, d: scale(block[0]), m: 0.0 }
    }
}

/// Half of the power of two that an E8M0 byte names, since the levels are doubled: 2^(e − 128), of which those of e = 0 and e = 1 are subnormal.
fn scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}
