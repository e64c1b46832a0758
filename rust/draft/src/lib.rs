//! Tokens in, guesses out: where drafts come from, and whether they pay. Knows no model, no text and no unsafe code.
#![forbid(unsafe_code)]

mod edges;
mod error;
mod frozen;
#[cfg(test)]
mod oracle;
mod recycle;
mod source;
mod suffix;

pub use error::{IndexError, OptionsError, ReferenceError};
pub use frozen::{Cursor, FrozenIndex};
pub use recycle::{Recycler, WIDTH};
pub use source::{DraftSource, SourceError, SourceStats, TopkRow};
pub use suffix::{IndexBytes, MAX_INDEX_TOKENS, SuffixIndex};
