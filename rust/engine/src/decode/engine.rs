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

use quoth_kernels::top::Best;

use super::clock::{Clock, SystemClock};
use super::probe::Part;
use super::request::Step;
use super::sequence::{Move, Plan, Results, Sequence, Timing};
use crate::error::{Error, Result};
use crate::model::{MAX_ROWS, Output, Scratch, Span, Taps};

/// See the module.
pub struct Engine {
    scratch: Scratch,
    /// Rows of the last forward, `n_vocab` each, of the sequences that want whole rows.
    logits: Vec<f32>,
    /// Rows of the others.
    best: Vec<Best>,
    clock: Box<dyn Clock>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({} logits, {} best)", self.logits.len(), self.best.len())
    }
}

impl Default for Engine {
    fn default() -> Self {
        let clock = Box::<SystemClock>::default();
        Engine { scratch: Scratch::default(), logits: Vec::new(), best: Vec::new(), clock }
    }
}

impl Engine {
    /// Takes another clock, for tests.
    pub fn set_clock(&mut self, clock: Box<dyn Clock>) {
        self.clock = clock;
    }

    /// The clock's time.
    pub fn now_ns(&mut self) -> u64 {
        self.clock.now_ns()
    }

    /// Takes a step of each sequence: at least one token of those that decode, or the end of their request; of those whose prompt is not through, up to
    /// `prompt_rows` tokens of prompts in all, in even shares. A sequence that got no row has an empty step. All sequences are of one model.
    pub fn step(&mut self, sequences: &mut [&mut Sequence], prompt_rows: usize) -> Vec<Result<Step>> {
        let start = self.clock.now_ns();
        let mut moves = self.plan(sequences, prompt_rows);
        for (sequence, m) in sequences.iter_mut().zip(&mut moves) {
            prepare(sequence, m);
        }
        let from = self.clock.now_ns();
        let forwarded = self.forward(sequences, &mut moves);
        let to = self.clock.now_ns();
        let alone = moves.iter().filter(|m| matches!(m, Move::Forward(_))).count() == 1;
        let timing = Timing { start, from, to, alone };
        self.commit(sequences, moves, forwarded, &timing)
    }

    fn plan(&mut self, sequences: &mut [&mut Sequence], prompt_rows: usize) -> Vec<Move> {
        let mut moves: Vec<Move> = Vec::with_capacity(sequences.len());
        let mut readers = Vec::new();
        for (i, sequence) in sequences.iter_mut().enumerate() {
            if sequence.is_reading() {
                readers.push(i);
            }
            // Those that read have their turn below, when it is known how many rows are left (E3).
            moves.push(if sequence.is_reading() {
                Move::Over(Ok(Step::default()))
            } else {
                sequence.plan(0, &mut *self.clock)
            });
        }
        let taken: usize = moves.iter().map(Move::rows).sum();
        let mut left = prompt_rows.min(MAX_ROWS.saturating_sub(taken));
        // Prompts with the fewest rows to go come first, and what they do not need of an even share goes to the others.
        readers.sort_by_key(|i| sequences[*i].unread());
        for (n, i) in readers.iter().enumerate() {
            let m = sequences[*i].plan(left.div_ceil(readers.len() - n), &mut *self.clock);
            left -= m.rows();
            moves[*i] = m;
        }
        moves
    }

    /// Forwards what the sequences planned; the rows are then in `self.best` and `self.logits`, one sequence after another.
    fn forward(&mut self, sequences: &mut [&mut Sequence], moves: &mut [Move]) -> Result<()> {
        let Some(model) = sequences.first().map(|sequence| sequence.model().clone()) else { return Ok(()) };
        let n_vocab = model.config().n_vocab;
        let (mut whole, mut few) = (0, 0);
        for m in moves.iter() {
            let Move::Forward(plan) = m else { continue };
            *(if plan.best.is_some() { &mut few } else { &mut whole }) += plan.rows.rows(plan.tokens.len());
        }
        self.logits.resize(self.logits.len().max(whole * n_vocab), 0.0);
        self.best.resize_with(self.best.len().max(few), Best::default);
        let (mut logits, mut best) = (&mut self.logits[..], &mut self.best[..]);
        let mut spans = Vec::with_capacity(sequences.len());
        for (sequence, m) in sequences.iter_mut().zip(moves.iter()) {
            let Move::Forward(plan) = m else { continue };
            let n = plan.rows.rows(plan.tokens.len());
            let output = match plan.best {
                Some(k) => {
                    let own = best.split_off_mut(..n).unwrap_or_default();
                    own.iter_mut().for_each(|best| best.reset(k));
                    Output::Best(own)
                }
                None => Output::Logits(logits.split_off_mut(..n * n_vocab).unwrap_or_default()),
            };
            let state = &mut sequence.state;
            spans.push(Span { state, tokens: &plan.tokens, rows: plan.rows, output, taps: Taps::none() });
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
            let results = match plan.best {
                Some(_) => Results::Best(best.split_off(..n).unwrap_or_default()),
                None => {
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
fn prepare(sequence: &mut Sequence, m: &mut Move) {
    let Move::Forward(plan) = m else { return };
    let rows = plan.tokens.len();
    let part = if plan.prompt { Part::Prefill } else { Part::Forward { rows } };
    if let Err(error) = sequence.before(part).and_then(|()| sequence.state.reserve(rows)) {
        let Move::Forward(plan) = std::mem::replace(m, Move::Over(Ok(Step::default()))) else { return };
        *m = Move::Over(sequence.fail(*plan, error));
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
