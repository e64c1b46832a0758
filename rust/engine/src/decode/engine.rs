//! One forward for many sequences.
//!
//! In: sequences with requests under way. Out: a step of each. The engine owns what a forward needs and no sequence keeps: scratch memory, rows of logits,
//! the clock.
//!
//! - **E1** A sequence's step is the same in any company: it commits the same tokens, rows and log-probabilities as alone (I4, Q4 of [`super::sequence`]).
//! - **E2** Errors are per sequence: a full context, memory that ran out, a failed sampler or a row that is not a number end that sequence's step and no
//!   other's.
//! - **E3** Rows are few: every decoding sequence has its carried row; what prompts and drafts get beside it is bounded by [`MAX_ROWS`].
//!
//! Cost: that of the forward; some hundred nanoseconds a sequence beside it.

use std::sync::Arc;

use quoth_draft::{BaseStep, Costs, Planner, TimedStep};
use quoth_kernels::top::Best;

use super::clock::{Clock, SystemClock};
use super::probe::Part;
use super::request::Step;
use super::sequence::{Move, Plan, Results, Sequence, Timing};
use crate::constraint::Masker;
use crate::error::{Error, Result};
use crate::model::{MAX_ROWS, Model, Output, Scratch, Span};

/// See the module.
pub struct Engine {
    scratch: Scratch,
    /// Rows of the last forward, `n_vocab` each, of the sequences that want whole rows.
    logits: Vec<f32>,
    /// Rows of the others.
    best: Vec<Best>,
    clock: Box<dyn Clock>,
    costs: Costs,
    planner: Planner,
    masker: Masker,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({} logits, {} best)", self.logits.len(), self.best.len())
    }
}

impl Engine {
    /// An engine that learns from its steps what steps cost.
    pub fn new(costs: Costs) -> Engine {
        let clock = Box::<SystemClock>::default();
        Engine {
            scratch: Scratch::default(),
            logits: Vec::new(),
            best: Vec::new(),
            clock,
            costs,
            planner: Planner::new(),
            masker: Masker::default(),
        }
    }

    /// What steps cost.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Takes another clock, for tests.
    pub fn set_clock(&mut self, clock: Box<dyn Clock>) {
        self.clock = clock;
    }

    /// The clock's time.
    pub fn now_ns(&mut self) -> u64 {
        self.clock.now_ns()
    }

    /// Takes a step of each sequence: at least one token of those that decode, or the end of their request; of those whose prompt is not through, up to
    /// `prompt_rows` tokens of prompts in all, in even shares. A sequence that got no row has an empty step; one of another model than the first has an
    /// error.
    pub fn step(&mut self, sequences: &mut [&mut Sequence], prompt_rows: usize) -> Vec<Result<Step>> {
        let start = self.clock.now_ns();
        let mut moves = self.plan(sequences, prompt_rows);
        let model = sequences.first().map(|sequence| sequence.model().clone());
        for (sequence, m) in sequences.iter_mut().zip(&mut moves) {
            prepare(sequence, m, model.as_ref());
            if let Move::Forward(plan) = m {
                sequence.ask_masks(plan, &mut self.masker);
            }
        }
        let step = Base::of(sequences, &moves);
        let from = self.clock.now_ns();
        let forwarded = self.forward(sequences, &mut moves);
        let timing = Timing { start, from, to: self.clock.now_ns() };
        let steps = self.commit(sequences, moves, forwarded, &timing);
        self.record(sequences, step, start);
        steps
    }

    fn plan(&mut self, sequences: &mut [&mut Sequence], prompt_rows: usize) -> Vec<Move> {
        let mut moves: Vec<Move> = Vec::with_capacity(sequences.len());
        let mut readers = Vec::new();
        let decoding = sequences.iter().filter(|sequence| sequence.is_running() && !sequence.is_reading()).count();
        for (i, sequence) in sequences.iter_mut().enumerate() {
            if sequence.is_reading() {
                readers.push(i);
            }
            // Those that read have their turn below, when it is known how many rows are left (E3).
            let others = decoding.saturating_sub(1);
            moves.push(match sequence.is_reading() {
                true => Move::Over(Ok(Step::default())),
                false => sequence.plan(0, others, &mut *self.clock),
            });
        }
        self.share_out(sequences, &mut moves);
        let taken: usize = moves.iter().map(Move::rows).sum();
        let mut left = prompt_rows.min(MAX_ROWS.saturating_sub(taken));
        // Prompts with the fewest rows to go come first, and what they do not need of an even share goes to the others.
        readers.sort_by_key(|i| sequences[*i].unread());
        for (n, i) in readers.iter().enumerate() {
            let m = sequences[*i].plan(left.div_ceil(readers.len() - n), decoding, &mut *self.clock);
            left -= m.rows();
            moves[*i] = m;
        }
        moves
    }

    /// Cuts the drafts of several sequences to what pays for all of them together, and to the rows of a pass.
    fn share_out(&mut self, sequences: &mut [&mut Sequence], moves: &mut [Move]) {
        let step = Base::of(sequences, moves);
        if step.base.spans < 2 || step.drafted == 0 {
            return;
        }
        let offers: Vec<&[f64]> = sequences
            .iter()
            .zip(moves.iter())
            .map(|(sequence, m)| if let Move::Forward(plan) = m { sequence.reach(plan) } else { &[] })
            .collect();
        let taken = self.planner.plan(&offers, step.base, &self.costs.lock());
        let mut left = MAX_ROWS.saturating_sub(step.base.rows);
        for ((sequence, m), n) in sequences.iter_mut().zip(moves).zip(taken) {
            if let Move::Forward(plan) = m {
                sequence.cut(plan, n.min(left));
                left -= plan.drafted();
            }
        }
    }

    /// Tells the costs, the planner and each sequence's gate what the step was.
    fn record(&mut self, sequences: &mut [&mut Sequence], step: Base, start: u64) {
        let ns = self.clock.now_ns() - start;
        let committed: Vec<_> = sequences.iter_mut().map(|sequence| sequence.committed()).collect();
        let Base { base, drafted } = step;
        let (mut tokens, mut asked_ns, mut guess_ns) = (0, 0, 0);
        for c in committed.iter().flatten() {
            tokens += c.tokens;
            asked_ns += c.draft_ns;
            guess_ns += c.guess_ns;
        }
        let telling = committed.iter().flatten().all(|c| c.telling) && committed.iter().any(Option::is_some);
        let (rows, spans, cached) = (base.rows + drafted, base.spans, base.cached);
        let mut own = Vec::with_capacity(committed.len());
        {
            let mut costs = self.costs.lock();
            if telling {
                // What attached drafters take is theirs to pay, not the rows'.
                let ns = ns.saturating_sub(guess_ns);
                let ns = if drafted == 0 { ns.saturating_sub(asked_ns) } else { ns };
                costs.observe(TimedStep { rows, spans, cached, drafted, ns });
                self.planner.record(base, drafted, tokens, &costs);
            }
            own.extend(
                committed
                    .iter()
                    .map(|c| c.map_or(1.0, |c| costs.draft_cost(c.drafted - c.forced, rows, spans, cached))),
            );
        }
        for ((sequence, committed), cost) in sequences.iter_mut().zip(committed).zip(own) {
            if let Some(committed) = committed {
                sequence.record(committed, cost);
            }
        }
    }

    /// Forwards what the sequences planned; the rows are then in `self.best` and `self.logits`, one sequence after another.
    fn forward(&mut self, sequences: &mut [&mut Sequence], moves: &mut [Move]) -> Result<()> {
        let Some(model) = sequences.first().map(|sequence| sequence.model().clone()) else { return Ok(()) };
        let n_vocab = model.config().n_vocab;
        let (mut whole, mut few) = (0, 0);
        for m in moves.iter() {
            let Move::Forward(plan) = m else { continue };
            *(if plan.greedy { &mut few } else { &mut whole }) += plan.rows.rows(plan.tokens.len());
        }
        self.logits.resize(self.logits.len().max(whole * n_vocab), 0.0);
        self.best.resize_with(self.best.len().max(few), Best::default);
        let (mut logits, mut best) = (&mut self.logits[..], &mut self.best[..]);
        let mut spans = Vec::with_capacity(sequences.len());
        for (sequence, m) in sequences.iter_mut().zip(moves.iter()) {
            let Move::Forward(plan) = m else { continue };
            let n = plan.rows.rows(plan.tokens.len());
            let output = match sequence.best(plan) {
                Some(k) => {
                    let own = best.split_off_mut(..n).unwrap_or_default();
                    own.iter_mut().for_each(|best| best.reset(k));
                    match &plan.masks {
                        Some(masks) => Output::Masked(own, masks, plan.unmade()),
                        None => Output::Best(own),
                    }
                }
                None => Output::Logits(logits.split_off_mut(..n * n_vocab).unwrap_or_default()),
            };
            let (state, taps) = sequence.lend(plan.tokens.len());
            spans.push(Span { state, tokens: &plan.tokens, rows: plan.rows, output, taps });
        }
        if spans.is_empty() { Ok(()) } else { model.forward(&mut spans, &mut self.scratch) }
    }

    fn commit(
        &mut self,
        sequences: &mut [&mut Sequence],
        moves: Vec<Move>,
        forwarded: Result<()>,
        timing: &Timing,
    ) -> Vec<Result<Step>> {
        let (mut logits, mut best) = (&mut self.logits[..], &self.best[..]);
        let mut failure = forwarded.err();
        let failed = failure.as_ref().map(ToString::to_string);
        let mut commit = |sequence: &mut Sequence, plan: Plan| {
            if let Some(message) = &failed {
                // What one sequence could do wrong was found before the forward; this is a fault of all.
                let error = failure.take().unwrap_or_else(|| Error::Internal(message.clone()));
                return sequence.fail(plan, error);
            }
            let n = plan.rows.rows(plan.tokens.len());
            let results = match plan.greedy {
                true => Results::Best(best.split_off(..n).unwrap_or_default()),
                false => {
                    let floats = n * sequence.model().config().n_vocab;
                    Results::Logits(logits.split_off_mut(..floats).unwrap_or_default())
                }
            };
            sequence.commit(plan, results, timing, &mut *self.clock)
        };
        let steps = sequences.iter_mut().zip(moves).map(|(sequence, m)| match m {
            Move::Over(result) => result,
            Move::Forward(plan) => commit(sequence, *plan),
        });
        steps.collect()
    }
}

/// Makes room for a sequence's rows, or finds out that there is none (E2).
fn prepare(sequence: &mut Sequence, m: &mut Move, model: Option<&Arc<Model>>) {
    let Move::Forward(plan) = m else { return };
    let rows = plan.tokens.len();
    let part = if plan.prompt { Part::Prefill } else { Part::Forward { rows } };
    let same = match model {
        Some(model) if Arc::ptr_eq(model, sequence.model()) => Ok(()),
        _ => Err(Error::Internal("a sequence of another model than the first of its step".into())),
    };
    if let Err(error) = same.and_then(|()| sequence.before(part)).and_then(|()| sequence.state.reserve(rows)) {
        let Move::Forward(plan) = std::mem::replace(m, Move::Over(Ok(Step::default()))) else { return };
        *m = Move::Over(sequence.fail(*plan, error));
    }
}

/// The rows of a step, drafts apart.
#[derive(Debug, Clone, Copy)]
struct Base {
    base: BaseStep,
    drafted: usize,
}

impl Base {
    fn of(sequences: &[&mut Sequence], moves: &[Move]) -> Base {
        let (mut rows, mut spans, mut cached, mut drafted) = (0, 0, 0, 0);
        for (sequence, m) in sequences.iter().zip(moves) {
            let Move::Forward(plan) = m else { continue };
            rows += plan.tokens.len() - plan.drafted();
            drafted += plan.drafted();
            if !plan.prompt {
                spans += 1;
                cached += sequence.state.len();
            }
        }
        Base { base: BaseStep { rows, spans, cached: cached / spans.max(1) }, drafted }
    }
}

impl Move {
    /// Rows of the forward.
    fn rows(&self) -> usize {
        match self {
            Move::Over(_) => 0,
            Move::Forward(plan) => plan.tokens.len(),
        }
    }
}
