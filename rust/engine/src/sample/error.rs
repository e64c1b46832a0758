//! What the sampler refuses.
//!
//! Options are refused when a sampler is built; rows are refused when they are sampled, with the position they belong to.
//!
//! 1. A refused row leaves the caller's buffer as it was.
//! 2. Numbers stay numbers; the text is made when the error is printed.

use crate::error::ErrorKind;

/// Why options or a logits row were refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// An option has a value outside its range.
    #[error("sampling option `{name}`: expected {expected}, found {found}")]
    Option {
        /// The option, as it is spelled in [`super::Sampling`].
        name: &'static str,
        /// The range that is accepted.
        expected: &'static str,
        /// The value that was given.
        found: f32,
    },
    /// A bias is not a number that can be added.
    #[error("sampling option `logit_bias`, token {token}: expected {expected}, found {found}")]
    Bias {
        /// The token that the bias is for.
        token: u32,
        /// The range that is accepted.
        expected: &'static str,
        /// The value that was given.
        found: f32,
    },
    /// The same token has two biases.
    #[error("sampling option `logit_bias`: expected each token once, found token {token} again")]
    BiasTwice {
        /// The token.
        token: u32,
    },
    /// An option names a token that the vocabulary does not have.
    #[error("sampling option `{name}`: expected tokens below {n_vocab}, found {token}")]
    OptionToken {
        /// The option.
        name: &'static str,
        /// The token that was given.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// Every token is banned.
    #[error("sampling option `banned`: expected at least one of {n_vocab} tokens to be left, found none")]
    AllBanned {
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A token of the history, or the chosen one, is not in the vocabulary.
    #[error("{place} at position {pos}: expected a token below {n_vocab}, found {token}")]
    Token {
        /// Which argument held it.
        place: &'static str,
        /// Position of the row in the stream.
        pos: usize,
        /// The token that was given.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The row is not as long as the vocabulary.
    #[error("logits at position {pos}: expected {expected} values, found {found}")]
    RowLength {
        /// Position of the row in the stream.
        pos: usize,
        /// Size of the vocabulary.
        expected: usize,
        /// Length of the row.
        found: usize,
    },
    /// The row holds a NaN.
    #[error("logits at position {pos}: expected numbers, found NaN for token {token}")]
    NotANumber {
        /// Position of the row in the stream.
        pos: usize,
        /// The lowest token id whose logit is NaN.
        token: u32,
    },
    /// No token is left to choose from.
    #[error("logits at position {pos}: expected at least one token above -inf, found none")]
    AllMasked {
        /// Position of the row in the stream.
        pos: usize,
    },
}

impl SampleError {
    /// The class of this error: a NaN comes from the model; a row with nothing left, from masks and bans.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Option { .. }
            | Self::Bias { .. }
            | Self::BiasTwice { .. }
            | Self::OptionToken { .. }
            | Self::AllBanned { .. }
            | Self::AllMasked { .. } => ErrorKind::Options,
            Self::NotANumber { .. } => ErrorKind::ModelFile,
            Self::Token { .. } | Self::RowLength { .. } => ErrorKind::Internal,
        }
    }
}
