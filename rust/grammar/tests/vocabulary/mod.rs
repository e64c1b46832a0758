//! A small vocabulary as files have it: all bytes, some words, parts of characters, marks.

use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::{GgufBuilder, Kv};
use quoth_engine::vocab::Vocab;

/// Ends of generation, and the marks of thinking.
pub(crate) const EOS: u32 = 0;
pub(crate) const THINK: u32 = 1;
pub(crate) const THOUGHT: u32 = 2;

const WORDS: [&str; 40] = [
    "{\"",
    "\":",
    "\": ",
    "\": \"",
    "\", \"",
    "\"}",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ", ",
    ": ",
    "name",
    "age",
    "title",
    "na",
    "me",
    " the",
    "the",
    "er",
    "in",
    "on",
    "an",
    "123",
    "12",
    "20",
    "-0",
    "true",
    "false",
    "null",
    "\n\n",
    "  ",
    "\\u00",
    "\\\"",
    "é",
    "漢字",
    "```json\n",
    "```",
    "SELECT ",
];

pub(crate) fn vocab() -> Vocab {
    without(&[])
}

/// The same without tokens for these bytes.
pub(crate) fn without(bytes: &[u8]) -> Vocab {
    let lacks = bytes;
    let mut texts: Vec<String> = vec!["</s>".into(), "<think>".into(), "</think>".into(), "<unk>".into()];
    // End of text, user-defined marks, unknown.
    let mut types: Vec<i32> = vec![3, 4, 3, 2];
    for byte in 0..=255 {
        texts.push(format!("<0x{byte:02X}>"));
        types.push(if lacks.contains(&byte) { 5 } else { 6 });
    }
    for word in WORDS {
        texts.push(word.replace(' ', "\u{2581}"));
        types.push(1);
    }
    let scores = vec![0f32; texts.len()];
    let bytes = GgufBuilder::new()
        .kv("tokenizer.ggml.model", "llama")
        .kv("tokenizer.ggml.tokens", Kv::strs(&texts))
        .kv("tokenizer.ggml.token_type", types)
        .kv("tokenizer.ggml.scores", scores)
        .kv("tokenizer.ggml.eos_token_id", 0u32)
        .kv("tokenizer.ggml.bos_token_id", 0u32)
        .build();
    Vocab::from_metadata(GgufFile::from_bytes("vocabulary.gguf", bytes).unwrap().metadata()).unwrap()
}

/// What tokens say, marks left out.
pub(crate) fn text(vocab: &Vocab, tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().filter(|t| **t != EOS).flat_map(|t| vocab.token_bytes(*t).to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

/// Numbers that follow from a seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}
