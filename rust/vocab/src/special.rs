//! Tokens with a role: named by a key of the file, or by a text that means the same in every vocabulary that has it.
//!
//! E1  A token of one of the `TURN_ENDS` texts counts as control whatever type the file gives it: files exist that
//!     mistype it, and shown to a user it is noise.
//! E2  Generation ends at the ids that the file's keys name, at `TURN_ENDS` and `OTHER_ENDS`, and at `PERHAPS_ENDS` where
//!     the token is of type control or unknown. Those are ordinary text elsewhere: `</s>` closes struck-out text in HTML.

use crate::error::VocabError;
use crate::keys::{self, Keys};
use crate::table::StringTable;
use crate::vocab::TokenKind;

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

/// Roles that a key gives a token, as chat templates name them.
const ROLES: [(&str, &str); 7] = [
    ("bos_token", BOS),
    ("eos_token", EOS),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"), // spelled so in the format
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("cls_token", "tokenizer.ggml.cls_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";

/// A token that a key of the file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// As chat templates call it: `bos_token`, `eos_token` and so on.
    pub name: &'static str,
    /// The token.
    pub id: u32,
}

/// Ids of tokens with a role.
#[derive(Debug)]
pub(crate) struct SpecialIds {
    /// That end a generation.
    ends: Vec<u32>,
    /// That mark something and are not shown, for files without token types.
    pub(crate) marks: Vec<u32>,
    pub(crate) roles: Vec<Role>,
}

impl SpecialIds {
    /// Reads the ids. One outside the vocabulary is refused for the beginning and the end of text; for others it means
    /// none, as files name padding that the vocabulary lacks. A value that is no whole number is refused for all.
    pub(crate) fn read(keys: &dyn Keys, n_vocab: usize, llama: bool) -> Result<SpecialIds, VocabError> {
        let mut roles = Vec::new();
        for (name, key) in ROLES {
            // The kind `llama` had these before the keys existed.
            let by_default = match key {
                BOS if llama => in_range(1, n_vocab),
                EOS if llama => in_range(2, n_vocab),
                _ => None,
            };
            let found = id(keys, key, n_vocab, [BOS, EOS].contains(&key))?;
            roles.extend(found.or(by_default).map(|id| Role { name, id }));
        }
        let mut ends: Vec<u32> = roles.iter().filter(|role| role.name == "eos_token").map(|role| role.id).collect();
        let mut marks: Vec<u32> = roles.iter().filter(|role| role.name != "unk_token").map(|role| role.id).collect();
        for key in END_KEYS {
            let found = id(keys, key, n_vocab, false)?;
            ends.extend(found);
            if key.ends_with(".eot_token_id") || key.ends_with(".eom_token_id") {
                marks.extend(found);
            }
        }
        Ok(SpecialIds { ends, marks, roles })
    }
}

fn in_range(found: i128, n_vocab: usize) -> Option<u32> {
    u32::try_from(found).ok().filter(|id| (*id as usize) < n_vocab)
}

fn id(keys: &dyn Keys, key: &'static str, n_vocab: usize, strict: bool) -> Result<Option<u32>, VocabError> {
    let Some(found) = keys::id(keys, key)? else { return Ok(None) };
    match in_range(found, n_vocab) {
        None if strict => Err(VocabError::TokenOutOfRange { key, found, n_vocab }),
        id => Ok(id),
    }
}

/// Whether a token of this text ends a turn in every vocabulary that has it.
pub(crate) fn ends_turn(text: &[u8]) -> bool {
    // Most tokens begin with another character.
    matches!(text.first(), Some(b'<' | b'[')) && TURN_ENDS.iter().any(|end| end.as_bytes() == text)
}

/// The ids that end a generation, rising.
pub(crate) fn eog_ids(texts: &StringTable, kinds: &[TokenKind], special: &SpecialIds) -> Vec<u32> {
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
