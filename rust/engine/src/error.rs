//! Every way in which the engine can fail, with expected, found and where.
//!
//! The boundary maps [`Error::kind`] to a Python exception; the text is the message as the user sees it.

/// Result of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Messages are lower case, give numbers, and carry no advice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a path.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The class of an error, one for each Python exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system failed: `OSError`.
    Io,
    /// The file is not a model that this engine can run: `ModelFileError`.
    ModelFile,
    /// The vocabulary is not one that this engine knows: `TokenizerError`.
    Tokenizer,
    /// A value given by the caller is out of range: `OptionsError`.
    Options,
    /// The tokens do not fit the context: `ContextFullError`.
    ContextFull,
    /// Another caller is using the session: `BusyError`.
    Busy,
    /// A fault of our own: `InternalError`.
    Internal,
}

impl Error {
    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Io { .. } => ErrorKind::Io,
        }
    }
}
