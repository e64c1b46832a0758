//! The cascade: of everything that could guess, who drafts now, and how much.
//!
//! In: committed tokens, top-k rows, references. Out: one draft a step, to the decoder. It is quoth's own draft source.
//!
//! D1  Candidates are the conversation's suffix index and the references, each with its match; where none has a match of
//!     `min_match`, the recycling matrix. Under `Fixed` the longest match wins, ties to the conversation and then to the
//!     reference that was added first; under `BestRate` the greatest expected gain, the same order breaking ties.
//! D2  Everything that follows the stream is asked only when the context ends with the last token it has seen.
//! D3  A suggestion of `min_draft` tokens or more is pending until the next `observe` settles it: accepted is its common
//!     prefix with what was committed. Tokens after the last committed one were never verified and count for nothing.
//! D4  Sources learn whether they draft or not. A shut conversation index leaves references and recycling at work.
//! D5  Committed bigrams outlast the rows that were sampled in the same step: after `observe_topk` they are promoted again.
//! D6  A reference joins at the place where it would be had it been there from the start.
//!
//! Cost: per committed token one append, one step of each reference's cursor, one row of the matrix.
//! Source: Fucina's speculation index; `BestRate` and scoring without drafting are ours.

use std::sync::Arc;

use crate::error::{OptionsError, ReferenceError, check_range};
use crate::frozen::{Cursor, FrozenIndex};
use crate::ledger::Ledger;
use crate::policy::{CascadeOptions, Choice, Policy, Rater};
use crate::recycle::Recycler;
use crate::score::{BUCKETS, BucketRate, Score};
use crate::source::{DraftSource, SourceError, SourceStats, TopkRow};
use crate::suffix::SuffixIndex;

#[cfg(test)]
mod tests;

/// The largest vocabulary that is believed.
pub const MAX_VOCAB: usize = 1 << 22;
/// Committed tokens that are remembered for D5. No step commits more than a draft and one.
const RECENT: usize = crate::cost::MAX_DRAFT + 2;

/// Names a reference until it is removed; never given twice by one cascade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReferenceId(pub u64);

#[derive(Debug, Clone)]
struct Reference {
    id: ReferenceId,
    index: Arc<FrozenIndex>,
    cursor: Cursor,
    ledger: Ledger,
}

/// Who drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Conversation,
    /// By place in the list.
    Reference(usize),
    Recycling,
}

/// The sources and the choice among them.
#[derive(Debug, Clone)]
pub struct Cascade {
    options: CascadeOptions,
    n_vocab: usize,
    index: SuffixIndex,
    conversation: Ledger,
    references: Vec<Reference>,
    next_id: u64,
    recycler: Option<Recycler>,
    recycling: Ledger,
    /// The newest observed token, also when the index is shut.
    last: Option<u32>,
    pending: Option<Origin>,
    /// The pending draft.
    draft: Vec<u32>,
    /// The tokens of the last `observe`, preceded by the one before them.
    recent: Vec<u32>,
    rater: Option<Rater>,
    /// Whether the conversation drafts.
    quotes: bool,
}

impl Cascade {
    /// A cascade for tokens below `n_vocab`, without a stream or references.
    ///
    /// # Errors
    /// An option is out of its range, or `n_vocab` is not 1 to [`MAX_VOCAB`].
    pub fn new(n_vocab: usize, options: CascadeOptions) -> Result<Self, OptionsError> {
        check_range("n_vocab", n_vocab, 1, MAX_VOCAB)?;
        options.validate()?;
        let rater = match &options.policy {
            Policy::BestRate { costs } => Some(Rater::new(costs)),
            Policy::Fixed { .. } => None,
        };
        Ok(Self {
            n_vocab,
            index: SuffixIndex::new(),
            conversation: Ledger::new(&options, Score::of_matches()),
            references: Vec::new(),
            next_id: 1,
            recycler: options.recycling.then(|| Recycler::new(n_vocab)),
            recycling: Ledger::new(&options, Score::of_guesses()),
            last: None,
            pending: None,
            draft: Vec::new(),
            recent: Vec::new(),
            rater,
            quotes: true,
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
        let ledger = Ledger::new(&self.options, Score::of_matches());
        let mut reference = Reference { id, index, cursor: Cursor::default(), ledger };
        reference.catch_up(&self.index);
        self.references.push(reference);
        id
    }

    /// The references, first added first.
    pub fn references(&self) -> impl ExactSizeIterator<Item = ReferenceId> + '_ {
        self.references.iter().map(|reference| reference.id)
    }

    /// Their indexes, first added first, for another cascade's [`Self::add_index`].
    pub fn reference_indexes(&self) -> Vec<Arc<FrozenIndex>> {
        self.references.iter().map(|r| r.index.clone()).collect()
    }

    /// Takes a reference away. False if there is none of that id.
    pub fn remove_reference(&mut self, id: ReferenceId) -> bool {
        let before = self.references.len();
        self.references.retain(|reference| reference.id != id);
        if self.references.len() < before {
            self.pending = None;
        }
        self.references.len() < before
    }

    /// Takes all references away.
    pub fn clear_references(&mut self) {
        self.references.clear();
        self.pending = None;
    }

    /// Tells `BestRate` how far live timings are from its table, as [`crate::GateStats::scale`] says; a positive number.
    pub fn set_cost_scale(&mut self, scale: f64) {
        if let Some(rater) = &mut self.rater {
            rater.set_scale(scale);
        }
    }

    /// Whether to draft from the conversation itself, as at first; it learns in any case.
    pub fn quote_conversation(&mut self, quotes: bool) {
        self.quotes = quotes;
    }

    /// Acceptance rates by match length, for each source in the order of `stats`.
    pub fn rates(&self) -> Vec<(String, [BucketRate; BUCKETS])> {
        let names = self.stats().into_iter().map(|stats| stats.name);
        let mut ledgers = vec![&self.conversation];
        ledgers.extend(self.references.iter().map(|reference| &reference.ledger));
        ledgers.push(&self.recycling);
        names.zip(ledgers).map(|(name, ledger)| (name, ledger.score.table())).collect()
    }

    fn ledger(&mut self, origin: Origin) -> &mut Ledger {
        match origin {
            Origin::Conversation => &mut self.conversation,
            Origin::Reference(at) => &mut self.references[at].ledger,
            Origin::Recycling => &mut self.recycling,
        }
    }

    /// The length of a draft from a source with a match, and what makes it better than another's.
    fn choice(&self, ledger: &Ledger, match_len: usize, max: usize) -> Option<Choice> {
        if match_len < self.options.min_match || max < self.options.min_draft || ledger.muted() {
            return None;
        }
        match (&self.options.policy, &self.rater) {
            (_, Some(rater)) => rater.choose(&ledger.score, match_len, 1, self.options.min_draft, max),
            (Policy::Fixed { budget_factor }, None) => {
                Some(Choice { len: max.min(budget_factor * (1 + match_len)), gain: match_len as f64 })
            }
            (Policy::BestRate { .. }, None) => None,
        }
    }

    /// The best source that follows the stream, with the length of its draft.
    fn follower(&self, max: usize) -> Option<(Origin, Choice)> {
        let match_len = if self.quotes { self.index.match_len() } else { 0 };
        let first = self.choice(&self.conversation, match_len, max);
        let mut best = first.map(|choice| (Origin::Conversation, choice));
        for (at, reference) in self.references.iter().enumerate() {
            let available = reference.index.available(&reference.cursor);
            let choice = self.choice(&reference.ledger, reference.cursor.match_len(), max.min(available));
            if let Some(choice) = choice
                && best.is_none_or(|(_, leader)| choice.gain > leader.gain)
            {
                best = Some((Origin::Reference(at), choice));
            }
        }
        best.filter(|(_, choice)| choice.len >= self.options.min_draft)
    }

    /// Drafts the recycling chain after `token` if it is worth more than `leader`.
    fn recycle(&self, token: u32, max: usize, leader: f64, out: &mut Vec<u32>) -> bool {
        let Some(recycler) = self.recycler.as_ref().filter(|_| !self.recycling.muted()) else { return false };
        recycler.draft(token, max.min(self.options.chain), out);
        if let Some(rater) = &self.rater {
            let choice = rater.choose(&self.recycling.score, 0, 0, self.options.min_draft, out.len());
            out.truncate(choice.filter(|choice| choice.gain > leader).map_or(0, |choice| choice.len));
        }
        if out.len() < self.options.min_draft {
            out.clear();
        }
        !out.is_empty()
    }

    fn pick(&self, token: u32, max: usize, out: &mut Vec<u32>) -> Option<Origin> {
        let follower = if self.last == Some(token) { self.follower(max) } else { None };
        let gain = follower.map_or(0.0, |(_, choice)| choice.gain);
        if (follower.is_none() || self.rater.is_some()) && self.recycle(token, max, gain, out) {
            return Some(Origin::Recycling);
        }
        let (origin, choice) = follower?;
        match origin {
            Origin::Reference(at) => {
                let reference = &self.references[at];
                reference.index.draft(&reference.cursor, choice.len, out);
            }
            _ => self.index.draft(choice.len, out),
        }
        Some(origin)
    }

    /// Settles the pending draft against what was committed.
    fn settle(&mut self, committed: &[u32]) {
        let Some(origin) = self.pending.take() else { return };
        let accepted = self.draft.iter().zip(committed).take_while(|(a, b)| a == b).count();
        // All committed tokens were drafted ones: a stop ended the step before the rest was verified.
        let verified = if accepted == committed.len() { accepted } else { self.draft.len() };
        self.ledger(origin).settle(accepted, verified);
    }

    /// Teaches every source one token.
    #[inline]
    fn learn(&mut self, token: u32, scored: bool) {
        if scored && let Some(next) = self.index.next_token() {
            self.conversation.score.record(self.index.match_len(), next == token);
        }
        // A failed append shuts the index, which remembers why.
        let _ = self.index.append(token);
        for reference in &mut self.references {
            if scored && let Some(next) = reference.index.next_token(&reference.cursor) {
                reference.ledger.score.record(reference.cursor.match_len(), next == token);
            }
            reference.index.advance(&mut reference.cursor, token);
        }
        if let (Some(recycler), Some(last)) = (&mut self.recycler, self.last) {
            if scored && let Some(next) = recycler.first(last) {
                self.recycling.score.record(0, next == token);
            }
            recycler.promote(last, token);
        }
        self.last = Some(token);
    }

    fn remember(&mut self, before: Option<u32>, committed: &[u32]) {
        self.recent.clear();
        if self.recycler.is_some() {
            let newest = &committed[committed.len().saturating_sub(RECENT)..];
            self.recent.extend(before.filter(|_| newest.len() == committed.len()));
            self.recent.extend(newest);
        }
    }
}

impl Reference {
    /// Moves the cursor to where the end of the stream leaves it. No match is longer than the document, so no more of the
    /// stream needs reading.
    fn catch_up(&mut self, stream: &SuffixIndex) {
        self.cursor = Cursor::default();
        for token in stream.tokens().skip(stream.len().saturating_sub(self.index.len())) {
            self.index.advance(&mut self.cursor, token);
        }
    }
}

impl DraftSource for Cascade {
    fn suggest(&mut self, context: &[u32], max_tokens: usize, out: &mut Vec<u32>) -> Result<(), SourceError> {
        self.pending = None;
        out.clear();
        let Some(&token) = context.last() else { return Ok(()) };
        if max_tokens < self.options.min_draft {
            return Ok(());
        }
        self.pending = self.pick(token, max_tokens, out);
        if self.pending.is_some() {
            self.draft.clone_from(out);
        }
        Ok(())
    }

    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        if committed.is_empty() {
            self.pending = None;
            return Ok(());
        }
        // Several tokens without a draft are a prompt: text of another kind, not a step.
        let is_step = self.pending.is_some() || committed.len() == 1;
        let drafted = if self.pending.is_some() { self.draft.len() } else { 0 };
        self.conversation.pass(committed.len());
        self.recycling.pass(committed.len());
        self.references.iter_mut().for_each(|reference| reference.ledger.pass(committed.len()));
        self.settle(committed);
        if is_step && let Some(rater) = &mut self.rater {
            rater.record(drafted, committed.len());
        }
        self.remember(self.last, committed);
        for &token in committed {
            self.learn(token, is_step);
        }
        Ok(())
    }

    /// None: rows are taken where they are offered, but a chain follows first columns, and after each step those are the committed bigrams (D5). Asking
    /// would cost every verification and change no draft.
    fn topk(&self) -> usize {
        0
    }

    fn observe_topk(&mut self, rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        if let Some(recycler) = &mut self.recycler {
            rows.iter().for_each(|row| recycler.overwrite(row.token, row.top));
            self.recent.windows(2).for_each(|pair| recycler.promote(pair[0], pair[1]));
        }
        Ok(())
    }

    fn truncate_pending(&mut self, n: usize) {
        self.draft.truncate(n);
        if self.draft.len() < self.options.min_draft {
            self.pending = None;
        }
    }

    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        self.pending = None;
        self.remember(None, history);
        self.last = history.last().copied();
        let _ = self.index.rebuild(history);
        if let Some(recycler) = &mut self.recycler {
            history.windows(2).for_each(|pair| recycler.promote(pair[0], pair[1]));
        }
        self.conversation.forgive();
        self.recycling.forgive();
        for reference in &mut self.references {
            reference.ledger.forgive();
            reference.catch_up(&self.index);
        }
        Ok(())
    }

    fn stats(&self) -> Vec<SourceStats> {
        let shut = self.index.failed().map(|error| error.to_string());
        let mut all = vec![self.conversation.stats("conversation".into(), shut)];
        for reference in &self.references {
            all.push(reference.ledger.stats(format!("reference-{}", reference.id.0), None));
        }
        if self.recycler.is_some() {
            all.push(self.recycling.stats("recycling".into(), None));
        }
        all
    }
}
