//! Vocabularies: from metadata to the bytes, kinds and roles of tokens; from tokens back to text and stops.
//!
//! In: the metadata of a GGUF file. Out: token bytes and end-of-generation ids to decoding, [`TextStream`] to whoever
//! shows text, texts, scores and merges to the tokenizer, which lives in Python and reads by the same rules.
//!
//! V1  Every id in 0 to `n_vocab` - 1 has bytes; the bytes of the tokens of a text, joined, are its UTF-8 (with a space
//!     in front where the vocabulary adds one).
//! V2  The kind of vocabulary is one of `gpt2`, `llama`, `gemma4`, or it is refused by name.
//! V3  Text that leaves [`Detokenizer`] or [`TextStream`] is whole characters, and joined it is what decoding all bytes
//!     at once gives.
//! V4  States of streams are small and cloned for a few bytes: whoever takes back tokens keeps a clone.
//!
//! Cost: three tables of strings, about 10 ms for 150 000 tokens; merges are copied, not parsed.

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
pub use special::SpecialIds;
pub use stops::{StopHit, StopMatcher, StopSet, StopStep};
pub use stream::TextStream;
pub use table::StringTable;

use crate::gguf::{Metadata, Value};

const KNOWN: &str = "`gemma4`, `gpt2`, `llama`";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const TEMPLATE: &str = "tokenizer.chat_template";

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
    model: String,
    pre: Option<String>,
    texts: StringTable,
    bytes: StringTable,
    kinds: Vec<TokenKind>,
    scores: Vec<f32>,
    merges: StringTable,
    special: SpecialIds,
    eog: Vec<u32>,
    add_bos: Option<bool>,
    add_eos: bool,
    add_space_prefix: bool,
    templates: Vec<(String, String)>,
}

impl Vocab {
    /// Reads the vocabulary of a file.
    ///
    /// # Errors
    /// The kind is unknown or missing; tokens are missing; an array is shorter than the vocabulary or of another type;
    /// the id of the beginning or end of text is outside the vocabulary.
    pub fn from_metadata(meta: &Metadata) -> Result<Vocab, VocabError> {
        let model = meta.need_str("tokenizer.ggml.model")?.to_owned();
        if !["gpt2", "llama", "gemma4"].contains(&model.as_str()) {
            return Err(VocabError::UnknownModel { found: model, known: KNOWN });
        }
        let (llama, gemma4, byte_alphabet) = (model == "llama", model == "gemma4", model == "gpt2");
        let tokens = meta.get_array_str(TOKENS)?.ok_or_else(|| meta.missing(TOKENS, "array of string"))?;
        let n_vocab = tokens.len();
        if n_vocab == 0 {
            return Err(VocabError::NoTokens);
        }
        let texts = StringTable::copy(tokens);
        let special = SpecialIds::read(meta, n_vocab, llama)?;
        let kinds = kinds(meta, &texts, &special, byte_alphabet)?;
        let mut bytes = StringTable::with_capacity(n_vocab, texts.iter().map(<[u8]>::len).sum());
        for (text, kind) in texts.iter().zip(&kinds) {
            bytes.push(|blob| spell::token_bytes(text, *kind, byte_alphabet, blob));
        }
        let merges = meta.get_array_str("tokenizer.ggml.merges")?;
        let mut vocab = Vocab {
            pre: meta.get_str("tokenizer.ggml.pre")?.map(str::to_owned),
            texts,
            bytes,
            kinds,
            scores: meta.get_array_f32(SCORES)?.unwrap_or_default(),
            merges: merges.map(StringTable::copy).unwrap_or_default(),
            special,
            eog: Vec::new(),
            // Files of the kind `gemma4` that deny the token are wrong: without it the models write nonsense.
            add_bos: meta.get_bool("tokenizer.ggml.add_bos_token")?.filter(|_| !gemma4).or(match (llama, gemma4) {
                (false, false) => None,
                _ => Some(true),
            }),
            add_eos: meta.get_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            add_space_prefix: llama && meta.get_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
            templates: templates(meta)?,
            model,
        };
        if !vocab.scores.is_empty() && vocab.scores.len() < n_vocab {
            return Err(VocabError::ShortArray { key: SCORES, n_vocab, found: vocab.scores.len() });
        }
        vocab.eog = special::eog_ids(meta, &vocab);
        Ok(vocab)
    }

    /// Tokens without text, for files that have a model and no vocabulary.
    pub fn without_text(n_vocab: usize) -> Vocab {
        let mut empty = StringTable::default();
        (0..n_vocab).for_each(|_| empty.push(|_| {}));
        Vocab {
            model: String::new(),
            pre: None,
            texts: empty.clone(),
            bytes: empty,
            kinds: vec![TokenKind::Normal; n_vocab],
            scores: Vec::new(),
            merges: StringTable::default(),
            special: SpecialIds::default(),
            eog: Vec::new(),
            add_bos: None,
            add_eos: false,
            add_space_prefix: false,
            templates: Vec::new(),
        }
    }

    /// Number of tokens; ids are 0 to `n_vocab` - 1.
    pub fn n_vocab(&self) -> usize {
        self.texts.len()
    }

    /// The kind of vocabulary: `gpt2`, `llama` or `gemma4`.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// How text is split before merging, by name, where the file says it.
    pub fn pre(&self) -> Option<&str> {
        self.pre.as_deref()
    }

    /// The texts of all tokens as the file spells them; mostly UTF-8.
    pub fn texts(&self) -> &StringTable {
        &self.texts
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

    /// The score of each token, by id; empty where the file has none.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// Pairs to merge, best first, each `left right`; empty where the file has none.
    pub fn merges(&self) -> &StringTable {
        &self.merges
    }

    /// Ids of tokens with a role.
    pub fn special(&self) -> &SpecialIds {
        &self.special
    }

    /// Ids that end a generation, rising: end of text, of a turn, of a message, by the file's keys and well-known names.
    pub fn eog_ids(&self) -> &[u32] {
        &self.eog
    }

    /// Whether a token ends a generation.
    pub fn is_eog(&self, token: u32) -> bool {
        self.eog.binary_search(&token).is_ok()
    }

    /// Whether prompts begin with the beginning-of-text token; `None` where that depends on [`pre`](Self::pre).
    pub fn add_bos(&self) -> Option<bool> {
        self.add_bos
    }

    /// Whether prompts end with the end-of-text token.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether text gets a space in front before it is encoded, which decoding takes away again.
    pub fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Names and sources of the file's chat templates; the unnamed one is `default`.
    pub fn chat_templates(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.templates.iter().map(|(name, source)| (name.as_str(), source.as_str()))
    }

    /// The chat template of this name; `default` is the unnamed one.
    pub fn chat_template(&self, name: &str) -> Option<&str> {
        self.templates.iter().find(|(n, _)| n == name).map(|(_, source)| source.as_str())
    }
}

fn kinds(
    meta: &Metadata,
    texts: &StringTable,
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
            special.marks().for_each(|id| kinds[id as usize] = TokenKind::Control);
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

fn templates(meta: &Metadata) -> Result<Vec<(String, String)>, VocabError> {
    let mut found = Vec::new();
    for (key, value) in meta.iter() {
        let name = match key.strip_prefix(TEMPLATE) {
            Some("") => "default",
            Some(rest) if rest.starts_with('.') => &rest[1..],
            _ => continue,
        };
        if matches!(value, Value::String(_)) {
            // Present, so the getter gives text or an error.
            found.extend(meta.get_str(key)?.map(|source| (name.to_owned(), source.to_owned())));
        }
    }
    Ok(found)
}
