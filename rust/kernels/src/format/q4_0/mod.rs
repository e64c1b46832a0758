//! Q4_0: `w = d·(code − 8)`, 32 four-bit codes and a half-precision scale. 18 bytes.
//!
//! Integers: |Σ code·a| ≤ 32·15·127 = 60,960 and the offset adds at most 8·32·127 = 32,512: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Small, SmallBlock, half_at, nibbles, words_from};

pub(crate) struct Q4_0;

impl Block for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const WORDS: &'static [usize] = &words_from::<4>(2);
    const HALVES: &'static [usize] = &[0];
}

impl SmallBlock for Q4_0 {
    const OFFSET: i32 = 8;
    const MIN: bool = false;
    fn unpack(block: &[u8]) -> Small {
        Small { codes: nibbles(&block[2..]), d: half_at(block, 0), m: 0.0 }
    }
}
