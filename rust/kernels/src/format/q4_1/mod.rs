//! Q4_1: `w = d·code + m`, 32 four-bit codes, scale and minimum in half precision. 20 bytes.
//!
//! Integers: |Σ code·a| ≤ 32·15·127 = 60,960: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Small, SmallBlock, half_at, nibbles, words_from};

pub(crate) struct Q4_1;

impl Block for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    const LEN: usize = 32;
    const BYTES: usize = 20;
    const WORDS: &'static [usize] = &words_from::<4>(4);
    const HALVES: &'static [usize] = &[0, 2];
}

impl SmallBlock for Q4_1 {
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    fn unpack(block: &[u8]) -> Small {
        Small { codes: nibbles(&block[4..]), d: half_at(block, 0), m: half_at(block, 2) }
    }
}
