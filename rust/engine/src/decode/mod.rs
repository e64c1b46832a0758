//! From prompts to committed tokens: plan, forward, commit.
//!
//! In: prompt tokens, a [`Request`]. Out: [`Step`]s.
//!
//! ```text
//!   Sequence::begin ──> Sequence::plan ──> Engine: one forward for all ──> Sequence::commit ──> Step
//!                            ^                                                   │
//!                            └───────────────── next step ───────────────────────┘
//! ```
//!
//! | file | its one idea |
//! | --- | --- |
//! | `request` | what is wanted, and how far it has come |
//! | `sequence` | what a sequence wants of the next forward, and what becomes of the rows |
//! | `engine` | one forward for many sequences |
//! | `mod` | the face of one sequence: a running session that keeps the longest prefix which a new prompt shares with it |

mod clock;
mod engine;
#[doc(hidden)]
pub mod probe;
mod request;
mod sequence;
mod stats;

pub use clock::{Clock, SystemClock};
pub use engine::Engine;
pub use quoth_draft::SpeculationStats;
pub use request::{Finish, Request, Step};
pub use sequence::Sequence;
pub use stats::DecodeStats;

use std::sync::Arc;

use quoth_draft::{CostTable, Costs, DraftSource, Gate, OptionsError, Speculator};
use quoth_kernels::attend::KvKind;

use crate::cache::KvCache;
use crate::error::{Error, Result};
use crate::model::{MAX_ROWS, Model};
use crate::proposer::Drafter;
use crate::vocab::Vocab;

/// The longest draft of a sequence. What a verification forwards must fit the rewindable part of window layers ([`crate::cache::REWIND`]).
pub const MAX_DRAFT: usize = 64;

/// How a sequence drafts.
pub struct Speculation {
    /// Where drafts come from.
    pub source: Box<dyn DraftSource>,
    /// Whether drafting pays.
    pub gate: Gate,
    /// What steps cost; all sequences of an engine have the engine's.
    pub costs: Costs,
    /// Longest draft, 1 to [`MAX_DRAFT`].
    pub max_draft: usize,
    /// Drafters with weights of their own that may draft beside the source, one of each kind, attached to the sequence's model.
    pub drafters: Vec<Arc<dyn Drafter>>,
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Speculation(up to {} tokens)", self.max_draft)
    }
}

impl Speculation {
    /// # Errors
    /// An option is out of range.
    fn speculator(self) -> Result<Speculator> {
        if self.max_draft == 0 || self.max_draft > MAX_DRAFT {
            let expected = format!("1 to {MAX_DRAFT}");
            return Err(Error::Option { what: "max_draft", found: self.max_draft.to_string(), expected });
        }
        let refused = |e: OptionsError| Error::Option { what: e.option, found: e.found, expected: e.expected };
        let mut speculator = Speculator::new(self.source, self.gate, self.costs, self.max_draft).map_err(refused)?;
        for drafter in &self.drafters {
            speculator.add_lane(drafter.description().kind.into(), drafter.assumed_cost());
        }
        Ok(speculator)
    }

    /// The costs to learn with; without speculation, those of a sequence that never drafts.
    fn costs(speculation: Option<&Speculation>) -> Costs {
        speculation.map_or_else(|| CostTable::default().into(), |speculation| speculation.costs.clone())
    }
}

/// One sequence and an engine of its own.
#[derive(Debug)]
pub struct Decoder {
    engine: Engine,
    sequence: Sequence,
}

impl Decoder {
    /// A decoder with nothing in it.
    ///
    /// # Errors
    /// Options out of range, or a cache kind that cannot store heads of this model's width.
    pub fn new(
        model: Arc<Model>,
        vocab: Arc<Vocab>,
        kind: KvKind,
        speculation: Option<Speculation>,
    ) -> Result<Decoder> {
        let engine = Engine::new(Speculation::costs(speculation.as_ref()));
        Ok(Decoder { engine, sequence: Sequence::new(model, vocab, kind, speculation)? })
    }

    /// Takes another clock, for tests.
    pub fn set_clock(&mut self, clock: Box<dyn Clock>) {
        self.engine.set_clock(clock);
    }

    /// Lets a test watch and disturb the decoder.
    #[doc(hidden)]
    pub fn set_probe(&mut self, probe: Option<Box<dyn probe::Probe>>) {
        self.sequence.set_probe(probe);
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        self.sequence.model()
    }

    /// Prompt and committed tokens.
    pub fn history(&self) -> &[u32] {
        self.sequence.history()
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        self.sequence.cache()
    }

    /// Counts and times of the current or last request.
    pub fn stats(&self) -> &DecodeStats {
        self.sequence.stats()
    }

    /// What speculation did in the current or last request.
    pub fn speculation_stats(&self) -> Option<SpeculationStats> {
        self.sequence.speculation_stats()
    }

    /// Begins a request and gives its first token. The longest prefix that `prompt` shares with the cached tokens is kept, up to its last token.
    /// `progress` gets prompt tokens done and in all after every pass; false stops.
    ///
    /// # Errors
    /// The prompt is empty, too long or has tokens out of range, or the request makes no sense: nothing changes. Or the caller stopped, or a forward or the
    /// sampler failed: what is cached then is a prefix of the prompt.
    pub fn begin(
        &mut self,
        prompt: &[u32],
        request: Request,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Step> {
        let now = self.engine.now_ns();
        self.sequence.begin(prompt, request, now)?;
        loop {
            let step = self.step_once()?;
            if !self.sequence.is_reading() {
                progress(prompt.len(), prompt.len());
                return Ok(step);
            }
            if !progress(self.cache().len(), prompt.len()) {
                self.sequence.stop()?;
                return Err(Error::Cancelled);
            }
        }
    }

    /// Takes one step of the request: at least one token, or the end. After the end, steps are empty and say why it ended.
    ///
    /// # Errors
    /// A forward or the sampler failed; history and cache stand at the last committed token, and the request can go on.
    pub fn step(&mut self) -> Result<Step> {
        self.step_once()
    }

    fn step_once(&mut self) -> Result<Step> {
        let mut steps = self.engine.step(&mut [&mut self.sequence], MAX_ROWS);
        steps.pop().unwrap_or_else(|| Err(Error::Internal("an engine without a step for its sequence".into())))
    }

    /// Forgets all tokens; options and references stay.
    ///
    /// # Errors
    /// None are expected: going back to nothing is always possible.
    pub fn reset(&mut self) -> Result<()> {
        self.sequence.reset()
    }

    /// Goes back to the first `n` tokens of the history; the request under way ends.
    ///
    /// # Errors
    /// None are expected: what the cache cannot return to, the next request forwards again.
    pub fn rewind(&mut self, n: usize) -> Result<()> {
        self.sequence.rewind(n)
    }

    /// An independent decoder at the same point, with its own drafting. The two share cached blocks until one of them writes.
    ///
    /// # Errors
    /// Options of `speculation` are out of range.
    pub fn fork(&mut self, speculation: Option<Speculation>) -> Result<Decoder> {
        let engine = Engine::new(Speculation::costs(speculation.as_ref()));
        Ok(Decoder { engine, sequence: self.sequence.fork(speculation)? })
    }
}
