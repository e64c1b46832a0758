//! The forward against a naive one: plain loops in f64 over dequantized weights, full attention with a mask, pairs rotated in the file's own order.
//!
//! The bound follows from the roundings. Every number of the twin carries the variance of the error that single precision would have made up to it: an
//! operation with result y adds u²·y²/3 (a rounding is uniform in ±u·|y|, u = 2^-24), and passes on what its inputs carry, to first order. Roundings are
//! taken as independent (Higham and Mary, 2019), so the difference must stay within a few standard deviations: [`SIGMAS`].

use crate::batch::feed;
use crate::models::{Made, Scaling, Spec};
use quoth_engine::session::Session;
use quoth_kernels::attend::KvKind;
use quoth_kernels::{Format, KernelSet};

/// Standard deviations that a difference may have: of half a million normal numbers the largest has 5. The largest seen is 2.7.
const SIGMAS: f64 = 6.0;
/// Variance of one rounding, relative to the square of the result.
const ROUND: f64 = 1.0 / (3.0 * (1u64 << 48) as f64);

/// A number and the variance of its error.
#[derive(Debug, Clone, Copy, Default)]
struct Num {
    x: f64,
    v: f64,
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

struct Twin<'m> {
    made: &'m Made,
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
    fn angle(&self, pos: usize, i: usize) -> (f64, f64) {
        let dims = self.spec().rope_dims as f64;
        let plain = pos as f64 * 10_000f64.powf(-2.0 * i as f64 / dims);
        match self.spec().scaling {
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

    fn rotate(&self, head: &mut [Num], pos: usize) {
        let half = self.spec().rope_dims / 2;
        for i in 0..half {
            let (a, b) = if self.spec().arch == "llama" { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (angle, magnitude) = self.angle(pos, i);
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
        let heads = all.chunks_exact(self.spec().head_dim).map(|head| {
            let mut head = if self.made.has(&norm) { self.norm(head, &self.weights(&norm)) } else { head.to_vec() };
            self.rotate(&mut head, pos);
            head
        });
        heads.collect()
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

    fn forward(&self, tokens: &[u32]) -> Vec<Vec<Num>> {
        let s = self.spec();
        let embedding = self.weights("token_embd.weight");
        let mut rows: Vec<Vec<Num>> =
            tokens.iter().map(|t| embedding[*t as usize * s.n_embd..(*t as usize + 1) * s.n_embd].to_vec()).collect();
        let group = s.n_head / s.n_head_kv;
        let scale = Num::exact(1.0 / (s.head_dim as f32).sqrt());
        for layer in 0..s.n_layer {
            let norm = self.weights(&format!("blk.{layer}.attn_norm.weight"));
            let normed: Vec<Vec<Num>> = rows.iter().map(|x| self.norm(x, &norm)).collect();
            let of = |role: &str| -> Vec<Vec<Vec<Num>>> {
                normed.iter().enumerate().map(|(pos, x)| self.heads(layer, role, x, pos)).collect()
            };
            let (q, k) = (of("q"), of("k"));
            let v: Vec<Vec<Num>> = normed.iter().map(|x| self.linear(&format!("blk.{layer}.attn_v"), x)).collect();
            for (pos, row) in rows.iter_mut().enumerate() {
                let mut mixed = Vec::new();
                for h in 0..s.n_head {
                    let kv = h / group;
                    let query: Vec<Num> = q[pos][h].iter().map(|q| q.times(scale)).collect();
                    let scores: Vec<Num> = (0..=pos).map(|j| dot(&query, &k[j][kv])).collect();
                    let values: Vec<&[Num]> =
                        (0..=pos).map(|j| &v[j][kv * s.head_dim..(kv + 1) * s.head_dim]).collect();
                    mixed.extend(Self::mix(&scores, &values, s.head_dim));
                }
                let out = self.linear(&format!("blk.{layer}.attn_output"), &mixed);
                row.iter_mut().zip(out).for_each(|(x, d)| *x = x.plus(d));
            }
            let norm = self.weights(&format!("blk.{layer}.ffn_norm.weight"));
            for row in &mut rows {
                let x = self.norm(row, &norm);
                let gate = self.linear(&format!("blk.{layer}.ffn_gate"), &x);
                let up = self.linear(&format!("blk.{layer}.ffn_up"), &x);
                let hidden: Vec<Num> = gate.iter().zip(up).map(|(g, u)| silu(*g).times(u)).collect();
                let down = self.linear(&format!("blk.{layer}.ffn_down"), &hidden);
                row.iter_mut().zip(down).for_each(|(x, d)| *x = x.plus(d));
            }
        }
        let norm = self.weights("output_norm.weight");
        let output = if s.tied { "token_embd" } else { "output" };
        rows.iter().map(|x| self.linear(output, &self.norm(x, &norm))).collect()
    }
}

/// `g · sigmoid(g)`; the exponential is good to two units.
fn silu(g: Num) -> Num {
    let share = 1.0 / (1.0 + (-g.x).exp());
    let slope = share * (1.0 + g.x * (1.0 - share));
    Num::rounded(g.x * share, slope * slope * g.v, 20.0)
}

/// Compares all rows; gives the largest difference in standard deviations.
fn check(spec: &Spec, n: usize) -> f64 {
    let made = Made::new(spec);
    let tokens = crate::models::Dice(spec.seed ^ 99).tokens(n, spec.n_vocab);
    let golden = Twin { made: &made }.forward(&tokens);
    let model = made.load(KernelSet::reference(), 2, 256);
    let mut session = Session::new(model, KvKind::F32).unwrap();
    let (mut worst, mut loosest): (f64, f64) = (0.0, 0.0);
    for (row, golden) in feed(&mut session, &tokens).iter().zip(&golden) {
        for (got, want) in row.iter().zip(golden) {
            loosest = loosest.max(want.v.sqrt());
            worst = worst.max((f64::from(f32::from_bits(*got)) - want.x).abs() / want.v.sqrt());
        }
    }
    assert!(worst < SIGMAS, "{spec:?}: {worst:.1} standard deviations");
    // A bound that allowed more would not tell a wrong formula from a rounding.
    assert!(SIGMAS * loosest < 1e-3 * spec.logit_std, "{spec:?}: the bound is {:.1e}", SIGMAS * loosest);
    worst
}

/// Sizes that no block, panel or lane divides.
fn odd(arch: &'static str) -> Spec {
    Spec {
        n_embd: 45,
        n_ff: 77,
        n_head: 6,
        n_head_kv: 3,
        head_dim: 10,
        rope_dims: 10,
        n_vocab: 101,
        ..Spec::of(arch, Format::F32)
    }
}

#[test]
fn every_family_is_the_naive_forward_up_to_rounding() {
    for arch in ["llama", "qwen2", "qwen3"] {
        check(&Spec::of(arch, Format::F32), 150);
        check(&Spec { tied: true, seed: 2, ..Spec::of(arch, Format::F32) }, 40);
        check(&odd(arch), 40);
        check(&Spec { n_head: 5, n_head_kv: 1, n_layer: 3, seed: 3, ..odd(arch) }, 30);
        check(&Spec { n_head: 1, n_head_kv: 1, n_layer: 1, ..odd(arch) }, 20);
    }
}

#[test]
fn every_rotary_scaling_is_the_naive_one() {
    for arch in ["llama", "qwen2", "qwen3"] {
        for scaling in [Scaling::Linear(4.0), Scaling::Yarn(8.0, 64), Scaling::Yarn(4.0, 4096)] {
            check(&Spec { scaling, ..Spec::of(arch, Format::F32) }, 60);
        }
        check(&Spec { rope_dims: 12, ..Spec::of(arch, Format::F32) }, 40);
        check(&Spec { rope_dims: 6, scaling: Scaling::Yarn(2.0, 128), ..odd(arch) }, 40);
    }
    check(&Spec { scaling: Scaling::Factors, ..Spec::of("llama", Format::F32) }, 60);
    check(&Spec { scaling: Scaling::Factors, ..odd("llama") }, 40);
}

#[test]
fn optional_biases_of_llama_count() {
    check(&Spec { biases: true, ..Spec::of("llama", Format::F32) }, 40);
    check(&Spec { biases: true, ..odd("llama") }, 40);
}

#[test]
fn every_weight_format_is_read_as_its_dequantized_weights() {
    for (i, format) in Format::ALL.into_iter().enumerate() {
        let arch = ["llama", "qwen2", "qwen3"][i % 3];
        check(&Spec { tied: i % 2 == 0, ..Spec::of(arch, format) }, 12);
    }
}

#[test]
fn the_bound_tells_a_wrong_formula_from_a_rounding() {
    // The twin of one model against the engine with another whose rotation differs by one part in a thousand.
    let spec = Spec { scaling: Scaling::Linear(1.001), ..Spec::of("qwen3", Format::F32) };
    let other = Spec { scaling: Scaling::None, ..spec.clone() };
    let made = Made::new(&spec);
    let tokens = crate::models::Dice(5).tokens(40, spec.n_vocab);
    let golden = Twin { made: &made }.forward(&tokens);
    let model = Made::new(&other).load(KernelSet::reference(), 1, 256);
    let mut session = Session::new(model, KvKind::F32).unwrap();
    let mut worst: f64 = 0.0;
    for (row, golden) in feed(&mut session, &tokens).iter().zip(&golden) {
        for (got, want) in row.iter().zip(golden) {
            worst = worst.max((f64::from(f32::from_bits(*got)) - want.x).abs() / want.v.sqrt());
        }
    }
    assert!(worst > 20.0 * SIGMAS, "{worst}");
}
