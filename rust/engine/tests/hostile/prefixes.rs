//! Thousands of damaged files of stored prefixes: each is refused by name or is what was saved; with a checksum that was made right, it is refused or it is
//! within the store's bounds.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use quoth_engine::Error;
use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::TempDir;
use quoth_engine::model::{LoadOptions, Model, Output, Scratch, Span, Taps, Want};
use quoth_engine::prefix::PrefixStore;
use quoth_engine::state::State;
use quoth_kernels::KernelSet;
use quoth_kernels::attend::{CHUNK, KvKind};
use xxhash_rust::xxh3::xxh3_128;

use crate::budget::measured;
use crate::dice::Dice;
use crate::seeds;

/// Files of each model.
const CASES: u64 = 2_000;
/// Bytes that reading a file may hold beside blocks.
const HEAP: usize = 1 << 20;
const N_VOCAB: usize = 40;
const KIND: KvKind = KvKind::F16;

fn load(arch: &str) -> Arc<Model> {
    let bytes = seeds::all().into_iter().find(|(name, _)| *name == arch).unwrap().1;
    let file = GgufFile::from_bytes("m.gguf", bytes).unwrap();
    let options = LoadOptions { n_ctx: 4 * CHUNK, threads: 1, kernels: KernelSet::best() };
    Model::load(&file, &options, &mut |_, _| true).unwrap()
}

/// Prompts that have a block in common.
fn prompts() -> [Vec<u32>; 3] {
    let common = Dice(1).tokens(CHUNK, N_VOCAB);
    [(2, 1), (3, 2), (4, 2)]
        .map(|(seed, blocks)| [&common[..], &Dice(seed).tokens(blocks * CHUNK + 1, N_VOCAB)].concat())
}

fn filled(model: &Arc<Model>) -> PrefixStore {
    let mut store = PrefixStore::new(model.clone(), KIND, usize::MAX);
    for prompt in prompts() {
        let mut state = State::new(model, KIND).unwrap();
        let output = Output::Logits(&mut []);
        let span = Span { state: &mut state, tokens: &prompt, rows: Want::None, output, taps: Taps::none() };
        model.forward(&mut [span], &mut Scratch::default()).unwrap();
        store.keep(&prompt, &state);
    }
    store
}

fn seal(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(16) {
        let sum = xxh3_128(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A damaged copy of a file; whether its checksum was made right.
fn damaged(whole: &[u8], other: &[u8], dice: &mut Dice) -> (Vec<u8>, bool) {
    let mut bytes = whole.to_vec();
    for _ in 0..1 + dice.below(3) {
        let len = bytes.len();
        // The head and the first node are where most numbers are.
        let within = *dice.pick(&[24, 100, 700, len]);
        let at = dice.below(within.min(len));
        let n = dice.below(600).min(len - at);
        match dice.below(8) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at] = dice.next() as u8,
            2 => {
                let edge = dice.pick(&[0, 1, 2, 127, 1 << 16, 1 << 31, u64::MAX >> 1, u64::MAX]).to_le_bytes();
                let at = at.min(len.saturating_sub(8)) & !7;
                bytes.iter_mut().skip(at).zip(edge).for_each(|(byte, edge)| *byte = edge);
            }
            3 => bytes.truncate(at.max(1)),
            4 => bytes.extend(dice.bytes(n)),
            5 => {
                let from = dice.below(other.len() - 600);
                bytes[at..at + n].copy_from_slice(&other[from..from + n]);
            }
            6 => bytes.copy_within(at..at + n, 0),
            _ => drop(bytes.drain(at..(at + n).min(len - 1))),
        }
    }
    // A sound beginning and the right length now and then, or little behind them would be read.
    let groups = u32::from_le_bytes(whole[44..48].try_into().unwrap()) as usize;
    let at = 48 + 16 * groups;
    if dice.once_in(2) && bytes.len() >= at + 8 {
        let len = (bytes.len() as u64).to_le_bytes();
        bytes[..at].copy_from_slice(&whole[..at]);
        bytes[at..at + 8].copy_from_slice(&len);
    }
    let sealed = dice.once_in(2);
    if sealed {
        seal(&mut bytes);
    }
    (bytes, sealed)
}

#[test]
fn damaged_prefixes_are_refused_by_name_or_stay_within_bounds_at_little_cost() {
    let dir = TempDir::new().unwrap();
    let mut reasons = BTreeSet::new();
    for (arch, elsewhere) in [("llama", "gemma3"), ("gemma3", "llama")] {
        let (model, other) = (load(arch), load(elsewhere));
        let [path, foreign, again] = ["whole", "foreign", "again"].map(|name| dir.path().join(name));
        let full = filled(&model);
        full.save(&path).unwrap();
        filled(&other).save(&foreign).unwrap();
        let (whole, foreign) = (std::fs::read(&path).unwrap(), std::fs::read(&foreign).unwrap());
        let (mut refused, mut taken, mut same) = (0, 0, 0);
        let held = model.kv_meter().blocks();
        for number in 0..CASES {
            let mut dice = Dice(number);
            let (bytes, sealed) = damaged(&whole, &foreign, &mut dice);
            let what = format!("case {number} of {arch}");
            let damaged = dir.write("damaged", &bytes).unwrap();
            // Room for all of it, or for some.
            let max_bytes = [usize::MAX, full.bytes(), full.bytes() / 3, 0][dice.below(4)];
            let mut store = PrefixStore::new(model.clone(), KIND, max_bytes);
            let (result, cost) = measured(|| catch_unwind(AssertUnwindSafe(|| store.load(&damaged))));
            assert!(cost.bytes < HEAP, "{what}: {} bytes", cost.bytes);
            assert!(store.bytes() <= max_bytes, "{what}: {} bytes of blocks", store.bytes());
            match result.unwrap_or_else(|_| panic!("{what}: a panic")) {
                Err(error) => {
                    let Error::PrefixFile { what: part, found, expected, .. } = &error else {
                        panic!("{what}: {error}")
                    };
                    assert!(!found.is_empty() && !expected.is_empty());
                    reasons.insert(part.split(" of node").next().unwrap_or_default().to_owned());
                    assert_eq!((store.bytes(), model.kv_meter().blocks()), (0, held), "{what}: {error}");
                    refused += 1;
                }
                Ok(_) if bytes == whole => {
                    store.save(&again).unwrap();
                    assert!(max_bytes < full.bytes() || std::fs::read(&again).unwrap() == whole, "{what}");
                    same += 1;
                }
                Ok(_) => {
                    assert!(sealed, "{what}: damage was not noticed");
                    // Whatever it says, it is a store.
                    prompts().iter().for_each(|prompt| drop(store.longest(prompt)));
                    store.save(&again).unwrap();
                    let mut copy = PrefixStore::new(model.clone(), KIND, max_bytes);
                    copy.load(&again).unwrap();
                    assert_eq!(copy.bytes(), store.bytes(), "{what}");
                    taken += 1;
                }
            }
        }
        println!("{arch}: {refused} refused, {taken} taken with a forged checksum, {same} unchanged");
        assert!(refused > CASES / 2 && taken > CASES / 100, "{arch}: {refused} refused, {taken} taken");
        assert_eq!(model.kv_meter().blocks(), held);
    }
    for part in ["magic bytes", "digest of the model", "end of the file", "parent", "groups", "tokens", "checksum"] {
        assert!(reasons.contains(part), "no file was refused for its {part}: {reasons:?}");
    }
}
