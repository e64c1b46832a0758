//! A drafter with weights of its own, attached to a model.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use numpy::{PyArray2, PyArrayMethods, PyReadonlyArray3, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use quoth_engine::Error;
use quoth_engine::model;
use quoth_engine::proposer::{self, Hidden};

use crate::errors::{guarded, options};
use crate::gguf::GgufFile;
use crate::model::Model;
use crate::session::kv_kind;
use crate::{callback, convert};

#[pyclass(module = "quoth._core", frozen)]
pub(crate) struct Drafter {
    pub(crate) drafter: Arc<dyn proposer::Drafter>,
    target: Arc<model::Model>,
    path: PathBuf,
}

/// Kinds of drafters that come in files of their own.
#[pyfunction]
pub(crate) fn drafter_kinds() -> Vec<&'static str> {
    proposer::kinds().collect()
}

#[pymethods]
impl Drafter {
    #[new]
    #[pyo3(signature = (model, file, progress))]
    fn new(py: Python<'_>, model: &Model, file: &GgufFile, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let target = model.alive().map_err(|e| crate::errors::to_py(py, e))?;
        let path = file.file.paths().next().map(PathBuf::from).unwrap_or_default();
        let raised = Mutex::new(None);
        let drafter = guarded(py, &raised, || {
            proposer::attach(&file.file, &target, &mut |done, total| {
                callback::progress(&progress, &raised, done, total)
            })
        })?;
        Ok(Drafter { drafter, target, path })
    }

    /// The file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The drafter in numbers.
    fn description<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.drafter.description();
        let dict = PyDict::new(py);
        dict.set_item("kind", found.kind)?;
        dict.set_item("n_layer", found.n_layer)?;
        dict.set_item("n_draft", found.n_draft)?;
        dict.set_item("taps", &found.taps)?;
        dict.set_item("weight_bytes", found.weight_bytes)?;
        dict.set_item("lent_embedding", found.lent_embedding)?;
        dict.set_item("lent_output", found.lent_output)?;
        dict.set_item("load_ns", found.load_ns)?;
        Ok(dict)
    }

    /// What it makes of a text and `chain` guesses after it; hidden rows are those given, `[layers][tokens][n_embd]`, or the model's own.
    #[pyo3(signature = (tokens, kv_type, hidden, chain))]
    fn trace<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        kv_type: &str,
        hidden: Option<PyReadonlyArray3<'py, f32>>,
        chain: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (tokens, kind) = (convert::tokens(tokens)?, kv_kind(py, kv_type)?);
        let (n_embd, layers) = (self.target.config().n_embd, self.drafter.taps());
        let given = match &hidden {
            Some(rows) if rows.shape() == [layers.len(), tokens.len(), n_embd] => {
                Some(rows.as_array().iter().copied().collect::<Vec<_>>())
            }
            Some(rows) => {
                let expected = [layers.len(), tokens.len(), n_embd];
                return Err(options(py, format!("hidden has shape {:?}, expected {expected:?}", rows.shape())));
            }
            None => None,
        };
        let trace = guarded(py, &Mutex::new(None), || {
            let values = match given {
                Some(values) => values,
                None => proposer::hidden_rows(&self.target, kind, layers, &tokens)?,
            };
            let hidden = Hidden { values: &values, stride: tokens.len(), n_embd };
            self.drafter.clone().trace(kind, &tokens, hidden, chain)
        })?;
        let array = |values: Vec<f32>, width: usize| -> PyResult<Py<PyArray2<f32>>> {
            let rows = values.len() / width;
            Ok(numpy::PyArray1::from_vec(py, values).reshape([rows, width])?.unbind())
        };
        let n_draft = self.drafter.description().n_draft;
        let dict = PyDict::new(py);
        dict.set_item("logits", array(trace.logits, n_draft)?)?;
        dict.set_item("states", array(trace.states, n_embd)?)?;
        dict.set_item("guesses", trace.guesses)?;
        Ok(dict)
    }
}

impl Drafter {
    /// The drafter, if it drafts for this model.
    pub(crate) fn of(&self, model: &Arc<model::Model>) -> Result<Arc<dyn proposer::Drafter>, Error> {
        match Arc::ptr_eq(&self.target, model) {
            true => Ok(self.drafter.clone()),
            false => {
                let (found, expected) = (self.path.display().to_string(), "one that was attached to this model".into());
                Err(Error::Option { what: "drafter", found, expected })
            }
        }
    }
}
