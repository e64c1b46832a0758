//! Every way in which a vocabulary, or a stop text, can be refused.

use crate::gguf::GgufError;

/// Why a vocabulary could not be read or stop texts not be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
#[non_exhaustive]
pub enum VocabError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The kind of vocabulary is not known.
    #[error("vocabulary of the kind `{found}`, expected one of {known}")]
    UnknownModel { found: String, known: &'static str },
    /// There are no tokens, or too many.
    #[error("key `tokenizer.ggml.tokens` has {found} elements, expected 1 to {limit}")]
    TokenCount { found: usize, limit: usize },
    /// An array says something of each token, but not of all.
    #[error("key `{key}` has {found} elements, expected one for each of {n_vocab} tokens")]
    ShortArray { key: &'static str, n_vocab: usize, found: usize },
    /// A named token is outside the vocabulary.
    #[error("key `{key}` is {found}, expected a token id below {n_vocab}")]
    TokenOutOfRange { key: &'static str, found: i128, n_vocab: usize },
    /// A stop text that every text holds.
    #[error("stop text {index} is empty, expected at least 1 byte")]
    EmptyStop { index: usize },
    /// The stop texts together are too long.
    #[error("stop texts have {found} bytes together, the limit is {limit}")]
    StopsTooLong { found: u64, limit: u64 },
}
