//! Q2_K: `w = d·s·code − dmin·m`, 16 sub-blocks of 16; a byte holds a four-bit scale (low) and minimum (high). 84 bytes: 16 such bytes, 64 bytes of bit
//! pairs (laid out as the low pairs of Q3_K), d, dmin.
//!
//! Integers: |Σ s·Σ code·a| ≤ 15·3·127·256 = 1,463,040; |Σ m·Σ a| ≤ 15·127·256 = 487,680: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Super, SuperBlock, half_at, words_from};

pub(crate) struct Q2K;

impl Block for Q2K {
    const FORMAT: Format = Format::Q2_K;
    const LEN: usize = 256;
    const BYTES: usize = 84;
    const WORDS: &'static [usize] = &words_from::<20>(0);
    const HALVES: &'static [usize] = &[80, 82];
}

impl SuperBlock for Q2K {
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    fn unpack(block: &[u8]) -> Super {
        let codes = std::array::from_fn(|i| block[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3);
        Super {
            codes,
            scales: std::array::from_fn(|s| i32::from(block[s] & 15)),
            mins: std::array::from_fn(|s| i32::from(block[s] >> 4)),
            d: half_at(block, 80),
            dmin: half_at(block, 82),
        }
    }
}
