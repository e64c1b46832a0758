//! Attention: a tile of queries over the keys and values of one key/value head, chunk by chunk.
//!
//! In: packed queries (scaled already), chunks of the cache. Out: for each query the weighted mean of the values.
//!
//! The cache of one head is a list of chunks of [`CHUNK`] absolute positions. A chunk holds its keys as panels of 16 keys (a lane is a key) and its values
//! as panels of 16 columns (a lane is a column), so both steps are the products of [`crate::matmul`]:
//!
//! - **A1** score: `Σ_d fma(k_d, q_d, ·)`, d ascending, for f16 keys; as a Q8_0 product with a quantized query for q8_0 keys.
//! - **A2** within a chunk: `m` the greatest score, `p = exp(score − m)`, `l` the sum of p over 16 lanes by position and the fold tree (N3),
//!   `o_d = Σ_j fma(v_jd, p_j, ·)`, j ascending (q8_0: `fma(code, p_j · scale_j, ·)`).
//! - **A3** over chunks, ascending: `M' = max(M, m)`, `a = exp(M − M')`, `b = exp(m − M')`, `L = fma(l, b, L·a)`, `O = fma(o, b, O·a)`; the first chunk is taken
//!   as it is. Result `O · (1 / L)`. Whether chunks are combined as they come or later makes no difference to these steps.
//! - **A4** A key that a query may not see has score −∞ and so weight 0, and contributes `fma(v, 0, o) = o`. Values in the cache are always finite
//!   ([`KvLayout::write_value`]), so an invisible position cannot disturb a visible one.
//! - **A5** Writing a position touches no other position's bytes (N8).

mod cache;
mod softmax;

#[cfg(test)]
mod tests;

pub use cache::{KvKind, KvLayout, VALUE_PART};
#[cfg(target_arch = "aarch64")]
pub(crate) use softmax::NEON;
#[cfg(target_arch = "x86_64")]
pub(crate) use softmax::{AVX2, AVX512};
pub(crate) use softmax::{AttendFns, SCALAR};

use crate::act::{ActKind, MAX_TILE};
use crate::format::PANEL;
use crate::matmul::Tile;
use crate::order::LANES;
use crate::set::KernelSet;

/// Positions a chunk. Part of the contract: another value gives other bits.
pub const CHUNK: usize = 128;

/// How cached values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    F32,
    F16,
    I8,
}

/// What one chunk says to each query of a tile.
#[derive(Debug)]
pub struct Partial {
    /// Greatest score a query.
    pub m: [f32; LANES],
    /// Sum of weights a query.
    pub l: [f32; LANES],
    /// Weighted values, `rows` of [`KvLayout::padded`] floats.
    pub o: Vec<f32>,
    scores: Vec<f32>,
    weighed: Vec<f32>,
}

impl Partial {
    /// Room for a tile of queries over heads of this layout.
    pub fn new(layout: &KvLayout) -> Self {
        Partial {
            m: [0.0; LANES],
            l: [0.0; LANES],
            o: vec![0.0; MAX_TILE * layout.padded()],
            scores: vec![0.0; MAX_TILE * CHUNK],
            weighed: vec![0.0; if layout.kind() == KvKind::Q8_0 { MAX_TILE * CHUNK } else { 0 }],
        }
    }
}

/// A tile of queries, as [`pack_queries`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// The packed tile.
    pub tile: &'a [u32],
    /// Rows of the tile.
    pub rows: usize,
}

/// Attends a tile of queries to one chunk. `visible[r]` is the range of slots (0 to [`CHUNK`]) that query r may see; an empty range leaves its entries
/// of `out` meaningless. `next` is the chunk that will be read afterwards, as far as is known; its beginning is fetched meanwhile.
///
/// # Panics
/// If sizes do not fit.
pub fn chunk(
    set: &KernelSet,
    layout: &KvLayout,
    bytes: &[u8],
    queries: Queries<'_>,
    visible: &[(usize, usize)],
    out: &mut Partial,
    next: &[u8],
) {
    let rows = queries.rows;
    let kind = layout.query_kind();
    assert_eq!(bytes.len(), layout.chunk_bytes());
    assert!(
        rows <= MAX_TILE && visible.len() == rows && queries.tile.len() == rows * kind.row_words(layout.head_dim())
    );
    assert!(out.o.len() >= rows * layout.padded());
    let seen = || visible.iter().filter(|(from, to)| from < to);
    let Some(first) = seen().map(|v| v.0).min() else { return };
    let last = seen().map(|v| v.1).max().unwrap_or(first);
    assert!(last <= CHUNK);

    let panels = first / PANEL..last.div_ceil(PANEL);
    let key_panel = layout.key_panel_bytes();
    let at = |p: usize| bytes[p * key_panel..].as_ptr();
    let keys = Tile {
        panel: at(panels.start),
        next: bytes[layout.values_at()..].as_ptr(),
        blocks: layout.head_dim() / layout.key_format().layout().len,
        act: queries.tile.as_ptr(),
        rows,
        k: layout.head_dim(),
        out: out.scores[panels.start * PANEL..].as_mut_ptr(),
        stride: CHUNK,
        columns: PANEL,
        act_stride: layout.head_dim(),
        panels: (panels.len(), key_panel),
    };
    // SAFETY: these are whole panels of `head_dim` numbers a key, the queries a whole tile, the scores have CHUNK columns for MAX_TILE rows; the set's
    // functions run on this CPU.
    unsafe {
        if kind == ActKind::F32 {
            set.weigh_fn(layout.values())(&keys);
        } else {
            let multiply = set.tile_fn(layout.key_format());
            for p in 0..panels.len() {
                multiply(&Tile { next: at(panels.start + p).wrapping_add(key_panel), ..keys.one(p) });
            }
        }
    }

    let fns = set.attend_fns();
    let start = first / PANEL * PANEL;
    let end = last.div_ceil(PANEL) * PANEL;
    for (r, &(from, to)) in visible.iter().enumerate() {
        let scores = &mut out.scores[r * CHUNK + start..r * CHUNK + end];
        if from >= to {
            scores.fill(0.0);
            continue;
        }
        scores[..from - start].fill(f32::NEG_INFINITY);
        scores[to - start..].fill(f32::NEG_INFINITY);
        // SAFETY: the set's functions run on this CPU.
        (out.m[r], out.l[r]) = unsafe { (fns.softmax)(scores) };
    }

    let weigh = set.weigh_fn(layout.values());
    let value_panel = layout.value_panel_bytes();
    let blocks = layout.padded() / PANEL;
    // The codes of q8_0 are weighed by products with their scales, which are 32 columns' own.
    let together = if layout.kind() == KvKind::Q8_0 { VALUE_PART / PANEL } else { blocks };
    for block in (0..blocks).step_by(together) {
        if layout.kind() == KvKind::Q8_0 {
            let scales = layout.value_scales(bytes, block / 2);
            for r in 0..rows {
                let range = r * CHUNK + start..r * CHUNK + end;
                // SAFETY: as above.
                unsafe { (fns.scale)(&out.scores[range.clone()], &scales[start..end], &mut out.weighed[range]) };
            }
        }
        let p = if layout.kind() == KvKind::Q8_0 { &out.weighed } else { &out.scores };
        let panel = bytes[layout.values_at() + block * value_panel + first * layout.value_row_bytes()..].as_ptr();
        let tile = Tile {
            panel,
            next: if next.is_empty() { panel } else { next.as_ptr() },
            blocks: last - first,
            act: p[first..].as_ptr().cast(),
            rows,
            k: last - first,
            out: out.o[block * PANEL..].as_mut_ptr(),
            stride: layout.padded(),
            columns: PANEL,
            act_stride: CHUNK,
            panels: (together, value_panel),
        };
        // SAFETY: the panels have 16 values a slot up to `last`, the probabilities CHUNK a row, the output `padded` columns; the CPU has the set.
        unsafe { weigh(&tile) };
    }
}

/// The running results of a tile of queries over chunks (A3).
#[derive(Debug)]
pub struct Running {
    m: [f32; LANES],
    l: [f32; LANES],
    /// Which queries have taken a chunk.
    started: [bool; MAX_TILE],
    /// Weighted values so far, [`KvLayout::padded`] floats a query.
    total: Vec<f32>,
    padded: usize,
}

impl Running {
    /// Room for a tile of queries over heads of this layout.
    pub fn new(layout: &KvLayout) -> Self {
        let padded = layout.padded();
        Running {
            m: [0.0; LANES],
            l: [0.0; LANES],
            started: [false; MAX_TILE],
            total: vec![0.0; MAX_TILE * padded],
            padded,
        }
    }

    /// Forgets all chunks.
    pub fn start(&mut self) {
        self.started = [false; MAX_TILE];
    }

    /// Takes in a chunk's `m`, `l` and `o` ([`Partial`]) for the given queries; they must see something of it.
    pub fn take(
        &mut self,
        set: &KernelSet,
        queries: impl Iterator<Item = usize>,
        (m, l, o): (&[f32; LANES], &[f32; LANES], &[f32]),
    ) {
        let fns = set.attend_fns();
        // SAFETY: the set's functions run on this CPU.
        let both = unsafe { (fns.combine)((&self.m, &self.l), (m, l)) };
        for i in queries {
            let part = i * self.padded..(i + 1) * self.padded;
            let (total, o) = (&mut self.total[part.clone()], &o[part]);
            if self.started[i] {
                (self.m[i], self.l[i]) = (both.m[i], both.l[i]);
                // SAFETY: as above.
                unsafe { (fns.merge)(total, both.old[i], o, both.new[i]) };
            } else {
                (self.m[i], self.l[i]) = (m[i], l[i]);
                self.started[i] = true;
                total.copy_from_slice(o);
            }
        }
    }

    /// The weighted mean of a query that has taken a chunk, `total · (1 / L)`, into `out`: its first `out.len()` columns.
    pub fn finish(&self, i: usize, out: &mut [f32]) {
        let inverse = 1.0 / self.l[i];
        let total = &self.total[i * self.padded..][..out.len()];
        out.iter_mut().zip(total).for_each(|(out, x)| *out = x * inverse);
    }
}

/// Packs one tile of queries, already scaled: `q` holds `rows` rows of `head_dim` floats. For float keys they stay as they are.
pub fn pack_queries(set: &KernelSet, layout: &KvLayout, q: &[f32], tile: &mut [u32]) {
    match layout.query_kind() {
        ActKind::F32 => tile.iter_mut().zip(q).for_each(|(word, x)| *word = x.to_bits()),
        kind => set.pack(kind, q, layout.head_dim(), tile),
    }
}

const _: () = assert!(CHUNK.is_multiple_of(PANEL) && CHUNK.is_multiple_of(32) && MAX_TILE <= LANES);
