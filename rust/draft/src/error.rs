//! What the crate refuses, in words: expected, found, where.
//!
//! In: options and tokens that break a stated range. Out: values that `engine` and `py` turn into their own errors.
//!
//! E1  An option error names the option as the user spells it.
//! E2  An index error is final for its index; the index keeps the first one and repeats it.

use std::fmt;

/// An option outside its range: which one, what was expected, what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionsError {
    /// The option, as it is spelled in the options struct.
    pub option: &'static str,
    /// The range that it must lie in.
    pub expected: String,
    /// The value that was given.
    pub found: String,
}

impl OptionsError {
    pub(crate) fn new(option: &'static str, expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        Self { option, expected: expected.to_string(), found: found.to_string() }
    }
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: expected {}, found {}", self.option, self.expected, self.found)
    }
}

impl std::error::Error for OptionsError {}

/// Refuses `found` unless it lies in `low..=high`; the comparison is false for a NaN.
pub(crate) fn check_range<T: PartialOrd + fmt::Display>(
    option: &'static str,
    found: T,
    low: T,
    high: T,
) -> Result<(), OptionsError> {
    if found >= low && found <= high {
        return Ok(());
    }
    Err(OptionsError::new(option, format_args!("{low} to {high}"), found))
}

/// Why an index takes no more tokens. From then on it matches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexError {
    /// The allocator said no.
    OutOfMemory {
        /// Tokens held when it happened.
        tokens: usize,
    },
    /// The stream has reached the length that the index was made for.
    TooLong {
        /// The most tokens that this index can hold.
        limit: usize,
    },
    /// A token id that is reserved to mean "none".
    TokenTooLarge {
        /// The id that was given.
        token: u32,
        /// Its place in the stream, from 0.
        pos: usize,
    },
}

impl fmt::Display for IndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfMemory { tokens } => write!(f, "no memory left for the index at {tokens} tokens"),
            Self::TooLong { limit } => write!(f, "the index holds {limit} tokens, its limit"),
            Self::TokenTooLarge { token, pos } => {
                write!(f, "expected a token below {}, found {token} at position {pos}", u32::MAX)
            }
        }
    }
}

impl std::error::Error for IndexError {}

/// A reference that was not added; nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceError {
    /// A token that the vocabulary does not have.
    TokenOutOfRange {
        /// The id that was given.
        token: u32,
        /// Its place in the reference, from 0.
        pos: usize,
        /// The size of the vocabulary.
        n_vocab: usize,
    },
    /// The reference could not be indexed.
    Index(IndexError),
}

impl fmt::Display for ReferenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenOutOfRange { token, pos, n_vocab } => {
                write!(f, "expected tokens below {n_vocab}, found {token} at position {pos} of the reference")
            }
            Self::Index(error) => write!(f, "the reference was not indexed: {error}"),
        }
    }
}

impl std::error::Error for ReferenceError {}

impl From<IndexError> for ReferenceError {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}
