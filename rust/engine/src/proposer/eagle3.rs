//! EAGLE-3 heads: one layer that reads a token and the target's hidden rows, and drafts one token after another.
//!
//! In: a file of architecture `eagle3`; kept positions with their hidden rows. Out: guesses.
//!
//! ```text
//! hidden rows of position P, side by side ── fc ──> g[P] ────────────┬──> + attention ──> + SwiGLU ──> h[P] ── norm, output ──> token at P + 2
//! token at P + 1 ── embedding ── norm ──┐                            │       ^                          │
//!                          g[P] ── norm ┴──> query, key, value ──────┼───────┘                          └──> g[P + 1] of the next guess
//! ```
//!
//! - **V1** Row P is rotated by P and sees the rows before it. A guess adds a row whose state is the h of the row before; these rows are dropped again, and come
//!   anew from the target's hidden rows when their tokens were committed.
//! - **V2** Drafted ids are those of the head's own vocabulary where the file has `d2t`, which names the target's id of each.
//!
//! Cost: one pass of the rows of the step before, with the first guess; one pass of one row for each further guess.
//! Source: EAGLE-3 (Li et al., 2025). Layout of files: llama.cpp's converter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quoth_draft::LEVELS;
use quoth_kernels::attend::KvKind;
use quoth_kernels::top::Best;

use super::registry::Progress;
use super::rows::{MANY, Rows};
use super::{Description, Drafter, Guess, Hidden, Kept, Outer, Proposer, Trace, of_another};
use crate::error::{Error, Result};
use crate::gguf::GgufFile;
use crate::limits;
use crate::model::Model;
use crate::model::config::Config;
use crate::model::family::EAGLE3;
use crate::model::forward::{Output, Row, Scratch};
use crate::model::keys::{Asked, Keys, file_name};
use crate::model::load::{Matrix, Plan};
use crate::model::rows::Own;
use crate::model::weights::{Layer, Weights};
use crate::state::State;

pub(super) const KIND: &str = "eagle3";

/// Most rows of one pass.
const PASS: usize = 128;

/// A head, attached.
struct Eagle3 {
    description: Description,
    /// Its layer, norm and output; its "vocabulary" is what it drafts.
    layers: Model,
    /// From hidden rows, side by side, to a state.
    fc: Matrix,
    /// Norm of states where the file wants the normed state to be what attention is added to.
    state_norm: Option<Vec<f32>>,
    /// The target's id of each drafted one.
    ids: Option<Vec<u32>>,
    assumed_cost: f64,
    /// Memory of passes: sequences take turns, as they do with the threads.
    scratch: Mutex<Scratch>,
}

impl std::fmt::Debug for Eagle3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Eagle3({:?})", self.description)
    }
}

/// Loads a head for `target`.
pub(super) fn load(file: &GgufFile, target: &Arc<Model>, progress: Progress<'_>) -> Result<Arc<dyn Drafter>> {
    let start = Instant::now();
    let asked = Asked::default();
    let keys = Keys { file, arch: KIND, asked: &asked };
    let (n_vocab, n_embd) = (target.config().n_vocab, target.config().n_embd);
    super::check_vocabulary(keys, target)?;
    let taps = super::checked_taps(keys, target)?;
    if keys.flag("norm_before_fc")? {
        return Err(keys.unsupported("norm_before_fc", "true", "false"));
    }
    let normed = keys.flag("norm_before_residual")?;
    let n_draft = match file.tensor("output.weight").map(|tensor| tensor.shape().to_vec()) {
        Some(shape) if shape.len() == 2 && shape[1] <= limits::MAX_VOCAB as u64 => shape[1] as usize,
        Some(found) => {
            let (tensor, expected) = ("output.weight".into(), vec![n_embd as u64, limits::MAX_VOCAB as u64]);
            return Err(Error::TensorShape { file: file_name(file), tensor, found, expected });
        }
        None => n_vocab,
    };
    let config = Config::of(keys, &EAGLE3, n_draft)?;
    if config.n_embd != n_embd {
        return Err(of_another(keys, "a hidden size of", config.n_embd, n_embd));
    }
    if config.n_layer() != 1 {
        return Err(keys.unsupported("block_count", config.n_layer(), "1"));
    }

    let mut plan = Plan::new(file, KIND);
    let fc = plan.matrix("fc.weight", taps.len() * n_embd, n_embd)?;
    let mut layer = Layer::plan(&mut plan, &config, &config.layers[0], &EAGLE3, "blk.0")?;
    let state_norm = if normed { layer.attention.norm.take() } else { None };
    let Outer { embedding, output } = super::outer(&mut plan, target, n_draft)?;
    let ids = match plan.has("d2t") {
        true => Some(draft_ids(file, &plan.integers("d2t", n_draft)?, n_vocab)?),
        false if n_draft != n_vocab => {
            return Err(of_another(keys, "no `d2t` and an output of", n_draft, n_vocab));
        }
        false => None,
    };
    let output_norm = plan.vector("output_norm.weight", n_embd)?;
    let weights = Weights { embedding, per_layer: None, layers: vec![layer], output_norm, output, rope_factors: None };
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
        n_layer: 1,
        n_draft,
        taps,
        weight_bytes: layers.weight_bytes(),
        lent_embedding: embedding.is_lent(),
        lent_output: output.is_lent(),
        load_ns: layers.load_ns(),
    };
    let assumed_cost = super::assumed_cost(&layers, target);
    let scratch = Mutex::default();
    Ok(Arc::new(Eagle3 { description, layers, fc, state_norm, ids, assumed_cost, scratch }))
}

/// The target's id of each drafted one, checked.
fn draft_ids(file: &GgufFile, ids: &[i64], n_vocab: usize) -> Result<Vec<u32>> {
    let check = |(i, id): (usize, &i64)| match u32::try_from(*id) {
        Ok(id) if (id as usize) < n_vocab => Ok(id),
        _ => Err(Error::UnsupportedValue {
            file: file_name(file),
            key: format!("d2t[{i}]"),
            found: id.to_string(),
            expected: format!("0 to {}", n_vocab - 1),
        }),
    };
    ids.iter().enumerate().map(check).collect()
}

impl Drafter for Eagle3 {
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
        Ok(Box::new(Head::new(self, kind)?))
    }

    fn trace(self: Arc<Self>, kind: KvKind, tokens: &[u32], hidden: Hidden<'_>, chain: usize) -> Result<Trace> {
        let (n_embd, rows) = (self.layers.config().n_embd, tokens.len().saturating_sub(1));
        if rows == 0 || rows > PASS {
            let expected = format!("2 to {}", PASS + 1);
            return Err(Error::Option { what: "tokens of a trace", found: tokens.len().to_string(), expected });
        }
        let mut head = Head::new(self.clone(), kind)?;
        head.rows.settle(Kept { history: tokens, first: 0, n: rows, hidden });
        let mut scratch = Head::scratch(&self);
        let mut trace = Trace::default();
        let mut m = head.catch_up(rows, &mut scratch)?;
        for pos in rows..rows + chain.max(1) {
            let mut logits = vec![0.0; m * self.description.n_draft];
            trace.states.extend_from_slice(&scratch.x[..m * n_embd]);
            let all: Vec<usize> = (0..m).collect();
            self.layers.head(&all, &mut [&mut Output::Logits(&mut logits)], &mut scratch);
            trace.logits.append(&mut logits);
            let guess = head.guess(m, &mut scratch)?;
            trace.guesses.push(guess.token);
            scratch.x[..n_embd].copy_from_slice(&head.last);
            head.pass(&[guess.token], &[pos as u32], &mut scratch)?;
            m = 1;
        }
        Ok(trace)
    }
}

/// What a sequence keeps of a head.
struct Head {
    head: Arc<Eagle3>,
    state: State,
    rows: Rows,
    /// The greatest logits of the last row of the last pass that wanted them.
    best: Best,
    /// The state of that row.
    last: Vec<f32>,
}

impl Head {
    fn new(head: Arc<Eagle3>, kind: KvKind) -> Result<Head> {
        let state = State::new(&head.layers, kind)?;
        Ok(Head { head, state, rows: Rows::default(), best: Best::new(2), last: Vec::new() })
    }

    /// Computes the first `n` waiting rows. Gives how many of them the last pass had.
    fn catch_up(&mut self, n: usize, scratch: &mut Scratch) -> Result<usize> {
        let (mut left, mut m) = (n, 0);
        while left > 0 {
            m = left.min(PASS);
            left -= m;
            scratch.own.resize_with(self.head.layers.threads(), Own::default);
            let rows = &self.rows;
            self.head.layers.enter(&self.head.fc, m, &|r, out| out.copy_from_slice(rows.hidden(r)), scratch);
            let (tokens, positions) = (self.rows.tokens(m).to_vec(), self.rows.positions(m).to_vec());
            self.pass(&tokens, &positions, scratch)?;
            self.rows.cached(m);
        }
        Ok(m)
    }

    /// Runs the layer over rows whose states stand in the scratch.
    fn pass(&mut self, tokens: &[u32], positions: &[u32], scratch: &mut Scratch) -> Result<()> {
        let Eagle3 { layers, state_norm, .. } = &*self.head;
        let (n_embd, m, first) = (layers.config().n_embd, tokens.len(), self.state.len());
        self.state.reserve(m)?;
        if let Some(norm) = state_norm {
            let mut normed = vec![0.0; n_embd];
            for row in scratch.x[..m * n_embd].chunks_exact_mut(n_embd) {
                layers.set().rms_norm(row, Some(norm), layers.config().eps, &mut normed);
                row.copy_from_slice(&normed);
            }
        }
        layers.embed(tokens, &mut scratch.embedded);
        let row = |(i, pos): (usize, &u32)| Row { angle: *pos as usize, ..Row::causal(0, first + i) };
        let rows: Vec<Row> = positions.iter().enumerate().map(row).collect();
        layers.layers(&rows, &[self.state.lend()], scratch, |_, _| {});
        self.state.advance(m);
        Ok(())
    }

    /// The guess of the last of `m` rows of a pass.
    fn guess(&mut self, m: usize, scratch: &mut Scratch) -> Result<Guess> {
        let layers = &self.head.layers;
        let n_embd = layers.config().n_embd;
        self.last.clear();
        self.last.extend_from_slice(&scratch.x[(m - 1) * n_embd..m * n_embd]);
        self.best.reset(2);
        let mut output = Output::Best(std::slice::from_mut(&mut self.best));
        layers.head(&[m - 1], &mut [&mut output], scratch);
        super::guess(&self.best, self.head.ids.as_deref())
    }

    /// Guesses after the first, each from a row of its own.
    fn chain(&mut self, mut pos: u32, take: &mut dyn FnMut(Guess) -> bool, scratch: &mut Scratch) -> Result<()> {
        let mut m = self.catch_up(self.rows.waiting(), scratch)?;
        loop {
            let guess = self.guess(m, scratch)?;
            if !take(guess) {
                return Ok(());
            }
            (pos, m) = (pos + 1, 1);
            scratch.x[..self.last.len()].copy_from_slice(&self.last);
            self.pass(&[guess.token], &[pos], scratch)?;
        }
    }

    /// The head's memory of passes.
    fn scratch(head: &Eagle3) -> MutexGuard<'_, Scratch> {
        head.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proposer for Head {
    fn settle(&mut self, kept: Kept<'_>) -> Result<()> {
        self.rewind(kept.first);
        self.rows.settle(kept);
        // The last row waits for the guess that it makes.
        let n = self.rows.waiting();
        if n > MANY {
            let head = self.head.clone();
            self.catch_up(n - 1, &mut Self::scratch(&head))?;
        }
        Ok(())
    }

    fn is_ready(&self, history: &[u32]) -> bool {
        self.rows.is_ready(history)
    }

    fn propose(&mut self, history: &[u32], _most: usize, take: &mut dyn FnMut(Guess) -> bool) -> Result<()> {
        if !self.rows.is_ready(history) {
            return Ok(());
        }
        let (kept, head) = (self.state.len() + self.rows.waiting(), self.head.clone());
        let chained = self.chain(history.len() as u32 - 2, take, &mut Self::scratch(&head));
        // V1: what was guessed is not what was committed.
        self.state.truncate(kept)?;
        chained
    }

    fn rewind(&mut self, n: usize) {
        let kept = self.rows.rewind(n);
        // A head has no windows, so every position can be reached.
        let _ = self.state.truncate(kept);
    }

    fn fork(&self) -> Result<Box<dyn Proposer>> {
        let state = self.state.fork(self.state.len())?;
        let (head, rows) = (self.head.clone(), self.rows.clone());
        Ok(Box::new(Head { head, state, rows, best: self.best.clone(), last: self.last.clone() }))
    }

    fn memory_bytes(&self) -> usize {
        self.state.memory_bytes() + self.rows.bytes()
    }
}

// Levels index what the speculator has learned about them.
const _: () = assert!(super::LEVEL_EDGES.len() + 1 == LEVELS);
