//! Q5_1: `w = d·code + m`, 32 five-bit codes, scale and minimum in half precision. 24 bytes.
//!
//! Integers: |Σ code·a| ≤ 32·31·127 = 125,984: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::q5_0::five_bits;
use super::{Block, Format, Small, SmallBlock, half_at, words_from};

pub(crate) struct Q5_1;

impl Block for Q5_1 {
    const FORMAT: Format = Format::Q5_1;
    const LEN: usize = 32;
    const BYTES: usize = 24;
    const WORDS: &'static [usize] = &words_from::<5>(4);
    const HALVES: &'static [usize] = &[0, 2];
}

impl SmallBlock for Q5_1 {
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    fn unpack(block: &[u8]) -> Small {
        Small { codes: five_bits(&block[4..]), d: half_at(block, 0), m: half_at(block, 2) }
    }
}
