//! The bare machine: tokens in, rows of logits out, truncate at will.
//!
//! In: a model, tokens. Out: logits. A session owns a state and scratch memory; any number of sessions share a model.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use quoth_kernels::attend::KvKind;
use quoth_kernels::top::Best;

use crate::cache::KvCache;
use crate::error::{Error, Result};
use crate::model::{MAX_ROWS, Model, Output, Scratch, Span, Taps, Want};
use crate::state::State;

/// See the module.
#[derive(Debug)]
pub struct Session {
    model: Arc<Model>,
    state: State,
    scratch: Scratch,
}

impl Session {
    /// An empty session with the model's context length.
    ///
    /// # Errors
    /// `kind` cannot store heads of this model's width.
    pub fn new(model: Arc<Model>, kind: KvKind) -> Result<Session> {
        let state = State::new(&model, kind)?;
        Ok(Session { model, state, scratch: Scratch::default() })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        self.state.kv()
    }

    /// What the model remembers.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Cached tokens.
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    /// Appends tokens and writes their rows of logits, all of them or the last, to `logits`, `[rows][n_vocab]`. Long inputs go in several passes, with the
    /// same bits. `progress` is asked after every pass with the tokens done; false stops.
    ///
    /// # Errors
    /// No token is given, one is out of range, the context is full, the caller stopped, or `logits` has another length. The session then holds what
    /// it held before.
    pub fn forward(
        &mut self,
        tokens: &[u32],
        want: Want,
        logits: &mut [f32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<()> {
        self.check(tokens)?;
        let n_vocab = self.model.config().n_vocab;
        let rows = want.rows(tokens.len());
        if logits.len() != rows * n_vocab {
            return Err(Error::Internal(format!("room for {} logits, {rows} rows have {n_vocab} each", logits.len())));
        }
        if tokens.len() <= MAX_ROWS {
            // One pass counts as a whole or not at all (F2 of the forward).
            self.pass(tokens, want, logits)?;
            progress(tokens.len());
            return Ok(());
        }
        let before = self.state.fork(self.state.len())?;
        let result = catch_unwind(AssertUnwindSafe(|| self.passes(tokens, want, logits, progress)));
        if !matches!(result, Ok(Ok(()))) {
            self.state = before;
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Appends tokens in as many passes as it takes.
    fn passes(
        &mut self,
        tokens: &[u32],
        want: Want,
        logits: &mut [f32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<()> {
        let n_vocab = self.model.config().n_vocab;
        let (mut done, mut written) = (0, 0);
        for part in tokens.chunks(MAX_ROWS) {
            done += part.len();
            let want = if want == Want::Last && done < tokens.len() { Want::None } else { want };
            let rows = want.rows(part.len());
            self.pass(part, want, &mut logits[written * n_vocab..(written + rows) * n_vocab])?;
            written += rows;
            if !progress(done) && done < tokens.len() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    fn pass(&mut self, tokens: &[u32], rows: Want, logits: &mut [f32]) -> Result<()> {
        let output = Output::Logits(logits);
        let mut span = [Span { state: &mut self.state, tokens, rows, output, taps: Taps::none() }];
        self.model.forward(&mut span, &mut self.scratch)
    }

    /// Appends tokens, at most [`MAX_ROWS`], and gives the `k` greatest logits of each row, as a greedy decoder's step does: no row is ever held as a
    /// whole.
    ///
    /// # Errors
    /// As [`Self::forward`], or there are too many tokens. The session then holds what it held before.
    pub fn best(&mut self, tokens: &[u32], k: usize) -> Result<Vec<Best>> {
        self.check(tokens)?;
        if tokens.len() > MAX_ROWS {
            let (found, expected) = (tokens.len().to_string(), format!("at most {MAX_ROWS}"));
            return Err(Error::Option { what: "tokens", found, expected });
        }
        let mut best = vec![Best::new(k); tokens.len()];
        let output = Output::Best(&mut best);
        let mut span = [Span { state: &mut self.state, tokens, rows: Want::All, output, taps: Taps::none() }];
        self.model.forward(&mut span, &mut self.scratch)?;
        Ok(best)
    }

    /// Checks all tokens before the first pass, so that a bad one late in the input costs no work.
    fn check(&self, tokens: &[u32]) -> Result<()> {
        let (before, n_ctx, n_vocab) = (self.state.len(), self.state.n_ctx(), self.model.config().n_vocab);
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if !self.model.is_alive() {
            return Err(Error::Forked);
        }
        if let Some((i, &token)) = tokens.iter().enumerate().find(|(_, t)| **t as usize >= n_vocab) {
            return Err(Error::TokenRange { token, pos: before + i, last: n_vocab - 1 });
        }
        if before + tokens.len() > n_ctx {
            return Err(Error::ContextFull { cached: before, asked: tokens.len(), n_ctx });
        }
        Ok(())
    }

    /// Forgets everything after the first `n` tokens.
    ///
    /// # Errors
    /// A window layer has already forgotten positions that a query at `n` would see; nothing changes.
    pub fn truncate(&mut self, n: usize) -> Result<()> {
        self.state.truncate(n)
    }

    /// An independent session with the first `n` tokens of this one.
    ///
    /// # Errors
    /// As [`Self::truncate`].
    pub fn fork(&self, n: usize) -> Result<Session> {
        let state = self.state.fork(n.min(self.state.len()))?;
        Ok(Session { model: self.model.clone(), state, scratch: Scratch::default() })
    }
}
