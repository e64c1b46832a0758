//! Q5_0: `w = d·(code − 16)`, 32 five-bit codes (four bits and a word of fifth bits) and a half-precision scale. 22 bytes.
//!
//! Integers: |Σ code·a| ≤ 32·31·127 = 125,984, the offset at most 16·32·127 = 65,024: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Small, SmallBlock, half_at, nibbles, words_from};

pub(crate) struct Q5_0;

impl Block for Q5_0 {
    const FORMAT: Format = Format::Q5_0;
    const LEN: usize = 32;
    const BYTES: usize = 22;
    const WORDS: &'static [usize] = &words_from::<5>(2);
    const HALVES: &'static [usize] = &[0];
}

impl SmallBlock for Q5_0 {
    const OFFSET: i32 = 16;
    const MIN: bool = false;
    fn unpack(block: &[u8]) -> Small {
        Small { codes: five_bits(&block[2..]), d: half_at(block, 0), m: 0.0 }
    }
}

/// Codes from a word of fifth bits (bit i belongs to weight i) and 16 bytes of nibbles.
pub(super) fn five_bits(bytes: &[u8]) -> [u8; 32] {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut codes = nibbles(&bytes[4..]);
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((fifth >> i & 1) << 4) as u8;
    }
    codes
}
