//! P1–P4: a sequence that begins with a stored prefix is, bit for bit, one that read its whole prompt, whatever has been kept, used, forgotten or written
//! since; blocks are shared, and nothing outlives the store and the sequences.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::batch::{Bits, KINDS, assert_same, bits};
use crate::models::{Dice, Made, Spec};
use quoth_engine::cache::REWIND;
use quoth_engine::gguf::testing::TempDir;
use quoth_engine::model::{MAX_ROWS, Model, Output, Scratch, Span, Taps, Want};
use quoth_engine::prefix::PrefixStore;
use quoth_engine::state::State;
use quoth_kernels::attend::{CHUNK, KvKind};
use quoth_kernels::{Format, KernelSet};

pub(crate) const N_CTX: usize = 1024;

/// Models whose layers all see everything, all see a window, and both, windows shorter and longer than a block.
pub(crate) fn specs() -> [Spec; 5] {
    let of = |family| Spec::of(family, Format::Q8_0);
    [
        of("llama"),
        Spec { window: 200, ..of("llama") },
        of("gemma3"),
        Spec { window: 150, ..of("gemma4") },
        Spec { window: CHUNK + 1, ..of("gemma4moe") },
    ]
}

pub(crate) fn load(spec: &Spec) -> Arc<Model> {
    Made::new(spec).load(KernelSet::best(), 1, N_CTX)
}

/// A sequence without anything around it.
#[derive(Clone)]
pub(crate) struct Bare {
    pub(crate) tokens: Vec<u32>,
    pub(crate) state: State,
}

impl Bare {
    pub(crate) fn new(model: &Model, kind: KvKind) -> Bare {
        Bare { tokens: Vec::new(), state: State::new(model, kind).unwrap() }
    }

    /// Begins with the longest stored prefix of a prompt.
    pub(crate) fn stored(store: &mut PrefixStore, model: &Model, kind: KvKind, prompt: &[u32]) -> Bare {
        let depth = store.depth(prompt);
        let Some(state) = store.longest(prompt) else {
            assert_eq!(depth, 0);
            return Bare::new(model, kind);
        };
        assert_eq!(state.len(), depth * CHUNK);
        assert!(state.len() < prompt.len(), "P4");
        Bare { tokens: prompt[..state.len()].to_vec(), state }
    }

    /// Appends tokens and gives their rows.
    pub(crate) fn feed(&mut self, model: &Model, tokens: &[u32]) -> Vec<Bits> {
        let n_vocab = model.config().n_vocab;
        let mut logits = vec![0.0; tokens.len() * n_vocab];
        for (tokens, rows) in tokens.chunks(MAX_ROWS).zip(logits.chunks_mut(MAX_ROWS * n_vocab)) {
            let output = Output::Logits(rows);
            let span = Span { state: &mut self.state, tokens, rows: Want::All, output, taps: Taps::none() };
            model.forward(&mut [span], &mut Scratch::default()).unwrap();
        }
        self.tokens.extend(tokens);
        logits.chunks_exact(n_vocab).map(bits).collect()
    }

    /// Goes back, as far as that can be, to the greatest position up to `n`.
    fn back(&mut self, n: usize) {
        let n = self.state.nearest(n);
        self.state.truncate(n).unwrap();
        self.tokens.truncate(n);
    }

    /// It holds what one does that forwarded its tokens, and goes on as that would.
    pub(crate) fn assert_fresh(&self, model: &Model, what: &str) {
        let mut twin = Bare::new(model, self.state.kv().kind());
        twin.feed(model, &self.tokens);
        assert_eq!(self.state.len(), self.tokens.len(), "{what}");
        assert!(self.state.kv().same_prefix(twin.state.kv(), self.tokens.len()), "{what}: other bytes");
        assert_same(&twin.feed(model, &[9, 8]), &self.clone().feed(model, &[9, 8]), || what.to_owned());
    }
}

/// Prompts that part now and then: every text is a walk down a tree of two branches a node, a common and a rare one, of lengths around a block.
pub(crate) fn prompt(dice: &mut Dice) -> Vec<u32> {
    const LENGTHS: [usize; 7] = [CHUNK, 100, CHUNK + 28, 2 * CHUNK, 60, CHUNK, 90];
    let (mut tokens, mut branch) = (Vec::new(), 0u64);
    for length in &LENGTHS[..1 + dice.below(LENGTHS.len())] {
        branch = branch * 3 + u64::from(dice.once_in(3)) + 1;
        tokens.extend(Dice(branch).tokens(*length, 300));
    }
    if dice.once_in(3) {
        tokens.truncate(1 + dice.below(tokens.len()));
    }
    tokens
}

/// Bytes of one block of each group.
pub(crate) fn block_bytes(model: &Model, kind: KvKind) -> usize {
    State::new(model, kind).unwrap().kv().bytes_for(1)
}

#[test]
fn sequences_that_begin_with_stored_prefixes_are_fresh_ones_after_every_event() {
    let (mut used, mut forgotten, mut parted) = (0, 0, 0);
    let dir = TempDir::new().unwrap();
    for (case, (spec, kind)) in specs().iter().flat_map(|spec| KINDS.map(|kind| (spec, kind))).enumerate() {
        let model = load(spec);
        let mut dice = Dice(case as u64);
        let blocks = [4, 10, 100][case / 3 % 3];
        let max_bytes = blocks * block_bytes(&model, kind);
        let mut store = PrefixStore::new(model.clone(), kind, max_bytes);
        let mut live: Vec<Bare> = Vec::new();
        for event in 0..32 {
            let what = format!("{}, {kind:?}, {blocks} blocks, event {event}", spec.arch);
            let some = (!live.is_empty()).then(|| dice.below(live.len()));
            let stored = store.bytes();
            match (dice.below(8), some) {
                (0..=2, _) | (_, None) => {
                    let prompt = prompt(&mut dice);
                    let mut sequence = Bare::stored(&mut store, &model, kind, &prompt);
                    used += usize::from(!sequence.tokens.is_empty());
                    let rest = &prompt[sequence.tokens.len()..];
                    let rows = sequence.feed(&model, rest);
                    let whole = Bare::new(&model, kind).feed(&model, &prompt);
                    assert_same(&whole[prompt.len() - rest.len()..], &rows, || what.clone());
                    if dice.once_in(2) {
                        store.keep(&prompt, &sequence.state);
                    }
                    live.push(sequence);
                }
                (3 | 4, Some(i)) => {
                    // A decoder's history is a token longer than what is cached.
                    let history = [&live[i].tokens[..], &[5]].concat();
                    store.keep(&history, &live[i].state);
                }
                (5, Some(i)) if live[i].tokens.len() < N_CTX - 300 => {
                    let n = 1 + dice.below(200);
                    live[i].feed(&model, &dice.tokens(n, 300));
                    live[i].state.pin();
                }
                (6, Some(i)) => {
                    // What follows is written where shared blocks are.
                    let n = dice.below(live[i].tokens.len());
                    live[i].back(n);
                    live[i].feed(&model, &dice.tokens(20, 300));
                    parted += 1;
                }
                (7, Some(_)) if dice.once_in(2) => {
                    // As a process that ends, and another that begins.
                    let path = dir.path().join("prefixes");
                    store.save(&path).unwrap();
                    store = PrefixStore::new(model.clone(), kind, max_bytes);
                    store.load(&path).unwrap();
                    assert_eq!(store.bytes(), stored, "{what}");
                }
                (_, Some(i)) if dice.once_in(4) => {
                    store.shrink(1 + dice.below(max_bytes));
                    live.remove(i);
                }
                (_, Some(i)) => drop(live.remove(i)),
            }
            forgotten += usize::from(store.bytes() < stored);
            assert!(store.bytes() <= max_bytes && store.bytes() <= model.kv_meter().bytes(), "{what}: P3");
            for sequence in &live {
                sequence.assert_fresh(&model, &what);
            }
            Bare::stored(&mut store, &model, kind, &prompt(&mut dice)).assert_fresh(&model, &what);
            live.drain(..live.len().saturating_sub(4));
        }
        live.clear();
        // Blocks are counted once, and the store holds no others.
        assert_eq!(model.kv_meter().bytes(), store.bytes(), "{}, {kind:?}", spec.arch);
        drop(store);
        assert_eq!((model.kv_meter().blocks(), model.kv_meter().bytes()), (0, 0), "{}, {kind:?}", spec.arch);
    }
    assert!(used > 60 && forgotten > 10 && parted > 30, "{used} used, {forgotten} forgotten, {parted} parted");
}

#[test]
fn the_longest_prefix_is_found_wherever_prompts_part() {
    let model = load(&Spec::of("llama", Format::Q8_0));
    let kind = KvKind::F16;
    let mut store = PrefixStore::new(model.clone(), kind, usize::MAX);
    let tokens = Dice(1).tokens(5 * CHUNK + 40, 300);
    assert!(store.longest(&tokens).is_none() && store.longest(&[]).is_none());
    let mut sequence = Bare::new(&model, kind);
    sequence.feed(&model, &tokens);
    store.keep(&tokens, &sequence.state);
    let blocks = model.kv_meter().blocks();
    // The last block is not whole, and stays the sequence's own.
    assert_eq!(store.bytes(), 5 * block_bytes(&model, kind));
    for n in 0..tokens.len() {
        assert_eq!(store.longest(&tokens[..n]).map_or(0, |state| state.len()), n.saturating_sub(1) / CHUNK * CHUNK);
        let mut other = tokens.clone();
        other[n] = (other[n] + 1) % 300;
        assert_eq!(store.longest(&other).map_or(0, |state| state.len()), (n / CHUNK).min(5) * CHUNK, "parted at {n}");
    }
    assert_eq!(model.kv_meter().blocks(), blocks, "P2: nothing was copied");
    // The same again, and a beginning of it, add nothing.
    store.keep(&tokens, &sequence.state);
    store.keep(&tokens[..2 * CHUNK], &sequence.state);
    assert_eq!((store.bytes(), model.kv_meter().blocks()), (5 * block_bytes(&model, kind), blocks));
    store.clear();
    assert!(store.bytes() == 0 && store.longest(&tokens).is_none());
    sequence.assert_fresh(&model, "after the store was cleared");
}

#[test]
fn a_windowed_prefix_is_given_where_the_window_is_still_stored_and_pins_store_it() {
    for window in [24, 150] {
        let model = load(&Spec { window, ..Spec::of("gemma3", Format::Q8_0) });
        let tokens = Dice(2).tokens(6 * CHUNK + 40, 300);
        let turn = 2 * CHUNK + 50;
        for pins in [false, true] {
            let mut sequence = Bare::new(&model, KvKind::Q8_0);
            sequence.feed(&model, &tokens[..turn]);
            if pins {
                sequence.state.pin();
            }
            sequence.feed(&model, &tokens[turn..]);
            let mut store = PrefixStore::new(model.clone(), KvKind::Q8_0, usize::MAX);
            store.keep(&tokens, &sequence.state);
            // The blocks that the stream still keeps, and those that it kept at the pin.
            let kept = |len: usize| len.saturating_sub(window + REWIND) / CHUNK..len / CHUNK;
            let holds = |block: usize| kept(tokens.len()).contains(&block) || pins && kept(turn).contains(&block);
            let sees = |n: usize| (n * CHUNK + 1).saturating_sub(window) / CHUNK..n;
            for n in 1..=6 {
                let expected = (1..=n).rev().find(|n| sees(*n).all(holds)).unwrap_or(0);
                let prompt = &tokens[..n * CHUNK + 1];
                let found = Bare::stored(&mut store, &model, KvKind::Q8_0, prompt);
                assert_eq!(found.tokens.len(), expected * CHUNK, "window {window}, pins: {pins}, {n} blocks");
                found.assert_fresh(&model, "from the store");
            }
            assert_eq!(store.depth(&tokens[..turn]), if pins { 2 } else { 0 });
            // A sequence that reads the beginning again brings what was missing.
            let mut again = Bare::new(&model, KvKind::Q8_0);
            again.feed(&model, &tokens[..turn]);
            store.keep(&again.tokens, &again.state);
            assert_eq!(store.depth(&tokens[..turn]), 2);
            assert_eq!(store.depth(&tokens), 6);
        }
    }
}

#[test]
fn what_was_not_used_for_the_longest_time_makes_way() {
    let model = load(&Spec::of("qwen3", Format::Q8_0));
    let kind = KvKind::F16;
    let block = block_bytes(&model, kind);
    let mut store = PrefixStore::new(model.clone(), kind, 6 * block);
    // Two blocks each, the first of which is common.
    let common = Dice(1).tokens(CHUNK, 300);
    let prompt = |i: u64| [common.clone(), Dice(i).tokens(CHUNK + 1, 300)].concat();
    let keep = |store: &mut PrefixStore, i: u64| {
        let mut sequence = Bare::new(&model, kind);
        sequence.feed(&model, &prompt(i));
        store.keep(&sequence.tokens, &sequence.state);
    };
    let depths = |store: &PrefixStore| -> Vec<usize> { (10..17).map(|i| store.depth(&prompt(i))).collect() };
    (10..15).for_each(|i| keep(&mut store, i));
    assert_eq!((depths(&store), store.bytes()), (vec![2, 2, 2, 2, 2, 1, 1], 6 * block));
    store.longest(&prompt(10));
    keep(&mut store, 15);
    assert_eq!((depths(&store), store.bytes()), (vec![2, 1, 2, 2, 2, 2, 1], 6 * block));
    // To ask for the depth is no use.
    store.depth(&prompt(12));
    keep(&mut store, 16);
    assert_eq!(depths(&store), [2, 1, 1, 2, 2, 2, 2]);
    assert!(store.shrink(block + 1));
    assert_eq!((depths(&store), store.bytes()), (vec![2, 1, 1, 1, 1, 2, 2], 4 * block));
    assert!(store.shrink(usize::MAX) && !store.shrink(1));
    assert_eq!((store.bytes(), model.kv_meter().blocks()), (0, 0));
}

/// The broken twin: what is given for these tokens was cached for others.
#[test]
fn a_prefix_of_other_tokens_is_noticed() {
    for spec in specs() {
        let model = load(&spec);
        for kind in KINDS {
            let tokens = Dice(3).tokens(2 * CHUNK + 1, 300);
            let mut other = tokens.clone();
            other[2 * CHUNK - 1] = (other[2 * CHUNK - 1] + 1) % 300;
            let mut sequence = Bare::new(&model, kind);
            sequence.feed(&model, &tokens);
            let mut store = PrefixStore::new(model.clone(), kind, usize::MAX);
            store.keep(&tokens, &sequence.state);
            Bare::stored(&mut store, &model, kind, &tokens).assert_fresh(&model, "its own tokens");
            store.clear();
            store.keep(&other, &sequence.state);
            let lying = Bare::stored(&mut store, &model, kind, &other);
            let noticed = catch_unwind(AssertUnwindSafe(|| lying.assert_fresh(&model, "lying")));
            assert!(noticed.is_err_and(|text| text.downcast_ref::<String>().unwrap().contains("lying: other bytes")));
            // The rows say so too.
            let (mut lying, mut fresh) = (lying, Bare::new(&model, kind));
            fresh.feed(&model, &other[..2 * CHUNK]);
            assert!(lying.feed(&model, &other[2 * CHUNK..]) != fresh.feed(&model, &other[2 * CHUNK..]));
        }
    }
}

#[test]
#[should_panic = "a state of the store's model and kind"]
fn a_state_of_another_kind_is_refused() {
    let model = load(&Spec::tiny());
    let state = State::new(&model, KvKind::F32).unwrap();
    PrefixStore::new(model, KvKind::F16, 1).keep(&[], &state);
}
