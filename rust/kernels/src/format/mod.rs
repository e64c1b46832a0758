//! Weight formats: what a block holds, how it is unpacked, and how 16 rows of blocks become a panel.
//!
//! In: rows of a tensor as a GGUF file stores them. Out: panels, which every set multiplies without further repacking.
//!
//! **A panel is the bytes of 16 rows, transposed.** A block is a list of 4-byte words, 2-byte halves and single bytes. A panel holds for each block and
//! each word 16 words side by side, one a row; then, for each block, 16 times each half and each single byte. So one 512-bit register holds the
//! same word of 16 rows, and a lane is an output.
//!
//! **Most formats keep the file's blocks.** Some are repacked: their file's block is decoded once, when the model is loaded, into blocks that unpack fast.
//!
//! - **P1** `panel_bytes = 16 · panel_row_bytes`: in a format that keeps its blocks, exactly the file's bytes. Rows missing from the last panel are zero bytes,
//!   which every format reads as zero weights.
//! - **P2** Reading a lane back gives the bytes of the block that was put in ([`Layout::gather`]), and dequantization goes through the same blocks. So there is
//!   one unpacker a format, and the scalar set, the fast sets and dequantization cannot disagree about a layout.
//!
//! A quantized block means, for weight i of sub-block s:  `w = (d·scale_s)·(code_i − OFFSET) − dmin·min_s`, or, without sub-blocks,
//! `w = d·(code_i − OFFSET) + m`. Codes are unsigned bytes. The folders state their bounds for N1.

mod float;
mod iq4_nl;
mod iq4_xs;
mod levels;
mod mxfp4;
mod nvfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

#[cfg(test)]
pub(crate) mod tests;

pub use iq4_nl::TABLE as IQ4_TABLE;

pub(crate) use float::{Bf16, F16, F32, Float};
pub(crate) use iq4_nl::Iq4Nl;
pub(crate) use iq4_xs::Iq4Xs;
pub(crate) use levels::{EvenLevels, LowLevels, OddLevels};
pub(crate) use mxfp4::Mxfp4;
pub(crate) use q2_k::Q2K;
pub(crate) use q3_k::Q3K;
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_0::Q5_0;
pub(crate) use q5_1::Q5_1;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8_0::Q8_0;

/// Rows of a panel, and lanes of a product.
pub const PANEL: usize = 16;

/// A block without sub-blocks: 32 codes, a scale, perhaps a minimum.
pub(crate) struct Small {
    pub(crate) codes: [u8; 32],
    pub(crate) d: f32,
    /// Added to every weight; zero in formats without it.
    pub(crate) m: f32,
}

/// A super-block: 256 codes in 16 sub-blocks of 16 (formats with sub-blocks of 32 repeat each scale twice).
pub(crate) struct Super {
    pub(crate) codes: [u8; 256],
    pub(crate) scales: [i32; 16],
    pub(crate) mins: [i32; 16],
    pub(crate) d: f32,
    pub(crate) dmin: f32,
}

/// What all formats state about the blocks of their panels.
pub(crate) trait Block {
    /// A format whose panels have such blocks.
    const FORMAT: Format;
    /// Weights a block.
    const LEN: usize;
    /// Bytes a block.
    const BYTES: usize;
    /// Offsets of the 4-byte words in a block, in panel order.
    const WORDS: &'static [usize];
    /// Offsets of the 2-byte halves in a block, in panel order.
    const HALVES: &'static [usize];
    /// Offsets of single bytes in a block, in panel order.
    const SINGLES: &'static [usize] = &[];

    /// Bytes of a panel's words of one block.
    const WORD_BYTES: usize = Self::WORDS.len() * 4 * PANEL;
    /// Bytes of a panel's halves and single bytes of one block.
    const TAIL_BYTES: usize = (Self::HALVES.len() * 2 + Self::SINGLES.len()) * PANEL;
}

/// How blocks of a file become blocks of panels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repack {
    /// Weights a block of the file: one or several blocks of panels.
    pub(crate) len: usize,
    /// Bytes a block of the file.
    pub(crate) bytes: usize,
    /// Writes every byte of the blocks that stand for a block of the file. Any bytes are allowed.
    pub(crate) write: fn(&[u8], &mut [u8]),
}

/// A format of [`Small`] blocks.
pub(crate) trait SmallBlock: Block {
    /// What is subtracted from a code.
    const OFFSET: i32;
    /// Whether there is a minimum.
    const MIN: bool;
    /// Bytes of the scale, which is the first half or single byte.
    const SCALE_BYTES: usize = 2;
    /// Reads a block.
    fn unpack(block: &[u8]) -> Small;
}

/// A format of [`Super`] blocks.
pub(crate) trait SuperBlock: Block {
    /// What is subtracted from a code.
    const OFFSET: i32;
    /// Whether there are minimums.
    const MIN: bool;
    /// Reads a block.
    fn unpack(block: &[u8]) -> Super;
}

/// A weight format, named as GGUF names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    IQ4_NL,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_XS,
    MXFP4,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ1_S,
    IQ1_M,
    TQ1_0,
    TQ2_0,
    NVFP4,
}

/// Calls `$small`, `$large` or `$float` by the shape of a format, with `$T` standing for its type.
macro_rules! with_shape {
    ($format:expr, $T:ident => small: $small:expr, large: $large:expr, float: $float:expr) => {
        match $format {
            $crate::format::Format::F32 => {
                type $T = $crate::format::F32;
                $float
            }
            $crate::format::Format::F16 | $crate::format::Format::NVFP4 => {
                type $T = $crate::format::F16;
                $float
            }
            $crate::format::Format::BF16 => {
                type $T = $crate::format::Bf16;
                $float
            }
            $crate::format::Format::Q8_0 => {
                type $T = $crate::format::Q8_0;
                $small
            }
            $crate::format::Format::Q4_0 => {
                type $T = $crate::format::Q4_0;
                $small
            }
            $crate::format::Format::Q4_1 => {
                type $T = $crate::format::Q4_1;
                $small
            }
            $crate::format::Format::Q5_0 => {
                type $T = $crate::format::Q5_0;
                $small
            }
            $crate::format::Format::Q5_1 => {
                type $T = $crate::format::Q5_1;
                $small
            }
            $crate::format::Format::IQ4_NL => {
                type $T = $crate::format::Iq4Nl;
                $small
            }
            $crate::format::Format::Q2_K => {
                type $T = $crate::format::Q2K;
                $large
            }
            $crate::format::Format::Q3_K => {
                type $T = $crate::format::Q3K;
                $large
            }
            $crate::format::Format::Q4_K => {
                type $T = $crate::format::Q4K;
                $large
            }
            $crate::format::Format::Q5_K => {
                type $T = $crate::format::Q5K;
                $large
            }
            $crate::format::Format::Q6_K => {
                type $T = $crate::format::Q6K;
                $large
            }
            $crate::format::Format::IQ4_XS => {
                type $T = $crate::format::Iq4Xs;
                $large
            }
            $crate::format::Format::MXFP4 => {
                type $T = $crate::format::Mxfp4;
                $small
            }
            $crate::format::Format::IQ2_XXS
            | $crate::format::Format::IQ2_XS
            | $crate::format::Format::IQ2_S
            | $crate::format::Format::IQ1_S
            | $crate::format::Format::IQ1_M
            | $crate::format::Format::TQ1_0
            | $crate::format::Format::TQ2_0 => {
                type $T = $crate::format::LowLevels;
                $large
            }
            $crate::format::Format::IQ3_XXS => {
                type $T = $crate::format::EvenLevels;
                $large
            }
            $crate::format::Format::IQ3_S => {
                type $T = $crate::format::OddLevels;
                $large
            }
        }
    };
}

pub(crate) use with_shape;

/// Which quantization of the activations a format multiplies with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActKind {
    /// Floats as they are.
    F32,
    /// Signed bytes in blocks of 32.
    Q32,
    /// Signed bytes in blocks of 256.
    Q256,
}

/// The geometry of a format.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Weights a block of the file.
    pub len: usize,
    /// Bytes a block of the file.
    pub bytes: usize,
    /// Weights a block of a panel.
    pub panel_len: usize,
    /// Bytes a block of a panel.
    pub panel_bytes: usize,
    words: &'static [usize],
    halves: &'static [usize],
    singles: &'static [usize],
    repack: Option<Repack>,
}

/// Room for the blocks of panels that stand for one block of a file.
const MOST_BYTES: usize = 256;

impl Format {
    /// Every format.
    pub const ALL: [Format; 26] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::IQ4_NL,
        Format::Q2_K,
        Format::Q3_K,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
        Format::IQ4_XS,
        Format::MXFP4,
        Format::IQ2_XXS,
        Format::IQ2_XS,
        Format::IQ2_S,
        Format::IQ3_XXS,
        Format::IQ3_S,
        Format::IQ1_S,
        Format::IQ1_M,
        Format::TQ1_0,
        Format::TQ2_0,
        Format::NVFP4,
    ];

    /// The format of a GGUF tensor type id, if it is one of ours.
    pub fn from_ggml_id(id: u32) -> Option<Format> {
        Some(match id {
            0 => Format::F32,
            1 => Format::F16,
            2 => Format::Q4_0,
            3 => Format::Q4_1,
            6 => Format::Q5_0,
            7 => Format::Q5_1,
            8 => Format::Q8_0,
            10 => Format::Q2_K,
            11 => Format::Q3_K,
            12 => Format::Q4_K,
            13 => Format::Q5_K,
            14 => Format::Q6_K,
            16 => Format::IQ2_XXS,
            17 => Format::IQ2_XS,
            18 => Format::IQ3_XXS,
            19 => Format::IQ1_S,
            20 => Format::IQ4_NL,
            21 => Format::IQ3_S,
            22 => Format::IQ2_S,
            23 => Format::IQ4_XS,
            29 => Format::IQ1_M,
            30 => Format::BF16,
            34 => Format::TQ1_0,
            35 => Format::TQ2_0,
            39 => Format::MXFP4,
            40 => Format::NVFP4,
            _ => return None,
        })
    }

    /// The geometry of its blocks.
    pub fn layout(self) -> Layout {
        let layout =
            with_shape!(self, F => small: Layout::of::<F>(), large: Layout::of::<F>(), float: Layout::of::<F>());
        match self.repack() {
            None => layout,
            Some(repack) => Layout { len: repack.len, bytes: repack.bytes, repack: Some(repack), ..layout },
        }
    }

    /// How a file's blocks become those of a panel; none if they are the same.
    fn repack(self) -> Option<Repack> {
        Some(match self {
            Format::IQ2_XXS => levels::IQ2_XXS,
            Format::IQ2_XS => levels::IQ2_XS,
            Format::IQ2_S => levels::IQ2_S,
            Format::IQ3_XXS => levels::IQ3_XXS,
            Format::IQ3_S => levels::IQ3_S,
            Format::IQ1_S => levels::IQ1_S,
            Format::IQ1_M => levels::IQ1_M,
            Format::TQ1_0 => levels::TQ1_0,
            Format::TQ2_0 => levels::TQ2_0,
            Format::NVFP4 => nvfp4::NVFP4,
            _ => return None,
        })
    }

    /// What its activations are quantized to.
    pub fn act_kind(self) -> ActKind {
        with_shape!(self, _F => small: ActKind::Q32, large: ActKind::Q256, float: ActKind::F32)
    }

    /// Bytes of a row of `k` weights in a file; `k` must be a multiple of the block length.
    pub fn row_bytes(self, k: usize) -> usize {
        let layout = self.layout();
        debug_assert_eq!(k % layout.len, 0);
        k / layout.len * layout.bytes
    }

    /// Bytes of a row of `k` weights in a panel; `k` must be a multiple of the block length.
    pub fn panel_row_bytes(self, k: usize) -> usize {
        let layout = self.layout();
        debug_assert_eq!(k % layout.len, 0);
        k / layout.panel_len * layout.panel_bytes
    }

    /// Expands blocks as a file stores them. `out.len()` must be a multiple of the block length and `raw` hold exactly its bytes.
    ///
    /// The values are those that ggml's own expansion gives, bit for bit.
    pub fn dequantize(self, raw: &[u8], out: &mut [f32]) {
        let layout = self.layout();
        assert_eq!(raw.len(), out.len() / layout.len * layout.bytes, "bytes of {self:?} blocks");
        for (block, values) in raw.chunks_exact(layout.bytes).zip(out.chunks_exact_mut(layout.len)) {
            self.expand(layout.panel_blocks(block, &mut [0; MOST_BYTES]), values);
        }
    }

    /// Expands blocks as a panel has them.
    pub(crate) fn expand(self, blocks: &[u8], out: &mut [f32]) {
        let layout = self.layout();
        for (block, values) in blocks.chunks_exact(layout.panel_bytes).zip(out.chunks_exact_mut(layout.panel_len)) {
            with_shape!(self, F =>
                small: expand_small(&F::unpack(block), F::OFFSET, F::MIN, values),
                large: expand_super(&F::unpack(block), F::OFFSET, F::MIN, values),
                float: values[0] = F::widen(block));
        }
    }
}

fn expand_small(block: &Small, offset: i32, min: bool, out: &mut [f32]) {
    for (x, c) in out.iter_mut().zip(block.codes) {
        let product = (i32::from(c) - offset) as f32 * block.d;
        *x = if min { product + block.m } else { product };
    }
}

fn expand_super(block: &Super, offset: i32, min: bool, out: &mut [f32]) {
    for (s, part) in out.chunks_exact_mut(16).enumerate() {
        let scale = block.d * block.scales[s] as f32;
        let least = block.dmin * block.mins[s] as f32;
        for (x, c) in part.iter_mut().zip(&block.codes[16 * s..]) {
            let product = scale * (i32::from(*c) - offset) as f32;
            *x = if min { product - least } else { product };
        }
    }
}

impl Layout {
    /// Of a format that keeps the file's blocks.
    pub(crate) const fn of<F: Block>() -> Layout {
        Layout {
            len: F::LEN,
            bytes: F::BYTES,
            panel_len: F::LEN,
            panel_bytes: F::BYTES,
            words: F::WORDS,
            halves: F::HALVES,
            singles: F::SINGLES,
            repack: None,
        }
    }

    /// Bytes of the word area of a panel of `blocks` blocks a row; the area of the halves and single bytes follows it.
    pub fn word_area(&self, blocks: usize) -> usize {
        blocks * self.words.len() * 4 * PANEL
    }

    /// The blocks of a panel that stand for one block of the file: that block, or what it is repacked to.
    fn panel_blocks<'a>(&self, block: &'a [u8], room: &'a mut [u8; MOST_BYTES]) -> &'a [u8] {
        let Some(repack) = self.repack else { return block };
        let blocks = &mut room[..self.len / self.panel_len * self.panel_bytes];
        (repack.write)(block, blocks);
        blocks
    }

    /// Where the words, the halves and the single bytes of block `b` begin in a panel of `blocks` blocks.
    fn areas(&self, blocks: usize, b: usize) -> [usize; 3] {
        let halves = self.word_area(blocks) + b * (self.halves.len() * 2 + self.singles.len()) * PANEL;
        [b * self.words.len() * 4 * PANEL, halves, halves + self.halves.len() * 2 * PANEL]
    }

    /// Makes one panel of up to 16 rows. `rows` holds them one after another as in the file, of `row_bytes` bytes each; missing rows become zero bytes.
    ///
    /// Cost: one pass of copies of up to 4 bytes; reads 16 streams, writes one. A format that is repacked decodes each block first.
    pub fn pack_panel(&self, rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
        let blocks = row_bytes / self.bytes * (self.len / self.panel_len);
        assert_eq!(panel.len(), PANEL * blocks * self.panel_bytes);
        let present = rows.len() / row_bytes;
        assert!(present <= PANEL && rows.len() == present * row_bytes, "whole rows, at most 16");
        if present < PANEL {
            panel.fill(0);
        }
        let mut room = [0; MOST_BYTES];
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let mut b = 0;
            for block in row.chunks_exact(self.bytes) {
                for block in self.panel_blocks(block, &mut room).chunks_exact(self.panel_bytes) {
                    let [words, halves, singles] = self.areas(blocks, b);
                    put::<4>(self.words, block, lane, &mut panel[words..]);
                    put::<2>(self.halves, block, lane, &mut panel[halves..]);
                    put::<1>(self.singles, block, lane, &mut panel[singles..]);
                    b += 1;
                }
            }
        }
    }

    /// Reads block `b` of row `lane` back from a panel, as it was put in. `block` must have [`Layout::panel_bytes`] bytes.
    pub fn gather(&self, panel: &[u8], blocks: usize, lane: usize, b: usize, block: &mut [u8]) {
        let [words, halves, singles] = self.areas(blocks, b);
        get::<4>(self.words, &panel[words..], lane, block);
        get::<2>(self.halves, &panel[halves..], lane, block);
        get::<1>(self.singles, &panel[singles..], lane, block);
    }
}

/// Copies the pieces of a block, of `SIZE` bytes each, to their places among those of 16 rows.
fn put<const SIZE: usize>(offsets: &[usize], block: &[u8], lane: usize, to: &mut [u8]) {
    for (i, &offset) in offsets.iter().enumerate() {
        let at = (i * PANEL + lane) * SIZE;
        to[at..at + SIZE].copy_from_slice(&block[offset..offset + SIZE]);
    }
}

/// The opposite of [`put`].
fn get<const SIZE: usize>(offsets: &[usize], from: &[u8], lane: usize, block: &mut [u8]) {
    for (i, &offset) in offsets.iter().enumerate() {
        let at = (i * PANEL + lane) * SIZE;
        block[offset..offset + SIZE].copy_from_slice(&from[at..at + SIZE]);
    }
}

/// The `index`-th half-precision number of a block at a byte offset.
pub(crate) fn half_at(block: &[u8], offset: usize) -> f32 {
    crate::half::f16_to_f32(u16::from_le_bytes([block[offset], block[offset + 1]]))
}

/// Offsets of `N` words that follow each other from `first`.
pub(crate) const fn words_from<const N: usize>(first: usize) -> [usize; N] {
    let mut offsets = [0; N];
    let mut i = 0;
    while i < N {
        offsets[i] = first + 4 * i;
        i += 1;
    }
    offsets
}

/// The 16 weights' low nibbles, then the 16 high nibbles, of 16 bytes: the order of the 32-wide four-bit formats.
pub(crate) fn nibbles(bytes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// A table of signed levels as unsigned codes, `offset` above them.
pub(crate) const fn levels_above(table: &[i8; 16], offset: i32) -> [u8; 16] {
    let mut levels = [0; 16];
    let mut i = 0;
    while i < 16 {
        levels[i] = (table[i] as i32 + offset) as u8;
        i += 1;
    }
    levels
}
