//! Reproducible inputs of sane size.

use quoth_kernels::act::tiles;
use quoth_kernels::format::PANEL;
use quoth_kernels::{Format, KernelSet};

/// A small generator, so that every run sees the same values.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator; the seed must not be zero.
    pub fn new(seed: u64) -> Self {
        assert_ne!(seed, 0);
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number of -1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// So many numbers.
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Panels of `n` rows of `k` weights with random bits. Every half-precision number in them is finite: bit 14 of each 16 is clear.
pub fn panels(format: Format, n: usize, k: usize) -> Vec<u8> {
    let bytes = n.div_ceil(PANEL) * PANEL * format.row_bytes(k);
    let mut random = Random::new(7);
    let mut all = vec![0u8; bytes];
    for eight in all.chunks_mut(8) {
        let word = (random.bits() & 0xbfff_bfff_bfff_bfff).to_le_bytes();
        eight.copy_from_slice(&word[..eight.len()]);
    }
    all
}

/// `m` packed rows of `k` floats, as weights of `format` want them.
pub fn packed(set: &KernelSet, format: Format, m: usize, k: usize) -> Vec<u32> {
    let kind = set.act_kind(format);
    let x = Random::new(11).floats(m * k);
    let mut words = vec![0; m * kind.row_words(k)];
    for (first, rows) in tiles(m) {
        let tile = &mut words[first * kind.row_words(k)..(first + rows) * kind.row_words(k)];
        set.pack(kind, &x[first * k..(first + rows) * k], k, tile);
    }
    words
}
