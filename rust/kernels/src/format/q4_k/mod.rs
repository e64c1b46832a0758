//! Q4_K: `w = d·s·code − dmin·m`, 8 sub-blocks of 32 with six-bit scales s and minimums m. 144 bytes: d, dmin, 12 bytes of scales and minimums,
//! 128 bytes of nibbles (32 bytes hold two sub-blocks: low nibbles the first, high nibbles the second).
//!
//! Integers: |Σ s·Σ code·a| ≤ 63·15·127·256 = 30,723,840; |Σ m·Σ a| ≤ 63·127·256 = 2,048,256: exact in i32. Sums of 32 activations fit i16.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use super::{Block, Format, Super, SuperBlock, half_at, words_from};

pub(crate) struct Q4K;

impl Block for Q4K {
    const FORMAT: Format = Format::Q4_K;
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const WORDS: &'static [usize] = &words_from::<35>(4);
    const HALVES: &'static [usize] = &[0, 2];
}

impl SuperBlock for Q4K {
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    fn unpack(block: &[u8]) -> Super {
        let (scales, mins) = six_bits(&block[4..16]);
        Super { codes: sub_nibbles(&block[16..]), scales, mins, d: half_at(block, 0), dmin: half_at(block, 2) }
    }
}

/// Scales and minimums of 8 sub-blocks from 12 bytes, each repeated for the two halves of its sub-block.
///
/// The first four of each are the low six bits of bytes 0–3 and 4–7; the last four have their low nibbles in bytes 8–11 and their upper two bits
/// at the top of bytes 0–3 and 4–7.
pub(super) fn six_bits(bytes: &[u8]) -> ([i32; 16], [i32; 16]) {
    let scale = |s: usize| if s < 4 { bytes[s] & 63 } else { bytes[s + 4] & 15 | bytes[s - 4] >> 6 << 4 };
    let min = |s: usize| if s < 4 { bytes[s + 4] & 63 } else { bytes[s + 4] >> 4 | bytes[s] >> 6 << 4 };
    (std::array::from_fn(|i| i32::from(scale(i / 2))), std::array::from_fn(|i| i32::from(min(i / 2))))
}

/// Nibbles of 8 sub-blocks of 32: of every 32 bytes first the low ones, then the high ones.
pub(super) fn sub_nibbles(bytes: &[u8]) -> [u8; 256] {
    std::array::from_fn(|i| {
        let byte = bytes[i / 64 * 32 + i % 32];
        if i % 64 < 32 { byte & 15 } else { byte >> 4 }
    })
}
