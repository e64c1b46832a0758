//! Q8_0: `w = d·q`, 32 signed bytes and a half-precision scale. 34 bytes. As an unsigned code: `code = q + 128`.
//!
//! Integers: |Σ code·a| ≤ 32·255·127 = 1,036,320, the offset at most 128·32·127 = 520,192: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Small, SmallBlock, half_at, words_from};

pub(crate) struct Q8_0;

impl Block for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    const LEN: usize = 32;
    const BYTES: usize = 34;
    const WORDS: &'static [usize] = &words_from::<8>(2);
    const HALVES: &'static [usize] = &[0];
}

impl SmallBlock for Q8_0 {
    const OFFSET: i32 = 128;
    const MIN: bool = false;
    fn unpack(block: &[u8]) -> Small {
        Small { codes: std::array::from_fn(|i| block[2 + i] ^ 0x80), d: half_at(block, 0), m: 0.0 }
    }
}
