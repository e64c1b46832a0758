//! Obligation 4: the cache never keeps an unverified row. Whatever fails in the middle of a step (the forward, the sampler, the source, the consumer, a
//! panic), the request goes on as plain would, and so does the next turn.

use std::panic::{AssertUnwindSafe, catch_unwind};

use quoth_engine::decode::Request;
use quoth_engine::decode::probe::Part;
use quoth_engine::sample::Sampling;
use quoth_engine::{Error, ErrorKind};
use quoth_kernels::attend::KvKind;
use quoth_kernels::{Format, KernelSet};

use crate::cast::{Method, ROLES, Role};
use crate::models::{Dice, Spec};
use crate::rig::{Mishap, Rig, Run, Watched, assert_same_run, request, warm};

const PROMPT: [u32; 7] = [30, 31, 32, 33, 30, 31, 32];
const N: usize = 24;

/// A turn that follows the first: all that was said, and more.
fn next_prompt(watched: &Watched) -> Vec<u32> {
    watched.decoder.history().iter().copied().chain([50, 51, 52]).collect()
}

/// The plain first and second turn, and what perfect sources know.
struct Plain {
    first: Run,
    /// After the first turn.
    after: Watched,
    second: Run,
    streams: Vec<Vec<u32>>,
}

impl Plain {
    fn new(rig: &Rig) -> Plain {
        let mut after = rig.plain();
        let first = after.run(&PROMPT, request(N));
        let mut next = rig.plain();
        next.run(&PROMPT, request(N));
        let prompt = next_prompt(&next);
        let second = next.run(&prompt, request(N));
        let streams = vec![rig.stream(&PROMPT, N + 20), rig.stream(&prompt, N + 20)];
        Plain { first, after, second, streams }
    }

    /// The next turn of a decoder that has been through something equals the plain one.
    fn assert_next_turn(&self, other: &mut Watched, what: &str) {
        other.assert_contract(what);
        let prompt = next_prompt(&self.after);
        let run = other.run(&prompt, request(N));
        assert_same_run(&self.second, &run, &format!("{what}: the next turn"));
        other.assert_contract(what);
    }
}

/// What is cached is, bit for bit, what plain decoding has cached for these tokens; so no row of a rejected or unverified draft is among them.
fn assert_verified(plain: &Watched, other: &Watched, what: &str) {
    let (history, cache) = (other.decoder.history(), other.decoder.cache());
    assert_eq!(history.len(), cache.len() + 1, "{what}: I1");
    assert!(plain.decoder.history().starts_with(history), "{what}: history");
    assert!(plain.decoder.cache().same_prefix(cache, cache.len()), "{what}: an unverified row was kept");
}

/// Runs a request whose decoder fails somewhere; looks after each step. Gives the run with the errors taken out, and how many there were.
fn run_through(other: &mut Watched, plain: &Plain, what: &str) -> (Run, usize) {
    let mut run = Run::default();
    let mut begun = false;
    while !begun {
        other.log.lock().unwrap().rows.clear();
        match other.begin(&PROMPT, request(N), &mut |_, _| true) {
            Ok(step) => {
                run.take(step);
                begun = true;
            }
            Err(error) => run.errors.push(error.to_string()),
        }
        assert_verified(&plain.after, other, what);
    }
    while run.finish.is_none() {
        other.go_on(&mut run, 1);
        assert_verified(&plain.after, other, what);
    }
    let errors = std::mem::take(&mut run.errors);
    assert!(errors.iter().all(|e| e.contains("on purpose")), "{errors:?}");
    (run, errors.len())
}

#[test]
fn a_step_that_fails_at_any_part_leaves_nothing_unverified_and_the_rest_is_plain() {
    for (temperature, max_draft) in [(0.8, 5), (0.0, 16)] {
        let rig = Rig::tiny(128, Sampling { temperature, ..warm(4) }).blindly();
        let plain = Plain::new(&rig);
        for role in [Role::Perfect, Role::Alternating, Role::Garbage, Role::Cascade] {
            let mut clean = rig.acted(role, &plain.streams, max_draft);
            clean.run(&PROMPT, request(N));
            let parts = clean.log.lock().unwrap().parts.clone();
            assert!(parts.len() > N && parts.contains(&Part::Prefill) && parts.contains(&Part::Forwarded));
            for (at, part) in parts.iter().enumerate() {
                let what = format!("{role:?} at temperature {temperature}, part {at}: {part:?}");
                let mut other = rig.acted(role, &plain.streams, max_draft);
                other.log.lock().unwrap().plan = Some((at, Mishap::Error));
                let (run, errors) = run_through(&mut other, &plain, &what);
                assert_eq!(errors, 1, "{what}");
                assert_same_run(&plain.first, &run, &what);
                other.assert_same_state(&plain.after, &what);
                plain.assert_next_turn(&mut other, &what);
            }
        }
    }
}

#[test]
fn tokens_that_a_failing_step_had_committed_are_handed_out_before_the_error() {
    let rig = Rig::tiny(128, warm(4));
    let plain = Plain::new(&rig);
    let mut other = rig.acted(Role::Perfect, &plain.streams, 8);
    // The prompt's pass and sample, the step's two parts, then the rows: the fifth of nine fails.
    other.log.lock().unwrap().plan = Some((4 + 4, Mishap::Error));
    other.begin(&PROMPT, request(N), &mut |_, _| true).unwrap();
    let step = other.decoder.step().unwrap();
    assert_eq!((step.tokens.as_slice(), step.accepted, step.finish), (&plain.first.tokens[1..5], 4, None));
    assert!(other.decoder.step().unwrap_err().to_string().contains("Sample { row: 4 }"));
    assert_eq!(other.decoder.step().unwrap().tokens, plain.first.tokens[5..14]);
}

#[test]
fn a_panic_at_any_part_leaves_a_decoder_that_goes_on_as_plain() {
    let rig = Rig::tiny(128, warm(4));
    let plain = Plain::new(&rig);
    for role in [Role::Perfect, Role::Alternating, Role::Cascade] {
        let mut clean = rig.acted(role, &plain.streams, 6);
        clean.run(&PROMPT, request(N));
        let parts = clean.log.lock().unwrap().parts.clone();
        for (at, part) in parts.iter().enumerate() {
            let what = format!("{role:?}, part {at}: {part:?}");
            let mut other = rig.acted(role, &plain.streams, 6);
            other.log.lock().unwrap().plan = Some((at, Mishap::Panic));
            assert!(catch_unwind(AssertUnwindSafe(|| other.run(&PROMPT, request(N)))).is_err(), "{what}");
            match at % 4 {
                // A copy, and a decoder that went back, have only what is whole.
                0 => {
                    let fork = other.decoder.fork(None).unwrap();
                    let held = fork.cache().len();
                    assert_eq!(fork.history().len(), held + 1, "{what}");
                    assert!(plain.after.decoder.cache().same_prefix(fork.cache(), held), "{what}");
                }
                1 => {
                    other.decoder.rewind(PROMPT.len() + 1).unwrap();
                    assert_verified(&plain.after, &other, &what);
                }
                2 => other.decoder.reset().unwrap(),
                _ => {}
            }
            let run = other.run(&PROMPT, request(N));
            assert_same_run(&plain.first, &run, &what);
            other.assert_same_state(&plain.after, &what);
            plain.assert_next_turn(&mut other, &what);
        }
    }
}

#[test]
fn a_source_that_fails_is_asked_no_more_and_the_reason_is_told() {
    let rig = Rig::tiny(128, warm(9));
    let plain = Plain::new(&rig);
    for role in ROLES {
        let mut other = rig.acted(role, &plain.streams, 4);
        let run = other.run(&PROMPT, request(N));
        assert_same_run(&plain.first, &run, &format!("{role:?}"));
        plain.assert_next_turn(&mut other, &format!("{role:?}"));
        // A prompt that goes another way rebuilds the source.
        other.run(&[1, 2, 3], request(4));
        let reason = other.decoder.speculation_stats().unwrap().disabled;
        match role {
            Role::Raising(method) => {
                let expected = format!("the draft source failed: {method:?} does not work");
                assert_eq!(reason, Some(expected), "{role:?}");
                assert_eq!(other.book.as_ref().unwrap().lock().unwrap().calls_after, 0);
                // And asked no more means: every later step is plain.
                other.run(&[1, 2, 3, 4], request(12));
                assert_eq!(other.decoder.stats().verify_steps, 0, "{role:?}");
            }
            _ => assert_eq!(reason, None, "{role:?}"),
        }
        assert!(role != Role::Raising(Method::Suggest) || run.steps.0.iter().any(|n| *n > 1), "it was right before");
    }
}

#[test]
fn rows_that_are_not_numbers_are_an_error_at_their_place_and_the_next_turn_is_plain() {
    for (temperature, blind) in [(0.0, false), (0.0, true), (0.8, false)] {
        // The embedding is F32 in both, so that the models differ in one number.
        let sound = Spec { outer: Format::F32, ..Spec::tiny() };
        let sampling = Sampling { temperature, ..warm(2) };
        let rig = |spec: &Spec| {
            let rig = Rig::new(spec, KernelSet::best(), 1, 128, KvKind::F16, sampling.clone());
            Rig { blind, ..rig }
        };
        let stream = rig(&sound).stream(&PROMPT, 60);
        // A token that comes for the first time somewhere in the middle.
        let first = (PROMPT.len() + 6..40).find(|i| !stream[..*i].contains(&stream[*i])).unwrap();
        let broken = rig(&Spec { poisoned: vec![stream[first]], ..sound.clone() });
        let mut plain = broken.plain();
        let expected = plain.run(&PROMPT, request(50));
        assert_eq!(expected.tokens, stream[PROMPT.len()..=first]);
        assert!(
            expected.errors.len() == 21 && expected.errors[0].contains(&(first + 1).to_string()),
            "{:?}",
            expected.errors
        );
        for role in ROLES {
            for max_draft in [1, 4, 16] {
                let what = format!("{role:?}, drafts up to {max_draft}");
                let mut other = broken.acted(role, std::slice::from_ref(&stream), max_draft);
                let run = other.run(&PROMPT, request(50));
                assert_same_run(&expected, &run, &what);
                other.assert_same_state(&plain, &what);
                // The next turn forks off before the broken token.
                let next: Vec<u32> =
                    stream[..first].iter().copied().chain([3, 4]).filter(|t| *t != stream[first]).collect();
                let mut fresh = broken.plain();
                let again = fresh.run(&next, request(10));
                assert_same_run(&again, &other.run(&next, request(10)), &what);
                other.assert_same_state(&fresh, &what);
            }
        }
        // Drafting the broken token where it does not come changes nothing.
        let poisoned = broken.made.spec.poisoned[0];
        let mut quiet = broken.plain();
        let expected = quiet.run(&PROMPT, request(6));
        let mut other = broken.acted(Role::Stubborn(poisoned), &[], 9);
        assert_same_run(&expected, &other.run(&PROMPT, request(6)), "drafts of the broken token");
        other.assert_same_state(&quiet, "drafts of the broken token");
        assert_eq!(other.decoder.stats().drafted, 4 + 3 + 2 + 1);
    }
}

#[test]
fn a_consumer_may_leave_after_any_step_and_come_back_with_any_prompt() {
    let rig = Rig::tiny(128, warm(12));
    let plain = Plain::new(&rig);
    for role in [Role::Perfect, Role::Alternating, Role::Cascade] {
        for steps in 0..8 {
            for way in 0..4 {
                let what = format!("{role:?}, left after {steps} steps, way {way}");
                let mut other = rig.acted(role, &plain.streams, 5);
                let mut run = Run::default();
                run.take(other.begin(&PROMPT, request(N), &mut |_, _| true).unwrap());
                other.go_on(&mut run, steps);
                assert_verified(&plain.after, &other, &what);
                other.assert_contract(&what);
                let held = other.decoder.history().to_vec();
                let prompt: Vec<u32> = match way {
                    0 => held.iter().copied().chain([60, 61]).collect(),
                    1 => PROMPT.to_vec(),
                    2 => held[..held.len() / 2].iter().copied().chain([62, 63, 64]).collect(),
                    _ => vec![65, 66],
                };
                let mut fresh = rig.plain();
                let expected = fresh.run(&prompt, request(12));
                let kept = held
                    .iter()
                    .zip(&prompt)
                    .take_while(|(a, b)| a == b)
                    .count()
                    .min(held.len() - 1)
                    .min(prompt.len() - 1);
                let run = other.run(&prompt, request(12));
                assert_same_run(&expected, &run, &what);
                other.assert_same_state(&fresh, &what);
                other.assert_contract(&what);
                assert_eq!(other.decoder.stats().cached_tokens, kept as u64, "{what}");
                assert_eq!(other.decoder.stats().prefill_tokens, (prompt.len() - kept) as u64, "{what}");
            }
        }
    }
}

#[test]
fn a_prompt_that_is_stopped_or_fails_between_passes_leaves_a_prefix_and_can_be_given_again() {
    let rig = Rig::tiny(1300, warm(1));
    let prompt = Dice(1).tokens(1200, 97);
    let mut plain = rig.plain();
    let expected = plain.run(&prompt, request(10));
    let streams = [prompt.iter().copied().chain(expected.committed()).collect::<Vec<_>>()];
    for stop_after in [512, 1024] {
        for fails in [false, true] {
            let mut other = rig.acted(Role::Perfect, &streams, 4);
            if fails {
                other.log.lock().unwrap().plan = Some((stop_after / 512, Mishap::Error));
            }
            let error = other.begin(&prompt, request(10), &mut |done, all| {
                assert_eq!(all, 1200);
                fails || done != stop_after
            });
            assert_eq!(error.unwrap_err().kind(), if fails { ErrorKind::Internal } else { ErrorKind::Cancelled });
            assert_eq!(other.decoder.cache().len(), stop_after, "the passes that were done are kept");
            assert_verified(&plain, &other, "stopped");
            other.assert_contract("stopped");
            let run = other.run(&prompt, request(10));
            assert_same_run(&expected, &run, "given again");
            assert_eq!(other.decoder.stats().cached_tokens, stop_after as u64);
            other.assert_same_state(&plain, "given again");
        }
    }
}

#[test]
fn requests_that_make_no_sense_change_nothing_and_leave_the_one_under_way() {
    let rig = Rig::tiny(64, warm(6));
    let plain = Plain::new(&rig);
    let mut other = rig.acted(Role::Perfect, &plain.streams, 3);
    let mut run = Run::default();
    run.take(other.begin(&PROMPT, request(N), &mut |_, _| true).unwrap());
    other.go_on(&mut run, 2);
    let mut refused = |prompt: &[u32], request| other.begin(prompt, request, &mut |_, _| true).unwrap_err();
    assert!(matches!(refused(&[], request(5)), Error::EmptyPrompt));
    assert!(matches!(refused(&[1, 2, 97], request(5)), Error::TokenRange { token: 97, pos: 2, last: 96 }));
    assert!(matches!(refused(&[1; 65], request(5)), Error::ContextFull { cached: 0, asked: 65, n_ctx: 64 }));
    assert!(matches!(refused(&[1], request(0)), Error::Option { what: "max_tokens", .. }));
    let stop = Request { stop_ids: vec![97], ..request(5) };
    assert!(matches!(refused(&[1], stop), Error::Option { what: "stop", .. }));
    other.go_on(&mut run, usize::MAX);
    assert_same_run(&plain.first, &run, "after requests that were refused");
    plain.assert_next_turn(&mut other, "after requests that were refused");
}

#[test]
fn a_fork_goes_its_own_way_and_the_origin_goes_on() {
    let rig = Rig::tiny(128, warm(8));
    let plain = Plain::new(&rig);
    let mut origin = rig.acted(Role::Perfect, &plain.streams, 4);
    let mut run = Run::default();
    run.take(origin.begin(&PROMPT, request(N), &mut |_, _| true).unwrap());
    origin.go_on(&mut run, 2);
    let mut fork = origin.decoder.fork(None).unwrap();
    assert!(fork.step().is_err(), "a fork has no request under way");
    let prompt: Vec<u32> = fork.history().iter().copied().chain([70]).collect();
    let wanted = Request { sampling: warm(8), ..request(10) };
    let mut tokens = fork.begin(&prompt, wanted, &mut |_, _| true).unwrap().tokens;
    while tokens.len() < 10 {
        tokens.extend(fork.step().unwrap().tokens);
    }
    assert_eq!(tokens, rig.plain().run(&prompt, request(10)).tokens);
    origin.go_on(&mut run, usize::MAX);
    assert_same_run(&plain.first, &run, "the origin of a fork");
}

#[test]
fn going_back_is_as_if_the_rest_had_never_been() {
    let rig = Rig::tiny(128, warm(8));
    let plain = Plain::new(&rig);
    for n in [0, 1, 5, PROMPT.len(), PROMPT.len() + 3, PROMPT.len() + N - 1] {
        let mut other = rig.acted(Role::Cascade, &plain.streams, 4);
        other.run(&PROMPT, request(N));
        other.decoder.rewind(n).unwrap();
        let what = format!("back to {n}");
        assert_eq!(other.decoder.history(), &plain.after.decoder.history()[..n], "{what}");
        assert_eq!(other.decoder.cache().len(), n.saturating_sub(1), "{what}");
        other.assert_contract(&what);
        assert!(n == 0 || other.decoder.step().is_err(), "{what}: the request has ended");
        assert_same_run(&plain.first, &other.run(&PROMPT, request(N)), &what);
        plain.assert_next_turn(&mut other, &what);
    }
}

#[test]
fn sampling_options_count_from_the_next_request_on() {
    let rig = Rig::tiny(128, warm(8));
    let plain = Plain::new(&rig);
    let mut other = rig.acted(Role::Perfect, &plain.streams, 4);
    let mut run = Run::default();
    run.take(other.begin(&PROMPT, request(N), &mut |_, _| true).unwrap());
    other.sampling = warm(99);
    other.go_on(&mut run, usize::MAX);
    assert_same_run(&plain.first, &run, "options changed in the middle");
    let fresh = Rig {
        sampling: warm(99),
        made: rig.made.clone(),
        model: rig.model.clone(),
        vocab: rig.vocab.clone(),
        kind: rig.kind,
        blind: false,
    };
    assert_same_run(&fresh.plain().run(&PROMPT, request(N)), &other.run(&PROMPT, request(N)), "the next request");
    other.sampling = Sampling { top_p: 2.0, ..warm(1) };
    assert!(other.begin(&PROMPT, request(N), &mut |_, _| true).is_err());
    other.sampling = warm(99);
    assert_same_run(
        &fresh.plain().run(&PROMPT, request(N)),
        &other.run(&PROMPT, request(N)),
        "options that were refused",
    );
}
