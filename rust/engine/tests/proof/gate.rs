//! Obligation 5: the gate decides whether to guess, never what is committed. Streams are identical while it trips, backs off, probes and opens again.

use quoth_draft::{
    Cascade, CascadeOptions, CostModel, CostOptions, CostPoint, CostTable, Costs, Gate, GateOptions, GateReason,
    GateState, GateStats, ReplayOptions, Speculator, Turn, replay_turns,
};
use quoth_engine::decode::{Clock, Speculation};
use quoth_engine::sample::Sampling;

use crate::cast::Role;
use crate::rig::{Log, Rig, Shared, assert_same_run, free, open_gate, request, warm};

const PROMPT: [u32; 5] = [20, 21, 22, 20, 21];
const N: usize = 120;

/// Time stands still but for forwards, which the probe counts.
pub(crate) struct ByForwards(pub(crate) Shared<Log>);

impl Clock for ByForwards {
    fn now_ns(&mut self) -> u64 {
        self.0.lock().unwrap().now_ns
    }
}

/// Every look takes ten microseconds, so a suggestion does, too.
struct Ticking(u64);

impl Clock for Ticking {
    fn now_ns(&mut self) -> u64 {
        self.0 += 10_000;
        self.0
    }
}

/// How time passes.
#[derive(Debug, Clone, Copy)]
enum Time {
    Still,
    /// A row more costs half a plain step.
    Slow,
    Ticking,
}

fn table(points: &[(usize, f64)]) -> CostTable {
    CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test").unwrap()
}

/// A gate that decides quickly.
fn quick() -> GateOptions {
    GateOptions {
        window: 4,
        min_draft: 1,
        reprobe_after: 3,
        reprobe_max: 24,
        probe_steps: 2,
        max_debt: 0.5,
        credit: 2.0,
        loss_share: 1.0,
        ..GateOptions::default()
    }
}

/// Costs that often ask for a plain step.
fn inquiring(table: &CostTable) -> Costs {
    let options = CostOptions { baseline_after: 4, baseline_every: 8, ..CostOptions::default() };
    CostModel::with_options(table.clone(), options).unwrap().into()
}

/// A run behind a gate equals the plain one; what the gate did.
fn through(
    rig: &Rig,
    role: Role,
    streams: &[Vec<u32>],
    options: GateOptions,
    costs: &CostTable,
    time: Time,
) -> GateStats {
    let what = format!("{role:?}, {time:?}, {options:?}");
    let mut plain = rig.plain();
    let expected = plain.run(&PROMPT, request(N));
    let mut other = rig.gated(role, streams, 12, Gate::new(options).unwrap(), inquiring(costs));
    match time {
        Time::Still => other.decoder.set_clock(Box::new(ByForwards(other.log.clone()))),
        Time::Slow => {
            other.log.lock().unwrap().forward_ns = Some(|rows| 1_000 + 500 * (rows as u64 - 1));
            other.decoder.set_clock(Box::new(ByForwards(other.log.clone())));
        }
        Time::Ticking => other.decoder.set_clock(Box::new(Ticking(0))),
    }
    assert_same_run(&expected, &other.run(&PROMPT, request(N)), &what);
    other.assert_same_state(&plain, &what);
    other.assert_contract(&what);
    let stats = other.decoder.stats();
    let gate = other.decoder.speculation_stats().unwrap().gate;
    assert!(stats.plain_steps >= gate.closed_steps, "{what}: a step that was refused a draft is plain");
    gate
}

#[test]
fn streams_are_the_same_while_the_gate_trips_backs_off_probes_and_opens_again() {
    let mut sum = (0, 0, 0, 0, 0);
    for temperature in [0.0, 0.8] {
        let rig = Rig::tiny(160, Sampling { temperature, ..warm(3) }).blindly();
        let streams = [rig.stream(&PROMPT, N + 20)];
        let high = table(&[(1, 1.5), (4, 2.0), (8, 4.0)]);
        let mut all = Vec::new();
        for role in
            [Role::Perfect, Role::Garbage, Role::Alternating, Role::Silent, Role::Late(70), Role::Cascade, Role::Lying]
        {
            for time in [Time::Still, Time::Slow, Time::Ticking] {
                for adapt_budget in [false, true] {
                    for costs in [&high, &free()] {
                        let options = GateOptions { adapt_budget, ..quick() };
                        all.push((role, time, through(&rig, role, &streams, options, costs, time)));
                    }
                }
            }
        }
        for (role, time, gate) in &all {
            sum.0 += gate.trips;
            sum.1 += gate.probes;
            sum.2 += gate.reopened;
            sum.3 += gate.closed_steps;
            sum.4 += u64::from(matches!(gate.reason, Some(GateReason::Idle { .. })));
            if matches!((role, time), (Role::Silent, Time::Still)) {
                assert_eq!(
                    (gate.trips, gate.state),
                    (0, GateState::Open),
                    "silence costs nothing where time stands still"
                );
            }
        }
        let of = |role: Role| all.iter().filter(move |(r, ..)| *r == role).map(|(_, _, gate)| gate);
        assert!(of(Role::Garbage).any(|gate| gate.trips >= 1 && gate.probes >= 2), "garbage trips, and probes fail");
        assert!(
            of(Role::Late(70)).any(|gate| gate.reopened >= 1 && gate.state == GateState::Open),
            "a source that improves is let in again"
        );
        assert!(of(Role::Perfect).all(|gate| gate.estimated_speedup.is_some() || gate.state == GateState::Closed));
    }
    let (trips, probes, reopened, closed, idle) = sum;
    assert!(trips > 20 && probes > 40 && reopened > 4 && closed > 500 && idle > 0, "{sum:?}");
}

#[test]
fn the_same_times_give_the_same_decisions() {
    let rig = Rig::tiny(160, warm(3));
    let streams = [rig.stream(&PROMPT, N + 20)];
    for time in [Time::Still, Time::Slow, Time::Ticking] {
        let run = || through(&rig, Role::Alternating, &streams, quick(), &table(&[(1, 1.2), (8, 2.0)]), time);
        assert_eq!(run(), run(), "{time:?}");
    }
}

#[test]
fn a_gate_that_was_closed_in_one_turn_changes_nothing_in_the_next() {
    let rig = Rig::tiny(400, warm(5));
    let streams = [rig.stream(&PROMPT, 380)];
    let gate = Gate::new(quick()).unwrap();
    let costs = inquiring(&table(&[(1, 3.0)]));
    let (mut plain, mut other) = (rig.plain(), rig.gated(Role::Garbage, &streams, 8, gate, costs));
    let mut prompt = PROMPT.to_vec();
    for turn in 0..4 {
        let expected = plain.run(&prompt, request(60));
        assert_same_run(&expected, &other.run(&prompt, request(60)), &format!("turn {turn}"));
        other.assert_same_state(&plain, &format!("turn {turn}"));
        prompt = plain.decoder.history().iter().copied().chain([9, 8, 7]).collect();
    }
    assert!(other.decoder.speculation_stats().unwrap().gate.trips > 0);
}

/// A replay of the committed tokens takes the decoder's steps, also where the clock contradicts the table: gate, costs and drafts are those of one type.
#[test]
fn a_replay_takes_the_steps_of_the_decoder_at_any_pace() {
    const SECOND: u64 = 1_000_000_000;
    let paces: [fn(usize) -> u64; 3] = [
        |rows| SECOND + SECOND / 8 * (rows as u64 - 1),
        |rows| SECOND + SECOND / 4 * (rows as u64 - 1),
        |rows| SECOND * (1 + rows as u64 / 5),
    ];
    let says = table(&[(1, 1.02), (4, 1.1), (8, 1.5), (16, 2.7)]);
    let rig = Rig::tiny(640, warm(3)).blindly();
    let mut drafted = 0;
    for (pace, forward_ns) in paces.into_iter().enumerate() {
        let gate = || Gate::new(GateOptions { min_draft: 1, ..GateOptions::default() }).unwrap();
        let mut decoder = rig.gated(Role::Cascade, &[], 12, gate(), inquiring(&says));
        decoder.log.lock().unwrap().forward_ns = Some(forward_ns);
        decoder.decoder.set_clock(Box::new(ByForwards(decoder.log.clone())));
        let run = decoder.run(&PROMPT, request(600));

        let n_vocab = rig.model.config().n_vocab;
        let cascade = Cascade::new(n_vocab, CascadeOptions::default()).unwrap();
        let mut speculator = Speculator::new(Box::new(cascade), gate(), inquiring(&says), 12).unwrap();
        let truth = (0..13).skip(1).map(|k| (k, forward_ns(k + 1) as f64 / SECOND as f64)).collect::<Vec<_>>();
        let options = ReplayOptions { plain_ns: SECOND, draft_ns: 0, costs: table(&truth), ..ReplayOptions::default() };
        let turn = Turn { prompt: &PROMPT, answer: &run.tokens, ..Turn::default() };
        let mut steps = vec![1];
        replay_turns(&[turn], &mut speculator, &options, |step| steps.push(step.committed)).unwrap();
        assert_eq!(steps, run.steps.0, "pace {pace}");
        let (decoded, replayed) = (decoder.decoder.speculation_stats().unwrap(), speculator.stats());
        assert_eq!((decoded.sources, decoded.gate.trips), (replayed.sources, replayed.gate.trips), "pace {pace}");
        assert!((decoded.costs.scale - replayed.costs.scale).abs() < 1e-6);
        assert!((decoded.costs.scale - 1.0).abs() > 0.02, "the table is wrong: {}", decoded.costs.scale);
        drafted += decoder.decoder.stats().drafted;
    }
    assert!(drafted > 100, "{drafted}");
}

#[test]
fn a_shortest_draft_above_the_longest_is_refused_by_name() {
    let rig = Rig::tiny(32, Sampling::default());
    let refused = |min_draft, max_draft| {
        let gate = Gate::new(GateOptions { min_draft, ..open_gate() }).unwrap();
        let (source, _) = crate::cast::hire(Role::Silent, &[], 97);
        let speculation = Speculation { source, gate, costs: free().into(), max_draft, drafters: Vec::new() };
        let made =
            quoth_engine::decode::Decoder::new(rig.model.clone(), rig.vocab.clone(), rig.kind, Some(speculation));
        made.err().map(|e| e.to_string())
    };
    assert_eq!(refused(3, 2).unwrap(), "min_draft is 3, expected at most max_draft, 2");
    assert_eq!(refused(1, 0).unwrap(), "max_draft is 0, expected 1 to 64");
    assert_eq!(refused(1, 65).unwrap(), "max_draft is 65, expected 1 to 64");
    assert_eq!(refused(2, 2), None);
}
