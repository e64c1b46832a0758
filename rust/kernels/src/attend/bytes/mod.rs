//! Weighted values of q8_0: codes of weights times codes of values, in integers (A6, A7 of [`super`]).
//!
//! A weight is an unsigned byte, a value a signed one, and a word holds what the four slots of a quad have in a column: four products and their sum are
//! one `vpdpbusd`, and a lane is an output. Sums have no order, so each set adds as it likes. A set without that instruction must not saturate on the way:
//! two products of 255 · 128 exceed 16 bits, which rules `vpmaddubsw` out.
//!
//! Cost: 32 products of words for 16 columns and a query, a load of the values for all queries of the tile. Meanwhile the first bytes of `next` are fetched.

use std::ops::Range;

use super::CHUNK;
use super::cache::{QUAD, VALUE_PART};
use crate::act::MAX_TILE;
use crate::format::PANEL;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;

/// Codes of a block of columns: `[MAX_TILE][CHUNK]`.
pub(super) const BLOCK: usize = MAX_TILE * CHUNK;

/// A weight of code 1, in units of the greatest.
pub(super) const UNIT: f32 = 1.0 / 255.0;

/// Bytes of 16 columns of a chunk's values.
const PANEL_BYTES: usize = CHUNK * PANEL;

/// Bytes of a quad of 16 columns.
const QUAD_BYTES: usize = QUAD * PANEL;

/// Quads of 16 slots.
const QUADS: usize = PANEL / QUAD;

/// What is weighed.
pub(crate) struct Tile<'a> {
    /// Panels of values, two a block.
    pub(super) values: &'a [u8],
    /// What will be read afterwards.
    pub(super) next: &'a [u8],
    /// Slots, 16 each, that are summed up.
    pub(super) panels: Range<usize>,
    /// Blocks of [`VALUE_PART`] columns.
    pub(super) blocks: usize,
    /// Codes of weights, [`BLOCK`] a block, [`CHUNK`] a row.
    pub(super) codes: &'a [u8],
    /// What sums are multiplied with, [`MAX_TILE`] a block.
    pub(super) factors: &'a [f32],
    /// Queries.
    pub(super) rows: usize,
    /// Results: rows of 32 columns a block.
    pub(super) out: &'a mut [f32],
}

impl Tile<'_> {
    /// Floats between rows of the results.
    fn stride(&self) -> usize {
        self.blocks * VALUE_PART
    }

    /// # Panics
    /// If a size does not fit.
    fn check(&self) {
        assert!(self.panels.start <= self.panels.end && self.panels.end <= CHUNK / PANEL && self.rows <= MAX_TILE);
        assert!(self.values.len() >= 2 * self.blocks * PANEL_BYTES && self.codes.len() >= self.blocks * BLOCK);
        assert!(self.factors.len() >= self.blocks * MAX_TILE && self.out.len() >= self.rows * self.stride());
    }
}
