//! The naive forward: plain loops in f64 over dequantized weights, every score of every position with a mask, pairs rotated in the file's own order, every
//! expert of a row one after another.
//!
//! Every number carries the variance of the error that single precision would have made up to it: an operation with result y adds u²·y²/3 (a rounding is
//! uniform in ±u·|y|, u = 2^-24), and passes on what its inputs carry, to first order. Roundings are taken as independent (Higham and Mary, 2019).
//!
//! The choice of experts is a step, not a rounding: where two experts are too close to tell, the twin says so and the test takes another seed.

use crate::models::{Made, Scaling, Spec};

/// Variance of one rounding, relative to the square of the result.
const ROUND: f64 = 1.0 / (3.0 * (1u64 << 48) as f64);

/// A number and the variance of its error.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Num {
    pub(crate) x: f64,
    pub(crate) v: f64,
}

impl Num {
    fn exact(x: f32) -> Num {
        Num { x: x.into(), v: 0.0 }
    }

    /// The result `x` of an operation whose inputs pass on `v`, rounded so many times.
    fn rounded(x: f64, v: f64, times: f64) -> Num {
        Num { x, v: v + times * ROUND * x * x }
    }

    fn plus(self, other: Num) -> Num {
        Num::rounded(self.x + other.x, self.v + other.v, 1.0)
    }

    fn times(self, other: Num) -> Num {
        Num::rounded(self.x * other.x, self.v * other.x.powi(2) + other.v * self.x.powi(2), 1.0)
    }
}

/// A fused sum of products, each step rounded.
fn dot(a: &[Num], b: &[Num]) -> Num {
    a.iter().zip(b).fold(Num::default(), |sum, (a, b)| {
        let x = sum.x + a.x * b.x;
        Num::rounded(x, sum.v + a.v * b.x.powi(2) + b.v * a.x.powi(2), 1.0)
    })
}

fn exact(values: &[f32]) -> Vec<Num> {
    values.iter().map(|v| Num::exact(*v)).collect()
}

pub(crate) struct Twin<'m> {
    pub(crate) made: &'m Made,
}

impl Twin<'_> {
    fn spec(&self) -> &Spec {
        &self.made.spec
    }

    fn weights(&self, name: &str) -> Vec<Num> {
        exact(self.made.tensor(name))
    }

    /// A matrix in the file's rows times x, and a bias if the file has one.
    fn linear(&self, name: &str, x: &[Num]) -> Vec<Num> {
        let weights = self.weights(&format!("{name}.weight"));
        let mut out: Vec<Num> = weights.chunks_exact(x.len()).map(|row| dot(row, x)).collect();
        if self.made.has(&format!("{name}.bias")) {
            let bias = self.weights(&format!("{name}.bias"));
            out.iter_mut().zip(bias).for_each(|(y, b)| *y = y.plus(b));
        }
        out
    }

    fn norm(&self, x: &[Num], weight: &[Num]) -> Vec<Num> {
        let n = x.len() as f64;
        let mean = x.iter().map(|x| x.x * x.x).sum::<f64>() / n;
        // d mean / d x_i = 2·x_i / n; summing squares rounds about once for each of the 16 lanes' steps.
        let mean_v =
            x.iter().map(|x| (2.0 * x.x / n).powi(2) * x.v).sum::<f64>() + (n / 16.0 + 6.0) * ROUND * mean * mean;
        let scale = 1.0 / (mean + 1e-5f32 as f64).sqrt();
        let scale = Num::rounded(scale, mean_v * (scale.powi(3) / 2.0).powi(2), 3.0);
        x.iter().zip(weight).map(|(x, w)| x.times(scale).times(*w)).collect()
    }

    /// Angle of one position for pair `i`, and the factor of cosine and sine, as the file's metadata say.
    fn angle(&self, layer: usize, pos: usize, i: usize) -> (f64, f64) {
        let s = self.spec();
        let dims = s.rope_dims(layer) as f64;
        let local = s.is_gemma() && s.windowed(layer);
        let base = if local { 1000f64 } else { 10_000f64 };
        let plain = pos as f64 * base.powf(-2.0 * i as f64 / dims);
        if local {
            // Neither scaling nor divisors are for windowed layers.
            return (plain, 1.0);
        }
        match s.scaling {
            Scaling::None if s.arch == "gemma4" => (plain / self.weights("rope_freqs.weight")[i].x, 1.0),
            Scaling::None => (plain, 1.0),
            Scaling::Linear(factor) => (plain / f64::from(factor), 1.0),
            Scaling::Factors => (plain / self.weights("rope_freqs.weight")[i].x, 1.0),
            Scaling::Yarn(factor, original) => {
                // The pair that makes so many turns within the original context.
                let pair = |turns: f64| {
                    dims * (f64::from(original) / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * 10_000f64.ln())
                };
                let (fast, slow) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(dims - 1.0));
                let slowness = ((i as f64 - fast) / (slow - fast).max(0.001)).clamp(0.0, 1.0);
                let factor = f64::from(factor);
                (plain * (1.0 - slowness) + plain / factor * slowness, 1.0 + 0.1 * factor.ln())
            }
        }
    }

    fn rotate(&self, layer: usize, head: &mut [Num], pos: usize) {
        let half = self.spec().rope_dims(layer) / 2;
        for i in 0..half {
            let (a, b) = if self.spec().arch == "llama" { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (angle, magnitude) = self.angle(layer, pos, i);
            let cos = Num::rounded(angle.cos() * magnitude, 0.0, 1.0);
            let sin = Num::rounded(angle.sin() * magnitude, 0.0, 1.0);
            let minus = Num { x: -sin.x, v: sin.v };
            let (x, y) = (head[a], head[b]);
            head[a] = dot(&[x, y], &[cos, minus]);
            head[b] = dot(&[x, y], &[sin, cos]);
        }
    }

    /// Heads of q or k of a row, normed where the family does, rotated.
    fn heads(&self, layer: usize, role: &str, x: &[Num], pos: usize) -> Vec<Vec<Num>> {
        let all = self.linear(&format!("blk.{layer}.attn_{role}"), x);
        let norm = format!("blk.{layer}.attn_{role}_norm.weight");
        let heads = all.chunks_exact(self.spec().dim(layer)).map(|head| {
            let mut head = if self.made.has(&norm) { self.norm(head, &self.weights(&norm)) } else { head.to_vec() };
            self.rotate(layer, &mut head, pos);
            head
        });
        heads.collect()
    }

    /// Heads of the values of a row.
    fn values(&self, layer: usize, x: &[Num]) -> Vec<Vec<Num>> {
        let s = self.spec();
        let role = if s.value_is_key(layer) { "k" } else { "v" };
        let all = self.linear(&format!("blk.{layer}.attn_{role}"), x);
        let ones = vec![Num::exact(1.0); s.dim(layer)];
        let heads = all.chunks_exact(s.dim(layer));
        heads.map(|head| if s.arch == "gemma4" { self.norm(head, &ones) } else { head.to_vec() }).collect()
    }

    /// The weighted mean of values under softmax of scores.
    fn mix(scores: &[Num], values: &[&[Num]], dim: usize) -> Vec<Num> {
        let top = scores.iter().map(|s| s.x).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s.x - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        let p: Vec<f64> = weights.iter().map(|w| w / total).collect();
        // A score's error moves its own weight and all shares; `exp` is good to two units, twice where chunks are merged.
        let mean_v: f64 = p.iter().zip(scores).map(|(p, s)| p * p * s.v).sum();
        let parts: Vec<Num> = p
            .iter()
            .zip(scores)
            .map(|(p, s)| Num { x: *p, v: p * p * (s.v + mean_v + ROUND * ((s.x - top).powi(2) + s.x.powi(2) + 64.0)) })
            .collect();
        (0..dim).map(|d| dot(&parts, &values.iter().map(|v| v[d]).collect::<Vec<_>>())).collect()
    }

    /// The attention of a layer for all rows; `k` and `v` are those of the layer that owns them, `[pos][head]`.
    fn attention(&self, layer: usize, q: &[Vec<Vec<Num>>], k: &[Vec<Vec<Num>>], v: &[Vec<Vec<Num>>]) -> Vec<Vec<Num>> {
        let s = self.spec();
        let group = s.n_head / s.n_head_kv;
        let scale = Num::exact(if s.arch == "gemma4" { 1.0 } else { 1.0 / (s.head_dim as f32).sqrt() });
        let rows = q.iter().enumerate().map(|(pos, heads)| {
            let mut mixed = Vec::new();
            for (h, query) in heads.iter().enumerate() {
                let query: Vec<Num> = query.iter().map(|q| q.times(scale)).collect();
                // The mask: what lies ahead, and behind the window.
                let seen = |j: &usize| *j <= pos && (!s.windowed(layer) || pos - j < s.window);
                let seen: Vec<usize> = (0..q.len()).filter(seen).collect();
                let scores: Vec<Num> = seen.iter().map(|j| dot(&query, &k[*j][h / group])).collect();
                let values: Vec<&[Num]> = seen.iter().map(|j| &v[*j][h / group][..]).collect();
                mixed.extend(Self::mix(&scores, &values, s.dim(layer)));
            }
            self.linear(&format!("blk.{layer}.attn_output"), &mixed)
        });
        rows.collect()
    }

    /// `activation(gate) · up`.
    fn gated(&self, gate: &[Num], up: &[Num]) -> Vec<Num> {
        let activation = if self.spec().is_gemma() { gelu } else { silu };
        gate.iter().zip(up).map(|(g, u)| activation(*g).times(*u)).collect()
    }

    /// What the experts make of a row whose router input is `z` and whose own input is `x`.
    fn experts(&self, layer: usize, z: &[Num], x: &[Num]) -> Vec<Num> {
        let s = self.spec();
        let (count, used, n_ff) = s.experts;
        let name = |role: &str| format!("blk.{layer}.{role}");
        let logits = self.linear(&name("ffn_gate_inp"), z);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|a, b| logits[*b].x.total_cmp(&logits[*a].x));
        let (last, next) = (logits[order[used - 1]], logits[order[used]]);
        let sure = last.x - next.x > 10.0 * (last.v + next.v).sqrt();
        assert!(sure, "two experts are too close to tell: another seed");
        let chosen: Vec<Num> = order[..used].iter().map(|e| logits[*e]).collect();
        let matrix = |role: &str, e: usize, x: &[Num]| -> Vec<Num> {
            let all = self.made.tensor(&name(role));
            let each = all.len() / count;
            exact(&all[e * each..(e + 1) * each]).chunks_exact(x.len()).map(|row| dot(row, x)).collect()
        };
        let results: Vec<Vec<Num>> = order[..used]
            .iter()
            .map(|e| {
                let (gate, up) = if s.is_gemma() {
                    let both = matrix("ffn_gate_up_exps.weight", *e, x);
                    (both[..n_ff].to_vec(), both[n_ff..].to_vec())
                } else {
                    (matrix("ffn_gate_exps.weight", *e, x), matrix("ffn_up_exps.weight", *e, x))
                };
                let down = matrix("ffn_down_exps.weight", *e, &self.gated(&gate, &up));
                match s.is_gemma() {
                    true => {
                        let scale = self.weights(&name("ffn_down_exps.scale"))[*e];
                        down.into_iter().map(|y| y.times(scale)).collect()
                    }
                    false => down,
                }
            })
            .collect();
        // Probabilities of the chosen, made to sum to 1, are a softmax over the chosen alone.
        let results: Vec<&[Num]> = results.iter().map(|r| &r[..]).collect();
        Self::mix(&chosen, &results, s.n_embd)
    }

    /// What the feed-forward of a layer adds to a row.
    fn feed(&self, layer: usize, row: &[Num]) -> Vec<Num> {
        let s = self.spec();
        let name = |role: &str| format!("blk.{layer}.{role}");
        let weight = |role: &str| self.weights(&name(&format!("{role}.weight")));
        let x = self.norm(row, &weight("ffn_norm"));
        let dense = (s.ff(layer) > 0).then(|| {
            let (gate, up) = (self.linear(&name("ffn_gate"), &x), self.linear(&name("ffn_up"), &x));
            self.linear(&name("ffn_down"), &self.gated(&gate, &up))
        });
        let out = match (dense, s.experts.0) {
            (Some(dense), 0) => dense,
            (None, _) => self.experts(layer, &x, &x),
            (Some(dense), _) => {
                let width = Num::exact(1.0 / (s.n_embd as f32).sqrt());
                let z = self.norm(row, &self.weights(&name("ffn_gate_inp.scale")));
                let z: Vec<Num> = z.into_iter().map(|z| z.times(width)).collect();
                let experts = self.experts(layer, &z, &self.norm(row, &weight("pre_ffw_norm_2")));
                let dense = self.norm(&dense, &weight("post_ffw_norm_1"));
                let experts = self.norm(&experts, &weight("post_ffw_norm_2"));
                dense.into_iter().zip(experts).map(|(d, e)| d.plus(e)).collect()
            }
        };
        if s.is_gemma() { self.norm(&out, &weight("post_ffw_norm")) } else { out }
    }

    /// The per-layer inputs of a token whose scaled embedding is `x`, `[layer]`.
    fn per_layer(&self, token: u32, x: &[Num]) -> Vec<Vec<Num>> {
        let s = self.spec();
        let (width, all) = (s.per_layer, s.per_layer * s.n_layer);
        let own_scale = Num::exact((width as f32).sqrt());
        let own = &self.weights("per_layer_token_embd.weight")[token as usize * all..(token as usize + 1) * all];
        let scale = Num::exact(1.0 / (s.n_embd as f32).sqrt());
        let projected: Vec<Num> = self.linear("per_layer_model_proj", x).into_iter().map(|y| y.times(scale)).collect();
        let weight = self.weights("per_layer_proj_norm.weight");
        let half = Num::exact(std::f32::consts::FRAC_1_SQRT_2);
        let layers = projected.chunks_exact(width).zip(own.chunks_exact(width)).map(|(b, a)| {
            let b = self.norm(b, &weight);
            a.iter().zip(b).map(|(a, b)| a.times(own_scale).plus(b).times(half)).collect()
        });
        layers.collect()
    }

    /// Rows of logits.
    pub(crate) fn forward(&self, tokens: &[u32]) -> Vec<Vec<Num>> {
        let s = self.spec();
        let embedding = self.weights("token_embd.weight");
        let scale = Num::exact(if s.is_gemma() { (s.n_embd as f32).sqrt() } else { 1.0 });
        let mut rows: Vec<Vec<Num>> = tokens
            .iter()
            .map(|t| {
                embedding[*t as usize * s.n_embd..(*t as usize + 1) * s.n_embd].iter().map(|x| x.times(scale)).collect()
            })
            .collect();
        let inputs: Vec<Vec<Vec<Num>>> = match s.per_layer {
            0 => Vec::new(),
            _ => tokens.iter().zip(&rows).map(|(t, x)| self.per_layer(*t, x)).collect(),
        };
        // Keys and values by the layer that owns them, `[pos][head]`.
        let mut caches: Vec<[Vec<Vec<Vec<Num>>>; 2]> = Vec::new();
        for layer in 0..s.n_layer {
            let name = |role: &str| format!("blk.{layer}.{role}");
            let weight = |role: &str| self.weights(&name(&format!("{role}.weight")));
            let norm = weight("attn_norm");
            let normed: Vec<Vec<Num>> = rows.iter().map(|x| self.norm(x, &norm)).collect();
            let of = |role: &str| -> Vec<Vec<Vec<Num>>> {
                normed.iter().enumerate().map(|(pos, x)| self.heads(layer, role, x, pos)).collect()
            };
            let q = of("q");
            if s.shares(layer) {
                caches.push([Vec::new(), Vec::new()]);
            } else {
                caches.push([of("k"), normed.iter().map(|x| self.values(layer, x)).collect()]);
            }
            let [k, v] = &caches[s.owner(layer)];
            let attended = self.attention(layer, &q, k, v);
            for (pos, (row, mut out)) in rows.iter_mut().zip(attended).enumerate() {
                if s.is_gemma() {
                    out = self.norm(&out, &weight("post_attention_norm"));
                }
                row.iter_mut().zip(out).for_each(|(x, d)| *x = x.plus(d));
                let out = self.feed(layer, row);
                row.iter_mut().zip(out).for_each(|(x, d)| *x = x.plus(d));
                if s.per_layer > 0 {
                    let gate = self.linear(&name("inp_gate"), row);
                    let out = self.linear(&name("proj"), &self.gated(&gate, &inputs[pos][layer]));
                    let out = self.norm(&out, &weight("post_norm"));
                    row.iter_mut().zip(out).for_each(|(x, d)| *x = x.plus(d));
                }
                if s.arch == "gemma4" {
                    let scale = weight("layer_output_scale")[0];
                    row.iter_mut().for_each(|x| *x = x.times(scale));
                }
            }
        }
        let norm = self.weights("output_norm.weight");
        let output = if s.tied { "token_embd" } else { "output" };
        let logits = rows.iter().map(|x| self.linear(output, &self.norm(x, &norm)));
        logits
            .map(|row| row.into_iter().map(|x| if s.soft_cap > 0.0 { cap(x, s.soft_cap) } else { x }).collect())
            .collect()
    }
}

/// `g · sigmoid(g)`; the exponential is good to two units.
fn silu(g: Num) -> Num {
    let share = 1.0 / (1.0 + (-g.x).exp());
    let slope = share * (1.0 + g.x * (1.0 - share));
    Num::rounded(g.x * share, slope * slope * g.v, 20.0)
}

/// `g · (1 + tanh(√(2/π)·(g + 0.044715·g³))) / 2`; the tangent is good to 2^-22, four units, of the 2 that it is added up to.
fn gelu(g: Num) -> Num {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let tanh = (root * (g.x + 0.044715 * g.x.powi(3))).tanh();
    let slope = 0.5 * (1.0 + tanh) + 0.5 * g.x * (1.0 - tanh * tanh) * root * (1.0 + 3.0 * 0.044715 * g.x * g.x);
    Num { x: 0.5 * g.x * (1.0 + tanh), v: slope * slope * g.v + 8.0 * ROUND * g.x * g.x }
}

/// `c · tanh(x / c)`.
fn cap(x: Num, c: f32) -> Num {
    let c = f64::from(c);
    let tanh = (x.x / c).tanh();
    Num { x: c * tanh, v: (1.0 - tanh * tanh).powi(2) * x.v + 18.0 * ROUND * c * c }
}
