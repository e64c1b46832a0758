//! Tiny random models: any family, any weight format, a byte-level vocabulary, written as a GGUF file in memory.
//!
//! - Weights have standard deviation 1/√k and mean near 0 whatever the format, so activations stay of order 1. Blocks are made of random codes; only scales
//!   and minimums are chosen.
//! - Logits have standard deviation [`Spec::logit_std`]: at 3 a temperature of 0.8 is diverse, and greedy text soon repeats itself, so that drafts hit.
//! - Tokens include single bytes and pieces of characters, so characters and stop texts span tokens.

use std::sync::Arc;

use quoth_engine::gguf::testing::{GgufBuilder, Kv};
use quoth_engine::gguf::{GgmlType, GgufFile};
use quoth_engine::model::{LoadOptions, Model};
use quoth_engine::vocab::Vocab;
use quoth_kernels::half::f32_to_f16;
use quoth_kernels::{Format, KernelSet};

/// Numbers of SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in [0, 1).
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Bell-shaped, standard deviation 1: the sum of twelve.
    pub(crate) fn bell(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }

    pub(crate) fn tokens(&mut self, n: usize, n_vocab: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(n_vocab) as u32).collect()
    }
}

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

impl Spec {
    /// A small model of a family whose matrices have one format.
    pub(crate) fn of(arch: &'static str, format: Format) -> Spec {
        let wide = format.layout().len == 256;
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
            logit_std: 3.0,
            embed_std: 1.0,
            seed: 1,
            poisoned: Vec::new(),
        }
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
        self.kv(&key("feed_forward_length"), s.n_ff as u32);
        self.kv(&key("attention.head_count"), s.n_head as u32);
        self.kv(&key("attention.head_count_kv"), s.n_head_kv as u32);
        self.kv(&key("attention.key_length"), s.head_dim as u32);
        self.kv(&key("attention.value_length"), s.head_dim as u32);
        self.kv(&key("attention.layer_norm_rms_epsilon"), 1e-5f32);
        self.kv(&key("rope.dimension_count"), s.rope_dims as u32);
        self.kv(&key("rope.freq_base"), 10_000f32);
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

    fn weights(&mut self) {
        let s = self.spec.clone();
        let (n_q, n_kv) = (s.n_head * s.head_dim, s.n_head_kv * s.head_dim);
        let outer = if s.poisoned.is_empty() { s.outer } else { Format::F32 };
        // A tied output makes the logits; its rows are then made as large as logits want them.
        let embedding = if s.tied { s.logit_std } else { s.embed_std };
        self.matrix("token_embd.weight", outer, s.n_embd, s.n_vocab, embedding);
        if !s.tied {
            self.matrix("output.weight", s.outer, s.n_embd, s.n_vocab, s.logit_std);
        }
        self.vector("output_norm.weight", s.n_embd, 1.0, 0.1);
        if s.scaling == Scaling::Factors {
            self.vector("rope_freqs.weight", s.rope_dims / 2, 4.0, 0.9);
        }
        for layer in 0..s.n_layer {
            let name = |role: &str| format!("blk.{layer}.{role}");
            self.vector(&name("attn_norm.weight"), s.n_embd, 1.0, 0.1);
            self.vector(&name("ffn_norm.weight"), s.n_embd, 1.0, 0.1);
            if s.arch == "qwen3" {
                self.vector(&name("attn_q_norm.weight"), s.head_dim, 1.5, 0.2);
                self.vector(&name("attn_k_norm.weight"), s.head_dim, 1.5, 0.2);
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
            self.matrix(&name("attn_k.weight"), s.format, s.n_embd, n_kv, 1.5);
            self.matrix(&name("attn_v.weight"), s.format, s.n_embd, n_kv, 1.0);
            self.matrix(&name("attn_output.weight"), s.format, n_q, s.n_embd, 1.0);
            self.matrix(&name("ffn_gate.weight"), s.format, s.n_embd, s.n_ff, 1.0);
            self.matrix(&name("ffn_up.weight"), s.format, s.n_embd, s.n_ff, 1.0);
            self.matrix(&name("ffn_down.weight"), s.format, s.n_ff, s.n_embd, 1.0);
        }
    }

    fn dice(&self, name: &str) -> Dice {
        let hash = name.bytes().fold(self.spec.seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Dice(hash)
    }

    fn vector(&mut self, name: &str, n: usize, mean: f64, std: f64) {
        let mut dice = self.dice(name);
        let values: Vec<f32> = (0..n).map(|_| (mean + std * dice.bell().clamp(-3.0, 3.0)) as f32).collect();
        let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.builder = std::mem::take(&mut self.builder).tensor(name, &[n as u64], GgmlType::F32, &raw);
        self.tensors.push((name.to_owned(), values));
    }

    fn matrix(&mut self, name: &str, format: Format, k: usize, n: usize, std: f64) {
        let mut raw = random_blocks(format, n * k, std / (k as f64).sqrt(), &mut self.dice(name));
        if name == "token_embd.weight" {
            for token in &self.spec.poisoned {
                let at = (*token as usize * k + 1) * 4;
                raw[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
            }
        }
        let mut values = vec![0.0; n * k];
        format.dequantize(&raw, &mut values);
        let ty = ggml_type(format);
        self.builder = std::mem::take(&mut self.builder).tensor(name, &[k as u64, n as u64], ty, &raw);
        self.tensors.push((name.to_owned(), values));
    }
}

/// The tensor type of a format.
pub(crate) fn ggml_type(format: Format) -> GgmlType {
    (0..64).find(|id| Format::from_ggml_id(*id) == Some(format)).and_then(GgmlType::from_id).unwrap()
}

/// Offsets of a block's scale and of what else is a half: whether that is added (`m`) or multiplied (`dmin`), both are minimums.
fn halves(format: Format) -> (usize, Option<usize>) {
    match format {
        Format::Q8_0 | Format::Q4_0 | Format::Q5_0 | Format::IQ4_NL | Format::IQ4_XS => (0, None),
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => (0, Some(2)),
        Format::Q2_K => (80, Some(82)),
        Format::Q3_K => (108, None),
        Format::Q6_K => (208, None),
        Format::F32 | Format::F16 | Format::BF16 => unreachable!("floats have no scale"),
    }
}

/// `n` weights of a standard deviation in a format: random codes, scales to fit.
pub(crate) fn random_blocks(format: Format, n: usize, std: f64, dice: &mut Dice) -> Vec<u8> {
    let layout = format.layout();
    let mut raw = Vec::with_capacity(n / layout.len * layout.bytes);
    for _ in 0..n / layout.len {
        let value = (std * dice.bell()) as f32;
        match format {
            Format::F32 => raw.extend(value.to_le_bytes()),
            Format::F16 => raw.extend(f32_to_f16(value).to_le_bytes()),
            Format::BF16 => raw.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
            _ => raw.extend(random_block(format, std, dice)),
        }
    }
    raw
}

fn random_block(format: Format, std: f64, dice: &mut Dice) -> Vec<u8> {
    let layout = format.layout();
    let (scale, min) = halves(format);
    let mut block: Vec<u8> = (0..layout.bytes).map(|_| dice.next() as u8).collect();
    if format == Format::Q8_0 {
        // Writers never make -128.
        block[2..].iter_mut().filter(|c| **c == 0x80).for_each(|c| *c = 0);
    }
    let expanded = |block: &mut Vec<u8>, d: f32, m: f32| {
        block[scale..scale + 2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
        if let Some(min) = min {
            block[min..min + 2].copy_from_slice(&f32_to_f16(m).to_le_bytes());
        }
        let mut values = vec![0.0; layout.len];
        format.dequantize(block, &mut values);
        values
    };
    let mean = |values: &[f32]| values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
    let codes = expanded(&mut block, 1.0, 0.0);
    let low = mean(&expanded(&mut block, 0.0, 1.0));
    let m = if min.is_some() && low != 0.0 { -mean(&codes) / low } else { 0.0 };
    let centred = expanded(&mut block, 1.0, m as f32);
    let spread = (centred.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / layout.len as f64).sqrt();
    // Either sign, so that code ranges which lean to one side do not add up over blocks.
    let sign = if min.is_none() && dice.below(2) == 0 { -1.0 } else { 1.0 };
    let d = sign * std / spread * (0.75 + 0.5 * dice.share());
    expanded(&mut block, d as f32, (m * d) as f32);
    block
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
