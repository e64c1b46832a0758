//! Per-layer inputs: what a token gives to each layer beside the stream, and the scale at a layer's end.
//!
//! `e = (a + b) / sqrt 2` with `a` the token's own rows times sqrt(width) and `b` a normed projection of its embedding; at the end of a layer
//! `x += norm(proj(gelu(gate x) · e))`, then `x *= scale`.

use super::Model;
use super::forward::{Scratch, at_least};
use super::rows::with_packed;
use crate::shared::Shared;

impl Model {
    /// Computes the per-layer inputs of the tokens, whose scaled embeddings are in the stream.
    pub(crate) fn embed_per_layer(&self, tokens: &[u32], scratch: &mut Scratch) {
        let Some(source) = &self.weights.per_layer else { return };
        let (n_embd, width, m) = (self.config.n_embd, self.config.n_embd_per_layer, tokens.len());
        let all = width * self.config.n_layer();
        let Scratch { x, per_layer, own, common, .. } = scratch;
        at_least(per_layer, m * all);
        let x = &*x;
        let copy = |r: usize, out: &mut [f32]| out.copy_from_slice(&x[r * n_embd..(r + 1) * n_embd]);
        let inputs = Shared::new(per_layer);
        let kinds = self.kinds([&source.proj]);
        with_packed(&self.pool, &self.set, (kinds, m, n_embd), &copy, own, common, &|worker, packed, _| {
            // SAFETY: each worker uses the columns of its share.
            unsafe { self.product(&source.proj, worker.share(source.proj.panels()), packed, &inputs, (0, all), &[]) };
        });
        let table = self.panels(&source.embedding);
        let (own_scale, proj_scale) = ((width as f32).sqrt(), (n_embd as f32).sqrt());
        let half = std::f32::consts::FRAC_1_SQRT_2;
        self.pool.run(|worker| {
            let (mut rows, mut normed) = (vec![0.0; all], vec![0.0; width]);
            for r in worker.share(m) {
                table.dequantize_row(tokens[r] as usize, &mut rows);
                // SAFETY: rows of this worker's share.
                let row = unsafe { inputs.part(r * all..(r + 1) * all) };
                for (projected, own) in row.chunks_exact_mut(width).zip(rows.chunks_exact(width)) {
                    projected.iter_mut().for_each(|v| *v /= proj_scale);
                    self.set.rms_norm(projected, Some(&source.norm), self.config.eps, &mut normed);
                    for ((out, own), normed) in projected.iter_mut().zip(own).zip(&normed) {
                        *out = (own * own_scale + normed) * half;
                    }
                }
            }
        });
    }

    /// The end of a layer: its per-layer input, its scale.
    pub(crate) fn finish_layer(&self, layer: usize, m: usize, scratch: &mut Scratch) {
        let weights = &self.weights.layers[layer];
        let n_embd = self.config.n_embd;
        if let Some(inputs) = &weights.per_layer {
            let width = self.config.n_embd_per_layer;
            let all = width * self.config.n_layer();
            let Scratch { x, delta, gate, per_layer, own, common, .. } = scratch;
            at_least(gate, m * width);
            let stream = &*x;
            let copy = |r: usize, out: &mut [f32]| out.copy_from_slice(&stream[r * n_embd..(r + 1) * n_embd]);
            let gates = Shared::new(gate);
            let kinds = self.kinds([&inputs.gate]);
            with_packed(&self.pool, &self.set, (kinds, m, n_embd), &copy, own, common, &|worker, packed, _| {
                // SAFETY: each worker uses the columns of its share.
                unsafe {
                    self.product(&inputs.gate, worker.share(inputs.gate.panels()), packed, &gates, (0, width), &[])
                };
            });
            let (gate, per_layer) = (&*gate, &*per_layer);
            let gated = |r: usize, out: &mut [f32]| {
                out.copy_from_slice(&per_layer[r * all + layer * width..r * all + (layer + 1) * width]);
                self.gated(&gate[r * width..(r + 1) * width], out);
            };
            let deltas = Shared::new(delta);
            let kinds = self.kinds([&inputs.proj]);
            with_packed(&self.pool, &self.set, (kinds, m, width), &gated, own, common, &|worker, packed, _| {
                // SAFETY: each worker uses the columns of its share.
                unsafe {
                    self.product(&inputs.proj, worker.share(inputs.proj.panels()), packed, &deltas, (0, n_embd), &[])
                };
            });
            self.add_normed(m, &inputs.post_norm, scratch);
        }
        if let Some(scale) = weights.scale {
            scratch.x[..m * n_embd].iter_mut().for_each(|x| *x *= scale);
        }
    }
}
