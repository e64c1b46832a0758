//! Attention: a tile of queries over the keys and values of one key/value head, chunk by chunk.
//!
//! In: packed queries (scaled already), chunks of the cache. Out: for each query the weighted mean of the values.
//!
//! The cache of one head is a list of chunks of [`CHUNK`] absolute positions. A chunk holds its keys as panels of 16 keys (a lane is a key) and its values
//! as panels of 16 columns (a lane is a column), so both steps are the products of [`crate::matmul`]:
//!
//! - **A1** score: `Σ_d fma(k_d, q_d, ·)`, d ascending, for keys that are floats. For q8_0 keys a Q8_0 product with a query of signed bytes in blocks of 32:
//!   `Σ_b fma(d_kb · d_qb, Σ code_k · code_q, ·)`, b ascending; the inner sum is of integers.
//! - **A2** within a chunk of floats: `m` the greatest score, `p = exp(score − m)`, `l` the sum of p over 16 lanes by position and the fold tree (N3),
//!   `o_d = Σ_j fma(v_jd, p_j, ·)`, j ascending.
//! - **A3** over chunks, ascending: `M' = max(M, m)`, `a = exp(M − M')`, `b = exp(m − M')`, `L = fma(l, b, L·a)`, `O = fma(o, b, O·a)`; the first chunk is taken
//!   as it is. Result `O · (1 / L)`. Whether chunks are combined as they come or later makes no difference to these steps.
//! - **A4** A key that a query may not see has score −∞ and so weight 0. It contributes `fma(v, 0, o) = o`, or in q8_0 a code 0. Values in a cache of floats are
//!   always finite ([`KvLayout::write_value`]), and any byte times 0 is 0, so an invisible position cannot disturb a visible one.
//! - **A5** Writing a position touches no other position's bytes (N8).
//! - **A6** within a chunk of q8_0: `m` of A5, `p = 2^((score − m) · log2 e)` ([`order::exp2`](crate::order::exp2)), `l` as above, from these p. For each query
//!   and block b of 32 columns the weights take in the values' scales and become bytes: `w_j = p_j · d_jb`, `top` the greatest of them,
//!   `code_j = round(w_j · (255 / top))`, half to even, in 0 … 255; all are 0 if `top` is. Then `o_d = (top · (1 / 255)) · Σ_j code_j · v_jd`. A NaN is never the
//!   greatest and has code 0; it reaches the result through `l`.
//! - **A7** The sums of A6 are exact integers: |Σ| ≤ 128 · 255 · 128 = 4,177,920 < 2^23, in i32 and as f32. The inner sums of A1 are at most 32 · 127 · 127. So
//!   within a chunk only A1's few float steps have an order.
//! - **A8** What is quantized for a query depends on what this query sees alone: its scores, and the scales of the values at slots of weight above 0. So neither other
//!   queries of the tile nor later positions of the chunk move a bit (N5).

mod bytes;
mod cache;
mod softmax;

#[cfg(test)]
mod tests;

pub use cache::{KvKind, KvLayout, VALUE_PART};
use softmax::Weights;
#[cfg(target_arch = "x86_64")]
pub(crate) use softmax::{AVX2, AVX2_VNNI, AVX512};
pub(crate) use softmax::{AttendFns, SCALAR};
#[cfg(target_arch = "aarch64")]
pub(crate) use softmax::{NEON, NEON_DOTPROD};

use std::ops::{Deref, DerefMut, Range};

use crate::act::{ActKind, MAX_TILE};
use crate::format::PANEL;
use crate::matmul::Tile;
use crate::order::LANES;
use crate::set::KernelSet;

/// Positions a chunk. Part of the contract: another value gives other bits.
pub const CHUNK: usize = 128;

/// How cached values that are floats are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    F32,
    F16,
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
    scores: Aligned<f32>,
    /// Weights of q8_0 (A6): codes and factors of a tile, and the scales of the chunk's values.
    codes: Aligned<u8>,
    factors: Vec<f32>,
    scales: Aligned<f32>,
}

/// Numbers that begin at a cache line, so that no register of them lies across two.
#[derive(Debug)]
struct Aligned<T> {
    all: Vec<T>,
    used: Range<usize>,
}

impl<T: Copy + Default> Aligned<T> {
    fn new(len: usize) -> Self {
        let line = 64 / size_of::<T>();
        let all = vec![T::default(); len + line];
        let first = all.as_ptr().align_offset(64).min(line);
        Aligned { all, used: first..first + len }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.all[self.used.clone()]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[self.used.clone()]
    }
}

impl Partial {
    /// Room for a tile of queries over heads of this layout.
    pub fn new(layout: &KvLayout) -> Self {
        Partial {
            m: [0.0; LANES],
            l: [0.0; LANES],
            o: vec![0.0; MAX_TILE * layout.padded()],
            scores: Aligned::new(MAX_TILE * CHUNK),
            codes: Aligned::new(layout.scaled_blocks() * bytes::BLOCK),
            factors: vec![0.0; layout.scaled_blocks() * MAX_TILE],
            scales: Aligned::new(layout.scaled_blocks() * CHUNK),
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

    score(set, layout, bytes, queries, first / PANEL..last.div_ceil(PANEL), &mut out.scores);
    let next = if next.is_empty() { bytes } else { next };
    match layout.floats() {
        Some(values) => weigh_floats(set, (layout, values), bytes, visible, (first, last), out, next),
        None => weigh_bytes(set, layout, bytes, visible, (first, last), out, next),
    }
}

/// Scores of the keys of some panels (A1); meanwhile the values are fetched.
fn score(
    set: &KernelSet,
    layout: &KvLayout,
    bytes: &[u8],
    queries: Queries<'_>,
    panels: Range<usize>,
    scores: &mut [f32],
) {
    let (format, kind) = (layout.key_format(), layout.query_kind());
    let key_panel = layout.key_panel_bytes();
    let at = |p: usize| bytes[p * key_panel..].as_ptr();
    let keys = Tile {
        panel: at(panels.start),
        next: bytes[layout.values_at()..].as_ptr(),
        blocks: layout.head_dim() / format.layout().len,
        act: queries.tile.as_ptr(),
        rows: queries.rows,
        k: layout.head_dim(),
        out: scores[panels.start * PANEL..].as_mut_ptr(),
        stride: CHUNK,
        columns: PANEL,
        act_stride: layout.head_dim(),
        panels: (panels.len(), key_panel),
    };
    // SAFETY: these are whole panels of `head_dim` numbers a key, the queries a whole tile, the scores have CHUNK columns for MAX_TILE rows; the set's
    // functions run on this CPU.
    unsafe {
        match layout.floats() {
            Some(values) if kind == ActKind::F32 => set.weigh_fn(values)(&keys),
            _ => {
                let (multiply, together) = (set.tile_fn(format), set.together(format, queries.rows));
                let mut p = 0;
                while p < panels.len() {
                    let count = if p + together <= panels.len() { together } else { 1 };
                    let next = at(panels.start + p).wrapping_add(count * key_panel);
                    multiply(&Tile { next, panels: (count, key_panel), ..keys.one(p) });
                    p += count;
                }
            }
        }
    }
}

/// Weights and weighted values of floats (A2).
fn weigh_floats(
    set: &KernelSet,
    (layout, values): (&KvLayout, Values),
    bytes: &[u8],
    visible: &[(usize, usize)],
    (first, last): (usize, usize),
    out: &mut Partial,
    next: &[u8],
) {
    let fns = set.attend_fns();
    let start = first / PANEL * PANEL;
    let end = last.div_ceil(PANEL) * PANEL;
    for (r, &seen) in visible.iter().enumerate() {
        let scores = &mut out.scores[r * CHUNK + start..r * CHUNK + end];
        if seen.0 >= seen.1 {
            scores.fill(0.0);
            continue;
        }
        hide(scores, start, seen);
        // SAFETY: the set's functions run on this CPU.
        (out.m[r], out.l[r]) = unsafe { (fns.softmax)(scores) };
    }
    let tile = Tile {
        panel: bytes[layout.values_at() + first * layout.value_row_bytes()..].as_ptr(),
        next: next.as_ptr(),
        blocks: last - first,
        act: out.scores[first..].as_ptr().cast(),
        rows: visible.len(),
        k: last - first,
        out: out.o.as_mut_ptr(),
        stride: layout.padded(),
        columns: PANEL,
        act_stride: CHUNK,
        panels: (layout.padded() / PANEL, layout.value_panel_bytes()),
    };
    // SAFETY: the panels have 16 values a slot up to `last`, the probabilities CHUNK a row, the output `padded` columns; the CPU has the set.
    unsafe { set.weigh_fn(values)(&tile) };
}

/// Weights and weighted values of q8_0 (A6).
fn weigh_bytes(
    set: &KernelSet,
    layout: &KvLayout,
    bytes: &[u8],
    visible: &[(usize, usize)],
    (first, last): (usize, usize),
    out: &mut Partial,
    next: &[u8],
) {
    let fns = set.attend_fns();
    // The slots that weights are made for: a power of two times 16, some of which no query sees.
    let panels = first / PANEL..last.div_ceil(PANEL);
    let wide = panels.len().next_power_of_two();
    let start = panels.start.min(CHUNK / PANEL - wide) * PANEL;
    let slots = start..start + wide * PANEL;
    for (halves, scales) in layout.value_scales(bytes).chunks_exact(2 * CHUNK).zip(out.scales.chunks_exact_mut(CHUNK)) {
        // SAFETY: the set's functions run on this CPU.
        unsafe { (fns.widen)(&halves[2 * slots.start..2 * slots.end], &mut scales[slots.clone()]) };
    }
    for (r, &seen) in visible.iter().enumerate() {
        let seen = if seen.0 < seen.1 { seen } else { (start, start) };
        hide(&mut out.scores[r * CHUNK..][slots.clone()], start, seen);
    }
    let weights = Weights {
        slots: slots.len(),
        rows: visible.len(),
        scores: &mut out.scores[start..],
        scales: &out.scales[start..],
        codes: &mut out.codes[start..],
        factors: &mut out.factors,
        m: &mut out.m,
        l: &mut out.l,
    };
    // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
    unsafe { (fns.weights)(weights) };
    let tile = bytes::Tile {
        values: &bytes[layout.values_at()..],
        next,
        panels,
        blocks: layout.scaled_blocks(),
        codes: &out.codes,
        factors: &out.factors,
        rows: visible.len(),
        out: &mut out.o,
    };
    // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
    unsafe { (fns.weigh_bytes)(tile) };
}

/// Gives the slots outside `seen` the score −∞ (A4); the first score is that of slot `start`.
fn hide(scores: &mut [f32], start: usize, seen: (usize, usize)) {
    scores[..seen.0 - start].fill(f32::NEG_INFINITY);
    scores[seen.1 - start..].fill(f32::NEG_INFINITY);
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
                // SAFETY: registers, and memory of the lengths that the trait demands; the CPU has the set, by the caller.
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
