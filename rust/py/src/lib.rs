//! The boundary: converts, checks, releases the GIL and maps errors. No arithmetic, no policy.
//!
//! Every call that computes runs detached from the interpreter, inside [`errors::guarded`], which turns engine errors into Python exceptions and a panic
//! into `InternalError`. A session belongs to one caller at a time: a second one gets `BusyError` at once, never a wait while it holds the interpreter.
#![allow(missing_docs, reason = "the Python docstrings are the documentation; `_core` is private")]

mod callback;
mod convert;
mod decoder;
mod draft;
mod drafter;
mod errors;
mod gguf;
mod model;
mod results;
mod scheduler;
mod session;
mod source;
mod tokenizer;

use pyo3::prelude::*;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<gguf::GgufFile>()?;
    m.add_class::<model::Model>()?;
    m.add_class::<tokenizer::Tokenizer>()?;
    m.add_class::<session::Session>()?;
    m.add_class::<decoder::Decoder>()?;
    m.add_class::<draft::DraftIndex>()?;
    m.add_class::<drafter::Drafter>()?;
    m.add_class::<results::Step>()?;
    m.add_class::<results::Finish>()?;
    m.add_class::<results::TokenLogprobs>()?;
    m.add_class::<results::DecodeStats>()?;
    m.add_class::<results::SpeculationStats>()?;
    m.add_class::<results::GateStats>()?;
    m.add_class::<results::SourceStats>()?;
    m.add_class::<results::Event>()?;
    m.add_class::<results::Outcome>()?;
    m.add_class::<scheduler::Scheduler>()?;
    m.add_function(wrap_pyfunction!(decoder::check_sampling, m)?)?;
    m.add_function(wrap_pyfunction!(draft::check_speculation, m)?)?;
    m.add_function(wrap_pyfunction!(draft::replay_turns, m)?)?;
    m.add_function(wrap_pyfunction!(model::kernel_sets, m)?)?;
    m.add_function(wrap_pyfunction!(model::default_threads, m)?)?;
    m.add_function(wrap_pyfunction!(model::architectures, m)?)?;
    m.add_function(wrap_pyfunction!(drafter::drafter_kinds, m)?)?;
    Ok(())
}
