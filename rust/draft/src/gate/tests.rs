//! The gate's formulas by hand, its states, and what a run can lose.

use super::*;
use crate::cost::{CostModel, CostOptions, Costs, TimedStep};
use crate::oracle::Dice;
use crate::table::{CostPoint, CostTable};
use proptest::prelude::*;
use std::ops::Deref;

fn table(points: &[(usize, f64)]) -> CostTable {
    CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test").unwrap()
}

/// The same cost for every draft.
fn level(cost: f64) -> CostTable {
    table(&[(1, cost), (2, cost)])
}

/// A gate and the costs of one sequence that is alone, recorded as `Speculator` records them.
struct Timed {
    gate: Gate,
    costs: Costs,
}

impl Deref for Timed {
    type Target = Gate;
    fn deref(&self) -> &Gate {
        &self.gate
    }
}

impl Timed {
    fn new(table: CostTable, options: GateOptions) -> Self {
        Self { gate: Gate::new(options).unwrap(), costs: CostModel::new(table).into() }
    }

    fn begin_request(&mut self) {
        self.gate.begin_request();
    }

    fn allows(&mut self) -> bool {
        self.gate.allows() && !self.costs.lock().wants_plain_step(1)
    }

    fn budget(&self, max_draft: usize) -> usize {
        let mut extra = Vec::new();
        self.costs.lock().extras(0, 1, 0, max_draft, &mut extra);
        self.gate.budget(max_draft, &extra)
    }

    fn record_plain(&mut self, ns: u64, draft_ns: u64) {
        let costs = self.costs.clone();
        costs.lock().observe(TimedStep { rows: 1, spans: 1, cached: 0, drafted: 0, ns: ns.saturating_sub(draft_ns) });
        if let Some(plain_ns) = costs.lock().plain_ns(0) {
            self.gate.record_plain(draft_ns as f64 / plain_ns);
        }
    }

    fn record_verify(&mut self, drafted: usize, accepted: usize, committed: usize, ns: u64) {
        self.costs.lock().observe(TimedStep { rows: drafted + 1, spans: 1, cached: 0, drafted, ns });
        let cost = self.costs.lock().draft_cost(drafted, drafted + 1, 1, 0);
        self.gate.record_verify(drafted, accepted, committed, cost);
    }
}

/// A gate over a level cost, with short waits that losses do not draw out, no credit, and no timings left out.
fn flat(cost: f64) -> Timed {
    let waits = GateOptions { reprobe_after: 4, reprobe_max: 16, loss_share: 1.0, ..GateOptions::default() };
    let costs = CostModel::with_options(level(cost), CostOptions { warmup: 0, ..CostOptions::default() }).unwrap();
    Timed { gate: Gate::new(GateOptions { credit: 0.0, ..waits }).unwrap(), costs: costs.into() }
}

/// Asks until the gate allows; how many steps were refused.
fn refused(gate: &mut Timed) -> usize {
    (0..).take_while(|_| !gate.allows()).count()
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let ok = GateOptions::default();
    assert_eq!(ok.validate(), Ok(()));
    let cases = [
        ("window", GateOptions { window: 1, ..ok }),
        ("min_speedup", GateOptions { min_speedup: f64::NAN, ..ok }),
        ("min_speedup", GateOptions { min_speedup: 0.0, ..ok }),
        ("probe_margin", GateOptions { probe_margin: -0.1, ..ok }),
        ("reprobe_after", GateOptions { reprobe_after: 0, ..ok }),
        ("reprobe_max", GateOptions { reprobe_max: 127, ..ok }),
        ("probe_steps", GateOptions { probe_steps: 0, ..ok }),
        ("probe_steps", GateOptions { probe_steps: 17, ..ok }),
        ("min_draft", GateOptions { min_draft: 0, ..ok }),
        ("first_risk", GateOptions { first_risk: f64::INFINITY, ..ok }),
        ("max_debt", GateOptions { max_debt: -1.0, ..ok }),
        ("credit", GateOptions { credit: f64::NAN, ..ok }),
        ("loss_share", GateOptions { loss_share: 0.0, ..ok }),
        ("idle_share", GateOptions { idle_share: 2.0, ..ok }),
    ];
    for (name, options) in cases {
        let error = Gate::new(options).map(|_| ()).unwrap_err();
        assert_eq!(error.option, name);
    }
}

#[test]
fn two_losing_verifications_close_and_failed_probes_double_the_wait() {
    let mut gate = flat(2.0);
    gate.record_verify(4, 0, 1, 0);
    assert_eq!(gate.state(), GateState::Open, "one is not enough");
    gate.record_verify(4, 0, 1, 0);
    assert_eq!(gate.state(), GateState::Closed);
    for wait in [4, 8, 16, 16] {
        assert_eq!(gate.stats().probe_in as usize, wait);
        assert_eq!(refused(&mut gate), wait - 1, "the step that ends the wait may draft");
        assert_eq!(gate.state(), GateState::Probing);
        gate.record_verify(4, 0, 1, 0);
        gate.record_verify(4, 0, 1, 0);
        assert_eq!(gate.state(), GateState::Closed, "a losing probe ends early");
    }
    let stats = gate.stats();
    assert_eq!((stats.trips, stats.probes, stats.reopened, stats.closed_steps), (1, 4, 0, 3 + 7 + 15 + 15));
    let reason = stats.reason.unwrap().to_string();
    assert_eq!(reason, "2 verifications committed 2 tokens at the cost of 4.0 plain steps");
}

#[test]
fn an_estimate_of_1_05_keeps_an_open_gate_but_does_not_reopen_a_closed_one() {
    let waits = GateOptions { reprobe_after: 32, reprobe_max: 128, loss_share: 1.0, ..GateOptions::default() };
    let mut gate = Timed::new(level(20.0), GateOptions { credit: 0.0, ..waits });
    for _ in 0..100 {
        gate.record_verify(30, 20, 21, 0);
        assert_eq!(gate.state(), GateState::Open);
    }
    assert!((gate.stats().estimated_speedup.unwrap() - 1.05).abs() < 1e-12);
    while gate.state() == GateState::Open {
        gate.record_verify(30, 0, 1, 0);
    }
    assert_eq!(refused(&mut gate), 31);
    for _ in 0..4 {
        assert_eq!(gate.state(), GateState::Probing);
        gate.record_verify(30, 20, 21, 0);
    }
    assert_eq!(gate.state(), GateState::Closed);
    assert_eq!(refused(&mut gate), 63);
    for _ in 0..4 {
        gate.record_verify(30, 21, 22, 0);
    }
    assert_eq!(gate.state(), GateState::Open, "1.10 reopens");
    assert!((gate.stats().estimated_speedup.unwrap() - 1.10).abs() < 1e-12, "and the ring is kept");
    while gate.state() == GateState::Open {
        gate.record_verify(30, 0, 1, 0);
    }
    assert_eq!(gate.stats().probe_in, 32, "a fresh trip waits the base again");
}

#[test]
fn a_wait_is_long_enough_for_the_loss_before_it() {
    for (cost, wait) in [(1.6, 128), (2.4, 280), (9.0, 1024)] {
        let mut gate = Timed::new(level(cost), GateOptions::default());
        gate.record_verify(4, 0, 1, 0);
        gate.record_verify(4, 0, 1, 0);
        assert_eq!(gate.stats().probe_in, wait, "after losing twice {cost} - 1");
    }
}

#[test]
fn plain_steps_inside_a_probe_do_not_use_it_up() {
    let mut gate = flat(2.0);
    gate.record_verify(4, 0, 1, 0);
    gate.record_verify(4, 0, 1, 0);
    refused(&mut gate);
    for _ in 0..100 {
        assert!(gate.allows());
        gate.record_plain(1_000_000, 100);
    }
    assert_eq!(gate.state(), GateState::Probing);
    (0..4).for_each(|_| gate.record_verify(4, 4, 5, 0));
    assert_eq!(gate.state(), GateState::Open);
}

#[test]
fn the_budget_follows_acceptance() {
    for (accepted, budget) in [(4, 6), (0, 2), (16, 16), (1, 3), (8, 10)] {
        let mut gate = flat(1.0);
        gate.record_verify(16, accepted, accepted + 1, 0);
        assert_eq!(gate.budget(16), budget, "{accepted} of 16");
    }
    let mut gate = flat(1.0);
    gate.record_verify(3, 1, 2, 0);
    assert_eq!(gate.budget(16), 8, "2 + ceil(16 / 3)");
    assert_eq!(gate.budget(5), 4);
    assert_eq!(gate.budget(1), 1, "never more than asked");
    let options = GateOptions { adapt_budget: false, ..GateOptions::default() };
    assert_eq!(Timed::new(CostTable::default(), options).budget(16), 16);
}

#[test]
fn the_first_draft_is_no_longer_than_its_risk_allows() {
    let gate = |points: &[(usize, f64)]| Timed::new(table(points), GateOptions::default());
    assert_eq!(gate(&[(1, 1.02), (4, 1.1), (8, 1.5), (16, 2.7)]).budget(16), 8);
    assert_eq!(gate(&[(1, 1.3), (4, 1.45), (8, 2.5)]).budget(16), 4);
    assert_eq!(gate(&[(1, 1.3), (4, 1.45), (8, 2.5)]).budget(3), 3);
    assert_eq!(gate(&[(2, 2.4), (4, 3.7)]).budget(16), 2, "min_draft is the floor");
    assert_eq!(gate(&[(2, 1.65), (4, 1.42), (8, 2.84)]).budget(16), 4, "a dip in the curve counts");
}

#[test]
fn a_quick_source_that_finds_nothing_never_closes_the_gate() {
    let mut gate = flat(2.0);
    for _ in 0..100_000 {
        assert!(gate.allows());
        gate.record_plain(10_000_000, 90_000);
    }
    assert_eq!(gate.stats().trips, 0);
}

#[test]
fn a_slow_source_that_finds_nothing_closes_it_and_loses_little() {
    for (draft_ns, bound) in [(500_000, 1.01), (5_000_000, 1.02), (20_000_000, 1.02)] {
        let mut gate = Timed::new(CostTable::default(), GateOptions::default());
        gate.record_plain(10_000_000, 0);
        gate.record_plain(10_000_000, 0);
        let (mut spent, steps) = (0.0, 2000);
        for _ in 0..steps {
            let draft_ns = if gate.allows() { draft_ns } else { 0 };
            gate.record_plain(10_000_000 + draft_ns, draft_ns);
            spent += 1.0 + draft_ns as f64 / 1e7;
        }
        assert!(gate.stats().trips == 1, "{:?}", gate.stats());
        assert!(gate.stats().reason.unwrap().to_string().contains("found nothing"));
        assert!(spent / f64::from(steps) <= bound, "{} at {draft_ns}", spent / f64::from(steps));
    }
}

#[test]
fn fruitless_drafting_is_charged_to_the_next_verification() {
    let mut gate = flat(2.0);
    gate.record_plain(1000, 0);
    (0..5).for_each(|_| gate.record_plain(1010, 10));
    gate.record_verify(4, 3, 4, 0);
    assert!((gate.stats().estimated_speedup.unwrap() - 4.0 / (2.0 + 0.05)).abs() < 1e-12);
    gate.record_verify(4, 3, 4, 0);
    assert!((gate.stats().estimated_speedup.unwrap() - 8.0 / (4.0 + 0.05)).abs() < 1e-12, "once");
}

#[test]
fn small_idle_shares_are_no_debt() {
    let mut gate = flat(1.2);
    gate.record_plain(10_000, 0);
    (0..1000).for_each(|_| gate.record_plain(10_090, 90));
    gate.record_verify(4, 0, 1, 0);
    gate.record_verify(4, 0, 1, 0);
    assert_eq!(gate.state(), GateState::Open, "0.4 lost, whatever the estimate says");
}

#[test]
fn a_probe_starts_without_the_debt_that_closed_the_gate() {
    let options = GateOptions { max_debt: 5.0, reprobe_after: 1, reprobe_max: 1, ..GateOptions::default() };
    let mut gate = Timed::new(level(2.0), options);
    (0..5).for_each(|_| gate.record_verify(4, 0, 1, 0));
    assert_eq!(gate.state(), GateState::Closed);
    assert!(gate.allows());
    (0..3).for_each(|_| gate.record_verify(4, 0, 1, 0));
    assert_eq!(gate.state(), GateState::Probing, "3 lost of 5");

    let mut gate = flat(2.0);
    gate.record_plain(1000, 0);
    gate.record_plain(6000, 5000);
    assert_eq!(gate.state(), GateState::Closed);
    refused(&mut gate);
    gate.record_verify(4, 4, 5, 0);
    assert_eq!(gate.stats().estimated_speedup, Some(2.5), "nor with the drafting time that did");
}

#[test]
fn what_was_earned_may_be_lost_again_but_not_more() {
    let options = GateOptions { credit: 8.0, ..GateOptions::default() };
    let losses = |credit_from: usize, new_request: bool| {
        let mut gate = Timed::new(level(2.0), options);
        (0..credit_from).for_each(|_| gate.record_verify(16, 2, 3, 0));
        if new_request {
            gate.begin_request();
        }
        (1..)
            .take_while(|_| {
                gate.record_verify(16, 0, 1, 0);
                gate.state() == GateState::Open
            })
            .count()
            + 1
    };
    assert_eq!(losses(0, false), 2);
    assert_eq!(losses(3, false), 4, "3 earned and 1 of debt");
    assert_eq!(losses(100, false), 9, "the credit and the debt");
    assert_eq!(losses(100, true), 5, "of another request's gain only a probe's worth counts");
}

#[test]
fn a_new_request_shortens_a_long_wait_to_the_base() {
    let mut gate = flat(2.0);
    for _ in 0..3 {
        refused(&mut gate);
        gate.record_verify(4, 0, 1, 0);
        gate.record_verify(4, 0, 1, 0);
    }
    assert_eq!(gate.stats().probe_in, 16);
    assert!(!gate.allows() && !gate.allows());
    gate.begin_request();
    assert_eq!(gate.stats().probe_in, 2);
    assert_eq!(refused(&mut gate), 1);
    gate.begin_request();
    assert_eq!(gate.state(), GateState::Probing, "a request changes nothing while the gate is not closed");
}

#[test]
fn a_verification_while_closed_changes_nothing_but_the_costs() {
    let mut gate = flat(2.0);
    gate.record_plain(1000, 0);
    gate.record_verify(4, 0, 1, 2000);
    gate.record_verify(4, 0, 1, 2000);
    let (before, scale) = (gate.stats(), gate.costs.lock().stats(1, 0).scale);
    gate.record_verify(4, 4, 5, 4000);
    assert_eq!(gate.stats(), before);
    assert!(gate.costs.lock().stats(1, 0).scale > scale);
}

/// Curves from nearly free to a mixture of experts.
fn curves() -> Vec<CostTable> {
    vec![
        table(&[(1, 1.02), (4, 1.10), (8, 1.5), (16, 2.7)]),
        CostTable::default(),
        table(&[(2, 1.65), (4, 1.42), (8, 2.84), (16, 4.5)]),
        table(&[(1, 1.7), (2, 2.0), (4, 2.5), (8, 4.0), (16, 4.6)]),
        table(&[(2, 2.4), (4, 3.7), (8, 5.5), (16, 8.0)]),
    ]
}

/// Cost of a run of `tokens` tokens over plain decoding, when each drafted token is right with the probability `right(pos)`.
fn run(costs: &CostTable, tokens: usize, dice: &mut Dice, right: impl Fn(usize) -> f64) -> f64 {
    let mut gate = Timed::new(costs.clone(), GateOptions::for_costs(costs));
    let (mut spent, mut done) = (0.0, 0);
    while done < tokens {
        let k = if gate.allows() { gate.budget(16) } else { 0 };
        let accepted = (0..k).take_while(|_| dice.chance(right(done))).count();
        spent += costs.cost(k, 0);
        done += accepted + 1;
        let ns = (costs.cost(k, 0) * 1e6) as u64;
        if k == 0 { gate.record_plain(ns, 0) } else { gate.record_verify(k, accepted, accepted + 1, ns) }
    }
    spent / done as f64
}

#[test]
fn useless_drafts_cost_at_most_two_percent() {
    for costs in curves() {
        for tokens in [200, 500, 2_000, 20_000] {
            let ratio = run(&costs, tokens, &mut Dice(1), |_| 0.0);
            assert!(ratio <= 1.02, "{ratio} for {tokens} tokens under {costs:?}");
        }
    }
}

#[test]
fn prose_costs_at_most_two_percent() {
    for costs in curves() {
        for right in [0.05, 0.15, 0.25, 0.35, 0.5] {
            let mut sum = 0.0;
            for seed in 0..100 {
                let ratio = run(&costs, 500, &mut Dice(seed), |_| right);
                assert!(ratio <= 1.04, "{ratio} with {right} under {costs:?}");
                sum += ratio / 100.0;
            }
            assert!(sum <= 1.02, "{sum} with {right} under {costs:?}");
        }
    }
}

/// Text that turns from quotation to prose and back, the worst case for whatever remembers.
#[test]
fn turning_text_is_no_loss() {
    for costs in curves() {
        for period in [20, 100, 400] {
            let ratio = run(&costs, 20_000, &mut Dice(4), |pos| if pos / period % 2 == 0 { 0.9 } else { 0.02 });
            assert!(ratio <= 1.01, "{ratio} with period {period} under {costs:?}");
        }
    }
}

#[test]
fn good_drafts_keep_most_of_their_gain() {
    for (costs, bound) in curves().into_iter().zip([0.35, 0.4, 0.55, 0.65, 1.0]) {
        let ratio = run(&costs, 5_000, &mut Dice(2), |_| 0.9);
        assert!(ratio <= bound, "{ratio} under {costs:?}");
    }
}

proptest! {
    /// G4: between opening and closing no more is lost than the debt and the two verifications that no rule can foresee.
    #[test]
    fn a_phase_loses_no_more_than_its_bound(
        outcomes in prop::collection::vec((1usize..17, 0usize..17), 1..400),
        cost in 1.0f64..5.0,
        credit in 0.0f64..10.0,
    ) {
        let options = GateOptions { reprobe_after: 1, reprobe_max: 1, credit, ..GateOptions::default() };
        let mut gate = Timed::new(level(cost), options);
        let mut net = 0.0;
        for (drafted, accepted) in outcomes {
            prop_assert!(gate.allows());
            let committed = accepted.min(drafted) + 1;
            gate.record_verify(drafted, committed - 1, committed, 0);
            net += committed as f64 - cost;
            prop_assert!(net >= -(options.max_debt + 2.0 * (cost - 1.0)) - 1e-9, "lost {}", -net);
            if gate.state() == GateState::Closed {
                net = 0.0;
            }
        }
    }

    /// The ring against the whole list of verifications.
    #[test]
    fn the_estimate_equals_the_sums_over_the_last_sixteen(outcomes in prop::collection::vec((1usize..17, 0usize..17), 1..60)) {
        let options = GateOptions { max_debt: 1000.0, ..GateOptions::default() };
        let costs = table(&[(1, 1.1), (16, 2.9)]);
        let mut gate = Timed::new(costs.clone(), options);
        let mut all = Vec::new();
        for (drafted, accepted) in outcomes {
            let accepted = accepted.min(drafted);
            gate.record_verify(drafted, accepted, accepted + 1, 0);
            all.push((drafted, accepted));
            let last = &all[all.len().saturating_sub(16)..];
            let cost: f64 = last.iter().map(|&(drafted, _)| costs.cost(drafted, 0)).sum();
            let committed: usize = last.iter().map(|&(_, accepted)| accepted + 1).sum();
            prop_assert!((gate.stats().estimated_speedup.unwrap() - committed as f64 / cost).abs() < 1e-9);
            let (a, d) = last.iter().fold((0, 0), |(a, d), &(drafted, accepted)| (a + accepted, d + drafted));
            let expected = (2 + (a as f64 * 16.0 / d as f64).ceil() as usize).min(16);
            prop_assert_eq!(gate.budget(16), expected);
        }
    }
}
