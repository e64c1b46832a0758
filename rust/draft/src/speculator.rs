//! The speculator of a sequence: a source, the gate, the budget and the limits on a draft. Decoder, replay and `DraftIndex` draft through it alone.
//!
//! In: committed tokens, bounds, the company of the step. Out: a checked draft; later it is told what became of it.
//!
//! U1  A source cannot harm the stream: a draft is cut to what was asked for, at the first token outside the vocabulary and at the first end of
//!     generation. A source that fails is not asked again, and the reason is kept.
//! U2  Whenever a draft is cut, the source is told ([`DraftSource::truncate_pending`]).
//! U3  The gate is asked once a step, by `propose`. Nothing here looks at a clock: times come with the records, costs from the shared [`Costs`].
//! U4  Tokens that a constraint foretells stand before the draft of the source, whatever the gate says: they cost a row each and are right, or nearly always. Gate, ledger and
//!     `min_draft` concern what the source drafts behind them.
//! U5  A step is `propose`, perhaps `cut`, the forward, `observe` or `drop_pending`, `observe_topk`, and one of the two records. The time of the step enters
//!     the costs ([`crate::CostModel::observe`]) before the record, because the gate judges by the newest costs.
//!
//! Cost: that of the source, and a look-up in the cost model for each token that may be drafted.

use std::fmt;
use std::sync::Arc;

use crate::cost::{CostStats, Costs};
use crate::error::{OptionsError, check_range};
use crate::gate::{Gate, GateStats};
use crate::ledger::{Ledger, SourceStats};
use crate::source::{Budget, Draft, DraftSource, SourceError, TopkRow};
use crate::table::MAX_DRAFT;

#[cfg(test)]
mod tests;

/// The chance of a token that a constraint foretells without forcing it, where those before it are right.
const LIKELY: f64 = 0.9;

/// What bounds a draft.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// Tokens that still fit the cache after the carried one.
    pub room: usize,
    /// Tokens that the caller still wants.
    pub wanted: usize,
    /// Token ids are below this.
    pub n_vocab: usize,
    /// Ends of generation, ascending.
    pub stop_ids: &'a [u32],
    /// Tokens that a constraint foretells.
    pub forced: &'a [u32],
    /// How many of them come in any case; the others probably.
    pub certain: usize,
}

/// What the step forwards beside the rows of this sequence, and the length of the context. By default the sequence is alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Rows of other sequences.
    pub rows: usize,
    /// Other sequences.
    pub spans: usize,
    /// Cached tokens of this sequence.
    pub cached: usize,
}

/// What speculation did and why.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculationStats {
    /// The gate.
    pub gate: GateStats,
    /// The costs at the last step's context and company.
    pub costs: CostStats,
    /// Each part that drafts, this request only.
    pub sources: Vec<SourceStats>,
    /// Why the source is not asked any more, if so.
    pub disabled: Option<String>,
}

/// See the module.
pub struct Speculator {
    source: Box<dyn DraftSource>,
    gate: Gate,
    costs: Costs,
    max_draft: usize,
    disabled: Option<SourceError>,
    load: Load,
    /// Whether the gate let the last step draft.
    allowed: bool,
    /// What drafts of this step add to a plain step, by length.
    extra: Vec<f64>,
    draft: Draft,
    /// How many tokens the draft begins with that a constraint foretells.
    forced: usize,
    /// What the source drafts behind them.
    guess: Draft,
    /// The context with them.
    ahead: Vec<u32>,
    /// Stands for a draft of forced tokens alone.
    grammar: Arc<str>,
    /// Whether the source waits to hear what became of its draft.
    pending: bool,
    ledger: Ledger,
    /// Top-k ids of the rows of this step, one row after the other, and how many each has.
    top: Vec<u32>,
    top_lens: Vec<usize>,
}

impl fmt::Debug for Speculator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Speculator(up to {}, gate {:?}, disabled {:?})", self.max_draft, self.gate.state(), self.disabled)
    }
}

impl Speculator {
    /// A speculator that drafts up to `max_draft` tokens, 1 to [`MAX_DRAFT`], from `source`.
    ///
    /// # Errors
    /// `max_draft` is out of range, or less than the gate's `min_draft`: nothing would ever be drafted.
    pub fn new(source: Box<dyn DraftSource>, gate: Gate, costs: Costs, max_draft: usize) -> Result<Self, OptionsError> {
        check_range("max_draft", max_draft, 1, MAX_DRAFT)?;
        let min_draft = gate.options().min_draft;
        if min_draft > max_draft {
            return Err(OptionsError::new("min_draft", format_args!("at most max_draft, {max_draft}"), min_draft));
        }
        Ok(Self {
            source,
            gate,
            costs,
            max_draft,
            disabled: None,
            load: Load::default(),
            allowed: false,
            extra: Vec::new(),
            draft: Draft::default(),
            forced: 0,
            guess: Draft::default(),
            ahead: Vec::new(),
            grammar: "grammar".into(),
            pending: false,
            ledger: Ledger::new(),
            top: Vec::new(),
            top_lens: Vec::new(),
        })
    }

    /// The costs, which sequences share.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Why the source is not asked any more, if so.
    pub fn disabled(&self) -> Option<&SourceError> {
        self.disabled.as_ref()
    }

    /// Begins a request: counts start at 0, and the gate forgives what earlier requests have lost.
    pub fn begin_request(&mut self) {
        self.gate.begin_request();
        self.ledger.begin_request();
    }

    /// Gives the source to `call` unless it has failed, and keeps the error if it fails now.
    fn ask(&mut self, call: impl FnOnce(&mut dyn DraftSource) -> Result<(), SourceError>) {
        if self.disabled.is_none() {
            self.disabled = call(&mut *self.source).err();
        }
    }

    /// Tokens that were committed: a prompt, or all kept tokens of a step.
    pub fn observe(&mut self, committed: &[u32]) {
        self.pending = false;
        self.ask(|source| source.observe(committed));
    }

    /// The stream goes on from another history.
    pub fn rebuild(&mut self, history: &[u32]) {
        self.pending = false;
        self.ask(|source| source.rebuild(history));
    }

    /// Nothing was committed on the draft of this step: the source must not take what comes next for its outcome (U2).
    pub fn drop_pending(&mut self) {
        if std::mem::take(&mut self.pending) {
            self.tell_cut(0);
        }
    }

    fn tell_cut(&mut self, n: usize) {
        if self.disabled.is_none() {
            self.source.truncate_pending(n);
        }
    }

    /// Asks the gate and then the source for a draft, once a step. An empty one means a plain step.
    pub fn propose(&mut self, context: &[u32], bounds: Bounds<'_>, load: Load) -> &Draft {
        self.draft.clear();
        self.load = load;
        let spans = load.spans + 1;
        // While the gate is closed, each question is a step of its wait: it is asked first.
        self.allowed = self.disabled.is_none() && self.gate.allows() && !self.costs.lock().wants_plain_step(spans);
        let longest = MAX_DRAFT.min(bounds.room).min(bounds.wanted.saturating_sub(1));
        self.forced = bounds.forced.len().min(longest);
        self.draft.tokens.extend_from_slice(&bounds.forced[..self.forced]);
        let likely = |i: usize| LIKELY.powi((i + 1).saturating_sub(bounds.certain) as i32);
        self.draft.reach.extend((0..self.forced).map(likely));
        self.draft.source = (self.forced > 0).then(|| self.grammar.clone());
        if self.allowed {
            let most = self.max_draft.min(longest - self.forced);
            self.costs.lock().extras(load.rows + self.forced, spans, load.cached, most, &mut self.extra);
            let most = self.gate.budget(self.max_draft, &self.extra).min(most);
            let least = self.gate.options().min_draft;
            if most >= least {
                self.suggest(context, bounds, least, most);
            }
        }
        &self.draft
    }

    fn suggest(&mut self, context: &[u32], bounds: Bounds<'_>, least: usize, most: usize) {
        let budget = Budget { min_tokens: least, max_tokens: most, extra: &self.extra[..=most], ahead: self.forced };
        let context = if self.forced == 0 {
            context
        } else {
            self.ahead.clear();
            self.ahead.extend_from_slice(context);
            self.ahead.extend_from_slice(&self.draft.tokens);
            &self.ahead
        };
        let mut guess = std::mem::take(&mut self.guess);
        guess.clear();
        match self.source.suggest(context, budget, &mut guess) {
            Ok(()) => self.take_guess(&mut guess, bounds, most),
            Err(error) => self.disabled = Some(error),
        }
        self.guess = guess;
    }

    /// Puts what the source drafted behind what is forced, as far as it can be used.
    fn take_guess(&mut self, guess: &mut Draft, bounds: Bounds<'_>, most: usize) {
        self.pending = !guess.is_empty();
        let impossible = |t: &u32| *t as usize >= bounds.n_vocab || bounds.stop_ids.binary_search(t).is_ok();
        let usable = guess.tokens.iter().take(most).position(impossible).unwrap_or(most).min(guess.len());
        let usable = if usable < self.gate.options().min_draft { 0 } else { usable };
        if usable < guess.len() {
            guess.truncate(usable);
            self.tell_cut(usable);
            self.pending = usable > 0;
        }
        if guess.is_empty() {
            return;
        }
        if !is_reach(guess) {
            self.ledger.fill_reach(guess);
        }
        let before = self.draft.reach.last().copied().unwrap_or(1.0);
        self.draft.tokens.extend_from_slice(&guess.tokens);
        self.draft.reach.extend(guess.reach.iter().map(|reach| before * reach));
        self.draft.source = guess.source.take();
    }

    /// Verifies only the first `n` tokens of the draft; of what the source drafted none, if that is less than the gate's `min_draft`. The source is told.
    pub fn cut(&mut self, n: usize) {
        let forced = n.min(self.forced);
        let guessed = n.min(self.draft.len()) - forced;
        let guessed = if guessed < self.gate.options().min_draft { 0 } else { guessed };
        if forced + guessed < self.draft.len() {
            self.draft.truncate(forced + guessed);
            self.forced = forced;
            if self.pending {
                self.tell_cut(guessed);
                self.pending = guessed > 0;
            }
            if guessed == 0 {
                self.draft.source = (forced > 0).then(|| self.grammar.clone());
            }
        }
    }

    /// How many tokens the draft begins with that a constraint foretells.
    pub fn forced(&self) -> usize {
        self.forced
    }

    /// The draft of this step.
    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    /// Whether the gate let this step draft.
    pub fn allowed(&self) -> bool {
        self.allowed
    }

    /// How many of the most probable tokens the source wants of each row.
    pub fn topk(&self) -> usize {
        if self.disabled.is_none() { self.source.topk() } else { 0 }
    }

    /// Keeps the most probable tokens of the next sampled row of this step, best first.
    pub fn capture(&mut self, ids: impl IntoIterator<Item = u32>) {
        let before = self.top.len();
        self.top.extend(ids);
        self.top_lens.push(self.top.len() - before);
    }

    /// Tells the source about the captured rows: `inputs` are the tokens that went into those that were sampled.
    pub fn observe_topk(&mut self, inputs: &[u32]) {
        let (top, lens) = (std::mem::take(&mut self.top), std::mem::take(&mut self.top_lens));
        if !inputs.is_empty() && !lens.is_empty() {
            let mut rest = top.as_slice();
            let row = |(token, n): (&u32, &usize)| {
                let (top, more) = rest.split_at(*n);
                rest = more;
                TopkRow { token: *token, top }
            };
            let rows: Vec<TopkRow<'_>> = inputs.iter().zip(&lens).map(row).collect();
            self.ask(|source| source.observe_topk(&rows));
        }
        (self.top, self.top_lens) = (top, lens);
        self.top.clear();
        self.top_lens.clear();
    }

    /// A plain step before which `draft_ns` nanoseconds went into asking for a draft that did not come; 0 if none was asked for.
    pub fn record_plain(&mut self, draft_ns: u64) {
        let costs = self.costs.lock();
        let Load { spans, cached, .. } = self.load;
        let Some(plain_ns) = costs.plain_ns(cached) else { return };
        // The whole batch waits for the suggestion; as for rows, its time is weighed by what it is worth to the batch.
        let worth = (spans + 1) as f64 / costs.cost(spans + 1, spans + 1, cached);
        drop(costs);
        self.gate.record_plain(draft_ns as f64 / plain_ns * worth);
    }

    /// A step that verified a draft of the source: drafted tokens accepted, tokens committed, and its cost ([`crate::CostModel::draft_cost`]); `None` if the step failed
    /// or a stop cut it short, so that it says nothing about the draft's worth.
    pub fn record_verify(&mut self, accepted: usize, committed: usize, cost: Option<f64>) {
        if accepted < self.forced {
            // The step ended before the source's part: it says nothing about that.
            return;
        }
        let (drafted, accepted, committed) =
            (self.draft.len() - self.forced, accepted - self.forced, committed.saturating_sub(self.forced));
        self.ledger.settle(self.draft.source.as_ref(), drafted, accepted, committed);
        if let Some(cost) = cost {
            self.gate.record_verify(drafted, accepted, committed, cost);
        }
    }

    /// What happened in this request.
    pub fn stats(&self) -> SpeculationStats {
        let disabled = self.disabled.as_ref().map(ToString::to_string);
        let mut sources = self.ledger.stats(self.source.parts());
        if let ([whole], Some(reason)) = (sources.as_mut_slice(), &disabled) {
            whole.reason.get_or_insert_with(|| reason.clone());
        }
        SpeculationStats {
            gate: self.gate.stats(),
            costs: self.costs.lock().stats(self.load.spans + 1, self.load.cached),
            sources,
            disabled,
        }
    }
}

/// Whether a draft has chances for its tokens that can be chances.
fn is_reach(draft: &Draft) -> bool {
    let falls = |pair: &[f64]| pair[0] >= pair[1];
    let range = |chance: &f64| (0.0..=1.0).contains(chance);
    draft.reach.len() == draft.len() && draft.reach.iter().all(range) && draft.reach.windows(2).all(falls)
}
