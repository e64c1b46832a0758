//! A GGUF file's metadata and tensor descriptions as Python values.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use quoth_engine::gguf::{self, Value};

use crate::errors::guarded;

/// An open GGUF file: `keys`, `get` of metadata, `tensors`.
#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct GgufFile {
    pub(crate) file: Arc<gguf::GgufFile>,
}

/// A string if it is UTF-8, bytes if not.
fn text<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyAny> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, bytes).into_any(),
    }
}

fn value<'py>(py: Python<'py>, value: Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Bool(v) => v.into_bound_py_any(py),
        Value::String(bytes) => Ok(text(py, bytes)),
        Value::Array(array) => match array.strings() {
            Some(strings) => Ok(PyList::new(py, strings.iter().map(|s| text(py, s)))?.into_any()),
            None => {
                let items: Vec<_> = array.iter().map(|item| self::value(py, item)).collect::<PyResult<_>>()?;
                Ok(PyList::new(py, items)?.into_any())
            }
        },
        other => match (other.as_int(), other.as_float()) {
            (Some(v), _) => v.into_bound_py_any(py),
            (None, Some(v)) => v.into_bound_py_any(py),
            (None, None) => Ok(py.None().into_bound(py)),
        },
    }
}

#[pymethods]
impl GgufFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let file = guarded(py, &Mutex::new(None), || Ok(gguf::GgufFile::open(&path)?))?;
        Ok(GgufFile { file: Arc::new(file) })
    }

    #[getter]
    fn version(&self) -> u32 {
        self.file.version()
    }

    #[getter]
    fn alignment(&self) -> u64 {
        self.file.alignment()
    }

    #[getter]
    fn n_bytes(&self) -> u64 {
        self.file.file_size()
    }

    #[getter]
    fn paths(&self) -> Vec<PathBuf> {
        self.file.paths().map(PathBuf::from).collect()
    }

    fn keys(&self) -> Vec<String> {
        self.file.metadata().iter().map(|(key, _)| key.to_owned()).collect()
    }

    fn __len__(&self) -> usize {
        self.file.metadata().len()
    }

    fn __contains__(&self, key: &str) -> bool {
        self.file.metadata().get(key).is_some()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        match self.file.metadata().get(key) {
            Some(found) => value(py, found),
            None => Err(PyKeyError::new_err(key.to_owned())),
        }
    }

    /// Name, shape, type name, bytes, offset of every tensor.
    fn tensors(&self) -> Vec<(String, Vec<u64>, &'static str, u64, u64)> {
        let one = |t: &gguf::TensorInfo| (t.name.clone(), t.shape().to_vec(), t.ty.name(), t.n_bytes, t.offset);
        self.file.tensors().iter().map(one).collect()
    }
}
