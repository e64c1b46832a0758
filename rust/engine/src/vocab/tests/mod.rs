//! Tests of vocabularies and of the way from tokens to text.

mod reading;
mod text;

use super::Vocab;
use crate::gguf::GgufFile;
use crate::gguf::testing::{GgufBuilder, Kv};

/// The start of a file with these tokens and types.
fn file(model: &str, tokens: &[(&str, i32)]) -> GgufBuilder {
    GgufBuilder::new()
        .kv("tokenizer.ggml.model", model)
        .kv("tokenizer.ggml.tokens", Kv::strs(tokens.iter().map(|t| t.0)))
        .kv("tokenizer.ggml.token_type", tokens.iter().map(|t| t.1).collect::<Vec<i32>>())
}

fn open(builder: GgufBuilder) -> Result<Vocab, super::VocabError> {
    Vocab::from_metadata(GgufFile::from_bytes("v.gguf", builder.build()).expect("a sound file").metadata())
}
