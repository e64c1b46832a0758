//! P5: a stored prefix that went through a file is the same, bit for bit; a file that is damaged or foreign is refused by name and changes nothing.

use std::fs;
use std::sync::Arc;

use crate::batch::KINDS;
use crate::models::{Dice, Made, Spec};
use crate::prefix::{Bare, N_CTX, block_bytes, load, prompt, specs};
use quoth_engine::gguf::GgufError;
use quoth_engine::gguf::testing::TempDir;
use quoth_engine::model::Model;
use quoth_engine::prefix::PrefixStore;
use quoth_engine::{Error, ErrorKind};
use quoth_kernels::attend::{CHUNK, KvKind};
use quoth_kernels::{Format, KernelSet};
use xxhash_rust::xxh3::xxh3_128;

/// A sequence that read these tokens, kept.
fn keep(store: &mut PrefixStore, model: &Model, kind: KvKind, tokens: &[u32]) {
    let mut sequence = Bare::new(model, kind);
    sequence.feed(model, tokens);
    store.keep(tokens, &sequence.state);
}

#[test]
fn what_was_saved_is_loaded_bit_for_bit_by_a_model_of_other_threads_and_another_instruction_set() {
    let dir = TempDir::new().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let sets = KernelSet::available();
    for (i, spec) in specs().into_iter().enumerate() {
        let made = Made::new(&spec);
        let set = sets[i % sets.len()];
        let (model, other) = (made.load(KernelSet::best(), 1, N_CTX), made.load(set, 2, N_CTX + 1));
        for kind in KINDS {
            let mut dice = Dice(i as u64);
            let prompts: Vec<Vec<u32>> = (0..6).map(|_| prompt(&mut dice)).collect();
            let mut store = PrefixStore::new(model.clone(), kind, usize::MAX);
            prompts.iter().for_each(|prompt| keep(&mut store, &model, kind, prompt));
            store.save(&first).unwrap();
            let mut loaded = PrefixStore::new(other.clone(), kind, usize::MAX);
            assert!(loaded.load(&first).unwrap() >= 4);
            assert_eq!(loaded.bytes(), other.kv_meter().bytes(), "one copy in memory");
            // The file tells nodes, blocks and order.
            loaded.save(&second).unwrap();
            assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap(), "{}, {kind:?}", spec.arch);
            for prompt in &prompts {
                let prompt = [&prompt[..], &[1]].concat();
                assert_eq!(loaded.depth(&prompt), store.depth(&prompt));
                let found = Bare::stored(&mut loaded, &other, kind, &prompt);
                assert!(!found.tokens.is_empty() || prompt.len() <= CHUNK || spec.window > 0);
                found.assert_fresh(&other, spec.arch);
            }
            assert_eq!(loaded.load(&second).unwrap(), 0, "all of it is there");
            drop((store, loaded));
            assert_eq!((model.kv_meter().blocks(), other.kv_meter().blocks()), (0, 0));
        }
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing temporary stays: {left:?}");
    #[cfg(unix)]
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&fs::metadata(first).unwrap()) & 0o077, 0, "the user's own");
}

#[test]
fn a_store_takes_the_latest_used_that_it_has_room_for_and_gives_up_none_of_its_own() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("prefixes");
    let (model, kind) = (load(&Spec::of("llama", Format::Q8_0)), KvKind::F16);
    let block = block_bytes(&model, kind);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| Dice(i).tokens(2 * CHUNK + 1, 300)).collect();
    let mut full = PrefixStore::new(model.clone(), kind, usize::MAX);
    prompts.iter().for_each(|prompt| keep(&mut full, &model, kind, prompt));
    full.longest(&prompts[1]);
    full.save(&path).unwrap();
    let depths = |store: &PrefixStore| -> Vec<usize> { prompts.iter().map(|prompt| store.depth(prompt)).collect() };
    for room in 0..10 {
        let mut store = PrefixStore::new(model.clone(), kind, room * block + block / 2);
        let own = Dice(9).tokens(CHUNK + 1, 300);
        keep(&mut store, &model, kind, &own);
        let before = store.bytes();
        assert_eq!(store.load(&path).unwrap(), room.saturating_sub(1).min(8), "room for {room}");
        assert_eq!(store.bytes(), block * room.min(9));
        assert_eq!(store.depth(&own), before / block);
        // Latest first: 1, 3, 2, 0.
        let of = |place: usize| room.saturating_sub(1 + 2 * place).min(2);
        assert_eq!(depths(&store), [of(3), of(0), of(2), of(1)]);
        // What was loaded counts as used before what was there, in the order that it had.
        if room == 9 {
            let order = |store: &mut PrefixStore| {
                store.shrink(1);
                depths(store)
            };
            let expected =
                [[1, 2, 2, 2], [0, 2, 2, 2], [0, 2, 1, 2], [0, 2, 0, 2], [0, 2, 0, 1], [0, 2, 0, 0], [0, 1, 0, 0]];
            expected.iter().for_each(|expected| assert_eq!(order(&mut store), expected));
            assert_eq!((store.depth(&own), order(&mut store)), (1, vec![0; 4]));
            assert!(store.depth(&own) == 1 && store.shrink(1) && store.depth(&own) == 0);
        }
    }
}

#[test]
fn a_file_brings_blocks_that_stored_nodes_lack() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("prefixes");
    let (model, kind) = (load(&Spec::of("gemma3", Format::Q8_0)), KvKind::Q8_0);
    let tokens = Dice(2).tokens(6 * CHUNK + 40, 300);
    let mut early = PrefixStore::new(model.clone(), kind, usize::MAX);
    keep(&mut early, &model, kind, &tokens[..2 * CHUNK]);
    early.save(&path).unwrap();
    let mut store = PrefixStore::new(model.clone(), kind, usize::MAX);
    keep(&mut store, &model, kind, &tokens);
    let (bytes, beginning) = (store.bytes(), &tokens[..2 * CHUNK + 1]);
    assert_eq!(store.depth(beginning), 0, "the windowed layers have forgotten it");
    assert_eq!(store.load(&path).unwrap(), 2);
    assert_eq!((store.depth(beginning), store.depth(&tokens)), (2, 6));
    assert!(bytes < store.bytes() && store.bytes() < bytes + early.bytes());
    Bare::stored(&mut store, &model, kind, beginning).assert_fresh(&model, "from both");
}

/// Makes the checksum right.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 16;
    let sum = xxh3_128(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// A store with something in it, and the bytes of a file of it.
fn sample(dir: &TempDir) -> (Arc<Model>, PrefixStore, Vec<u8>) {
    let model = load(&Spec::of("gemma3", Format::Q8_0));
    let mut store = PrefixStore::new(model.clone(), KvKind::F16, usize::MAX);
    keep(&mut store, &model, KvKind::F16, &Dice(1).tokens(CHUNK, 300));
    keep(&mut store, &model, KvKind::F16, &Dice(2).tokens(2 * CHUNK, 300));
    store.save(dir.path().join("sample")).unwrap();
    let bytes = fs::read(dir.path().join("sample")).unwrap();
    (model, store, bytes)
}

/// The refusal of a file, after which the store is as it was.
fn refusal(store: &mut PrefixStore, dir: &TempDir, bytes: &[u8]) -> Error {
    let before = dir.path().join("before");
    store.save(&before).unwrap();
    let path = dir.write("damaged", bytes).unwrap();
    let error = store.load(&path).unwrap_err();
    let after = dir.path().join("after");
    store.save(&after).unwrap();
    assert!(fs::read(before).unwrap() == fs::read(after).unwrap(), "{error}: the store has changed");
    error
}

#[test]
fn a_foreign_or_damaged_file_is_refused_by_name_with_what_was_found_expected_and_where() {
    let dir = TempDir::new().unwrap();
    let (model, mut store, whole) = sample(&dir);
    let blocks = model.kv_meter().blocks();
    let len = whole.len();
    // Two groups: the head takes 48 bytes, 16 for each group, and 16.
    let (head, node) = (96, 8 + 2 + 4 * CHUNK);
    let with = |at: usize, bytes: &[u8]| {
        let mut other = whole.clone();
        other[at..at + bytes.len()].copy_from_slice(bytes);
        other
    };
    let n = |n: u64| n.to_le_bytes();
    let sum = format!("{:032x}", u128::from_le_bytes(whole[len - 16..].try_into().unwrap()));
    let cases: Vec<(Vec<u8>, String)> = vec![
        (Vec::new(), "magic bytes at byte 0: found 0 bytes to the end of the file, expected 8 bytes".into()),
        (with(0, b"GGUF"), "magic bytes at byte 0: found `GGUFhpfx`, expected `quothpfx`".into()),
        (sealed(with(8, &[2])), "version of the format at byte 8: found 2, expected 1".into()),
        (sealed(with(12, &[9])), "version of the arithmetic at byte 12: found 9, expected 1".into()),
        (
            sealed(with(16, &[0; 16])),
            format!("digest of the model at byte 16: found {:032x}, expected {:032x}", 0, model.digest()),
        ),
        (sealed(with(32, b"f32")), "kind of cache at byte 32: found `f32`, expected `f16`".into()),
        (sealed(with(40, &[64])), "positions a block at byte 40: found 64, expected 128".into()),
        (sealed(with(44, &[3])), "number of groups of layers at byte 44: found 3, expected 2".into()),
        (sealed(with(48, &[25])), "window of a group at byte 48: found 25, expected 24".into()),
        (sealed(with(64, &[25])), "window of a group at byte 64: found 25, expected none".into()),
        (
            whole[..70].to_vec(),
            "window of a group at byte 64: found 6 bytes to the end of the file, expected 8 bytes".into(),
        ),
        (
            whole[..len - 1].to_vec(),
            format!("end of the file at byte {}: found {} bytes, expected {len} bytes", len - 1, len - 1),
        ),
        (
            [&whole[..], &[0]].concat(),
            format!("end of the file at byte {}: found {} bytes, expected {len} bytes", len + 1, len + 1),
        ),
        (
            sealed(with(88, &n(2))),
            format!("found {} bytes, expected a checksum of 16 bytes at the end of the file", len - second_end(&whole)),
        ),
        (sealed(with(88, &n(4))), format!("parent of node 4 at byte {}: found ", len - 16)),
        (sealed(with(88, &n(u64::MAX))), format!("parent of node 4 at byte {}: found ", len - 16)),
        (sealed(with(head, &n(1))), format!("parent of node 1 at byte {head}: found 1, expected 0 to 0")),
        (
            sealed(with(head, &n(u64::MAX))),
            format!("parent of node 1 at byte {head}: found {}, expected 0 to 0", u64::MAX),
        ),
        (sealed(with(head + 9, &[2])), format!("groups of node 1 at byte {}: found 2, expected 0 or 1", head + 9)),
        (
            sealed(with(head + 18, &300u32.to_le_bytes())),
            format!("tokens of node 1 at byte {}: found 300, expected 0 to 299", head + 18),
        ),
        (with(len - 16, &[0; 16]), format!("checksum at byte {}: found {:032x}, expected {sum}", len - 16, 0)),
        (with(head + node + 3, &[whole[head + node + 3] ^ 1]), format!("checksum at byte {}: found {sum}", len - 16)),
    ];
    for (bytes, says) in cases {
        let error = refusal(&mut store, &dir, &bytes);
        assert!(matches!(error, Error::PrefixFile { .. }) && error.kind() == ErrorKind::ModelFile);
        let text = error.to_string();
        assert!(text.contains(&says) && text.contains("damaged: "), "{text}\nexpected {says}");
        assert_eq!(model.kv_meter().blocks(), blocks, "{text}: blocks are left behind");
    }
    // A store of another model, of plain arithmetic, or of another kind of cache.
    let path = dir.write("whole", &whole).unwrap();
    let other = load(&Spec { seed: 2, ..Spec::of("gemma3", Format::Q8_0) });
    let plain = Made::new(&Spec::of("gemma3", Format::Q8_0)).load(KernelSet::reference(), 1, N_CTX);
    for (model, kind, says) in [
        (other, KvKind::F16, "digest of the model"),
        (plain, KvKind::F16, "digest of the model"),
        (model, KvKind::Q8_0, "kind of cache"),
    ] {
        let text = PrefixStore::new(model, kind, usize::MAX).load(&path).unwrap_err().to_string();
        assert!(text.contains(says), "{text}");
    }
    assert_eq!(store.load(&path).unwrap(), 0, "the whole file is taken, and nothing is new");
}

/// Where the third node of the sample begins.
fn second_end(whole: &[u8]) -> usize {
    let mut at = 96;
    let bytes = [56, 72].map(|at| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize);
    for _ in 0..2 {
        let blocks: usize =
            whole[at + 8..at + 10].iter().zip(bytes).map(|(has, bytes)| usize::from(*has) * bytes).sum();
        at += 10 + 4 * CHUNK + blocks;
    }
    at
}

#[test]
fn what_the_system_refuses_is_told_and_leaves_the_old_file() {
    let dir = TempDir::new().unwrap();
    let (model, store, whole) = sample(&dir);
    let mut other = PrefixStore::new(model, KvKind::F16, usize::MAX);
    let missing = dir.path().join("nowhere").join("sample");
    for error in [store.save(&missing).unwrap_err(), other.load(&missing).unwrap_err()] {
        assert!(matches!(error, Error::Gguf(GgufError::Io { .. })) && error.kind() == ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("nowhere"), "{error}");
    }
    for error in [store.save(dir.path()).unwrap_err(), other.load(dir.path()).unwrap_err()] {
        assert!(error.to_string().contains("expected a file, found a directory"), "{error}");
    }
    // A file that was there is replaced as a whole.
    other.save(dir.path().join("sample")).unwrap();
    assert!(fs::read(dir.path().join("sample")).unwrap().len() < whole.len());
    assert_eq!(other.load(dir.path().join("sample")).unwrap(), 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing temporary stays");
    #[cfg(unix)]
    {
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("sample", &link).unwrap();
        store.save(&link).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "a link stays");
        assert!(fs::read(dir.path().join("sample")).unwrap() == whole, "what it points to is written");
    }
}

#[test]
fn the_digest_of_a_model_is_of_its_numbers_and_its_weights() {
    let spec = Spec::of("llama", Format::Q8_0);
    let of = |spec: &Spec| load(spec).digest();
    let made = Made::new(&spec);
    assert_eq!(of(&spec), made.load(KernelSet::scalar(), 3, 17).digest(), "threads, set and context do not count");
    let mut all = vec![of(&spec), made.load(KernelSet::reference(), 1, N_CTX).digest()];
    all.extend([
        of(&Spec { seed: 2, ..spec.clone() }),
        of(&Spec { window: 24, ..spec.clone() }),
        of(&Spec { scaling: crate::models::Scaling::Linear(2.0), ..spec.clone() }),
    ]);
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:032x?}");
}
