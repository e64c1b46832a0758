//! The way into a scheduler: a job becomes a task in the caller's thread, and waits there until the scheduler's next step.
//!
//! In: jobs and cancellations, from any thread. Out: tasks and their numbers, to the scheduler.
//!
//! - **N1** `submit` and `cancel` wait for no step: what they lock, the scheduler locks only to take over what came in.
//! - **N2** A job that can never run is refused here, with the words of its request; what was taken will have an outcome.
//!
//! Cost: a submission reads the prompt once, for the draft index.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quoth_draft::Costs;
use quoth_kernels::attend::KvKind;

use super::admit::Place;
use super::{Job, Task, TaskId};
use crate::decode::{Clock, Sequence, SystemClock};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::vocab::Vocab;

/// See the module.
#[derive(Debug)]
pub struct Intake {
    model: Arc<Model>,
    vocab: Arc<Vocab>,
    costs: Costs,
    kind: KvKind,
    max_kv_bytes: Option<usize>,
    clock: SystemClock,
    submitted: AtomicU64,
    came: Mutex<Came>,
}

/// What came in since the last step.
#[derive(Debug, Default)]
struct Came {
    tasks: Vec<Task>,
    cancelled: Vec<TaskId>,
}

impl Intake {
    pub(super) fn new(
        model: Arc<Model>,
        vocab: Arc<Vocab>,
        costs: Costs,
        kind: KvKind,
        max_kv_bytes: Option<usize>,
        clock: SystemClock,
    ) -> Intake {
        let (submitted, came) = (AtomicU64::new(0), Mutex::default());
        Intake { model, vocab, costs, kind, max_kv_bytes, clock, submitted, came }
    }

    /// The costs that all tasks share.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Takes a job. Its first event comes with one of the next steps.
    ///
    /// # Errors
    /// The prompt is empty, too long or has tokens out of range, the request makes no sense, or its blocks alone are more than `max_kv_bytes`. Nothing was
    /// taken.
    pub fn submit(&self, job: Job) -> Result<TaskId> {
        let mut sequence = Sequence::new(self.model.clone(), self.vocab.clone(), self.kind, job.speculation)?;
        sequence.begin(&job.prompt, job.request, { self.clock }.now_ns())?;
        let id = TaskId(self.submitted.fetch_add(1, Ordering::Relaxed));
        let place = Place { priority: job.priority, overtaken: 0 };
        let task = Task { id, sequence, place, kept: false };
        if let Some(most) = self.max_kv_bytes.filter(|most| task.bytes() > *most) {
            let expected = format!("at least the {} bytes that this request may need", task.bytes());
            return Err(Error::Option { what: "max_kv_bytes", found: most.to_string(), expected });
        }
        self.lock().tasks.push(task);
        Ok(id)
    }

    /// Asks for the end of a task where it stands. Its outcome comes with the next step; if it is over by then, nothing happens.
    pub fn cancel(&self, id: TaskId) {
        self.lock().cancelled.push(id);
    }

    /// Tasks and cancellations that came in.
    pub(super) fn len(&self) -> usize {
        let came = self.lock();
        came.tasks.len() + came.cancelled.len()
    }

    /// Takes over what came in.
    pub(super) fn take(&self) -> (Vec<Task>, Vec<TaskId>) {
        let Came { tasks, cancelled } = std::mem::take(&mut *self.lock());
        (tasks, cancelled)
    }

    fn lock(&self) -> MutexGuard<'_, Came> {
        // Both lists are whole after every statement.
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
