//! The boundary: converts, checks, releases the GIL and maps errors. No arithmetic, no policy.
#![allow(missing_docs)]

use pyo3::prelude::*;

#[pymodule]
fn _core(_m: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
