//! I4, I5 and I6 for every family, over contexts in which windows have moved and forgotten; what windowed layers keep is bounded by the window.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::batch::{assert_same, feed, feed_split};
use crate::cast::Role;
use crate::models::{Dice, FAMILIES, Made, Spec};
use crate::rewind::{assert_holds, fresh};
use crate::rig::{Rig, assert_same_run, request, warm};
use proptest::prelude::*;
use quoth_engine::Error;
use quoth_engine::cache::REWIND;
use quoth_engine::decode::MAX_DRAFT;
use quoth_engine::model::{MAX_ROWS, Model, Want};
use quoth_engine::sample::Sampling;
use quoth_engine::session::Session;
use quoth_kernels::attend::{CHUNK, KvKind};
use quoth_kernels::{Format, KernelSet};

const KINDS: [KvKind; 2] = [KvKind::F16, KvKind::Q8_0];
const WINDOW: usize = 24;
/// With this many tokens, a window has moved far enough to forget two chunks.
const FORGOTTEN: usize = WINDOW + REWIND + 2 * CHUNK;

#[test]
fn rows_of_every_family_are_the_same_alone_in_every_batch_and_split_on_any_threads() {
    for (i, family) in FAMILIES.into_iter().enumerate() {
        let format = [Format::Q8_0, Format::Q4_0, Format::Q4_K][i % 3];
        let made = Made::new(&Spec::of(family, format));
        let tokens = Dice(i as u64).tokens(FORGOTTEN + 11, 300);
        for kind in KINDS {
            let alone = feed_split(&made.load(KernelSet::best(), 1, 512), kind, &tokens, &[1]);
            // Every batch size and split on one thread; more threads cost more here than they compute, and get a few.
            let on_one: [&[usize]; 10] =
                [&[2], &[3], &[5], &[8], &[9], &[17], &[64], &[512], &[300, 1, 2], &[127, 2, 64, 1]];
            let on_many: [(usize, &[usize]); 4] = [(2, &[64]), (2, &[300, 9]), (3, &[127, 2, 200]), (4, &[17, 300])];
            let all = on_one.into_iter().map(|sizes| (1, sizes)).chain(on_many);
            let mut model = made.load(KernelSet::best(), 1, 512);
            for (threads, sizes) in all {
                if model.threads() != threads {
                    model = made.load(KernelSet::best(), threads, 512);
                }
                let rows = feed_split(&model, kind, &tokens, sizes);
                assert_same(&alone, &rows, || format!("{family}, {kind:?}, {threads} threads, {sizes:?}"));
            }
        }
    }
}

#[test]
fn families_differ_and_windows_matter_so_that_equality_says_something() {
    let tokens = Dice(1).tokens(60, 300);
    let rows = |spec: &Spec| feed_split(&Made::new(spec).load(KernelSet::best(), 1, 64), KvKind::F16, &tokens, &[60]);
    for family in ["gemma3", "gemma4", "gemma4moe"] {
        let spec = Spec::of(family, Format::Q8_0);
        let (narrow, wide) = (rows(&spec), rows(&Spec { window: WINDOW + 1, ..spec.clone() }));
        // The row at WINDOW is the first that sees one position more.
        assert!(narrow[..WINDOW] == wide[..WINDOW], "{family}");
        assert!((WINDOW..60).all(|row| narrow[row] != wide[row]), "{family}");
    }
}

/// A truncation that cannot be is refused and changes nothing.
fn assert_refused(session: &mut Session, n: usize, what: &str) {
    let before = session.len();
    assert!(matches!(session.truncate(n), Err(Error::Rewind { asked, .. }) if asked == n), "{what}");
    assert_eq!(session.len(), before, "{what}");
}

#[test]
fn every_length_that_a_window_promises_can_be_gone_back_to_and_on_from() {
    for family in FAMILIES {
        let made = Made::new(&Spec::of(family, Format::Q8_0));
        let model = made.load(KernelSet::best(), 1, 700);
        for (kind, top) in KINDS.into_iter().zip([FORGOTTEN + 1, FORGOTTEN + CHUNK - 1]) {
            let tokens = Dice(3).tokens(top, 300);
            let rows = feed_split(&model, kind, &tokens, &[512]);
            for back in (0..=REWIND).step_by(7).chain([1, 2, WINDOW - 1, WINDOW, WINDOW + 1, REWIND - 1, REWIND]) {
                let what = format!("{family}, {kind:?}, {back} back from {top}");
                let n = top - back;
                let mut session = fresh(&model, kind, &tokens);
                session.truncate(n).unwrap();
                // Other tokens, taken back, leave no trace; the right ones then give the rows that were there before.
                let other: Vec<u32> = tokens[n..].iter().map(|t| (t + 1) % 300).chain([7]).collect();
                feed(&mut session, &other);
                session.truncate(n).unwrap();
                if back % 3 == 0 {
                    assert_holds(&session, &model, kind, &tokens[..n], &what);
                }
                if back > 0 {
                    assert_same(&rows[n..], &feed(&mut session, &tokens[n..]), || what.clone());
                }
            }
            let mut session = fresh(&model, kind, &tokens);
            if Spec::of(family, Format::Q8_0).window > 0 {
                assert_refused(&mut session, 60, family);
                assert!(session.fork(60).is_err());
            }
            session.truncate(0).unwrap();
            assert_same(&rows, &feed(&mut session, &tokens), || format!("{family} anew"));
        }
    }
}

#[derive(Debug, Clone)]
enum Event {
    Append(usize),
    /// So many back.
    Back(usize),
    /// Rows of a verification, and how many of them are kept.
    Verify(usize, usize),
    Fork(usize),
    /// A token out of range behind so many good ones.
    BadToken(usize),
    /// The caller stops after the first or second pass of 1100 tokens, or panics there.
    Cancel(usize, bool),
    Reset,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1usize..300).prop_map(Event::Append),
        3 => (0usize..=REWIND + 40).prop_map(Event::Back),
        4 => (2usize..=MAX_DRAFT + 1, 1usize..66).prop_map(|(m, kept)| Event::Verify(m, kept.min(m))),
        1 => (0usize..=REWIND).prop_map(Event::Fork),
        1 => (1usize..600).prop_map(Event::BadToken),
        2 => (1usize..3, any::<bool>()).prop_map(|(passes, panics)| Event::Cancel(passes, panics)),
        1 => Just(Event::Reset),
    ]
}

/// A session under test, with what it must hold and the greatest length that windows have seen since they began.
struct Held {
    session: Session,
    tokens: Vec<u32>,
    top: usize,
}

impl Held {
    fn append(&mut self, tokens: Vec<u32>) {
        feed(&mut self.session, &tokens);
        self.tokens.extend(tokens);
        self.top = self.top.max(self.tokens.len());
    }

    fn back_to(&mut self, n: usize) {
        match self.session.truncate(n) {
            Ok(()) => {
                self.tokens.truncate(n);
                if n == 0 {
                    self.top = 0;
                }
            }
            Err(Error::Rewind { .. }) => assert!(n > 0 && n + REWIND < self.top, "{n} from {} is promised", self.top),
            Err(other) => panic!("{other}"),
        }
    }

    fn take(&mut self, event: &Event, model: &Arc<Model>, dice: &mut Dice) {
        let room = model.n_ctx() - self.tokens.len();
        let mut last = [0.0; 300];
        match event {
            Event::Append(n) => self.append(dice.tokens(*n.min(&room).max(&1), 300)),
            Event::Back(n) => self.back_to(self.tokens.len().saturating_sub(*n)),
            Event::Verify(m, kept) if *m <= room => {
                let n = self.tokens.len() + kept;
                self.append(dice.tokens(*m, 300));
                self.session.truncate(n).unwrap();
                self.tokens.truncate(n);
            }
            Event::Verify(..) => {}
            Event::Fork(back) => {
                let n = self.tokens.len().saturating_sub(*back);
                if n + REWIND >= self.top {
                    self.session = self.session.fork(n).unwrap();
                    self.tokens.truncate(n);
                }
            }
            Event::BadToken(n) => {
                let mut tokens = dice.tokens(*n.min(&room), 300);
                tokens.push(300);
                assert!(self.session.forward(&tokens, Want::Last, &mut last, &mut |_| true).is_err());
            }
            Event::Cancel(passes, panics) if room >= 1100 => {
                let tokens = dice.tokens(1100, 300);
                let stop = passes * MAX_ROWS;
                let mut watch = |done| {
                    assert!(done < stop || !panics, "on purpose");
                    done < stop
                };
                let session = AssertUnwindSafe(&mut self.session);
                let found = catch_unwind(move || { session }.forward(&tokens, Want::Last, &mut last, &mut watch));
                assert!(matches!((found, panics), (Ok(Err(Error::Cancelled)), false) | (Err(_), true)));
            }
            Event::Cancel(..) => {}
            Event::Reset => self.back_to(0),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_every_event_the_cache_of_a_windowed_model_is_a_fresh_one(
        events in prop::collection::vec(event(), 1..12),
        family in 0..4usize,
        window in prop_oneof![Just(1usize), Just(24), Just(127), Just(128), Just(129), Just(200)],
        kind in 0..2usize,
        threads in 1..3usize,
        seed in any::<u64>(),
    ) {
        let spec = Spec { window, n_ff: 32, ..Spec::of(["gemma3", "gemma4", "gemma4moe", "llama"][family], Format::Q8_0) };
        let model = Made::new(&spec).load(KernelSet::best(), threads, 2600);
        let kind = KINDS[kind];
        let mut dice = Dice(seed);
        let mut held = Held { session: Session::new(model.clone(), kind).unwrap(), tokens: Vec::new(), top: 0 };
        for event in &events {
            if held.tokens.len() < model.n_ctx() || !matches!(event, Event::Append(_)) {
                held.take(event, &model, &mut dice);
            }
            assert_holds(&held.session, &model, kind, &held.tokens, &format!("{event:?} of {events:?}"));
        }
    }
}

/// Most blocks of a window group: what a query sees, what can be gone back by, and one batch, rounded up to chunks at both ends.
fn most_blocks(window: usize, rows: usize) -> usize {
    (window + REWIND + rows).div_ceil(CHUNK) + 1
}

#[test]
fn memory_of_windowed_layers_is_bounded_by_the_window_and_a_verification_not_by_the_context() {
    for kind in KINDS {
        // Every layer of this one is windowed.
        let made = Made::new(&Spec { window: WINDOW, ..Spec::of("llama", Format::Q8_0) });
        let model = made.load(KernelSet::best(), 1, 16_000);
        let mut session = Session::new(model, kind).unwrap();
        feed(&mut session, &[1]);
        let block = session.cache().memory_bytes();
        assert!(block > 0);
        let mut most = 0;
        for round in 0..60 {
            let n = session.len() + 1 + round % 5;
            feed(&mut session, &Dice(round as u64).tokens(MAX_DRAFT + 1, 300));
            most = most.max(session.cache().memory_bytes());
            session.truncate(n).unwrap();
            feed(&mut session, &Dice(round as u64).tokens(60, 300));
            most = most.max(session.cache().memory_bytes());
        }
        assert!(session.len() > 3500);
        assert!(most <= block * most_blocks(WINDOW, MAX_DRAFT + 1), "{kind:?}: {} blocks", most / block);
        // A long prompt goes through in passes; afterwards it is as before.
        feed(&mut session, &Dice(1).tokens(10_000, 300));
        let long = session.cache().memory_bytes();
        assert!(long <= block * most_blocks(WINDOW, 0), "{kind:?}: {} blocks", long / block);
    }
}

#[test]
fn memory_of_a_gemma_grows_by_its_full_layers_alone() {
    for family in ["gemma3", "gemma4", "gemma4moe"] {
        let spec = Spec::of(family, Format::Q8_0);
        let model = Made::new(&spec).load(KernelSet::best(), 1, 4000);
        let mut session = Session::new(model, KvKind::F16).unwrap();
        let bytes = [1000, 1000, 1000].map(|n| {
            feed(&mut session, &Dice(2).tokens(n, 300));
            session.cache().memory_bytes()
        });
        // Keys and values of f16; layers that read another's have none.
        let full = (0..spec.n_layer).filter(|l| !spec.windowed(*l) && !spec.shares(*l));
        let position: usize = full.map(|l| 2 * 2 * spec.n_head_kv * spec.dim(l)).sum();
        assert!(position > 0);
        for pair in bytes.windows(2) {
            let grown = pair[1] - pair[0];
            // Whole chunks, with what padding they have.
            let expected = 1000 * position;
            assert!(grown >= expected * 7 / 8 && grown <= expected * 5 / 4, "{family}: {grown} for {expected}");
        }
    }
}

#[test]
fn streams_of_every_family_are_plain_ones_whatever_the_source_greedy_and_sampled() {
    let roles = [Role::Perfect, Role::Alternating, Role::Garbage, Role::Lying, Role::Cascade];
    for (i, family) in FAMILIES.into_iter().enumerate() {
        let spec = Spec { n_vocab: 97, embed_std: 3.0, ..Spec::of(family, Format::Q8_0) };
        for (j, sampling) in [Sampling::default(), warm(i as u64)].into_iter().enumerate() {
            let kind = KINDS[(i + j) % 2];
            let rig = Rig::new(&spec, KernelSet::best(), if i == 5 { 2 } else { 1 }, 700, kind, sampling);
            // Windows have moved, and move on while drafts are verified and taken back.
            let prompt: Vec<u32> = Dice(i as u64).tokens(FORGOTTEN - 30, 97);
            let n = 90;
            let mut plain = rig.plain();
            let expected = plain.run(&prompt, request(n));
            assert_eq!(expected.tokens.len(), n);
            let streams = [rig.stream(&prompt, n + 70)];
            for (k, role) in roles.into_iter().enumerate() {
                let max_draft = [64, 17, 5, 33, 8][k];
                let what = format!("{family}, {kind:?}, {:?}, {role:?}, drafts up to {max_draft}", rig.sampling);
                let mut other = rig.acted(role, &streams, max_draft);
                assert_same_run(&expected, &other.run(&prompt, request(n)), &what);
                other.assert_same_state(&plain, &what);
                other.assert_contract(&what);
                let stats = other.decoder.stats();
                assert!(matches!(role, Role::Garbage | Role::Cascade) || stats.accepted > 15, "{what}: {stats:?}");
                let never_wrong = matches!(role, Role::Perfect | Role::Lying | Role::Cascade);
                assert!(never_wrong || stats.accepted < stats.drafted, "{what}: {stats:?}");
            }
        }
    }
}

#[test]
fn a_prompt_that_goes_back_further_than_windows_reach_is_begun_anew_with_the_same_answer() {
    for family in FAMILIES {
        let spec = Spec { n_vocab: 97, ..Spec::of(family, Format::Q8_0) };
        let rig = Rig::new(&spec, KernelSet::best(), 1, 700, KvKind::F16, warm(3));
        let first = Dice(1).tokens(FORGOTTEN, 97);
        for shared in [30, FORGOTTEN - REWIND, FORGOTTEN - 1] {
            let second: Vec<u32> = first[..shared].iter().copied().chain(Dice(2).tokens(9, 97)).collect();
            let streams = [rig.stream(&second, 40)];
            let mut used = rig.acted(Role::Perfect, &streams, 8);
            used.run(&first, request(5));
            let run = used.run(&second, request(30));
            let mut plain = rig.plain();
            assert_same_run(&plain.run(&second, request(30)), &run, &format!("{family}, {shared} tokens shared"));
            used.assert_same_state(&plain, family);
            let kept = used.decoder.stats().cached_tokens as usize;
            let reachable = spec.window == 0 || shared + REWIND > FORGOTTEN + 5;
            assert!(kept == shared || (!reachable && kept == 0), "{family}: {kept} of {shared}");
        }
    }
}
