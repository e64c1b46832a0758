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
//! | Q32 | `d`; `d·Σ` as f32; `−8·Σ` as i32 (Σ: sum of the codes) |
//! | Q256 | `d`; 4 pairs of sums of 32 and 8 pairs of sums of 16 as i16 (pair q holds sums `4·(q/2) + q%2` and two further); `−4·Σ` of the 16 sums of 16, then of the 8 sums of 32, as i32 |
//!
//! The ready-made multiples of the sums start an accumulator where a format's offset wants it: an offset costs no instruction of its own.

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
pub(crate) mod tests;

pub use crate::format::ActKind;

#[cfg(target_arch = "x86_64")]
pub(crate) use scalar::shorten;
pub(crate) use scalar::{pack as pack_scalar, unpack_row};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{pack_avx2, pack_avx512};

/// Most rows that one walk over a panel serves.
pub const MAX_TILE: usize = 12;

/// Words of extras a block of 32.
pub(crate) const EXTRAS_32: usize = 3;
/// Words of extras a block of 256.
pub(crate) const EXTRAS_256: usize = 37;
/// Where the pairs of sums of 32 begin in the extras of a block of 256.
pub(crate) const PAIRS_32: usize = 1;
/// Where the pairs of sums of 16 begin.
pub(crate) const PAIRS_16: usize = 5;
/// Where the sums of 16 times −4 begin.
pub(crate) const NEG4_16: usize = 13;
/// Where the sums of 32 times −4 begin.
pub(crate) const NEG4_32: usize = 29;

/// The two sums in pair `q`: `first` and `first + 2`.
pub(crate) const fn pair_first(q: usize) -> usize {
    4 * (q / 2) + q % 2
}

/// A block whose greatest magnitude is below this counts as zero.
pub(crate) const AMAX_MIN: f32 = f32::from_bits((127 - 96) << 23);

impl ActKind {
    /// Words that one row of `k` values takes in a pack. `k` must be a multiple of the block.
    pub fn row_words(self, k: usize) -> usize {
        match self {
            ActKind::F32 => k,
            ActKind::Q32 => k / 4 + k / 32 * EXTRAS_32,
            ActKind::Q256 => k / 4 + k / 256 * EXTRAS_256,
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

/// The tiles of `m` rows: first row and number of rows of each, in order. A function of `m` alone.
///
/// Up to 9 rows are one tile, and so are 12; 10 to 23 others make two of nearly equal size; more take twelve at a time and split the rest likewise.
pub fn tiles(m: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = m - first;
        let rows = match left {
            0 => return None,
            1..=9 | 12 => left,
            10..=23 => left.div_ceil(2).min(9),
            _ => MAX_TILE,
        };
        first += rows;
        Some((first - rows, rows))
    })
}
