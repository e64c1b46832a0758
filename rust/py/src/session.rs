//! The bare machine.

use std::sync::Mutex;

use numpy::{PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use quoth_engine::model::Want;
use quoth_engine::session;
use quoth_kernels::attend::KvKind;

use crate::convert;
use crate::errors::{busy, guarded, options};
use crate::model::Model;

#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct Session {
    session: Mutex<session::Session>,
}

/// The cache kind of a name.
pub(crate) fn kv_kind(py: Python<'_>, name: &str) -> PyResult<KvKind> {
    match name {
        "f32" => Ok(KvKind::F32),
        "f16" => Ok(KvKind::F16),
        "q8_0" => Ok(KvKind::Q8_0),
        other => Err(options(py, format!("kv_type is `{other}`, expected f32, f16 or q8_0"))),
    }
}

#[pymethods]
impl Session {
    #[new]
    fn new(py: Python<'_>, model: &Model, kv_type: &str) -> PyResult<Self> {
        let kind = kv_kind(py, kv_type)?;
        let session = guarded(py, &Mutex::new(None), || session::Session::new(model.alive()?, kind))?;
        Ok(Session { session: Mutex::new(session) })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.len())
    }

    /// Logits of all rows, or of the last.
    fn forward<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        rows: &str,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let tokens = convert::tokens(tokens)?;
        let want = match rows {
            "all" => Want::All,
            "last" => Want::Last,
            other => return Err(options(py, format!("rows is `{other}`, expected all or last"))),
        };
        let mut session = self.lock(py)?;
        let n_vocab = session.model().config().n_vocab;
        let n_rows = if want == Want::All { tokens.len() } else { tokens.len().min(1) };
        // Refuse before sizing the result: what cannot fit must not cost its memory first. The engine refuses the rest.
        if session.len() + tokens.len() > session.cache().n_ctx() {
            let error = quoth_engine::Error::ContextFull {
                cached: session.len(),
                asked: tokens.len(),
                n_ctx: session.cache().n_ctx(),
            };
            return Err(crate::errors::to_py(py, error));
        }
        // SAFETY: every element is written by the forward below, or the array is dropped unread.
        let array = unsafe { PyArray2::<f32>::new(py, [n_rows, n_vocab], false) };
        let mut view = array.readwrite();
        let out = view.as_slice_mut().map_err(|e| crate::errors::internal(py, e.to_string()))?;
        let raised = Mutex::new(None);
        let session = &mut *session;
        guarded(py, &raised, || {
            // After the last pass the work is done: a signal then is Python's to handle, and the session has grown.
            let mut go_on = |done: usize| done == tokens.len() || crate::errors::no_signal(&raised);
            session.forward(&tokens, want, out, &mut go_on)
        })?;
        drop(view);
        Ok(array)
    }

    /// The ids of the `k` greatest logits of each row, best first. At most one pass of tokens.
    fn best(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, k: usize) -> PyResult<Vec<Vec<u32>>> {
        let tokens = convert::tokens(tokens)?;
        let mut session = self.lock(py)?;
        let session = &mut *session;
        let best = guarded(py, &Mutex::new(None), || session.best(&tokens, k))?;
        Ok(best.iter().map(|best| best.ids().collect()).collect())
    }

    fn truncate(&self, py: Python<'_>, n: usize) -> PyResult<()> {
        let mut session = self.lock(py)?;
        let session = &mut *session;
        guarded(py, &Mutex::new(None), || session.truncate(n))
    }

    fn fork(&self, py: Python<'_>, n: usize) -> PyResult<Session> {
        let session = self.lock(py)?;
        let session = &*session;
        let fork = guarded(py, &Mutex::new(None), || session.fork(n))?;
        Ok(Session { session: Mutex::new(fork) })
    }

    /// Whether two sessions have the same bytes cached for their first `n` tokens.
    fn same_prefix(&self, py: Python<'_>, other: &Session, n: usize) -> PyResult<bool> {
        if std::ptr::eq(self, other) {
            return Ok(true);
        }
        Ok(self.lock(py)?.cache().same_prefix(other.lock(py)?.cache(), n))
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.cache().memory_bytes())
    }
}

impl Session {
    fn lock<'s>(&'s self, py: Python<'_>) -> PyResult<std::sync::MutexGuard<'s, session::Session>> {
        match self.session.try_lock() {
            Ok(session) => Ok(session),
            // A panic left the cache at its last good length, so the session can go on.
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => Err(busy(py, "the session is in use by another caller")),
        }
    }
}
