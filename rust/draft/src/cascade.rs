//! The cascade: of all candidates that could guess, which drafts now, and how much. It is quoth's own draft source.
//!
//! In: committed tokens, top-k rows, references. Out: one draft a step, to the speculator.
//!
//! D1  Each candidate offers a draft; the one of the greatest expected gain drafts, at the length that gains most (`policy`). Ties go to the candidate
//!     that stands first: the conversation, the references in the order in which they were added, recycling.
//! D2  A suggestion is pending until the next `observe`. What it cost enters the rate by which lengths are chosen.
//! D3  Candidates learn whether they draft or not. A shut index of the conversation leaves references and recycling at work.
//! D4  Committed pairs outlast the rows that were sampled in the same step: candidates get the last committed tokens with the rows.
//! D5  A reference joins at the place where it would be had it been there from the start.
//!
//! Cost: per committed token one append, one step of each reference's cursor, one place of recycling; per suggestion an offer of each candidate.
//! Source: Fucina's speculation index; the choice by gain and scoring without drafting are ours.

use std::sync::Arc;

use crate::candidate::{Candidate, Now, Offer, Reference, registered};
use crate::error::{OptionsError, ReferenceError, check_range};
use crate::frozen::FrozenIndex;
use crate::policy::{CascadeOptions, Choice, Rater};
use crate::score::{BUCKETS, BucketRate};
use crate::source::{Budget, Draft, DraftSource, Part, SourceError, TopkRow};
use crate::suffix::SuffixIndex;
use crate::table::MAX_DRAFT;

#[cfg(test)]
mod tests;

/// The largest vocabulary that a cascade takes.
pub const MAX_VOCAB: usize = 1 << 22;
/// Committed tokens that are remembered for D4. No step commits more than a draft and one.
const RECENT: usize = MAX_DRAFT + 2;
/// Where the conversation stands among the candidates; references stand behind it.
const CONVERSATION: usize = 0;

/// Names a reference until it is removed; never given twice by one cascade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReferenceId(pub u64);

/// A reference as its owner knows it; the candidate at `CONVERSATION` + 1 + its place drafts from it.
#[derive(Debug)]
struct Document {
    id: ReferenceId,
    index: Arc<FrozenIndex>,
}

/// The candidates and the choice among them.
#[derive(Debug)]
pub struct Cascade {
    options: CascadeOptions,
    n_vocab: usize,
    index: SuffixIndex,
    /// The newest observed token, also when the index is shut.
    last: Option<u32>,
    candidates: Vec<Box<dyn Candidate>>,
    documents: Vec<Document>,
    next_id: u64,
    rater: Rater,
    /// Whether the conversation drafts.
    quotes: bool,
    /// `pending[n]`: cost above a plain step if n tokens of the pending draft are verified. Empty: no draft is pending.
    pending: Vec<f64>,
    /// Tokens that come in any case before the pending draft.
    ahead: usize,
    /// The last committed tokens, preceded by the one before them.
    recent: Vec<u32>,
    /// The offer that is looked at, and the best one so far.
    trial: Offer,
    offer: Offer,
}

impl Cascade {
    /// A cascade for tokens below `n_vocab`, without a stream or references.
    ///
    /// # Errors
    /// An option is out of its range, or `n_vocab` is not 1 to [`MAX_VOCAB`].
    pub fn new(n_vocab: usize, options: CascadeOptions) -> Result<Self, OptionsError> {
        check_range("n_vocab", n_vocab, 1, MAX_VOCAB)?;
        options.validate()?;
        Ok(Self {
            n_vocab,
            index: SuffixIndex::new(),
            last: None,
            candidates: registered(n_vocab, &options),
            documents: Vec::new(),
            next_id: 1,
            rater: Rater::new(),
            quotes: true,
            pending: Vec::new(),
            ahead: 0,
            recent: Vec::new(),
            trial: Offer::default(),
            offer: Offer::default(),
            options,
        })
    }

    /// The options it was made with.
    pub fn options(&self) -> &CascadeOptions {
        &self.options
    }

    /// The index of the conversation.
    pub fn index(&self) -> &SuffixIndex {
        &self.index
    }

    /// Offers a document to quote from. Indexing takes time in proportion to its length.
    ///
    /// # Errors
    /// A token is not below `n_vocab`, or the document cannot be indexed. Nothing was added.
    pub fn add_reference(&mut self, tokens: &[u32]) -> Result<ReferenceId, ReferenceError> {
        if let Some(pos) = tokens.iter().position(|&token| token as usize >= self.n_vocab) {
            return Err(ReferenceError::TokenOutOfRange { token: tokens[pos], pos, n_vocab: self.n_vocab });
        }
        Ok(self.add_index(Arc::new(FrozenIndex::build(tokens)?)))
    }

    /// Offers a document that is already indexed, for instance by another session.
    pub fn add_index(&mut self, index: Arc<FrozenIndex>) -> ReferenceId {
        let id = ReferenceId(self.next_id);
        self.next_id += 1;
        let name = format!("reference-{}", id.0).into();
        let reference = Reference::new(name, index.clone(), &self.options, &self.index);
        self.documents.push(Document { id, index });
        self.candidates.insert(CONVERSATION + self.documents.len(), Box::new(reference));
        id
    }

    /// The references, first added first.
    pub fn references(&self) -> impl ExactSizeIterator<Item = ReferenceId> + '_ {
        self.documents.iter().map(|document| document.id)
    }

    /// Their indexes, first added first, for another cascade's [`Self::add_index`].
    pub fn reference_indexes(&self) -> Vec<Arc<FrozenIndex>> {
        self.documents.iter().map(|document| document.index.clone()).collect()
    }

    /// Takes a reference away. False if there is none of that id.
    pub fn remove_reference(&mut self, id: ReferenceId) -> bool {
        let Some(at) = self.documents.iter().position(|document| document.id == id) else { return false };
        self.documents.remove(at);
        self.candidates.remove(CONVERSATION + 1 + at);
        self.pending.clear();
        true
    }

    /// Takes all references away.
    pub fn clear_references(&mut self) {
        self.candidates.drain(CONVERSATION + 1..CONVERSATION + 1 + self.documents.len());
        self.documents.clear();
        self.pending.clear();
    }

    /// Whether to draft from the conversation itself, as at first; it learns in any case.
    pub fn quote_conversation(&mut self, quotes: bool) {
        self.quotes = quotes;
    }

    /// Acceptance rates by match length, for each candidate in the order of `parts`.
    pub fn rates(&self) -> Vec<(String, [BucketRate; BUCKETS])> {
        self.candidates.iter().map(|candidate| (candidate.name().to_string(), candidate.rates())).collect()
    }

    /// The candidate that gains most, by its place, and how much it drafts.
    fn pick(&mut self, token: u32, ahead: &[u32], budget: &Budget<'_>) -> Option<(usize, Choice)> {
        let now = Now { stream: &self.index, last: self.last, ahead };
        let mut best: Option<(usize, Choice)> = None;
        for (at, candidate) in self.candidates.iter_mut().enumerate() {
            if at == CONVERSATION && !self.quotes {
                continue;
            }
            self.trial.clear();
            candidate.offer(now, token, budget.max_tokens, &mut self.trial);
            if let Some(choice) = self.rater.choose(&self.trial, budget)
                && best.is_none_or(|(_, leader)| choice.gain > leader.gain)
            {
                best = Some((at, choice));
                std::mem::swap(&mut self.trial, &mut self.offer);
            }
        }
        best
    }

    /// Teaches every candidate one token.
    #[inline]
    fn learn(&mut self, token: u32, scored: bool) {
        let now = Now { stream: &self.index, last: self.last, ahead: &[] };
        self.candidates.iter_mut().for_each(|candidate| candidate.learn(now, token, scored));
        // A failed append shuts the index, which remembers why.
        let _ = self.index.append(token);
        self.last = Some(token);
    }

    fn remember(&mut self, before: Option<u32>, committed: &[u32]) {
        self.recent.clear();
        let newest = &committed[committed.len().saturating_sub(RECENT)..];
        self.recent.extend(before.filter(|_| newest.len() == committed.len()));
        self.recent.extend(newest);
    }
}

impl DraftSource for Cascade {
    fn suggest(&mut self, context: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        self.pending.clear();
        draft.clear();
        let Some(&token) = context.last() else { return Ok(()) };
        let (known, ahead) = context.split_at(context.len().saturating_sub(budget.ahead));
        // Candidates follow the stream: they cannot go on from a context that is not its own.
        if !ahead.is_empty() && known.last().copied() != self.last {
            return Ok(());
        }
        let Some((at, Choice { len, .. })) = self.pick(token, ahead, &budget) else { return Ok(()) };
        let now = Now { stream: &self.index, last: self.last, ahead };
        let candidate = &mut self.candidates[at];
        candidate.draft(now, token, len, &mut draft.tokens);
        draft.reach.extend_from_slice(&self.offer.reach[..len]);
        draft.source = Some(candidate.name().clone());
        self.pending.extend((0..=len).map(|n| budget.extra(n) + self.offer.cost(len)));
        self.ahead = budget.ahead;
        Ok(())
    }

    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        // Several tokens without a draft are a prompt: text of another kind, not a step.
        let is_step = !self.pending.is_empty() || committed.len() == 1;
        let extra = self.pending.last().copied().unwrap_or(0.0);
        self.pending.clear();
        let ahead = std::mem::take(&mut self.ahead);
        if committed.is_empty() {
            return Ok(());
        }
        if is_step {
            // What came in any case was not won by the draft.
            self.rater.record(extra, committed.len().saturating_sub(ahead).max(1));
        }
        self.remember(self.last, committed);
        for &token in committed {
            self.learn(token, is_step);
        }
        Ok(())
    }

    /// None: rows are taken where they are offered, but recycling follows the newest successor, and after each step that is the committed one (D4). Asking
    /// would cost every verification and change no draft.
    fn topk(&self) -> usize {
        0
    }

    fn observe_topk(&mut self, rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        self.candidates.iter_mut().for_each(|candidate| candidate.learn_rows(rows, &self.recent));
        Ok(())
    }

    fn truncate_pending(&mut self, n: usize) {
        // Without a draft the list stays empty.
        self.pending.truncate(if n == 0 { 0 } else { n + 1 });
    }

    fn give_way(&mut self, extra: Option<f64>) {
        self.pending.clear();
        self.pending.extend(extra);
    }

    /// The quotation whose first token is most likely; ties go to the candidate that stands first.
    fn graft(&mut self, context: &[u32], guessed: &[u32], max: usize, draft: &mut Draft) -> Result<(), SourceError> {
        if context.last().copied() != self.last {
            return Ok(());
        }
        let Some(&last) = guessed.last() else { return Ok(()) };
        let now = Now { stream: &self.index, last: self.last, ahead: guessed };
        let quoting = &mut self.candidates[..=CONVERSATION + self.documents.len()];
        for (at, candidate) in quoting.iter_mut().enumerate() {
            if at == CONVERSATION && !self.quotes {
                continue;
            }
            self.trial.clear();
            candidate.offer(now, last, max, &mut self.trial);
            if let Some(first) = self.trial.reach.first()
                && draft.reach.first().is_none_or(|best| first > best)
            {
                draft.clear();
                candidate.draft(now, last, self.trial.reach.len(), &mut draft.tokens);
                draft.reach.extend_from_slice(&self.trial.reach);
                draft.source = Some(candidate.name().clone());
            }
        }
        Ok(())
    }

    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        self.pending.clear();
        self.remember(None, history);
        self.last = history.last().copied();
        let _ = self.index.rebuild(history);
        let now = Now { stream: &self.index, last: self.last, ahead: &[] };
        self.candidates.iter_mut().for_each(|candidate| candidate.rewind(now, history));
        Ok(())
    }

    fn parts(&self) -> Vec<Part> {
        let now = Now { stream: &self.index, last: self.last, ahead: &[] };
        self.candidates.iter().map(|c| Part { name: c.name().clone(), shut: c.shut(now) }).collect()
    }
}
