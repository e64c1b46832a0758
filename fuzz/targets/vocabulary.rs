//! Bytes as a vocabulary, token ids and stop texts: what is shown, joined, is what decoding everything at once gives; as a tokenizer it ends in ids or an error.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::{GgufBuilder, Kv};
use quoth_engine::vocab::{Detokenizer, EncodeOptions, StopSet, TextStream, Tokenizer, Vocab};

fuzz_target!(|data: &[u8]| {
    let [first, second, rest @ ..] = data else { return };
    // Five lists: tokens, ids, stops, merges, texts; parted by two bytes that no UTF-8 holds.
    let mut lists = rest.split(|b| *b == 0xff).map(|list| list.split(|b| *b == 0xfe).collect::<Vec<_>>());
    let mut next = || lists.next().unwrap_or_default();
    let (tokens, ids, stops, merges, texts) = (next(), next(), next(), next(), next());
    let kinds: Vec<i32> = tokens.iter().map(|t| t.first().map_or(1, |b| i32::from(b % 9) - 1)).collect();
    let mut builder = GgufBuilder::new()
        .kv("tokenizer.ggml.model", ["gpt2", "llama", "gemma4"][usize::from(first % 3)])
        .kv("tokenizer.ggml.tokens", Kv::Strs(tokens.iter().map(|t| t.to_vec()).collect()))
        .kv("tokenizer.ggml.scores", (0..tokens.len()).map(|n| (n * 7 % 5) as f32).collect::<Vec<f32>>())
        .kv("tokenizer.ggml.merges", Kv::Strs(merges.iter().map(|m| m.to_vec()).collect()))
        .kv("tokenizer.ggml.pre", ["gpt-2", "llama3", "deepseek-llm", "superbpe"][usize::from(first >> 2 & 3)])
        .kv("tokenizer.ggml.add_space_prefix", first & 128 != 0);
    if first & 64 != 0 {
        builder = builder.kv("tokenizer.ggml.token_type", kinds);
    }
    for (bit, role) in ["bos", "eos", "eot", "padding"].iter().enumerate() {
        if second >> bit & 1 != 0 {
            builder = builder.kv(&format!("tokenizer.ggml.{role}_token_id"), u32::from(second >> 4));
        }
    }
    let file = GgufFile::from_bytes("v.gguf", builder.build()).expect("sound");
    let Ok(vocab) = Vocab::from_metadata(file.metadata()) else { return };
    if let Ok(tokenizer) = Tokenizer::from_metadata(file.metadata(), None) {
        for text in texts {
            let known = |ids: Vec<u32>| assert!(ids.iter().all(|id| (*id as usize) < vocab.n_vocab()));
            let _ = tokenizer.tokenize_bytes(text).map(known);
            let options = EncodeOptions { special: second & 2 != 0, lossy: second & 4 != 0, ..Default::default() };
            let _ = tokenizer.encode(&String::from_utf8_lossy(text), &options).map(known);
        }
    }
    assert!(vocab.eog_ids().iter().all(|id| (*id as usize) < vocab.n_vocab()));
    let stops: Vec<&[u8]> = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
    let Ok(set) = StopSet::new(&stops) else { return };
    let show = second & 1 != 0;
    let (mut stream, mut text, mut hit) =
        (TextStream::new(Detokenizer::new(&vocab, true, show), Arc::new(set)), String::new(), false);
    let mut bytes = Vec::new();
    for id in ids.iter().flat_map(|id| id.iter()) {
        let id = u32::from(*id);
        hit |= stream.push(&vocab, id, &mut text).is_some();
        if show || !vocab.kind(id).is_some_and(|kind| kind.is_hidden()) {
            bytes.extend_from_slice(vocab.token_bytes(id));
        }
    }
    stream.finish(&mut text);
    if vocab.add_space_prefix() && bytes.first() == Some(&b' ') {
        bytes.remove(0);
    }
    let end = (1..=bytes.len()).find_map(|end| {
        let longest = stops.iter().filter(|stop| bytes[..end].ends_with(stop)).map(|stop| stop.len()).max()?;
        Some(end - longest)
    });
    assert_eq!(hit, end.is_some());
    assert_eq!(text, String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]));
});
