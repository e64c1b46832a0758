//! I4: row i of an m-row forward equals the one-row forward at that position, bit for bit, whatever the split, the threads, the instruction set, and what
//! else is in the batch.

use std::sync::Arc;

use crate::models::{Dice, FAMILIES, Made, Spec};
use proptest::prelude::*;
use quoth_engine::model::{Model, Output, Scratch, Span, Taps, Want};
use quoth_engine::session::Session;
use quoth_engine::state::State;
use quoth_kernels::attend::{CHUNK, KvKind};
use quoth_kernels::top::Best;
use quoth_kernels::{Format, KernelSet};

pub(crate) const KINDS: [KvKind; 3] = [KvKind::F32, KvKind::F16, KvKind::Q8_0];

/// A row by its bits.
pub(crate) type Bits = Vec<u32>;

pub(crate) fn bits(row: &[f32]) -> Bits {
    row.iter().map(|x| x.to_bits()).collect()
}

/// One forward of all states with their new tokens; the wanted rows one span after another.
fn forward(
    model: &Model,
    states: &mut [State],
    spans: &[(Vec<u32>, Vec<u32>)],
    want: Want,
    scratch: &mut Scratch,
    mut rows: &mut [f32],
) {
    let n_vocab = model.config().n_vocab;
    let mut together: Vec<Span<'_>> = states
        .iter_mut()
        .zip(spans)
        .map(|(state, (_, tokens))| {
            let own = rows.split_off_mut(..want.rows(tokens.len()) * n_vocab).unwrap();
            Span { state, tokens, rows: want, output: Output::Logits(own), taps: Taps::none() }
        })
        .collect();
    model.forward(&mut together, scratch).unwrap();
}

/// Appends tokens and gives all their rows.
pub(crate) fn feed(session: &mut Session, tokens: &[u32]) -> Vec<Bits> {
    let n_vocab = session.model().config().n_vocab;
    let mut logits = vec![0.0; tokens.len() * n_vocab];
    session.forward(tokens, Want::All, &mut logits, &mut |_| true).unwrap();
    logits.chunks_exact(n_vocab).map(bits).collect()
}

/// Rows of tokens fed in parts of these sizes, repeated.
pub(crate) fn feed_split(model: &Arc<Model>, kind: KvKind, tokens: &[u32], sizes: &[usize]) -> Vec<Bits> {
    let mut session = Session::new(model.clone(), kind).unwrap();
    let (mut rows, mut done) = (Vec::new(), 0);
    for size in sizes.iter().cycle() {
        let part = &tokens[done..tokens.len().min(done + size)];
        rows.extend(feed(&mut session, part));
        done += part.len();
        if done == tokens.len() {
            break;
        }
    }
    rows
}

/// Names the first row that differs.
pub(crate) fn assert_same(expected: &[Bits], found: &[Bits], what: impl FnOnce() -> String) {
    assert_eq!(expected.len(), found.len());
    if let Some(row) = (0..expected.len()).find(|i| expected[*i] != found[*i]) {
        let column = (0..expected[row].len()).find(|c| expected[row][*c] != found[row][*c]).unwrap();
        panic!("row {row}, column {column} differs: {}", what());
    }
}

#[test]
fn rows_are_the_same_alone_and_in_every_batch_for_every_format_and_set() {
    for (i, format) in Format::ALL.into_iter().enumerate() {
        let made = Made::new(&Spec::of(FAMILIES[i % 7], format));
        let tokens = Dice(i as u64).tokens(70, 300);
        let alone: Vec<_> =
            KINDS.iter().map(|kind| feed_split(&made.load(KernelSet::scalar(), 1, 80), *kind, &tokens, &[1])).collect();
        for (j, set) in KernelSet::available().into_iter().enumerate() {
            let model = made.load(set, 1 + (i + j) % 2, 80);
            for (n, m) in [1, 2, 3, 5, 8, 9, 17, 64].into_iter().enumerate() {
                // Each batch size with one kind, each kind with all sizes over the formats.
                let kind = (i + j + n) % 3;
                let rows = feed_split(&model, KINDS[kind], &tokens, &[m]);
                assert_same(&alone[kind], &rows, || format!("{format:?}, {set:?}, {:?}, m = {m}", KINDS[kind]));
            }
        }
    }
}

#[test]
fn rows_of_one_model_are_the_same_for_all_kinds_sets_and_threads() {
    let made = Made::new(&Spec { n_head: 6, n_head_kv: 2, ..Spec::of("qwen3", Format::Q4_0) });
    let tokens = Dice(3).tokens(CHUNK + 22, 300);
    for kind in KINDS {
        let alone = feed_split(&made.load(KernelSet::scalar(), 1, 160), kind, &tokens, &[1]);
        for set in KernelSet::available() {
            for threads in 1..=4 {
                let model = made.load(set, threads, 160);
                // More threads than cores are slow, so they get fewer passes.
                let sizes = if threads > 2 { &[&[31, 9, 1][..], &[150]][..] } else { &[&[1][..], &[7, 30, 1], &[150]] };
                for sizes in sizes {
                    let rows = feed_split(&model, kind, &tokens, sizes);
                    assert_same(&alone, &rows, || format!("{kind:?}, {set:?}, {threads} threads, {sizes:?}"));
                }
            }
        }
    }
}

#[test]
fn the_kinds_of_cache_and_the_formats_differ_so_equality_says_something() {
    let tokens = Dice(3).tokens(20, 300);
    let made = Made::new(&Spec::of("llama", Format::Q8_0));
    let model = made.load(KernelSet::best(), 1, 32);
    let rows = KINDS.map(|kind| feed_split(&model, kind, &tokens, &[20]));
    assert!(rows[0] != rows[1] && rows[1] != rows[2] && rows[0] != rows[2]);
}

#[test]
fn long_contexts_give_the_same_rows_for_any_threads_and_any_way_of_sharing_out_attention() {
    let made = Made::new(&Spec { n_head: 4, n_head_kv: 2, ..Spec::of("llama", Format::Q8_0) });
    let tokens = Dice(8).tokens(5 * CHUNK + 60, 300);
    for kind in KINDS {
        // One thread never splits a tile by chunks; one row at a time over five chunks is what several threads do split.
        let alone = feed_split(&made.load(KernelSet::best(), 1, 704), kind, &tokens, &[1]);
        for threads in [1, 2, 3, 4, 7] {
            let model = made.load(KernelSet::best(), threads, 704);
            // Batches of 64 rows and of 512 have enough tiles to go whole; five rows late in the context do not.
            for sizes in [&[64][..], &[512], &[127, 127, 127, 1, 2], &[5 * CHUNK, 5, 1, 1, 9]] {
                let rows = feed_split(&model, kind, &tokens, sizes);
                assert_same(&alone, &rows, || format!("{kind:?}, {threads} threads, {sizes:?}"));
            }
        }
    }
}

#[test]
fn spans_in_one_forward_are_what_each_is_alone() {
    let made = Made::new(&Spec { n_head: 4, n_head_kv: 1, ..Spec::of("qwen2", Format::Q5_1) });
    let mut dice = Dice(4);
    // What is cached before, and what the shared forward adds.
    let spans: Vec<(Vec<u32>, Vec<u32>)> = [(0, 3), (200, 1), (CHUNK, 17), (5, 40), (CHUNK - 1, 2)]
        .map(|(before, new)| (dice.tokens(before, 300), dice.tokens(new, 300)))
        .to_vec();
    for set in KernelSet::available() {
        for (kind, threads) in KINDS.into_iter().zip([1, 2, 3]) {
            let model = made.load(set, threads, 256);
            let mut sessions: Vec<Session> = Vec::new();
            let mut alone: Vec<Bits> = Vec::new();
            let mut states: Vec<State> = Vec::new();
            for (before, new) in &spans {
                let mut session = Session::new(model.clone(), kind).unwrap();
                if !before.is_empty() {
                    feed(&mut session, before);
                }
                states.push(session.state().fork(before.len()).unwrap());
                alone.extend(feed(&mut session, new));
                sessions.push(session);
            }
            let mut scratch = Scratch::default();
            let mut rows = vec![0.0; alone.len() * 300];
            forward(&model, &mut states, &spans, Want::All, &mut scratch, &mut rows);
            let rows: Vec<Bits> = rows.chunks_exact(300).map(bits).collect();
            assert_same(&alone, &rows, || format!("{set:?}, {kind:?}, {threads} threads"));
            for ((state, session), (before, new)) in states.iter().zip(&sessions).zip(&spans) {
                let cache = state.kv();
                assert!(cache.len() == before.len() + new.len() && cache.same_prefix(session.cache(), cache.len()));
            }
            // The last rows alone, in the same order.
            let mut again: Vec<State> =
                states.iter().zip(&spans).map(|(state, (before, _))| state.fork(before.len()).unwrap()).collect();
            let mut last = vec![0.0; spans.len() * 300];
            forward(&model, &mut again, &spans, Want::Last, &mut scratch, &mut last);
            let ends = spans.iter().scan(0, |end, (_, new)| {
                *end += new.len();
                Some(*end - 1)
            });
            for (row, end) in last.chunks_exact(300).zip(ends) {
                assert!(bits(row) == alone[end]);
            }
        }
    }
}

#[test]
fn a_row_that_is_not_a_number_touches_no_other_row() {
    let poison = 42;
    let made = Made::new(&Spec { poisoned: vec![poison], ..Spec::of("llama", Format::Q4_0) });
    let sound = Dice(6).tokens(40, 300).into_iter().map(|t| if t == poison { 1 } else { t }).collect::<Vec<_>>();
    let mut tokens = sound.clone();
    tokens[21] = poison;
    for set in KernelSet::available() {
        for kind in KINDS {
            let model = made.load(set, 2, 64);
            let clean = feed_split(&model, kind, &sound, &[40]);
            let mut session = Session::new(model, kind).unwrap();
            let rows = feed(&mut session, &tokens);
            // Rows before it are in the same forward, and their keys in the same panels.
            assert_same(&clean[..21], &rows[..21], || format!("{set:?}, {kind:?}"));
            assert!(rows[21..].iter().all(|row| row.iter().any(|x| f32::from_bits(*x).is_nan())));
            // Truncated, it is as if it had never been.
            session.truncate(21).unwrap();
            assert_same(&clean[21..], &feed(&mut session, &sound[21..]), || format!("{set:?}, {kind:?} after it"));
        }
    }
}

#[derive(Debug, Clone)]
struct Case {
    arch: usize,
    format: usize,
    set: usize,
    kind: usize,
    threads: usize,
    heads: (usize, usize),
    n: usize,
    sizes: Vec<usize>,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let heads = prop_oneof![Just((1, 1)), Just((2, 1)), Just((3, 3)), Just((6, 2)), Just((12, 1))];
    let sizes = prop::collection::vec(1usize..40, 1..6);
    (0..7usize, 0..9usize, 0..8usize, 0..3usize, 1..5usize, heads, 1..320usize, sizes, any::<u64>()).prop_map(
        |(arch, format, set, kind, threads, heads, n, sizes, seed)| Case {
            arch,
            format,
            set,
            kind,
            threads,
            heads,
            n,
            sizes,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_by_any_threads_and_set_gives_the_rows_of_one_pass(case in case()) {
        let format = Format::ALL[case.format];
        let spec = Spec { n_head: case.heads.0, n_head_kv: case.heads.1, seed: case.seed, ..Spec::of(FAMILIES[case.arch], format) };
        let made = Made::new(&spec);
        let tokens = Dice(case.seed).tokens(case.n, spec.n_vocab);
        let sets = KernelSet::available();
        let kind = KINDS[case.kind];
        let whole = feed_split(&made.load(KernelSet::best(), 1, 320), kind, &tokens, &[case.n]);
        let split = feed_split(&made.load(sets[case.set % sets.len()], case.threads, 320), kind, &tokens, &case.sizes);
        assert_same(&whole, &split, || format!("{case:?}"));
    }
}

#[test]
fn the_greatest_of_a_row_are_those_of_its_logits_whether_or_not_the_row_is_written() {
    for (i, format) in [Format::Q6_K, Format::Q4_0, Format::F16].into_iter().enumerate() {
        let made = Made::new(&Spec::of(FAMILIES[i], format));
        let tokens = Dice(i as u64).tokens(23, 300);
        for set in KernelSet::available() {
            for threads in [1, 2, 3, 7] {
                let model = made.load(set, threads, 64);
                let n_vocab = model.config().n_vocab;
                let mut state = State::new(&model, KvKind::F16).unwrap();
                let mut scratch = Scratch::default();
                let mut logits = vec![0.0; tokens.len() * n_vocab];
                let output = Output::Logits(&mut logits);
                let taps = Taps::none();
                let mut span = [Span { state: &mut state, tokens: &tokens, rows: Want::All, output, taps }];
                model.forward(&mut span, &mut scratch).unwrap();
                state.truncate(0).unwrap();
                let mut best = vec![Best::new(5); tokens.len()];
                let output = Output::Best(&mut best);
                let taps = Taps::none();
                let mut span = [Span { state: &mut state, tokens: &tokens, rows: Want::All, output, taps }];
                model.forward(&mut span, &mut scratch).unwrap();
                for (row, best) in logits.chunks_exact(n_vocab).zip(&best) {
                    let mut ids: Vec<u32> = (0..n_vocab as u32).collect();
                    ids.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
                    assert_eq!(best.ids().collect::<Vec<_>>(), ids[..5], "{set:?} {format:?} {threads} threads");
                }
            }
        }
    }
}
