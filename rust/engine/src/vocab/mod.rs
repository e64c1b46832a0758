//! Vocabularies: from metadata to the bytes, kinds and roles of tokens; from tokens back to text and stops.
//!
//! In: the metadata of a GGUF file. Out: token bytes, ends of generation and suppressed tokens to decoding, [`TextStream`]
//! to callers that show text. Text is encoded in Python, which reads the same keys by the same rules.
//!
//! V1  Every id in 0 to `n_vocab` - 1 has bytes; the bytes of the tokens of a text, joined, are its UTF-8 (with a space
//!     in front where the vocabulary adds one).
//! V2  The kind of vocabulary is one of `gpt2`, `llama`, `gemma4`, or it is refused by name.
//! V3  Text that leaves [`Detokenizer`] or [`TextStream`] is whole characters, and joined it is what decoding all bytes
//!     at once gives.
//! V4  States of streams are small and cloned for a few bytes: a caller that takes back tokens keeps a clone.
//! V5  A key that is read has the right type, or the vocabulary is refused by that key: a wrong type is not absence.
//!
//! Cost: one table of strings, about 5 ms for 150 000 tokens.

mod detokenize;
mod error;
mod special;
mod spell;
mod stops;
mod stream;
mod table;

#[cfg(test)]
mod tests;

pub use detokenize::{Detokenizer, Utf8Stream};
pub use error::VocabError;
pub use stops::{StopHit, StopMatcher, StopSet, StopStep};
pub use stream::TextStream;
pub use table::StringTable;

use crate::gguf::{Metadata, Strings};
use crate::limits;
use special::SpecialIds;

const KNOWN: &str = "`gemma4`, `gpt2`, `llama`";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SUPPRESSED: &str = "tokenizer.ggml.suppress_tokens";

/// What a token is for, as numbered in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TokenKind {
    /// A number that means nothing.
    Undefined = 0,
    /// Text.
    Normal = 1,
    /// Stands for what the vocabulary cannot spell.
    Unknown = 2,
    /// A mark that does not show in text.
    Control = 3,
    /// Text that is always one token.
    UserDefined = 4,
    /// Never used.
    Unused = 5,
    /// One byte.
    Byte = 6,
}

impl TokenKind {
    fn from_number(number: i32) -> TokenKind {
        use TokenKind::*;
        let kinds = [Undefined, Normal, Unknown, Control, UserDefined, Unused, Byte];
        usize::try_from(number).ok().and_then(|n| kinds.get(n).copied()).unwrap_or(Undefined)
    }

    /// Whether the token stands for its own text, spelled plainly: control, user-defined, unknown.
    pub fn is_special(self) -> bool {
        matches!(self, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown)
    }

    /// Whether text leaves the token out unless marks are asked for: control, unknown.
    pub fn is_hidden(self) -> bool {
        matches!(self, TokenKind::Control | TokenKind::Unknown)
    }
}

/// The tokens of one model.
#[derive(Debug, Clone)]
pub struct Vocab {
    bytes: StringTable,
    kinds: Vec<TokenKind>,
    eog: Vec<u32>,
    suppressed: Vec<u32>,
    add_space_prefix: bool,
}

impl Vocab {
    /// Reads the vocabulary of a file.
    ///
    /// # Errors
    /// The kind is unknown or missing; there are no tokens, or more than [`limits::MAX_VOCAB`]; an array is shorter than the
    /// vocabulary; a key is of another type; the id of the beginning or end of text is outside the vocabulary.
    pub fn from_metadata(meta: &Metadata) -> Result<Vocab, VocabError> {
        let model = meta.need_str("tokenizer.ggml.model")?;
        if !["gpt2", "llama", "gemma4"].contains(&model) {
            return Err(VocabError::UnknownModel { found: model.to_owned(), known: KNOWN });
        }
        let (llama, byte_alphabet) = (model == "llama", model == "gpt2");
        let texts = meta.get_array_str(TOKENS)?.ok_or_else(|| meta.missing(TOKENS, "array of string"))?;
        let n_vocab = texts.len();
        if n_vocab == 0 || n_vocab > limits::MAX_VOCAB {
            return Err(VocabError::TokenCount { found: n_vocab, limit: limits::MAX_VOCAB });
        }
        let special = SpecialIds::read(meta, n_vocab, llama)?;
        let kinds = kinds(meta, texts, &special, byte_alphabet)?;
        let mut bytes = StringTable::with_capacity(n_vocab, texts.iter().map(<[u8]>::len).sum());
        for (text, kind) in texts.iter().zip(&kinds) {
            bytes.push(|blob| spell::token_bytes(text, *kind, byte_alphabet, blob));
        }
        // As other engines read it: what is outside the vocabulary cannot be chosen anyway.
        let mut suppressed: Vec<u32> = meta
            .get_array_i32(SUPPRESSED)?
            .unwrap_or_default()
            .into_iter()
            .filter_map(|id| u32::try_from(id).ok().filter(|id| (*id as usize) < n_vocab))
            .collect();
        suppressed.sort_unstable();
        suppressed.dedup();
        Ok(Vocab {
            eog: special::eog_ids(texts, &kinds, &special),
            bytes,
            kinds,
            suppressed,
            add_space_prefix: meta.get_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true) && llama,
        })
    }

    /// Tokens without text, for files that have a model and no vocabulary.
    pub fn without_text(n_vocab: usize) -> Vocab {
        let mut bytes = StringTable::default();
        (0..n_vocab).for_each(|_| bytes.push(|_| {}));
        let kinds = vec![TokenKind::Normal; n_vocab];
        Vocab { bytes, kinds, eog: Vec::new(), suppressed: Vec::new(), add_space_prefix: false }
    }

    /// Number of tokens; ids are 0 to `n_vocab` - 1.
    pub fn n_vocab(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that a token stands for; not always whole characters. A control token gives its text, an id outside the
    /// vocabulary nothing.
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(token as usize).unwrap_or_default()
    }

    /// What a token is for; `None` outside the vocabulary.
    pub fn kind(&self, token: u32) -> Option<TokenKind> {
        self.kinds.get(token as usize).copied()
    }

    /// Ids that end a generation, rising: end of text, of a turn, of a message, by the file's keys and well-known names.
    pub fn eog_ids(&self) -> &[u32] {
        &self.eog
    }

    /// Whether a token ends a generation.
    pub fn is_eog(&self, token: u32) -> bool {
        self.eog.binary_search(&token).is_ok()
    }

    /// Ids that the file says are never to be chosen, rising.
    pub fn suppressed(&self) -> &[u32] {
        &self.suppressed
    }

    /// Whether text gets a space in front before it is encoded, which decoding takes away again.
    pub fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }
}

fn kinds(
    meta: &Metadata,
    texts: Strings,
    special: &SpecialIds,
    byte_alphabet: bool,
) -> Result<Vec<TokenKind>, VocabError> {
    let n_vocab = texts.len();
    let mut kinds: Vec<TokenKind> = match meta.get_array_i32(TYPES)? {
        Some(types) if types.len() < n_vocab => {
            return Err(VocabError::ShortArray { key: TYPES, n_vocab, found: types.len() });
        }
        Some(types) => types.into_iter().take(n_vocab).map(TokenKind::from_number).collect(),
        None => {
            let mut kinds: Vec<TokenKind> = texts
                .iter()
                .map(|text| match spell::byte_name(text) {
                    Some(_) if !byte_alphabet => TokenKind::Byte,
                    _ => TokenKind::Normal,
                })
                .collect();
            special.marks.iter().for_each(|id| kinds[*id as usize] = TokenKind::Control);
            kinds
        }
    };
    for (kind, text) in kinds.iter_mut().zip(texts.iter()) {
        if special::ends_turn(text) {
            *kind = TokenKind::Control;
        }
    }
    Ok(kinds)
}
