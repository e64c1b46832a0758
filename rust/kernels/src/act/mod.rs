//! Activations: rows of floats become packed rows of signed bytes (N7), once for all weights that they meet.
//!
//! In: `m` rows of `k` floats. Out: tiles of up to [`MAX_TILE`] rows, to [`crate::matmul`].
//!
//! **The formula.** For a block of 32 or 256 values: `amax` the greatest magnitude, `d = amax / 127`, `code = round_half_even(x · (127 / amax))`.
//! In blocks of 32 `d` is then rounded to 11 significant bits: that is ggml's half-precision scale without its narrow range, and keeps the two engines'
//! rounding errors alike. A block with `amax < 2^-96` has `d = 0` and codes 0 (so `127 / amax` is finite); one that holds an infinity or a NaN has `d = NaN` and codes 0,
//! so a broken activation can never look like a number. `x · (127 / amax) ≤ 127·(1 + 2^-22)`, which rounds to at most 127: no clamp is needed.
//!
//! **The pack.** A tile of M rows is M·[`ActKind::row_words`] words: first the codes, `[k / 4][M]` words of four codes, so the M rows of one group of
//! four lie together; then for each block its extras, `[extra][M]`:
//!
//! | kind | extras of a block |
//! | --- | --- |
//! | F32 | none; the codes are `[k][M]` floats |
//! | Q32 | `d`; `d·Σ` as f32; `−8·Σ`, `−16·Σ`, `−128·Σ` as i32 (Σ: sum of the codes) |
//! | Q256 | `d`; 4 pairs of sums of 32 and 8 pairs of sums of 16 as i16 (pair q holds sums `4·(q/2) + q%2` and two further) |
//!
//! The ready-made multiples of Σ start an accumulator where a format's offset wants it, so that an offset costs no instruction of its own; the pairs meet
//! minimums, or scales of formats with an offset, two sub-blocks an instruction.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(test)]
pub(crate) mod tests;

pub use crate::format::ActKind;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::pack as pack_neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use scalar::shorten;
pub(crate) use scalar::{pack as pack_scalar, unpack_row};
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::pack_avx2, avx512::pack as pack_avx512};

/// Most rows that one walk over a panel serves.
pub const MAX_TILE: usize = 9;

/// Words of extras a block of 32.
pub(crate) const EXTRAS_32: usize = 5;
/// The offsets whose multiples of Σ are ready, in the order of the extras from the third on.
pub(crate) const OFFSETS_32: [i32; 3] = [8, 16, 128];
/// Words of extras a block of 256.
pub(crate) const EXTRAS_256: usize = 13;
/// Where the pairs of sums of 32 begin in the extras of a block of 256.
pub(crate) const PAIRS_32: usize = 1;
/// Where the pairs of sums of 16 begin.
pub(crate) const PAIRS_16: usize = 5;

/// The two sums in pair `q`: `first` and `first + 2`.
pub(crate) const fn pair_first(q: usize) -> usize {
    4 * (q / 2) + q % 2
}

/// A block whose greatest magnitude is below this counts as zero.
pub(crate) const AMAX_MIN: f32 = f32::from_bits((127 - 96) << 23);

impl ActKind {
    /// Words that one row of `k` values takes in a pack. `k` must be a multiple of the block.
    pub fn row_words(self, k: usize) -> usize {
        self.code_words(k) + self.extra_words(k)
    }

    /// Those of them that hold codes.
    pub fn code_words(self, k: usize) -> usize {
        if self == ActKind::F32 { k } else { k / 4 }
    }

    /// Those that hold extras.
    pub fn extra_words(self, k: usize) -> usize {
        match self {
            ActKind::F32 => 0,
            ActKind::Q32 => k / 32 * EXTRAS_32,
            ActKind::Q256 => k / 256 * EXTRAS_256,
        }
    }

    /// Values a block.
    pub fn block(self) -> usize {
        match self {
            ActKind::F32 => 1,
            ActKind::Q32 => 32,
            ActKind::Q256 => 256,
        }
    }
}

/// The tiles of `m` rows: first row and number of rows of each, in order. A function of `m` alone: as few as [`MAX_TILE`] allows, of nearly equal size.
pub fn tiles(m: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let count = m.div_ceil(MAX_TILE);
    (0..count).map(move |i| {
        let first = m * i / count;
        (first, m * (i + 1) / count - first)
    })
}
