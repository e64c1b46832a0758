//! Every way in which a vocabulary, a text or a stop text can be refused.

/// Why a vocabulary could not be read, a text not be encoded or stop texts not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
#[non_exhaustive]
pub enum VocabError {
    #[error("key `{key}` is missing, expected {expected}")]
    Missing { key: &'static str, expected: &'static str },
    #[error("key `{key}` is {found}, expected {expected}")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error("the file names no vocabulary (key tokenizer.ggml.model), expected one of {known}")]
    NoModel { known: &'static str },
    /// The kind of vocabulary is not known.
    #[error("the vocabulary `{found}` is unknown (key tokenizer.ggml.model), expected one of {known}")]
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

    #[error("the file does not name its splitter (key tokenizer.ggml.pre); pre= takes one of these instead: {known}")]
    NoSplitter { known: String },
    #[error("the splitter `{found}` ({source_name}) is unknown; pre= takes one of these instead: {known}")]
    UnknownSplitter { found: String, source_name: &'static str, known: String },
    #[error("expected no pre= for a vocabulary of the kind `{model}`, found `{found}`")]
    NeedlessSplitter { model: &'static str, found: String },

    /// Text cannot be encoded where a text stands for two tokens.
    #[error("expected distinct tokens, found `{text}` with the ids {first} and {second}")]
    SameText { text: String, first: u32, second: u32 },
    #[error("token {id} of key `tokenizer.ggml.tokens` is `{text}`, expected text in UTF-8")]
    NotText { id: u32, text: String },
    #[error("merge {rank} of key `tokenizer.ggml.merges` is `{found}`, expected two parts")]
    MergeParts { rank: usize, found: String },
    #[error("merge {rank} of key `tokenizer.ggml.merges` does not fit the vocabulary: it has no token `{token}`")]
    MergeToken { rank: usize, token: String },
    /// Tokens that are looked for in each text have too much text.
    #[error("control and user-defined tokens have {found} bytes together, the limit is {limit}")]
    SpecialTooLong { found: usize, limit: usize },

    /// A text asks for what the vocabulary does not have.
    #[error("the vocabulary has no token for U+{:04X}, found at character {at}", u32::from(*character))]
    Unspelled { character: char, at: usize },
    #[error("the vocabulary has no token for byte 0x{byte:02x}, found at byte {at}")]
    UnspelledByte { byte: u8, at: usize },
    #[error("expected tokenizer.ggml.{role}_token_id in the file, found none")]
    Unnamed { role: &'static str },

    /// A stop text that every text holds.
    #[error("stop text {index} is empty, expected at least 1 byte")]
    EmptyStop { index: usize },
    /// The stop texts together are too long.
    #[error("stop texts have {found} bytes together, the limit is {limit}")]
    StopsTooLong { found: u64, limit: u64 },
}
