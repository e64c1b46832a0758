//! F32, F16, BF16: weights that are floats; a block is one weight. Products run in f32 on the exactly widened values.

use super::{Block, Format};
use crate::half::{bf16_to_f32, f16_to_f32};

/// A format of single floats.
pub(crate) trait Float: Block {
    /// The weight as f32, exactly.
    fn widen(block: &[u8]) -> f32;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl Block for F32 {
    const FORMAT: Format = Format::F32;
    const LEN: usize = 1;
    const BYTES: usize = 4;
    const WORDS: &'static [usize] = &[0];
    const HALVES: &'static [usize] = &[];
}

impl Float for F32 {
    fn widen(block: &[u8]) -> f32 {
        f32::from_le_bytes([block[0], block[1], block[2], block[3]])
    }
}

impl Block for F16 {
    const FORMAT: Format = Format::F16;
    const LEN: usize = 1;
    const BYTES: usize = 2;
    const WORDS: &'static [usize] = &[];
    const HALVES: &'static [usize] = &[0];
}

impl Float for F16 {
    fn widen(block: &[u8]) -> f32 {
        f16_to_f32(u16::from_le_bytes([block[0], block[1]]))
    }
}

impl Block for Bf16 {
    const FORMAT: Format = Format::BF16;
    const LEN: usize = 1;
    const BYTES: usize = 2;
    const WORDS: &'static [usize] = &[];
    const HALVES: &'static [usize] = &[0];
}

impl Float for Bf16 {
    fn widen(block: &[u8]) -> f32 {
        bf16_to_f32(u16::from_le_bytes([block[0], block[1]]))
    }
}
