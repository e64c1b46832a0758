//! What the benches share: inputs, and the machine's own limits, measured in the same run.

pub mod inputs;
pub mod limits;
