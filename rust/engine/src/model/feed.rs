//! The feed-forward of a layer: dense, experts, or both side by side.

use super::Model;
use super::config::Activation;
use super::forward::{Scratch, at_least};
use super::rows::{Packed, with_packed};
use super::weights::{Beside, Dense, FeedForward};
use crate::pool::Worker;
use crate::shared::Shared;

impl Model {
    /// Adds the feed-forward of `layer` to the stream of `m` rows.
    pub(crate) fn feed(&self, layer: usize, m: usize, scratch: &mut Scratch) {
        let ffn = &self.weights.layers[layer].ffn;
        at_least(&mut scratch.delta, m * self.config.n_embd);
        let plain = ffn.experts.is_none() && ffn.post_norm.is_none();
        if let Some(dense) = &ffn.dense {
            self.dense(layer, dense, &ffn.norm, plain, m, scratch);
        }
        let Some(experts) = &ffn.experts else {
            if let Some(norm) = &ffn.post_norm {
                self.add_normed(m, norm, scratch);
            }
            return;
        };
        self.experts(experts, &ffn.norm, m, scratch);
        match &experts.beside {
            None => self.add_expert_rows(m, scratch),
            Some(beside) => self.join(beside, ffn, m, scratch),
        }
    }

    /// What a worker reads first in the feed-forward of a layer, as far as that is known beforehand.
    pub(super) fn first_of_feed(&self, layer: usize, worker: Worker) -> &[u8] {
        self.weights.layers[layer].ffn.dense.as_ref().map_or(&[], |dense| self.share_of(&dense.gate, worker))
    }

    /// A dense feed-forward: gate and up in one job, down in the next. The result goes to `delta`, and if `add` to the stream at once.
    ///
    /// Between the jobs the worker that computed columns also packs them, if whole blocks can be shared out evenly; else the second job begins by packing all.
    fn dense(&self, layer: usize, dense: &Dense, norm: &[f32], add: bool, m: usize, scratch: &mut Scratch) {
        let (n_embd, n_ff) = (self.config.n_embd, dense.gate.n);
        let Scratch { x, delta, gate, up, hidden, own, common, .. } = scratch;
        at_least(gate, m * n_ff);
        at_least(up, m * n_ff);

        let stream = &*x;
        let norm = |r: usize, out: &mut [f32]| {
            self.set.rms_norm(&stream[r * n_embd..(r + 1) * n_embd], Some(norm), self.config.eps, out);
        };
        let down_kind = self.set.act_kind(dense.down.format);
        let step = down_kind.block().max(16);
        let even = even(n_ff, step, self.pool.count());
        let kinds = self.kinds([&dense.gate, &dense.up]);
        {
            let (gates, ups) = (Shared::new(gate), Shared::new(up));
            let parts = hidden.parts(down_kind, m, n_ff);
            with_packed(&self.pool, &self.set, (kinds, m, n_embd), &norm, own, common, &|worker, packed, floats| {
                let panels = match even {
                    true => {
                        let steps = worker.share(n_ff / step);
                        steps.start * step / 16..steps.end * step / 16
                    }
                    false => worker.share(dense.gate.panels()),
                };
                let (from, to) = (panels.start * 16, (panels.end * 16).min(n_ff));
                // SAFETY: gate and up have the same panels, and each worker uses, and packs, the columns of its share.
                unsafe {
                    let up_first = self.panels(&dense.up).from(panels.start);
                    self.product(&dense.gate, panels.clone(), packed, &gates, (0, n_ff), up_first);
                    self.product(&dense.up, panels, packed, &ups, (0, n_ff), self.share_of(&dense.down, worker));
                    let gate = |r: usize| gates.read(r * n_ff + from..r * n_ff + to);
                    if even && from < to {
                        parts.pack(&self.set, from..to, floats, |r, out| {
                            out.copy_from_slice(ups.read(r * n_ff + from..r * n_ff + to));
                            self.gated(gate(r), out);
                        });
                    } else {
                        (0..m).for_each(|r| self.gated(gate(r), ups.part(r * n_ff + from..r * n_ff + to)));
                    }
                }
            });
        }

        let (x, deltas) = (Shared::new(x), Shared::new(delta));
        let down = |worker: Worker, packed: &Packed| {
            let panels = worker.share(dense.down.panels());
            // SAFETY: each worker uses the columns of its share.
            unsafe {
                let next = self.after_layer(layer, worker);
                self.product(&dense.down, panels.clone(), packed, &deltas, (0, n_embd), next);
                if add {
                    self.add_columns(m, panels, None, &x, &deltas);
                }
            }
        };
        if even {
            return self.pool.run(|worker| down(worker, hidden));
        }
        let up = &*up;
        let copy = |r: usize, out: &mut [f32]| out.copy_from_slice(&up[r * n_ff..(r + 1) * n_ff]);
        let kinds = self.kinds([&dense.down]);
        with_packed(&self.pool, &self.set, (kinds, m, n_ff), &copy, own, common, &|worker, packed, _| {
            down(worker, packed)
        });
    }

    /// `up = activation(gate) · up`.
    pub(crate) fn gated(&self, gate: &[f32], up: &mut [f32]) {
        match self.config.activation {
            Activation::Silu => self.set.silu_mul(gate, up),
            Activation::Gelu => self.set.gelu_mul(gate, up),
        }
    }

    /// Adds the experts' rows to the stream.
    fn add_expert_rows(&self, m: usize, scratch: &mut Scratch) {
        let n_embd = self.config.n_embd;
        let (x, rows) = (Shared::new(&mut scratch.x), scratch.experts.rows());
        self.pool.run(|worker| {
            let share = worker.share(m);
            // SAFETY: rows of this worker's share.
            let x = unsafe { x.part(share.start * n_embd..share.end * n_embd) };
            x.iter_mut().zip(&rows[share.start * n_embd..]).for_each(|(x, d)| *x += d);
        });
    }

    /// Adds norm(norm(dense) + norm(experts)) to the stream.
    fn join(&self, beside: &Beside, ffn: &FeedForward, m: usize, scratch: &mut Scratch) {
        let (n_embd, eps) = (self.config.n_embd, self.config.eps);
        let (x, delta, rows) = (Shared::new(&mut scratch.x), &scratch.delta, scratch.experts.rows());
        self.pool.run(|worker| {
            let (mut dense, mut experts) = (vec![0.0; n_embd], vec![0.0; n_embd]);
            for r in worker.share(m) {
                let row = r * n_embd..(r + 1) * n_embd;
                self.set.rms_norm(&delta[row.clone()], Some(&beside.dense_post_norm), eps, &mut dense);
                self.set.rms_norm(&rows[row.clone()], Some(&beside.post_norm), eps, &mut experts);
                dense.iter_mut().zip(&experts).for_each(|(d, e)| *d += e);
                let added = match &ffn.post_norm {
                    Some(norm) => {
                        self.set.rms_norm(&dense, Some(norm), eps, &mut experts);
                        &experts
                    }
                    None => &dense,
                };
                // SAFETY: rows of this worker's share.
                let x = unsafe { x.part(row) };
                x.iter_mut().zip(added).for_each(|(x, d)| *x += d);
            }
        });
    }
}

/// Whether `n` columns can be shared out in steps so that no worker has a sixteenth more than its part.
fn even(n: usize, step: usize, workers: usize) -> bool {
    let steps = n / step;
    n.is_multiple_of(step) && steps.div_ceil(workers) * workers * 16 <= steps * 17
}
