//! Drafters with weights of their own: what they are, which there are, and what a sequence keeps of them.
//!
//! In: a file and the model that it drafts for (the *target*); later the tokens that a sequence commits, and hidden rows of the target. Out: guesses, token by
//! token, to the sequence, which asks [`quoth_draft::Speculator`] after each whether another one pays.
//!
//! Three things that are not one: the target, which verifies; the *algorithm*, code for every model; the *weights*, which belong to one target. A [`Drafter`]
//! is algorithm and weights, attached to a model once and shared by its sequences. A [`Proposer`] is what one sequence keeps of it: a cache of its own.
//!
//! | file | what |
//! | --- | --- |
//! | `registry` | which kinds there are, and which one a file is |
//! | `rows` | the rows that wait for a head, and the positions of those that its cache holds |
//! | `eagle3` | EAGLE-3 heads: one layer that reads token and hidden row, drafting one token after another |
//! | `dflash` | block drafters: a few layers that guess a whole block in one pass |
//! | `model` | a smaller model with the same vocabulary |
//! | `attached` | the proposers of one sequence: which hidden rows a forward copies for them |
//!
//! - **R1** A proposer decides what is guessed, never what is committed (I6). One that fails is not asked again, and the reason is told.
//! - **R2** What a proposer keeps is a function of committed tokens and of the target's hidden rows. Whatever a sequence does (truncate, fork, begin with another
//!   prompt, take over a stored prefix, fail in the midst of a step), `rewind` leaves only rows of tokens that the history still has.
//! - **R3** Rows may be missing: while a drafter's gate is closed no hidden rows are copied for it, and a stored prefix comes without any. The cache holds the
//!   rows that there are, each at its own position of rotation.
//! - **R4** A drafter copies no matrix of its target: embedding and output head that its file lacks are the target's, where they lie.

mod attached;
mod dflash;
mod eagle3;
mod model;
mod registry;
mod rows;

use std::fmt::{Debug, Display};
use std::sync::Arc;

use quoth_kernels::attend::KvKind;
use quoth_kernels::top::Best;

pub(crate) use attached::Attached;
pub use registry::{attach, kinds};

use crate::error::{Error, Result};
use crate::model::keys::{Keys, file_name};
use crate::model::load::{Matrix, Plan};
use crate::model::{Model, Output, Scratch, Span, Taps, Want};
use crate::state::State;

/// A drafter in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// Its kind: the file's architecture.
    pub kind: &'static str,
    /// Layers of its own.
    pub n_layer: usize,
    /// Tokens that it can draft.
    pub n_draft: usize,
    /// Layers of the target whose input it reads; empty: none.
    pub taps: Vec<usize>,
    /// Bytes of its weights; what the target lends is not among them.
    pub weight_bytes: usize,
    /// Whether the target lends the embedding of tokens, and the output head.
    pub lent_embedding: bool,
    /// See `lent_embedding`.
    pub lent_output: bool,
    /// What loading took.
    pub load_ns: u64,
}

/// An algorithm and weights, attached to a model.
pub trait Drafter: Send + Sync + Debug {
    /// Its numbers.
    fn description(&self) -> &Description;

    /// Layers of the target whose input its proposers read, in the order in which they read them.
    fn taps(&self) -> &[usize];

    /// What drafting one token takes, in plain steps of the target, before it was timed.
    fn assumed_cost(&self) -> f64;

    /// What a sequence keeps of it, empty. `kind`: how it caches keys and values.
    ///
    /// # Errors
    /// `kind` cannot store heads of its width.
    fn proposer(self: Arc<Self>, kind: KvKind) -> Result<Box<dyn Proposer>>;

    /// What it makes of a text and its hidden rows, and of `chain` guesses after it: for tests and tools, in one pass.
    ///
    /// # Errors
    /// The text is shorter than two tokens or longer than a pass, or `kind` cannot store heads of its width.
    fn trace(self: Arc<Self>, kind: KvKind, tokens: &[u32], hidden: Hidden<'_>, chain: usize) -> Result<Trace>;
}

/// What a drafter makes of a text, row by row.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Logits over what it drafts, `[rows][n_draft]`.
    pub logits: Vec<f32>,
    /// The stream that the drafter's output norm reads, `[rows][n_embd]`.
    pub states: Vec<f32>,
    /// The guesses after the text; each but the last has a row behind those of the text.
    pub guesses: Vec<u32>,
}

/// Hidden rows of the inputs of `layers` for all tokens of a text, `[layers][tokens][n_embd]`.
///
/// # Errors
/// As [`Model::forward`].
pub fn hidden_rows(target: &Model, kind: KvKind, layers: &[usize], tokens: &[u32]) -> Result<Vec<f32>> {
    let mut out = vec![0.0; layers.len() * tokens.len() * target.config().n_embd];
    let (mut state, output) = (State::new(target, kind)?, Output::Best(&mut []));
    let taps = Taps { layers, out: &mut out };
    let span = Span { state: &mut state, tokens, rows: Want::None, output, taps };
    target.forward(&mut [span], &mut Scratch::default())?;
    Ok(out)
}

/// Positions of a sequence that a forward has cached for good.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    /// All committed tokens; longer than `first + n`.
    pub history: &'a [u32],
    /// First position.
    pub first: usize,
    /// Positions.
    pub n: usize,
    /// Their hidden rows.
    pub hidden: Hidden<'a>,
}

/// Hidden rows of a forward, as [`crate::model::Taps`] has them: `[layers][stride][n_embd]`.
#[derive(Debug, Clone, Copy)]
pub struct Hidden<'a> {
    /// The numbers.
    pub values: &'a [f32],
    /// Rows of a layer.
    pub stride: usize,
    /// Numbers of a row.
    pub n_embd: usize,
}

impl<'a> Hidden<'a> {
    /// Row `i` of each layer, one layer after another.
    pub fn row(self, i: usize) -> impl Iterator<Item = &'a [f32]> {
        self.values.chunks_exact((self.stride * self.n_embd).max(1)).map(move |layer| {
            let at = i * self.n_embd;
            &layer[at..at + self.n_embd]
        })
    }
}

/// A guessed token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guess {
    /// The token.
    pub token: u32,
    /// How sure the drafter is, 0 to [`quoth_draft::LEVELS`] - 1.
    pub level: usize,
}

/// What one sequence keeps of a drafter.
pub trait Proposer: Send {
    /// Learns positions that a forward has cached for good. Positions come in ascending order; some may have been left out (R3).
    ///
    /// # Errors
    /// It cannot go on; it is asked no more.
    fn settle(&mut self, kept: Kept<'_>) -> Result<()>;

    /// Whether it has what it needs to guess what follows `history`.
    fn is_ready(&self, history: &[u32]) -> bool;

    /// Guesses what follows `history`, of which the last token is not cached yet, up to `most` tokens, one after another as long as `take` says so.
    ///
    /// # Errors
    /// It cannot go on; it is asked no more. Guesses that it gave stand.
    fn propose(&mut self, history: &[u32], most: usize, take: &mut dyn FnMut(Guess) -> bool) -> Result<()>;

    /// Forgets the rows of positions from `n` on.
    fn rewind(&mut self, n: usize);

    /// The same for another sequence that goes on from here.
    ///
    /// # Errors
    /// Memory ran out.
    fn fork(&self) -> Result<Box<dyn Proposer>>;

    /// Bytes that it keeps.
    fn memory_bytes(&self) -> usize;
}

/// Leads of the best logit over the second at which a guess belongs to the next level.
const LEVEL_EDGES: [f32; 7] = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5];

/// The guess that a row of logits makes; `ids`: the target's ids of what the row counts.
fn guess(best: &Best, ids: Option<&[u32]>) -> Result<Guess> {
    if let Some(token) = best.nan() {
        return Err(Error::Internal(format!("logit {token} of a drafter is not a number")));
    }
    let mut values = best.values();
    let (Some(id), Some(value)) = (best.ids().next(), values.next()) else {
        return Err(Error::Internal("a drafter gives no token any chance".into()));
    };
    let lead = value - values.next().unwrap_or(f32::NEG_INFINITY);
    let level = LEVEL_EDGES.iter().take_while(|edge| lead >= **edge).count();
    Ok(Guess { token: ids.map_or(id, |ids| ids[id as usize]), level })
}

/// Refuses a file whose vocabulary is not as large as the target's, as far as the file says.
fn check_vocabulary(keys: Keys<'_>, target: &Model) -> Result<()> {
    let said = match keys.uint("vocab_size")? {
        Some(said) => Some(said),
        None => keys.file.metadata().get_array_str("tokenizer.ggml.tokens")?.map(|tokens| tokens.len()),
    };
    match said.filter(|said| *said != target.config().n_vocab) {
        None => Ok(()),
        Some(said) => Err(of_another(keys, "a vocabulary of", said, target.config().n_vocab)),
    }
}

/// The layers that a file reads, which the target must have. Layer `n_layer` stands for the stream behind the last one.
fn checked_taps(keys: Keys<'_>, target: &Model) -> Result<Vec<usize>> {
    let (n_embd, n_layer) = (target.config().n_embd, target.config().n_layer());
    let width = keys.uint("target_hidden_size")?.unwrap_or(n_embd);
    if width != n_embd {
        return Err(of_another(keys, "a target's hidden size of", width, n_embd));
    }
    let taps = keys.need_layers("target_layers")?;
    match taps.iter().find(|layer| **layer > n_layer) {
        None => Ok(taps),
        Some(layer) => Err(of_another(keys, "the input of layer", layer, format!("layers 0 to {n_layer}"))),
    }
}

/// A file that is made for another model.
fn of_another(keys: Keys<'_>, what: &'static str, found: impl Display, expected: impl Display) -> Error {
    let (found, expected) = (found.to_string(), expected.to_string());
    Error::DrafterOfAnother { file: file_name(keys.file), what, found, expected }
}

/// Embedding and output head over `n_draft` tokens: the file's, or the target's where they lie (R4).
fn outer(plan: &mut Plan<'_>, target: &Model, n_draft: usize) -> Result<Outer> {
    let (n_embd, n_vocab) = (target.config().n_embd, target.config().n_vocab);
    let embedding = match plan.has("token_embd.weight") {
        true => plan.matrix("token_embd.weight", n_embd, n_vocab)?,
        false => target.weights.embedding.lent(),
    };
    let output = match plan.has("output.weight") {
        true => plan.matrix("output.weight", n_embd, n_draft)?,
        false => target.weights.output.lent(),
    };
    Ok(Outer { embedding, output })
}

/// The matrices at both ends of a drafter.
struct Outer {
    embedding: Matrix,
    output: Matrix,
}

/// What a pass of a drafter takes in plain steps of its target, by what both read.
fn assumed_cost(layers: &Model, target: &Model) -> f64 {
    let output = if layers.weights.output.is_lent() { target.panels(&target.weights.output).from(0).len() } else { 0 };
    ((layers.weight_bytes() + output) as f64 / target.weight_bytes().max(1) as f64).clamp(0.01, 2.0)
}
