//! DFlash block drafters: a few layers that guess a whole block of tokens in one pass.
//!
//! In: a file of architecture `dflash`; kept positions with their hidden rows. Out: guesses.
//!
//! ```text
//! hidden rows of position P, side by side ── fc ── norm ──> g[P] ── key, value of each layer ──> cache (rotated by P)
//! last token, mask, mask, ... ── embedding ──> layers, each row sees the cache and the whole block ── norm, output ──> row j: the token j after the last
//! ```
//!
//! - **K1** The block's own keys and values are dropped after the pass; committed tokens enter the cache by their hidden rows.
//! - **K2** Rows of the block see one another, later ones too. Row 0, the last token's own, guesses nothing.
//!
//! Cost: one pass of the block, whatever part of it is used; one product for each row that was committed.
//! Source: DFlash (block diffusion for drafting). Layout of files: llama.cpp's converter. Windows, convolutions, selectors and Markov heads of later drafters
//! of that architecture are refused by name.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quoth_kernels::attend::KvKind;
use quoth_kernels::top::Best;

use super::registry::Progress;
use super::rows::{MANY, Rows};
use super::{Description, Drafter, Guess, Hidden, Kept, Outer, Proposer, Trace, of_another};
use crate::error::{Error, Result};
use crate::gguf::GgufFile;
use crate::model::Model;
use crate::model::config::Config;
use crate::model::family::DFLASH;
use crate::model::forward::{Output, Row, Scratch, at_least};
use crate::model::keys::{Asked, Keys, file_name};
use crate::model::load::{Matrix, Plan};
use crate::model::rows::Own;
use crate::model::weights::{Layer, Weights};
use crate::state::State;

pub(super) const KIND: &str = "dflash";

/// Most rows of one pass.
const PASS: usize = 128;

/// Longest block. Blocks in use have up to 16 rows.
const MAX_BLOCK: usize = 64;

/// A block drafter, attached.
struct Dflash {
    description: Description,
    layers: Model,
    /// From hidden rows, side by side, to what keys and values are made of.
    fc: Matrix,
    fc_norm: Vec<f32>,
    block: usize,
    mask: u32,
    assumed_cost: f64,
    scratch: Mutex<Scratch>,
}

impl std::fmt::Debug for Dflash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dflash({:?})", self.description)
    }
}

/// Loads a block drafter for `target`.
pub(super) fn load(file: &GgufFile, target: &Arc<Model>, progress: Progress<'_>) -> Result<Arc<dyn Drafter>> {
    let start = Instant::now();
    let asked = Asked::default();
    let keys = Keys { file, arch: KIND, asked: &asked };
    let (n_vocab, n_embd) = (target.config().n_vocab, target.config().n_embd);
    super::check_vocabulary(keys, target)?;
    let taps = super::checked_taps(keys, target)?;
    let block = keys.bounded("block_size", keys.need_uint("block_size")?, MAX_BLOCK)?;
    if block < 2 {
        return Err(keys.unsupported("block_size", block, format!("2 to {MAX_BLOCK}")));
    }
    const MASK: &str = "tokenizer.ggml.mask_token_id";
    let mask = file.metadata().need_u32(MASK)?;
    if mask as usize >= n_vocab {
        let (key, expected) = (MASK.into(), format!("0 to {}", n_vocab - 1));
        return Err(Error::UnsupportedValue { file: file_name(file), key, found: mask.to_string(), expected });
    }
    if keys.flag("attention.causal")? {
        return Err(keys.unsupported("attention.causal", "true", "false"));
    }
    let config = Config::of(keys, &DFLASH, n_vocab)?;
    if config.n_embd != n_embd {
        return Err(of_another(keys, "a hidden size of", config.n_embd, n_embd));
    }
    let mut plan = Plan::new(file, KIND);
    let fc = plan.matrix("fc.weight", taps.len() * n_embd, n_embd)?;
    let fc_norm = plan.vector("enc.output_norm.weight", n_embd)?;
    let layers = config.layers.iter().enumerate();
    let layers = layers.map(|(i, layer)| Layer::plan(&mut plan, &config, layer, &DFLASH, &format!("blk.{i}")));
    let layers = layers.collect::<Result<_>>()?;
    let output_norm = plan.vector("output_norm.weight", n_embd)?;
    let Outer { embedding, output } = super::outer(&mut plan, target, n_vocab)?;
    let weights = Weights { embedding, per_layer: None, layers, output_norm, output, rope_factors: None };
    let mut config = config;
    if embedding.is_lent() {
        config.embed_scale = target.config().embed_scale;
    }
    if output.is_lent() {
        config.soft_cap = target.config().soft_cap;
    }
    let layers = Model::attached(target, (config, weights, plan), start, progress)?;
    let description = Description {
        kind: KIND,
        n_layer: layers.config().n_layer(),
        n_draft: n_vocab,
        taps,
        weight_bytes: layers.weight_bytes(),
        lent_embedding: embedding.is_lent(),
        lent_output: output.is_lent(),
        load_ns: layers.load_ns(),
    };
    let assumed_cost = super::assumed_cost(&layers, target);
    Ok(Arc::new(Dflash { description, layers, fc, fc_norm, block, mask, assumed_cost, scratch: Mutex::default() }))
}

impl Drafter for Dflash {
    fn description(&self) -> &Description {
        &self.description
    }

    fn taps(&self) -> &[usize] {
        &self.description.taps
    }

    fn assumed_cost(&self) -> f64 {
        self.assumed_cost
    }

    fn proposer(self: Arc<Self>, kind: KvKind) -> Result<Box<dyn Proposer>> {
        Ok(Box::new(Blocks::new(self, kind)?))
    }

    fn trace(self: Arc<Self>, kind: KvKind, tokens: &[u32], hidden: Hidden<'_>, chain: usize) -> Result<Trace> {
        let rows = tokens.len().saturating_sub(1);
        if rows == 0 || rows > PASS {
            let expected = format!("2 to {}", PASS + 1);
            return Err(Error::Option { what: "tokens of a trace", found: tokens.len().to_string(), expected });
        }
        let mut blocks = Blocks::new(self.clone(), kind)?;
        blocks.rows.settle(Kept { history: tokens, first: 0, n: rows, hidden });
        let mut scratch = Blocks::scratch(&self);
        blocks.remember(rows, &mut scratch)?;
        blocks.pass(tokens[rows], rows, self.block, &mut scratch)?;
        let mut trace =
            Trace { states: scratch.x[..self.block * self.layers.config().n_embd].to_vec(), ..Trace::default() };
        trace.logits.resize(self.block * self.description.n_draft, 0.0);
        let all: Vec<usize> = (0..self.block).collect();
        self.layers.head(&all, &mut [&mut Output::Logits(&mut trace.logits)], &mut scratch);
        for guess in blocks.guesses(chain.min(self.block - 1), &mut scratch)? {
            trace.guesses.push(guess.token);
        }
        Ok(trace)
    }
}

/// What a sequence keeps of it.
struct Blocks {
    drafter: Arc<Dflash>,
    state: State,
    rows: Rows,
    best: Vec<Best>,
}

impl Blocks {
    fn new(drafter: Arc<Dflash>, kind: KvKind) -> Result<Blocks> {
        let state = State::new(&drafter.layers, kind)?;
        Ok(Blocks { drafter, state, rows: Rows::default(), best: Vec::new() })
    }

    /// The drafter's memory of passes.
    fn scratch(drafter: &Dflash) -> MutexGuard<'_, Scratch> {
        drafter.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys and values of the first `n` waiting rows go to the cache.
    fn remember(&mut self, n: usize, scratch: &mut Scratch) -> Result<()> {
        let Dflash { layers, fc, fc_norm, .. } = &*self.drafter;
        let n_embd = layers.config().n_embd;
        let mut left = n;
        while left > 0 {
            let m = left.min(PASS);
            left -= m;
            let first = self.state.len();
            self.state.reserve(m)?;
            scratch.own.resize_with(layers.threads(), Own::default);
            let rows = &self.rows;
            layers.enter(fc, m, &|r, out| out.copy_from_slice(rows.hidden(r)), scratch);
            let mut normed = vec![0.0; n_embd];
            for row in scratch.x[..m * n_embd].chunks_exact_mut(n_embd) {
                layers.set().rms_norm(row, Some(fc_norm), layers.config().eps, &mut normed);
                row.copy_from_slice(&normed);
            }
            let row = |(i, pos): (usize, &u32)| Row { angle: *pos as usize, ..Row::causal(0, first + i) };
            let rows: Vec<Row> = self.rows.positions(m).iter().enumerate().map(row).collect();
            layers.remember(&rows, &[self.state.lend()], scratch);
            self.state.advance(m);
            self.rows.cached(m);
        }
        Ok(())
    }

    /// Runs the block that begins with `token` at position `pos`; its stream is then in the scratch.
    fn pass(&mut self, token: u32, pos: usize, block: usize, scratch: &mut Scratch) -> Result<()> {
        let Dflash { layers, mask, .. } = &*self.drafter;
        let first = self.state.len();
        self.state.reserve(block)?;
        scratch.own.resize_with(layers.threads(), Own::default);
        let mut tokens = vec![*mask; block];
        tokens[0] = token;
        at_least(&mut scratch.x, block * layers.config().n_embd);
        layers.embed(&tokens, &mut scratch.x);
        // K2; and K1: the state is not advanced.
        let row = |i: usize| Row { span: 0, pos: first + i, angle: pos + i, end: first + block };
        let rows: Vec<Row> = (0..block).map(row).collect();
        layers.layers(&rows, &[self.state.lend()], scratch, |_, _| {});
        Ok(())
    }

    /// What rows 1 .. of the block guess.
    fn guesses(&mut self, n: usize, scratch: &mut Scratch) -> Result<Vec<Guess>> {
        let wanted: Vec<usize> = (1..=n).collect();
        self.best.resize_with(n, || Best::new(2));
        self.best.iter_mut().for_each(|best| best.reset(2));
        self.drafter.layers.head(&wanted, &mut [&mut Output::Best(&mut self.best)], scratch);
        self.best.iter().map(|best| super::guess(best, None)).collect()
    }
}

impl Proposer for Blocks {
    fn settle(&mut self, kept: Kept<'_>) -> Result<()> {
        self.rewind(kept.first);
        self.rows.settle(kept);
        let n = self.rows.waiting();
        if n > MANY {
            let drafter = self.drafter.clone();
            self.remember(n - 1, &mut Self::scratch(&drafter))?;
        }
        Ok(())
    }

    fn is_ready(&self, history: &[u32]) -> bool {
        self.rows.is_ready(history)
    }

    fn propose(&mut self, history: &[u32], most: usize, take: &mut dyn FnMut(Guess) -> bool) -> Result<()> {
        if !self.rows.is_ready(history) {
            return Ok(());
        }
        let drafter = self.drafter.clone();
        let mut scratch = Self::scratch(&drafter);
        self.remember(self.rows.waiting(), &mut scratch)?;
        let pos = history.len() - 1;
        // Near the end of the context the block is shorter than those that the drafter was trained on.
        let block = drafter.block.min(self.state.n_ctx() - pos);
        let n = most.min(block.saturating_sub(1));
        if n == 0 {
            return Ok(());
        }
        self.pass(history[pos], pos, block, &mut scratch)?;
        for guess in self.guesses(n, &mut scratch)? {
            if !take(guess) {
                break;
            }
        }
        Ok(())
    }

    fn rewind(&mut self, n: usize) {
        let kept = self.rows.rewind(n);
        // A drafter without windows can go back to every position.
        let _ = self.state.truncate(kept);
    }

    fn fork(&self) -> Result<Box<dyn Proposer>> {
        let state = self.state.fork(self.state.len())?;
        Ok(Box::new(Blocks { drafter: self.drafter.clone(), state, rows: self.rows.clone(), best: Vec::new() }))
    }

    fn memory_bytes(&self) -> usize {
        self.state.memory_bytes() + self.rows.bytes()
    }
}
