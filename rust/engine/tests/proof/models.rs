//! Tiny random models: any family, any weight format, a byte-level vocabulary, written as a GGUF file in memory.
//!
//! - Weights have standard deviation 1/√k and mean near 0 whatever the format ([`crate::blocks`]), so activations stay of order 1.
//! - Logits have standard deviation [`Spec::logit_std`]: at 3 a temperature of 0.8 is diverse, and greedy text soon repeats itself, so that drafts hit.
//! - Tokens include single bytes and pieces of characters, so characters and stop texts span tokens.

use std::sync::Arc;

use quoth_engine::gguf::testing::{GgufBuilder, Kv};
use quoth_engine::gguf::{GgmlType, GgufFile};
use quoth_engine::model::{LoadOptions, Model};
use quoth_engine::vocab::Vocab;
use quoth_kernels::{Format, KernelSet};

use crate::blocks::{ggml_type, random_blocks};
pub(crate) use crate::dice::Dice;

/// What stands in the file for the rotary scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scaling {
    None,
    Linear(f32),
    /// Factor and original context.
    Yarn(f32, u32),
    /// Divisors in `rope_freqs.weight`.
    Factors,
}

/// A model to make.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) arch: &'static str,
    /// Matrices of the layers.
    pub(crate) format: Format,
    /// Embedding and output.
    pub(crate) outer: Format,
    pub(crate) tied: bool,
    pub(crate) biases: bool,
    pub(crate) n_vocab: usize,
    pub(crate) n_layer: usize,
    pub(crate) n_embd: usize,
    pub(crate) n_ff: usize,
    pub(crate) n_head: usize,
    pub(crate) n_head_kv: usize,
    pub(crate) head_dim: usize,
    /// Leading numbers of a head that rotate.
    pub(crate) rope_dims: usize,
    pub(crate) scaling: Scaling,
    /// Positions that windowed layers see; 0: there are no such layers.
    pub(crate) window: usize,
    /// Last layers that have no keys and values of their own.
    pub(crate) shared: usize,
    /// Experts, how many serve a row, width of one; zeros: none.
    pub(crate) experts: (usize, usize, usize),
    /// Width of the per-layer embeddings; 0: none.
    pub(crate) per_layer: usize,
    /// Bound of the logits; 0: none.
    pub(crate) soft_cap: f32,
    pub(crate) logit_std: f64,
    /// Standard deviation of the embeddings: the larger, the less a token depends on what is further back.
    pub(crate) embed_std: f64,
    pub(crate) seed: u64,
    /// Rows of the embedding that hold a NaN; the embedding is then F32.
    pub(crate) poisoned: Vec<u32>,
}

/// Tokens that end a generation: end of text, end of a turn.
pub(crate) const EOS: u32 = 0;
pub(crate) const EOT: u32 = 1;

/// Every family that is supported, gemma4 dense and with experts.
pub(crate) const FAMILIES: [&str; 7] = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "gemma4", "gemma4moe"];

impl Spec {
    /// A small model of a family whose matrices have one format. Layers of the gemmas are windowed by turns, with a window of 24.
    pub(crate) fn of(family: &'static str, format: Format) -> Spec {
        let wide = format.layout().len > 32;
        let width = if wide { 256 } else { 32 };
        let dense = Spec::dense(family, format, wide);
        match family {
            "qwen3moe" => Spec { experts: (6, 2, width), ..dense },
            "gemma3" => Spec { tied: true, n_layer: 3, window: 24, ..dense },
            "gemma4" => {
                Spec { tied: true, n_layer: 4, window: 24, shared: 2, per_layer: width, soft_cap: 8.0, ..dense }
            }
            "gemma4moe" => {
                Spec { arch: "gemma4", tied: true, window: 24, experts: (6, 2, width), soft_cap: 8.0, ..dense }
            }
            _ => dense,
        }
    }

    fn dense(arch: &'static str, format: Format, wide: bool) -> Spec {
        let (n_embd, n_head, n_head_kv) = if wide { (256, 8, 2) } else { (64, 2, 1) };
        Spec {
            arch,
            format,
            outer: format,
            tied: false,
            biases: false,
            n_vocab: 300,
            n_layer: 2,
            n_embd,
            n_ff: if wide { 256 } else { 96 },
            n_head,
            n_head_kv,
            head_dim: 32,
            rope_dims: 32,
            scaling: Scaling::None,
            window: 0,
            shared: 0,
            experts: (0, 0, 0),
            per_layer: 0,
            soft_cap: 0.0,
            logit_std: 3.0,
            embed_std: 1.0,
            seed: 1,
            poisoned: Vec::new(),
        }
    }

    pub(crate) fn is_gemma(&self) -> bool {
        self.arch.starts_with("gemma")
    }

    /// Whether a layer sees only the window: of gemma3's every third does not, of gemma4's every second; others have one window or none for all.
    pub(crate) fn windowed(&self, layer: usize) -> bool {
        match self.arch {
            "gemma3" => !(layer + 1).is_multiple_of(3),
            "gemma4" => layer.is_multiple_of(2),
            _ => self.window > 0,
        }
    }

    /// Numbers of a layer's heads.
    pub(crate) fn dim(&self, layer: usize) -> usize {
        if self.arch == "gemma4" && !self.windowed(layer) { 2 * self.head_dim } else { self.head_dim }
    }

    /// Numbers of a layer's heads that rotate, or over which exponents spread.
    pub(crate) fn rope_dims(&self, layer: usize) -> usize {
        if self.arch == "gemma4" { self.dim(layer) } else { self.rope_dims }
    }

    /// Width of a layer's dense feed-forward; 0: none.
    pub(crate) fn ff(&self, layer: usize) -> usize {
        match self.arch {
            "qwen3moe" => 0,
            _ if self.shares(layer) => 2 * self.n_ff,
            _ => self.n_ff,
        }
    }

    /// Whether a layer reads the keys and values of an earlier one.
    pub(crate) fn shares(&self, layer: usize) -> bool {
        layer >= self.n_layer - self.shared
    }

    /// The layer whose keys and values a layer reads.
    pub(crate) fn owner(&self, layer: usize) -> usize {
        if !self.shares(layer) {
            return layer;
        }
        (0..self.n_layer - self.shared).rev().find(|o| self.windowed(*o) == self.windowed(layer)).unwrap()
    }

    /// Whether a layer's values are its keys before norm and rotation.
    pub(crate) fn value_is_key(&self, layer: usize) -> bool {
        self.arch == "gemma4" && self.experts.0 > 0 && !self.windowed(layer)
    }

    /// The smallest and fastest, whose greedy text repeats itself now and then: for tests of the decoder, which need many tokens.
    pub(crate) fn tiny() -> Spec {
        Spec { n_vocab: 97, n_ff: 64, embed_std: 3.0, ..Spec::of("llama", Format::Q8_0) }
    }
}

/// A model as a file, and what its tensors hold.
pub(crate) struct Made {
    pub(crate) spec: Spec,
    pub(crate) bytes: Vec<u8>,
    /// Name, values as the file's format gives them.
    pub(crate) tensors: Vec<(String, Vec<f32>)>,
}

impl Made {
    pub(crate) fn new(spec: &Spec) -> Made {
        let mut maker = Maker { spec, builder: GgufBuilder::new(), tensors: Vec::new() };
        maker.metadata();
        maker.weights();
        let Maker { builder, tensors, .. } = maker;
        Made { spec: spec.clone(), bytes: builder.build(), tensors }
    }

    pub(crate) fn tensor(&self, name: &str) -> &[f32] {
        &self.tensors.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("tensor {name}")).1
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|(n, _)| n == name)
    }

    pub(crate) fn file(&self) -> GgufFile {
        GgufFile::from_bytes("random.gguf", self.bytes.clone()).unwrap()
    }

    pub(crate) fn load(&self, kernels: KernelSet, threads: usize, n_ctx: usize) -> Arc<Model> {
        Model::load(&self.file(), &LoadOptions { n_ctx, threads, kernels }, &mut |_, _| true).unwrap()
    }

    pub(crate) fn vocab(&self) -> Arc<Vocab> {
        Arc::new(Vocab::from_metadata(self.file().metadata()).unwrap())
    }
}

struct Maker<'s> {
    spec: &'s Spec,
    builder: GgufBuilder,
    tensors: Vec<(String, Vec<f32>)>,
}

impl Maker<'_> {
    fn kv(&mut self, key: &str, value: impl Into<Kv>) {
        self.builder = std::mem::take(&mut self.builder).kv(key, value);
    }

    fn metadata(&mut self) {
        let s = self.spec.clone();
        let key = |name: &str| format!("{}.{name}", s.arch);
        self.kv("general.architecture", s.arch);
        self.kv(&key("context_length"), 4096u32);
        self.kv(&key("embedding_length"), s.n_embd as u32);
        self.kv(&key("block_count"), s.n_layer as u32);
        let ff: Vec<u32> = (0..s.n_layer).map(|layer| s.ff(layer) as u32).collect();
        match s.shared {
            0 => self.kv(&key("feed_forward_length"), s.n_ff as u32),
            _ => self.kv(&key("feed_forward_length"), ff),
        }
        self.kv(&key("attention.head_count"), s.n_head as u32);
        self.kv(&key("attention.head_count_kv"), s.n_head_kv as u32);
        let whole = if s.arch == "gemma4" { 2 * s.head_dim } else { s.head_dim };
        self.kv(&key("attention.key_length"), whole as u32);
        self.kv(&key("attention.value_length"), whole as u32);
        self.kv(&key("attention.layer_norm_rms_epsilon"), 1e-5f32);
        self.kv(&key("rope.dimension_count"), if s.arch == "gemma4" { whole } else { s.rope_dims } as u32);
        self.kv(&key("rope.freq_base"), 10_000f32);
        self.family_metadata();
        match s.scaling {
            Scaling::None | Scaling::Factors => {}
            Scaling::Linear(factor) => {
                self.kv(&key("rope.scaling.type"), "linear");
                self.kv(&key("rope.scaling.factor"), factor);
            }
            Scaling::Yarn(factor, original) => {
                self.kv(&key("rope.scaling.type"), "yarn");
                self.kv(&key("rope.scaling.factor"), factor);
                self.kv(&key("rope.scaling.original_context_length"), original);
            }
        }
        let tokens = vocabulary(s.n_vocab);
        self.kv("tokenizer.ggml.model", "gpt2");
        self.kv("tokenizer.ggml.pre", "default");
        self.kv("tokenizer.ggml.tokens", Kv::strs(tokens.iter().map(|(text, _)| text)));
        self.kv("tokenizer.ggml.token_type", Kv::I32s(tokens.iter().map(|(_, kind)| *kind).collect()));
        self.kv("tokenizer.ggml.merges", Kv::strs(Vec::<String>::new()));
        self.kv("tokenizer.ggml.eos_token_id", EOS);
        self.kv("tokenizer.ggml.eot_token_id", EOT);
        self.kv("tokenizer.ggml.add_bos_token", false);
    }

    /// What only some families say.
    fn family_metadata(&mut self) {
        let s = self.spec.clone();
        let key = |name: &str| format!("{}.{name}", s.arch);
        if s.window > 0 {
            self.kv(&key("attention.sliding_window"), s.window as u32);
        }
        if s.is_gemma() {
            self.kv(&key("rope.freq_base_swa"), 1000f32);
        }
        if s.arch == "gemma3" {
            self.kv(&key("attention.sliding_window_pattern"), 3u32);
        }
        if s.arch == "gemma4" {
            let pattern: Vec<bool> = (0..s.n_layer).map(|layer| s.windowed(layer)).collect();
            self.kv(&key("attention.sliding_window_pattern"), pattern);
            self.kv(&key("attention.key_length_swa"), s.head_dim as u32);
            self.kv(&key("attention.value_length_swa"), s.head_dim as u32);
            self.kv(&key("rope.dimension_count_swa"), s.head_dim as u32);
            self.kv(&key("attention.shared_kv_layers"), s.shared as u32);
            self.kv(&key("embedding_length_per_layer_input"), s.per_layer as u32);
        }
        if s.soft_cap > 0.0 {
            self.kv(&key("final_logit_softcapping"), s.soft_cap);
        }
        if s.experts.0 > 0 {
            self.kv(&key("expert_count"), s.experts.0 as u32);
            self.kv(&key("expert_used_count"), s.experts.1 as u32);
            self.kv(&key("expert_feed_forward_length"), s.experts.2 as u32);
        }
    }

    fn weights(&mut self) {
        let s = self.spec.clone();
        let outer = if s.poisoned.is_empty() { s.outer } else { Format::F32 };
        // A tied output makes the logits; its rows are then made as large as logits want them.
        let embedding = if s.tied { s.logit_std } else { s.embed_std };
        self.matrix("token_embd.weight", outer, s.n_embd, s.n_vocab, embedding);
        if !s.tied {
            self.matrix("output.weight", s.outer, s.n_embd, s.n_vocab, s.logit_std);
        }
        self.vector("output_norm.weight", s.n_embd, 1.0, 0.1);
        if s.scaling == Scaling::Factors && s.arch == "llama" {
            self.vector("rope_freqs.weight", s.rope_dims / 2, 4.0, 0.9);
        }
        if s.arch == "gemma4" {
            // The first half of the pairs of a full layer rotates, the rest stays.
            let factors = (0..s.head_dim).map(|i| if i < s.head_dim / 2 { 1.0 } else { 1e30 });
            self.values("rope_freqs.weight", factors.collect());
        }
        if s.per_layer > 0 {
            let all = s.per_layer * s.n_layer;
            let rows = (s.n_layer as f64).sqrt();
            self.matrix("per_layer_token_embd.weight", s.format, all, s.n_vocab, rows);
            self.matrix("per_layer_model_proj.weight", s.format, s.n_embd, all, 1.0);
            self.vector("per_layer_proj_norm.weight", s.per_layer, 1.0, 0.2);
        }
        for layer in 0..s.n_layer {
            self.attention(layer);
            self.feed_forward(layer);
            let name = |role: &str| format!("blk.{layer}.{role}");
            if s.per_layer > 0 {
                self.matrix(&name("inp_gate.weight"), s.format, s.n_embd, s.per_layer, 0.5);
                self.matrix(&name("proj.weight"), s.format, s.per_layer, s.n_embd, 1.0);
                self.vector(&name("post_norm.weight"), s.n_embd, 1.0, 0.2);
            }
            if s.arch == "gemma4" {
                self.vector(&name("layer_output_scale.weight"), 1, 0.8, 0.05);
            }
        }
    }

    fn attention(&mut self, layer: usize) {
        let s = self.spec.clone();
        let name = |role: &str| format!("blk.{layer}.{role}");
        let dim = s.dim(layer);
        let (n_q, n_kv) = (s.n_head * dim, s.n_head_kv * dim);
        self.vector(&name("attn_norm.weight"), s.n_embd, 1.0, 0.1);
        if matches!(s.arch, "qwen3" | "qwen3moe") || s.is_gemma() {
            // gemma4 does not scale scores, so its norms must be smaller.
            let (mean, std) = if s.arch == "gemma4" { (0.5, 0.07) } else { (1.5, 0.2) };
            self.vector(&name("attn_q_norm.weight"), dim, mean, std);
            if !s.shares(layer) {
                self.vector(&name("attn_k_norm.weight"), dim, mean, std);
            }
        }
        if s.arch == "qwen2" || s.biases {
            self.vector(&name("attn_q.bias"), n_q, 0.0, 0.5);
            self.vector(&name("attn_k.bias"), n_kv, 0.0, 0.5);
            self.vector(&name("attn_v.bias"), n_kv, 0.0, 0.5);
        }
        if s.biases && s.arch == "llama" {
            self.vector(&name("attn_output.bias"), s.n_embd, 0.0, 0.2);
        }
        self.matrix(&name("attn_q.weight"), s.format, s.n_embd, n_q, 1.5);
        if !s.shares(layer) {
            self.matrix(&name("attn_k.weight"), s.format, s.n_embd, n_kv, 1.5);
            if !s.value_is_key(layer) {
                self.matrix(&name("attn_v.weight"), s.format, s.n_embd, n_kv, 1.0);
            }
        }
        self.matrix(&name("attn_output.weight"), s.format, n_q, s.n_embd, 1.0);
        if s.is_gemma() {
            self.vector(&name("post_attention_norm.weight"), s.n_embd, 1.0, 0.2);
        }
    }

    fn feed_forward(&mut self, layer: usize) {
        let s = self.spec.clone();
        let name = |role: &str| format!("blk.{layer}.{role}");
        let n_ff = s.ff(layer);
        self.vector(&name("ffn_norm.weight"), s.n_embd, 1.0, 0.1);
        if n_ff > 0 {
            self.matrix(&name("ffn_gate.weight"), s.format, s.n_embd, n_ff, 1.0);
            self.matrix(&name("ffn_up.weight"), s.format, s.n_embd, n_ff, 1.0);
            self.matrix(&name("ffn_down.weight"), s.format, n_ff, s.n_embd, 1.0);
        }
        if s.is_gemma() {
            self.vector(&name("post_ffw_norm.weight"), s.n_embd, 1.0, 0.2);
        }
        let (count, _, n_ff) = s.experts;
        if count == 0 {
            return;
        }
        if s.is_gemma() {
            // The router's input is divided by the root of its width.
            let width = (s.n_embd as f64).sqrt();
            self.matrix(&name("ffn_gate_inp.weight"), Format::F32, s.n_embd, count, 2.0 * width);
            self.vector(&name("ffn_gate_inp.scale"), s.n_embd, 1.0, 0.2);
            self.vector(&name("ffn_down_exps.scale"), count, 1.0, 0.2);
            for role in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
                self.vector(&name(&format!("{role}.weight")), s.n_embd, 1.0, 0.2);
            }
            self.matrices(&name("ffn_gate_up_exps.weight"), s.format, [s.n_embd, 2 * n_ff, count], 1.0);
        } else {
            self.matrix(&name("ffn_gate_inp.weight"), Format::F32, s.n_embd, count, 2.0);
            self.matrices(&name("ffn_gate_exps.weight"), s.format, [s.n_embd, n_ff, count], 1.0);
            self.matrices(&name("ffn_up_exps.weight"), s.format, [s.n_embd, n_ff, count], 1.0);
        }
        self.matrices(&name("ffn_down_exps.weight"), s.format, [n_ff, s.n_embd, count], 1.0);
    }

    fn dice(&self, name: &str) -> Dice {
        let hash = name.bytes().fold(self.spec.seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Dice(hash)
    }

    fn vector(&mut self, name: &str, n: usize, mean: f64, std: f64) {
        let mut dice = self.dice(name);
        self.values(name, (0..n).map(|_| (mean + std * dice.bell().clamp(-3.0, 3.0)) as f32).collect());
    }

    fn values(&mut self, name: &str, values: Vec<f32>) {
        let n = values.len();
        let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.builder = std::mem::take(&mut self.builder).tensor(name, &[n as u64], GgmlType::F32, &raw);
        self.tensors.push((name.to_owned(), values));
    }

    fn matrix(&mut self, name: &str, format: Format, k: usize, n: usize, std: f64) {
        self.matrices(name, format, [k, n, 1], std);
    }

    fn matrices(&mut self, name: &str, format: Format, [k, n, count]: [usize; 3], std: f64) {
        let n_all = n * count;
        let mut raw = random_blocks(format, n_all * k, std / (k as f64).sqrt(), &mut self.dice(name));
        if name == "token_embd.weight" {
            for token in &self.spec.poisoned {
                let at = (*token as usize * k + 1) * 4;
                raw[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
            }
        }
        let mut values = vec![0.0; n_all * k];
        format.dequantize(&raw, &mut values);
        let ty = ggml_type(format);
        let dims = [k as u64, n as u64, count as u64];
        let dims = if count == 1 { &dims[..2] } else { &dims[..] };
        self.builder = std::mem::take(&mut self.builder).tensor(name, dims, ty, &raw);
        self.tensors.push((name.to_owned(), values));
    }
}

/// The letter that stands for a byte in byte-level vocabularies.
fn letter(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let number = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(0x100 + number).unwrap()
}

/// Spells bytes in the byte alphabet.
pub(crate) fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|b| letter(*b)).collect()
}

/// Texts and kinds of `n` tokens (3: control, 1: normal): two ends, pieces of characters, words, then single bytes.
fn vocabulary(n: usize) -> Vec<(String, i32)> {
    let mut all: Vec<(String, i32)> = vec![("<|endoftext|>".into(), 3), ("<|im_end|>".into(), 3)];
    let pieces: [&[u8]; 14] = [
        "é".as_bytes(),
        &[0xe2, 0x82],
        &[0xac],
        &[0xf0, 0x9f],
        &[0x98, 0x80],
        &[0xc3],
        &[0xa9],
        "€".as_bytes(),
        b" the",
        b"the",
        b"\n\n",
        b"##",
        b"end",
        b"  ",
    ];
    all.extend(pieces.iter().map(|p| (spell(p), 1)));
    let taken: Vec<String> = all.iter().map(|(text, _)| text.clone()).collect();
    let bytes = (b' '..=b'~').chain([b'\n']).chain(0..b' ').chain(0x7f..=0xff);
    all.extend(bytes.map(|b| spell(&[b])).filter(|text| !taken.contains(text)).map(|text| (text, 1)));
    for i in all.len()..n {
        all.push((format!("w{i}"), 1));
    }
    all.truncate(n);
    all
}
