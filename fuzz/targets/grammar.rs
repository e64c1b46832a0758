//! Bytes as grammars: whatever they say, compiling ends, and what compiles allows along a draft what it allows token by token.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use quoth_engine::constraint::Mask;
use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::{GgufBuilder, Kv};
use quoth_engine::vocab::Vocab;
use quoth_grammar::{Compiler, Grammar, Start, Tokens};

/// An end, all bytes, some words.
fn vocab() -> &'static Vocab {
    static VOCAB: OnceLock<Vocab> = OnceLock::new();
    VOCAB.get_or_init(|| {
        let mut texts = vec!["</s>".to_owned()];
        texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        texts.extend(["{\"", "\": ", "\", \"", "the", "true", "12"].map(|word| word.replace(' ', "\u{2581}")));
        let types: Vec<i32> = (0..texts.len()).map(|id| if id == 0 { 3 } else if id <= 256 { 6 } else { 1 }).collect();
        let bytes = GgufBuilder::new()
            .kv("tokenizer.ggml.model", "llama")
            .kv("tokenizer.ggml.tokens", Kv::strs(&texts))
            .kv("tokenizer.ggml.token_type", types)
            .kv("tokenizer.ggml.scores", vec![0f32; texts.len()])
            .kv("tokenizer.ggml.eos_token_id", 0u32)
            .build();
        let file = GgufFile::from_bytes("vocabulary.gguf", bytes).expect("a sound file");
        Vocab::from_metadata(file.metadata()).expect("a sound vocabulary")
    })
}

fuzz_target!(|data: &[u8]| {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    let [kind, dice, rest @ ..] = data else { return };
    let text = String::from_utf8_lossy(rest).into_owned();
    let grammar = match kind % 5 {
        0 | 1 => Grammar::JsonSchema { schema: text, whitespace: kind % 5 == 1 },
        2 => Grammar::Regex(text),
        3 => Grammar::Lark(text),
        _ => Grammar::Choice(text.split('\n').map(str::to_owned).collect()),
    };
    let compiler = COMPILER.get_or_init(|| Compiler::new(Tokens::new(vocab(), None)));
    let compiled = match compiler.compile(&grammar) {
        Ok(compiled) => compiled,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let start = if dice & 1 == 0 { Start::Now } else { Start::After { text: "the".into(), open: None } };
    let (mut plain, mut fast) = (compiled.start(&start), compiled.start(&start));
    let mut seed = u64::from(*dice) + 1;
    let (mut draft, mut masks) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let mut here = Vec::new();
        if plain.masks(&[], &mut here).is_err() {
            return;
        }
        let allowed: Vec<u32> = (0..vocab().n_vocab() as u32).filter(|token| here[0].allows(*token)).collect();
        assert!(!allowed.is_empty());
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = allowed[(seed >> 33) as usize % allowed.len()];
        masks.push(here.remove(0));
        draft.push(token);
        if !matches!(plain.commit(token), Ok(false)) {
            break;
        }
    }
    let mut along: Vec<Mask> = Vec::new();
    if fast.masks(&draft, &mut along).is_ok() {
        assert_eq!(along[..masks.len()], masks[..]);
    }
});
