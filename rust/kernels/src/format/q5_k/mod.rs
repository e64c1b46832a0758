//! Q5_K: `w = d·s·code − dmin·m` as Q4_K, with a fifth bit. 176 bytes: d, dmin, 12 bytes of scales and minimums, 32 bytes of fifth bits (bit s of byte
//! i belongs to weight i of sub-block s), 128 bytes of nibbles.
//!
//! Integers: |Σ s·Σ code·a| ≤ 63·31·127·256 = 63,495,936: exact in i32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::q4_k::{six_bits, sub_nibbles};
use super::{Block, Format, Super, SuperBlock, half_at, words_from};

pub(crate) struct Q5K;

impl Block for Q5K {
    const FORMAT: Format = Format::Q5_K;
    const LEN: usize = 256;
    const BYTES: usize = 176;
    const WORDS: &'static [usize] = &words_from::<43>(4);
    const HALVES: &'static [usize] = &[0, 2];
}

impl SuperBlock for Q5K {
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    fn unpack(block: &[u8]) -> Super {
        let (scales, mins) = six_bits(&block[4..16]);
        let mut codes = sub_nibbles(&block[48..]);
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
        }
        Super { codes, scales, mins, d: half_at(block, 0), dmin: half_at(block, 2) }
    }
}
