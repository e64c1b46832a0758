//! Rows of a forward, and activations packed for the products that follow.
//!
//! Small batches are packed by every worker for itself (which costs less than waiting for one another); large ones are packed once, tiles shared out.

use quoth_kernels::KernelSet;
use quoth_kernels::act::{ActKind, MAX_TILE, tiles};
use quoth_kernels::matmul::Acts;

use crate::pool::{Pool, Worker};
use crate::shared::Shared;

/// Up to so many rows, each worker packs all of them.
const SELF_PACKED: usize = 17;

/// Which packings some products want.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    kinds: [bool; 3],
}

fn slot(kind: ActKind) -> usize {
    match kind {
        ActKind::F32 => 0,
        ActKind::Q32 => 1,
        ActKind::Q256 => 2,
    }
}

impl Kinds {
    pub(crate) fn of(kinds: impl IntoIterator<Item = ActKind>) -> Self {
        let mut all = Kinds::default();
        kinds.into_iter().for_each(|kind| all.kinds[slot(kind)] = true);
        all
    }

    fn iter(self) -> impl Iterator<Item = ActKind> {
        [ActKind::F32, ActKind::Q32, ActKind::Q256].into_iter().filter(move |kind| self.kinds[slot(*kind)])
    }
}

/// Packed rows in up to three kinds.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    words: [Vec<u32>; 3],
    m: usize,
    k: usize,
}

impl Packed {
    fn resize(&mut self, kinds: Kinds, m: usize, k: usize) {
        (self.m, self.k) = (m, k);
        for kind in kinds.iter() {
            let (words, n) = (&mut self.words[slot(kind)], m * kind.row_words(k));
            // Grown only: the next job of a forward wants another size, and zeros that are overwritten are work.
            if words.len() < n {
                words.resize(n, 0);
            }
        }
    }

    /// Packs `m` rows of `k` floats that `source` gives, on this thread alone.
    pub(crate) fn fill(
        &mut self,
        set: &KernelSet,
        (kinds, m, k): (Kinds, usize, usize),
        source: &dyn Fn(usize, &mut [f32]),
        floats: &mut Vec<f32>,
    ) {
        self.resize(kinds, m, k);
        for kind in kinds.iter() {
            let row_words = kind.row_words(k);
            for (first, rows) in tiles(m) {
                let tile = &mut self.words[slot(kind)][first * row_words..(first + rows) * row_words];
                pack_tile(set, kind, (first, rows, k), source, floats, tile);
            }
        }
    }

    /// The rows in one kind; they must have been packed in it.
    pub(crate) fn acts(&self, kind: ActKind) -> Acts<'_> {
        Acts::new(kind, self.m, self.k, &self.words[slot(kind)][..self.m * kind.row_words(self.k)])
    }
}

/// Rows that the workers of one job pack together, each some columns of all rows.
pub(crate) struct Parts<'a> {
    kind: ActKind,
    m: usize,
    k: usize,
    words: Shared<'a, u32>,
}

impl Packed {
    /// Begins to pack `m` rows of `k` columns in one kind.
    pub(crate) fn parts(&mut self, kind: ActKind, m: usize, k: usize) -> Parts<'_> {
        self.resize(Kinds::of([kind]), m, k);
        Parts { kind, m, k, words: Shared::new(&mut self.words[slot(kind)]) }
    }
}

impl Parts<'_> {
    /// Packs columns, whole blocks, of all rows. `source` writes those of row r to where it is told.
    ///
    /// # Safety
    /// No other thread may pack these columns.
    pub(crate) unsafe fn pack(
        &self,
        set: &KernelSet,
        columns: std::ops::Range<usize>,
        floats: &mut Vec<f32>,
        source: impl Fn(usize, &mut [f32]),
    ) {
        let (kind, n) = (self.kind, columns.len());
        for (first, rows) in tiles(self.m) {
            floats.resize(MAX_TILE * n, 0.0);
            let floats = &mut floats[..rows * n];
            floats.chunks_exact_mut(n).enumerate().for_each(|(r, row)| source(first + r, row));
            let tile = first * kind.row_words(self.k);
            let codes = tile + rows * kind.code_words(columns.start);
            let extras = tile + rows * (kind.code_words(self.k) + kind.extra_words(columns.start));
            // SAFETY: codes and extras of these columns, which the caller has for itself.
            let (codes, extras) = unsafe {
                (
                    self.words.part(codes..codes + rows * kind.code_words(n)),
                    self.words.part(extras..extras + rows * kind.extra_words(n)),
                )
            };
            set.pack_columns(kind, floats, n, codes, extras);
        }
    }
}

/// A worker's own memory for packing.
#[derive(Debug, Default)]
pub(crate) struct Own {
    pub(crate) packed: Packed,
    pub(crate) tile: Vec<f32>,
}

/// Gives row `r` of what is to be packed: fills its floats.
pub(crate) type Source<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// Runs `then` on every worker with the packed rows, and with memory for floats of its own: the one way from floats to products.
///
/// `own` is memory for each worker, `common` for rows that are packed together.
pub(crate) fn with_packed(
    pool: &Pool,
    set: &KernelSet,
    (kinds, m, k): (Kinds, usize, usize),
    source: Source<'_>,
    own: &mut [Own],
    common: &mut Packed,
    then: &(dyn Fn(Worker, &Packed, &mut Vec<f32>) + Sync),
) {
    let owns = Shared::new(own);
    if m <= SELF_PACKED {
        return pool.run(|worker| {
            // SAFETY: element i belongs to worker i alone.
            let own = &mut unsafe { owns.part(worker.index..worker.index + 1) }[0];
            own.packed.fill(set, (kinds, m, k), source, &mut own.tile);
            then(worker, &own.packed, &mut own.tile);
        });
    }
    common.resize(kinds, m, k);
    let all: Vec<(usize, usize)> = tiles(m).collect();
    for kind in kinds.iter() {
        let row_words = kind.row_words(k);
        let words = Shared::new(&mut common.words[slot(kind)]);
        pool.run(|worker| {
            // SAFETY: element i belongs to worker i alone.
            let own = &mut unsafe { owns.part(worker.index..worker.index + 1) }[0];
            for (first, rows) in &all[worker.share(all.len())] {
                // SAFETY: tiles do not overlap, and each is in one worker's share.
                let tile = unsafe { words.part(first * row_words..(first + rows) * row_words) };
                pack_tile(set, kind, (*first, *rows, k), source, &mut own.tile, tile);
            }
        });
    }
    let common = &*common;
    pool.run(|worker| {
        // SAFETY: element i belongs to worker i alone.
        let own = &mut unsafe { owns.part(worker.index..worker.index + 1) }[0];
        then(worker, common, &mut own.tile);
    });
}

/// Packs rows `first .. first + rows` into their tile.
fn pack_tile(
    set: &KernelSet,
    kind: ActKind,
    (first, rows, k): (usize, usize, usize),
    source: &dyn Fn(usize, &mut [f32]),
    floats: &mut Vec<f32>,
    tile: &mut [u32],
) {
    floats.resize(MAX_TILE * k, 0.0);
    let floats = &mut floats[..rows * k];
    for (r, row) in floats.chunks_exact_mut(k).enumerate() {
        source(first + r, row);
    }
    set.pack(kind, floats, k, tile);
}
