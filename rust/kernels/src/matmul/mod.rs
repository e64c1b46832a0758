//! out[m, n] = x[m, k] · w[n, k]ᵀ : panels of 16 weight rows times packed tiles of activation rows.
//!
//! In: panels ([`crate::format`]), tiles ([`crate::act`]). Out: rows of floats, 16 columns a panel.
//!
//! - **M1** Per output and block, in ascending blocks: integers exactly (N1), then `acc = fma(d_w · d_a, sum, acc)`, then, in a format with minimums,
//!   a second step: `acc = fma(m_w, d_a·Σa, acc)` for blocks of 32, `acc = fma(−(dmin_w · d_a), Σ min·Σa, acc)` for blocks of 256.
//! - **M2** Float weights: `acc = fma(w, x, acc)`, k ascending.
//! - **M3** Columns past `n` are computed from zero rows and never stored.
//!
//! Cost: each panel is read from memory once for all m rows; while the last tile walks a panel the next one is prefetched, so that reading and
//! computing overlap.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod scalar;

#[cfg(test)]
mod tests;

use crate::act::{ActKind, tiles};
use crate::format::{Format, PANEL};

/// Weights as panels: `n` rows of `k`.
#[derive(Debug, Clone, Copy)]
pub struct Panels<'a> {
    format: Format,
    n: usize,
    k: usize,
    bytes: &'a [u8],
}

impl<'a> Panels<'a> {
    /// Wraps panels that [`crate::format::Layout::pack_panel`] made.
    ///
    /// # Panics
    /// If the bytes are not `ceil(n / 16)` panels of `k` weights a row.
    pub fn new(format: Format, n: usize, k: usize, bytes: &'a [u8]) -> Self {
        assert_eq!(k % format.layout().len, 0, "whole blocks");
        assert_eq!(bytes.len(), n.div_ceil(PANEL) * PANEL * format.panel_row_bytes(k), "whole panels");
        Panels { format, n, k, bytes }
    }

    /// Number of panels.
    pub fn count(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Inner size.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of weight rows, that is outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// The weight format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Expands weight row `row` to `k` floats, exactly as [`Format::dequantize`] does from the file.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k);
        let layout = self.format.layout();
        let blocks = self.k / layout.panel_len;
        let panel = self.panel(row / PANEL);
        let mut block = [0u8; 256];
        let block = &mut block[..layout.panel_bytes];
        for (b, values) in out.chunks_exact_mut(layout.panel_len).enumerate() {
            layout.gather(panel, blocks, row % PANEL, b, block);
            self.format.expand(block, values);
        }
    }

    /// The bytes of panel `p` and all that follow; none if there is no such panel.
    pub fn from(&self, p: usize) -> &'a [u8] {
        &self.bytes[(p * PANEL * self.format.panel_row_bytes(self.k)).min(self.bytes.len())..]
    }

    fn panel(&self, p: usize) -> &'a [u8] {
        let size = PANEL * self.format.panel_row_bytes(self.k);
        &self.bytes[p * size..(p + 1) * size]
    }
}

/// `m` rows of packed activations.
#[derive(Debug, Clone, Copy)]
pub struct Acts<'a> {
    kind: ActKind,
    m: usize,
    k: usize,
    words: &'a [u32],
}

impl<'a> Acts<'a> {
    /// Wraps the packed tiles of `m` rows of `k` values.
    ///
    /// # Panics
    /// If the words are not exactly those tiles.
    pub fn new(kind: ActKind, m: usize, k: usize, words: &'a [u32]) -> Self {
        assert_eq!(words.len(), m * kind.row_words(k), "whole tiles");
        Acts { kind, m, k, words }
    }

    /// Number of rows.
    pub fn m(&self) -> usize {
        self.m
    }
}

/// Where the outputs go: column `c` of row `r` at `data + r·stride + c`.
///
/// Threads write disjoint columns of the same rows, so this carries a pointer. The caller of [`Out::new`] promises that no other thread touches the columns
/// that a call writes while it runs.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    data: *mut f32,
    stride: usize,
}

// SAFETY: an `Out` holds an address and a number and uses neither; the caller of `Out::new` promises that writes through copies are disjoint.
unsafe impl Send for Out {}
// SAFETY: a shared reference gives what a copy gives, because `Out` is `Copy`, and copies may be sent.
unsafe impl Sync for Out {}

impl Out {
    /// Names a place for rows `stride` floats apart.
    ///
    /// # Safety
    /// `data` must be valid for writes of every row and column that calls with this value address, and during a call no one else may access the
    /// columns that it writes.
    pub unsafe fn new(data: *mut f32, stride: usize) -> Self {
        Out { data, stride }
    }
}

/// One tile times one panel, or several: what a micro-kernel gets.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// The panel.
    pub(crate) panel: *const u8,
    /// What to prefetch meanwhile, as many bytes as the panels have: mostly the next ones. Any address will do.
    pub(crate) next: *const u8,
    /// Blocks a row.
    pub(crate) blocks: usize,
    /// The tile of activations.
    pub(crate) act: *const u32,
    /// Rows of the tile.
    pub(crate) rows: usize,
    /// Its inner size.
    pub(crate) k: usize,
    /// Output of its first row and the panel's first column.
    pub(crate) out: *mut f32,
    /// Floats between rows of the output.
    pub(crate) stride: usize,
    /// Columns of a panel to store, 1 to 16; of several panels 16.
    pub(crate) columns: usize,
    /// Where rows lie one after another instead of packed (attention): words from one to the next.
    pub(crate) act_stride: usize,
    /// Panels that meet the same rows, and the bytes from one to the next; their columns lie side by side.
    pub(crate) panels: (usize, usize),
}

impl Tile {
    /// Panel `p` of several, and those after it.
    #[cfg(target_arch = "x86_64")]
    fn from(&self, p: usize) -> Tile {
        Tile { panels: (self.panels.0 - p, self.panels.1), ..self.one(p) }
    }

    /// Panel `p` of several alone.
    pub(crate) fn one(&self, p: usize) -> Tile {
        Tile {
            panel: self.panel.wrapping_add(p * self.panels.1),
            out: self.out.wrapping_add(p * PANEL),
            panels: (1, self.panels.1),
            ..*self
        }
    }
}

/// A micro-kernel for one format.
///
/// # Safety
/// The pointers must be valid for the sizes that the other fields give, the output for `columns` columns of `rows` rows, and the CPU must have the
/// set's instructions.
pub(crate) type TileFn = unsafe fn(&Tile);

/// Computes the columns of panels `first .. first + count` for all rows of `x`, `together` panels at a time, or one where there are no more whole ones. `next`
/// is what will be read afterwards, as far as is known: its first bytes, at most as many as these panels have, are fetched during the last of them.
///
/// # Panics
/// If the panels are out of range, or `x` has another inner size or another kind than the weights want.
///
/// # Safety
/// `out` must be valid for all rows of `x` and the columns of these panels (see [`Out::new`]), and `tile` must be of a set that the CPU has.
pub(crate) unsafe fn run(
    (tile, together): (TileFn, usize),
    kind: ActKind,
    w: &Panels<'_>,
    (first, count): (usize, usize),
    x: &Acts<'_>,
    out: Out,
    next: &[u8],
) {
    let end = first + count;
    assert!(end <= w.count(), "panels {first}+{count} of {}", w.count());
    assert_eq!((x.k, x.kind), (w.k, kind), "activations fit the weights");
    let row_words = x.kind.row_words(x.k);
    let last_tile = tiles(x.m).last().map_or(0, |(row, _)| row);
    let mut p = first;
    while p < end {
        let columns = (w.n - p * PANEL).min((end - p) * PANEL).min(together * PANEL);
        let panels = (columns / PANEL).max(1);
        let columns = columns.min(PANEL);
        let panel = w.panel(p).as_ptr();
        let following = match p + panels < end {
            true => w.panel(p + panels).as_ptr(),
            false if next.is_empty() => panel,
            false => next.as_ptr(),
        };
        for (row, rows) in tiles(x.m) {
            let one = Tile {
                panel,
                next: if row == last_tile { following } else { panel },
                blocks: w.k / w.format.layout().panel_len,
                act: x.words[row * row_words..(row + rows) * row_words].as_ptr(),
                rows,
                k: w.k,
                // In place of `add`: the place may be named by an address outside its memory, whose columns are inside it.
                out: out.data.wrapping_add(row * out.stride + p * PANEL),
                stride: out.stride,
                columns,
                act_stride: 0,
                panels: (panels, PANEL * w.format.panel_row_bytes(w.k)),
            };
            // SAFETY: panels and tile are slices of exactly the sizes that `one` states; output and instruction set by the caller.
            unsafe { tile(&one) };
        }
        p += panels;
    }
}
