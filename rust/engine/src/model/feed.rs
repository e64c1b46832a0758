//! The feed-forward of a layer: norm, gate and up in one job, down in the next.

use super::Model;
use super::config::Activation;
use super::forward::{Scratch, at_least};
use super::rows::with_packed;
use crate::shared::Shared;

impl Model {
    /// Adds the feed-forward of `layer` to the stream of `m` rows.
    pub(crate) fn feed(&self, layer: usize, m: usize, scratch: &mut Scratch) {
        let ffn = &self.weights.layers[layer].ffn;
        let (n_embd, n_ff) = (self.config.n_embd, ffn.gate.n);
        let Scratch { x, delta, gate, up, own, common, .. } = scratch;
        at_least(gate, m * n_ff);
        at_least(up, m * n_ff);
        at_least(delta, m * n_embd);

        let stream = &*x;
        let norm = |r: usize, out: &mut [f32]| {
            self.set.rms_norm(&stream[r * n_embd..(r + 1) * n_embd], Some(&ffn.norm), self.config.eps, out);
        };
        let (gates, ups) = (Shared::new(gate), Shared::new(up));
        let kinds = self.kinds([&ffn.gate, &ffn.up]);
        with_packed(&self.pool, &self.set, (kinds, m, n_embd), &norm, own, common, &|worker, packed| {
            let panels = worker.share(ffn.gate.panels());
            let (from, to) = (panels.start * 16, (panels.end * 16).min(n_ff));
            // SAFETY: gate and up have the same panels, and each worker uses the columns of its share.
            unsafe {
                self.product(&ffn.gate, panels.clone(), packed, &gates, n_ff);
                self.product(&ffn.up, panels, packed, &ups, n_ff);
                for r in 0..m {
                    let gate = gates.read(r * n_ff + from..r * n_ff + to);
                    let up = ups.part(r * n_ff + from..r * n_ff + to);
                    self.gated(gate, up);
                }
            }
        });

        let hidden = &*up;
        let copy = |r: usize, out: &mut [f32]| out.copy_from_slice(&hidden[r * n_ff..(r + 1) * n_ff]);
        let (x, deltas) = (Shared::new(x), Shared::new(delta));
        let kinds = self.kinds([&ffn.down]);
        with_packed(&self.pool, &self.set, (kinds, m, n_ff), &copy, own, common, &|worker, packed| {
            let panels = worker.share(ffn.down.panels());
            // SAFETY: each worker uses the columns of its share.
            unsafe {
                self.product(&ffn.down, panels.clone(), packed, &deltas, n_embd);
                if ffn.post_norm.is_none() {
                    self.add_columns(m, panels, None, &x, &deltas);
                }
            }
        });
        if let Some(norm) = &ffn.post_norm {
            self.add_normed(m, norm, scratch);
        }
    }

    /// `up = activation(gate) · up`.
    fn gated(&self, gate: &[f32], up: &mut [f32]) {
        match self.config.activation {
            Activation::Silu => self.set.silu_mul(gate, up),
            Activation::Gelu => self.set.gelu_mul(gate, up),
        }
    }
}
