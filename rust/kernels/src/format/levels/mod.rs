//! Formats of few levels, repacked: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, TQ1_0, TQ2_0.
//!
//! In: their blocks of 256 weights as a file has them: points of grids, signs, ternary digits. Out: `w = d·s·TABLE[nibble]`, with sub-blocks of 16 or 32 that
//! have signed byte scales s. A block has d as f32, 16 or 8 scales, the nibbles (of each 32 weights 16 bytes, low nibbles first): 148 or 140 bytes. As a code:
//! `TABLE[nibble] + OFFSET`. Formats share a table where their levels fit one, so that there are three kernels and not nine.
//!
//! A point of a grid cannot be looked up fast in registers, a level can. That is why these blocks are decoded when the model is loaded; the price is memory:
//! 4.6 or 4.4 bits a weight, whatever the file has.
//!
//! - **V1** `d·s·level` is exact in f32, since d has 11 bits, s at most 5 and a level at most 6. So values equal those that ggml's expansion gives, though its
//!   factors come in another order.
//! - **V2** Any bytes of a file's block decode: indices have as many bits as their grid has points, |s| ≤ 31.
//!
//! Integers: |Σ s·Σ code·a| ≤ 31·127·127·256 = 128,001,664, and 64·|Σ s·Σ a| ≤ 64·31·127·256 = 64,503,808: exact in i32.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod grids;
mod iq1;
mod iq2;
mod iq3;
#[cfg(target_arch = "aarch64")]
mod neon;
mod ternary;

pub(crate) use iq1::{IQ1_M, IQ1_S};
pub(crate) use iq2::{IQ2_S, IQ2_XS, IQ2_XXS};
pub(crate) use iq3::{IQ3_S, IQ3_XXS};
pub(crate) use ternary::{TQ1_0, TQ2_0};

use super::{Block, Format, Super, SuperBlock, levels_above, nibbles, words_from};

/// A form of blocks of levels.
pub(crate) trait Levels {
    /// A format that is repacked to it.
    const FORMAT: Format;
    /// Weights that share a scale: 16 or 32.
    const SUB: usize;
    /// What nibbles stand for.
    const TABLE: &'static [i8; 16];
    /// What makes a level an unsigned code: 16 if the magnitudes are below that, else 64.
    const OFFSET: i32;

    /// The table as unsigned codes.
    const CODES: &'static [u8; 16] = &levels_above(Self::TABLE, Self::OFFSET);
    /// Where the nibbles begin, in words.
    const NIBBLES: usize = 1 + 64 / Self::SUB;
}

/// Levels of IQ2, IQ1 and the ternary formats.
pub(crate) struct LowLevels;

impl Levels for LowLevels {
    const FORMAT: Format = Format::IQ2_XS;
    const SUB: usize = 16;
    // IQ2: three magnitudes, and from 8 on their negatives. IQ1: 8g − 1 from 4 on, 8g + 1 from 12 on. What the ternary formats need besides stands between.
    const TABLE: &'static [i8; 16] = &[8, 25, 43, 0, -9, -1, 7, 2, -8, -25, -43, 0, -7, 1, 9, 0];
    const OFFSET: i32 = 64;
}

/// Levels of IQ3_XXS.
pub(crate) struct EvenLevels;

impl Levels for EvenLevels {
    const FORMAT: Format = Format::IQ3_XXS;
    const SUB: usize = 32;
    const TABLE: &'static [i8; 16] = &signed([4, 12, 20, 28, 36, 44, 52, 62]);
    const OFFSET: i32 = 64;
}

/// Levels of IQ3_S.
pub(crate) struct OddLevels;

impl Levels for OddLevels {
    const FORMAT: Format = Format::IQ3_S;
    const SUB: usize = 32;
    const TABLE: &'static [i8; 16] = &signed([1, 3, 5, 7, 9, 11, 13, 15]);
    const OFFSET: i32 = 16;
}

/// A block of a file, decoded: for each weight what it is in the table, for each sub-block its scale.
struct Decoded {
    nibbles: [u8; 256],
    /// 16, or 8 and padding where sub-blocks have 32 weights.
    scales: [u8; 16],
    d: f32,
}

/// How a format's blocks of `bytes` bytes, which `read` decodes, are repacked.
macro_rules! repack {
    ($F:ty, $bytes:literal, $read:path) => {
        $crate::format::Repack {
            len: 256,
            bytes: $bytes,
            write: |file, block| $crate::format::levels::write::<$F>(&$read(file), block),
        }
    };
}
use repack;

impl<F: Levels> Block for F {
    const FORMAT: Format = F::FORMAT;
    const LEN: usize = 256;
    const BYTES: usize = 4 * (F::NIBBLES + 32);
    const WORDS: &'static [usize] = if F::SUB == 32 { &words_from::<35>(0) } else { &words_from::<37>(0) };
    const HALVES: &'static [usize] = &[];
}

impl<F: Levels> SuperBlock for F {
    const OFFSET: i32 = F::OFFSET;
    const MIN: bool = false;
    fn unpack(block: &[u8]) -> Super {
        let first = 4 * F::NIBBLES;
        let mut codes = [0; 256];
        for (s, codes) in codes.chunks_exact_mut(32).enumerate() {
            codes.copy_from_slice(&nibbles(&block[first + 16 * s..]).map(|nibble| F::CODES[usize::from(nibble)]));
        }
        let scales = std::array::from_fn(|s| i32::from(block[4 + s * 16 / F::SUB] as i8));
        let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        Super { codes, scales, mins: [0; 16], d, dmin: 0.0 }
    }
}

/// Writes a block of a panel.
fn write<F: Levels>(decoded: &Decoded, block: &mut [u8]) {
    let Decoded { nibbles, scales, d } = decoded;
    let (head, packed) = block.split_at_mut(4 * F::NIBBLES);
    head[..4].copy_from_slice(&d.to_le_bytes());
    head[4..].copy_from_slice(&scales[..256 / F::SUB]);
    for (packed, nibbles) in packed.chunks_exact_mut(16).zip(nibbles.chunks_exact(32)) {
        for (i, byte) in packed.iter_mut().enumerate() {
            *byte = nibbles[i] | nibbles[16 + i] << 4;
        }
    }
}

/// Levels of magnitudes and their negatives: the nibble's lower three bits choose the magnitude, the fourth is the sign.
const fn signed(magnitudes: [i8; 8]) -> [i8; 16] {
    let mut levels = [0; 16];
    let mut i = 0;
    while i < 8 {
        levels[i] = magnitudes[i];
        levels[i + 8] = -magnitudes[i];
        i += 1;
    }
    levels
}

/// The eight signs that seven bits name, since they come in even numbers.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Nibbles of a point of four or eight weights: indices of magnitudes with, from bit 0 of `signs` on, their signs.
fn put_signed(nibbles: &mut [u8], point: u16, signs: u8) {
    let bits = 16 / nibbles.len();
    for (i, nibble) in nibbles.iter_mut().enumerate() {
        *nibble = (point >> (bits * i)) as u8 & 7 & ((1 << bits) - 1) | (signs >> i & 1) << 3;
    }
}

/// Number `i` of the 16-bit numbers from `first` on.
fn short(file: &[u8], first: usize, i: usize) -> u16 {
    u16::from_le_bytes([file[first + 2 * i], file[first + 2 * i + 1]])
}

/// Number `i` of the 32-bit numbers from `first` on.
fn long(file: &[u8], first: usize, i: usize) -> u32 {
    u32::from(short(file, first, 2 * i)) | u32::from(short(file, first, 2 * i + 1)) << 16
}

/// Nibble `i` from byte `first` on, the low one of each byte first.
fn nibble(file: &[u8], first: usize, i: usize) -> u8 {
    file[first + i / 2] >> (4 * (i % 2)) & 15
}
