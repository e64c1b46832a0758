//! Python values to Rust ones, with errors that say what was expected.

use numpy::{PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::errors::options;

/// Token ids from any sequence of whole numbers, or a one-dimensional integer array.
pub(crate) fn tokens(value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let py = value.py();
    if value.is_instance_of::<PyString>() {
        return Err(options(py, "tokens is text, expected token ids"));
    }
    // What is no array does not need numpy, whose import takes longer than loading a small model.
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        return numbers(value);
    }
    if let Ok(array) = value.cast::<numpy::PyUntypedArray>()
        && array.ndim() != 1
    {
        return Err(options(py, format!("tokens has {} dimensions, expected 1", array.ndim())));
    }
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, i64>>() {
        return array.as_array().iter().enumerate().map(|(i, v)| token(py, i, *v)).collect();
    }
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, i32>>() {
        return array.as_array().iter().enumerate().map(|(i, v)| token(py, i, i64::from(*v))).collect();
    }
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, u32>>() {
        return Ok(array.as_array().to_vec());
    }
    numbers(value)
}

fn numbers(value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let py = value.py();
    let mut ids = Vec::with_capacity(value.len().unwrap_or(0));
    for (i, item) in value.try_iter()?.enumerate() {
        let item = item?;
        let id = item.extract::<i64>().map_err(|_| {
            let found = item.repr().map(|r| r.to_string()).unwrap_or_default();
            options(py, format!("token {i} is {found}, expected a whole number of 0 to 4294967295"))
        })?;
        ids.push(token(py, i, id)?);
    }
    Ok(ids)
}

fn token(py: Python<'_>, i: usize, id: i64) -> PyResult<u32> {
    u32::try_from(id).map_err(|_| options(py, format!("token {i} is {id}, expected 0 to 4294967295")))
}
