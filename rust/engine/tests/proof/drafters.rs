//! I6 and R1 to R4: drafters that read hidden rows change no stream. Their proposers see committed positions only, each with the rows that a fresh forward has,
//! and hold no row of a token that the history has lost, whatever happens to a sequence.

use std::sync::Arc;

use quoth_draft::{CostPoint, CostTable, Gate, GateOptions};
use quoth_engine::decode::{Engine, Request, Sequence, Speculation};
use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::GgufBuilder;
use quoth_engine::proposer::{Drafter, Hidden, Kept, attach, hidden_rows};
use quoth_engine::sample::Sampling;
use quoth_engine::vocab::StopSet;
use quoth_kernels::attend::KvKind;
use quoth_kernels::{Format, KernelSet};

use crate::cast::{Method, Role, hire};
use crate::heads::{Free, HeadSpec, PARTS, Part, Player, block_drafter};
use crate::models::{Dice, Made, Spec};
use crate::rig::{Mishap, Rig, Run, Watched, assert_same_run, free, open_gate, request, uninterrupted, warm};

fn assert_kept_their_side(players: &[Arc<Player>], what: &str) {
    for player in players {
        let book = player.book.lock().unwrap();
        assert!(book.faults.is_empty(), "{what}: {:?}", &book.faults[..book.faults.len().min(5)]);
        assert_eq!(book.calls_after, 0, "{what}: a drafter that failed was called again");
    }
}

/// Turns that go on, that edit, that end by stops, lengths and consumers: the same on both sides.
fn converse(plain: &mut Watched, other: &mut Watched, streams: &[Vec<u32>], what: &str) {
    let [long, edited] = streams else { unreachable!() };
    let same = |plain: &mut Watched, other: &mut Watched, prompt: &[u32], request: Request, what: &str| {
        let (a, b) = (plain.run(prompt, request.clone()), other.run(prompt, request));
        assert_same_run(&a, &b, what);
        other.assert_same_state(plain, what);
        other.assert_contract(what);
    };
    same(plain, other, &long[..20], request(25), &format!("{what}, first turn"));
    same(plain, other, &long[..50], request(20), &format!("{what}, a turn that goes on"));
    let stop = Request { stop_ids: vec![long[66]], ..request(40) };
    same(plain, other, &long[..60], stop, &format!("{what}, a stop"));
    same(plain, other, edited, request(20), &format!("{what}, an edited prompt"));
    let texts = Arc::new(StopSet::new(&[b"e", b"t"]).unwrap());
    same(plain, other, &edited[..25], Request { stops: texts, ..request(30) }, &format!("{what}, stop texts"));
    for decoder in [&mut *plain, &mut *other] {
        decoder.decoder.rewind(17).unwrap();
    }
    same(plain, other, &long[..40], request(9), &format!("{what}, after going back"));
    // A consumer leaves after three steps, and comes back.
    let mut run = Run::default();
    run.take(other.begin(&long[..30], request(50), &mut |_, _| true).unwrap());
    other.go_on(&mut run, 3);
    same(plain, other, &long[..70], request(12), &format!("{what}, after leaving"));
}

#[test]
fn streams_are_plain_ones_whatever_a_drafter_guesses_beside_any_source() {
    for (case, part) in PARTS.into_iter().enumerate() {
        for (greedy, role) in [
            (true, Role::Silent),
            (false, Role::Silent),
            (true, Role::Cascade),
            (false, Role::Alternating),
            (true, Role::Raising(Method::Suggest)),
            (false, Role::Raising(Method::Observe)),
        ] {
            let rig = Rig::tiny(200, if greedy { Sampling::default() } else { warm(case as u64) });
            let prompt = Dice(case as u64).tokens(20, 97);
            let long = rig.stream(&prompt, 100);
            let edited: Vec<u32> = long[..12].iter().copied().chain(Dice(77).tokens(18, 97)).collect();
            let streams = [long.clone(), edited.clone()];
            let known = [long, rig.stream(&edited, 60), rig.stream(&edited[..25], 60)];
            let player = Player::new(part, &known, &rig.model, rig.kind);
            let mut other = rig.attended(role, &known, 6, vec![player.clone()]);
            let what = format!("{part:?} beside {role:?}, greedy {greedy}");
            converse(&mut rig.plain(), &mut other, &streams, &what);
            assert_kept_their_side(std::slice::from_ref(&player), &what);
            let asked = player.book.lock().unwrap().asked;
            assert!(asked > 2 || role != Role::Silent, "{what}: asked {asked} times");
        }
    }
}

#[test]
fn a_perfect_drafter_is_used_and_its_tokens_are_counted_by_depth() {
    let rig = Rig::tiny(200, Sampling::default());
    let stream = rig.stream(&Dice(3).tokens(20, 97), 80);
    let player = Player::new(Part::Perfect, std::slice::from_ref(&stream), &rig.model, rig.kind);
    let mut other = rig.attended(Role::Silent, &[], 6, vec![player]);
    other.run(&stream[..20], request(60));
    let stats = other.decoder.stats();
    assert!(stats.accepted * 10 > stats.committed * 7, "{stats:?}");
    let speculation = other.decoder.speculation_stats().unwrap();
    let own = speculation.sources.iter().find(|source| &*source.name == "player").unwrap();
    assert_eq!((own.accepted, own.drafted), (stats.accepted, stats.drafted));
    assert!(own.ns > 0 && own.grafted == 0);
    assert_eq!(own.depths[0].tried, own.drafts);
    assert!(own.depths.iter().all(|depth| depth.right == depth.tried), "{own:?}");
    assert_eq!(own.depths.iter().map(|depth| depth.right).sum::<u64>(), own.accepted);
}

#[test]
fn a_drafter_that_fails_is_asked_no_more_and_the_reason_is_told() {
    for part in [Part::FailsToGuess(2), Part::FailsToLearn(2)] {
        let rig = Rig::tiny(200, Sampling::default());
        let stream = rig.stream(&Dice(3).tokens(20, 97), 80);
        let player = Player::new(part, std::slice::from_ref(&stream), &rig.model, rig.kind);
        let mut other = rig.attended(Role::Silent, &[], 6, vec![player.clone()]);
        other.run(&stream[..20], request(60));
        let speculation = other.decoder.speculation_stats().unwrap();
        let own = speculation.sources.iter().find(|source| &*source.name == "player").unwrap();
        assert_eq!(own.reason.as_deref(), Some("internal error: a drafter that fails on purpose"), "{part:?}");
        assert_eq!(speculation.disabled, None, "the source goes on");
        assert_kept_their_side(&[player], &format!("{part:?}"));
    }
}

#[test]
fn a_step_that_fails_at_any_part_leaves_proposers_with_committed_rows_only() {
    for at in 0..40 {
        for mishap in [Mishap::Error, Mishap::Panic] {
            let rig = Rig::tiny(200, warm(at as u64));
            let prompt = Dice(at as u64).tokens(20, 97);
            let known = [rig.stream(&prompt, 80)];
            let players = [
                Player::new(Part::HalfWrong, &known, &rig.model, rig.kind),
                Player::new(Part::Perfect, &known, &rig.model, rig.kind),
            ];
            let drafters = players.iter().map(|player| player.clone() as Arc<dyn Drafter>).collect();
            let mut other = rig.attended(Role::Cascade, &known, 5, drafters);
            other.log.lock().unwrap().plan = Some((at, mishap));
            let what = format!("{mishap:?} at part {at}");
            let stuck = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| other.run(&prompt, request(40))));
            assert_eq!(stuck.is_err(), mishap == Mishap::Panic && other.log.lock().unwrap().plan.is_none(), "{what}");
            let mut plain = rig.plain();
            let (a, b) = (plain.run(&known[0][..45], request(25)), other.run(&known[0][..45], request(25)));
            assert_same_run(&a, &b, &what);
            assert_kept_their_side(&players, &what);
        }
    }
}

#[test]
fn a_fork_takes_over_what_the_drafters_know() {
    let rig = Rig::tiny(200, Sampling::default());
    let stream = rig.stream(&Dice(3).tokens(20, 97), 90);
    let player = Player::new(Part::Perfect, std::slice::from_ref(&stream), &rig.model, rig.kind);
    let mut other = rig.attended(Role::Silent, &[], 6, vec![player.clone()]);
    let mut run = Run::default();
    run.take(other.begin(&stream[..20], request(90), &mut |_, _| true).unwrap());
    other.go_on(&mut run, 4);
    let speculation = || {
        let (source, _) = hire(Role::Silent, &[], 97);
        let (gate, costs) = (Gate::new(open_gate()).unwrap(), uninterrupted(free()));
        Speculation { source, gate, costs, max_draft: 6, drafters: vec![player.clone() as Arc<dyn Drafter>] }
    };
    let mut fork = other.decoder.fork(Some(speculation())).unwrap();
    for decoder in [&mut fork, &mut other.decoder] {
        let step = decoder.begin(&stream[..60], request(25), &mut |_, _| true).unwrap();
        let mut tokens = step.tokens;
        while tokens.len() < 25 {
            tokens.extend(decoder.step().unwrap().tokens);
        }
        assert_eq!(tokens, stream[60..85]);
    }
    assert_kept_their_side(&[player], "a fork and its origin");
}

#[test]
fn in_a_batch_sequences_with_drafters_are_what_they_are_alone() {
    for case in 0..6u64 {
        let (mut dice, kind) = (Dice(case), [KvKind::F16, KvKind::Q8_0, KvKind::F32][case as usize % 3]);
        let rig = Rig::new(&Spec::tiny(), KernelSet::best(), 2, 200, kind, warm(case));
        let prompts: Vec<Vec<u32>> = (0..5)
            .map(|_| {
                let n = 1 + dice.below(60);
                dice.tokens(n, 97)
            })
            .collect();
        let known: Vec<Vec<u32>> = prompts.iter().map(|prompt| rig.stream(prompt, 60)).collect();
        let player = Player::new(PARTS[case as usize], &known, &rig.model, kind);
        let head = HeadSpec::of(&rig.made.spec).attach(&rig.made.spec, &rig.model);
        let costs = uninterrupted(free());
        let mut all: Vec<Sequence> = (0..5)
            .map(|i| {
                let (source, _) = hire(if i % 2 == 0 { Role::Cascade } else { Role::Silent }, &known, 97);
                let gate = Gate::new(open_gate()).unwrap();
                let drafters = vec![player.clone() as Arc<dyn Drafter>, head.clone()];
                let speculation = Speculation { source, gate, costs: costs.clone(), max_draft: 7, drafters };
                Sequence::new(rig.model.clone(), rig.vocab.clone(), kind, Some(speculation)).unwrap()
            })
            .collect();
        let mut engine = Engine::new(costs);
        for (sequence, prompt) in all.iter_mut().zip(&prompts) {
            sequence.begin(prompt, Request { sampling: rig.sampling.clone(), ..request(40) }, 0).unwrap();
        }
        let mut tokens = vec![Vec::new(); 5];
        while all.iter().any(Sequence::is_running) {
            let mut part: Vec<(usize, &mut Sequence)> =
                all.iter_mut().enumerate().filter(|(_, s)| s.is_running()).collect();
            let numbers: Vec<usize> = part.iter().map(|(i, _)| *i).collect();
            let mut part: Vec<&mut Sequence> = part.iter_mut().map(|(_, s)| &mut **s).collect();
            for (i, step) in numbers.into_iter().zip(engine.step(&mut part, 30)) {
                tokens[i].extend(step.unwrap().tokens);
            }
        }
        for (i, (known, prompt)) in known.iter().zip(&prompts).enumerate() {
            assert_eq!(tokens[i], known[prompt.len()..][..40], "case {case}, sequence {i}");
        }
        assert_kept_their_side(&[player], &format!("case {case}"));
    }
}

#[test]
fn heads_of_random_weights_change_no_stream_of_any_format_and_cache() {
    for (case, format) in [Format::Q8_0, Format::F16, Format::Q4_0, Format::F32].into_iter().enumerate() {
        for kind in [KvKind::F16, KvKind::F32, KvKind::Q8_0] {
            let spec = Spec { format, ..Spec::tiny() };
            let rig = Rig::new(&spec, KernelSet::best(), 1 + case % 2, 200, kind, warm(7)).blindly();
            let normed = case % 2 == 1;
            let n_draft = if case == 2 { spec.n_vocab } else { 61 };
            let head = HeadSpec { normed, n_draft, ..HeadSpec::of(&spec) }.attach(&spec, &rig.model);
            let long = rig.stream(&Dice(5).tokens(20, 97), 100);
            let edited: Vec<u32> = long[..12].iter().copied().chain(Dice(78).tokens(18, 97)).collect();
            let mut other = rig.attended(Role::Cascade, &[], 5, vec![head]);
            converse(&mut rig.plain(), &mut other, &[long, edited], &format!("{format:?}, {kind:?}"));
            let stats = other.decoder.speculation_stats().unwrap();
            let own = stats.sources.iter().find(|source| &*source.name == "eagle3").unwrap();
            assert_eq!(own.reason, None, "{format:?}, {kind:?}");
        }
    }
}

#[test]
fn block_drafters_of_random_weights_change_no_stream_also_at_the_end_of_the_context() {
    for (case, format) in [Format::Q8_0, Format::F16, Format::Q4_0, Format::F32].into_iter().enumerate() {
        for kind in [KvKind::F16, KvKind::F32, KvKind::Q8_0] {
            let spec = Spec { format, ..Spec::tiny() };
            let rig = Rig::new(&spec, KernelSet::best(), 1 + case % 2, 130, kind, warm(7)).blindly();
            let drafter = attach(&block_drafter(&spec, 6), &rig.model, &mut |_, _| true).unwrap();
            let long = rig.stream(&Dice(5).tokens(20, 97), 100);
            let edited: Vec<u32> = long[..12].iter().copied().chain(Dice(78).tokens(18, 97)).collect();
            let mut other = rig.attended(Role::Cascade, &[], 5, vec![Arc::new(Free(drafter))]);
            let (mut plain, what) = (rig.plain(), format!("{format:?}, {kind:?}"));
            converse(&mut plain, &mut other, &[long.clone(), edited], &what);
            // To the end of the context, and past the block's room.
            assert_same_run(&plain.run(&long, request(50)), &other.run(&long, request(50)), &what);
            let stats = other.decoder.speculation_stats().unwrap();
            let own = stats.sources.iter().find(|source| &*source.name == "dflash").unwrap();
            assert_eq!(own.reason, None, "{what}");
        }
    }
}

/// What a head's proposer gives, with any splits, gaps apart, is what one pass over the text gives.
#[test]
fn a_proposer_guesses_what_one_pass_over_the_text_gives_however_positions_came() {
    let spec = Spec::tiny();
    let rig = Rig::tiny(200, Sampling::default());
    let block = attach(&block_drafter(&spec, 6), &rig.model, &mut |_, _| true).unwrap();
    for head in [HeadSpec::of(&spec).attach(&spec, &rig.model), block] {
        guesses_are_those_of_one_pass(&rig, &head);
    }
}

fn guesses_are_those_of_one_pass(rig: &Rig, head: &Arc<dyn Drafter>) {
    let (text, n_taps) = (Dice(4).tokens(90, 97), head.taps().len());
    let hidden = hidden_rows(&rig.model, KvKind::F32, head.taps(), &text).unwrap();
    let part = |first: usize, n: usize| -> Vec<f32> {
        let layer = |l: usize| hidden[(l * 90 + first) * 64..(l * 90 + first + n) * 64].to_vec();
        (0..n_taps).flat_map(layer).collect()
    };
    for case in 0..20u64 {
        let mut dice = Dice(case);
        let mut proposer = head.clone().proposer(KvKind::F32).unwrap();
        let mut pos = 0;
        while pos < 80 {
            let n = (1 + dice.below(if case % 3 == 0 { 70 } else { 9 })).min(80 - pos);
            let values = part(pos, n);
            let kept = Hidden { values: &values, stride: n, n_embd: 64 };
            let history = &text[..pos + n + 1];
            proposer.settle(Kept { history, first: pos, n, hidden: kept }).unwrap();
            pos += n;
            let mut guesses = Vec::new();
            proposer
                .propose(history, 4, &mut |guess| {
                    guesses.push(guess.token);
                    guesses.len() < 4
                })
                .unwrap();
            let stride = history.len();
            let own: Vec<f32> = part(0, stride);
            let given = Hidden { values: &own, stride, n_embd: 64 };
            let trace = head.clone().trace(KvKind::F32, history, given, 4).unwrap();
            assert_eq!(guesses, trace.guesses, "case {case}, {pos} positions");
            // Going back and coming again changes nothing.
            if dice.below(3) == 0 && pos > 10 {
                pos -= 1 + dice.below(9);
                proposer.rewind(pos);
            }
        }
    }
}

#[test]
fn a_losing_drafter_is_shut_out_and_no_hidden_rows_are_copied_for_it_until_a_probe() {
    let rig = Rig::tiny(400, Sampling::default()).blindly();
    let prompt = Dice(8).tokens(20, 97);
    let known = [rig.stream(&prompt, 300)];
    let player = Player::new(Part::Garbage, &known, &rig.model, rig.kind);
    let (source, _) = hire(Role::Silent, &[], 97);
    // Every drafted token costs a fifth of a step.
    let points = (1..=16).map(|k| CostPoint { k, cost: 1.0 + k as f64 / 5.0 }).collect();
    let costs = uninterrupted(CostTable::new(points, "a test").unwrap());
    let gate = Gate::new(GateOptions { min_draft: 1, reprobe_after: 100, ..GateOptions::default() }).unwrap();
    let drafters = vec![player.clone() as Arc<dyn Drafter>];
    let mut other = rig.watched(Some(Speculation { source, gate, costs, max_draft: 8, drafters }), None);
    other.run(&prompt, request(250));
    let book = player.book.lock().unwrap();
    let steps = other.decoder.stats().steps as usize;
    assert!(book.faults.is_empty(), "{:?}", book.faults);
    assert!(book.asked > 0 && book.asked < 20, "asked {} times", book.asked);
    assert!(book.settles < steps / 2, "told {} times in {steps} steps", book.settles);
    let stats = other.decoder.speculation_stats().unwrap();
    let own = stats.sources.iter().find(|source| &*source.name == "player").unwrap();
    assert!(own.reason.as_deref().is_some_and(|reason| reason.starts_with("does not pay: ")), "{own:?}");
    assert_eq!(stats.gate.trips, 0, "the source's gate is its own");
}

#[test]
fn drafters_of_another_model_and_damaged_ones_are_refused_by_name() {
    let spec = Spec::tiny();
    let rig = Rig::tiny(64, Sampling::default());
    let refused = |head: &HeadSpec, target: &Spec| {
        attach(&head.file(target), &rig.model, &mut |_, _| true).err().map(|error| error.to_string()).unwrap()
    };
    let usual = HeadSpec::of(&spec);
    let wide = Spec { n_vocab: 300, ..spec.clone() };
    let expected = "head.gguf: a drafter with a vocabulary of 300 does not fit the model, which has 97";
    assert_eq!(refused(&usual, &wide), expected);
    let wide = Spec { n_embd: 128, ..spec.clone() };
    let expected = "head.gguf: a drafter with a target's hidden size of 128 does not fit the model, which has 64";
    assert_eq!(refused(&usual, &wide), expected);
    let deep = HeadSpec { taps: vec![0, 1, 33], ..HeadSpec::of(&spec) };
    let expected = "head.gguf: a drafter with the input of layer 33 does not fit the model, which has layers 0 to 2";
    assert_eq!(refused(&deep, &spec), expected);
    let strange = GgufBuilder::new().kv("general.architecture", "medusa").build();
    let strange = GgufFile::from_bytes("strange.gguf", strange).unwrap();
    let found = attach(&strange, &rig.model, &mut |_, _| true).err().unwrap().to_string();
    assert!(found.starts_with("strange.gguf: architecture `medusa` is no drafter, expected one of eagle3,"), "{found}");
    let other = Made::new(&Spec { n_vocab: 300, ..spec.clone() });
    let found = attach(&other.file(), &rig.model, &mut |_, _| true).err().unwrap().to_string();
    assert_eq!(found, "random.gguf: a drafter with a vocabulary of 300 does not fit the model, which has 97");
    let whole = usual.builder(&spec).build();
    for n in [whole.len() - 1, whole.len() / 2, 100] {
        let cut = GgufFile::from_bytes("cut.gguf", whole[..n].to_vec());
        assert!(cut.is_err() || attach(&cut.unwrap(), &rig.model, &mut |_, _| true).is_err(), "{n} bytes");
    }
}

#[test]
fn a_head_takes_nothing_of_its_target_twice() {
    let spec = Spec::tiny();
    let rig = Rig::tiny(64, Sampling::default());
    let own = HeadSpec::of(&spec).attach(&spec, &rig.model);
    let lent = HeadSpec { n_draft: spec.n_vocab, ..HeadSpec::of(&spec) }.attach(&spec, &rig.model);
    let (own, lent) = (own.description(), lent.description());
    assert!(own.lent_embedding && !own.lent_output && lent.lent_embedding && lent.lent_output);
    let rows = 61usize.next_multiple_of(16);
    assert_eq!(own.weight_bytes - lent.weight_bytes, rows * Format::Q8_0.row_bytes(64));
}

#[test]
fn a_smaller_model_with_the_same_vocabulary_drafts_and_changes_no_stream() {
    let spec = Spec::tiny();
    let windowed = Spec { tied: true, n_vocab: 97, ..Spec::of("gemma3", Format::Q8_0) };
    let small = Spec { n_layer: 1, seed: 9, ..spec.clone() };
    for (case, draft) in [&spec, &small, &windowed].into_iter().enumerate() {
        for (greedy, role) in
            [(true, Role::Silent), (false, Role::Silent), (true, Role::Cascade), (false, Role::Cascade)]
        {
            let rig = Rig::tiny(200, if greedy { Sampling::default() } else { warm(case as u64) });
            let drafter = attach(&Made::new(draft).file(), &rig.model, &mut |_, _| true).unwrap();
            let long = rig.stream(&Dice(5).tokens(20, 97), 100);
            let edited: Vec<u32> = long[..12].iter().copied().chain(Dice(78).tokens(18, 97)).collect();
            let mut other = rig.attended(role, &[], 5, vec![Arc::new(Free(drafter))]);
            let what = format!("draft model {case} beside {role:?}, greedy {greedy}");
            converse(&mut rig.plain(), &mut other, &[long.clone(), edited], &what);
            let stats = other.decoder.speculation_stats().unwrap();
            let own = stats.sources.iter().find(|source| &*source.name == "model").unwrap();
            assert!(own.drafts > 0 || role == Role::Cascade, "{what}: {own:?}");
            if (case, greedy, role) == (0, true, Role::Silent) {
                // The model itself guesses every token right.
                assert!(own.drafted > 5 && own.accepted == own.drafted, "{own:?}");
            }
        }
    }
}

/// O1: what a draft model guesses is what it says after the history, however it got there.
#[test]
fn a_draft_model_guesses_what_a_fresh_one_does_after_every_event() {
    let rig = Rig::tiny(300, Sampling::default());
    let small = Made::new(&Spec { n_layer: 1, seed: 9, ..Spec::tiny() });
    let drafter = attach(&small.file(), &rig.model, &mut |_, _| true).unwrap();
    let mut dice = Dice(6);
    let mut proposer = drafter.clone().proposer(KvKind::F16).unwrap();
    let mut history = dice.tokens(5, 97);
    let ask = |proposer: &mut Box<dyn quoth_engine::proposer::Proposer>, history: &[u32]| {
        let mut guesses = Vec::new();
        proposer
            .propose(history, 4, &mut |guess| {
                guesses.push(guess.token);
                guesses.len() < 4
            })
            .unwrap();
        guesses
    };
    for _ in 0..60 {
        let guesses = ask(&mut proposer, &history);
        let mut fresh = drafter.clone().proposer(KvKind::F16).unwrap();
        assert_eq!(guesses, ask(&mut fresh, &history), "after {} tokens", history.len());
        match dice.below(4) {
            0 => history.truncate(1 + dice.below(history.len())),
            1 => history.extend(&guesses[..1 + dice.below(4)]),
            2 => history.extend(dice.tokens(1 + history.len() % 40, 97)),
            _ => {
                history.extend(&guesses[..2]);
                history.push(7);
            }
        }
        history.truncate(250);
    }
    // The model itself guesses what it says.
    let same = attach(&rig.made.file(), &rig.model, &mut |_, _| true).unwrap();
    let stream = rig.stream(&history[..5], 40);
    assert_eq!(ask(&mut same.proposer(rig.kind).unwrap(), &stream[..20]), stream[20..24]);
}

/// R3: rows that are missing leave the positions of the others as they are. A cache that closed the gap would make the same guesses with and without it.
#[test]
fn a_gap_keeps_the_positions_of_the_rows_behind_it() {
    let spec = Spec::tiny();
    let rig = Rig::tiny(200, Sampling::default());
    let block = attach(&block_drafter(&spec, 6), &rig.model, &mut |_, _| true).unwrap();
    for head in [HeadSpec::of(&spec).attach(&spec, &rig.model), block] {
        let (mut differ, mut shifted) = (0, 0);
        for case in 0..20 {
            let text = Dice(case).tokens(60, 97);
            let n_taps = head.taps().len();
            let hidden = hidden_rows(&rig.model, KvKind::F32, head.taps(), &text).unwrap();
            let part = |first: usize, n: usize| -> Vec<f32> {
                (0..n_taps).flat_map(|l| hidden[(l * 60 + first) * 64..(l * 60 + first + n) * 64].to_vec()).collect()
            };
            // Ten positions, a gap or none, ten more with the rows of 40 .. 50.
            let guesses = |before: usize, gap: usize, splits: &[usize]| {
                let mut proposer = head.clone().proposer(KvKind::F32).unwrap();
                let history: Vec<u32> =
                    text[..before].iter().copied().chain(vec![3; gap]).chain(text[40..51].iter().copied()).collect();
                let mut tell = |first: usize, from: usize, n: usize| {
                    let values = part(from, n);
                    let hidden = Hidden { values: &values, stride: n, n_embd: 64 };
                    let kept = Kept { history: &history[..first + n + 1], first, n, hidden };
                    proposer.settle(kept).unwrap();
                };
                if before > 0 {
                    tell(0, 0, before);
                }
                let mut done = 0;
                for n in splits {
                    tell(before + gap + done, 40 + done, *n);
                    done += n;
                }
                let mut found = Vec::new();
                proposer
                    .propose(&history, 5, &mut |guess| {
                        found.push(guess);
                        found.len() < 5
                    })
                    .unwrap();
                found
            };
            assert_eq!(guesses(10, 30, &[10]), guesses(10, 30, &[3, 6, 1]), "case {case}");
            differ += usize::from(guesses(10, 30, &[10]) != guesses(10, 0, &[10]));
            // Rotations are relative: with nothing before it a part means the same wherever it stands, but for rounding.
            shifted += usize::from(guesses(0, 40, &[10]) != guesses(0, 0, &[10]));
        }
        assert!(differ > 5 && shifted < 3, "{:?}: {differ}, {shifted}", head.description().kind);
    }
}
