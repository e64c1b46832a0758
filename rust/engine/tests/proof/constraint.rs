//! C1 to C5: what a constraint allows is committed and nothing else, and with guesses the same as without: greedy and sampled, with rows and without, alone and
//! in company, whatever the source, through failures, stops, forks and ends.
//!
//! The constraint of these tests is a dice: which tokens are allowed follows from the committed ones alone, now and then only one. It completes after a while.

use quoth_draft::Gate;
use quoth_engine::constraint::{Constraint, Mask};
use quoth_engine::decode::{Engine, Finish, Request, Sequence, Speculation};
use quoth_engine::error::Error;
use quoth_engine::proposer::Drafter;
use quoth_engine::sample::Sampling;

use crate::cast::{ROLES, Role, hire};
use crate::heads::{Part as Playing, Player};
use crate::models::{Dice, Spec};
use crate::rig::{Mishap, Rig, Run, Watched, assert_same_run, free, open_gate, request, uninterrupted, warm};
use quoth_engine::decode::probe::Part;
use quoth_kernels::KernelSet;
use quoth_kernels::attend::KvKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const PROMPT: [u32; 9] = [40, 41, 42, 43, 44, 40, 41, 42, 43];

/// What a rule does wrong, if anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// All masks of a step are those of its beginning.
    Stale,
    /// Masks cannot be computed behind so many tokens.
    Fails(usize),
    /// Asking for masks there panics.
    Panics(usize),
}

#[derive(Debug, Clone)]
struct Rule {
    state: u64,
    taken: usize,
    length: usize,
    n_vocab: u32,
    fault: Fault,
}

impl Rule {
    fn new(n_vocab: usize, length: usize) -> Rule {
        Rule { state: 7, taken: 0, length, n_vocab: n_vocab as u32, fault: Fault::None }
    }

    fn boxed(self) -> Option<Box<dyn Constraint>> {
        Some(Box::new(self))
    }

    fn mask(&self) -> Mask {
        let dice = self.state >> 20;
        let one = dice as u32 % self.n_vocab;
        // Forced tokens come in runs: a state is forced if the hash of a coarser part of it is.
        if self.state >> 61 < 3 {
            return Mask::One(one);
        }
        let mut words = vec![0; self.n_vocab.div_ceil(32) as usize];
        for id in 0..self.n_vocab {
            let allowed = (u64::from(id) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ self.state) >> 40;
            if id == one || allowed.is_multiple_of(4) {
                words[id as usize / 32] |= 1 << (id % 32);
            }
        }
        Mask::Set(words)
    }

    fn take(&mut self, token: u32) -> bool {
        if !self.mask().allows(token) {
            return false;
        }
        self.state = (self.state ^ u64::from(token)).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23);
        self.taken += 1;
        true
    }
}

impl Constraint for Rule {
    fn masks(&mut self, draft: &[u32], out: &mut Vec<Mask>) -> quoth_engine::Result<()> {
        let mut walk = self.clone();
        for token in draft.iter().map(Some).chain([None]) {
            match self.fault {
                Fault::Fails(at) if walk.taken >= at => return Err(Error::Constraint("fails on purpose".into())),
                Fault::Panics(at) if walk.taken >= at => panic!("panics on purpose"),
                Fault::Stale => out.push(self.mask()),
                _ => out.push(walk.mask()),
            }
            match token {
                Some(token) if walk.take(*token) && walk.taken < self.length => {}
                _ => break,
            }
        }
        Ok(())
    }

    fn valid_prefix(&mut self, draft: &[u32]) -> quoth_engine::Result<usize> {
        let mut walk = self.clone();
        Ok(draft.iter().take_while(|token| walk.taken < self.length && walk.take(**token)).count())
    }

    fn forced(&mut self, max: usize, out: &mut Vec<u32>) -> quoth_engine::Result<()> {
        let mut walk = self.clone();
        while out.len() < max
            && walk.taken < self.length
            && let Mask::One(token) = walk.mask()
        {
            out.push(token);
            walk.take(token);
        }
        Ok(())
    }

    fn likely(&mut self, max: usize, out: &mut Vec<u32>) -> quoth_engine::Result<()> {
        let mut walk = self.clone();
        while walk.taken < self.length
            && let Mask::One(token) = walk.mask()
        {
            walk.take(token);
        }
        // Right now and then; only some rules guess.
        if max > 0 && walk.taken < self.length && !self.length.is_multiple_of(8) {
            out.push((walk.state >> 20) as u32 % self.n_vocab);
        }
        Ok(())
    }

    fn commit(&mut self, token: u32) -> quoth_engine::Result<bool> {
        if !self.take(token) && self.fault == Fault::None {
            return Err(Error::Constraint(format!("{token} is not allowed behind {} tokens", self.taken)));
        }
        Ok(self.taken >= self.length)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

fn samplings() -> [Sampling; 4] {
    [
        Sampling::default(),
        warm(3),
        Sampling { temperature: 1.5, seed: 4, ..Sampling::default() },
        Sampling { repeat_penalty: 1.3, presence_penalty: 0.5, logit_bias: vec![(5, 2.0)], ..warm(5) },
    ]
}

fn rig(sampling: Sampling) -> Rig {
    Rig::new(&Spec::tiny(), KernelSet::best(), 2, 256, KvKind::F16, sampling)
}

/// So many tokens at most, of a rule that completes after `length`.
fn wanted(rig: &Rig, max_tokens: usize, length: usize) -> Request {
    Request { constraint: Rule::new(rig.model.config().n_vocab, length).boxed(), ..request(max_tokens) }
}

/// The prompt with what plain decoding makes of it.
fn stream(rig: &Rig, wanted: &Request) -> (Run, Vec<u32>) {
    let run = rig.plain().run(&PROMPT, wanted.clone());
    let stream = PROMPT.iter().copied().chain(run.committed()).collect();
    (run, stream)
}

#[test]
fn what_is_committed_is_the_best_of_what_is_allowed_by_the_models_own_row() {
    let rig = rig(Sampling::default());
    let (run, _) = stream(&rig, &wanted(&rig, 200, 70));
    let mut rule = Rule::new(rig.model.config().n_vocab, 70);
    let mut forced = 0;
    for (i, (pos, row, token)) in run.rows.iter().enumerate() {
        let mask = rule.mask();
        forced += usize::from(matches!(mask, Mask::One(_)));
        let row: Vec<f32> = row.iter().map(|x| f32::from_bits(*x)).collect();
        let best = (0..row.len() as u32)
            .filter(|id| mask.allows(*id))
            .rev()
            .max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize]));
        assert_eq!((*pos, Some(*token)), (PROMPT.len() + i, best));
        assert!(rule.take(*token));
    }
    assert_eq!((run.rows.len(), run.finish), (70, Some(Finish::Complete)));
    assert!(forced > 10 && forced < 60, "{forced} of 70 tokens are forced: too few or too many to prove anything");
}

#[test]
fn streams_are_plain_ones_whatever_the_source_greedy_and_sampled_with_rows_and_without() {
    for sampling in samplings() {
        for blind in [false, true] {
            let rig = if blind { rig(sampling.clone()).blindly() } else { rig(sampling.clone()) };
            for (max_tokens, length) in [(200, 60), (33, 200), (1, 9), (60, 60), (200, 1)] {
                let mut wanted = wanted(&rig, max_tokens, length);
                wanted.logprobs = (!blind).then_some(3);
                let (mut plain, stream) = stream(&rig, &wanted);
                if blind {
                    plain.rows.iter_mut().for_each(|(_, row, _)| row.clear());
                }
                let reason = if length <= max_tokens { Finish::Complete } else { Finish::Length };
                assert_eq!(plain.finish, Some(reason));
                for role in ROLES {
                    for max_draft in [1, 4, 64] {
                        let what = format!(
                            "{role:?}, drafts of {max_draft}, {max_tokens} of {length}, {sampling:?}, blind {blind}"
                        );
                        let mut watched = rig.acted(role, std::slice::from_ref(&stream), max_draft);
                        let mut run = watched.run(&PROMPT, wanted.clone());
                        if blind {
                            // Which rows are made is then a matter of drafts.
                            run.rows.iter_mut().for_each(|(_, row, _)| row.clear());
                        }
                        assert_same_run(&plain, &run, &what);
                        watched.assert_contract(&what);
                        let stats = watched.decoder.stats();
                        assert!(stats.forced > 0 || length < 10 || max_tokens < 10, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn forced_tokens_take_no_step_of_their_own_and_drafts_go_on_behind_them() {
    let rig = rig(Sampling::default());
    let wanted = wanted(&rig, 200, 120);
    let (plain, stream) = stream(&rig, &wanted);
    let steps = |role, max_draft| {
        let mut watched = rig.acted(role, std::slice::from_ref(&stream), max_draft);
        assert_same_run(&plain, &watched.run(&PROMPT, wanted.clone()), "steps");
        let stats = watched.decoder.stats().clone();
        (stats.steps as usize, stats.drafted, stats.accepted)
    };
    let mut rule = Rule::new(rig.model.config().n_vocab, 120);
    // A step begins at each token that is not forced by those before it; the first comes with the prompt.
    let mut chosen = 0;
    for (i, token) in plain.committed().enumerate() {
        let mut forced = Vec::new();
        rule.forced(1, &mut forced).unwrap();
        chosen += usize::from(i > 0 && forced.is_empty());
        rule.take(token);
    }
    // A run of forced tokens that ends the answer leaves one token to be sampled.
    let (silent, drafted, accepted) = steps(Role::Silent, 8);
    assert!(silent == chosen || silent == chosen + 1, "{silent} steps, {chosen} tokens that the rule leaves open");
    assert_eq!(drafted, accepted, "what is forced is always accepted");
    assert!(drafted > 20);
    let (perfect, ..) = steps(Role::Perfect, 8);
    assert!(perfect * 3 < silent, "{perfect} steps with a source that knows all, {silent} without");
}

#[test]
fn drafts_are_cut_where_the_constraint_ends_them_before_rows_are_paid_for() {
    let rig = rig(Sampling::default());
    let wanted = wanted(&rig, 60, 200);
    let (_, stream) = stream(&rig, &wanted);
    // Of tokens that have nothing to do with the text, most are not allowed.
    let mut watched = rig.acted(Role::Garbage, &[stream], 8);
    watched.run(&PROMPT, wanted);
    let stats = watched.decoder.stats().clone();
    let asked = 8 * watched.book.as_ref().unwrap().lock().unwrap().suggests as u64;
    let guessed = stats.drafted - stats.forced;
    assert!(guessed * 4 < asked, "{guessed} of {asked} useless tokens were verified");
}

#[test]
fn masks_of_the_steps_beginning_are_noticed() {
    for sampling in samplings() {
        let rig = rig(sampling);
        let wanted = wanted(&rig, 60, 200);
        let (plain, stream) = stream(&rig, &wanted);
        let stale = Rule { fault: Fault::Stale, ..Rule::new(rig.model.config().n_vocab, 200) };
        // Without guesses a step has one place, so nothing is stale.
        let alone = rig.plain().run(&PROMPT, Request { constraint: stale.clone().boxed(), ..request(60) });
        assert_same_run(&plain, &alone, "plain");
        let mut watched = rig.acted(Role::Perfect, &[stream], 6);
        let run = watched.run(&PROMPT, Request { constraint: stale.boxed(), ..request(60) });
        let noticed = catch_unwind(AssertUnwindSafe(|| assert_same_run(&plain, &run, "stale")));
        assert!(noticed.is_err(), "masks of the step's beginning make no difference");
    }
}

#[test]
fn stops_inside_forced_and_quoted_drafts_end_the_answer_as_plain() {
    for sampling in samplings() {
        let rig = rig(sampling);
        let whole = wanted(&rig, 80, 200);
        let (all, stream) = stream(&rig, &whole);
        let tokens: Vec<u32> = all.committed().collect();
        for (at, stop) in tokens.iter().copied().enumerate().take(40) {
            let wanted = Request { stop_ids: vec![stop], ..whole.clone() };
            let plain = rig.plain().run(&PROMPT, wanted.clone());
            assert_eq!(plain.finish, Some(Finish::StopId(stop)));
            for role in [Role::Perfect, Role::Silent, Role::Alternating] {
                let mut watched = rig.acted(role, std::slice::from_ref(&stream), 8);
                let what = format!("stop {at}, {role:?}");
                assert_same_run(&plain, &watched.run(&PROMPT, wanted.clone()), &what);
                // The next turn, without a constraint.
                let next: Vec<u32> = plain.history.iter().copied().chain([50, 51]).collect();
                let (mut one, other) = (rig.plain(), watched.run(&next, request(20)));
                assert_same_run(&one.run(&next, request(20)), &other, &what);
            }
        }
    }
}

#[test]
fn after_a_failure_at_any_part_the_constraint_stands_at_the_last_committed_token() {
    for sampling in samplings() {
        let rig = rig(sampling);
        let wanted = wanted(&rig, 40, 200);
        let (plain, stream) = stream(&rig, &wanted);
        for role in [Role::Perfect, Role::Alternating, Role::Silent] {
            let mut parts = rig.acted(role, std::slice::from_ref(&stream), 5);
            parts.run(&PROMPT, wanted.clone());
            let number = parts.log.lock().unwrap().parts.len();
            for at in 1..number {
                let mut watched = rig.acted(role, std::slice::from_ref(&stream), 5);
                watched.log.lock().unwrap().plan = Some((at, Mishap::Error));
                let mut run = watched.run(&PROMPT, wanted.clone());
                assert_eq!(run.errors.len(), 1, "part {at}");
                let part = watched.log.lock().unwrap().parts[at];
                run.errors.clear();
                if matches!(part, Part::Prefill) || run.finish.is_none() {
                    continue;
                }
                assert_same_run(&plain, &run, &format!("{role:?}, part {at}: {part:?}"));
            }
        }
    }
}

#[test]
fn a_constraint_that_fails_or_panics_is_an_error_of_its_request_and_the_next_one_is_plain() {
    let rig = rig(warm(1));
    let n_vocab = rig.model.config().n_vocab;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for fault in [Fault::Fails(5), Fault::Panics(5), Fault::Fails(0)] {
        for role in [Role::Perfect, Role::Silent] {
            let sound = wanted(&rig, 20, 200);
            let (plain, stream) = stream(&rig, &sound);
            let mut watched = rig.acted(role, &[stream], 4);
            let rule = Rule { fault, ..Rule::new(n_vocab, 200) };
            let run = watched.run(&PROMPT, Request { constraint: rule.boxed(), ..request(20) });
            assert!(!run.errors.is_empty() && run.finish.is_none(), "{fault:?}: {run:?}");
            assert!(plain.tokens.starts_with(&run.tokens), "{fault:?}");
            assert_same_run(&plain, &watched.run(&PROMPT, sound), "the next request");
        }
    }
    std::panic::set_hook(hook);
}

#[test]
fn a_fork_has_no_constraint_of_the_origins_request_and_the_origin_goes_on() {
    let rig = rig(warm(2));
    let wanted = wanted(&rig, 40, 200);
    let (plain, stream) = stream(&rig, &wanted);
    let mut watched = rig.acted(Role::Alternating, &[stream], 5);
    let mut run = Run::default();
    run.take(watched.begin(&PROMPT, wanted, &mut |_, _| true).unwrap());
    watched.go_on(&mut run, 3);
    let mut fork = watched.decoder.fork(None).unwrap();
    let history = fork.history().to_vec();
    let other = Watched {
        sampling: watched.sampling.clone(),
        log: watched.log.clone(),
        book: None,
        decoder: {
            let free = Request { sampling: watched.sampling.clone(), ..request(10) };
            fork.begin(&history, free, &mut |_, _| true).unwrap();
            while fork.step().unwrap().finish.is_none() {}
            fork
        },
    };
    assert_eq!(other.decoder.history().len(), history.len() + 10);
    watched.go_on(&mut run, usize::MAX);
    assert_same_run(&plain, &run, "the origin");
}

#[test]
fn constrained_sequences_in_company_are_what_they_are_alone() {
    for case in 0..12u64 {
        let mut dice = Dice(case);
        let greedy = rig(Sampling::default());
        let n_vocab = greedy.model.config().n_vocab;
        let costs = uninterrupted(free());
        let mut engine = Engine::new(costs.clone());
        let mut members = Vec::new();
        for number in 0..1 + case as usize {
            let sampling = samplings()[dice.below(4)].clone();
            let rig = Rig {
                made: greedy.made.clone(),
                model: greedy.model.clone(),
                vocab: greedy.vocab.clone(),
                kind: greedy.kind,
                sampling: sampling.clone(),
                blind: true,
            };
            let length = 5 + dice.below(60);
            let constraint = if dice.below(4) == 0 { None } else { Rule::new(n_vocab, length).boxed() };
            let wanted = Request { sampling, constraint, ..request(1 + dice.below(50)) };
            let (expected, stream) = stream(&rig, &wanted);
            let role = ROLES[dice.below(ROLES.len())];
            let speculation = (dice.below(4) > 0).then(|| {
                let (source, _) = hire(role, std::slice::from_ref(&stream), n_vocab);
                let gate = Gate::new(open_gate()).unwrap();
                let part = [Playing::Perfect, Playing::HalfWrong, Playing::Garbage][dice.below(3)];
                let player = Player::new(part, &[stream], &rig.model, rig.kind) as Arc<dyn Drafter>;
                let drafters = if dice.below(2) == 0 { vec![player] } else { Vec::new() };
                Speculation { source, gate, costs: costs.clone(), max_draft: 1 + dice.below(12), drafters }
            });
            let mut sequence = Sequence::new(rig.model.clone(), rig.vocab.clone(), rig.kind, speculation).unwrap();
            sequence.begin(&PROMPT, wanted, 0).unwrap();
            members.push((sequence, expected, Run::default(), format!("case {case}, member {number}, {role:?}")));
        }
        while members.iter().any(|(_, _, run, _)| run.finish.is_none()) {
            let mut part: Vec<_> = members.iter_mut().filter(|(_, _, run, _)| run.finish.is_none()).collect();
            let mut sequences: Vec<&mut Sequence> = part.iter_mut().map(|member| &mut member.0).collect();
            let steps = engine.step(&mut sequences, 64);
            part.iter_mut().zip(steps).for_each(|(member, step)| member.2.take(step.unwrap()));
        }
        for (sequence, expected, run, what) in &members {
            assert_eq!(
                (&expected.tokens, &expected.text, expected.finish),
                (&run.tokens, &run.text, run.finish),
                "{what}"
            );
            assert_eq!(expected.history, sequence.history(), "{what}");
            assert_eq!(expected.draws, sequence.stats().draws, "{what}");
        }
    }
}
