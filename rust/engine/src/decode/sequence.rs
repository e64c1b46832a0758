//! One sequence: its state, its history, the request under way; what it wants of the next forward, and what becomes of the rows.
//!
//! In: a prompt and a [`Request`], later the rows of forwards. Out: [`Step`]s. The invariants I1, I2, I3, I5 and I6 (see the crate's root) are this module's
//! to keep. [`Engine::step`](super::Engine::step) calls `plan`, runs one forward for all sequences, and calls `commit` or `fail`:
//!
//! - **Q1** `plan` changes nothing that a caller can see. A request's prompt goes in as many steps as the engine allots; the first token comes with its last.
//! - **Q2** `commit` takes row after row: top-k if a source wants it, sample with the full pipeline against the history, commit, compare with the draft. Then
//!   it truncates the state and tells the speculator.
//! - **Q3** An error at any point leaves history and state at the last committed token. Tokens that the step had committed before are handed out, and the
//!   error comes with the next step. A prompt that fails leaves a prefix of itself, and its request is over.
//! - **Q4** Nothing here depends on what else the forward computed.

use std::sync::Arc;

use quoth_draft::{Bounds, Load, SpeculationStats, Speculator};
use quoth_kernels::attend::KvKind;
use quoth_kernels::top::Best;

use super::clock::Clock;
use super::probe::{Part, Probe};
use super::request::{Finish, Request, Step, Turn};
use super::stats::DecodeStats;
use super::{MAX_DRAFT, Speculation};
use crate::cache::KvCache;
use crate::constraint::{Mask, Masker, Masks, PendingMasks};
use crate::error::{Error, Result};
use crate::model::{Model, Taps, Want};
use crate::proposer::Attached;
use crate::sample::{Picked, SampleError, logprobs, topk_ids};
use crate::state::State;
use crate::vocab::Vocab;

/// See the module.
pub struct Sequence {
    model: Arc<Model>,
    vocab: Arc<Vocab>,
    pub(crate) state: State,
    /// Prompt and committed tokens; between the steps of a request all but the last are in the state (I1). Outside of a request the state may hold fewer: it
    /// could not return to where the history was cut, or a panic came in the middle of a prompt. Empty before the first request.
    history: Vec<u32>,
    turn: Option<Turn>,
    speculator: Option<Speculator>,
    /// What drafters with weights of their own keep of this sequence; each is a lane of the speculator.
    attached: Attached,
    probe: Option<Box<dyn Probe>>,
    stats: DecodeStats,
    /// Of the last step, until it is recorded.
    committed: Option<Committed>,
    /// Whether a step was planned that neither `commit` nor `fail` has ended.
    in_step: bool,
}

impl std::fmt::Debug for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sequence({} tokens, {:?})", self.history.len(), self.speculator)
    }
}

/// What a sequence wants of the next step.
pub(crate) enum Move {
    /// No forward: the request has ended, or there is nothing to do for it now.
    Over(Result<Step>),
    Forward(Box<Plan>),
}

/// A sequence's part of a forward.
pub(crate) struct Plan {
    turn: Turn,
    /// A part of the prompt, or the carried token and a draft.
    pub(crate) tokens: Vec<u32>,
    pub(crate) rows: Want,
    /// Whether the greatest of each row suffice.
    pub(crate) greedy: bool,
    /// What the constraint allows along the tokens; the constraint is with them.
    pub(crate) masks: Option<PendingMasks>,
    /// How many tokens the draft begins with that the constraint foretells.
    pub(crate) forced: usize,
    /// How many of the next tokens come in any case.
    certain: usize,
    /// Whether rows are looked at beside what is sampled from them.
    seen: bool,
    /// Whether the tokens are the prompt's.
    pub(crate) prompt: bool,
    /// What asking the source for a draft took.
    pub(crate) draft_ns: u64,
    /// What guesses of attached drafters took.
    pub(crate) guess_ns: u64,
}

impl Plan {
    /// Drafted tokens.
    pub(crate) fn drafted(&self) -> usize {
        if self.prompt { 0 } else { self.tokens.len() - 1 }
    }

    /// How many rows of tokens that come in any case are not made.
    pub(crate) fn unmade(&self) -> usize {
        if self.prompt { 0 } else { self.tokens.len() - self.rows.rows(self.tokens.len()) }
    }

    /// How many greatest of each row the source wants: it is told of rows that verify its own guesses.
    fn topk(&self, speculator: Option<&Speculator>) -> usize {
        speculator.map_or(0, |speculator| if self.drafted() > self.forced { speculator.topk() } else { 0 })
    }

    /// Gives the constraint back to the request (C5). The masks, all of them without a constraint, and how long they took.
    fn take_masks(&mut self) -> (Result<Vec<Mask>>, u64) {
        let Some(pending) = self.masks.take() else { return (Ok(Vec::new()), 0) };
        let Some(Masks { constraint, masks, ns }) = pending.take() else {
            return (Err(Error::Internal("the thread that computes masks is gone".into())), 0);
        };
        self.turn.request.constraint = Some(constraint);
        (masks, ns)
    }
}

/// The rows of a sequence that a forward has made.
pub(crate) enum Results<'r> {
    /// All logits, `n_vocab` a row.
    Logits(&'r mut [f32]),
    /// The greatest of each row, best first: all that plain greedy decoding wants.
    Best(&'r [Best]),
}

impl Results<'_> {
    fn rows(&self, n_vocab: usize) -> usize {
        match self {
            Results::Logits(logits) => logits.len() / n_vocab,
            Results::Best(best) => best.len(),
        }
    }
}

/// When a step and its forward ran.
pub(crate) struct Timing {
    /// The step began.
    pub(crate) start: u64,
    /// The forward began.
    pub(crate) from: u64,
    /// The forward ended.
    pub(crate) to: u64,
}

/// What a step committed, for the records of its costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) drafted: usize,
    /// Drafted tokens that the constraint foretold.
    pub(crate) forced: usize,
    pub(crate) accepted: usize,
    pub(crate) tokens: usize,
    /// What asking the source for a draft took.
    pub(crate) draft_ns: u64,
    /// What attached drafters took, their work on committed tokens included.
    pub(crate) guess_ns: u64,
    /// Whether the step says something about the worth of its draft: sampling did not fail, and no stop cut it short.
    pub(crate) telling: bool,
    /// Whether sampling failed.
    pub(crate) failed: bool,
}

/// What the rows of a forward became.
#[derive(Default)]
struct Rows {
    /// Rows that were sampled.
    sampled: usize,
    accepted: usize,
    error: Option<Error>,
}

impl Sequence {
    /// A sequence with nothing in it.
    ///
    /// # Errors
    /// Options out of range, or a cache kind that cannot store heads of this model's width.
    pub fn new(
        model: Arc<Model>,
        vocab: Arc<Vocab>,
        kind: KvKind,
        speculation: Option<Speculation>,
    ) -> Result<Sequence> {
        let state = State::new(&model, kind)?;
        let (speculator, attached) = drafting(speculation, &model, kind)?;
        let stats = DecodeStats::default();
        Ok(Sequence {
            model,
            vocab,
            state,
            history: Vec::new(),
            turn: None,
            speculator,
            attached,
            probe: None,
            stats,
            committed: None,
            in_step: false,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Prompt and committed tokens.
    pub fn history(&self) -> &[u32] {
        &self.history
    }

    /// Keys and values.
    pub fn cache(&self) -> &KvCache {
        self.state.kv()
    }

    /// What the model remembers of it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Counts and times of the current or last request.
    pub fn stats(&self) -> &DecodeStats {
        &self.stats
    }

    /// What speculation did in the current or last request.
    pub fn speculation_stats(&self) -> Option<SpeculationStats> {
        self.speculator.as_ref().map(Speculator::stats)
    }

    /// Lets a test watch and disturb the sequence.
    #[doc(hidden)]
    pub fn set_probe(&mut self, probe: Option<Box<dyn Probe>>) {
        self.probe = probe;
    }

    /// Asks the probe, if there is one, whether a part may go on.
    pub(crate) fn before(&mut self, part: Part) -> Result<()> {
        self.probe.as_mut().map_or(Ok(()), |probe| probe.before(part))
    }

    // -- between requests ----------------------------------------------------------------------------------------------------

    /// Begins a request at `now_ns`; its steps are the engine's. The longest prefix that `prompt` shares with the state is kept, up to the last token, whose
    /// row the first token comes from.
    ///
    /// # Errors
    /// The prompt is empty, too long or has tokens out of range, or the request makes no sense: nothing changes.
    pub fn begin(&mut self, prompt: &[u32], request: Request, now_ns: u64) -> Result<()> {
        let (n_ctx, n_vocab) = (self.state.n_ctx(), self.model.config().n_vocab);
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > n_ctx {
            return Err(Error::ContextFull { cached: 0, asked: prompt.len(), n_ctx });
        }
        if let Some((pos, &token)) = prompt.iter().enumerate().find(|(_, t)| **t as usize >= n_vocab) {
            return Err(Error::TokenRange { token, pos, last: n_vocab - 1 });
        }
        let turn = Turn::new(request, &self.vocab, n_vocab, now_ns)?;
        if !self.model.is_alive() {
            return Err(Error::Forked);
        }
        self.turn = None;
        self.mend()?;
        self.stats = DecodeStats::default();
        self.keep_prefix(prompt)?;
        self.turn = Some(turn);
        Ok(())
    }

    /// Goes back to the longest prefix shared with `prompt`, makes the prompt the history, and brings the speculator to it.
    fn keep_prefix(&mut self, prompt: &[u32]) -> Result<()> {
        let shared = self.history.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = self.state.nearest(shared.min(prompt.len() - 1));
        self.state.truncate(kept)?;
        self.stats.cached_tokens = kept as u64;
        // The row of a position holds the token after it.
        self.attached.rewind(kept.min(shared.saturating_sub(1)));
        let extends = shared == self.history.len();
        let known = self.history.len();
        self.history.clear();
        self.history.extend_from_slice(prompt);
        if let Some(speculator) = &mut self.speculator {
            speculator.begin_request();
            if extends {
                speculator.observe(&prompt[known..]);
            } else {
                speculator.rebuild(prompt);
            }
        }
        Ok(())
    }

    /// Takes the first tokens of the prompt from another state that holds them, if it has more of them than this one.
    pub(crate) fn adopt(&mut self, state: State) {
        if self.is_reading() && state.len() > self.state.len() && state.len() < self.history.len() {
            self.stats.cached_tokens = state.len() as u64;
            self.state = state;
        }
    }

    /// Whether a request is under way whose prompt is not through yet.
    pub fn is_reading(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.committed == 0 && turn.finish.is_none())
    }

    /// Whether a request is under way.
    pub fn is_running(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.finish.is_none())
    }

    /// Prompt tokens that are not in the state yet, while [`Self::is_reading`].
    pub fn unread(&self) -> usize {
        self.history.len().saturating_sub(self.state.len())
    }

    /// Most tokens that the request under way may still commit.
    pub fn wanted(&self) -> usize {
        self.turn.as_ref().map_or(0, |turn| turn.request.max_tokens - turn.produced)
    }

    /// Ends the request under way where it stands: what was handed out stays.
    ///
    /// # Errors
    /// None are expected: going back to a token that was just forwarded is always possible.
    pub fn stop(&mut self) -> Result<()> {
        let reading = self.is_reading();
        self.turn = None;
        if reading { self.abandon() } else { Ok(()) }
    }

    /// Leaves a prompt where it is: what is in the state is a prefix of it, and the token after that is carried (I1).
    fn abandon(&mut self) -> Result<()> {
        self.state.truncate(self.history.len().saturating_sub(1))?;
        self.history.truncate(self.state.len() + 1);
        self.attached.rewind(self.state.len());
        if let Some(speculator) = &mut self.speculator {
            speculator.rebuild(&self.history);
        }
        Ok(())
    }

    /// After a panic, which ends a step before `commit` or `fail` does: history and state end where both are whole.
    fn mend(&mut self) -> Result<()> {
        if std::mem::take(&mut self.in_step) { self.abandon() } else { Ok(()) }
    }

    /// Forgets all tokens; options and references stay.
    ///
    /// # Errors
    /// None are expected: going back to nothing is always possible.
    pub fn reset(&mut self) -> Result<()> {
        self.rewind(0)
    }

    /// Goes back to the first `n` tokens of the history; the request under way ends. What the state cannot return to, the next request forwards again.
    ///
    /// # Errors
    /// None are expected: the state names a position that it can return to.
    pub fn rewind(&mut self, n: usize) -> Result<()> {
        self.mend()?;
        if n >= self.history.len() && n > 0 {
            return Ok(());
        }
        self.turn = None;
        let kept = self.state.nearest(n.saturating_sub(1));
        self.state.truncate(kept)?;
        self.history.truncate(n);
        self.attached.rewind(kept);
        if let Some(speculator) = &mut self.speculator {
            speculator.rebuild(&self.history);
        }
        Ok(())
    }

    /// An independent sequence at the same point, with its own drafting. It shares the state's memory until one of the two writes.
    ///
    /// # Errors
    /// Options of `speculation` are out of range.
    pub fn fork(&mut self, speculation: Option<Speculation>) -> Result<Sequence> {
        self.mend()?;
        let (mut speculator, mut attached) = drafting(speculation, &self.model, self.state.kv().kind())?;
        if let Some(speculator) = &mut speculator {
            speculator.rebuild(&self.history);
        }
        attached.go_on_from(&self.attached)?;
        Ok(Sequence {
            model: self.model.clone(),
            vocab: self.vocab.clone(),
            state: self.state.fork(self.state.len())?,
            history: self.history.clone(),
            turn: None,
            speculator,
            attached,
            probe: None,
            stats: DecodeStats::default(),
            committed: None,
            in_step: false,
        })
    }

    // -- steps ---------------------------------------------------------------------------------------------------------------

    /// What the next step forwards: up to `prompt_rows` tokens of the prompt, or the carried token with a draft, beside `others` sequences that decode.
    pub(crate) fn plan(&mut self, prompt_rows: usize, others: usize, clock: &mut dyn Clock) -> Move {
        if !self.model.is_alive() {
            return Move::Over(Err(Error::Forked));
        }
        let Some(mut turn) = self.turn.take() else {
            return Move::Over(Err(Error::Internal("a step without a request".into())));
        };
        if let Some(error) = turn.deferred.take() {
            self.turn = Some(turn);
            return Move::Over(Err(error));
        }
        let mut step = Step::default();
        let reading = turn.committed == 0 && turn.finish.is_none();
        if turn.finish.is_none() && !reading && self.state.len() >= self.state.n_ctx() {
            turn.text.cut(&mut step.text);
            turn.finish = Some(Finish::Context);
        }
        if turn.finish.is_some() || reading && prompt_rows == 0 {
            step.finish = turn.finish;
            self.turn = Some(turn);
            return Move::Over(Ok(step));
        }
        // Plain greedy decoding needs no rows, only the greatest of each; a probe may want to see rows.
        let seen = turn.request.logprobs.is_some() || self.probe.as_ref().is_some_and(|probe| probe.wants_rows());
        // A source sees the greatest of the row itself, not of what is allowed.
        let asked = turn.request.constraint.is_some() && self.speculator.as_ref().is_some_and(|s| s.topk() > 0);
        let greedy = turn.sampler.is_plainly_greedy() && !seen && !asked;
        if reading {
            let tokens: Vec<u32> = self.history[self.state.len()..].iter().take(prompt_rows).copied().collect();
            let rows = if tokens.len() == self.unread() { Want::Last } else { Want::None };
            self.in_step = true;
            return Move::Forward(Box::new(Plan {
                turn,
                tokens,
                rows,
                greedy,
                masks: None,
                forced: 0,
                certain: 0,
                seen,
                prompt: true,
                draft_ns: 0,
                guess_ns: 0,
            }));
        }
        let start = clock.now_ns();
        let mut tokens: Vec<u32> = self.history.last().copied().into_iter().collect();
        let (mut draft_ns, mut guess_ns, mut forced) = (0, 0, 0);
        // Forced tokens and a draft behind them, together.
        let (cached, n_ctx) = (self.state.len(), self.state.n_ctx());
        let room = MAX_DRAFT.min(n_ctx - cached - 1);
        let wanted = turn.request.max_tokens - turn.produced;
        let most = if self.speculator.is_some() { room.min(wanted - 1) } else { 1 };
        let ahead = match turn.ahead(most, self.speculator.is_some()) {
            Ok(ahead) => ahead,
            Err(error) => {
                self.turn = Some(turn);
                return Move::Over(Err(error));
            }
        };
        if let Some(speculator) = &mut self.speculator {
            let bounds = Bounds {
                room,
                wanted,
                n_vocab: self.model.config().n_vocab,
                stop_ids: &turn.stop_ids,
                forced: &ahead.tokens,
                certain: ahead.certain,
            };
            let load = Load { rows: others, spans: others, cached };
            speculator.propose(&self.history, bounds, load);
            if speculator.allowed() {
                draft_ns = (clock.now_ns() - start).max(1);
            }
            guess_ns = guess(speculator, &mut self.attached, &self.history, &bounds, clock);
            match turn.allowed(&speculator.draft().tokens) {
                Ok(n) => speculator.cut(n),
                Err(error) => {
                    speculator.drop_pending();
                    self.turn = Some(turn);
                    return Move::Over(Err(error));
                }
            }
            tokens.extend_from_slice(&speculator.draft().tokens);
            forced = speculator.forced();
        }
        self.in_step = true;
        Move::Forward(Box::new(Plan {
            turn,
            tokens,
            rows: Want::All,
            greedy,
            masks: None,
            forced,
            certain: ahead.certain,
            seen,
            prompt: false,
            draft_ns,
            guess_ns,
        }))
    }

    /// Asks what the constraint allows along the tokens of the plan, which are cut no more.
    pub(crate) fn ask_masks(&self, plan: &mut Plan, masker: &mut Masker) {
        if plan.rows != Want::None
            && let Some(constraint) = plan.turn.request.constraint.take()
        {
            let draft = if plan.prompt { Vec::new() } else { plan.tokens[1..].to_vec() };
            plan.masks = Some(masker.ask(constraint, draft));
            // What comes in any case needs no row.
            if !plan.prompt && !plan.seen && plan.topk(self.speculator.as_ref()) == 0 {
                plan.rows = Want::Tail(plan.tokens.len().saturating_sub(plan.certain));
            }
        }
    }

    /// How likely each token of the plan's draft is reached and right; empty without a draft.
    pub(crate) fn reach(&self, plan: &Plan) -> &[f64] {
        match &self.speculator {
            Some(speculator) if plan.drafted() > 0 => &speculator.draft().reach,
            _ => &[],
        }
    }

    /// Verifies only the first `n` tokens of the plan's draft, or none if so few are not worth it.
    pub(crate) fn cut(&mut self, plan: &mut Plan, n: usize) {
        if let Some(speculator) = &mut self.speculator
            && n < plan.drafted()
        {
            speculator.cut(n);
            plan.tokens.truncate(1 + speculator.draft().len());
            plan.forced = speculator.forced();
        }
    }

    /// How many greatest of each row suffice for a plan; `None`: whole rows are needed.
    pub(crate) fn best(&self, plan: &Plan) -> Option<usize> {
        let topk = plan.topk(self.speculator.as_ref());
        plan.greedy.then_some(topk.max(1))
    }

    /// The forward did not happen, or failed (Q3).
    pub(crate) fn fail(&mut self, mut plan: Plan, error: Error) -> Result<Step> {
        self.in_step = false;
        self.stats.mask_ns += plan.take_masks().1;
        self.attached.drop_taps();
        if plan.prompt {
            self.abandon()?;
            return Err(error);
        }
        self.state.truncate(self.history.len() - 1)?;
        if let Some(speculator) = &mut self.speculator {
            speculator.drop_pending();
        }
        self.turn = Some(plan.turn);
        Err(error)
    }

    /// Takes the rows of the plan's forward.
    ///
    /// # Errors
    /// Sampling failed (Q3).
    pub(crate) fn commit(
        &mut self,
        plan: Plan,
        results: Results<'_>,
        timing: &Timing,
        clock: &mut dyn Clock,
    ) -> Result<Step> {
        let first = self.state.len() - plan.tokens.len();
        if plan.prompt {
            self.commit_prompt(plan, first, results, clock)
        } else {
            self.commit_draft(plan, first, results, timing, clock)
        }
    }

    /// The hidden rows that a forward of so many tokens copies, and the state that it writes.
    pub(crate) fn lend(&mut self, tokens: usize) -> (&mut State, Taps<'_>) {
        let speculator = self.speculator.as_ref();
        self.attached.tap(tokens, |lane| speculator.is_some_and(|speculator| speculator.listens(lane)));
        (&mut self.state, self.attached.taps())
    }

    /// Gives attached drafters the positions from `first` on that the state has kept. Gives the time that it took.
    fn teach(&mut self, first: usize, clock: &mut dyn Clock) -> u64 {
        let Some(speculator) = &mut self.speculator else { return 0 };
        if !self.attached.is_tapped() {
            return 0;
        }
        let n = self.state.len().saturating_sub(first);
        let mut all = 0;
        for taught in self.attached.settle(&self.history, first, n, clock) {
            all += taught.ns;
            speculator.lane_worked(taught.number, taught.ns);
            if let Some(error) = taught.failed {
                speculator.fail_lane(taught.number, error.to_string());
            }
        }
        all
    }

    fn commit_prompt(
        &mut self,
        mut plan: Plan,
        first: usize,
        results: Results<'_>,
        clock: &mut dyn Clock,
    ) -> Result<Step> {
        self.stats.prefill_tokens += plan.tokens.len() as u64;
        let mut step = Step::default();
        if plan.rows == Want::Last {
            self.state.pin();
            let (masks, ns) = plan.take_masks();
            self.stats.mask_ns += ns;
            let rows = self.commit_rows(&mut plan.turn, results, &[], masks, 0, &mut step);
            if let Some(error) = rows.error {
                return self.fail(plan, error);
            }
            self.settle(&plan.turn, 1)?;
            step.finish = plan.turn.finish;
        }
        self.teach(first, clock);
        self.stats.prefill_ns = clock.now_ns() - plan.turn.begun_ns;
        self.in_step = false;
        self.turn = Some(plan.turn);
        Ok(step)
    }

    fn commit_draft(
        &mut self,
        mut plan: Plan,
        first: usize,
        results: Results<'_>,
        timing: &Timing,
        clock: &mut dyn Clock,
    ) -> Result<Step> {
        if let Err(error) = self.before(Part::Forwarded) {
            return self.fail(plan, error);
        }
        let drafted = plan.drafted();
        let mut step = Step { drafted, ..Step::default() };
        let begun = clock.now_ns();
        let before = self.history.len();
        let (masks, ns) = plan.take_masks();
        self.stats.mask_ns += ns;
        let topk = plan.topk(self.speculator.as_ref());
        let rows = self.commit_rows(&mut plan.turn, results, &plan.tokens[1..], masks, topk, &mut step);
        let sampled = clock.now_ns();
        let committed = self.history.len() - before;
        step.accepted = rows.accepted;
        if drafted > 0
            && plan.turn.request.trace
            && let Some(speculator) = &self.speculator
        {
            step.source = Some(speculator.draft().source.as_deref().unwrap_or("source").to_owned());
        }
        self.settle(&plan.turn, committed)?;
        if topk > 0
            && let Some(speculator) = &mut self.speculator
        {
            speculator.observe_topk(&plan.tokens[..rows.sampled]);
        }
        let guess_ns = plan.guess_ns + self.teach(first, clock);
        let end = clock.now_ns();

        let stats = &mut self.stats;
        stats.steps += 1;
        stats.decode_ns += end - timing.start;
        stats.draft_ns += plan.draft_ns + plan.guess_ns + (end - sampled);
        stats.sample_ns += sampled - begun;
        if drafted > 0 {
            stats.verify_steps += 1;
            stats.verify_ns += timing.to - timing.from;
            stats.drafted += drafted as u64;
            stats.accepted += rows.accepted as u64;
            stats.bonus += u64::from(rows.accepted == drafted && committed > drafted);
            stats.longest_draft = stats.longest_draft.max(drafted as u64);
        } else {
            stats.plain_steps += 1;
        }
        self.committed = Some(Committed {
            drafted,
            forced: plan.forced,
            accepted: rows.accepted,
            tokens: committed,
            draft_ns: plan.draft_ns,
            guess_ns,
            telling: rows.error.is_none() && (drafted == 0 || rows.accepted < committed || committed > drafted),
            failed: rows.error.is_some(),
        });
        if let Some(error) = rows.error {
            if step.tokens.is_empty() {
                return self.fail(plan, error);
            }
            plan.turn.deferred = Some(error);
        }
        step.finish = plan.turn.finish;
        self.in_step = false;
        self.turn = Some(plan.turn);
        Ok(step)
    }

    /// What the last step committed, once.
    pub(crate) fn committed(&mut self) -> Option<Committed> {
        self.committed.take()
    }

    /// Tells the speculator what the last step cost in plain steps of its own ([`quoth_draft::CostModel::draft_cost`]).
    pub(crate) fn record(&mut self, committed: Committed, cost: f64) {
        let Some(speculator) = &mut self.speculator else { return };
        if committed.drafted == committed.forced {
            speculator.record_plain(committed.draft_ns);
        } else if !committed.failed {
            speculator.record_verify(committed.accepted, committed.tokens, committed.telling.then_some(cost));
        }
    }

    /// Samples and commits row after row until the draft is contradicted, the rows are used up, the request ends, or sampling fails (Q2).
    fn commit_rows(
        &mut self,
        turn: &mut Turn,
        mut results: Results<'_>,
        draft: &[u32],
        masks: Result<Vec<Mask>>,
        topk: usize,
        step: &mut Step,
    ) -> Rows {
        let mut rows = Rows::default();
        let masks = match masks {
            Ok(masks) => masks,
            Err(error) => {
                rows.error = Some(error);
                return rows;
            }
        };
        let n_vocab = self.model.config().n_vocab;
        // Rows of tokens that come in any case may not have been made (C3).
        let unmade = (draft.len() + 1).saturating_sub(results.rows(n_vocab));
        for i in 0..=draft.len() {
            let pos = self.history.len();
            if topk > 0
                && let Some(speculator) = &mut self.speculator
            {
                match &results {
                    Results::Logits(logits) => {
                        let mut ids = vec![0; topk];
                        let n = topk_ids(&logits[i * n_vocab..(i + 1) * n_vocab], &mut ids);
                        speculator.capture(ids.into_iter().take(n));
                    }
                    Results::Best(best) => speculator.capture(best[i].ids()),
                }
            }
            if let Err(error) = self.before(Part::Sample { row: i }) {
                rows.error = Some(error);
                break;
            }
            let mask = masks.get(i).unwrap_or(&Mask::All);
            let (picked, row) = match &mut results {
                _ if i < unmade => (turn.sampler.sample_forced(mask, pos), &[][..]),
                Results::Logits(logits) => {
                    let row = &mut logits[(i - unmade) * n_vocab..(i - unmade + 1) * n_vocab];
                    (turn.sampler.sample_allowed(row, mask, &self.history, turn.committed, pos), &*row)
                }
                Results::Best(best) => (greatest(&best[i - unmade], pos), &[][..]),
            };
            let chosen = picked.and_then(|picked| {
                let lp = turn.request.logprobs.map(|n| logprobs(row, picked.token, n, pos)).transpose()?;
                Ok((picked, lp))
            });
            let (Picked { token, drew }, lp) = match chosen {
                Ok(chosen) => chosen,
                Err(error) => {
                    rows.error = Some(error.into());
                    break;
                }
            };
            rows.sampled += 1;
            self.stats.committed += 1;
            self.stats.draws += u64::from(drew);
            self.stats.forced += u64::from(matches!(mask, Mask::One(_)));
            self.history.push(token);
            if let Some(probe) = &mut self.probe {
                probe.committed(pos, row, token);
            }
            let handed_out = step.tokens.len();
            turn.take(&self.vocab, token, step);
            if step.tokens.len() > handed_out {
                step.logprobs.extend(lp);
            }
            let ends = match turn.constrain(token, step) {
                Ok(ends) => ends,
                Err(error) => {
                    rows.error = Some(error);
                    break;
                }
            };
            let agrees = draft.get(i) == Some(&token);
            rows.accepted += usize::from(agrees);
            if ends || !agrees {
                break;
            }
        }
        rows
    }

    /// After committed rows: trims a token that completed a stop, truncates the state to the history (I1, I5), tells the speculator. `new` tokens were
    /// committed.
    fn settle(&mut self, turn: &Turn, new: usize) -> Result<()> {
        let mut kept = new;
        if turn.ended_by_stop() && new > 0 {
            self.history.pop();
            kept -= 1;
        }
        self.state.truncate(self.history.len() - 1)?;
        if turn.finish.is_some() {
            self.state.pin();
        }
        if let Some(speculator) = &mut self.speculator {
            if kept > 0 {
                speculator.observe(&self.history[self.history.len() - kept..]);
            } else {
                speculator.drop_pending();
            }
        }
        Ok(())
    }
}

/// The speculator and the proposers of a sequence.
fn drafting(speculation: Option<Speculation>, model: &Model, kind: KvKind) -> Result<(Option<Speculator>, Attached)> {
    let Some(speculation) = speculation else { return Ok((None, Attached::default())) };
    let attached = Attached::new(&speculation.drafters, model, kind)?;
    Ok((Some(speculation.speculator()?), attached))
}

/// Lets the lane that the speculator names guess. Gives the time that it took.
fn guess(
    speculator: &mut Speculator,
    attached: &mut Attached,
    history: &[u32],
    bounds: &Bounds<'_>,
    clock: &mut dyn Clock,
) -> u64 {
    let Some(ask) = speculator.ask(|lane| attached.is_ready(lane, history)) else { return 0 };
    let start = clock.now_ns();
    let mut last = start;
    let failed = attached.propose(ask.lane, history, ask.most, &mut |guess| {
        let now = clock.now_ns();
        let ns = now - std::mem::replace(&mut last, now);
        speculator.take(history, guess.token, guess.level, ns, bounds)
    });
    speculator.finish(failed.err().map(|error| error.to_string()));
    clock.now_ns() - start
}

/// The token of a row's greatest logit, as the sampler would choose it.
fn greatest(best: &Best, pos: usize) -> Result<Picked, SampleError> {
    if let Some(token) = best.nan() {
        return Err(SampleError::NotANumber { pos, token });
    }
    match best.ids().next() {
        Some(token) => Ok(Picked { token, drew: false }),
        None => Err(SampleError::AllMasked { pos }),
    }
}
