//! Q3_K: `w = d·(s − 32)·(code − 4)`, 16 sub-blocks of 16 with six-bit scales s. 110 bytes: 32 bytes of third bits, 64 bytes of low bit pairs, 12 bytes
//! of scales, d.
//!
//! Each half of 128 weights has 32 bytes of pairs, whose pairs 0–3 serve its four runs of 32; bit `4·half + run` of byte l of the third bits belongs to
//! weight l of that run.
//!
//! Integers: |Σ (s − 32)·Σ code·a| ≤ 32·7·127·256 = 7,282,688, and 4·|Σ (s − 32)·Σ a| ≤ 4,161,536: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Super, SuperBlock, half_at, words_from};

pub(crate) struct Q3K;

impl Block for Q3K {
    const FORMAT: Format = Format::Q3_K;
    const LEN: usize = 256;
    const BYTES: usize = 110;
    const WORDS: &'static [usize] = &words_from::<27>(0);
    const HALVES: &'static [usize] = &[108];
}

impl SuperBlock for Q3K {
    const OFFSET: i32 = 4;
    const MIN: bool = false;
    fn unpack(block: &[u8]) -> Super {
        let codes = std::array::from_fn(|i| {
            let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
            let low = block[32 + 32 * half + l] >> (2 * run) & 3;
            low | (block[l] >> (4 * half + run) & 1) << 2
        });
        // Low nibbles: bytes 0–7, first the low halves, then the high ones. Upper pairs: bytes 8–11, pair s / 4 of byte s % 4.
        let bytes = &block[96..108];
        let scales = std::array::from_fn(|s| {
            let low = bytes[s % 8] >> (4 * (s / 8)) & 15;
            i32::from(low | (bytes[8 + s % 4] >> (2 * (s / 4)) & 3) << 4) - 32
        });
        Super { codes, scales, mins: [0; 16], d: half_at(block, 108), dmin: 0.0 }
    }
}
