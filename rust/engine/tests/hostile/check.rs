//! A file through all that reads it. Each stage ends in a named error, or hands on something that keeps its promises.

use std::sync::Arc;

use quoth_draft::{Cascade, CascadeOptions, CostTable, Gate, GateOptions};
use quoth_engine::Error;
use quoth_engine::decode::{Decoder, Request, Speculation};
use quoth_engine::gguf::{GgufError, GgufFile};
use quoth_engine::model::{LoadOptions, Model, Want};
use quoth_engine::sample::Sampling;
use quoth_engine::session::Session;
use quoth_engine::vocab::{Detokenizer, StopSet, Vocab};
use quoth_kernels::KernelSet;
use quoth_kernels::attend::KvKind;

/// How far a file came.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Names of errors, with the stage in front: `open Truncated`, `vocab TokenCount`, `load MissingTensor`, `decode Sample`.
    pub(crate) refusals: Vec<String>,
    /// Stages that went well: `open`, `vocab`, `load`, `decode`.
    pub(crate) passed: Vec<&'static str>,
    /// Bytes in maps, which the allocator does not see.
    pub(crate) mapped: usize,
}

/// The name of an error: its variants from the outside in, as far as they are names.
fn name(error: &Error) -> String {
    match error {
        Error::Gguf(inner) => gguf_name(inner),
        Error::Vocab(inner) => variant(inner),
        Error::Sample(inner) => variant(inner),
        other => variant(other),
    }
}

fn gguf_name(error: &GgufError) -> String {
    error.fault().map_or_else(|| variant(error), variant)
}

/// The first word of an enum's debug text.
fn variant(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

impl Outcome {
    pub(crate) fn refuse(&mut self, stage: &str, error: &Error) {
        let text = error.to_string();
        assert!(!text.is_empty() && text.len() < 1500, "{} bytes: {text}", text.len());
        let name = name(error);
        assert!(name != "Internal", "{text}");
        self.refusals.push(format!("{stage} {name}"));
    }
}

/// Bytes through all stages; `deep` goes on to decode.
pub(crate) fn bytes(bytes: Vec<u8>, deep: bool) -> Outcome {
    let (len, mut outcome) = (bytes.len() as u64, Outcome::default());
    match GgufFile::from_bytes("m.gguf", bytes) {
        Ok(opened) => {
            sound(&opened, len);
            file(&opened, deep, &mut outcome);
        }
        Err(error) => outcome.refuse("open", &error.into()),
    }
    outcome
}

/// A file that opened.
pub(crate) fn file(file: &GgufFile, deep: bool, outcome: &mut Outcome) {
    outcome.passed.push("open");
    let vocab = match Vocab::from_metadata(file.metadata()) {
        Ok(vocab) => {
            outcome.passed.push("vocab");
            spelled(&vocab);
            Some(Arc::new(vocab))
        }
        Err(error) => {
            outcome.refuse("vocab", &error.into());
            None
        }
    };
    let options = LoadOptions { n_ctx: 48, threads: 1, kernels: KernelSet::best() };
    let model = match Model::load(file, &options, &mut |_, _| true) {
        Ok(model) => model,
        Err(error) => return outcome.refuse("load", &error),
    };
    outcome.passed.push("load");
    outcome.mapped += model.weight_bytes();
    if deep {
        run(&model, vocab, outcome);
    }
}

/// Asserts of an opened file what opening promises, by other means than opening uses.
fn sound(file: &GgufFile, len: u64) {
    let mut taken: Vec<(u64, u64)> = file.tensors().iter().map(|t| (t.offset, t.offset + t.n_bytes)).collect();
    taken.sort_unstable();
    assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors over one another");
    assert!(taken.last().is_none_or(|(_, end)| *end <= len), "a tensor behind the end");
    for tensor in file.tensors() {
        assert!((1..=4).contains(&tensor.n_dims) && tensor.dims.iter().all(|d| *d > 0));
        assert!(tensor.offset.is_multiple_of(file.alignment()));
        let values = tensor.dims.iter().fold(1u128, |n, d| n * u128::from(*d));
        let bytes = values / u128::from(tensor.ty.block_size()) * u128::from(tensor.ty.block_bytes());
        assert_eq!(u128::from(tensor.n_bytes), bytes);
        assert_eq!(file.tensor(&tensor.name), Some(tensor));
    }
    let meta = file.metadata();
    for (key, value) in meta.iter() {
        assert_eq!(meta.get(key).map(|v| format!("{v:?}")), Some(format!("{value:?}")));
        let _ = (meta.get_u32(key), meta.get_u64(key), meta.get_i32(key), meta.get_f32(key), meta.get_bool(key));
        let _ = (meta.get_array_u32(key), meta.get_array_i32(key), meta.get_array_f32(key), meta.get_array_bool(key));
        let _ = (meta.get_str(key), meta.get_array_str(key));
    }
}

/// Every token can be shown, and a vocabulary answers for ids that it does not have.
fn spelled(vocab: &Vocab) {
    let (mut detokenizer, mut text) = (Detokenizer::new(vocab, true, true), String::new());
    let n = vocab.n_vocab() as u32;
    for token in (0..n.min(300)).chain([n, u32::MAX]) {
        detokenizer.push(vocab, token, &mut text);
    }
    detokenizer.finish(&mut text);
    assert!(vocab.kind(n).is_none() && vocab.token_bytes(n).is_empty());
    assert!(vocab.eog_ids().iter().all(|id| *id < n));
    assert!(vocab.suppressed().iter().all(|id| *id < n));
}

/// A model that loaded: rows twice over, and tokens with and without guesses.
fn run(model: &Arc<Model>, vocab: Option<Arc<Vocab>>, outcome: &mut Outcome) {
    let n_vocab = model.config().n_vocab;
    let prompt: Vec<u32> = [1u32, 2, 3, 1, 2].iter().map(|t| t % n_vocab as u32).collect();
    let rows = |outcome: &mut Outcome| -> Result<Vec<u32>, Error> {
        let mut session = Session::new(model.clone(), KvKind::F16)?;
        let mut logits = vec![0f32; prompt.len() * n_vocab];
        session.forward(&prompt, Want::All, &mut logits, &mut |_| true)?;
        outcome.mapped = outcome.mapped.max(model.weight_bytes() + session.cache().memory_bytes());
        Ok(logits.iter().map(|v| v.to_bits()).collect())
    };
    match (rows(outcome), rows(outcome)) {
        (Ok(first), Ok(second)) => assert_eq!(first, second, "the same rows twice"),
        (Err(error), Err(_)) => return outcome.refuse("forward", &error),
        (first, second) => panic!("one of two equal forwards failed: {first:?} {second:?}"),
    }
    outcome.passed.push("forward");
    let vocab = vocab.unwrap_or_else(|| Arc::new(Vocab::without_text(n_vocab)));
    let decoded = |guess: bool| -> Result<Vec<u32>, Error> {
        let costs = CostTable::default();
        let speculation = guess.then(|| Speculation {
            source: Box::new(Cascade::new(n_vocab, CascadeOptions::default()).unwrap()),
            gate: Gate::new(GateOptions::default()).unwrap(),
            costs: costs.into(),
            max_draft: 8,
            drafters: Vec::new(),
        });
        let mut decoder = Decoder::new(model.clone(), vocab.clone(), KvKind::F16, speculation)?;
        let request = Request {
            sampling: Sampling::default(),
            max_tokens: 6,
            stop_ids: Vec::new(),
            stop_at_eog: true,
            stops: Arc::new(StopSet::new(&["zz"])?),
            logprobs: None,
            trace: false,
            constraint: None,
        };
        let mut step = decoder.begin(&prompt, request, &mut |_, _| true)?;
        let mut tokens = std::mem::take(&mut step.tokens);
        while step.finish.is_none() {
            step = decoder.step()?;
            tokens.append(&mut step.tokens);
        }
        Ok(tokens)
    };
    match (decoded(false), decoded(true)) {
        (Ok(plain), Ok(guessed)) => assert_eq!(plain, guessed, "other tokens with guesses"),
        (Err(error), Err(other)) => {
            assert_eq!(error.to_string(), other.to_string());
            return outcome.refuse("decode", &error);
        }
        (plain, guessed) => panic!("only one of two failed: {plain:?} {guessed:?}"),
    }
    outcome.passed.push("decode");
}

#[test]
fn every_seed_comes_as_far_as_it_should() {
    for (name, seed) in crate::seeds::all() {
        let outcome = bytes(seed, true);
        let expected: &[&str] = match name {
            "values" => &["open"],
            _ if name.starts_with("vocabulary") => &["open", "vocab"],
            _ => &["open", "vocab", "load", "forward", "decode"],
        };
        assert_eq!(outcome.passed, expected, "{name}: {:?}", outcome.refusals);
    }
}
