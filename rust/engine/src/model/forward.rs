//! Rows of tokens in, rows of logits out.
//!
//! A forward takes spans (a sequence's state and its new tokens, each) and runs all their rows together: every weight is read once for all rows. Each span
//! says which of its rows it wants, as logits or only the greatest, and which hidden rows it wants copied. Each step is one job of the pool; between jobs
//! everything written is visible to all.
//!
//! - **F1** A row's numbers depend on its token, its position and the cached positions before it, on nothing else (I4): all steps are row by row, and by N5
//!   the products do not mix rows.
//! - **F2** Keys and values of the new rows are written into reserved room after the cached positions; the states count them only when the whole forward has
//!   succeeded, so a failed one leaves every state as it was.
//! - **F3** All spans of a forward cache in the same kind; others are refused.
//!
//! Cost: five jobs a layer for small batches.

use quoth_kernels::KernelSet;
use quoth_kernels::matmul::Out;

use quoth_kernels::attend::KvKind;

use super::Model;
pub use super::head::Output;
use super::load::Matrix;
use super::rows::{Kinds, Own, Packed, Source, with_packed};
use crate::cache::Lent;
use crate::error::{Error, Result};
use crate::pool::Worker;
use crate::shared::Shared;
use crate::state::State;

/// Most rows of one pass; longer spans go through in several, with the same bits (N5).
pub const MAX_ROWS: usize = 512;

/// A sequence's part of a forward.
#[derive(Debug)]
pub struct Span<'a> {
    /// What the sequence has so far; the tokens go behind it.
    pub state: &'a mut State,
    /// The new tokens, each below `n_vocab`; not empty.
    pub tokens: &'a [u32],
    /// Which of their rows are wanted.
    pub rows: Want,
    /// Where the wanted rows go.
    pub output: Output<'a>,
    /// Hidden rows that are wanted beside them.
    pub taps: Taps<'a>,
}

/// Which rows of a span are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Every row.
    All,
    /// So many of the last rows.
    Tail(usize),
    /// The last row.
    Last,
    /// None: the tokens are only cached.
    None,
}

impl Want {
    /// How many of `n` rows.
    pub fn rows(self, n: usize) -> usize {
        match self {
            Want::All => n,
            Want::Tail(rows) => rows.min(n),
            Want::Last => 1.min(n),
            Want::None => 0,
        }
    }
}

/// Hidden rows of chosen layers, for drafters that read them.
#[derive(Debug)]
pub struct Taps<'a> {
    /// Layers whose input is wanted, 0 to `n_layer`; `n_layer` is the stream that the output norm reads.
    pub layers: &'a [usize],
    /// Room for them, `[layers][tokens][n_embd]`.
    pub out: &'a mut [f32],
}

impl Taps<'_> {
    /// No hidden rows.
    pub fn none() -> Self {
        Taps { layers: &[], out: &mut [] }
    }

    /// Copies the stream's rows of this span, which begin at row `base`, where `layer` is wanted.
    fn copy(&mut self, layer: usize, stream: &[f32], base: usize, tokens: usize, n_embd: usize) {
        for (i, _) in self.layers.iter().enumerate().filter(|(_, wanted)| **wanted == layer) {
            let rows = &stream[base * n_embd..(base + tokens) * n_embd];
            self.out[i * tokens * n_embd..(i + 1) * tokens * n_embd].copy_from_slice(rows);
        }
    }
}

/// A row of the batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) span: usize,
    /// Where its keys and values go in the cache.
    pub(crate) pos: usize,
    /// The position by which queries and keys are rotated: `pos`, except in drafters whose cache leaves rows out.
    pub(crate) angle: usize,
    /// The end of what its queries see: behind itself, except in drafters whose rows see one another.
    pub(crate) end: usize,
}

impl Row {
    /// A row that sees itself and what comes before.
    pub(crate) fn causal(span: usize, pos: usize) -> Row {
        Row { span, pos, angle: pos, end: pos + 1 }
    }
}

/// Memory of forwards, kept between them.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Residual stream, `[m][n_embd]`.
    pub(crate) x: Vec<f32>,
    /// Embeddings beside the stream, `[m][n_embd]`, where a drafter's layers read both.
    pub(crate) embedded: Vec<f32>,
    /// What a block adds to the stream, `[m][n_embd]`.
    pub(crate) delta: Vec<f32>,
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    /// Attention's result, `[m][n_head · head_dim]`.
    pub(crate) mixed: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    /// What the feed-forward's last matrix meets, packed.
    pub(crate) hidden: Packed,
    /// Per-layer inputs, `[m][n_layer · width]`.
    pub(crate) per_layer: Vec<f32>,
    pub(crate) experts: super::experts::Memory,
    pub(crate) own: Vec<Own>,
    pub(crate) common: Packed,
    pub(crate) attention: super::attention::Memory,
    pub(crate) best: Vec<super::head::WorkerBest>,
}

/// Makes a buffer at least `n` long.
pub(crate) fn at_least(buffer: &mut Vec<f32>, n: usize) {
    if buffer.len() < n {
        buffer.resize(n, 0.0);
    }
}

impl Span<'_> {
    fn check(&self, model: &Model, kind: KvKind) -> Result<()> {
        let (config, first, n) = (&model.config, self.state.len(), self.tokens.len());
        if n == 0 {
            return Err(Error::EmptyPrompt);
        }
        if let Some((i, &token)) = self.tokens.iter().enumerate().find(|(_, t)| **t as usize >= config.n_vocab) {
            return Err(Error::TokenRange { token, pos: first + i, last: config.n_vocab - 1 });
        }
        let found = self.state.kv().kind();
        if found != kind {
            let name = |kind: KvKind| format!("{kind:?}").to_lowercase();
            let expected = format!("{}, as the other sequences of the forward", name(kind));
            return Err(Error::Option { what: "kv_type", found: name(found), expected });
        }
        if let Some(layer) = self.taps.layers.iter().find(|layer| **layer > config.n_layer()) {
            let expected = format!("0 to {}", config.n_layer());
            return Err(Error::Option { what: "tapped layer", found: layer.to_string(), expected });
        }
        let room = self.taps.layers.len() * n * config.n_embd;
        if self.taps.out.len() != room {
            return Err(Error::Internal(format!("room for {} tapped numbers, expected {room}", self.taps.out.len())));
        }
        self.output.check(self.rows.rows(n), config.n_vocab)
    }
}

impl Model {
    /// Runs the spans' tokens and writes what each span wants.
    ///
    /// # Errors
    /// There is no span, or one is empty, has a token out of range, no room for its results, taps of layers that do not exist or another kind of cache than
    /// the first; the spans have more than [`MAX_ROWS`] rows; or a context is full. No state has changed.
    pub fn forward(&self, spans: &mut [Span<'_>], scratch: &mut Scratch) -> Result<()> {
        let n_embd = self.config.n_embd;
        let kind = spans.first().ok_or(Error::EmptyPrompt)?.state.kv().kind();
        let mut rows = Vec::new();
        for (s, span) in spans.iter_mut().enumerate() {
            span.check(self, kind)?;
            let first = span.state.len();
            span.state.reserve(span.tokens.len())?;
            rows.extend((0..span.tokens.len()).map(|i| Row::causal(s, first + i)));
        }
        if rows.len() > MAX_ROWS {
            return Err(Error::Internal(format!("a pass of {} rows, the limit is {MAX_ROWS}", rows.len())));
        }
        scratch.own.resize_with(self.pool.count(), Own::default);
        let tokens: Vec<u32> = spans.iter().flat_map(|span| span.tokens).copied().collect();
        self.embed(&tokens, &mut scratch.x);
        self.embed_per_layer(&tokens, scratch);
        {
            let mut taps = Vec::with_capacity(spans.len());
            let mut lent = Vec::with_capacity(spans.len());
            let mut base = 0;
            for Span { state, tokens, taps: wanted, .. } in spans.iter_mut() {
                if !wanted.layers.is_empty() {
                    taps.push((&mut *wanted, base, tokens.len()));
                }
                base += tokens.len();
                lent.push(state.lend());
            }
            self.layers(&rows, &lent, scratch, |layer, stream| {
                taps.iter_mut().for_each(|(taps, base, n)| taps.copy(layer, stream, *base, *n, n_embd));
            });
        }
        let (mut wanted, mut outputs) = (Vec::new(), Vec::new());
        let mut base = 0;
        for span in spans.iter_mut() {
            base += span.tokens.len();
            let n = span.rows.rows(span.tokens.len());
            if n > 0 {
                wanted.extend(base - n..base);
                outputs.push(&mut span.output);
            }
        }
        if !wanted.is_empty() {
            self.head(&wanted, &mut outputs, scratch);
        }
        for span in spans {
            span.state.advance(span.tokens.len());
        }
        Ok(())
    }

    /// Token embeddings into rows, usually those of the residual stream.
    pub(crate) fn embed(&self, tokens: &[u32], rows: &mut Vec<f32>) {
        let n_embd = self.config.n_embd;
        at_least(rows, tokens.len() * n_embd);
        let table = self.panels(&self.weights.embedding);
        let embed = |token: u32, row: &mut [f32]| {
            table.dequantize_row(token as usize, row);
            if self.config.embed_scale != 1.0 {
                row.iter_mut().for_each(|v| *v *= self.config.embed_scale);
            }
        };
        // One row is made before another thread would begin.
        if let [token] = tokens {
            return embed(*token, &mut rows[..n_embd]);
        }
        let x = Shared::new(rows);
        self.pool.run(|worker| {
            for r in worker.share(tokens.len()) {
                // SAFETY: rows of this worker's share.
                embed(tokens[r], unsafe { x.part(r * n_embd..(r + 1) * n_embd) });
            }
        });
    }

    /// The stream's rows times a matrix that does not stand in a layer: `m` rows that `source` gives, to the first columns of the stream.
    pub(crate) fn enter(&self, matrix: &Matrix, m: usize, source: Source<'_>, scratch: &mut Scratch) {
        let Scratch { x, own, common, .. } = scratch;
        at_least(x, m * matrix.n);
        let x = Shared::new(x);
        let rows = (self.kinds([matrix]), m, matrix.k);
        with_packed(&self.pool, &self.set, rows, source, own, common, &|worker, packed, _| {
            // SAFETY: each worker uses the columns of its share.
            unsafe { self.product(matrix, worker.share(matrix.panels()), packed, &x, (0, matrix.n), &[]) };
        });
    }

    /// Runs the layers over rows whose stream stands in the scratch; `tap` sees the stream before each layer and after the last.
    pub(crate) fn layers(
        &self,
        rows: &[Row],
        lent: &[Lent<'_>],
        scratch: &mut Scratch,
        mut tap: impl FnMut(usize, &[f32]),
    ) {
        let n_layer = self.config.n_layer();
        for layer in 0..n_layer {
            tap(layer, &scratch.x);
            self.attend(layer, rows, lent, scratch);
            self.feed(layer, rows.len(), scratch);
            self.finish_layer(layer, rows.len(), scratch);
        }
        tap(n_layer, &scratch.x);
    }

    /// What activations these matrices want.
    pub(crate) fn kinds<'m>(&self, matrices: impl IntoIterator<Item = &'m Matrix>) -> Kinds {
        Kinds::of(matrices.into_iter().map(|m| self.set.act_kind(m.format)))
    }

    /// Panels `panels` of a matrix times packed rows, into `out`: the first row's first column is element `at`, rows are `stride` apart. `next` is what this
    /// thread will read afterwards, as far as is known.
    ///
    /// # Safety
    /// No other thread may use these columns of `out` meanwhile.
    pub(crate) unsafe fn product(
        &self,
        matrix: &Matrix,
        panels: std::ops::Range<usize>,
        packed: &Packed,
        out: &Shared<'_, f32>,
        (at, stride): (usize, usize),
        next: &[u8],
    ) {
        let acts = packed.acts(self.set.act_kind(matrix.format));
        if acts.m() == 0 || panels.is_empty() {
            return;
        }
        assert!(at + (acts.m() - 1) * stride + matrix.n <= out.len() && matrix.n <= stride, "room for the product");
        // SAFETY: `out` has room for all rows (checked); the columns are the caller's.
        unsafe {
            let place = Out::new(out.as_mut_ptr().add(at), stride);
            self.set.multiply_then(&self.panels(matrix), (panels.start, panels.len()), &acts, place, next);
        }
    }

    /// Panels `panels` of a matrix times packed rows, into rows of `PIECE` panels' columns that this thread has for itself; the panels after them come next.
    pub(crate) fn piece(&self, matrix: &Matrix, panels: std::ops::Range<usize>, packed: &Packed, out: &mut [f32]) {
        let acts = packed.acts(self.set.act_kind(matrix.format));
        let stride = out.len() / acts.m();
        assert!(panels.len() * 16 <= stride, "room for the piece");
        // SAFETY: `out` has room for all rows (checked) and is this thread's own. The kernels write column `16 · p` of panel p, so the first panel's columns
        // are moved to the front; the address that is formed may lie before `out`, the addresses that are written do not.
        unsafe {
            let place = Out::new(out.as_mut_ptr().wrapping_sub(panels.start * 16), stride);
            let weights = self.panels(matrix);
            self.set.multiply_then(&weights, (panels.start, panels.len()), &acts, place, weights.from(panels.end));
        }
    }

    /// Where this worker's share of a matrix begins, for `next` of a product before it.
    pub(crate) fn share_of(&self, matrix: &Matrix, worker: Worker) -> &[u8] {
        self.panels(matrix).from(worker.share(matrix.panels()).start)
    }

    /// What a worker reads first after `layer`.
    pub(crate) fn after_layer(&self, layer: usize, worker: Worker) -> &[u8] {
        match self.weights.layers.get(layer + 1) {
            Some(next) => self.first_of_attention(&self.config.layers[layer + 1], &next.attention, worker),
            None => self.share_of(&self.weights.output, worker),
        }
    }

    /// Adds `delta`, normed, to the stream. Rows are shared out.
    pub(crate) fn add_normed(&self, m: usize, norm: &[f32], scratch: &mut Scratch) {
        let n_embd = self.config.n_embd;
        let (x, delta) = (Shared::new(&mut scratch.x), &scratch.delta);
        self.pool.run(|worker: Worker| {
            let mut normed = vec![0.0; n_embd];
            for r in worker.share(m) {
                self.set.rms_norm(&delta[r * n_embd..(r + 1) * n_embd], Some(norm), self.config.eps, &mut normed);
                // SAFETY: rows of this worker's share.
                let row = unsafe { x.part(r * n_embd..(r + 1) * n_embd) };
                row.iter_mut().zip(&normed).for_each(|(x, d)| *x += d);
            }
        });
    }

    /// Adds columns `from .. to` of `delta` to the stream, with a bias.
    ///
    /// # Safety
    /// No other thread may use these columns of either meanwhile.
    pub(crate) unsafe fn add_columns(
        &self,
        m: usize,
        panels: std::ops::Range<usize>,
        bias: Option<&[f32]>,
        x: &Shared<'_, f32>,
        delta: &Shared<'_, f32>,
    ) {
        let n_embd = self.config.n_embd;
        let (from, to) = (panels.start * 16, (panels.end * 16).min(n_embd));
        for r in 0..m {
            // SAFETY: the caller has these columns for itself.
            let (x, delta) =
                unsafe { (x.part(r * n_embd + from..r * n_embd + to), delta.part(r * n_embd + from..r * n_embd + to)) };
            if let Some(bias) = bias {
                delta.iter_mut().zip(&bias[from..to]).for_each(|(d, b)| *d += b);
            }
            x.iter_mut().zip(&*delta).for_each(|(x, d)| *x += d);
        }
    }

    pub(crate) fn set(&self) -> &KernelSet {
        &self.set
    }
}
