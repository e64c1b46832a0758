//! All seeds, all kinds of damage, counted by outcome.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::TempDir;

use crate::budget::{BYTES, Cost, TIME, measured};
use crate::check::{self, Outcome};
use crate::damage::{KINDS, Kind, damaged};
use crate::dice::Dice;
use crate::parts::{Key, Parts, Value};
use crate::seeds;

/// Files of the usual run.
const CASES: u64 = 200_000;
/// Split models of the usual run.
const SPLIT: u64 = 3_000;
/// Threads that the cases are shared among.
const THREADS: u64 = 2;

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name)
        .map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, expected a number")))
}

/// What many cases came to.
#[derive(Debug, Default)]
struct Tally {
    passed: BTreeMap<&'static str, u64>,
    refusals: BTreeMap<String, u64>,
    worst: Cost,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, what: &str, outcome: Result<Outcome, Box<dyn Any + Send>>, cost: Cost) {
        let mapped = outcome.as_ref().map_or(0, |outcome| outcome.mapped);
        let cost = Cost { bytes: cost.bytes + mapped, ..cost };
        self.worst = Cost { bytes: self.worst.bytes.max(cost.bytes), time: self.worst.time.max(cost.time) };
        match outcome {
            Ok(outcome) => {
                outcome.passed.into_iter().for_each(|stage| *self.passed.entry(stage).or_default() += 1);
                outcome.refusals.into_iter().for_each(|name| *self.refusals.entry(name).or_default() += 1);
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("something");
                self.failures.push(format!("{what}: panicked with {text}"));
            }
        }
        if cost.bytes > BYTES || cost.time > TIME {
            self.failures.push(format!("{what}: {} bytes, {:?}", cost.bytes, cost.time));
        }
    }

    fn join(mut self, other: Tally) -> Tally {
        other.passed.into_iter().for_each(|(stage, n)| *self.passed.entry(stage).or_default() += n);
        other.refusals.into_iter().for_each(|(name, n)| *self.refusals.entry(name).or_default() += n);
        self.worst =
            Cost { bytes: self.worst.bytes.max(other.worst.bytes), time: self.worst.time.max(other.worst.time) };
        self.failures.extend(other.failures);
        self
    }

    fn print(&self, what: &str, cases: u64, took: Duration) {
        let Cost { bytes, time } = self.worst;
        println!("{cases} {what} in {took:.1?}; the dearest held {} KB, the slowest took {time:.1?}", bytes >> 10);
        let list = |(name, n): (&str, &u64)| format!("{name} {n}");
        let passed: Vec<_> = self.passed.iter().map(|(name, n)| list((name, n))).collect();
        let refused: Vec<_> = self.refusals.iter().map(|(name, n)| list((name, n))).collect();
        println!("passed: {}\nrefused: {}", passed.join(", "), refused.join(", "));
    }
}

/// Kind, seed and bytes of a case.
fn case(number: u64, seeds: &[(&'static str, Parts)]) -> (Kind, &'static str, Vec<u8>) {
    let mut dice = Dice(number);
    // Models twice as often as the rest: they have the longer way.
    let model = dice.below(8) < 6;
    let at = if model { dice.below(6) } else { 6 + dice.below(seeds.len() - 6) };
    let kind = KINDS[(number % KINDS.len() as u64) as usize];
    let (name, seed) = &seeds[at];
    let other = &dice.pick(seeds).1;
    (kind, name, damaged(kind, seed, other, &mut dice))
}

#[test]
fn damaged_files_end_in_a_named_error_or_a_working_model_at_little_cost() {
    let (first, cases) = (from_environment("QUOTH_HOSTILE_FIRST", 0), from_environment("QUOTH_HOSTILE_CASES", CASES));
    let seeds: Vec<_> = seeds::all().into_iter().map(|(name, bytes)| (name, Parts::read(&bytes))).collect();
    let (next, start) = (AtomicU64::new(first), Instant::now());
    let work = || {
        let mut tally = Tally::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= first + cases || tally.failures.len() > 20 {
                return tally;
            }
            let (kind, seed, bytes) = case(number, &seeds);
            let what = format!(
                "case {number} ({kind:?} of {seed}; repeat with QUOTH_HOSTILE_FIRST={number} QUOTH_HOSTILE_CASES=1)"
            );
            let copy = bytes.clone();
            // Most models decode; where nothing was changed, once in a while is enough.
            let deep = kind != Kind::Sound || number.is_multiple_of(5);
            let (outcome, cost) = measured(|| catch_unwind(AssertUnwindSafe(|| check::bytes(bytes, deep))));
            let before = tally.failures.len();
            tally.add(&what, outcome, cost);
            if tally.failures.len() > before {
                let kept = std::env::temp_dir().join(format!("quoth-hostile-{number}.gguf"));
                let written = std::fs::write(&kept, copy);
                tally.failures.push(format!("  kept as {}: {written:?}", kept.display()));
            }
        }
    };
    let tally = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).fold(Tally::default(), Tally::join)
    });
    tally.print("damaged files", cases, start.elapsed());
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
    if cases >= CASES {
        // Were one of these rare, the damage would be too mild or too coarse to say anything of what lies behind it.
        for (stage, least) in
            [("open", 70_000), ("vocab", 60_000), ("load", 20_000), ("forward", 10_000), ("decode", 5_000)]
        {
            let found = tally.passed.get(stage).copied().unwrap_or(0);
            assert!(found >= least, "{found} files passed `{stage}`, expected {least}");
        }
        let missing: Vec<_> = EXPECTED.iter().filter(|name| !tally.refusals.contains_key(**name)).collect();
        assert!(missing.is_empty(), "no file was refused as {missing:?}");
    }
}

/// Refusals that files of this size can meet. Those of larger ones and of the disk have tests of their own.
const EXPECTED: &[&str] = &[
    "open Alignment",
    "open BadBool",
    "open BadMagic",
    "open BigEndian",
    "open CountPastEnd",
    "open DimCount",
    "open DuplicateKey",
    "open DuplicateTensor",
    "open Empty",
    "open Misaligned",
    "open NestedArray",
    "open NotUtf8",
    "open Overlap",
    "open PartialBlock",
    "open SizeOverflow",
    "open StringTooLong",
    "open TensorPastEnd",
    "open TextFile",
    "open Truncated",
    "open UnknownType",
    "open ValueType",
    "open Version",
    "open ZeroDim",
    "vocab Missing",
    "vocab NoModel",
    "vocab ShortArray",
    "vocab TokenOutOfRange",
    "vocab UnknownModel",
    "vocab WrongType",
    "load ArrayLength",
    "load ExtraTensor",
    "load MissingKey",
    "load MissingTensor",
    "load NotUtf8",
    "load OutOfRange",
    "load Recurrent",
    "load TensorShape",
    "load TensorValue",
    "load UnknownArchitecture",
    "load UnknownKey",
    "load UnsupportedType",
    "load UnsupportedValue",
    "load VocabularyOnly",
    "load WrongType",
];

/// Puts the keys of a split model first.
fn as_part(parts: &mut Parts, number: u16, count: u16, tensors: i32) {
    let key = |name: &str, ty, bytes: Vec<u8>| Key { name: name.into(), ty, value: Value::Raw(bytes) };
    parts.keys.splice(
        0..0,
        [
            key("split.no", 2, number.to_le_bytes().to_vec()),
            key("split.count", 2, count.to_le_bytes().to_vec()),
            key("split.tensors.count", 5, tensors.to_le_bytes().to_vec()),
        ],
    );
}

#[test]
fn split_models_with_a_damaged_part_do_so_too() {
    let cases = from_environment("QUOTH_HOSTILE_CASES", SPLIT).min(SPLIT);
    let models: Vec<Parts> = seeds::all()[..6].iter().map(|(_, bytes)| Parts::read(bytes)).collect();
    // Files in memory where the system has a place for them: thousands are written.
    let folder = TempDir::new().unwrap();
    let (mut tally, start) = (Tally::default(), Instant::now());
    for number in 0..cases {
        let mut dice = Dice(number ^ 0x5eed);
        let model = dice.pick(&models).clone();
        let n = model.tensors.len();
        let cut = dice.below(n + 1);
        let mut parts = [model.clone(), Parts { keys: model.keys[..1].to_vec(), ..model.clone() }];
        parts[0].tensors.truncate(cut);
        parts[1].tensors.drain(..cut);
        for (i, part) in parts.iter_mut().enumerate() {
            as_part(part, i as u16, 2, n as i32);
        }
        let kind = KINDS[(number % KINDS.len() as u64) as usize];
        let broken = dice.below(2);
        let mut paths = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let mut bytes = part.write().bytes;
            if i == broken {
                // What says which part it is begins right behind the counts: half of the lies go there.
                bytes = damaged(kind, part, &parts[1 - broken], &mut dice);
                if kind == Kind::Number && bytes.len() > 200 {
                    let at = 24 + dice.below(120);
                    bytes[at] = dice.next() as u8;
                }
            }
            let missing = i == broken && dice.once_in(60);
            let name = format!("m-{:05}-of-00002.gguf", i + 1);
            let path = folder.write(&name, &bytes).unwrap();
            if missing {
                std::fs::remove_file(&path).unwrap();
            }
            paths.push(path);
        }
        let opened = &paths[dice.below(2)];
        let (outcome, cost) = measured(|| {
            catch_unwind(AssertUnwindSafe(|| {
                let mut outcome = Outcome::default();
                match GgufFile::open(opened) {
                    Ok(file) => check::file(&file, number % 4 == 0, &mut outcome),
                    Err(error) => outcome.refuse("open", &error.into()),
                }
                outcome
            }))
        });
        tally.add(&format!("split case {number} ({kind:?})"), outcome, cost);
    }
    tally.print("split models", cases, start.elapsed());
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
    if cases == SPLIT {
        assert!(tally.passed["load"] > 200, "{:?}", tally.passed);
        for name in
            ["open Io", "open MissingKey", "open SplitName", "open SplitPart", "open SplitTensors", "open TooMany"]
        {
            assert!(tally.refusals.contains_key(name), "no split model was refused as {name}");
        }
    }
}
