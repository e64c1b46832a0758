//! Obligation 6: whatever ends a request inside a draft (a stop token, a stop text, the budget, the context), text, reason, draws and the next turn are plain.

use std::sync::Arc;

use proptest::prelude::*;
use quoth_engine::decode::{Finish, Request};
use quoth_engine::sample::Sampling;
use quoth_engine::vocab::{StopSet, Vocab};
use quoth_kernels::attend::KvKind;
use quoth_kernels::{Format, KernelSet};

use crate::cast::{ROLES, Role};
use crate::models::{EOS, EOT, Spec};
use crate::rig::{Rig, Run, Watched, assert_same_run, request, warm};

const PROMPT: [u32; 6] = [25, 26, 27, 25, 26, 27];

/// A request in a plain and another decoder, and a turn after it: everything is equal. The plain run.
fn assert_same_end(rig: &Rig, other: &mut Watched, wanted: &Request, what: &str) -> Run {
    let mut plain = rig.plain();
    let expected = plain.run(&PROMPT, wanted.clone());
    let run = other.run(&PROMPT, wanted.clone());
    assert_same_run(&expected, &run, what);
    other.assert_same_state(&plain, what);
    other.assert_contract(what);
    // Steps after the end are empty and say the same.
    let after = other.decoder.step().unwrap();
    assert!(after.tokens.is_empty() && after.text.is_empty() && after.finish == expected.finish, "{what}");
    let prompt: Vec<u32> = plain.decoder.history().iter().copied().chain([33]).collect();
    if prompt.len() < rig.model.n_ctx() {
        assert_same_run(
            &plain.run(&prompt, request(5)),
            &other.run(&prompt, request(5)),
            &format!("{what}: the next turn"),
        );
        other.assert_same_state(&plain, &format!("{what}: the next turn"));
        other.assert_contract(what);
    }
    expected
}

fn with_texts(n: usize, texts: &[Vec<u8>]) -> Request {
    Request { stops: Arc::new(StopSet::new(texts).unwrap()), ..request(n) }
}

/// The bytes that tokens show.
fn shown(vocab: &Vocab, tokens: &[u32]) -> Vec<u8> {
    let visible =
        |t: &u32| if vocab.kind(*t).is_some_and(|k| k.is_hidden()) { vec![] } else { vocab.token_bytes(*t).to_vec() };
    tokens.iter().flat_map(visible).collect()
}

#[test]
fn a_stop_token_anywhere_in_the_stream_ends_it_as_plain() {
    for temperature in [0.0, 0.8] {
        let rig = Rig::tiny(128, Sampling { temperature, ..warm(3) }).blindly();
        let stream = rig.stream(&PROMPT, 80);
        let answer = &stream[PROMPT.len()..];
        for role in [Role::Perfect, Role::Alternating, Role::Cascade] {
            for i in 0..24 {
                let first = answer.iter().position(|t| *t == answer[i]).unwrap();
                for max_draft in [1, 6, 64] {
                    let what = format!("{role:?}, drafts up to {max_draft}, stop at {first}");
                    let mut other = rig.acted(role, std::slice::from_ref(&stream), max_draft);
                    let wanted = Request { stop_ids: vec![answer[i]], ..request(50) };
                    let run = assert_same_end(&rig, &mut other, &wanted, &what);
                    assert_eq!(run.finish, Some(Finish::StopId(answer[i])), "{what}");
                    assert_eq!((run.tokens.as_slice(), run.committed), (&answer[..first], first as u64 + 1), "{what}");
                    assert_eq!(run.draws, if temperature > 0.0 { run.committed } else { 0 }, "{what}");
                    assert_eq!(run.history.len(), PROMPT.len() + first, "{what}: the stop is not part of the history");
                }
            }
        }
    }
}

#[test]
fn the_models_own_ends_of_generation_end_it_as_plain() {
    let mut ends = [0, 0, 0];
    for seed in 0..40 {
        // Made probable enough to come up in about every second run.
        let rig = Rig::tiny(128, Sampling { logit_bias: vec![(EOS, 3.0), (EOT, 3.0)], ..warm(seed) });
        let stream = rig.stream(&PROMPT, 80);
        for stop_at_eog in [true, false] {
            let mut other = rig.acted(Role::Perfect, std::slice::from_ref(&stream), 16);
            let wanted = Request { stop_at_eog, ..request(40) };
            let run = assert_same_end(&rig, &mut other, &wanted, &format!("seed {seed}"));
            match run.finish {
                Some(Finish::StopId(EOS)) => ends[0] += 1,
                Some(Finish::StopId(EOT)) => ends[1] += 1,
                other => assert!(other == Some(Finish::Length)),
            }
            assert!(stop_at_eog || run.finish == Some(Finish::Length));
            ends[2] += usize::from(!stop_at_eog && run.tokens.contains(&EOS) && !run.text.contains("endoftext"));
        }
    }
    assert!(ends.iter().all(|n| *n > 2), "{ends:?}");
}

#[test]
fn a_stop_text_ends_it_at_the_token_that_completes_it_wherever_tokens_and_drafts_part_it() {
    let (mut spanning, mut inside) = (0, 0);
    for seed in 0..12 {
        let rig = Rig::tiny(128, Sampling { temperature: if seed % 3 == 0 { 0.0 } else { 0.8 }, ..warm(seed) });
        let stream = rig.stream(&PROMPT, 80);
        let answer = &stream[PROMPT.len()..];
        for i in 1..20 {
            // From the last byte of one token over two more, or over the next alone.
            let before = shown(&rig.vocab, &answer[..i]).len();
            let to = shown(&rig.vocab, &answer[..i + 1 + i % 2]).len();
            let all = shown(&rig.vocab, answer);
            let stop = all[before.saturating_sub(1)..to].to_vec();
            if stop.is_empty() {
                continue;
            }
            // Naively: the first place where it stands, and the token that brings its last byte.
            let at = all.windows(stop.len()).position(|w| w == stop).unwrap();
            let completes = (1..=80).find(|n| shown(&rig.vocab, &answer[..*n]).len() >= at + stop.len()).unwrap();
            for (role, max_draft) in
                [(Role::Perfect, 16), (Role::Perfect, 3), (Role::Alternating, 8), (Role::Cascade, 16)]
            {
                let what = format!("seed {seed}, stop {stop:?} at token {completes}, {role:?}");
                let mut other = rig.acted(role, std::slice::from_ref(&stream), max_draft);
                let wanted = with_texts(60, &[b"never".to_vec(), stop.clone()]);
                let run = assert_same_end(&rig, &mut other, &wanted, &what);
                assert_eq!(run.finish, Some(Finish::StopText(1)), "{what}");
                assert_eq!(run.tokens, answer[..completes - 1], "{what}");
                let bytes_before = &all[..at];
                assert_eq!(run.text, String::from_utf8_lossy(bytes_before), "{what}");
                spanning += usize::from(at < shown(&rig.vocab, &answer[..completes - 1]).len());
                let steps = run_steps(&rig, &stream, &wanted, role, max_draft);
                inside += usize::from(steps);
            }
        }
    }
    assert!(
        spanning > 200 && inside > 50,
        "stops spanned tokens {spanning} times, and cut drafts short {inside} times"
    );
}

/// Whether the last step of a run left drafted tokens unverified.
fn run_steps(rig: &Rig, stream: &[u32], wanted: &Request, role: Role, max_draft: usize) -> bool {
    let mut other = rig.acted(role, &[stream.to_vec()], max_draft);
    let mut step = other.begin(&PROMPT, wanted.clone(), &mut |_, _| true).unwrap();
    while step.finish.is_none() {
        step = other.decoder.step().unwrap();
    }
    step.drafted > step.tokens.len() + 1
}

#[test]
fn every_budget_ends_it_as_plain() {
    let rig = Rig::tiny(128, warm(6));
    let stream = rig.stream(&PROMPT, 100);
    for role in ROLES {
        for n in (1..20).chain([33, 64]) {
            let mut other = rig.acted(role, std::slice::from_ref(&stream), 16);
            let run = assert_same_end(&rig, &mut other, &request(n), &format!("{role:?}, {n} tokens"));
            assert_eq!((run.finish, run.tokens.len(), run.committed), (Some(Finish::Length), n, n as u64));
        }
    }
}

#[test]
fn the_end_of_the_context_ends_it_as_plain() {
    let roomy = Rig::tiny(128, warm(6));
    let stream = roomy.stream(&PROMPT, 80);
    for room in 0..24 {
        let n_ctx = PROMPT.len() + room;
        let rig = Rig::tiny(n_ctx, warm(6));
        for role in ROLES {
            for max_draft in [2, 16, 64] {
                let what = format!("{role:?}, room for {room}, drafts up to {max_draft}");
                let mut other = rig.acted(role, std::slice::from_ref(&stream), max_draft);
                let run = assert_same_end(&rig, &mut other, &request(100), &what);
                // The last token is committed and needs no room.
                assert_eq!((run.finish, run.tokens.len()), (Some(Finish::Context), room + 1), "{what}");
                assert_eq!(
                    run.tokens,
                    stream[PROMPT.len()..][..room + 1],
                    "{what}: and it is the text of a larger context"
                );
                assert_eq!(other.decoder.cache().len(), n_ctx, "{what}: the context is used to its end");
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Turn {
    /// Tokens kept of what was said, from the end of it, and tokens added.
    drop: usize,
    add: Vec<u32>,
    max_tokens: usize,
    stop_ids: Vec<u32>,
    /// Two neighbouring tokens' bytes, less some at both ends.
    stop_pair: Option<(u32, u32, bool)>,
    eog: bool,
    logprobs: Option<usize>,
    leave_after: usize,
    seed: Option<u64>,
}

fn turn() -> impl Strategy<Value = Turn> {
    let add = prop::collection::vec(0..97u32, 1..20);
    let stop_ids = prop::collection::vec(0..97u32, 0..3);
    let pair = prop::option::of((2..97u32, 2..97u32, any::<bool>()));
    let leave = prop_oneof![3 => Just(usize::MAX), 1 => 0..6usize];
    (
        0..30usize,
        add,
        1..40usize,
        stop_ids,
        pair,
        any::<bool>(),
        prop::option::of(0..6usize),
        leave,
        prop::option::of(0..9u64),
    )
        .prop_map(|(drop, add, max_tokens, stop_ids, stop_pair, eog, logprobs, leave_after, seed)| Turn {
            drop,
            add,
            max_tokens,
            stop_ids,
            stop_pair,
            eog,
            logprobs,
            leave_after,
            seed,
        })
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let temperature = prop_oneof![Just(0.0f32), 0.3..1.5f32];
    let top_k = prop_oneof![Just(0usize), 1..50usize];
    let share = || prop_oneof![Just(1.0f32), 0.3..1.0f32];
    let penalties = prop_oneof![Just((1.0f32, 0.0f32, 0.0f32)), (0.8..1.5f32, -1.0..2.0f32, 0.0..4.0f32)];
    let bias = prop::collection::btree_map(0..97u32, -4.0..4.0f32, 0..4);
    (temperature, top_k, share(), share(), penalties, 0..40usize, any::<u64>(), bias).prop_map(
        |(temperature, top_k, top_p, min_p, penalties, repeat_last_n, seed, bias)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p: 1.0 - min_p,
            repeat_penalty: penalties.0,
            frequency_penalty: penalties.1,
            presence_penalty: penalties.2,
            repeat_last_n,
            seed,
            logit_bias: bias.into_iter().collect(),
            banned: vec![],
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn conversations_of_any_turns_are_plain_ones_and_each_turn_is_a_fresh_one(
        turns in prop::collection::vec(turn(), 1..5),
        sampling in sampling(),
        roles in prop::collection::vec(0..ROLES.len(), 3),
        max_draft in 1..65usize,
        n_ctx in 40..150usize,
        kind in 0..3usize,
        blind: bool,
    ) {
        let kind = [KvKind::F16, KvKind::Q8_0, KvKind::F32][kind];
        let rig = Rig::new(&Spec { embed_std: 3.0, n_vocab: 97, ..Spec::of("qwen2", Format::Q4_0) }, KernelSet::best(), 1, n_ctx, kind, sampling);
        let mut rig = Rig { blind, ..rig };
        let mut plain = rig.plain();
        let mut streams = Vec::new();
        // The prompts, as plain decoding makes them; then perfect sources know them all.
        let mut script = Vec::new();
        for turn in &turns {
            let said = plain.decoder.history();
            let mut prompt: Vec<u32> = said[..said.len().saturating_sub(turn.drop)].to_vec();
            prompt.extend(&turn.add);
            if prompt.len() > n_ctx {
                prompt = turn.add.clone();
            }
            let texts: Vec<Vec<u8>> = turn
                .stop_pair
                .map(|(a, b, cut)| {
                    let mut bytes = [rig.vocab.token_bytes(a), rig.vocab.token_bytes(b)].concat();
                    if cut && bytes.len() > 1 { bytes.pop(); }
                    bytes
                })
                .into_iter()
                .filter(|bytes| !bytes.is_empty())
                .collect();
            let wanted = Request { stop_ids: turn.stop_ids.clone(), stop_at_eog: turn.eog, logprobs: turn.logprobs, ..with_texts(turn.max_tokens, &texts) };
            if let Some(seed) = turn.seed {
                rig.sampling.seed = seed;
                plain.sampling = rig.sampling.clone();
            }
            streams.push(rig.stream(&prompt, turn.max_tokens + 20));
            let run = plain.run(&prompt, wanted.clone());
            let mut fresh = rig.plain();
            assert_same_run(&fresh.run(&prompt, wanted.clone()), &run, &format!("{turn:?} against a fresh decoder"));
            plain.assert_same_state(&fresh, "against a fresh decoder");
            script.push((prompt, wanted, run, rig.sampling.clone(), turn.leave_after));
        }
        for role in roles.into_iter().map(|r| ROLES[r]) {
            let mut other = rig.acted(role, &streams, max_draft);
            for (i, (prompt, wanted, expected, sampling, leave_after)) in script.iter().enumerate() {
                let what = format!("{role:?}, turn {i} of {turns:?}");
                other.sampling = sampling.clone();
                // Perhaps begun once before, and left.
                if *leave_after < usize::MAX {
                    let mut left = Run::default();
                    left.take(other.begin(prompt, wanted.clone(), &mut |_, _| true).unwrap());
                    other.go_on(&mut left, *leave_after);
                    assert!(expected.tokens.starts_with(&left.tokens), "{what}: left");
                }
                assert_same_run(expected, &other.run(prompt, wanted.clone()), &what);
                other.assert_contract(&what);
            }
            other.assert_same_state(&plain, &format!("{role:?} at the end"));
        }
    }
}
