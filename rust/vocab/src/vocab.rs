//! The tokens of one model: bytes, kinds, roles, ends of generation.
//!
//! In: metadata. Out: what each id is, to decoding and to [`Tokenizer`](crate::Tokenizer).
//!
//! B1  A token of unknown kind is text; an id outside the vocabulary has no bytes and no kind.
//! B2  Texts may be equal, empty or not UTF-8: decoding does not care. Only [`Vocab::id_of`] does.

use crate::error::VocabError;
use crate::index::Index;
use crate::keys::{self, Keys, clip};
use crate::special::{self, Role, SpecialIds};
use crate::spell;
use crate::split::Family;
use crate::table::StringTable;
use std::sync::OnceLock;

/// Tokens of a vocabulary. The largest in use have 262,208; a row of logits is this long.
pub const MAX_VOCAB: usize = 1 << 21;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SUPPRESSED: &str = "tokenizer.ggml.suppress_tokens";

/// The kind of a vocabulary, as `tokenizer.ggml.model` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Merges over the byte alphabet.
    Gpt2,
    /// Scores over UTF-8, with `▁` for a space and tokens for bytes.
    Llama,
    /// Merges over UTF-8, with `▁` for a space and tokens for bytes.
    Gemma4,
}

impl Model {
    const KNOWN: &str = "`gemma4`, `gpt2`, `llama`";

    pub(crate) fn read(keys: &dyn Keys) -> Result<Model, VocabError> {
        match keys::text(keys, "tokenizer.ggml.model")?.as_deref() {
            Some("gpt2") => Ok(Model::Gpt2),
            Some("llama") => Ok(Model::Llama),
            Some("gemma4") => Ok(Model::Gemma4),
            Some(other) => Err(VocabError::UnknownModel { found: clip(other.as_bytes()), known: Self::KNOWN }),
            None => Err(VocabError::NoModel { known: Self::KNOWN }),
        }
    }

    /// As the file names it.
    pub fn name(self) -> &'static str {
        match self {
            Model::Gpt2 => "gpt2",
            Model::Llama => "llama",
            Model::Gemma4 => "gemma4",
        }
    }
}

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
    fn from_number(number: i64) -> TokenKind {
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
#[derive(Debug)]
pub struct Vocab {
    model: Model,
    /// Tokens as the file spells them.
    texts: StringTable,
    /// What tokens stand for.
    bytes: StringTable,
    kinds: Vec<TokenKind>,
    roles: Vec<Role>,
    eog: Vec<u32>,
    suppressed: Vec<u32>,
    add_space_prefix: bool,
    index: OnceLock<Result<Index, VocabError>>,
}

impl Vocab {
    /// Reads a vocabulary.
    ///
    /// # Errors
    /// The kind is unknown or missing; there are no tokens, or more than [`MAX_VOCAB`]; an array is shorter than the
    /// vocabulary; a key is of another type; the id of the beginning or end of text is outside the vocabulary.
    pub fn from_metadata(keys: &dyn Keys) -> Result<Vocab, VocabError> {
        // A splitter that is not known does not matter here.
        let pre = keys::text(keys, "tokenizer.ggml.pre")?;
        let family = pre.as_deref().and_then(Family::named);
        Vocab::read(keys, Model::read(keys)? != Model::Gpt2 || family.is_some_and(|family| family.metaspace))
    }

    pub(crate) fn read(keys: &dyn Keys, metaspace: bool) -> Result<Vocab, VocabError> {
        let model = Model::read(keys)?;
        let texts = keys::texts(keys, TOKENS)?;
        let texts = texts.ok_or(VocabError::Missing { key: TOKENS, expected: "an array of text" })?;
        let n_vocab = texts.len();
        if n_vocab == 0 || n_vocab > MAX_VOCAB {
            return Err(VocabError::TokenCount { found: n_vocab, limit: MAX_VOCAB });
        }
        let (llama, byte_alphabet) = (model == Model::Llama, !metaspace);
        let special = SpecialIds::read(keys, n_vocab, llama)?;
        let kinds = kinds(keys, &texts, &special, byte_alphabet)?;
        let mut bytes = StringTable::with_capacity(n_vocab, texts.n_bytes());
        for (text, kind) in texts.iter().zip(&kinds) {
            bytes.push(|blob| spell::token_bytes(text, *kind, byte_alphabet, blob));
        }
        // As other engines read it: what is outside the vocabulary cannot be chosen anyway.
        let mut suppressed: Vec<u32> = keys::ints(keys, SUPPRESSED)?
            .unwrap_or_default()
            .into_iter()
            .filter_map(|id| u32::try_from(id).ok().filter(|id| (*id as usize) < n_vocab))
            .collect();
        suppressed.sort_unstable();
        suppressed.dedup();
        Ok(Vocab {
            model,
            eog: special::eog_ids(&texts, &kinds, &special),
            texts,
            bytes,
            kinds,
            roles: special.roles,
            suppressed,
            add_space_prefix: keys::flag(keys, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true) && llama,
            index: OnceLock::new(),
        })
    }

    /// Tokens without text, for files that have a model and no vocabulary.
    pub fn without_text(n_vocab: usize) -> Vocab {
        let texts: StringTable = (0..n_vocab).map(|_| b"").collect();
        Vocab {
            model: Model::Gpt2,
            bytes: texts.clone(),
            texts,
            kinds: vec![TokenKind::Normal; n_vocab],
            roles: Vec::new(),
            eog: Vec::new(),
            suppressed: Vec::new(),
            add_space_prefix: false,
            index: OnceLock::new(),
        }
    }

    /// The kind of the vocabulary.
    pub fn model(&self) -> Model {
        self.model
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

    /// A token as the file spells it, an id outside the vocabulary nothing.
    pub fn token_text(&self, token: u32) -> &[u8] {
        self.texts.get(token as usize).unwrap_or_default()
    }

    /// The token that the file spells so; none for the empty text.
    ///
    /// # Errors
    /// A token is not UTF-8, or two have the same text. The first call builds an index of all tokens.
    pub fn id_of(&self, text: &[u8]) -> Result<Option<u32>, VocabError> {
        Ok(self.index()?.get(&self.texts, text))
    }

    pub(crate) fn index(&self) -> Result<&Index, VocabError> {
        self.index.get_or_init(|| Index::new(&self.texts)).as_ref().map_err(Clone::clone)
    }

    pub(crate) fn texts(&self) -> &StringTable {
        &self.texts
    }

    /// What a token is for; `None` outside the vocabulary.
    pub fn kind(&self, token: u32) -> Option<TokenKind> {
        self.kinds.get(token as usize).copied()
    }

    /// Tokens of the kinds that stand for their own text, rising.
    pub fn special_ids(&self) -> impl Iterator<Item = (u32, TokenKind)> {
        (0u32..).zip(self.kinds.iter().copied()).filter(|(_, kind)| kind.is_special())
    }

    /// Tokens that keys of the file name.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// The token of a role, such as `bos_token`.
    pub fn role(&self, name: &str) -> Option<u32> {
        self.roles.iter().find(|role| role.name == name).map(|role| role.id)
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
    keys: &dyn Keys,
    texts: &StringTable,
    special: &SpecialIds,
    byte_alphabet: bool,
) -> Result<Vec<TokenKind>, VocabError> {
    let n_vocab = texts.len();
    let mut kinds: Vec<TokenKind> = match keys::ints(keys, TYPES)? {
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
