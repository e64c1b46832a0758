//! Rows of tokens in, rows of logits and committed tokens out.

pub mod error;
pub mod gguf;
pub mod limits;
pub mod sample;
pub mod vocab;

pub use error::{Error, Result};
