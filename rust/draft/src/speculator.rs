//! The speculator of a sequence: a source, lanes of dearer drafters, gates, the budget and the limits on a draft. Decoder, replay and `DraftIndex` draft through it alone.
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
//! U6  Lanes come between `propose` and `cut`: `ask` names the lane whose draft is expected to gain more than the source's, if any; `take` gets its guesses one
//!     by one and says whether another one pays; `finish` chooses how many are verified, or the source's draft after all. Gains are those of `policy`, with
//!     the time of guesses among the costs. Behind forced tokens no lane is asked: a head has no hidden rows of them.
//! U7  Graft: behind each guess the source may quote ([`DraftSource::graft`]). A quotation takes the guesses' place where its next token is as likely as the
//!     lane's, since it takes no time, and where no further guess pays.
//!
//! Cost: that of the source, and a look-up in the cost model for each token that may be drafted.

use std::fmt;
use std::sync::Arc;

use crate::cost::{CostStats, Costs};
use crate::error::{OptionsError, check_range};
use crate::gate::{Gate, GateState, GateStats};
use crate::lane::Lane;
use crate::ledger::{Ledger, SourceStats};
use crate::policy::Rater;
use crate::source::{Budget, Draft, DraftSource, Part, SourceError, TopkRow};
use crate::table::MAX_DRAFT;

#[cfg(test)]
mod lanes;
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

impl Bounds<'_> {
    /// Whether a token ends a draft: it is not in the vocabulary, or ends the generation.
    fn excludes(&self, token: u32) -> bool {
        token as usize >= self.n_vocab || self.stop_ids.binary_search(&token).is_ok()
    }
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

/// A lane that is to draft now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its number, in the order in which lanes were added.
    pub lane: usize,
    /// Most tokens that it may guess.
    pub most: usize,
}

/// A step's lane and what was decided about it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    ask: Ask,
    /// Whether it drafts to learn rather than to gain: what it guesses is verified whatever its rates say.
    exploring: bool,
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
    lanes: Vec<Lane>,
    rater: Rater,
    /// Longest draft of this step; 0 if it must be plain.
    most: usize,
    /// The lane that was asked in this step.
    asked: Option<Asked>,
    /// The lane that made this step's draft; `None`: the source.
    drafting: Option<usize>,
    /// Levels of the lane's own guesses in the draft; quotations may follow them.
    levels: Vec<usize>,
    /// The source's draft while a lane drafts, and a quotation behind its guesses.
    quoted: Draft,
    graft: Draft,
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
            lanes: Vec::new(),
            rater: Rater::new(),
            most: 0,
            asked: None,
            drafting: None,
            levels: Vec::new(),
            quoted: Draft::default(),
            graft: Draft::default(),
            top: Vec::new(),
            top_lens: Vec::new(),
        })
    }

    /// Adds a lane with a gate like the source's: `assumed` is what a guess takes in plain steps before it was timed. Its number is that of lanes before it.
    pub fn add_lane(&mut self, name: Arc<str>, assumed: f64) {
        // The source's gate was made with these options, so they are in range.
        let Ok(gate) = Gate::new(*self.gate.options()) else { return };
        self.lanes.push(Lane::new(name, gate, assumed));
    }

    /// Whether a lane may draft in the steps to come, so that it must learn what is committed.
    pub fn listens(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_some_and(Lane::listens)
    }

    /// A lane cannot go on: it is asked no more.
    pub fn fail_lane(&mut self, lane: usize, reason: String) {
        self.lanes[lane].failed.get_or_insert(reason);
    }

    /// A lane worked so long on what was committed, beside its guesses.
    pub fn lane_worked(&mut self, lane: usize, ns: u64) {
        self.lanes[lane].spent_ns += ns;
        self.lanes[lane].ns += ns;
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
        self.lanes.iter_mut().for_each(Lane::begin_request);
    }

    /// Gives the source to `call` unless it has failed, and keeps the error if it fails now.
    fn tell(&mut self, call: impl FnOnce(&mut dyn DraftSource) -> Result<(), SourceError>) {
        if self.disabled.is_none() {
            self.disabled = call(&mut *self.source).err();
        }
    }

    /// Tokens that were committed: a prompt, or all kept tokens of a step.
    pub fn observe(&mut self, committed: &[u32]) {
        self.pending = false;
        self.tell(|source| source.observe(committed));
    }

    /// The stream goes on from another history.
    pub fn rebuild(&mut self, history: &[u32]) {
        self.pending = false;
        self.tell(|source| source.rebuild(history));
    }

    /// Nothing was committed on the draft of this step: the source must not take what comes next for its outcome (U2).
    pub fn drop_pending(&mut self) {
        if std::mem::take(&mut self.pending) {
            self.tell_cut(0);
        } else if self.drafting.is_some() && self.disabled.is_none() {
            self.source.give_way(None);
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
        self.levels.clear();
        (self.asked, self.drafting, self.most) = (None, None, 0);
        self.load = load;
        let spans = load.spans + 1;
        let longest = MAX_DRAFT.min(bounds.room).min(bounds.wanted.saturating_sub(1));
        self.forced = bounds.forced.len().min(longest);
        self.draft.tokens.extend_from_slice(&bounds.forced[..self.forced]);
        let likely = |i: usize| LIKELY.powi((i + 1).saturating_sub(bounds.certain) as i32);
        self.draft.reach.extend((0..self.forced).map(likely));
        self.draft.source = (self.forced > 0).then(|| self.grammar.clone());
        // While a gate is closed, each question is a step of its wait: it is asked first.
        self.lanes.iter_mut().for_each(Lane::ask);
        self.allowed = self.disabled.is_none() && self.gate.allows();
        let may = self.allowed || self.lanes.iter().any(|lane| lane.allowed);
        if may && !self.costs.lock().wants_plain_step(spans) {
            self.most = self.max_draft.min(longest - self.forced);
            self.costs.lock().extras(load.rows + self.forced, spans, load.cached, self.most, &mut self.extra);
        } else {
            self.allowed = false;
        }
        if self.allowed {
            let most = self.most;
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
        let usable = guess.tokens.iter().take(most).position(|t| bounds.excludes(*t)).unwrap_or(most).min(guess.len());
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

    /// Verifies only the first `n` tokens of the draft; of those that are not forced none, if that is less than the gate's `min_draft`. The source is told.
    pub fn cut(&mut self, n: usize) {
        let forced = n.min(self.forced);
        let guessed = n.min(self.draft.len()) - forced;
        let guessed = if guessed < self.gate.options().min_draft { 0 } else { guessed };
        if forced + guessed == self.draft.len() {
            return;
        }
        self.draft.truncate(forced + guessed);
        self.forced = forced;
        if self.drafting.is_some() {
            self.levels.truncate(guessed);
            if guessed == 0 {
                self.drop_pending();
                self.drafting = None;
            }
        } else if self.pending {
            self.tell_cut(guessed);
            self.pending = guessed > 0;
        }
        if guessed == 0 {
            self.draft.source = (forced > 0).then(|| self.grammar.clone());
        }
    }

    /// How many tokens the draft begins with that a constraint foretells.
    pub fn forced(&self) -> usize {
        self.forced
    }

    /// Names the lane whose draft is expected to gain more than the source's, if there is one among those that are `ready`.
    pub fn ask(&mut self, ready: impl Fn(usize) -> bool) -> Option<Ask> {
        let least = self.gate.options().min_draft;
        if self.most < least || self.forced > 0 {
            return None;
        }
        let (plain_ns, worth) = self.worth();
        let quoted = self.rater.gain(&self.draft.reach, &self.extra);
        let plain = self.draft.is_empty() || quoted <= 0.0;
        let mut best: Option<(f64, Asked)> = None;
        for (number, lane) in self.lanes.iter().enumerate().filter(|(i, lane)| lane.allowed && ready(*i)) {
            let most = lane.gate.budget(self.max_draft, &self.extra).min(self.most);
            if most < least {
                continue;
            }
            let cost = lane.cost(plain_ns);
            let (mut reach, mut expected, mut gain) = (1.0, 0.0, f64::NEG_INFINITY);
            for d in 1..=most {
                reach *= lane.depth_rate(d - 1);
                expected += reach;
                if d >= least {
                    gain = f64::max(gain, expected - self.rater.rate() * (self.extra[d] + cost.of(d) * worth));
                }
            }
            let ask = Ask { lane: number, most };
            if gain > quoted.max(0.0) {
                if best.is_none_or(|(leader, _)| gain > leader) {
                    best = Some((gain, Asked { ask, exploring: false }));
                }
            } else if plain && lane.tries() && best.is_none() {
                let ask = Ask { most: most.min(least.max(2)), ..ask };
                best = Some((0.0, Asked { ask, exploring: true }));
            }
        }
        self.asked = best.map(|(_, asked)| asked);
        for (number, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.allowed && plain) {
            match self.asked {
                Some(Asked { ask, exploring: false }) if ask.lane == number => lane.favoured(),
                Some(Asked { ask, exploring: true }) if ask.lane == number => lane.tried(),
                _ => lane.passed_over(),
            }
        }
        if self.asked.is_some() {
            std::mem::swap(&mut self.draft, &mut self.quoted);
            self.draft.clear();
        }
        self.asked.map(|asked| asked.ask)
    }

    /// The running plain step, and what its time is worth to the batch: as for rows, the whole batch waits for guesses.
    fn worth(&self) -> (Option<f64>, f64) {
        let (costs, Load { spans, cached, .. }) = (self.costs.lock(), self.load);
        (costs.plain_ns(cached), (spans + 1) as f64 / costs.cost(spans + 1, spans + 1, cached))
    }

    /// Takes the next guess of the asked lane, which took `ns`. Gives whether another one pays.
    pub fn take(&mut self, context: &[u32], token: u32, level: usize, ns: u64, bounds: &Bounds<'_>) -> bool {
        let Some(Asked { ask: Ask { lane: number, most }, exploring }) = self.asked else { return false };
        let (plain_ns, worth) = self.worth();
        let lane = &mut self.lanes[number];
        lane.timed(self.levels.len(), ns);
        if bounds.excludes(token) || self.draft.len() >= most {
            return false;
        }
        let reach = self.draft.reach.last().copied().unwrap_or(1.0) * lane.level_rate(level);
        self.draft.tokens.push(token);
        self.draft.reach.push(reach);
        self.levels.push(level);
        let n = self.draft.len();
        if n >= most {
            return false;
        }
        let (next, each) = (self.lanes[number].depth_rate(n), self.lanes[number].cost(plain_ns).each * worth);
        self.seek_graft(context, most - n, bounds);
        if self.graft.reach.first().is_some_and(|quoted| *quoted >= next) {
            self.append_graft(reach);
            return false;
        }
        let lane = &self.lanes[number];
        let (mut further, mut expected) = (reach, 0.0);
        let pays = (n + 1..=most).any(|d| {
            further *= lane.depth_rate(d - 1);
            expected += further;
            expected > self.rater.rate() * (self.extra[d] - self.extra[n] + each * (d - n) as f64)
        });
        if !pays && !exploring {
            self.append_graft(reach);
        }
        pays || exploring
    }

    /// What the source would quote behind the draft, cut to what may be drafted.
    fn seek_graft(&mut self, context: &[u32], most: usize, bounds: &Bounds<'_>) {
        self.graft.clear();
        if self.disabled.is_some() {
            return;
        }
        if let Err(error) = self.source.graft(context, &self.draft.tokens, most, &mut self.graft) {
            self.graft.clear();
            self.disabled = Some(error);
        }
        let n = self.graft.tokens.iter().take(most).position(|t| bounds.excludes(*t)).unwrap_or(most);
        self.graft.truncate(n);
        if !is_reach(&self.graft) {
            self.graft.clear();
        }
    }

    fn append_graft(&mut self, reach: f64) {
        self.draft.tokens.append(&mut self.graft.tokens);
        self.draft.reach.extend(self.graft.reach.drain(..).map(|chance| chance * reach));
    }

    /// The asked lane has given its last guess, or failed: chooses what is verified.
    pub fn finish(&mut self, failed: Option<String>) {
        let Some(Asked { ask: Ask { lane: number, .. }, exploring }) = self.asked else { return };
        if let Some(reason) = failed {
            self.fail_lane(number, reason);
        }
        let least = self.gate.options().min_draft;
        let (mut expected, mut best, mut best_gain) = (0.0, 0, 0.0);
        for (i, reach) in self.draft.reach.iter().enumerate() {
            expected += reach;
            let gain = expected - self.rater.rate() * self.extra[i + 1];
            if i + 1 >= least && (gain > best_gain || exploring) {
                (best, best_gain) = (i + 1, gain);
            }
        }
        if best == 0 || !exploring && best_gain < self.rater.gain(&self.quoted.reach, &self.extra) {
            std::mem::swap(&mut self.draft, &mut self.quoted);
            self.lanes[number].unverified(0, &self.levels);
            self.levels.clear();
            return;
        }
        self.draft.truncate(best);
        let verified = self.levels.len().min(best);
        self.lanes[number].unverified(verified, &self.levels[verified..]);
        self.levels.truncate(best);
        self.draft.source = Some(self.lanes[number].name.clone());
        if self.disabled.is_none() {
            let (plain_ns, worth) = self.worth();
            let guesses = self.lanes[number].cost(plain_ns).of(self.levels.len()) * worth;
            self.drop_pending();
            self.source.give_way(Some(self.extra[best] + guesses));
        }
        self.drafting = Some(number);
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
            self.tell(|source| source.observe_topk(&rows));
        }
        (self.top, self.top_lens) = (top, lens);
        self.top.clear();
        self.top_lens.clear();
    }

    /// A plain step before which `draft_ns` nanoseconds went into asking for a draft that did not come; 0 if none was asked for.
    pub fn record_plain(&mut self, draft_ns: u64) {
        let spent = self.lanes_spent(None);
        self.rater.record(spent, 1);
        // The whole batch waits for the suggestion; as for rows, its time is weighed by what it is worth to the batch.
        let (Some(plain_ns), worth) = self.worth() else { return };
        self.gate.record_plain(draft_ns as f64 / plain_ns * worth);
    }

    /// What lanes took in this step, in plain steps. Those that did not make the draft are charged with it: it brought nothing.
    fn lanes_spent(&mut self, drafting: Option<usize>) -> f64 {
        let (Some(plain_ns), worth) = self.worth() else {
            self.lanes.iter_mut().for_each(|lane| lane.spent_ns = 0);
            return 0.0;
        };
        let mut all = 0.0;
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            let spent = std::mem::take(&mut lane.spent_ns) as f64 / plain_ns * worth;
            all += spent;
            if drafting != Some(i) {
                lane.gate.record_plain(spent);
            }
        }
        all
    }

    /// A step that verified a draft of the source or of a lane: drafted tokens accepted, tokens committed, and its cost
    /// ([`crate::CostModel::draft_cost`]); `None` if the step failed or a stop cut it short, so that it says nothing about the draft's worth.
    pub fn record_verify(&mut self, accepted: usize, committed: usize, cost: Option<f64>) {
        let spent = self.lanes_spent(self.drafting);
        if accepted < self.forced {
            // The step ended before the source's part: it says nothing about that.
            return;
        }
        let (drafted, accepted) = (self.draft.len() - self.forced, accepted - self.forced);
        let committed = committed.saturating_sub(self.forced);
        let guessed = if self.drafting.is_some() { self.levels.len() } else { drafted };
        self.ledger.settle(self.draft.source.as_ref(), (drafted, guessed), accepted, committed);
        if let Some(number) = self.drafting {
            let sampled = accepted < drafted.min(committed);
            self.lanes[number].learn(&self.levels, accepted, sampled);
        }
        let Some(cost) = cost else { return };
        self.rater.record(cost - 1.0 + spent, committed);
        match self.drafting {
            Some(number) => self.lanes[number].gate.record_verify(drafted, accepted, committed, cost + spent),
            None => self.gate.record_verify(drafted, accepted, committed, cost),
        }
    }

    /// What happened in this request.
    pub fn stats(&self) -> SpeculationStats {
        let disabled = self.disabled.as_ref().map(ToString::to_string);
        let mut sources = self.ledger.stats(self.source.parts());
        if let ([whole], Some(reason)) = (sources.as_mut_slice(), &disabled) {
            whole.reason.get_or_insert_with(|| reason.clone());
        }
        if !self.lanes.is_empty() {
            // The one name that stands for all says nothing beside others, unless it drafted.
            sources
                .retain(|source| source.drafts > 0 || !self.ledger.is_unnamed(&source.name) || source.reason.is_some());
        }
        for lane in &self.lanes {
            let closed = (lane.gate.state() == GateState::Closed).then(|| lane.gate.stats().reason).flatten();
            let asleep = (!lane.listens()).then(|| "no gain is expected on this text".to_owned());
            let idle = closed.map(|reason| reason.to_string()).or(asleep);
            let reason = lane.failed.clone().or(idle.map(|reason| format!("does not pay: {reason}")));
            let part = Part { name: lane.name.clone(), shut: reason };
            sources.retain(|source| source.name != lane.name);
            let own = self.ledger.stats(vec![part]).into_iter().find(|own| own.name == lane.name);
            sources.extend(own.map(|own| SourceStats { ns: lane.ns, ..own }));
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
