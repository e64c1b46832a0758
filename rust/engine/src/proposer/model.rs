//! A smaller model as a drafter: a second GGUF with the same vocabulary, which writes on and is asked what it would say.
//!
//! In: a file of a supported architecture; the history. Out: guesses.
//!
//! - **O1** Its state holds the rows of some tokens. Before each guess it goes back to what these share with the history and forwards the rest, so its cache is
//!   always that of the history and its own guesses, whatever happened in between; guesses that were right need no second forward.
//! - **O2** It reads no hidden rows, so it has no gaps: what it missed while it slept, it forwards when it wakes.
//!
//! Cost: one forward of the small model a guess. Source: speculative sampling (Leviathan et al., 2023); here guesses are its greatest logits, and verification
//! samples as plain decoding does.

use std::sync::{Arc, Mutex, PoisonError};

use quoth_kernels::attend::KvKind;
use quoth_kernels::top::Best;

use super::registry::Progress;
use super::{Description, Drafter, Guess, Hidden, Kept, Proposer, Trace};
use crate::error::{Error, Result};
use crate::gguf::GgufFile;
use crate::model::keys::file_name;
use crate::model::{LoadOptions, MAX_ROWS, Model, Output, Scratch, Span, Taps, Want};
use crate::state::State;

pub(super) const KIND: &str = "model";

/// More tokens than this are forwarded as soon as they are committed.
const MANY: usize = 32;

/// A model that drafts.
#[derive(Debug)]
struct Small {
    description: Description,
    model: Arc<Model>,
    assumed_cost: f64,
    /// Memory of forwards: sequences take turns.
    scratch: Mutex<Scratch>,
}

/// Loads a model that drafts for `target`.
pub(super) fn load(file: &GgufFile, target: &Arc<Model>, progress: Progress<'_>) -> Result<Arc<dyn Drafter>> {
    let options = LoadOptions { n_ctx: target.n_ctx(), threads: target.threads(), kernels: *target.kernels() };
    let (own, other) = (Model::tokens_of(file)?, target.tokens());
    if own != other {
        let (what, file) = ("a vocabulary of", file_name(file));
        let same = own.count == other.count;
        let found = if same { format!("{} other tokens", own.count) } else { own.count.to_string() };
        return Err(Error::DrafterOfAnother { file, what, found, expected: other.count.to_string() });
    }
    let model = Model::load(file, &options, progress)?;
    let description = Description {
        kind: KIND,
        n_layer: model.config().n_layer(),
        n_draft: model.config().n_vocab,
        taps: Vec::new(),
        weight_bytes: model.weight_bytes(),
        lent_embedding: false,
        lent_output: false,
        load_ns: model.load_ns(),
    };
    let assumed_cost = super::assumed_cost(&model, target);
    Ok(Arc::new(Small { description, model, assumed_cost, scratch: Mutex::default() }))
}

impl Drafter for Small {
    fn description(&self) -> &Description {
        &self.description
    }

    fn taps(&self) -> &[usize] {
        &[]
    }

    fn assumed_cost(&self) -> f64 {
        self.assumed_cost
    }

    fn proposer(self: Arc<Self>, kind: KvKind) -> Result<Box<dyn Proposer>> {
        let state = State::new(&self.model, kind)?;
        Ok(Box::new(Writer { small: self, state, held: Vec::new(), best: Best::new(2) }))
    }

    fn trace(self: Arc<Self>, _: KvKind, _: &[u32], _: Hidden<'_>, _: usize) -> Result<Trace> {
        Err(Error::Internal("a model's rows are those of a session".into()))
    }
}

/// What a sequence keeps of it.
struct Writer {
    small: Arc<Small>,
    state: State,
    /// The tokens whose rows the state holds.
    held: Vec<u32>,
    /// The greatest logits of the last row.
    best: Best,
}

impl Writer {
    /// Tokens that it holds and a text begins with.
    fn shared(&self, text: &[u32]) -> usize {
        self.held.iter().zip(text).take_while(|(a, b)| a == b).count()
    }

    /// Brings the state to hold `text` (O1). With `guess`, the greatest logits of its last row, which is then forwarded in any case.
    fn follow(&mut self, text: &[u32], guess: bool) -> Result<()> {
        let small = self.small.clone();
        let mut scratch = small.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if guess { text.len().saturating_sub(1) } else { text.len() };
        let kept = self.state.nearest(self.shared(text).min(most));
        self.state.truncate(kept)?;
        self.held.truncate(kept);
        for part in text[kept..].chunks(MAX_ROWS) {
            let wanted = guess && self.held.len() + part.len() == text.len();
            self.best.reset(2);
            let best = if wanted { std::slice::from_mut(&mut self.best) } else { &mut [] };
            let rows = if wanted { Want::Last } else { Want::None };
            let span =
                Span { state: &mut self.state, tokens: part, rows, output: Output::Best(best), taps: Taps::none() };
            small.model.forward(&mut [span], &mut scratch)?;
            self.held.extend_from_slice(part);
        }
        Ok(())
    }
}

impl Proposer for Writer {
    fn settle(&mut self, kept: Kept<'_>) -> Result<()> {
        let text = &kept.history[..kept.first + kept.n];
        if text.len() > self.shared(text) + MANY { self.follow(text, false) } else { Ok(()) }
    }

    fn is_ready(&self, history: &[u32]) -> bool {
        history.len() <= self.shared(history) + MANY + 1
    }

    fn propose(&mut self, history: &[u32], _most: usize, take: &mut dyn FnMut(Guess) -> bool) -> Result<()> {
        let mut text = history.to_vec();
        loop {
            self.follow(&text, true)?;
            let guess = super::guess(&self.best, None)?;
            if !take(guess) || text.len() >= self.state.n_ctx() {
                return Ok(());
            }
            text.push(guess.token);
        }
    }

    fn rewind(&mut self, _n: usize) {
        // O1: the next guess begins with what the history still has.
    }

    fn fork(&self) -> Result<Box<dyn Proposer>> {
        let state = self.state.fork(self.state.len())?;
        let (small, held) = (self.small.clone(), self.held.clone());
        Ok(Box::new(Writer { small, state, held, best: self.best.clone() }))
    }

    fn memory_bytes(&self) -> usize {
        self.state.memory_bytes() + self.held.len() * 4
    }
}
