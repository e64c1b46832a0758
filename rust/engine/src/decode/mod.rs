//! From a prompt to committed tokens: prefill, draft, verify, commit.
//!
//! In: prompt tokens, a [`Request`]. Out: [`Step`]s. A decoder is a running session: a new request keeps the longest prefix that it shares with what is
//! cached. The invariants I1, I2, I3, I5 and I6 (see the crate's root) are this module's to keep.
//!
//! A step forwards the carried token and the draft, all rows at once; then row by row: top-k if a source wants it, sample with the full pipeline against
//! the history, commit, compare with the draft. After the rows: truncate the cache, tell the sources, tell the gate. An error at any point leaves history and
//! cache at the last committed token; tokens that the step had committed before are handed out, and the error comes with the next call.
//!
//! The first token of a request comes with the prefill, in the same pass, so drafting begins with the second.

mod clock;
mod drafter;
#[doc(hidden)]
pub mod probe;
mod request;
mod stats;
mod step;

pub use clock::{Clock, SystemClock};
pub use drafter::MAX_DRAFT;
pub use request::{Finish, Request, Step};
pub use stats::{DecodeStats, SpeculationStats};

use std::sync::Arc;

use quoth_draft::{DraftSource, Gate};
use quoth_kernels::attend::KvKind;
use quoth_kernels::top::Best;

use crate::cache::KvCache;
use crate::error::{Error, Result};
use crate::model::{Model, Scratch};
use crate::sample::{Sampler, Sampling};
use crate::vocab::Vocab;
use drafter::Drafter;
use request::Turn;

/// How a decoder guesses.
pub struct Speculation {
    /// Who guesses.
    pub source: Box<dyn DraftSource>,
    /// Whether guessing pays.
    pub gate: Gate,
    /// Longest draft, 1 to [`MAX_DRAFT`].
    pub max_draft: usize,
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Speculation(up to {} tokens)", self.max_draft)
    }
}

/// See the module.
pub struct Decoder {
    model: Arc<Model>,
    vocab: Arc<Vocab>,
    cache: KvCache,
    scratch: Scratch,
    /// Rows of the last forward, or only the greatest of each.
    logits: Vec<f32>,
    best: Vec<Best>,
    /// Prompt and committed tokens; all but the last are cached (I1). Empty before the first request.
    history: Vec<u32>,
    sampler: Sampler,
    /// The sampler of the next request, if it is another one.
    next_sampler: Option<Sampler>,
    drafter: Option<Drafter>,
    clock: Box<dyn Clock>,
    probe: Option<Box<dyn probe::Probe>>,
    turn: Option<Turn>,
    stats: DecodeStats,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decoder({} tokens, {:?})", self.history.len(), self.drafter)
    }
}

impl Decoder {
    /// A decoder with an empty cache.
    ///
    /// # Errors
    /// Options out of range, or a cache kind that cannot store heads of this model's width.
    pub fn new(
        model: Arc<Model>,
        vocab: Arc<Vocab>,
        kind: KvKind,
        sampling: Sampling,
        speculation: Option<Speculation>,
    ) -> Result<Decoder> {
        let cache = KvCache::new(model.config(), kind, model.n_ctx())?;
        let sampler = sampler(sampling, &model, &vocab)?;
        let drafter = match speculation {
            Some(s) if s.max_draft == 0 || s.max_draft > MAX_DRAFT => {
                let expected = format!("1 to {MAX_DRAFT}");
                return Err(Error::Option { what: "max_draft", found: s.max_draft.to_string(), expected });
            }
            // Nothing would ever be drafted.
            Some(s) if s.gate.options().min_draft > s.max_draft => {
                let expected = format!("at most max_draft, {}", s.max_draft);
                let found = s.gate.options().min_draft.to_string();
                return Err(Error::Option { what: "min_draft", found, expected });
            }
            Some(s) => Some(Drafter::new(s.source, s.gate, s.max_draft)),
            None => None,
        };
        Ok(Decoder {
            model,
            vocab,
            cache,
            scratch: Scratch::default(),
            logits: Vec::new(),
            best: Vec::new(),
            history: Vec::new(),
            sampler,
            next_sampler: None,
            drafter,
            clock: Box::<SystemClock>::default(),
            probe: None,
            turn: None,
            stats: DecodeStats::default(),
        })
    }

    /// Takes another clock, for tests.
    pub fn set_clock(&mut self, clock: Box<dyn Clock>) {
        self.clock = clock;
    }

    /// Lets a test watch and disturb the decoder.
    #[doc(hidden)]
    pub fn set_probe(&mut self, probe: Option<Box<dyn probe::Probe>>) {
        self.probe = probe;
    }

    /// Asks the probe, if there is one, whether a part may go on.
    fn before(&mut self, part: probe::Part) -> Result<()> {
        self.probe.as_mut().map_or(Ok(()), |probe| probe.before(part))
    }

    /// Takes other sampling options, for the next request; one under way goes on with its own.
    ///
    /// # Errors
    /// An option is out of range; the old ones stay.
    pub fn set_sampling(&mut self, sampling: Sampling) -> Result<()> {
        self.next_sampler = Some(sampler(sampling, &self.model, &self.vocab)?);
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Prompt and committed tokens.
    pub fn history(&self) -> &[u32] {
        &self.history
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Counts and times of the current or last request.
    pub fn stats(&self) -> &DecodeStats {
        &self.stats
    }

    /// What speculation did in the current or last request.
    pub fn speculation_stats(&self) -> Option<SpeculationStats> {
        self.drafter.as_ref().map(Drafter::stats)
    }

    /// The source, for what only its maker knows about it. `None`: plain decoding.
    pub fn source_mut(&mut self) -> Option<&mut dyn DraftSource> {
        self.drafter.as_mut().map(Drafter::source_mut)
    }

    /// Forgets all tokens; options and references stay.
    ///
    /// # Errors
    /// None are expected: rewinding to nothing is always possible.
    pub fn reset(&mut self) -> Result<()> {
        self.turn = None;
        self.cache.truncate(0)?;
        self.history.clear();
        if let Some(drafter) = &mut self.drafter {
            drafter.rebuild(&[]);
        }
        Ok(())
    }

    /// Makes I1 true again after a panic, which leaves a step or a prompt half done: history and cache end where both are whole.
    fn mend(&mut self) -> Result<()> {
        let (history, cached) = (self.history.len(), self.cache.len());
        if self.turn.is_some() || history == cached + 1 || history + cached == 0 {
            return Ok(());
        }
        self.cache.truncate(self.history.len().saturating_sub(1))?;
        self.history.truncate(self.cache.len() + 1);
        if let Some(drafter) = &mut self.drafter {
            drafter.rebuild(&self.history);
        }
        Ok(())
    }

    /// Goes back to the first `n` tokens of the history; the request under way ends.
    ///
    /// # Errors
    /// A window layer has already forgotten positions that are needed; nothing changes.
    pub fn rewind(&mut self, n: usize) -> Result<()> {
        self.mend()?;
        if n >= self.history.len() {
            return Ok(());
        }
        self.cache.truncate(n.saturating_sub(1))?;
        self.turn = None;
        self.history.truncate(n);
        if let Some(drafter) = &mut self.drafter {
            drafter.rebuild(&self.history);
        }
        Ok(())
    }

    /// An independent decoder at the same point, with its own drafting.
    ///
    /// # Errors
    /// Memory ran out.
    pub fn fork(&mut self, speculation: Option<Speculation>) -> Result<Decoder> {
        self.mend()?;
        let sampler = self.next_sampler.as_ref().unwrap_or(&self.sampler);
        let mut fork = Decoder::new(
            self.model.clone(),
            self.vocab.clone(),
            self.cache.kind(),
            sampler.sampling().clone(),
            speculation,
        )?;
        fork.cache = self.cache.copy_prefix(self.cache.len())?;
        fork.history.clone_from(&self.history);
        if let Some(drafter) = &mut fork.drafter {
            drafter.rebuild(&fork.history);
        }
        Ok(fork)
    }
}

/// A sampler that never chooses what the file suppresses, whatever the options say.
fn sampler(mut sampling: Sampling, model: &Model, vocab: &Vocab) -> Result<Sampler> {
    sampling.banned.extend(vocab.suppressed().iter().filter(|id| (**id as usize) < model.config().n_vocab));
    Ok(Sampler::new(sampling, model.config().n_vocab)?)
}
