//! The drafting side of a decoder: a source, the gate, and the limits on a draft.
//!
//! In: context, room, budgets. Out: a checked draft; later, what was made of it.
//!
//! - **D1** A source cannot harm the stream (I6): a draft is cut to what was asked for, at the first token outside the vocabulary and at the first end of
//!   generation; a source that fails is asked no more, and the reason is kept.
//! - **D2** Whenever a draft is cut, the source is told ([`DraftSource::truncate_pending`]).

use quoth_draft::{DraftSource, Gate, SourceError, SourceStats, TopkRow};

use super::Speculation;
use super::stats::SpeculationStats;
use crate::error::{Error, Result};

/// The longest draft that can be asked for. What a verification forwards must fit the rewindable part of window layers ([`crate::cache::REWIND`]).
pub const MAX_DRAFT: usize = 64;

/// See the module.
pub(crate) struct Drafter {
    source: Box<dyn DraftSource>,
    gate: Gate,
    max_draft: usize,
    disabled: Option<String>,
    /// The draft of this step.
    draft: Vec<u32>,
    /// Whether the source waits to hear what became of its draft.
    pending: bool,
    /// What a source without books of its own did, in this request.
    own: SourceStats,
    /// The source's books when the request began.
    before: Vec<SourceStats>,
    /// Top-k ids of the rows of this step, `topk` each.
    top: Vec<u32>,
    top_lens: Vec<usize>,
}

impl std::fmt::Debug for Drafter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Drafter(up to {}, gate {:?}, disabled {:?})", self.max_draft, self.gate.state(), self.disabled)
    }
}

/// What bounds a draft.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<'a> {
    /// Tokens that still fit the cache after the carried one.
    pub(crate) room: usize,
    /// Tokens that the caller still wants.
    pub(crate) wanted: usize,
    pub(crate) n_vocab: usize,
    /// Ends of generation, ascending.
    pub(crate) stop_ids: &'a [u32],
}

impl Drafter {
    /// # Errors
    /// An option is out of range.
    pub(crate) fn new(Speculation { source, gate, max_draft }: Speculation) -> Result<Self> {
        if max_draft == 0 || max_draft > MAX_DRAFT {
            let expected = format!("1 to {MAX_DRAFT}");
            return Err(Error::Option { what: "max_draft", found: max_draft.to_string(), expected });
        }
        let least = gate.options().min_draft;
        if least > max_draft {
            // Nothing would ever be drafted.
            let expected = format!("at most max_draft, {max_draft}");
            return Err(Error::Option { what: "min_draft", found: least.to_string(), expected });
        }
        Ok(Drafter {
            source,
            gate,
            max_draft,
            disabled: None,
            draft: Vec::new(),
            pending: false,
            own: SourceStats::default(),
            before: Vec::new(),
            top: Vec::new(),
            top_lens: Vec::new(),
        })
    }

    /// Begins a request: books are opened anew.
    pub(crate) fn begin(&mut self) {
        self.gate.begin_request();
        self.own = SourceStats { name: "source".into(), ..SourceStats::default() };
        self.before = self.source.stats();
    }

    fn disable(&mut self, result: Result<(), SourceError>) {
        if let Err(error) = result {
            self.disabled.get_or_insert(error.to_string());
        }
    }

    fn asked(&self) -> bool {
        self.disabled.is_none()
    }

    /// Tokens that were committed: a prompt, or all kept tokens of a step.
    pub(crate) fn observe(&mut self, committed: &[u32]) {
        self.pending = false;
        if self.asked() {
            let result = self.source.observe(committed);
            self.disable(result);
        }
    }

    /// The stream goes on from another history.
    pub(crate) fn rebuild(&mut self, history: &[u32]) {
        self.pending = false;
        if self.asked() {
            let result = self.source.rebuild(history);
            self.disable(result);
        }
    }

    /// Nothing was committed on the draft of this step: the source must not take what comes next for its outcome (D2).
    pub(crate) fn drop_pending(&mut self) {
        if std::mem::take(&mut self.pending) && self.asked() {
            self.source.truncate_pending(0);
        }
    }

    /// Whether this step may draft. Asked once a step.
    pub(crate) fn allows(&mut self) -> bool {
        self.asked() && self.gate.allows()
    }

    /// Asks for a draft; an empty one means a plain step.
    pub(crate) fn propose(&mut self, context: &[u32], bounds: Bounds<'_>) {
        self.draft.clear();
        let most = self.gate.budget(self.max_draft).min(bounds.room).min(bounds.wanted.saturating_sub(1));
        let least = self.gate.options().min_draft;
        if most < least {
            return;
        }
        let mut draft = std::mem::take(&mut self.draft);
        match self.source.suggest(context, most, &mut draft) {
            Ok(()) => {
                let given = draft.len();
                draft.truncate(most);
                let usable = draft
                    .iter()
                    .position(|t| *t as usize >= bounds.n_vocab || bounds.stop_ids.binary_search(t).is_ok())
                    .unwrap_or(draft.len());
                draft.truncate(usable);
                if draft.len() < least {
                    draft.clear();
                }
                if draft.len() < given {
                    self.source.truncate_pending(draft.len());
                }
            }
            Err(error) => {
                draft.clear();
                self.disable(Err(error));
            }
        }
        self.pending = !draft.is_empty();
        self.draft = draft;
    }

    pub(crate) fn draft(&self) -> &[u32] {
        &self.draft
    }

    /// How many of the most probable tokens the source wants of each row.
    pub(crate) fn topk(&self) -> usize {
        if self.asked() { self.source.topk() } else { 0 }
    }

    /// Keeps the most probable tokens of a row of this step.
    pub(crate) fn capture(&mut self, row: &[f32], k: usize) {
        let at = self.top.len();
        self.top.resize(at + k, 0);
        let n = crate::sample::topk_ids(row, &mut self.top[at..]);
        self.top.truncate(at + n);
        self.top_lens.push(n);
    }

    /// Keeps ids that were found already, most probable first.
    pub(crate) fn capture_ids(&mut self, ids: impl ExactSizeIterator<Item = u32>) {
        self.top_lens.push(ids.len());
        self.top.extend(ids);
    }

    /// Tells the source about the captured rows: `inputs` are the tokens that went in.
    pub(crate) fn observe_topk(&mut self, inputs: &[u32]) {
        if self.asked() && !inputs.is_empty() && !self.top_lens.is_empty() {
            let mut rest = self.top.as_slice();
            let rows: Vec<TopkRow<'_>> = inputs
                .iter()
                .zip(&self.top_lens)
                .map(|(token, n)| {
                    let (top, more) = rest.split_at(*n);
                    rest = more;
                    TopkRow { token: *token, top }
                })
                .collect();
            let result = self.source.observe_topk(&rows);
            self.disable(result);
        }
        self.top.clear();
        self.top_lens.clear();
    }

    /// A plain step took `ns`, of which `draft_ns` for a draft that did not come.
    pub(crate) fn record_plain(&mut self, ns: u64, draft_ns: u64) {
        self.gate.record_plain(ns, draft_ns);
    }

    /// A verify step of the current draft took `ns`; `None`: it is no sample for the gate.
    pub(crate) fn record_verify(&mut self, accepted: usize, committed: usize, ns: Option<u64>) {
        self.own.drafts += 1;
        self.own.drafted += self.draft.len() as u64;
        self.own.accepted += accepted as u64;
        if let Some(ns) = ns {
            self.gate.record_verify(self.draft.len(), accepted, committed, ns);
        }
    }

    /// The candidate that made the draft.
    pub(crate) fn draft_source(&self) -> Option<String> {
        None
    }

    /// What happened in this request.
    pub(crate) fn stats(&self) -> SpeculationStats {
        let mut sources = self.source.stats();
        if sources.is_empty() {
            sources.push(SourceStats { reason: self.disabled.clone(), ..self.own.clone() });
        }
        for source in &mut sources {
            if let Some(before) = self.before.iter().find(|b| b.name == source.name) {
                source.drafts = source.drafts.saturating_sub(before.drafts);
                source.drafted = source.drafted.saturating_sub(before.drafted);
                source.accepted = source.accepted.saturating_sub(before.accepted);
                source.mutes = source.mutes.saturating_sub(before.mutes);
            }
        }
        SpeculationStats {
            gate: self.gate.stats(),
            cost_provenance: self.gate.costs().provenance().to_owned(),
            sources,
            disabled: self.disabled.clone(),
        }
    }
}
