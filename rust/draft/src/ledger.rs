//! The book of one source inside the cascade: what it drafted, what was accepted, how long it is muted.
//!
//! In: settled drafts, committed tokens. Out: counts for `stats`, "muted" to `cascade`, acceptance rates to `policy`.
//!
//! L1  A muted source stays so for exactly `mute_tokens` tokens committed after the step that muted it. Nothing mutes for good.
//! L2  Muting empties the window: the next judgement rests on new drafts alone.

use crate::policy::{CascadeOptions, Policy};
use crate::score::Score;
use crate::source::SourceStats;
use crate::window::Window;

#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    drafts: u64,
    drafted: u64,
    accepted: u64,
    mutes: u64,
    muted_for: usize,
    /// Accepted of drafted tokens when it was last muted.
    muted_at: Option<(usize, usize)>,
    mute_below: f64,
    mute_tokens: usize,
    window: Window,
    pub(crate) score: Score,
}

impl Ledger {
    pub(crate) fn new(options: &CascadeOptions, score: Score) -> Self {
        // Under `BestRate` the rates themselves say when not to draft.
        let mute_below = if matches!(options.policy, Policy::Fixed { .. }) { options.mute_below } else { 0.0 };
        Self {
            drafts: 0,
            drafted: 0,
            accepted: 0,
            mutes: 0,
            muted_for: 0,
            muted_at: None,
            mute_below,
            mute_tokens: options.mute_tokens,
            window: Window::new(options.mute_window),
            score,
        }
    }

    pub(crate) fn muted(&self) -> bool {
        self.muted_for > 0
    }

    /// Counts committed tokens off a mute.
    pub(crate) fn pass(&mut self, committed: usize) {
        self.muted_for = self.muted_for.saturating_sub(committed);
    }

    /// Forgets recent acceptance, and with it a mute.
    pub(crate) fn forgive(&mut self) {
        self.muted_for = 0;
        self.window.clear();
    }

    /// Enters a verified draft and judges the window.
    pub(crate) fn settle(&mut self, accepted: usize, drafted: usize) {
        self.drafts += 1;
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        self.window.record(accepted, drafted);
        if let Some((right, all)) = self.window.full()
            && (right as f64) < self.mute_below * all as f64
        {
            self.mutes += 1;
            self.muted_for = self.mute_tokens;
            self.muted_at = Some((right, all));
            self.window.clear();
        }
    }

    pub(crate) fn stats(&self, name: String, shut: Option<String>) -> SourceStats {
        let low = |(right, all)| format!("{right} of the last {all} drafted tokens were accepted");
        SourceStats {
            name,
            drafts: self.drafts,
            drafted: self.drafted,
            accepted: self.accepted,
            mutes: self.mutes,
            muted: self.muted() || shut.is_some(),
            reason: shut.or_else(|| self.muted_at.map(low)),
        }
    }
}
