//! Q6_K: `w = d·s·(code − 32)`, 16 sub-blocks of 16 with signed byte scales s. 210 bytes: 128 bytes of low nibbles, 64 bytes of upper bit pairs,
//! 16 scales, d.
//!
//! Each half of 128 weights has 64 low bytes and 32 upper bytes; its four runs of 32 weights take: low nibbles of bytes 0–31, low nibbles of bytes
//! 32–63, high nibbles of bytes 0–31, high nibbles of bytes 32–63; and the bit pairs 0, 1, 2, 3 of the upper bytes.
//!
//! Integers: |Σ s·Σ code·a| ≤ 128·63·127·256 = 262,176,768, and 32·|Σ s·Σ a| ≤ 133,169,152: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Super, SuperBlock, half_at, words_from};

pub(crate) struct Q6K;

impl Block for Q6K {
    const FORMAT: Format = Format::Q6_K;
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const WORDS: &'static [usize] = &words_from::<52>(0);
    const HALVES: &'static [usize] = &[208];
}

impl SuperBlock for Q6K {
    const OFFSET: i32 = 32;
    const MIN: bool = false;
    fn unpack(block: &[u8]) -> Super {
        let codes = std::array::from_fn(|i| {
            let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
            let low = block[64 * half + 32 * (run % 2) + l] >> (4 * (run / 2)) & 15;
            let high = block[128 + 32 * half + l] >> (2 * run) & 3;
            low | high << 4
        });
        let scales = std::array::from_fn(|s| i32::from(block[192 + s] as i8));
        Super { codes, scales, mins: [0; 16], d: half_at(block, 208), dmin: 0.0 }
    }
}
