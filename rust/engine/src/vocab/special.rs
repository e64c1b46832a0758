//! Tokens with a role: named by a key of the file, or by a text that means the same in every vocabulary that has it.
//!
//! E1  A token of one of the `TURN_ENDS` texts counts as control whatever type the file gives it: files exist that
//!     mistype it, and shown to a user it is noise.
//! E2  Generation ends at the ids that the file's keys name, at `TURN_ENDS` and `OTHER_ENDS`, and at `PERHAPS_ENDS` where
//!     the token is of type control or unknown. Those are ordinary text elsewhere: `</s>` closes struck-out text in HTML.

use super::TokenKind;
use super::error::VocabError;
use crate::gguf::{Metadata, Strings};

/// Texts that end a turn, a message or a document, and that ordinary text does not contain.
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

/// Keys whose token ends a generation, beside the end of text.
const END_KEYS: [&str; 5] = [
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// Keys whose token marks something, beside the beginning and the end of text; the third is spelled so in the format.
const MARK_KEYS: [&str; 6] = [
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.cls_token_id",
    "tokenizer.ggml.mask_token_id",
];

/// Ids of tokens with a role.
#[derive(Debug)]
pub(super) struct SpecialIds {
    /// That end a generation.
    ends: Vec<u32>,
    /// That mark something and are not shown, for files without token types.
    pub(super) marks: Vec<u32>,
}

impl SpecialIds {
    /// Reads the ids. One outside the vocabulary is refused for the beginning and the end of text; for others it means
    /// none, as files name padding that the vocabulary lacks. A value that is no whole number is refused for all.
    pub(super) fn read(meta: &Metadata, n_vocab: usize, llama: bool) -> Result<SpecialIds, VocabError> {
        let by_default = |id: u32| (llama && (id as usize) < n_vocab).then_some(id);
        // The kind `llama` had these before the keys existed.
        let bos = strict_id(meta, "tokenizer.ggml.bos_token_id", n_vocab)?.or(by_default(1));
        let eos = strict_id(meta, "tokenizer.ggml.eos_token_id", n_vocab)?.or(by_default(2));
        lenient_id(meta, "tokenizer.ggml.unknown_token_id", n_vocab)?;
        let all = |first: &[Option<u32>], keys: &[&str]| -> Result<Vec<u32>, VocabError> {
            let mut ids: Vec<u32> = first.iter().flatten().copied().collect();
            for key in keys {
                ids.extend(lenient_id(meta, key, n_vocab)?);
            }
            Ok(ids)
        };
        Ok(SpecialIds { ends: all(&[eos], &END_KEYS)?, marks: all(&[bos, eos], &MARK_KEYS)? })
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

fn lenient_id(meta: &Metadata, key: &str, n_vocab: usize) -> Result<Option<u32>, VocabError> {
    let Some(value) = meta.get(key) else { return Ok(None) };
    let Some(found) = value.as_int() else { return Ok(meta.get_u32(key)?) };
    Ok(in_range(found, n_vocab))
}

/// Whether a token of this text ends a turn in every vocabulary that has it.
pub(super) fn ends_turn(text: &[u8]) -> bool {
    // Most tokens begin with another character.
    matches!(text.first(), Some(b'<' | b'[')) && TURN_ENDS.iter().any(|end| end.as_bytes() == text)
}

/// The ids that end a generation, rising.
pub(super) fn eog_ids(texts: Strings, kinds: &[TokenKind], special: &SpecialIds) -> Vec<u32> {
    let is = |text: &[u8], names: &[&str]| names.iter().any(|name| name.as_bytes() == text);
    let mut ids = special.ends.clone();
    let (mut returns, mut calls, mut many_calls, mut flushes) = (false, false, false, false);
    let mut message_end = None;
    for ((id, text), kind) in (0u32..).zip(texts.iter()).zip(kinds) {
        if !matches!(text.first(), Some(b'<' | b'[' | b'_')) {
            continue;
        }
        let marked = kind.is_hidden();
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
