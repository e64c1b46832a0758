//! I5: a cache that was truncated, copied or met an error is, bit for bit, one that only ever saw the tokens that it holds; its next row says so too.

use std::sync::Arc;

use crate::batch::{Bits, KINDS, feed};
use crate::models::{Dice, Made, Spec};
use proptest::prelude::*;
use quoth_engine::Error;
use quoth_engine::model::{Model, Want};
use quoth_engine::session::Session;
use quoth_kernels::attend::{CHUNK, KvKind};
use quoth_kernels::{Format, KernelSet};

pub(crate) fn fresh(model: &Arc<Model>, kind: KvKind, tokens: &[u32]) -> Session {
    let mut session = Session::new(model.clone(), kind).unwrap();
    if !tokens.is_empty() {
        feed(&mut session, tokens);
    }
    session
}

/// The session holds exactly these tokens, as a fresh one would; the next row is computed on a copy.
pub(crate) fn assert_holds(session: &Session, model: &Arc<Model>, kind: KvKind, tokens: &[u32], what: &str) {
    assert_eq!(session.len(), tokens.len(), "{what}");
    let mut twin = fresh(model, kind, tokens);
    assert!(session.cache().same_prefix(twin.cache(), tokens.len()), "{what}: other bytes");
    if session.len() < session.cache().n_ctx() {
        let mut copy = session.fork(session.len()).unwrap();
        assert!(feed(&mut copy, &[9]) == feed(&mut twin, &[9]), "{what}: another next row");
    }
}

#[derive(Debug, Clone)]
enum Event {
    Append(usize),
    Truncate(usize),
    /// Goes on with a copy of so many tokens.
    Fork(usize),
    /// A token out of range at the end of so many good ones.
    BadToken(usize),
    /// More than fits.
    Overflow,
    /// The caller stops after the first pass of 600 tokens.
    Cancel,
    Empty,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1usize..150).prop_map(Event::Append),
        3 => (0usize..400).prop_map(Event::Truncate),
        1 => (0usize..400).prop_map(Event::Fork),
        1 => (1usize..20).prop_map(Event::BadToken),
        1 => Just(Event::Overflow),
        1 => Just(Event::Cancel),
        1 => Just(Event::Empty),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_every_event_the_cache_is_a_fresh_one(
        events in prop::collection::vec(event(), 1..14),
        kind in 0..3usize,
        set in 0..8usize,
        threads in 1..4usize,
        seed in any::<u64>(),
    ) {
        let sets = KernelSet::available();
        let made = Made::new(&Spec { n_head: 4, n_head_kv: 2, ..Spec::of("qwen3", Format::Q8_0) });
        let model = made.load(sets[set % sets.len()], threads, 1000);
        let kind = KINDS[kind];
        let mut dice = Dice(seed);
        let mut session = Session::new(model.clone(), kind).unwrap();
        let mut held: Vec<u32> = Vec::new();
        for event in &events {
            let (all, last) = (|n: usize| vec![0.0; n * 300], &mut [0.0; 300][..]);
            match event {
                Event::Append(n) if held.len() + n <= 1000 => {
                    let tokens = dice.tokens(*n, 300);
                    feed(&mut session, &tokens);
                    held.extend(tokens);
                }
                Event::Append(_) => {}
                Event::Truncate(n) => {
                    session.truncate(*n).unwrap();
                    held.truncate(*n);
                }
                Event::Fork(n) => {
                    session = session.fork(*n).unwrap();
                    held.truncate(*n);
                }
                Event::BadToken(n) => {
                    let mut tokens = dice.tokens(*n, 300);
                    tokens.push(300);
                    let found = session.forward(&tokens, Want::All, &mut all(n + 1), &mut |_| true);
                    let pos = held.len() + n;
                    assert!(
                        matches!(found, Err(Error::TokenRange { token: 300, pos: p, last: 299 }) if p == pos) || held.len() + n + 1 > 1000
                    );
                }
                Event::Overflow => {
                    let asked = 1001 - held.len();
                    let found = session.forward(&dice.tokens(asked, 300), Want::Last, last, &mut |_| true);
                    let expected = (held.len(), asked, 1000);
                    assert!(matches!(found, Err(Error::ContextFull { cached, asked, n_ctx }) if (cached, asked, n_ctx) == expected));
                }
                Event::Cancel if held.len() <= 400 => {
                    let found = session.forward(&dice.tokens(600, 300), Want::Last, last, &mut |done| done != 512);
                    assert!(matches!(found, Err(Error::Cancelled)));
                }
                Event::Cancel => {}
                Event::Empty => {
                    assert!(matches!(session.forward(&[], Want::All, &mut [], &mut |_| true), Err(Error::EmptyPrompt)));
                }
            }
            assert_holds(&session, &model, kind, &held, &format!("{event:?} of {events:?}"));
        }
    }
}

#[test]
fn every_length_around_a_chunk_can_be_gone_back_to() {
    let made = Made::new(&Spec::of("llama", Format::Q4_0));
    let model = made.load(KernelSet::best(), 2, 3 * CHUNK);
    let tokens = Dice(2).tokens(2 * CHUNK + 20, 300);
    for kind in KINDS {
        let mut whole = fresh(&model, kind, &tokens);
        for n in (0..4).chain(CHUNK - 3..CHUNK + 4).chain(2 * CHUNK - 1..2 * CHUNK + 2).rev() {
            whole.truncate(n).unwrap();
            assert_holds(&whole, &model, kind, &tokens[..n], &format!("{kind:?} to {n}"));
            // What is appended now, and taken back, leaves no trace either.
            let other: Vec<u32> = tokens[n..].iter().map(|t| (t + 1) % 300).collect();
            feed(&mut whole, &other[..30.min(other.len())]);
            whole.truncate(n).unwrap();
            assert_holds(&whole, &model, kind, &tokens[..n], &format!("{kind:?} to {n} again"));
            feed(&mut whole, &tokens[n..]);
        }
    }
}

#[test]
fn same_prefix_sees_one_changed_token() {
    let made = Made::new(&Spec::of("llama", Format::Q4_0));
    let model = made.load(KernelSet::best(), 1, 2 * CHUNK);
    let tokens = Dice(2).tokens(CHUNK + 9, 300);
    for kind in KINDS {
        let a = fresh(&model, kind, &tokens);
        for at in [0, 15, 16, CHUNK - 1, CHUNK, CHUNK + 8] {
            let mut other = tokens.clone();
            other[at] = (other[at] + 1) % 300;
            let b = fresh(&model, kind, &other);
            assert!(a.cache().same_prefix(b.cache(), at), "{kind:?}: equal before {at}");
            assert!(!a.cache().same_prefix(b.cache(), at + 1), "{kind:?}: other from {at} on");
        }
        assert!(!a.cache().same_prefix(a.cache(), tokens.len() + 1), "more than either holds");
    }
}

#[test]
fn rows_of_a_fork_and_of_its_origin_go_separate_ways() {
    let made = Made::new(&Spec::of("qwen2", Format::Q8_0));
    let model = made.load(KernelSet::best(), 2, 2 * CHUNK);
    let tokens = Dice(7).tokens(CHUNK + 5, 300);
    for kind in KINDS {
        let mut origin = fresh(&model, kind, &tokens);
        let mut fork = origin.fork(CHUNK - 1).unwrap();
        let (left, right) = (Dice(8).tokens(20, 300), Dice(9).tokens(20, 300));
        let rows: (Vec<Bits>, Vec<Bits>) = (feed(&mut origin, &left), feed(&mut fork, &right));
        let mut twin = fresh(&model, kind, &tokens);
        assert!(feed(&mut twin, &left) == rows.0);
        let mut twin = fresh(&model, kind, &tokens[..CHUNK - 1]);
        assert!(feed(&mut twin, &right) == rows.1);
    }
}
