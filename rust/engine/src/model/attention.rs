//! Attention of a layer: query, key and value in one job, attention in the next, the output matrix in a third.
//!
//! Queries that share a key/value head are tiled together, rows and heads alike, and [`BAND`] tiles go through the chunks of the cache side by side, so a chunk
//! is read from memory once for a band. The steps, one chunk for one tile each, are shared out evenly in that order. A tile that falls to one worker is done
//! whole; of one that is cut between workers the chunks' partial results are kept, and merged, in order, when the next job packs its rows: the same steps in
//! the same order, so the same bits (rule A3 of [`quoth_kernels::attend`]).

use std::ops::Range;

use quoth_kernels::act::{MAX_TILE, tiles};
use quoth_kernels::attend::{CHUNK, KvKind, KvLayout, Partial, Queries, Running, VALUE_PART, chunk, pack_queries};
use quoth_kernels::order::LANES;

use super::Model;
use super::config::LayerConfig;
use super::forward::{Row, Scratch, at_least};
use super::rows::with_packed;
use super::weights::Attention;
use crate::cache::Lent;
use crate::pool::Worker;
use crate::shared::Shared;

/// Memory of attention, kept between forwards.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// One for each worker.
    own: Vec<Option<WorkerMemory>>,
    /// Partial results of the chunks of cut tiles, [`Kept::size`] floats each.
    kept: Vec<f32>,
}

/// Tiles that go through the chunks side by side: enough for twelve rows of three heads, few enough for their queries to stay in the first cache.
const BAND: usize = 4;

#[derive(Debug)]
struct WorkerMemory {
    partial: Partial,
    queries: Vec<f32>,
    places: [Place; BAND],
    head_dim: usize,
    kind: KvKind,
}

/// What a worker remembers of one tile of a band.
#[derive(Debug)]
struct Place {
    /// The tile, among all.
    job: Option<usize>,
    packed: Vec<u32>,
    running: Running,
}

/// The partial result of one chunk for a tile: greatest scores, sums of weights, weighted values.
struct Kept;

impl Kept {
    fn size(layout: &KvLayout) -> usize {
        2 * LANES + MAX_TILE * layout.padded()
    }

    fn write(to: &mut [f32], partial: &Partial, floats: usize) {
        to[..LANES].copy_from_slice(&partial.m);
        to[LANES..2 * LANES].copy_from_slice(&partial.l);
        to[2 * LANES..][..floats].copy_from_slice(&partial.o[..floats]);
    }

    fn read(from: &[f32]) -> (&[f32; LANES], &[f32; LANES], &[f32]) {
        let (heads, o) = from.split_at(2 * LANES);
        let [m, l] = heads.as_chunks::<LANES>().0 else { unreachable!("two times {LANES}") };
        (m, l, o)
    }
}

/// A tile of queries of one key/value head: queries `first .. first + count` of its span, numbered row by row, heads of a group within a row.
#[derive(Debug, Clone, Copy)]
struct TileJob {
    span: usize,
    /// First row of the span in the batch.
    base: usize,
    kv_head: usize,
    first: usize,
    count: usize,
    /// Chunks that some query of the tile sees.
    chunks: (usize, usize),
    /// Its place in its band.
    place: usize,
    /// Its first step and the one behind its last, among the steps of all tiles; between them are those of its band, too.
    steps: (usize, usize),
    /// Of a tile that is cut between workers: number of the first chunk among those that are kept.
    kept: Option<usize>,
}

/// One chunk for one tile.
#[derive(Debug, Clone, Copy)]
struct Step {
    job: usize,
    chunk: usize,
}

/// Everything that is the same for all workers.
struct Task<'t> {
    model: &'t Model,
    layer: usize,
    config: &'t LayerConfig,
    rows: &'t [Row],
    lent: &'t [Lent<'t>],
    jobs: Vec<TileJob>,
    steps: Vec<Step>,
}

/// The positions that the query of a row sees.
fn visible(config: &LayerConfig, row: Row) -> Range<usize> {
    config.window.map_or(0, |window| (row.pos + 1).saturating_sub(window))..row.end
}

impl Model {
    /// Adds the attention of `layer` to the stream.
    pub(crate) fn attend(&self, layer: usize, rows: &[Row], lent: &[Lent<'_>], scratch: &mut Scratch) {
        let weights = &self.weights.layers[layer].attention;
        let config = &self.config.layers[layer];
        self.project(layer, weights, config, (rows, lent), true, scratch);

        let (mut jobs, steps) = tile_jobs(config, rows, lent.len());
        let kept = cut(&mut jobs, steps.len(), self.pool.count());
        let task = Task { model: self, layer, config, rows, lent, jobs, steps };
        at_least(&mut scratch.mixed, rows.len() * config.n_head * config.head_dim);
        at_least(&mut scratch.attention.kept, kept * Kept::size(lent[0].layout(layer)));
        scratch.attention.own.resize_with(self.pool.count(), || None);
        {
            let own = Shared::new(&mut scratch.attention.own);
            let kept = Shared::new(&mut scratch.attention.kept);
            let mixed = Shared::new(&mut scratch.mixed);
            let q = &scratch.q;
            self.pool.run(|worker| {
                // SAFETY: element i belongs to worker i alone.
                let own = &mut unsafe { own.part(worker.index..worker.index + 1) }[0];
                task.share(worker, q, task.memory(own), &mixed, &kept);
            });
        }
        self.output(layer, weights, &task, scratch);
    }

    /// Puts keys and values of rows into the caches of all layers, made of the stream as it is, without a norm: the way of drafters that do not run their
    /// layers over the rows that they remember.
    pub(crate) fn remember(&self, rows: &[Row], lent: &[Lent<'_>], scratch: &mut Scratch) {
        for (layer, (weights, config)) in self.weights.layers.iter().zip(&self.config.layers).enumerate() {
            self.project(layer, &weights.attention, config, (rows, lent), false, scratch);
        }
    }

    /// Queries (if `whole`; else keys and values are made of the raw stream), keys and values of the new rows: products, biases, norms, rotation; keys and values go to the cache.
    fn project(
        &self,
        layer: usize,
        weights: &Attention,
        config: &LayerConfig,
        (rows, lent): (&[Row], &[Lent<'_>]),
        whole: bool,
        scratch: &mut Scratch,
    ) {
        let (n_embd, dim, m) = (self.config.n_embd, config.head_dim, rows.len());
        let (n_q, n_kv) = (config.n_head * dim, config.n_head_kv * dim);
        let Scratch { x, embedded, q, k, v, own, common, .. } = scratch;
        at_least(q, m * n_q);
        at_least(k, m * n_kv);
        at_least(v, m * n_kv);
        let x = &*x;
        let embedded = &*embedded;
        let norm = |r: usize, out: &mut [f32]| {
            let row = r * n_embd..(r + 1) * n_embd;
            let out = match &weights.embed_norm {
                Some(norm) => {
                    let (first, rest) = out.split_at_mut(n_embd);
                    self.set.rms_norm(&embedded[row.clone()], Some(norm), self.config.eps, first);
                    rest
                }
                None => out,
            };
            match weights.norm.as_ref().filter(|_| whole) {
                Some(norm) => self.set.rms_norm(&x[row], Some(norm), self.config.eps, out),
                None => out.copy_from_slice(&x[row]),
            }
        };
        let (q, k, v) = (Shared::new(q), Shared::new(k), Shared::new(v));
        let rope = &self.ropes[config.rope];
        let eps = self.config.eps;
        let kv_matrices = weights.kv.iter().flat_map(|kv| [&kv.k.matrix, &kv.v.matrix]);
        let kinds = self.kinds(std::iter::once(&weights.q.matrix).chain(kv_matrices));
        let shares = Shares::new(config, weights);
        let width = weights.q.matrix.k;
        with_packed(&self.pool, &self.set, (kinds, m, width), &norm, own, common, &|worker, packed, _| {
            let (own_q, own_k, own_v) = shares.of(worker);
            let own_q = if whole { own_q } else { 0..0 };
            // No columns are no panels, also where the heads before them end inside one.
            let panels = |columns: Range<usize>| match columns.is_empty() {
                true => 0..0,
                false => columns.start / 16..columns.end.div_ceil(16),
            };
            let columns = |heads: &Range<usize>| heads.start * dim..heads.end * dim;
            let add_bias = |part: &mut [f32], bias: &Option<Vec<f32>>, at: usize| {
                if let Some(bias) = bias {
                    part.iter_mut().zip(&bias[at..]).for_each(|(x, b)| *x += b);
                }
            };
            let mut normed = vec![0.0; dim];
            let mut norm_head = |head: &mut [f32], weight: Option<&[f32]>| {
                self.set.rms_norm(head, weight, eps, &mut normed);
                head.copy_from_slice(&normed);
            };
            // SAFETY: shares do not overlap and end at whole panels, so each worker uses columns, cached heads and parts of values of its own.
            unsafe {
                let output = self.share_of(&weights.output.matrix, worker);
                let (k_first, v_first) = match &weights.kv {
                    Some(kv) if own_k.is_empty() => (self.panels(&kv.v.matrix).from(own_v.start / 16), output),
                    Some(kv) => (
                        self.panels(&kv.k.matrix).from(own_k.start * dim / 16),
                        self.panels(&kv.v.matrix).from(own_v.start / 16),
                    ),
                    None => (output, output),
                };
                self.product(&weights.q.matrix, panels(columns(&own_q)), packed, &q, (0, n_q), k_first);
                for (r, row) in rows.iter().enumerate() {
                    let (cos, sin) = rope.row(row.angle);
                    for h in own_q.clone() {
                        let head = q.part(r * n_q + h * dim..r * n_q + (h + 1) * dim);
                        add_bias(head, &weights.q.bias, h * dim);
                        if let Some(weight) = &weights.q_norm {
                            norm_head(head, Some(weight));
                        }
                        self.set.rotate(head, cos, sin);
                        head.iter_mut().for_each(|x| *x *= config.score_scale);
                    }
                }
                let Some(kv) = &weights.kv else { return };
                for row in
                    rows.iter().enumerate().filter(|(r, row)| *r == 0 || row.pos.is_multiple_of(16)).map(|(_, row)| row)
                {
                    own_k.clone().for_each(|h| lent[row.span].fetch_key(layer, h, row.pos));
                }
                self.product(&kv.k.matrix, panels(columns(&own_k)), packed, &k, (0, n_kv), v_first);
                self.product(&kv.v.matrix, panels(own_v.clone()), packed, &v, (0, n_kv), output);
                for (r, row) in rows.iter().enumerate() {
                    let (cos, sin) = rope.row(row.angle);
                    for h in own_k.clone() {
                        let head = k.part(r * n_kv + h * dim..r * n_kv + (h + 1) * dim);
                        add_bias(head, &kv.k.bias, h * dim);
                        if let Some(weight) = &kv.k_norm {
                            norm_head(head, Some(weight));
                        }
                        self.set.rotate(head, cos, sin);
                        lent[row.span].write_key(&self.set, layer, h, row.pos, head);
                    }
                    let value = v.part(r * n_kv + own_v.start..r * n_kv + own_v.end);
                    add_bias(value, &kv.v.bias, own_v.start);
                    if kv.v_norm {
                        value.chunks_exact_mut(dim).for_each(|head| norm_head(head, None));
                    }
                    let mut at = own_v.start;
                    while at < own_v.end {
                        let (head, part) = (at / dim, at % dim / VALUE_PART);
                        let end = (at + VALUE_PART).min((head + 1) * dim);
                        let value = &value[at - own_v.start..end - own_v.start];
                        lent[row.span].write_value(&self.set, (layer, head, part), row.pos, value);
                        at = end;
                    }
                }
            }
        });
    }

    /// What a worker reads first in the projections of a layer.
    pub(super) fn first_of_attention(&self, config: &LayerConfig, weights: &Attention, worker: Worker) -> &[u8] {
        let (q, k) = Shares::new(config, weights).heads_before(worker.index, worker.count);
        let (matrix, head) = match &weights.kv {
            Some(kv) if q == config.n_head => (&kv.k.matrix, k),
            _ => (&weights.q.matrix, q),
        };
        self.panels(matrix).from(head * config.head_dim / 16)
    }

    /// The output matrix, added to the stream.
    fn output(&self, layer: usize, weights: &Attention, task: &Task<'_>, scratch: &mut Scratch) {
        let (n_embd, m) = (self.config.n_embd, task.rows.len());
        let n_q = task.config.n_head * task.config.head_dim;
        let Scratch { x, delta, mixed, own, common, attention, .. } = scratch;
        at_least(delta, m * n_embd);
        let memory = &*attention;
        let mixed = &*mixed;
        let source = |r: usize, out: &mut [f32]| {
            out.copy_from_slice(&mixed[r * n_q..(r + 1) * n_q]);
            task.merge(r, &memory.kept, out);
        };
        let (x, deltas) = (Shared::new(x), Shared::new(delta));
        let matrix = &weights.output.matrix;
        with_packed(
            &self.pool,
            &self.set,
            (self.kinds([matrix]), m, n_q),
            &source,
            own,
            common,
            &|worker, packed, _| {
                let panels = worker.share(matrix.panels());
                // SAFETY: each worker uses the columns of its share.
                unsafe {
                    self.product(
                        matrix,
                        panels.clone(),
                        packed,
                        &deltas,
                        (0, n_embd),
                        self.first_of_feed(layer, worker),
                    );
                    if weights.post_norm.is_none() {
                        self.add_columns(m, panels, weights.output.bias.as_deref(), &x, &deltas);
                    }
                }
            },
        );
        if let Some(norm) = &weights.post_norm {
            self.add_normed(m, norm, scratch);
        }
    }
}

/// How queries, keys and values are shared out. Heads of queries and keys go whole, so that the worker that computes one also finishes it; values, which need
/// nothing but their columns (unless they are normed), even out what heads cannot.
struct Shares {
    dim: usize,
    n_head: usize,
    /// Heads with keys and values of their own in this layer.
    n_kv: usize,
    /// Heads that are shared out together: the least whose columns fill whole panels.
    group: usize,
    /// Columns of values that are shared out together.
    step: usize,
}

impl Shares {
    fn new(config: &LayerConfig, weights: &Attention) -> Self {
        let (dim, n_head) = (config.head_dim, config.n_head);
        let group = (1..=16).find(|heads| (heads * dim).is_multiple_of(16)).unwrap_or(16);
        let whole = weights.kv.as_ref().is_some_and(|kv| kv.v_norm) || !dim.is_multiple_of(VALUE_PART);
        let step = if whole { group * dim } else { VALUE_PART };
        Shares { dim, n_head, n_kv: if weights.kv.is_some() { config.n_head_kv } else { 0 }, group, step }
    }

    /// Heads of queries and heads of keys before the share of worker `index`.
    fn heads_before(&self, index: usize, count: usize) -> (usize, usize) {
        let (q_units, k_units) = (self.n_head.div_ceil(self.group), self.n_kv.div_ceil(self.group));
        let unit = (q_units + k_units) * index / count;
        let q = (unit.min(q_units) * self.group).min(self.n_head);
        (q, (unit.saturating_sub(q_units) * self.group).min(self.n_kv))
    }

    /// Columns of values before it.
    fn values_before(&self, index: usize, count: usize) -> usize {
        let all = (self.n_head + 2 * self.n_kv) * self.dim;
        let wanted = |index: usize| {
            let (q, k) = self.heads_before(index, count);
            (all * index / count).saturating_sub((q + k) * self.dim)
        };
        let before = (0..=index).map(wanted).max().unwrap_or(0);
        (before + self.step / 2).min(self.n_kv * self.dim) / self.step * self.step
    }

    /// A worker's heads of queries, heads of keys and columns of values.
    fn of(&self, worker: Worker) -> (Range<usize>, Range<usize>, Range<usize>) {
        let Worker { index, count } = worker;
        let (from, to) = (self.heads_before(index, count), self.heads_before(index + 1, count));
        let last = if index + 1 == count { self.n_kv * self.dim } else { self.values_before(index + 1, count) };
        (from.0..to.0, from.1..to.1, self.values_before(index, count)..last)
    }
}

/// All tiles of a layer and their steps, in the order in which they are shared out: band after band of each key/value head of each span, and in a band chunk
/// after chunk.
fn tile_jobs(config: &LayerConfig, rows: &[Row], spans: usize) -> (Vec<TileJob>, Vec<Step>) {
    let group = config.n_head / config.n_head_kv;
    let (mut jobs, mut steps) = (Vec::new(), Vec::new());
    for span in 0..spans {
        let Some(base) = rows.iter().position(|row| row.span == span) else { continue };
        let n = rows[base..].iter().take_while(|row| row.span == span).count();
        let tiles: Vec<_> = tiles(n * group).collect();
        for (kv_head, band) in (0..config.n_head_kv).flat_map(|kv_head| tiles.chunks(BAND).map(move |b| (kv_head, b))) {
            let first_job = jobs.len();
            jobs.extend(band.iter().enumerate().map(|(place, &(first, count))| {
                let seen = (first / group..=(first + count - 1) / group).map(|r| visible(config, rows[base + r]));
                let (from, to) =
                    seen.fold((usize::MAX, 0), |(from, to), seen| (from.min(seen.start), to.max(seen.end)));
                let chunks = (from / CHUNK, to.div_ceil(CHUNK));
                TileJob { span, base, kv_head, first, count, chunks, place, steps: (usize::MAX, 0), kept: None }
            }));
            let band = &mut jobs[first_job..];
            let (from, to) =
                band.iter().fold((usize::MAX, 0), |(from, to), job| (from.min(job.chunks.0), to.max(job.chunks.1)));
            for chunk in from..to {
                for (i, job) in band.iter_mut().enumerate() {
                    if (job.chunks.0..job.chunks.1).contains(&chunk) {
                        job.steps = (job.steps.0.min(steps.len()), steps.len() + 1);
                        steps.push(Step { job: first_job + i, chunk });
                    }
                }
            }
        }
    }
    (jobs, steps)
}

/// Marks the tiles whose steps are shared out to several workers, and gives the number of their chunks.
fn cut(jobs: &mut [TileJob], steps: usize, workers: usize) -> usize {
    let mut kept = 0;
    for index in 1..workers {
        let cut = Worker { index, count: workers }.share(steps).start;
        for job in jobs.iter_mut().filter(|job| job.steps.0 < cut && cut < job.steps.1 && job.kept.is_none()) {
            job.kept = Some(kept);
            kept += job.chunks.1 - job.chunks.0;
        }
    }
    kept
}

impl Task<'_> {
    /// This worker's memory, made for this layer's heads.
    fn memory<'o>(&self, own: &'o mut Option<WorkerMemory>) -> &'o mut WorkerMemory {
        let layout = self.lent[0].layout(self.layer);
        let (head_dim, kind) = (layout.head_dim(), layout.kind());
        if own.as_ref().is_none_or(|own| own.head_dim != head_dim || own.kind != kind) {
            *own = None;
        }
        own.get_or_insert_with(|| WorkerMemory {
            partial: Partial::new(layout),
            queries: vec![0.0; MAX_TILE * head_dim],
            places: std::array::from_fn(|_| Place {
                job: None,
                packed: vec![0; MAX_TILE * layout.query_kind().row_words(head_dim)],
                running: Running::new(layout),
            }),
            head_dim,
            kind,
        })
    }

    /// Row and head of query `i` of a tile.
    fn query(&self, job: &TileJob, i: usize) -> (usize, usize) {
        let group = self.config.n_head / self.config.n_head_kv;
        let number = job.first + i;
        (job.base + number / group, job.kv_head * group + number % group)
    }

    /// Packs the queries of a tile into its place.
    fn pack(&self, job: &TileJob, q: &[f32], own: &mut WorkerMemory) {
        let (dim, n_q) = (self.config.head_dim, self.config.n_head * self.config.head_dim);
        let layout = self.lent[job.span].layout(self.layer);
        for i in 0..job.count {
            let (row, head) = self.query(job, i);
            own.queries[i * dim..(i + 1) * dim]
                .copy_from_slice(&q[row * n_q + head * dim..row * n_q + (head + 1) * dim]);
        }
        let packed = &mut own.places[job.place].packed[..job.count * layout.query_kind().row_words(dim)];
        pack_queries(self.model.set(), layout, &own.queries[..job.count * dim], packed);
    }

    /// One chunk for a packed tile; afterwards `partial` holds its results. `next` comes next. Gives what each query saw of it.
    fn chunk(
        &self,
        job: &TileJob,
        c: usize,
        packed: &[u32],
        partial: &mut Partial,
        next: &[u8],
    ) -> [(usize, usize); MAX_TILE] {
        let layout = self.lent[job.span].layout(self.layer);
        let mut slots = [(0, 0); MAX_TILE];
        for (i, slot) in slots[..job.count].iter_mut().enumerate() {
            let seen = visible(self.config, self.rows[self.query(job, i).0]);
            let inside = |p: usize| p.saturating_sub(c * CHUNK).min(CHUNK);
            *slot = (inside(seen.start), inside(seen.end));
        }
        let words = job.count * layout.query_kind().row_words(layout.head_dim());
        let queries = Queries { tile: &packed[..words], rows: job.count };
        chunk(self.model.set(), layout, self.bytes(job, c), queries, &slots[..job.count], partial, next);
        slots
    }

    /// Chunk `c` of the head that a tile is for.
    fn bytes(&self, job: &TileJob, c: usize) -> &[u8] {
        // SAFETY: keys and values of this layer were written by an earlier job, and no job writes them now.
        unsafe { self.lent[job.span].chunk(self.layer, job.kv_head, c) }
    }

    /// This worker's share of all steps: whole tiles to `mixed`, parts of cut ones to `kept`.
    fn share(
        &self,
        worker: Worker,
        q: &[f32],
        own: &mut WorkerMemory,
        mixed: &Shared<'_, f32>,
        kept: &Shared<'_, f32>,
    ) {
        let steps = &self.steps[worker.share(self.steps.len())];
        let first_step = worker.share(self.steps.len()).start;
        let (dim, n_q) = (self.config.head_dim, self.config.n_head * self.config.head_dim);
        let size = Kept::size(self.lent[0].layout(self.layer));
        own.places.iter_mut().for_each(|place| place.job = None);
        for (i, step) in steps.iter().enumerate() {
            let (job, c) = (&self.jobs[step.job], step.chunk);
            if own.places[job.place].job != Some(step.job) {
                self.pack(job, q, own);
                own.places[job.place].job = Some(step.job);
                own.places[job.place].running.start();
            }
            let next = steps.get(i + 1).map_or(&[][..], |next| self.bytes(&self.jobs[next.job], next.chunk));
            let WorkerMemory { partial, places, .. } = own;
            let Place { packed, running, .. } = &mut places[job.place];
            let slots = self.chunk(job, c, packed, partial, next);
            if let Some(first) = job.kept {
                let at = (first + c - job.chunks.0) * size;
                // SAFETY: a step is in one worker's share.
                let kept = unsafe { kept.part(at..at + size) };
                Kept::write(kept, partial, job.count * (size - 2 * LANES) / MAX_TILE);
                continue;
            }
            let see = (0..job.count).filter(|i| slots[*i].0 < slots[*i].1);
            running.take(self.model.set(), see, (&partial.m, &partial.l, &partial.o));
            if first_step + i + 1 == job.steps.1 {
                for i in 0..job.count {
                    let (row, head) = self.query(job, i);
                    // SAFETY: a query belongs to one tile, and a tile that is not cut to one worker.
                    running.finish(i, unsafe { mixed.part(row * n_q + head * dim..row * n_q + (head + 1) * dim) });
                }
            }
        }
    }

    /// Puts the results of cut tiles into a row.
    fn merge(&self, row: usize, kept: &[f32], out: &mut [f32]) {
        let (dim, group) = (self.config.head_dim, self.config.n_head / self.config.n_head_kv);
        let seen = visible(self.config, self.rows[row]);
        let span = self.rows[row].span;
        let layout = self.lent[span].layout(self.layer);
        let size = Kept::size(layout);
        for job in self.jobs.iter().filter(|job| job.span == span) {
            let Some(first) = job.kept else { continue };
            let number = (row - job.base) * group;
            let queries = number.clamp(job.first, job.first + job.count) - job.first
                ..(number + group).clamp(job.first, job.first + job.count) - job.first;
            if queries.is_empty() {
                continue;
            }
            let mut running = Running::new(layout);
            for c in job.chunks.0..job.chunks.1 {
                // A chunk of the tile that this row does not see has nothing for it.
                if (c + 1) * CHUNK <= seen.start || seen.end <= c * CHUNK {
                    continue;
                }
                let part = Kept::read(&kept[(first + c - job.chunks.0) * size..][..size]);
                running.take(self.model.set(), queries.clone(), part);
            }
            for i in queries {
                let (_, head) = self.query(job, i);
                running.finish(i, &mut out[head * dim..(head + 1) * dim]);
            }
        }
    }
}
