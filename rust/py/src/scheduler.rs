//! Many requests at once: the engine's scheduler, one call a step.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;
use quoth_engine::schedule::{self, Intake, Job, SchedulerOptions, TaskId, admit};

use crate::convert;
use crate::decoder::{RequestArgs, speculation};
use crate::draft::{self, SpeculationArgs};
use crate::errors::{busy, guarded};
use crate::model::{Grammars, Model};
use crate::results::Event;
use crate::session::kv_kind;
use crate::source::Interrupt;

/// Runs many requests in one forward a step. One thread takes steps; other threads may submit and cancel meanwhile, all else is refused.
#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct Scheduler {
    scheduler: Mutex<schedule::Scheduler>,
    intake: Arc<Intake>,
    interrupt: Interrupt,
    grammars: Arc<Grammars>,
}

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (model, kv_type, speculation_args, max_sequences, max_kv_bytes, prefix_bytes))]
    fn new(
        py: Python<'_>,
        model: &Model,
        kv_type: &str,
        speculation_args: SpeculationArgs,
        max_sequences: usize,
        max_kv_bytes: Option<usize>,
        prefix_bytes: usize,
    ) -> PyResult<Self> {
        let kind = kv_kind(py, kv_type)?;
        let (vocab, costs) = (model.vocab(py)?, speculation_args.costs(py)?);
        let grammars = model.grammars(py)?;
        let admission = admit::by_priority;
        let options = SchedulerOptions { kind, max_sequences, max_kv_bytes, prefix_bytes, admission };
        let scheduler =
            guarded(py, &Mutex::new(None), || schedule::Scheduler::new(model.alive()?, vocab, costs, options))?;
        let intake = scheduler.intake().clone();
        Ok(Scheduler { scheduler: Mutex::new(scheduler), intake, interrupt: Interrupt::default(), grammars })
    }

    /// Takes a request; the number of its task.
    #[pyo3(signature = (prompt, request, speculation_args, source, references, priority))]
    #[allow(clippy::too_many_arguments, reason = "a job's parts, as Python has them")]
    fn submit(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        request: RequestArgs,
        speculation_args: Option<SpeculationArgs>,
        source: Option<&Bound<'_, PyAny>>,
        references: Vec<Vec<u32>>,
        priority: i32,
    ) -> PyResult<u64> {
        let prompt = convert::tokens(prompt)?;
        let model = self.intake.model();
        let (mut speculation, cascade) = speculation(py, speculation_args, source, model, &self.interrupt)?;
        for reference in &references {
            if let Some(cascade) = &cascade {
                draft::add_reference(py, cascade, reference)?;
            }
        }
        if let Some(speculation) = &mut speculation {
            speculation.costs = self.intake.costs().clone();
        }
        guarded(py, &Mutex::new(None), || {
            let request = request.request(&self.grammars, &prompt)?;
            self.intake.submit(Job { prompt, request, speculation, priority })
        })
        .map(|id| id.0)
    }

    /// Ends a task where it stands; its outcome comes with the next step.
    fn cancel(&self, task: u64) {
        self.intake.cancel(TaskId(task));
    }

    /// Takes a step of all that runs.
    fn step(&self, py: Python<'_>) -> PyResult<Vec<Event>> {
        let mut scheduler = self.lock(py)?;
        let scheduler = &mut *scheduler;
        let events = guarded(py, &Mutex::new(None), || Ok(scheduler.step()))?;
        if let Ok(Some(exception)) = self.interrupt.lock().map(|mut i| i.take()) {
            return Err(exception);
        }
        events.into_iter().map(|event| Event::new(py, event)).collect()
    }

    /// Whether there is nothing to do.
    fn is_idle(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.is_idle())
    }

    /// Tasks that wait.
    fn waiting(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.waiting())
    }

    /// Tasks that run.
    fn running(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.running())
    }

    /// Bytes of cached blocks of all sequences of the model, stored prefixes included.
    fn kv_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.model().kv_meter().bytes())
    }

    /// Bytes of stored prefixes.
    fn prefix_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.prefixes().bytes())
    }

    /// Forgets stored prefixes.
    fn clear_prefixes(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.prefixes().clear();
        Ok(())
    }
    /// Writes stored prefixes to a file.
    fn save_prefixes(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mut scheduler = self.lock(py)?;
        let scheduler = &mut *scheduler;
        guarded(py, &Mutex::new(None), || scheduler.prefixes().save(&path))
    }

    /// Reads stored prefixes from a file; the number of blocks that were taken.
    fn load_prefixes(&self, py: Python<'_>, path: PathBuf) -> PyResult<usize> {
        let mut scheduler = self.lock(py)?;
        let scheduler = &mut *scheduler;
        guarded(py, &Mutex::new(None), || scheduler.prefixes().load(&path))
    }
}

impl Scheduler {
    fn lock<'s>(&'s self, py: Python<'_>) -> PyResult<MutexGuard<'s, schedule::Scheduler>> {
        match self.scheduler.try_lock() {
            Ok(scheduler) => Ok(scheduler),
            // A panic ended a step; its tasks go on or are over, as their sequences say.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy(py, "the engine is taking a step for another caller")),
        }
    }
}
