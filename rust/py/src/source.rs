//! Draft sources written in Python, seen as Rust ones.
//!
//! The context is handed over as one list that grows with the stream, so a call costs what is new. An exception stops the source for good (the decoder
//! keeps the reason). An interrupt is no fault of the source: it is kept apart and raised at the next chance, and the source stays, unless it may have missed
//! tokens.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyList;
use quoth_draft::{Budget, Draft, DraftSource, SourceError, TopkRow};

use crate::callback;

/// Top-k width of a source that has `observe_topk` and does not say how many it wants.
const DEFAULT_TOPK: usize = 8;
/// Most that it may want.
const MAX_TOPK: usize = 64;

/// An exception that must reach the caller: an interrupt, not a failure of the source.
pub(crate) type Interrupt = Arc<Mutex<Option<PyErr>>>;

pub(crate) struct PySource {
    object: Py<PyAny>,
    topk: usize,
    context: Py<PyList>,
    known: usize,
    /// A failure of `truncate_pending`, which cannot report one; the next call does.
    unreported: Option<SourceError>,
    interrupt: Interrupt,
}

impl PySource {
    /// Wraps an object with `suggest` and `observe`.
    pub(crate) fn new(object: &Bound<'_, PyAny>, interrupt: Interrupt) -> PyResult<Self> {
        let py = object.py();
        for method in ["suggest", "observe"] {
            if !object.getattr(method).is_ok_and(|m| m.is_callable()) {
                let name = object.get_type().name()?;
                return Err(crate::errors::options(
                    py,
                    format!("the draft source of type {name} has no method `{method}`"),
                ));
            }
        }
        let topk = if object.hasattr("observe_topk")? {
            let wanted = match object.getattr("topk") {
                Ok(wanted) => wanted.extract::<usize>().unwrap_or(DEFAULT_TOPK),
                Err(_) => DEFAULT_TOPK,
            };
            wanted.min(MAX_TOPK)
        } else {
            0
        };
        Ok(PySource {
            object: object.clone().unbind(),
            topk,
            context: PyList::empty(py).unbind(),
            known: 0,
            unreported: None,
            interrupt,
        })
    }

    fn failed(&self, py: Python<'_>, error: PyErr) -> SourceError {
        let text = error.value(py).to_string();
        let name = error.get_type(py).name().map(|n| n.to_string()).unwrap_or_default();
        if !error.is_instance_of::<PyException>(py)
            && let Ok(mut interrupt) = self.interrupt.lock()
        {
            interrupt.get_or_insert(error);
        }
        SourceError(format!("{name}: {text}"))
    }

    /// As [`Self::failed`], for a call after which the source is as good as before if it was interrupted.
    fn failed_unless_interrupted(&self, py: Python<'_>, error: PyErr) -> Result<(), SourceError> {
        let interrupted = !error.is_instance_of::<PyException>(py);
        let failed = self.failed(py, error);
        if interrupted { Ok(()) } else { Err(failed) }
    }

    /// Reports what `truncate_pending` could not.
    fn report(&mut self) -> Result<(), SourceError> {
        self.unreported.take().map_or(Ok(()), Err)
    }

    fn call(&self, py: Python<'_>, method: &str, tokens: &[u32]) -> Result<(), SourceError> {
        callback::method(self.object.bind(py), method, (tokens.to_vec(),)).map(drop).map_err(|e| self.failed(py, e))
    }
}

impl DraftSource for PySource {
    fn suggest(&mut self, context: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        self.report()?;
        let max_tokens = budget.max_tokens;
        Python::attach(|py| {
            let list = self.context.bind(py);
            let mut fill = || -> PyResult<()> {
                if self.known > context.len() || list.len() != self.known {
                    list.del_slice(0, list.len())?;
                    self.known = 0;
                }
                for token in &context[self.known..] {
                    list.append(*token)?;
                }
                self.known = context.len();
                Ok(())
            };
            fill().map_err(|e| self.failed(py, e))?;
            let mut ask = || -> PyResult<()> {
                let answer = callback::method(self.object.bind(py), "suggest", (list, max_tokens))?;
                if answer.is_none() {
                    return Ok(());
                }
                // One more than asked for is enough to know that the source overdid it.
                let items = answer.try_iter()?;
                for _ in 0..=max_tokens {
                    let Some(item) = callback::next(&items)? else { break };
                    let id = item.extract::<i64>()?;
                    // What is no token id at all is outside every vocabulary.
                    draft.tokens.push(u32::try_from(id).unwrap_or(u32::MAX));
                }
                Ok(())
            };
            let answer = ask();
            // What is certain to come is not committed yet: the list of the next step begins without it.
            self.known = context.len() - budget.ahead;
            list.del_slice(self.known, context.len()).map_err(|e| self.failed(py, e))?;
            if let Err(error) = answer {
                draft.clear();
                return self.failed_unless_interrupted(py, error);
            }
            Ok(())
        })
    }

    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        self.report()?;
        Python::attach(|py| self.call(py, "observe", committed))
    }

    fn topk(&self) -> usize {
        self.topk
    }

    fn observe_topk(&mut self, rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        self.report()?;
        Python::attach(|py| {
            let rows: Vec<(u32, Vec<u32>)> = rows.iter().map(|row| (row.token, row.top.to_vec())).collect();
            let told = callback::method(self.object.bind(py), "observe_topk", (rows,)).map(drop);
            told.or_else(|error| self.failed_unless_interrupted(py, error))
        })
    }

    fn truncate_pending(&mut self, n: usize) {
        Python::attach(|py| {
            let object = self.object.bind(py);
            if let Ok(method) = object.getattr("truncate_pending")
                && let Err(error) = callback::call(&method, (n,))
            {
                self.unreported = self.failed_unless_interrupted(py, error).err();
            }
        });
    }

    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        self.report()?;
        self.known = usize::MAX;
        Python::attach(|py| {
            let object = self.object.bind(py);
            if object.hasattr("rebuild").unwrap_or(false) {
                return self.call(py, "rebuild", history);
            }
            if object.hasattr("reset").unwrap_or(false) {
                callback::method(object, "reset", ()).map_err(|e| self.failed(py, e))?;
            }
            if history.is_empty() { Ok(()) } else { self.call(py, "observe", history) }
        })
    }
}
