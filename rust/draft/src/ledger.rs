//! The ledger: what the parts of a source drafted in this request, what was accepted, and how acceptance falls with depth.
//!
//! In: verified drafts, each with the name of its part. Out: counts for `stats`; the reach of drafts whose source gives none.
//!
//! L1  Counts are those of the request; rates of acceptance outlast it.
//! L2  The rate of depth i is that of drafted token i being right where those before it were. A token that was not sampled, because a stop ended the step
//!     before it, counts for nothing.

use std::sync::Arc;

use crate::lane::DepthCount;
use crate::score::Score;
use crate::source::{Draft, Part};

/// What one part of a source has done in a request.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceStats {
    /// `conversation`, `reference-1`, `recycling`, or the name of a user's source.
    pub name: Arc<str>,
    /// Drafts that were verified.
    pub drafts: u64,
    /// Tokens in those drafts.
    pub drafted: u64,
    /// Tokens among them that were committed.
    pub accepted: u64,
    /// Of those, tokens that were quoted behind guesses of this part ([`DraftSource::graft`](crate::DraftSource::graft)).
    pub grafted: u64,
    /// Nanoseconds that its guesses took; 0 where guessing is not timed.
    pub ns: u64,
    /// Verified and accepted tokens by their place in the draft.
    pub depths: Vec<DepthCount>,
    /// Why it drafts nothing any more, if so.
    pub reason: Option<String>,
}

impl SourceStats {
    fn new(name: Arc<str>) -> Self {
        Self { name, drafts: 0, drafted: 0, accepted: 0, grafted: 0, ns: 0, depths: Vec::new(), reason: None }
    }

    /// Accepted tokens per drafted token, 0 to 1; 0 if nothing was drafted.
    pub fn acceptance(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.accepted as f64 / self.drafted as f64 }
    }
}

/// One part.
#[derive(Debug, Clone)]
struct Account {
    stats: SourceStats,
    /// Acceptance by depth.
    depths: Score,
}

/// All parts that have drafted, and the whole of a source that names none.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    accounts: Vec<Account>,
    /// Stands for a draft without a name.
    unnamed: Arc<str>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { accounts: Vec::new(), unnamed: "source".into() }
    }

    /// Begins a request.
    pub(crate) fn begin_request(&mut self) {
        for account in &mut self.accounts {
            account.stats = SourceStats::new(account.stats.name.clone());
        }
    }

    /// Whether a name stands for a source that names none.
    pub(crate) fn is_unnamed(&self, name: &Arc<str>) -> bool {
        *name == self.unnamed
    }

    fn account(&mut self, name: Option<&Arc<str>>) -> &mut Account {
        let name = name.unwrap_or(&self.unnamed);
        let at = self.accounts.iter().position(|account| account.stats.name == *name).unwrap_or_else(|| {
            self.accounts.push(Account { stats: SourceStats::new(name.clone()), depths: Score::of_depths() });
            self.accounts.len() - 1
        });
        &mut self.accounts[at]
    }

    /// Writes the reach of a draft from what its part's drafts have become.
    pub(crate) fn fill_reach(&mut self, draft: &mut Draft) {
        draft.reach.clear();
        self.account(draft.source.as_ref()).depths.reach(0, 1, draft.tokens.len(), &mut draft.reach);
    }

    /// Enters a verified draft of `drafted` tokens, of which the first `guessed` are its part's own. `committed` is at most `accepted` if a stop ended the step
    /// inside the draft.
    pub(crate) fn settle(
        &mut self,
        source: Option<&Arc<str>>,
        (drafted, guessed): (usize, usize),
        accepted: usize,
        committed: usize,
    ) {
        let account = self.account(source);
        account.stats.drafts += 1;
        account.stats.drafted += drafted as u64;
        account.stats.accepted += accepted as u64;
        account.stats.grafted += accepted.saturating_sub(guessed) as u64;
        let tried = drafted.min(committed).min(accepted + 1);
        if account.stats.depths.len() < tried {
            account.stats.depths.resize(tried, DepthCount::default());
        }
        for (depth, count) in account.stats.depths[..tried].iter_mut().enumerate() {
            count.tried += 1;
            count.right += u64::from(depth < accepted);
        }
        (0..accepted).for_each(|depth| account.depths.record(depth, true));
        if accepted < drafted.min(committed) {
            account.depths.record(accepted, false);
        }
    }

    /// The counts: first of `parts` in their order, then of others that have drafted; of the whole if there is nothing else.
    pub(crate) fn stats(&self, parts: Vec<Part>) -> Vec<SourceStats> {
        let mut all: Vec<SourceStats> =
            parts.into_iter().map(|part| SourceStats { reason: part.shut, ..SourceStats::new(part.name) }).collect();
        for account in &self.accounts {
            match all.iter_mut().find(|stats| stats.name == account.stats.name) {
                Some(stats) => *stats = SourceStats { reason: stats.reason.take(), ..account.stats.clone() },
                None if account.stats.drafts > 0 => all.push(account.stats.clone()),
                None => {}
            }
        }
        if all.is_empty() {
            all.push(SourceStats::new(self.unnamed.clone()));
        }
        all
    }
}
