//! Python values to Rust ones, with errors that say what was expected.

use numpy::{PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyString, PyTuple};

use crate::errors::options;

/// Token ids from any sequence of whole numbers, or a one-dimensional integer array.
pub(crate) fn tokens(value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    tokens_to(value, u32::MAX)
}

/// As [`tokens`], each at most `last`.
pub(crate) fn tokens_to(value: &Bound<'_, PyAny>, last: u32) -> PyResult<Vec<u32>> {
    let py = value.py();
    if value.is_instance_of::<PyString>() {
        return Err(options(py, "tokens is text, expected token ids"));
    }
    // What is no array does not need numpy, whose import takes longer than loading a small model.
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        return numbers(value, last);
    }
    if let Ok(array) = value.cast::<numpy::PyUntypedArray>()
        && array.ndim() != 1
    {
        return Err(options(py, format!("tokens has {} dimensions, expected 1", array.ndim())));
    }
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, i64>>() {
        return array.as_array().iter().enumerate().map(|(i, v)| token(py, i, *v, last)).collect();
    }
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, i32>>() {
        return array.as_array().iter().enumerate().map(|(i, v)| token(py, i, i64::from(*v), last)).collect();
    }
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, u32>>() {
        return array.as_array().iter().enumerate().map(|(i, v)| token(py, i, i64::from(*v), last)).collect();
    }
    numbers(value, last)
}

fn numbers(value: &Bound<'_, PyAny>, last: u32) -> PyResult<Vec<u32>> {
    let mut ids = Vec::with_capacity(value.len().unwrap_or(0));
    for (i, item) in value.try_iter()?.enumerate() {
        let item = item?;
        // True and False are whole numbers to Python; as token ids they are a mistake.
        let id = if item.is_instance_of::<PyBool>() { None } else { item.extract::<i64>().ok() };
        match id {
            Some(id) => ids.push(token(value.py(), i, id, last)?),
            None => return Err(no_token(value.py(), i, &shown(&item)?, last)),
        }
    }
    Ok(ids)
}

fn token(py: Python<'_>, i: usize, id: i64, last: u32) -> PyResult<u32> {
    let token = u32::try_from(id).ok().filter(|token| *token <= last);
    token.ok_or_else(|| no_token(py, i, &id.to_string(), last))
}

fn no_token(py: Python<'_>, i: usize, found: &str, last: u32) -> PyErr {
    options(py, format!("token {i} is {found}, expected a whole number of 0 to {last}"))
}

/// A value for a message, as the Python side words it.
pub(crate) fn shown(value: &Bound<'_, PyAny>) -> PyResult<String> {
    value.py().import("quoth._arguments")?.getattr("shown")?.call1((value,))?.extract()
}
