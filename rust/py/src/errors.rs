//! Engine errors to Python exceptions, and panics to `InternalError`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use quoth_engine::gguf::GgufError;
use quoth_engine::{Error, ErrorKind};

/// The exception of this name in `quoth.errors`.
fn named(py: Python<'_>, cell: &'static PyOnceLock<Py<PyType>>, name: &str, message: String) -> PyErr {
    match cell.import(py, "quoth.errors", name) {
        Ok(class) => PyErr::from_type(class.clone(), message),
        Err(error) => error,
    }
}

macro_rules! exception {
    ($function:ident, $name:literal) => {
        pub(crate) fn $function(py: Python<'_>, message: impl Into<String>) -> PyErr {
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            named(py, &CLASS, $name, message.into())
        }
    };
}

exception!(model_file, "ModelFileError");
exception!(tokenizer, "TokenizerError");
exception!(options, "OptionsError");
exception!(context_full, "ContextFullError");
exception!(busy, "BusyError");
exception!(internal, "InternalError");

/// An `OSError` with number, text and path, of the subclass that Python gives that number.
fn system(source: &std::io::Error, path: Option<String>, message: String) -> PyErr {
    match (source.raw_os_error(), path) {
        (Some(number), Some(path)) => {
            let text = source.to_string();
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            PyOSError::new_err((number, text, path))
        }
        _ => PyOSError::new_err(message),
    }
}

/// The exception of an engine error.
pub(crate) fn to_py(py: Python<'_>, error: Error) -> PyErr {
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Io => match &error {
            Error::Gguf(GgufError::Io { path, source }) => system(source, Some(path.display().to_string()), message),
            Error::Memory { source, .. } | Error::Threads { source, .. } => system(source, None, message),
            _ => PyOSError::new_err(message),
        },
        ErrorKind::ModelFile => model_file(py, message),
        ErrorKind::Tokenizer => tokenizer(py, message),
        ErrorKind::Options => options(py, message),
        ErrorKind::ContextFull => context_full(py, message),
        ErrorKind::Cancelled => PyKeyboardInterrupt::new_err(()),
        _ => internal(py, message),
    }
}

/// Runs `work` without the interpreter, and gives its error or panic as an exception. An exception that a callback left in `raised` wins over the
/// engine's own error.
pub(crate) fn guarded<T: Send>(
    py: Python<'_>,
    raised: &std::sync::Mutex<Option<PyErr>>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    let outcome = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    let raised = raised.lock().map(|mut r| r.take()).unwrap_or_default();
    match (outcome, raised) {
        (_, Some(exception)) => Err(exception),
        (Ok(Ok(value)), None) => Ok(value),
        (Ok(Err(error)), None) => Err(to_py(py, error)),
        (Err(panic), None) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(internal(py, format!("internal error: {}", text.unwrap_or("a panic without a message"))))
        }
    }
}

/// Whether work may go on: false if Python has a signal for us (Ctrl-C), whose exception is then left in `raised`.
pub(crate) fn no_signal(raised: &std::sync::Mutex<Option<PyErr>>) -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => true,
        Err(exception) => {
            if let Ok(mut raised) = raised.lock() {
                *raised = Some(exception);
            }
            false
        }
    })
}
