//! JSON Schema's own tests: what compiles, and whether what compiles allows valid values and refuses the others.
//!
//!     cargo run -p quoth-grammar --example suite -- FOLDER      a folder of the suite, such as draft2020-12
//!
//! Values are written as answers are: with the separators of answers, keys in the order of `properties`.

#![allow(clippy::unwrap_used, reason = "a program for developers")]

use std::path::PathBuf;

use quoth_engine::constraint::Constraint;
use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::{GgufBuilder, Kv};
use quoth_engine::vocab::Vocab;
use quoth_grammar::{Compiler, Grammar, Start, Tokens};
use serde_json::Value;

/// An end and all bytes, so that a text has one spelling.
fn vocab() -> Vocab {
    let texts: Vec<String> =
        std::iter::once("</s>".to_owned()).chain((0..=255).map(|byte| format!("<0x{byte:02X}>"))).collect();
    let types: Vec<i32> = std::iter::once(3).chain(std::iter::repeat_n(6, 256)).collect();
    let bytes = GgufBuilder::new()
        .kv("tokenizer.ggml.model", "llama")
        .kv("tokenizer.ggml.tokens", Kv::strs(&texts))
        .kv("tokenizer.ggml.token_type", types)
        .kv("tokenizer.ggml.scores", vec![0f32; 257])
        .kv("tokenizer.ggml.eos_token_id", 0u32)
        .build();
    Vocab::from_metadata(GgufFile::from_bytes("bytes.gguf", bytes).unwrap().metadata()).unwrap()
}

/// A value as answers write it; the keys of objects that `schema` names come in its order.
fn written(value: &Value, schema: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written(item, &schema["items"])).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let first: Vec<&String> =
                schema["properties"].as_object().map_or(Vec::new(), |named| named.keys().collect());
            let order = |name: &String| first.iter().position(|other| *other == name).unwrap_or(usize::MAX);
            let mut names: Vec<&String> = members.keys().collect();
            names.sort_by_key(|name| order(name));
            let member = |name: &String| {
                format!("{}: {}", Value::from(name.as_str()), written(&members[name], &schema["properties"][name]))
            };
            format!("{{{}}}", names.into_iter().map(member).collect::<Vec<_>>().join(", "))
        }
        leaf => leaf.to_string(),
    }
}

fn accepts(constraint: &mut dyn Constraint, text: &str) -> bool {
    let mut complete = false;
    let allowed = |constraint: &mut dyn Constraint, token: u32| {
        let mut masks = Vec::new();
        constraint.masks(&[], &mut masks).is_ok() && masks[0].allows(token)
    };
    for byte in text.bytes() {
        let token = 1 + u32::from(byte);
        if complete || !allowed(constraint, token) {
            return false;
        }
        complete = constraint.commit(token).unwrap_or(true);
    }
    complete || allowed(constraint, 0)
}

fn main() {
    let folder = std::env::args().nth(1).expect("a folder of the suite");
    let compiler = Compiler::new(Tokens::new(&vocab(), None));
    let (mut groups, mut refused, mut right) = (0, 0, 0);
    let (mut held_back, mut let_through) = (Vec::new(), Vec::new());
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|name| name == "json")) {
        let all: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        for group in all.as_array().unwrap() {
            groups += 1;
            let schema = group["schema"].to_string();
            let Ok(compiled) = compiler.compile(&Grammar::JsonSchema { schema, whitespace: false }) else {
                refused += 1;
                continue;
            };
            for test in group["tests"].as_array().unwrap() {
                let text = written(&test["data"], &group["schema"]);
                let accepted = accepts(&mut *compiled.start(&Start::Now), &text);
                let name = file.file_stem().unwrap().to_string_lossy();
                let what = format!("{name}: {}: {}: {text}", group["description"], test["description"]);
                match (accepted, test["valid"].as_bool().unwrap()) {
                    (true, false) => let_through.push(what),
                    (false, true) => held_back.push(what),
                    _ => right += 1,
                }
            }
        }
    }
    held_back.iter().for_each(|one| println!("valid, not allowed: {one}"));
    let_through.iter().for_each(|one| println!("not valid, allowed: {one}"));
    let (held_back, let_through) = (held_back.len(), let_through.len());
    println!(
        "{groups} schemas, {refused} refused. Of the values for the others: {right} right, {held_back} valid ones not allowed, {let_through} others allowed"
    );
}
