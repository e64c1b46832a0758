//! Tokens with a role: named by a key of the file, or by a text that means the same in every vocabulary that has it.
//!
//! E1  A token of one of the `TURN_ENDS` texts counts as control whatever type the file gives it: files exist that
//!     mistype it, and shown to a user it is noise.
//! E2  Generation ends at the ids that the file's keys name, at `TURN_ENDS` and `OTHER_ENDS`, and at `PERHAPS_ENDS` where
//!     the token is of type control or unknown. Those are ordinary text elsewhere: `</s>` closes struck-out text in HTML.

use super::error::VocabError;
use super::{TokenKind, Vocab};
use crate::gguf::Metadata;

/// Texts that end a turn, a message or a document, and that nobody writes by accident.
const TURN_ENDS: [&str; 15] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<turn|>",
    "[e~[",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
];
/// Texts that end something in some vocabularies and are text in others.
const PERHAPS_ENDS: [&str; 6] = ["</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"];
/// Texts behind which another file begins, or a tool speaks; not hidden by their name alone.
const OTHER_ENDS: [&str; 5] = ["<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>", "<|tool_response>"];

/// Keys whose token ends a generation.
const END_KEYS: [&str; 6] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// Ids of tokens with a role; `None` where the file names none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub sep: Option<u32>,
    pub pad: Option<u32>,
    pub cls: Option<u32>,
    pub mask: Option<u32>,
}

impl SpecialIds {
    /// Reads the ids. One outside the vocabulary is refused for the beginning and the end of text; for others it means
    /// none, as files name padding that the vocabulary lacks.
    pub(super) fn read(meta: &Metadata, n_vocab: usize, llama: bool) -> Result<SpecialIds, VocabError> {
        let id = |key| lenient_id(meta, key, n_vocab);
        let by_default = |id: u32| (llama && (id as usize) < n_vocab).then_some(id);
        Ok(SpecialIds {
            // The kind `llama` had these before the keys existed.
            bos: strict_id(meta, "tokenizer.ggml.bos_token_id", n_vocab)?.or(by_default(1)),
            eos: strict_id(meta, "tokenizer.ggml.eos_token_id", n_vocab)?.or(by_default(2)),
            eot: id("tokenizer.ggml.eot_token_id"),
            eom: id("tokenizer.ggml.eom_token_id"),
            unk: id("tokenizer.ggml.unknown_token_id"),
            // Spelled so in the format.
            sep: id("tokenizer.ggml.seperator_token_id"),
            pad: id("tokenizer.ggml.padding_token_id"),
            cls: id("tokenizer.ggml.cls_token_id"),
            mask: id("tokenizer.ggml.mask_token_id"),
        })
    }

    /// The ids that mark something and are not shown, for files without token types.
    pub(super) fn marks(&self) -> impl Iterator<Item = u32> {
        [self.bos, self.eos, self.eot, self.eom, self.sep, self.pad, self.cls, self.mask].into_iter().flatten()
    }
}

fn in_range(found: i128, n_vocab: usize) -> Option<u32> {
    u32::try_from(found).ok().filter(|id| (*id as usize) < n_vocab)
}

fn strict_id(meta: &Metadata, key: &'static str, n_vocab: usize) -> Result<Option<u32>, VocabError> {
    let Some(value) = meta.get(key) else { return Ok(None) };
    let Some(found) = value.as_int() else { return Ok(meta.get_u32(key)?) };
    match in_range(found, n_vocab) {
        Some(id) => Ok(Some(id)),
        None => Err(VocabError::TokenOutOfRange { key, found, n_vocab }),
    }
}

fn lenient_id(meta: &Metadata, key: &str, n_vocab: usize) -> Option<u32> {
    in_range(meta.get(key)?.as_int()?, n_vocab)
}

/// Whether a token of this text ends a turn in every vocabulary that has it.
pub(super) fn ends_turn(text: &[u8]) -> bool {
    // Most tokens begin with another character.
    matches!(text.first(), Some(b'<' | b'[')) && TURN_ENDS.iter().any(|end| end.as_bytes() == text)
}

/// The ids that end a generation, rising.
pub(super) fn eog_ids(meta: &Metadata, vocab: &Vocab) -> Vec<u32> {
    let is = |text: &[u8], names: &[&str]| names.iter().any(|name| name.as_bytes() == text);
    let mut ids: Vec<u32> = END_KEYS.iter().filter_map(|key| lenient_id(meta, key, vocab.n_vocab())).collect();
    ids.extend(vocab.special().eos);
    let (mut returns, mut calls, mut many_calls, mut flushes) = (false, false, false, false);
    let mut message_end = None;
    for (id, text) in (0u32..).zip(vocab.texts().iter()) {
        if !matches!(text.first(), Some(b'<' | b'[' | b'_')) {
            continue;
        }
        let marked = matches!(vocab.kind(id), Some(TokenKind::Control | TokenKind::Unknown));
        if ends_turn(text) || is(text, &OTHER_ENDS) || marked && is(text, &PERHAPS_ENDS) {
            ids.push(id);
        }
        match text {
            b"<|return|>" => returns = true,
            b"<|call|>" => calls = true,
            b"<|calls|>" => many_calls = true,
            b"<|flush|>" => flushes = true,
            b"<|end|>" => message_end = Some(id),
            _ => {}
        }
    }
    if returns && calls || many_calls && flushes {
        // In these vocabularies it ends a message inside a turn.
        ids.retain(|id| Some(*id) != message_end);
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}
