//! Attention of a layer: query, key and value in one job, attention in the next, the output matrix in a third.
//!
//! Queries that share a key/value head are tiled together, rows and heads alike, so a cached chunk is read once for a tile. There are two ways to share
//! out the work, with the same bits (rule A3 of [`quoth_kernels::attend`]): many tiles go whole, each over all its chunks; few tiles (a plain step, a verify) are
//! split by chunk, and the chunks' partial results are merged, in order, when the next job packs its rows.

use std::ops::Range;

use quoth_kernels::act::{MAX_TILE, tiles};
use quoth_kernels::attend::{CHUNK, Partial, Queries, Running, chunk, pack_queries};

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
    /// Partial results of split tiles: `[item][MAX_TILE]` of greatest score and of weight sum, `[item][MAX_TILE][padded]` of values.
    m: Vec<f32>,
    l: Vec<f32>,
    o: Vec<f32>,
}

#[derive(Debug)]
struct WorkerMemory {
    partial: Partial,
    queries: Vec<f32>,
    tile: Vec<u32>,
    totals: Vec<f32>,
    head_dim: usize,
    kind: quoth_kernels::attend::KvKind,
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
    /// Number of the first chunk among all split items.
    item: usize,
}

/// Everything that is the same for all workers.
struct Task<'t> {
    model: &'t Model,
    layer: usize,
    config: &'t LayerConfig,
    rows: &'t [Row],
    lent: &'t [Lent<'t>],
    jobs: Vec<TileJob>,
}

/// The positions that a query at `pos` sees.
fn visible(config: &LayerConfig, pos: usize) -> Range<usize> {
    config.window.map_or(0, |window| (pos + 1).saturating_sub(window))..pos + 1
}

impl Model {
    /// Adds the attention of `layer` to the stream.
    pub(crate) fn attend(&self, layer: usize, rows: &[Row], lent: &[Lent<'_>], scratch: &mut Scratch) {
        let weights = &self.weights.layers[layer].attention;
        let config = &self.config.layers[layer];
        self.project(layer, weights, config, rows, lent, scratch);

        let task = Task { model: self, layer, config, rows, lent, jobs: tile_jobs(config, rows, lent.len()) };
        let split = task.jobs.len() < 4 * self.pool.count() && self.pool.count() > 1;
        let padded = lent[0].layout(layer).padded();
        let n_q = config.n_head * config.head_dim;
        at_least(&mut scratch.mixed, rows.len() * n_q);
        scratch.attention.own.resize_with(self.pool.count(), || None);
        let Memory { own, m, l, o } = &mut scratch.attention;
        if split {
            let items = task.jobs.last().map_or(0, |job| job.item + job.chunks.1 - job.chunks.0);
            at_least(m, items * MAX_TILE);
            at_least(l, items * MAX_TILE);
            at_least(o, items * MAX_TILE * padded);
        }
        {
            let own = Shared::new(own);
            let mixed = Shared::new(&mut scratch.mixed);
            let (m, l, o) = (Shared::new(m), Shared::new(l), Shared::new(o));
            let q = &scratch.q;
            self.pool.run(|worker| {
                // SAFETY: element i belongs to worker i alone.
                let own = &mut unsafe { own.part(worker.index..worker.index + 1) }[0];
                let own = task.memory(own);
                if split {
                    task.split(worker, q, own, &m, &l, &o);
                } else {
                    for job in task.jobs.iter().skip(worker.index).step_by(worker.count) {
                        task.whole(job, q, own, &mixed);
                    }
                }
            });
        }
        self.output(weights, &task, split, scratch);
    }

    /// Queries, keys and values of the new rows: products, biases, norms, rotation; keys and values go to the cache.
    fn project(
        &self,
        layer: usize,
        weights: &Attention,
        config: &LayerConfig,
        rows: &[Row],
        lent: &[Lent<'_>],
        scratch: &mut Scratch,
    ) {
        let (n_embd, dim, m) = (self.config.n_embd, config.head_dim, rows.len());
        let (n_q, n_kv) = (config.n_head * dim, config.n_head_kv * dim);
        let Scratch { x, q, k, v, own, common, .. } = scratch;
        at_least(q, m * n_q);
        at_least(k, m * n_kv);
        at_least(v, m * n_kv);
        let x = &*x;
        let norm = |r: usize, out: &mut [f32]| {
            self.set.rms_norm(&x[r * n_embd..(r + 1) * n_embd], Some(&weights.norm), self.config.eps, out);
        };
        let (q, k, v) = (Shared::new(q), Shared::new(k), Shared::new(v));
        let rope = &self.ropes[config.rope];
        let eps = self.config.eps;
        let kv_matrices = weights.kv.iter().flat_map(|kv| [&kv.k.matrix, &kv.v.matrix]);
        let kinds = self.kinds(std::iter::once(&weights.q.matrix).chain(kv_matrices));
        // Heads are shared out, not panels, so that whoever computes a head also finishes it.
        let group = heads_of_whole_panels(dim);
        let q_units = config.n_head.div_ceil(group);
        let kv_units = if weights.kv.is_some() { config.n_head_kv.div_ceil(group) } else { 0 };
        with_packed(&self.pool, &self.set, (kinds, m, n_embd), &norm, own, common, &|worker, packed| {
            let share = worker.share(q_units + 2 * kv_units);
            let heads = |from: usize, units: usize, count: usize| {
                let start = share.start.clamp(from, from + units) - from;
                let end = share.end.clamp(from, from + units) - from;
                (start * group).min(count)..(end * group).min(count)
            };
            // No heads are no panels, also where the heads before them end inside one.
            let panels = |heads: &Range<usize>| match heads.is_empty() {
                true => 0..0,
                false => heads.start * dim / 16..(heads.end * dim).div_ceil(16),
            };
            let add_bias = |head: &mut [f32], bias: &Option<Vec<f32>>, h: usize| {
                if let Some(bias) = bias {
                    head.iter_mut().zip(&bias[h * dim..]).for_each(|(x, b)| *x += b);
                }
            };
            let mut normed = vec![0.0; dim];
            let mut norm_head = |head: &mut [f32], weight: Option<&[f32]>| {
                self.set.rms_norm(head, weight, eps, &mut normed);
                head.copy_from_slice(&normed);
            };
            let own_q = heads(0, q_units, config.n_head);
            let own_k = heads(q_units, kv_units, config.n_head_kv);
            let own_v = heads(q_units + kv_units, kv_units, config.n_head_kv);
            // SAFETY: shares of heads do not overlap and end at whole panels, so each worker uses columns, and cached heads, of its own.
            unsafe {
                self.product(&weights.q.matrix, panels(&own_q), packed, &q, (0, n_q));
                for (r, row) in rows.iter().enumerate() {
                    let (cos, sin) = rope.row(row.pos);
                    for h in own_q.clone() {
                        let head = q.part(r * n_q + h * dim..r * n_q + (h + 1) * dim);
                        add_bias(head, &weights.q.bias, h);
                        if let Some(weight) = &weights.q_norm {
                            norm_head(head, Some(weight));
                        }
                        self.set.rotate(head, cos, sin);
                        head.iter_mut().for_each(|x| *x *= config.score_scale);
                    }
                }
                let Some(kv) = &weights.kv else { return };
                self.product(&kv.k.matrix, panels(&own_k), packed, &k, (0, n_kv));
                self.product(&kv.v.matrix, panels(&own_v), packed, &v, (0, n_kv));
                for (r, row) in rows.iter().enumerate() {
                    let (cos, sin) = rope.row(row.pos);
                    for h in own_k.clone() {
                        let head = k.part(r * n_kv + h * dim..r * n_kv + (h + 1) * dim);
                        add_bias(head, &kv.k.bias, h);
                        if let Some(weight) = &kv.k_norm {
                            norm_head(head, Some(weight));
                        }
                        self.set.rotate(head, cos, sin);
                        lent[row.span].write_key(&self.set, layer, h, row.pos, head);
                    }
                    for h in own_v.clone() {
                        let head = v.part(r * n_kv + h * dim..r * n_kv + (h + 1) * dim);
                        add_bias(head, &kv.v.bias, h);
                        if kv.v_norm {
                            norm_head(head, None);
                        }
                        lent[row.span].write_value(&self.set, layer, h, row.pos, head);
                    }
                }
            }
        });
    }

    /// The output matrix, from merged or whole results, added to the stream.
    fn output(&self, weights: &Attention, task: &Task<'_>, split: bool, scratch: &mut Scratch) {
        let (n_embd, m) = (self.config.n_embd, task.rows.len());
        let n_q = task.config.n_head * task.config.head_dim;
        let Scratch { x, delta, mixed, own, common, attention, .. } = scratch;
        at_least(delta, m * n_embd);
        let memory = &*attention;
        let mixed = &*mixed;
        let source = |r: usize, out: &mut [f32]| {
            if split {
                task.merge(r, memory, out);
            } else {
                out.copy_from_slice(&mixed[r * n_q..(r + 1) * n_q]);
            }
        };
        let (x, deltas) = (Shared::new(x), Shared::new(delta));
        let matrix = &weights.output.matrix;
        with_packed(&self.pool, &self.set, (self.kinds([matrix]), m, n_q), &source, own, common, &|worker, packed| {
            let panels = worker.share(matrix.panels());
            // SAFETY: each worker uses the columns of its share.
            unsafe {
                self.product(matrix, panels.clone(), packed, &deltas, (0, n_embd));
                if weights.post_norm.is_none() {
                    self.add_columns(m, panels, weights.output.bias.as_deref(), &x, &deltas);
                }
            }
        });
        if let Some(norm) = &weights.post_norm {
            self.add_normed(m, norm, scratch);
        }
    }
}

/// The least number of heads whose rows fill whole panels.
fn heads_of_whole_panels(dim: usize) -> usize {
    (1..=16).find(|heads| (heads * dim).is_multiple_of(16)).unwrap_or(16)
}

/// All tiles of a layer, with their chunks; key/value heads of a span and tile follow one another.
fn tile_jobs(config: &LayerConfig, rows: &[Row], spans: usize) -> Vec<TileJob> {
    let group = config.n_head / config.n_head_kv;
    let mut jobs = Vec::new();
    let mut item = 0;
    for span in 0..spans {
        let Some(base) = rows.iter().position(|row| row.span == span) else { continue };
        let n = rows[base..].iter().take_while(|row| row.span == span).count();
        for (first, count) in tiles(n * group) {
            let seen: Vec<_> =
                (first / group..=(first + count - 1) / group).map(|r| visible(config, rows[base + r].pos)).collect();
            let from = seen.iter().map(|v| v.start).min().unwrap_or(0) / CHUNK;
            let to = seen.iter().map(|v| v.end).max().unwrap_or(0).div_ceil(CHUNK);
            for kv_head in 0..config.n_head_kv {
                jobs.push(TileJob { span, base, kv_head, first, count, chunks: (from, to), item });
                item += to - from;
            }
        }
    }
    jobs
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
            tile: vec![0; MAX_TILE * layout.query_kind().row_words(head_dim)],
            totals: vec![0.0; MAX_TILE * layout.padded()],
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

    /// Packs the queries of a tile.
    fn pack(&self, job: &TileJob, q: &[f32], own: &mut WorkerMemory) {
        let (dim, n_q) = (self.config.head_dim, self.config.n_head * self.config.head_dim);
        let layout = self.lent[job.span].layout(self.layer);
        for i in 0..job.count {
            let (row, head) = self.query(job, i);
            own.queries[i * dim..(i + 1) * dim]
                .copy_from_slice(&q[row * n_q + head * dim..row * n_q + (head + 1) * dim]);
        }
        let words = job.count * layout.query_kind().row_words(dim);
        pack_queries(self.model.set(), layout, &own.queries[..job.count * dim], &mut own.tile[..words]);
    }

    /// One chunk for a packed tile; afterwards `own.partial` holds its results. Gives what each query saw of it.
    fn chunk(&self, job: &TileJob, c: usize, own: &mut WorkerMemory) -> [(usize, usize); MAX_TILE] {
        let layout = self.lent[job.span].layout(self.layer);
        let mut slots = [(0, 0); MAX_TILE];
        for (i, slot) in slots[..job.count].iter_mut().enumerate() {
            let seen = visible(self.config, self.rows[self.query(job, i).0].pos);
            let inside = |p: usize| p.saturating_sub(c * CHUNK).min(CHUNK);
            *slot = (inside(seen.start), inside(seen.end));
        }
        let words = job.count * layout.query_kind().row_words(layout.head_dim());
        let queries = Queries { tile: &own.tile[..words], rows: job.count };
        // SAFETY: keys and values of this layer were written by an earlier job, and no job writes them now.
        let bytes = unsafe { self.lent[job.span].chunk(self.layer, job.kv_head, c) };
        chunk(self.model.set(), layout, bytes, queries, &slots[..job.count], &mut own.partial);
        slots
    }

    /// A tile over all its chunks, results to `mixed`.
    fn whole(&self, job: &TileJob, q: &[f32], own: &mut WorkerMemory, mixed: &Shared<'_, f32>) {
        let padded = self.lent[job.span].layout(self.layer).padded();
        let (dim, n_q) = (self.config.head_dim, self.config.n_head * self.config.head_dim);
        self.pack(job, q, own);
        let mut running = [Running::default(); MAX_TILE];
        for c in job.chunks.0..job.chunks.1 {
            let slots = self.chunk(job, c, own);
            let WorkerMemory { partial, totals, .. } = own;
            for i in (0..job.count).filter(|i| slots[*i].0 < slots[*i].1) {
                let part = i * padded..(i + 1) * padded;
                running[i].take(
                    self.model.set(),
                    partial.m[i],
                    partial.l[i],
                    &partial.o[part.clone()],
                    &mut totals[part],
                );
            }
        }
        for (i, running) in running[..job.count].iter().enumerate() {
            let total = &mut own.totals[i * padded..(i + 1) * padded];
            running.finish(total);
            let (row, head) = self.query(job, i);
            // SAFETY: a query belongs to one tile, and a tile to one worker.
            let out = unsafe { mixed.part(row * n_q + head * dim..row * n_q + (head + 1) * dim) };
            out.copy_from_slice(&total[..dim]);
        }
    }

    /// This worker's share of all (tile, chunk) items, partial results to memory.
    fn split(
        &self,
        worker: Worker,
        q: &[f32],
        own: &mut WorkerMemory,
        m: &Shared<'_, f32>,
        l: &Shared<'_, f32>,
        o: &Shared<'_, f32>,
    ) {
        let items = self.jobs.last().map_or(0, |job| job.item + job.chunks.1 - job.chunks.0);
        let share = worker.share(items);
        for job in &self.jobs {
            let padded = self.lent[job.span].layout(self.layer).padded();
            let from = share.start.max(job.item);
            let to = share.end.min(job.item + job.chunks.1 - job.chunks.0);
            if from >= to {
                continue;
            }
            self.pack(job, q, own);
            for item in from..to {
                self.chunk(job, job.chunks.0 + item - job.item, own);
                let (at, n) = (item * MAX_TILE, job.count);
                // SAFETY: items are shared out, so each is one worker's.
                unsafe {
                    m.part(at..at + n).copy_from_slice(&own.partial.m[..n]);
                    l.part(at..at + n).copy_from_slice(&own.partial.l[..n]);
                    o.part(at * padded..(at + n) * padded).copy_from_slice(&own.partial.o[..n * padded]);
                }
            }
        }
    }

    /// Merges the partial results of all heads of a row.
    fn merge(&self, row: usize, memory: &Memory, out: &mut [f32]) {
        let dim = self.config.head_dim;
        let seen = visible(self.config, self.rows[row].pos);
        let span = self.rows[row].span;
        let padded = self.lent[span].layout(self.layer).padded();
        let mut total = vec![0.0; padded];
        for job in self.jobs.iter().filter(|job| job.span == span) {
            for i in 0..job.count {
                let (of_row, head) = self.query(job, i);
                if of_row != row {
                    continue;
                }
                let mut running = Running::default();
                for c in job.chunks.0..job.chunks.1 {
                    // A chunk of the tile that this query does not see has nothing for it.
                    if (c + 1) * CHUNK <= seen.start || seen.end <= c * CHUNK {
                        continue;
                    }
                    let at = (job.item + c - job.chunks.0) * MAX_TILE + i;
                    running.take(
                        self.model.set(),
                        memory.m[at],
                        memory.l[at],
                        &memory.o[at * padded..(at + 1) * padded],
                        &mut total,
                    );
                }
                running.finish(&mut total);
                out[head * dim..(head + 1) * dim].copy_from_slice(&total[..dim]);
            }
        }
    }
}
