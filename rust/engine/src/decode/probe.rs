//! A view into a decoder for tests: sees every row at its commit, and fails where a test wants it to.
//!
//! A decoder without a probe pays a comparison with `None` a row.

use crate::error::Result;

/// A part of a request that a probe may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A pass of the prompt is about to run.
    Prefill,
    /// A step is about to forward so many rows.
    Forward {
        /// The carried token and the draft.
        rows: usize,
    },
    /// The forward has succeeded: the cache holds all its rows, verified or not.
    Forwarded,
    /// A row is about to be sampled.
    Sample {
        /// Its number within the forward.
        row: usize,
    },
}

/// Watches and disturbs a decoder.
pub trait Probe: Send {
    /// Whether rows are to be made where decoding needs only the greatest of each.
    fn wants_rows(&self) -> bool {
        true
    }

    /// A token was committed: its place in the history, the row that it was sampled from as the model made it (empty if none was made), the token.
    fn committed(&mut self, _pos: usize, _row: &[f32], _token: u32) {}

    /// Asked before a part; an error takes the part's place.
    ///
    /// # Errors
    /// Whatever the test wants.
    fn before(&mut self, _part: Part) -> Result<()> {
        Ok(())
    }
}
