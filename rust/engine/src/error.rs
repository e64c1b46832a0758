//! Every way in which the engine can fail, with expected, found and where.
//!
//! The boundary maps [`Error::kind`] to a Python exception; the text is the message as the user sees it.

use crate::gguf::GgufError;
use crate::sample::SampleError;
use crate::vocab::VocabError;

/// Result of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Messages are lower case, give numbers, and carry no advice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum Error {
    /// The file could not be opened or read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The vocabulary was refused.
    #[error(transparent)]
    Vocab(#[from] VocabError),
    /// Sampling options or a row of logits were refused.
    #[error(transparent)]
    Sample(#[from] SampleError),

    /// The architecture is not one of ours.
    #[error("{file}: architecture `{found}` is not supported, expected one of {known}")]
    UnknownArchitecture { file: String, found: String, known: String },
    /// The architecture's state cannot be truncated.
    #[error(
        "{file}: architecture `{found}` is not supported: it keeps a recurrent state, which cannot be rewound to an earlier token as verification needs"
    )]
    Recurrent { file: String, found: String },
    /// The file has a vocabulary and no model.
    #[error("{file}: expected a model, found a file without tensors")]
    VocabularyOnly { file: String },
    /// A value in the metadata that the forward pass does not know how to honour.
    #[error("{file}: key `{key}` is {found}, expected {expected}")]
    UnsupportedValue { file: String, key: String, found: String, expected: String },
    #[error("{file}: key `{key}` is not known to architecture `{arch}`")]
    UnknownKey { file: String, key: String, arch: String },
    #[error("{file}: tensor `{tensor}` is missing, expected shape {expected:?}")]
    MissingTensor { file: String, tensor: String, expected: Vec<u64> },
    #[error("{file}: tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    TensorShape { file: String, tensor: String, found: Vec<u64>, expected: Vec<u64> },
    #[error("{file}: tensor `{tensor}` is not part of architecture `{arch}`")]
    ExtraTensor { file: String, tensor: String, arch: String },
    #[error("{file}: tensor `{tensor}` holds {found}, expected finite numbers")]
    TensorValue { file: String, tensor: String, found: f32 },

    /// A drafter that is made for another model.
    #[error("{file}: a drafter with {what} {found} does not fit the model, which has {expected}")]
    DrafterOfAnother { file: String, what: &'static str, found: String, expected: String },
    /// A file that is no drafter of a known kind.
    #[error("{file}: architecture `{found}` is no drafter, expected one of {known}")]
    NoDrafter { file: String, found: String, known: String },

    /// A file of stored prefixes is damaged, or belongs to something else.
    #[error("{file}: {what} at byte {at}: found {found}, expected {expected}")]
    PrefixFile { file: String, what: String, at: u64, found: String, expected: String },

    /// An option is out of range.
    #[error("{what} is {found}, expected {expected}")]
    Option { what: &'static str, found: String, expected: String },
    #[error("token {token} at position {pos} is out of range, expected 0 to {last}")]
    TokenRange { token: u32, pos: usize, last: usize },
    #[error("expected at least one token, found an empty prompt")]
    EmptyPrompt,
    #[error("{asked} tokens after {cached} cached ones do not fit the context of {n_ctx}")]
    ContextFull { cached: usize, asked: usize, n_ctx: usize },
    #[error("cannot rewind to {asked} tokens: {found}")]
    Rewind { asked: usize, found: String },
    /// The grammar, schema or expression of a request was refused, or could not be followed.
    #[error("{0}")]
    Constraint(String),
    /// Memory could not be had.
    #[error("cannot allocate {bytes} bytes for {what}: {source}")]
    Memory { bytes: usize, what: &'static str, source: std::io::Error },
    #[error("the model's threads belong to the process that loaded it, this one was forked from it")]
    Forked,
    #[error("cannot start {count} threads: {source}")]
    Threads { count: usize, source: std::io::Error },
    /// The caller asked to stop.
    #[error("cancelled by the caller")]
    Cancelled,
    /// A fault of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

/// The class of an error, one for each Python exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system failed: `OSError`.
    Io,
    /// The file is not a model that this engine can run, or not of the model that is to read it: `ModelFileError`.
    ModelFile,
    /// The vocabulary is not one that this engine knows: `TokenizerError`.
    Tokenizer,
    /// A value given by the caller is out of range: `OptionsError`.
    Options,
    /// The tokens do not fit the context: `ContextFullError`.
    ContextFull,
    /// The caller asked to stop: `KeyboardInterrupt` or what the callback raised.
    Cancelled,
    /// A fault of our own: `InternalError`.
    Internal,
}

impl Error {
    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Gguf(GgufError::Io { .. }) | Error::Memory { .. } | Error::Threads { .. } => ErrorKind::Io,
            Error::Gguf(_)
            | Error::UnknownArchitecture { .. }
            | Error::Recurrent { .. }
            | Error::VocabularyOnly { .. }
            | Error::UnsupportedValue { .. }
            | Error::UnknownKey { .. }
            | Error::MissingTensor { .. }
            | Error::TensorShape { .. }
            | Error::ExtraTensor { .. }
            | Error::TensorValue { .. }
            | Error::DrafterOfAnother { .. }
            | Error::NoDrafter { .. }
            | Error::PrefixFile { .. } => ErrorKind::ModelFile,
            Error::Vocab(VocabError::EmptyStop { .. } | VocabError::StopsTooLong { .. }) => ErrorKind::Options,
            Error::Vocab(_) => ErrorKind::Tokenizer,
            Error::Sample(e) => e.kind(),
            Error::Option { .. }
            | Error::TokenRange { .. }
            | Error::EmptyPrompt
            | Error::Rewind { .. }
            | Error::Constraint(_) => ErrorKind::Options,
            Error::ContextFull { .. } => ErrorKind::ContextFull,
            Error::Cancelled => ErrorKind::Cancelled,
            Error::Forked | Error::Internal(_) => ErrorKind::Internal,
        }
    }
}
