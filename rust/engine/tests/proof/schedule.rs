//! H1 to H5: tasks of a scheduler are what their requests are alone, whatever comes, goes, waits or is cancelled beside them and whatever prefix they were
//! given; nothing of them stays but what the prefix store keeps.

use std::collections::BTreeMap;

use quoth_draft::{Gate, GateOptions};
use quoth_engine::Error;
use quoth_engine::decode::{Finish, Request, Speculation};
use quoth_engine::sample::Sampling;
use quoth_engine::schedule::{Job, Scheduler, SchedulerOptions, TaskId, admit};
use quoth_kernels::attend::{CHUNK, KvKind};
use quoth_kernels::{Format, KernelSet};

use crate::cast::{ROLES, hire};
use crate::models::{Dice, Spec};
use crate::rig::{Rig, free, open_gate, request, uninterrupted, warm};

fn options(kind: KvKind) -> SchedulerOptions {
    SchedulerOptions {
        kind,
        max_sequences: 4,
        max_kv_bytes: None,
        prefix_bytes: 1 << 20,
        admission: admit::by_priority,
    }
}

fn scheduler(rig: &Rig, options: SchedulerOptions) -> Scheduler {
    Scheduler::new(rig.model.clone(), rig.vocab.clone(), uninterrupted(free()), options).unwrap()
}

/// What a caller has of a task.
#[derive(Debug, Default, Clone, PartialEq)]
struct Got {
    tokens: Vec<u32>,
    text: String,
    logprobs: Vec<u32>,
    finish: Option<Finish>,
}

/// A job, and what its request gives alone.
fn job(rig: &Rig, dice: &mut Dice, prompt: Vec<u32>, scheduler: &Scheduler) -> (Job, Got) {
    let n_vocab = rig.model.config().n_vocab;
    let sampling = if dice.below(2) == 0 { Sampling::default() } else { warm(dice.below(9) as u64) };
    let logprobs = (dice.below(3) == 0).then_some(2);
    let request = Request { sampling: sampling.clone(), logprobs, ..request(1 + dice.below(20)) };
    let mut plain = rig.plain();
    plain.sampling = sampling;
    let run = plain.run(&prompt, request.clone());
    let alone = Got {
        tokens: run.tokens.clone(),
        text: run.text.clone(),
        logprobs: run.logprobs.iter().map(|(chosen, _)| *chosen).collect(),
        finish: run.finish,
    };
    let speculation = (dice.below(3) > 0).then(|| {
        let stream: Vec<u32> = prompt.iter().copied().chain(run.committed()).collect();
        let (source, _) = hire(ROLES[dice.below(ROLES.len())], &[stream], n_vocab);
        let gate = Gate::new(if dice.below(2) == 0 { open_gate() } else { GateOptions::default() }).unwrap();
        Speculation {
            source,
            gate,
            costs: scheduler.intake().costs().clone(),
            max_draft: 2 + dice.below(10),
            drafters: Vec::new(),
        }
    });
    (Job { prompt, request, speculation, priority: dice.below(3) as i32 - 1 }, alone)
}

/// Takes a step, checks that no task is told of twice in it, and adds what came.
fn take(scheduler: &mut Scheduler, cancelled: &[TaskId], got: &mut BTreeMap<TaskId, Got>) {
    let mut seen = Vec::new();
    for event in scheduler.step() {
        assert!(!seen.contains(&event.id), "two events of one task in a step");
        seen.push(event.id);
        let step = event.step.unwrap();
        assert_eq!(event.outcome.is_some(), step.finish.is_some() || cancelled.contains(&event.id));
        let task = got.get_mut(&event.id).expect("an event of a task that is not under way");
        task.tokens.extend(step.tokens);
        task.text.push_str(&step.text);
        task.logprobs.extend(step.logprobs.iter().map(|l| l.chosen.to_bits()));
        task.finish = step.finish;
        if let Some(outcome) = event.outcome {
            assert!(outcome.stats.committed >= task.tokens.len() as u64);
        }
    }
}

#[test]
fn tasks_of_random_schedules_are_what_they_are_alone() {
    let specs = [Spec::tiny(), Spec::of("qwen3", Format::Q8_0), Spec::of("gemma3", Format::Q4_0)];
    for case in 0..12u64 {
        let mut dice = Dice(case);
        let kind = [KvKind::F16, KvKind::Q8_0][dice.below(2)];
        let rig =
            Rig::new(&specs[case as usize % 3], KernelSet::best(), 1 + dice.below(2), 640, kind, Sampling::default());
        let (n_vocab, before) = (rig.model.config().n_vocab, rig.model.kv_meter().blocks());
        let prefix_bytes = [0, 1 << 16, 1 << 22][dice.below(3)];
        let mut scheduler =
            scheduler(&rig, SchedulerOptions { max_sequences: 1 + dice.below(6), prefix_bytes, ..options(kind) });
        // Long beginnings that several prompts share.
        let shared = [dice.tokens(3 * CHUNK, n_vocab), dice.tokens(CHUNK + 7, n_vocab)];
        let (mut expected, mut got, mut cancelled) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let mut left = 14;
        while left > 0 || !scheduler.is_idle() {
            if left > 0 && dice.below(3) == 0 {
                left -= 1;
                let common = &shared[dice.below(2)];
                let (keep, own) = (dice.below(common.len() + 1), 1 + dice.below(30));
                let prompt = common[..keep].iter().copied().chain(dice.tokens(own, n_vocab)).collect();
                let (job, alone) = job(&rig, &mut dice, prompt, &scheduler);
                let id = scheduler.intake().submit(job).unwrap();
                expected.insert(id, alone);
                got.insert(id, Got::default());
            }
            if dice.below(25) == 0
                && let Some((id, _)) = got.iter().filter(|(_, got)| got.finish.is_none()).nth(dice.below(6))
                && !cancelled.contains(id)
            {
                // Twice is once.
                scheduler.intake().cancel(*id);
                scheduler.intake().cancel(*id);
                cancelled.push(*id);
            }
            take(&mut scheduler, &cancelled, &mut got);
        }
        for (id, alone) in &expected {
            let got = &got[id];
            if cancelled.contains(id) {
                assert!(
                    got.finish.is_none() && alone.tokens.starts_with(&got.tokens),
                    "case {case}, {id:?}: cancelled"
                );
            } else {
                assert_eq!(got, alone, "case {case}, {id:?}");
            }
        }
        assert!(scheduler.prefixes().bytes() <= prefix_bytes);
        drop(scheduler);
        assert_eq!(rig.model.kv_meter().blocks(), before, "blocks were left behind");
    }
}

#[test]
fn ten_thousand_requests_with_random_cancels_leave_no_block_behind() {
    let rig = Rig::new(&Spec::tiny(), KernelSet::best(), 1, 320, KvKind::F16, Sampling::default());
    let mut dice = Dice(5);
    let mut scheduler =
        scheduler(&rig, SchedulerOptions { max_sequences: 8, prefix_bytes: 1 << 18, ..options(KvKind::F16) });
    let shared = dice.tokens(CHUNK + 3, 97);
    let (mut submitted, mut over) = (0, 0);
    let mut open: Vec<TaskId> = Vec::new();
    while submitted < 10_000 || !scheduler.is_idle() {
        while submitted < 10_000 && open.len() < 16 {
            let keep = if dice.below(20) == 0 { shared.len() } else { 0 };
            let own = 1 + dice.below(4);
            let prompt = shared[..keep].iter().copied().chain(dice.tokens(own, 97)).collect();
            let job = Job { prompt, request: request(1 + dice.below(3)), speculation: None, priority: 0 };
            open.push(scheduler.intake().submit(job).unwrap());
            submitted += 1;
        }
        if dice.below(3) == 0 && !open.is_empty() {
            let id = open.swap_remove(dice.below(open.len()));
            scheduler.intake().cancel(id);
        }
        for event in scheduler.step() {
            if event.outcome.is_some() {
                over += 1;
                open.retain(|id| *id != event.id);
            }
        }
    }
    assert_eq!(over, 10_000);
    assert!(scheduler.prefixes().bytes() > 0, "the store took part");
    assert_eq!(rig.model.kv_meter().bytes(), scheduler.prefixes().bytes(), "only the store holds blocks");
    scheduler.prefixes().clear();
    assert_eq!(rig.model.kv_meter().blocks(), 0);
}

#[test]
fn a_decoding_task_gets_a_token_in_every_step_while_a_long_prompt_is_read_beside_it() {
    let rig = Rig::new(&Spec::tiny(), KernelSet::best(), 1, 2048, KvKind::F16, Sampling::default());
    let mut scheduler = scheduler(&rig, options(KvKind::F16));
    let short = Job { prompt: vec![3, 4, 5], request: request(1000), speculation: None, priority: 0 };
    let short = scheduler.intake().submit(short).unwrap();
    assert_eq!(scheduler.step().len(), 1);
    let prompt = Dice(1).tokens(1500, 97);
    let long = scheduler.intake().submit(Job { prompt, request: request(3), speculation: None, priority: 0 }).unwrap();
    let mut steps = 0;
    loop {
        let events = scheduler.step();
        assert!(events.iter().any(|e| e.id == short && e.step.as_ref().unwrap().tokens.len() == 1), "step {steps}");
        steps += 1;
        if events.iter().any(|event| event.id == long) {
            break;
        }
    }
    assert!(steps > 3, "a prompt of 1,500 tokens came in {steps} steps");
}

#[test]
fn a_task_that_begins_as_one_that_is_read_waits_and_computes_only_the_rest() {
    let rig = Rig::new(&Spec::tiny(), KernelSet::best(), 1, 1024, KvKind::F16, Sampling::default());
    let mut scheduler = scheduler(&rig, options(KvKind::F16));
    let shared = Dice(1).tokens(4 * CHUNK, 97);
    let mut outcomes = BTreeMap::new();
    for end in 0..3 {
        let prompt = shared.iter().copied().chain([end, 9]).collect();
        scheduler.intake().submit(Job { prompt, request: request(4), speculation: None, priority: 0 }).unwrap();
    }
    while !scheduler.is_idle() {
        for event in scheduler.step() {
            event.outcome.map(|outcome| outcomes.insert(event.id, outcome.stats));
        }
    }
    let read: Vec<(u64, u64)> = outcomes.values().map(|s| (s.cached_tokens, s.prefill_tokens)).collect();
    assert_eq!(read, [(0, 514), (512, 2), (512, 2)]);
}

#[test]
fn tasks_wait_for_memory_in_order_and_one_that_can_never_run_is_refused() {
    let rig = Rig::new(&Spec::tiny(), KernelSet::best(), 1, 1024, KvKind::F16, Sampling::default());
    let prompt = |n| Dice(n as u64).tokens(n, 97);
    let ask = |n| Job { prompt: prompt(n), request: request(20), speculation: None, priority: 0 };
    // Room for three blocks.
    let mut one = scheduler(&rig, options(KvKind::F16));
    one.intake().submit(ask(100)).unwrap();
    one.step();
    let block = rig.model.kv_meter().bytes();
    drop(one);
    let most = Some(3 * block);
    let mut scheduler =
        scheduler(&rig, SchedulerOptions { max_kv_bytes: most, prefix_bytes: 8 * block, ..options(KvKind::F16) });
    let refused = scheduler.intake().submit(ask(500)).unwrap_err();
    assert!(matches!(refused, Error::Option { what: "max_kv_bytes", .. }), "{refused}");
    let ids: Vec<TaskId> =
        [200, 100, 300, 50].into_iter().map(|n| scheduler.intake().submit(ask(n)).unwrap()).collect();
    let mut ended = Vec::new();
    while !scheduler.is_idle() {
        ended.extend(scheduler.step().into_iter().filter(|e| e.outcome.is_some()).map(|event| event.id));
        assert!(rig.model.kv_meter().bytes() <= 3 * block, "more than was allowed");
    }
    // The first two fit together; the third needs all and waits for both, and the small fourth does not overtake it.
    assert_eq!(ended, ids);
}
