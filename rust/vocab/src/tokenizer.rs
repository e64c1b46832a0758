//! Text to token ids.
//!
//! In: metadata, text. Out: ids. What tokens are is [`Vocab`]'s.
//!
//! K1  Equal metadata and text give equal ids: those of the model's own HF tokenizer without its normalizer, and of llama.cpp.
//! K2  The bytes of the ids of [`Tokenizer::tokenize_bytes`], joined, are its bytes, whatever they are; where a byte has no token the text is refused. (A file may
//!     type its tokens so that they do not stand for what spells them; then this holds for none of these tokens.)
//! K3  Control tokens are made from text only where the caller asks; user-defined tokens always, as both references do.
//! K4  Nothing is guessed: an unknown vocabulary or splitter is refused by name when the tokenizer is made.
//! K5  What encoding needs is built at the first text, once; one tokenizer serves many threads.
//!
//! GGUF says nothing about normalizers, so text is not normalized (Qwen's own tokenizer composes to NFC first).

use crate::error::VocabError;
use crate::finder::Finder;
use crate::join::NONE;
use crate::keys::{self, Keys, Value};
use crate::merges::Merges;
use crate::scores::Scores;
use crate::spell::MARK;
use crate::split::Family;
use crate::table::StringTable;
use crate::vocab::{Model, TokenKind, Vocab};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Bytes that are no special token, by place.
    Text(Range<usize>),
    /// A special token.
    Token(u32),
}

/// How a text is encoded.
#[derive(Debug, Clone, Copy, Default)]
pub struct EncodeOptions {
    /// The texts of control tokens become those tokens.
    pub special: bool,
    /// The beginning-of-text token in front, unless it is there; `None`: as the file says.
    pub add_bos: Option<bool>,
    /// The end-of-text token behind, unless it is there; `None`: as the file says.
    pub add_eos: Option<bool>,
    /// A space in front of text at the beginning and behind special tokens (vocabularies with merges: only at the beginning, and only if there is none);
    /// `None`: as the file says.
    pub add_space_prefix: Option<bool>,
    /// Bytes that have no token are left out; else the text is refused.
    pub lossy: bool,
}

#[derive(Debug)]
enum Source {
    Merges { family: &'static Family, merges: StringTable },
    Scores(Vec<f32>),
}

#[derive(Debug)]
enum Encoder {
    Merges(Box<Merges>),
    Scores(Box<Scores>),
}

/// What is built for the first text.
#[derive(Debug)]
struct Built {
    encoder: Encoder,
    with_control: Finder,
    user_defined: Finder,
}

/// Text to the ids of one vocabulary.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    pre: Option<String>,
    source: Source,
    metaspace: bool,
    add_bos: bool,
    add_eos: bool,
    /// Marks drop white space behind them, which the format cannot say.
    is_phi3: bool,
    built: OnceLock<Result<Built, VocabError>>,
}

impl Tokenizer {
    /// Reads a tokenizer and builds nothing. `pre` names a splitter in place of the file's.
    ///
    /// # Errors
    /// As [`Vocab::from_metadata`]; the splitter is unknown or missing, or `pre` is given for a vocabulary that has none; merges or scores are missing or too few.
    pub fn from_metadata(keys: &dyn Keys, pre: Option<&str>) -> Result<Tokenizer, VocabError> {
        let model = Model::read(keys)?;
        let named = keys::text(keys, "tokenizer.ggml.pre")?;
        let family = match (model, pre) {
            (Model::Gpt2, Some(pre)) => Some(Family::find(Some(pre), "argument pre")?),
            (Model::Gpt2, None) => Some(Family::find(named.as_deref(), "key tokenizer.ggml.pre")?),
            (_, Some(pre)) => {
                return Err(VocabError::NeedlessSplitter { model: model.name(), found: keys::clip(pre.as_bytes()) });
            }
            (Model::Gemma4, None) => Family::named("gemma4"),
            (Model::Llama, None) => None,
        };
        let metaspace = family.is_none_or(|family| family.metaspace);
        let vocab = Vocab::read(keys, metaspace)?;
        let source = match family {
            Some(family) => {
                let merges = keys::texts(keys, MERGES)?;
                let merges = merges.ok_or(VocabError::Missing { key: MERGES, expected: "an array of text" })?;
                Source::Merges { family, merges }
            }
            None => {
                let scores = keys::floats(keys, SCORES)?;
                let scores = scores.ok_or(VocabError::Missing { key: SCORES, expected: "an array of numbers" })?;
                let n_vocab = vocab.n_vocab();
                if scores.len() < n_vocab {
                    return Err(VocabError::ShortArray { key: SCORES, n_vocab, found: scores.len() });
                }
                Source::Scores(scores)
            }
        };
        let wants_bos = model != Model::Gpt2 || family.is_some_and(|family| family.add_bos);
        let add_bos = keys::flag(keys, "tokenizer.ggml.add_bos_token")?.unwrap_or(wants_bos);
        let is_phi3 = match keys.get("general.name") {
            Some(Value::Text(name)) => {
                let name = name.to_ascii_lowercase();
                [&b"phi-3"[..], b"phi3"].iter().any(|phi| name.windows(phi.len()).any(|part| part == *phi))
            }
            _ => false,
        };
        Ok(Tokenizer {
            vocab,
            pre: if model == Model::Gpt2 { pre.map(str::to_owned).or(named) } else { None },
            source,
            metaspace,
            // Files of gemma4 that deny the token are wrong: without it the models write nonsense.
            add_bos: add_bos || model == Model::Gemma4,
            add_eos: keys::flag(keys, "tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            is_phi3,
            built: OnceLock::new(),
        })
    }

    /// What the tokens are.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Name of the splitter in use, for the kind of vocabulary that has one by name.
    pub fn pre(&self) -> Option<&str> {
        self.pre.as_deref()
    }

    /// Whether prompts of this model begin with the beginning-of-text token.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether prompts of this model end with the end-of-text token.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    fn built(&self) -> Result<&Built, VocabError> {
        self.built.get_or_init(|| self.build()).as_ref().map_err(Clone::clone)
    }

    fn build(&self) -> Result<Built, VocabError> {
        let encoder = match &self.source {
            Source::Merges { family, merges } => Encoder::Merges(Box::new(Merges::new(&self.vocab, merges, family)?)),
            Source::Scores(scores) => Encoder::Scores(Box::new(Scores::new(&self.vocab, scores)?)),
        };
        let finder = |wanted: fn(TokenKind) -> bool| {
            let ids = self.vocab.special_ids().filter(|(_, kind)| wanted(*kind));
            let tokens = ids.map(|(id, _)| (id, self.vocab.token_text(id)));
            Finder::new(tokens, |text| self.is_phi3 && ![&b"<unk>"[..], b"<s>", b"<|endoftext|>"].contains(&text))
        };
        Ok(Built {
            encoder,
            with_control: finder(TokenKind::is_special)?,
            user_defined: finder(|kind| kind == TokenKind::UserDefined)?,
        })
    }

    /// Parts a text at its special tokens, control tokens among them.
    ///
    /// # Errors
    /// The vocabulary is damaged.
    pub fn split(&self, text: &[u8]) -> Result<Vec<Part>, VocabError> {
        Ok(self.built()?.with_control.split(text, true))
    }

    /// The ids of a text. The empty text gives none of its own.
    ///
    /// # Errors
    /// The vocabulary is damaged; it cannot spell a character; it does not name a token that is to be added.
    pub fn encode(&self, text: &str, options: &EncodeOptions) -> Result<Vec<u32>, VocabError> {
        let built = self.built()?;
        let prefix = options.add_space_prefix.unwrap_or(self.vocab.add_space_prefix());
        let finder = if options.special { &built.with_control } else { &built.user_defined };
        let (mut ids, mut behind_special) = (Vec::new(), true);
        for part in finder.split(text.as_bytes(), true) {
            let range = match part {
                Part::Token(id) => {
                    ids.push(id);
                    behind_special = true;
                    continue;
                }
                Part::Text(range) => range,
            };
            let part = &text.as_bytes()[range.clone()];
            let everywhere = self.vocab.model() == Model::Llama;
            let spaced = prefix && behind_special && (everywhere || ids.is_empty() && !part.starts_with(b" "));
            behind_special = false;
            if let Some(lost) = self.stretch(&built.encoder, part, spaced, &mut ids)
                && !options.lossy
            {
                let lost = range.start + lost;
                let mut characters = text.char_indices().enumerate();
                let found = characters.find(|(_, (start, character))| lost < start + character.len_utf8());
                let (at, character) = found.map_or((0, '\0'), |(at, (_, character))| (at, character));
                return Err(VocabError::Unspelled { character, at });
            }
        }
        let named = |name: &str, role| self.vocab.role(name).ok_or(VocabError::Unnamed { role });
        if options.add_bos.unwrap_or(self.add_bos) {
            let bos = named("bos_token", "bos")?;
            if ids.first() != Some(&bos) {
                ids.insert(0, bos);
            }
        }
        if options.add_eos.unwrap_or(self.add_eos) {
            let eos = named("eos_token", "eos")?;
            if ids.last() != Some(&eos) {
                ids.push(eos);
            }
        }
        Ok(ids)
    }

    /// The ids of bytes that may stand anywhere in a text, and may begin or end inside of a character: nothing is put in front, and the bytes of the ids, joined, are
    /// these bytes. User-defined tokens are found, control tokens are not.
    ///
    /// # Errors
    /// The vocabulary is damaged, or has no token for a byte.
    pub fn tokenize_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>, VocabError> {
        let built = self.built()?;
        let mut ids = Vec::new();
        let unspelled = |at: usize| VocabError::UnspelledByte { byte: bytes[at], at };
        for part in built.user_defined.split(bytes, false) {
            let mut rest = match part {
                Part::Token(id) => {
                    ids.push(id);
                    continue;
                }
                Part::Text(range) => range,
            };
            // Tokens that hold the mark stand for a space, so the mark itself is spelled by its bytes.
            while !rest.is_empty() {
                let mark = bytes[rest.clone()].windows(MARK.len()).position(|part| self.metaspace && part == MARK);
                let end = mark.map_or(rest.end, |at| rest.start + at);
                if let Some(at) = self.stretch(&built.encoder, &bytes[rest.start..end], false, &mut ids) {
                    return Err(unspelled(rest.start + at));
                }
                rest.start = mark.map_or(end, |_| end + MARK.len());
                for (at, byte) in (end..).zip(&bytes[end..rest.start]) {
                    let id = match &built.encoder {
                        Encoder::Merges(merges) => merges.byte(*byte),
                        Encoder::Scores(scores) => scores.byte(*byte),
                    };
                    if id == NONE {
                        return Err(unspelled(at));
                    }
                    ids.push(id);
                }
            }
        }
        Ok(ids)
    }

    /// Appends the ids of text without special tokens; gives the place of the first byte that was left out.
    fn stretch(&self, encoder: &Encoder, text: &[u8], spaced: bool, ids: &mut Vec<u32>) -> Option<usize> {
        let space = if self.metaspace { MARK } else { b" " };
        let length = |byte: u8| if byte == b' ' { space.len() } else { 1 };
        let spelled = if spaced || self.metaspace && text.contains(&b' ') {
            let mut spelled = Vec::with_capacity(text.len() + text.len() / 2);
            for &byte in spaced.then_some(&b' ').into_iter().chain(text) {
                if byte == b' ' { spelled.extend_from_slice(space) } else { spelled.push(byte) }
            }
            Cow::Owned(spelled)
        } else {
            Cow::Borrowed(text)
        };
        let lost = match encoder {
            Encoder::Merges(merges) => merges.encode(&self.vocab, &spelled, ids),
            Encoder::Scores(scores) => scores.encode(&self.vocab, &spelled, ids),
        }?;
        // Back from where it is spelled to where it stands.
        let mut end = if spaced { space.len() } else { 0 };
        let at = text.iter().position(|byte| {
            end += length(*byte);
            lost < end
        });
        Some(at.unwrap_or_default())
    }
}
