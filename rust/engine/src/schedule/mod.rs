//! Many requests, one engine: sequences come and go between steps.
//!
//! In: [`Job`]s and cancellations, from any thread, by the [`Intake`]. Out: [`Event`]s, the steps of each task, to the one thread that calls `step`.
//!
//! | file | its one idea |
//! | --- | --- |
//! | [`intake`] | jobs become tasks, in the caller's thread; the scheduler takes them over between steps |
//! | [`admit`] | which waiting task is next |
//! | `pace` | how many rows of prompts a step may read |
//!
//! - **H1** A task commits the same tokens, rows and log-probabilities as its request alone would (E1), whatever the schedule and whatever prefix it was given.
//! - **H2** Every decoding sequence takes part in every step, so it waits for no more than one. Prompts are read in chunks beside them; while others wait, no
//!   step is longer than about five plain steps.
//! - **H3** A task is admitted when a sequence is free and the blocks that it may need at most fit `max_kv_bytes`, so no task runs out of memory half-way.
//!   [`admit`] says which is next.
//! - **H4** Finished, failed and cancelled tasks leave their whole blocks in the prefix store, prompts do so as soon as they are read. A task whose prompt begins
//!   as one that is being read just now waits for it instead of computing the same blocks.
//! - **H5** Nothing outlives a task but what the prefix store keeps, within its bound.
//!
//! Cost: a step is the engine's; beside it some hundred nanoseconds a sequence.

pub mod admit;
mod intake;
mod pace;

use std::collections::VecDeque;
use std::sync::Arc;

use quoth_draft::{Costs, SpeculationStats};
use quoth_kernels::attend::{CHUNK, KvKind};

use crate::decode::{DecodeStats, Engine, Request, Sequence, Speculation, Step, SystemClock};
use crate::error::{Error, Result};
use crate::model::{MAX_ROWS, Model};
use crate::prefix::PrefixStore;
use crate::vocab::Vocab;
use admit::{Admission, Place};
pub use intake::Intake;
use pace::Pace;

/// Bounds of a scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    /// How keys and values are cached.
    pub kind: KvKind,
    /// Sequences that run at once, 1 to [`MAX_ROWS`].
    pub max_sequences: usize,
    /// Bytes of all cached blocks, those of the prefix store included; `None`: no bound but the machine's memory.
    pub max_kv_bytes: Option<usize>,
    /// Bytes that the prefix store may keep; 0: it keeps nothing.
    pub prefix_bytes: usize,
    /// Which waiting task is next.
    pub admission: Admission,
}

/// A request with what it is decoded with.
#[derive(Debug)]
pub struct Job {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// What is wanted.
    pub request: Request,
    /// How it drafts; its costs should be the scheduler's ([`Intake::costs`]), so that all learn together.
    pub speculation: Option<Speculation>,
    /// Greater is sooner.
    pub priority: i32,
}

/// Names a task of one scheduler; ascending in the order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// A step of a task.
#[derive(Debug)]
pub struct Event {
    /// The task.
    pub id: TaskId,
    /// What it handed out; nothing, without a finish, if the task was cancelled.
    pub step: Result<Step>,
    /// What the whole task did. Present if it is over: by its finish, an error or a cancellation.
    pub outcome: Option<Box<Outcome>>,
}

/// What a task did.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Counts and times.
    pub stats: DecodeStats,
    /// What speculation did; `None` without it.
    pub speculation: Option<SpeculationStats>,
}

/// A task with its sequence.
#[derive(Debug)]
struct Task {
    id: TaskId,
    sequence: Sequence,
    place: Place,
    /// Whether the store has its prompt.
    kept: bool,
}

impl Task {
    /// Bytes of blocks that it may still need.
    fn bytes(&self) -> usize {
        let sequence = &self.sequence;
        let unread = if sequence.is_reading() { sequence.unread() } else { 1 };
        let n = (unread + sequence.wanted()).min(sequence.state().n_ctx() - sequence.state().len());
        sequence.cache().bytes_for(n)
    }

    fn outcome(&self) -> Box<Outcome> {
        let (stats, speculation) = (self.sequence.stats().clone(), self.sequence.speculation_stats());
        Box::new(Outcome { stats, speculation })
    }
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    model: Arc<Model>,
    options: SchedulerOptions,
    intake: Arc<Intake>,
    engine: Engine,
    prefixes: PrefixStore,
    waiting: VecDeque<Task>,
    running: Vec<Task>,
    pace: Pace,
}

impl Scheduler {
    /// A scheduler without tasks.
    ///
    /// # Errors
    /// An option is out of range, or `kind` cannot store heads of this model's width.
    pub fn new(model: Arc<Model>, vocab: Arc<Vocab>, costs: Costs, options: SchedulerOptions) -> Result<Scheduler> {
        if options.max_sequences == 0 || options.max_sequences > MAX_ROWS {
            let expected = format!("1 to {MAX_ROWS}");
            return Err(Error::Option { what: "max_sequences", found: options.max_sequences.to_string(), expected });
        }
        Sequence::new(model.clone(), vocab.clone(), options.kind, None)?;
        let prefixes = PrefixStore::new(model.clone(), options.kind, options.prefix_bytes);
        let clock = SystemClock::default();
        let intake = Intake::new(model.clone(), vocab, costs.clone(), options.kind, options.max_kv_bytes, clock);
        let mut engine = Engine::new(costs);
        engine.set_clock(Box::new(clock));
        Ok(Scheduler {
            model,
            options,
            intake: Arc::new(intake),
            engine,
            prefixes,
            waiting: VecDeque::new(),
            running: Vec::new(),
            pace: Pace::default(),
        })
    }

    /// Where jobs and cancellations go in.
    pub fn intake(&self) -> &Arc<Intake> {
        &self.intake
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Stored prefixes.
    pub fn prefixes(&mut self) -> &mut PrefixStore {
        &mut self.prefixes
    }

    /// Tasks that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len() + self.intake.len()
    }

    /// Tasks that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting() + self.running() == 0
    }

    /// Takes over what came in, admits what can be admitted, and takes a step of all that runs. Without tasks there are no events.
    pub fn step(&mut self) -> Vec<Event> {
        let (new, cancelled) = self.intake.take();
        self.waiting.extend(new);
        let mut events: Vec<Event> = cancelled.into_iter().filter_map(|id| self.cancel(id)).collect();
        self.admit();
        let decoding = self.running.iter().filter(|task| !task.sequence.is_reading()).count();
        let (costs, start) = (self.engine.costs().clone(), self.engine.now_ns());
        let prompt_rows = self.pace.prompt_rows(decoding, &costs);
        let unread = |running: &[Task]| -> usize {
            running.iter().filter(|task| task.sequence.is_reading()).map(|task| task.sequence.unread()).sum()
        };
        let before = unread(&self.running);
        let mut sequences: Vec<&mut Sequence> = self.running.iter_mut().map(|task| &mut task.sequence).collect();
        let steps = self.engine.step(&mut sequences, prompt_rows);
        let read = before - unread(&self.running).min(before);
        let ns = self.engine.now_ns() - start;
        self.pace.record(decoding, read, ns, &costs);
        self.settle(steps, &mut events);
        events
    }

    /// Ends a task where it stands, if it is not over.
    fn cancel(&mut self, id: TaskId) -> Option<Event> {
        let waiting = self.waiting.iter().position(|task| task.id == id).and_then(|at| self.waiting.remove(at));
        let running = || self.running.iter().position(|task| task.id == id).map(|at| self.running.remove(at));
        let task = waiting.or_else(running)?;
        let outcome = Some(task.outcome());
        self.leave(task);
        Some(Event { id, step: Ok(Step::default()), outcome })
    }

    /// Turns steps into events, and lets go of tasks that are over.
    fn settle(&mut self, steps: Vec<Result<Step>>, events: &mut Vec<Event>) {
        let mut over = Vec::new();
        for (at, (task, step)) in self.running.iter_mut().zip(steps).enumerate() {
            if !task.kept && task.sequence.is_running() && !task.sequence.is_reading() {
                // The prompt has just been read: others may begin with it (H4).
                task.kept = true;
                self.prefixes.keep(task.sequence.history(), task.sequence.state());
            }
            let ends = step.as_ref().map_or(true, |step| step.finish.is_some());
            let empty = step.as_ref().is_ok_and(|step| step.tokens.is_empty() && step.text.is_empty());
            if ends {
                over.push(at);
            }
            if ends || !empty {
                events.push(Event { id: task.id, step, outcome: ends.then(|| task.outcome()) });
            }
        }
        for at in over.into_iter().rev() {
            let task = self.running.remove(at);
            self.leave(task);
        }
    }

    /// A task is over: what it has cached goes to the prefix store (H4), the rest is dropped.
    fn leave(&mut self, task: Task) {
        self.prefixes.keep(task.sequence.history(), task.sequence.state());
    }

    /// Lets waiting tasks run, as far as sequences and memory allow (H3).
    fn admit(&mut self) {
        while self.running.len() < self.options.max_sequences {
            let ready = |task: &Task| !self.waits_for_prefix(task);
            let places: Vec<Option<Place>> =
                self.waiting.iter().map(|task| ready(task).then_some(task.place)).collect();
            let Some(next) = (self.options.admission)(&places) else { return };
            let Some(mut task) = self.waiting.remove(next) else { return };
            if self.options.prefix_bytes > 0
                && let Some(state) = self.prefixes.longest(task.sequence.history())
            {
                task.sequence.adopt(state);
            }
            if !self.fits(&task) {
                // Back to its place: those behind it do not overtake it by being smaller.
                self.waiting.insert(next, task);
                return;
            }
            self.waiting.iter_mut().take(next).for_each(|earlier| earlier.place.overtaken += 1);
            self.running.push(task);
        }
    }

    /// Whether all that runs and this task can get every block that they may need. Stored prefixes make way.
    fn fits(&mut self, task: &Task) -> bool {
        let Some(most) = self.options.max_kv_bytes else { return true };
        let needed = task.bytes() + self.running.iter().map(Task::bytes).sum::<usize>();
        loop {
            let held = self.model.kv_meter().bytes();
            if held + needed <= most {
                return true;
            }
            if !self.prefixes.shrink(held + needed - most) {
                return false;
            }
        }
    }

    /// Whether a task that runs is reading a prompt of which this one can use at least a block more than is stored (H4).
    fn waits_for_prefix(&self, task: &Task) -> bool {
        if self.options.prefix_bytes < CHUNK {
            return false;
        }
        let tokens = task.sequence.history();
        let common = |other: &Task| tokens.iter().zip(other.sequence.history()).take_while(|(a, b)| a == b).count();
        let readers = self.running.iter().filter(|other| other.sequence.is_reading());
        // The last token of a prompt is never taken from a store.
        let blocks = readers.map(|other| common(other).min(tokens.len() - 1) / CHUNK).max().unwrap_or(0);
        blocks > self.prefixes.depth(tokens)
    }
}
