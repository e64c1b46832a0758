//! The table of digests (`tests/data/digests.toml`) on this machine, whatever its architecture: what `tests/test_digests.py` checks through Python, checked
//! where there is no Python.
//!
//! - **D1** Rows of logits: one batch, in the f16 cache also one token at a time, every cache kind, every instruction set but plain code, one thread and three.
//! - **D2** Greedy and sampled tokens.
//!
//! The default model is checked where `QUOTH_SMOLLM2` names its file; the output says which entries were. Cost: four seconds on two cores.

#![allow(clippy::unwrap_used, reason = "a failure to read is a failure of the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quoth_engine::decode::{Decoder, Request};
use quoth_engine::gguf::GgufFile;
use quoth_engine::model::{LoadOptions, Model, Want};
use quoth_engine::sample::Sampling;
use quoth_engine::session::Session;
use quoth_engine::vocab::{StopSet, Vocab};
use quoth_kernels::KernelSet;
use quoth_kernels::attend::KvKind;

const DEFAULT: &str = "smollm2-Q4_1";
const KINDS: [(&str, KvKind); 3] = [("f32", KvKind::F32), ("f16", KvKind::F16), ("q8_0", KvKind::Q8_0)];
const SEEDS: [u64; 2] = [1, 2];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

/// An entry: lists of numbers and quoted words, by their keys.
type Entry = BTreeMap<String, String>;

/// The table, whose writer gives every key a line.
fn table() -> Vec<(String, Entry)> {
    let text = std::fs::read_to_string(data().join("digests.toml")).unwrap();
    let mut table: Vec<(String, Entry)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table.push((name.to_owned(), Entry::new()));
        } else {
            let (key, value) = line.split_once(" = ").unwrap();
            table.last_mut().unwrap().1.insert(key.to_owned(), value.trim_matches('"').to_owned());
        }
    }
    table
}

fn tokens(entry: &Entry, key: &str) -> Vec<u32> {
    let list = entry[key].strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap();
    list.split(", ").map(|token| token.parse().unwrap()).collect()
}

/// A polynomial over the words of the rows modulo 2^64, first word first.
fn digest(rows: &[f32]) -> String {
    let whole = rows.iter().fold(0xcbf2_9ce4_8422_2325u64, |digest, x| {
        digest.wrapping_mul(0x100_0000_01b3).wrapping_add(u64::from(x.to_bits()))
    });
    format!("{whole:016x}")
}

fn file(name: &str) -> GgufFile {
    if name == DEFAULT {
        return GgufFile::open(std::env::var_os("QUOTH_SMOLLM2").unwrap()).unwrap();
    }
    let packed = std::fs::read(data().join(format!("models/{name}.gguf.xz"))).unwrap();
    let mut bytes = Vec::new();
    lzma_rs::xz_decompress(&mut packed.as_slice(), &mut bytes).unwrap();
    GgufFile::from_bytes(name, bytes).unwrap()
}

fn sampling(seed: Option<u64>) -> Sampling {
    match seed {
        None => Sampling::default(),
        Some(seed) => Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.02,
            repeat_penalty: 1.1,
            frequency_penalty: 0.1,
            presence_penalty: 0.1,
            repeat_last_n: 64,
            seed,
            ..Sampling::default()
        },
    }
}

/// So many tokens after a prompt.
fn continuation(model: &Arc<Model>, vocab: &Arc<Vocab>, prompt: &[u32], seed: Option<u64>, n: usize) -> Vec<u32> {
    let mut decoder = Decoder::new(model.clone(), vocab.clone(), KvKind::F16, None).unwrap();
    let request = Request {
        sampling: sampling(seed),
        max_tokens: n,
        stop_ids: Vec::new(),
        stop_at_eog: false,
        stops: Arc::new(StopSet::new::<&[u8]>(&[]).unwrap()),
        logprobs: None,
        trace: false,
        constraint: None,
    };
    let mut step = decoder.begin(prompt, request, &mut |_, _| true).unwrap();
    let mut all = step.tokens;
    while step.finish.is_none() {
        step = decoder.step().unwrap();
        all.extend(&step.tokens);
    }
    all
}

/// Logits after each token of a prompt, fed in pieces of so many.
fn rows(model: &Arc<Model>, kind: KvKind, prompt: &[u32], piece: usize) -> Vec<f32> {
    let n_vocab = model.config().n_vocab;
    let mut session = Session::new(model.clone(), kind).unwrap();
    let mut all = vec![0.0; prompt.len() * n_vocab];
    for (tokens, out) in prompt.chunks(piece).zip(all.chunks_mut(piece * n_vocab)) {
        session.forward(tokens, Want::All, out, &mut |_| true).unwrap();
    }
    all
}

fn check(name: &str, file: &GgufFile, entry: &Entry, set: KernelSet, threads: usize) {
    let model = Model::load(file, &LoadOptions { n_ctx: 256, threads, kernels: set }, &mut |_, _| true).unwrap();
    let vocab = Arc::new(Vocab::from_metadata(file.metadata()).unwrap());
    let what = |key: &str| format!("{name}, {key}, {}, {threads} threads", set.detail());
    let prompt = tokens(entry, "prompt");
    for (key, kind) in KINDS {
        // The prompt at once; of one kind also token by token.
        for piece in [prompt.len(), 1].into_iter().take(1 + usize::from(kind == KvKind::F16)) {
            assert_eq!(digest(&rows(&model, kind, &prompt, piece)), entry[key], "{}, in pieces of {piece}", what(key));
        }
    }
    for (key, seed) in [("greedy".to_owned(), None)].into_iter().chain(SEEDS.map(|s| (format!("seed-{s}"), Some(s)))) {
        let expected = tokens(entry, &key);
        assert_eq!(continuation(&model, &vocab, &prompt, seed, expected.len()), expected, "{}", what(&key));
    }
}

#[test]
fn models_say_what_the_table_says_on_every_machine() {
    let table = table();
    assert!(table.len() > 1, "the table is empty");
    let mut checked = Vec::new();
    for (name, entry) in &table {
        // In emulation a plain pass over the default model takes minutes, so only the fastest set makes one.
        let sets = match name.as_str() {
            DEFAULT if std::env::var_os("QUOTH_SMOLLM2").is_none() => {
                println!("digests: left out {DEFAULT}, QUOTH_SMOLLM2 does not name its file");
                continue;
            }
            DEFAULT => vec![KernelSet::best()],
            _ => KernelSet::available(),
        };
        // Plain code is slow here, and compared with the others in the kernels' own tests.
        let sets = &sets[usize::from(sets.len() > 1)..];
        let file = file(name);
        for (i, set) in sets.iter().enumerate() {
            check(name, &file, entry, *set, 1 + 2 * (i % 2));
        }
        checked.push(name.as_str());
    }
    println!("digests: {} equal", checked.join(", "));
}
