//! E1, E2 and Q4: a sequence in any company commits the same tokens, rows, log-probabilities and cache as alone, whichever others join, leave, read a prompt or
//! fail beside it, and whether the others want whole rows or only the greatest.

use std::sync::{Arc, Mutex};

use quoth_draft::{Costs, Gate};
use quoth_engine::decode::{Engine, Request, Sequence, Speculation};
use quoth_engine::sample::Sampling;
use quoth_kernels::attend::KvKind;
use quoth_kernels::{Format, KernelSet};

use crate::cast::{ROLES, hire};
use crate::models::{Dice, Spec};
use crate::rig::{
    Eye, Log, Mishap, Rig, Run, Shared, Watched, assert_same_run, free, open_gate, request, uninterrupted, warm,
};

/// A sequence with its request, and what it must become.
struct Member {
    sequence: Sequence,
    log: Shared<Log>,
    prompt: Vec<u32>,
    request: Request,
    expected: Run,
    plain: Watched,
    run: Run,
    /// Steps of the schedule before it joins, and steps of its own after which it leaves.
    joins: usize,
    leaves: usize,
    what: String,
}

impl Member {
    fn new(rig: &Rig, dice: &mut Dice, number: usize, shared: &[u32], costs: &Costs) -> Member {
        let n_vocab = rig.model.config().n_vocab;
        let sampling = if dice.below(2) == 0 { Sampling::default() } else { warm(dice.below(9) as u64) };
        let blind = dice.below(2) == 0;
        let rig = Rig {
            made: rig.made.clone(),
            model: rig.model.clone(),
            vocab: rig.vocab.clone(),
            kind: rig.kind,
            sampling: sampling.clone(),
            blind,
        };
        let common = dice.below(shared.len());
        let own = 1 + dice.below(40);
        let prompt: Vec<u32> = shared[..common].iter().copied().chain(dice.tokens(own, n_vocab)).collect();
        let wanted = 1 + dice.below(24);
        let logprobs = (dice.below(3) == 0).then(|| dice.below(5));
        let request = Request { sampling, logprobs, ..request(wanted) };
        let mut plain = rig.plain();
        let expected = plain.run(&prompt, request.clone());
        let role = (dice.below(3) > 0).then(|| ROLES[dice.below(ROLES.len())]);
        let speculation = role.map(|role| {
            let stream = rig.stream(&prompt, wanted + 20);
            let (source, _) = hire(role, &[stream], n_vocab);
            let gate = Gate::new(open_gate()).unwrap();
            Speculation { source, gate, costs: costs.clone(), max_draft: 1 + dice.below(12), drafters: Vec::new() }
        });
        let mut sequence = Sequence::new(rig.model.clone(), rig.vocab.clone(), rig.kind, speculation).unwrap();
        let log = Arc::new(Mutex::new(Log { blind, ..Log::default() }));
        sequence.set_probe(Some(Box::new(Eye(log.clone()))));
        let what = format!("member {number}: {role:?}, prompt of {}, {wanted} wanted, blind {blind}", prompt.len());
        let (joins, leaves) = (dice.below(30), if dice.below(4) == 0 { dice.below(8) } else { usize::MAX });
        Member { sequence, log, prompt, request, expected, plain, run: Run::default(), joins, leaves, what }
    }

    /// Takes its step; whether it is over.
    fn take(&mut self, step: quoth_engine::Result<quoth_engine::decode::Step>) -> bool {
        match step {
            Ok(step) => self.run.take(step),
            Err(error) => {
                self.run.errors.push(error.to_string());
                if !self.sequence.is_running() {
                    // A prompt that failed is given again.
                    self.sequence.begin(&self.prompt, self.request.clone(), 0).unwrap();
                }
            }
        }
        if self.leaves == 0 && self.run.finish.is_none() {
            self.sequence.stop().unwrap();
            return true;
        }
        self.leaves = self.leaves.saturating_sub(usize::from(!self.sequence.is_reading()));
        self.run.finish.is_some()
    }

    fn assert_as_alone(&mut self, mishaps: usize) {
        let what = &self.what;
        assert!(self.run.errors.len() <= mishaps, "{what}: {:?}", self.run.errors);
        self.run.errors.clear();
        self.run.rows.clone_from(&self.log.lock().unwrap().rows);
        let (history, stats) = (self.sequence.history(), self.sequence.stats());
        let alone = self.plain.decoder.cache();
        if self.run.finish.is_none() {
            assert!(self.expected.tokens.starts_with(&self.run.tokens), "{what}: left");
            assert!(self.run.rows.iter().zip(&self.expected.rows).all(|(a, b)| a == b), "{what}: rows until it left");
            let held = self.sequence.cache().len().min(alone.len());
            assert!(alone.same_prefix(self.sequence.cache(), held), "{what}: other bytes until it left");
            return;
        }
        self.run.history = history.to_vec();
        (self.run.committed, self.run.draws) = (stats.committed, stats.draws);
        assert_same_run(&self.expected, &self.run, what);
        assert_eq!(self.sequence.cache().len(), alone.len(), "{what}");
        assert!(alone.same_prefix(self.sequence.cache(), alone.len()), "{what}: other bytes in the cache");
    }
}

/// A random schedule of one engine.
fn schedule(rig: &Rig, dice: &mut Dice, members: usize, mishaps: usize) {
    let n_vocab = rig.model.config().n_vocab;
    let shared = dice.tokens(150, n_vocab);
    let costs = uninterrupted(free());
    let mut all: Vec<Member> = (0..members).map(|i| Member::new(rig, dice, i, &shared, &costs)).collect();
    for _ in 0..mishaps {
        let unlucky = dice.below(members);
        all[unlucky].log.lock().unwrap().plan = Some((dice.below(20), Mishap::Error));
    }
    let mut engine = Engine::new(costs);
    let mut over = vec![false; members];
    for now in 0.. {
        if over.iter().all(|over| *over) {
            break;
        }
        assert!(now < 20_000, "a schedule that does not end");
        for member in all.iter_mut().filter(|member| member.joins == now) {
            member.sequence.begin(&member.prompt, member.request.clone(), 0).unwrap();
        }
        // Now and then a sequence sits a step out.
        let takes_part: Vec<bool> =
            all.iter().zip(&over).map(|(m, over)| m.joins <= now && !over && dice.below(5) > 0).collect();
        let prompt_rows = [1, 7, 40, 512][dice.below(4)];
        let mut part: Vec<&mut Sequence> =
            all.iter_mut().zip(&takes_part).filter(|(_, takes)| **takes).map(|(m, _)| &mut m.sequence).collect();
        let mut steps = engine.step(&mut part, prompt_rows).into_iter();
        for i in (0..members).filter(|i| takes_part[*i]) {
            over[i] = all[i].take(steps.next().unwrap());
        }
        assert!(steps.next().is_none());
    }
    all.iter_mut().for_each(|member| member.assert_as_alone(mishaps));
}

#[test]
fn a_sequence_in_any_company_is_what_it_is_alone() {
    let specs = [
        Spec::tiny(),
        Spec::of("llama", Format::Q4_0),
        Spec::of("qwen3", Format::Q8_0),
        Spec::of("qwen3moe", Format::Q8_0),
        Spec::of("gemma3", Format::Q8_0),
        Spec::of("gemma4", Format::Q4_K),
    ];
    let sets = KernelSet::available();
    for case in 0..24u64 {
        let mut dice = Dice(case);
        let spec = &specs[case as usize % specs.len()];
        let kind = [KvKind::F16, KvKind::Q8_0, KvKind::F32][dice.below(3)];
        let (set, threads) = (sets[dice.below(sets.len())], 1 + dice.below(3));
        let rig = Rig::new(spec, set, threads, 256, kind, Sampling::default());
        schedule(&rig, &mut dice, 1 + (case as usize * 7) % 13, case as usize % 3);
    }
}

#[test]
fn sixty_four_others_change_nothing() {
    let rig = Rig::new(&Spec::tiny(), KernelSet::best(), 2, 256, KvKind::F16, Sampling::default());
    schedule(&rig, &mut Dice(99), 65, 3);
}

#[test]
fn a_row_that_is_not_a_number_ends_the_step_of_its_sequence_alone() {
    let sound = Spec { outer: Format::F32, ..Spec::tiny() };
    let rig = |spec: &Spec| Rig::new(spec, KernelSet::best(), 1, 128, KvKind::F16, Sampling::default());
    let prompts = [[30, 31, 32], [40, 41, 42]];
    let [first, second] = prompts.map(|prompt| rig(&sound).stream(&prompt, 20));
    // A token that the first sequence commits and the second does not meet.
    let poison = *first[4..].iter().find(|token| !second.contains(token) && !first[..4].contains(token)).unwrap();
    let broken = rig(&Spec { poisoned: vec![poison], ..sound.clone() });
    let mut sequences = prompts.map(|prompt| {
        let mut sequence = Sequence::new(broken.model.clone(), broken.vocab.clone(), broken.kind, None).unwrap();
        sequence.begin(&prompt, request(17), 0).unwrap();
        sequence
    });
    let mut engine = Engine::new(free().into());
    let (mut failed, mut tokens) = (0, [Vec::new(), Vec::new()]);
    for _ in 0..40 {
        let mut both: Vec<&mut Sequence> = sequences.iter_mut().collect();
        for (i, step) in engine.step(&mut both, 512).into_iter().enumerate() {
            match step {
                Ok(step) => tokens[i].extend(step.tokens),
                Err(error) => {
                    assert!(i == 0 && error.to_string().contains("position"), "{i}: {error}");
                    failed += 1;
                }
            }
        }
    }
    assert!(failed > 10, "{failed}");
    let end = first.iter().position(|token| *token == poison).unwrap();
    assert_eq!(tokens[0], first[3..=end]);
    assert_eq!(tokens[1], second[3..20]);
}
