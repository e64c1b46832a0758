//! Drafters with hidden rows: one that plays a role and checks what it is told, and EAGLE-3 heads of random weights.

use std::sync::{Arc, Mutex};

use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::GgufBuilder;
use quoth_engine::model::Model;
use quoth_engine::proposer::{Description, Drafter, Guess, Hidden, Kept, Proposer, Trace, attach, hidden_rows};
use quoth_engine::{Error, Result};
use quoth_kernels::Format;
use quoth_kernels::attend::KvKind;

use crate::blocks::{ggml_type, random_blocks};
use crate::models::{Dice, Spec};

/// How a drafter guesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Knows the plain stream.
    Perfect,
    /// Right but for a place that wanders through the draft.
    HalfWrong,
    Garbage,
    /// Ids outside the vocabulary.
    Impossible,
    /// Right until it is asked for the n-th time: it gives two guesses and fails.
    FailsToGuess(usize),
    /// Right until it is told of positions for the n-th time.
    FailsToLearn(usize),
}

pub(crate) const PARTS: [Part; 6] =
    [Part::Perfect, Part::HalfWrong, Part::Garbage, Part::Impossible, Part::FailsToGuess(3), Part::FailsToLearn(4)];

/// What sequences told their proposers.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) settles: usize,
    pub(crate) asked: usize,
    /// Calls after a failure.
    pub(crate) calls_after: usize,
    /// What was not as agreed.
    pub(crate) faults: Vec<String>,
}

/// A drafter that plays a part for a target.
#[derive(Debug)]
pub(crate) struct Player {
    description: Description,
    part: Part,
    streams: Vec<Vec<u32>>,
    target: Arc<Model>,
    kind: KvKind,
    pub(crate) book: Mutex<Book>,
}

impl Player {
    pub(crate) fn new(part: Part, streams: &[Vec<u32>], target: &Arc<Model>, kind: KvKind) -> Arc<Player> {
        let taps = vec![1, 0, target.config().n_layer()];
        let description = Description {
            kind: "player",
            n_layer: 0,
            n_draft: target.config().n_vocab,
            taps,
            weight_bytes: 0,
            lent_embedding: false,
            lent_output: false,
            load_ns: 0,
        };
        let (streams, target, book) = (streams.to_vec(), target.clone(), Mutex::default());
        Arc::new(Player { description, part, streams, target, kind, book })
    }
}

impl Drafter for Player {
    fn description(&self) -> &Description {
        &self.description
    }

    fn taps(&self) -> &[usize] {
        &self.description.taps
    }

    fn assumed_cost(&self) -> f64 {
        if self.part == Part::Garbage { 0.1 } else { 0.0 }
    }

    fn proposer(self: Arc<Self>, _kind: KvKind) -> Result<Box<dyn Proposer>> {
        Ok(Box::new(Performance { player: self, held: Vec::new(), failed: false }))
    }

    fn trace(self: Arc<Self>, _: KvKind, _: &[u32], _: Hidden<'_>, _: usize) -> Result<Trace> {
        Err(Error::Internal("a player has no rows".into()))
    }
}

/// What a sequence keeps of it: positions and the tokens after them.
#[derive(Clone)]
struct Performance {
    player: Arc<Player>,
    held: Vec<(usize, u32)>,
    failed: bool,
}

impl Performance {
    fn fault(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.player.book.lock().unwrap().faults.push(what());
        }
    }

    fn fails(&mut self, calls: usize, n: usize) -> Result<()> {
        self.failed |= calls >= n;
        if self.failed { Err(Error::Internal("a drafter that fails on purpose".into())) } else { Ok(()) }
    }
}

impl Proposer for Performance {
    fn settle(&mut self, kept: Kept<'_>) -> Result<()> {
        let Player { description, target, kind, part, book, .. } = &*self.player.clone();
        let calls = {
            let mut book = book.lock().unwrap();
            book.settles += 1;
            book.calls_after += usize::from(self.failed);
            book.settles
        };
        let Kept { history, first, n, hidden } = kept;
        self.fault(n > 0 && first + n < history.len(), || format!("{first} + {n} of {} kept", history.len()));
        let follows = self.held.last().is_none_or(|(pos, _)| *pos < first);
        self.fault(follows, || format!("position {first} after {:?}", self.held.last()));
        // The rows are those that a fresh forward of the same tokens has, bit for bit.
        let truth = hidden_rows(target, *kind, &description.taps, &history[..first + n]).unwrap();
        let truth = Hidden { values: &truth, stride: first + n, n_embd: hidden.n_embd };
        let bits = |rows: Hidden<'_>, i: usize| -> Vec<u32> { rows.row(i).flatten().map(|v| v.to_bits()).collect() };
        for i in 0..n {
            let (found, expected) = (bits(hidden, i), bits(truth, first + i));
            self.fault(found == expected, || format!("hidden rows of position {} of {}", first + i, history.len()));
            self.held.push((first + i, history[first + i + 1]));
        }
        if let Part::FailsToLearn(n) = part { self.fails(calls, *n) } else { Ok(()) }
    }

    fn is_ready(&self, history: &[u32]) -> bool {
        self.held.last().is_some_and(|(pos, _)| pos + 2 == history.len())
    }

    fn propose(&mut self, history: &[u32], _most: usize, take: &mut dyn FnMut(Guess) -> bool) -> Result<()> {
        let player = self.player.clone();
        let calls = {
            let mut book = player.book.lock().unwrap();
            book.asked += 1;
            book.calls_after += usize::from(self.failed);
            book.asked
        };
        self.fault(self.is_ready(history), || format!("asked after {} tokens, not ready", history.len()));
        let stale = self.held.iter().find(|(pos, next)| history.get(pos + 1) != Some(next)).copied();
        self.fault(stale.is_none(), || format!("still holds {stale:?} of {} tokens", history.len()));
        let n_vocab = player.description.n_draft as u32;
        let known = player.streams.iter().find(|s| s.starts_with(history)).map_or(&[][..], |s| &s[history.len()..]);
        let mut dice = Dice(history.len() as u64);
        for (i, right) in known.iter().copied().chain(std::iter::repeat(5)).take(20).enumerate() {
            let token = match player.part {
                Part::Perfect | Part::FailsToLearn(_) | Part::FailsToGuess(_) => right,
                Part::HalfWrong if i == calls % 4 => (right + 1) % n_vocab,
                Part::HalfWrong => right,
                Part::Garbage => dice.below(n_vocab as usize) as u32,
                Part::Impossible => n_vocab + i as u32,
            };
            if let Part::FailsToGuess(n) = player.part
                && i == 2
            {
                self.fails(calls, n)?;
            }
            if !take(Guess { token, level: i % 8 }) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn rewind(&mut self, n: usize) {
        self.held.retain(|(pos, _)| *pos < n);
    }

    fn fork(&self) -> Result<Box<dyn Proposer>> {
        Ok(Box::new(self.clone()))
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

/// A drafter whose guesses are taken to cost nothing, so that it drafts whatever it is.
#[derive(Debug)]
pub(crate) struct Free(pub(crate) Arc<dyn Drafter>);

impl Drafter for Free {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn taps(&self) -> &[usize] {
        self.0.taps()
    }

    fn assumed_cost(&self) -> f64 {
        0.0
    }

    fn proposer(self: Arc<Self>, kind: KvKind) -> Result<Box<dyn Proposer>> {
        self.0.clone().proposer(kind)
    }

    fn trace(self: Arc<Self>, kind: KvKind, tokens: &[u32], hidden: Hidden<'_>, chain: usize) -> Result<Trace> {
        self.0.clone().trace(kind, tokens, hidden, chain)
    }
}

/// An EAGLE-3 head of random weights for a model.
pub(crate) struct HeadSpec {
    pub(crate) format: Format,
    pub(crate) taps: Vec<u32>,
    /// Tokens that it drafts; all of them: it uses the target's output.
    pub(crate) n_draft: usize,
    pub(crate) normed: bool,
    pub(crate) seed: u64,
}

impl HeadSpec {
    pub(crate) fn of(spec: &Spec) -> HeadSpec {
        let taps = vec![0, 1, spec.n_layer as u32];
        HeadSpec { format: spec.format, taps, n_draft: 61, normed: false, seed: 1 }
    }

    /// As a file for a target.
    pub(crate) fn file(&self, target: &Spec) -> GgufFile {
        GgufFile::from_bytes("head.gguf", self.builder(target).build()).unwrap()
    }

    pub(crate) fn builder(&self, target: &Spec) -> GgufBuilder {
        let (n, ff, dim, n_head, n_kv) = (target.n_embd, 2 * target.n_embd, 32, 4, 2);
        let mut dice = Dice(self.seed);
        let mut builder = GgufBuilder::new()
            .kv("general.architecture", "eagle3")
            .kv("eagle3.block_count", 1u32)
            .kv("eagle3.context_length", 4096u32)
            .kv("eagle3.embedding_length", n as u32)
            .kv("eagle3.feed_forward_length", ff as u32)
            .kv("eagle3.attention.head_count", n_head as u32)
            .kv("eagle3.attention.head_count_kv", n_kv as u32)
            .kv("eagle3.attention.key_length", dim as u32)
            .kv("eagle3.attention.value_length", dim as u32)
            .kv("eagle3.attention.layer_norm_rms_epsilon", 1e-5f32)
            .kv("eagle3.rope.freq_base", 10_000f32)
            .kv("eagle3.target_hidden_size", n as u32)
            .kv("eagle3.norm_before_residual", self.normed)
            .kv("eagle3.norm_before_fc", false)
            .kv("eagle3.vocab_size", target.n_vocab as u32)
            .kv("eagle3.target_layers", self.taps.clone());
        let mut matrix = |builder: GgufBuilder, name: &str, k: usize, n: usize| {
            let raw = random_blocks(self.format, n * k, 1.0 / (k as f64).sqrt(), &mut dice);
            builder.tensor(name, &[k as u64, n as u64], ggml_type(self.format), &raw)
        };
        builder = matrix(builder, "fc.weight", self.taps.len() * n, n);
        for (role, k, n) in [
            ("attn_q", 2 * n, n_head * dim),
            ("attn_k", 2 * n, n_kv * dim),
            ("attn_v", 2 * n, n_kv * dim),
            ("attn_output", n_head * dim, n),
            ("ffn_gate", n, ff),
            ("ffn_up", n, ff),
            ("ffn_down", ff, n),
        ] {
            builder = matrix(builder, &format!("blk.0.{role}.weight"), k, n);
        }
        if self.n_draft < target.n_vocab {
            builder = matrix(builder, "output.weight", n, self.n_draft);
            let ids = (0..self.n_draft).map(|i| (i * target.n_vocab / self.n_draft) as i64);
            let raw: Vec<u8> = ids.flat_map(i64::to_le_bytes).collect();
            let ty = quoth_engine::gguf::GgmlType::from_id(27).unwrap();
            builder = builder.tensor("d2t", &[self.n_draft as u64], ty, &raw);
        }
        for name in ["output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"] {
            let raw: Vec<u8> = (0..n).flat_map(|i| (0.8f32 + (i % 5) as f32 / 10.0).to_le_bytes()).collect();
            builder = builder.tensor(&format!("{name}.weight"), &[n as u64], ggml_type(Format::F32), &raw);
        }
        builder
    }

    pub(crate) fn attach(&self, target: &Spec, model: &Arc<Model>) -> Arc<dyn Drafter> {
        Arc::new(Free(attach(&self.file(target), model, &mut |_, _| true).unwrap()))
    }
}

/// A block drafter of random weights for a model, two layers and blocks of `block`, as a file.
pub(crate) fn block_drafter(target: &Spec, block: u32) -> GgufFile {
    let (n, ff, dim, n_head, n_kv, format) = (target.n_embd, 2 * target.n_embd, 32, 4, 2, target.format);
    let mut dice = Dice(u64::from(block));
    let mut builder = GgufBuilder::new()
        .kv("general.architecture", "dflash")
        .kv("dflash.block_count", 2u32)
        .kv("dflash.context_length", 4096u32)
        .kv("dflash.embedding_length", n as u32)
        .kv("dflash.feed_forward_length", ff as u32)
        .kv("dflash.attention.head_count", n_head as u32)
        .kv("dflash.attention.head_count_kv", n_kv as u32)
        .kv("dflash.attention.key_length", dim as u32)
        .kv("dflash.attention.value_length", dim as u32)
        .kv("dflash.attention.layer_norm_rms_epsilon", 1e-5f32)
        .kv("dflash.rope.freq_base", 10_000f32)
        .kv("dflash.block_size", block)
        .kv("dflash.target_layers", vec![0u32, 2])
        .kv("tokenizer.ggml.mask_token_id", 5u32);
    let mut matrix = |builder: GgufBuilder, name: &str, k: usize, n: usize| {
        let raw = random_blocks(format, n * k, 1.0 / (k as f64).sqrt(), &mut dice);
        builder.tensor(name, &[k as u64, n as u64], ggml_type(format), &raw)
    };
    builder = matrix(builder, "fc.weight", 2 * n, n);
    for layer in 0..2 {
        for (role, k, n) in [
            ("attn_q", n, n_head * dim),
            ("attn_k", n, n_kv * dim),
            ("attn_v", n, n_kv * dim),
            ("attn_output", n_head * dim, n),
            ("ffn_gate", n, ff),
            ("ffn_up", n, ff),
            ("ffn_down", ff, n),
        ] {
            builder = matrix(builder, &format!("blk.{layer}.{role}.weight"), k, n);
        }
    }
    let norm = |builder: GgufBuilder, name: &str, n: usize| {
        let raw: Vec<u8> = (0..n).flat_map(|i| (0.8f32 + (i % 5) as f32 / 10.0).to_le_bytes()).collect();
        builder.tensor(name, &[n as u64], ggml_type(Format::F32), &raw)
    };
    builder = norm(builder, "enc.output_norm.weight", n);
    builder = norm(builder, "output_norm.weight", n);
    for layer in 0..2 {
        builder = norm(builder, &format!("blk.{layer}.attn_norm.weight"), n);
        builder = norm(builder, &format!("blk.{layer}.ffn_norm.weight"), n);
        builder = norm(builder, &format!("blk.{layer}.attn_q_norm.weight"), dim);
        builder = norm(builder, &format!("blk.{layer}.attn_k_norm.weight"), dim);
    }
    GgufFile::from_bytes("block.gguf", builder.build()).unwrap()
}
