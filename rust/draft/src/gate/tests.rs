//! The gate's formulas by hand, its states, and what a run can lose.

use super::*;
use crate::cost::CostPoint;
use crate::oracle::Dice;
use proptest::prelude::*;

fn table(points: &[(usize, f64)]) -> CostTable {
    CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test").unwrap()
}

/// A gate over a flat cost, with short waits that losses do not draw out, and no credit.
fn flat(cost: f64) -> Gate {
    let waits = GateOptions { reprobe_after: 4, reprobe_max: 16, loss_share: 1.0, ..GateOptions::default() };
    let options = GateOptions { credit: 0.0, warmup: 0, ..waits };
    Gate::new(table(&[(1, cost)]), options).unwrap()
}

/// Asks until the gate allows; how many steps were refused.
fn refused(gate: &mut Gate) -> usize {
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
        ("baseline_after", GateOptions { baseline_after: 0, ..ok }),
        ("baseline_every", GateOptions { baseline_every: 0, ..ok }),
        ("idle_share", GateOptions { idle_share: 2.0, ..ok }),
    ];
    for (name, options) in cases {
        let error = Gate::new(CostTable::default(), options).map(|_| ()).unwrap_err();
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
    let mut gate = Gate::new(table(&[(1, 20.0)]), GateOptions { credit: 0.0, ..waits }).unwrap();
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
        let mut gate = Gate::new(table(&[(1, cost)]), GateOptions::default()).unwrap();
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
    assert_eq!(Gate::new(CostTable::default(), options).unwrap().budget(16), 16);
}

#[test]
fn the_first_draft_is_no_longer_than_its_risk_allows() {
    let gate = |points: &[(usize, f64)]| Gate::new(table(points), GateOptions::default()).unwrap();
    assert_eq!(gate(&[(1, 1.02), (4, 1.1), (8, 1.5), (16, 2.7)]).budget(16), 8);
    assert_eq!(gate(&[(1, 1.3), (4, 1.45), (8, 2.5)]).budget(16), 4);
    assert_eq!(gate(&[(1, 1.3), (4, 1.45), (8, 2.5)]).budget(3), 3);
    assert_eq!(gate(&[(2, 2.4), (4, 3.7)]).budget(16), 2, "min_draft is the floor");
    assert_eq!(gate(&[(2, 1.65), (4, 1.42), (8, 2.84)]).budget(16), 4, "a dip in the curve counts");
}

/// The scale after verifications that took `ns`, against a plain step of 1000 ns and a table that says 2.
fn scale_after(samples: &[u64]) -> f64 {
    let mut gate = flat(2.0);
    gate.record_plain(1000, 0);
    samples.iter().for_each(|&ns| gate.record_verify(4, 3, 4, ns));
    gate.stats().scale
}

#[test]
fn the_live_scale_is_a_clamped_moving_average() {
    let near = |scale: f64, expected: f64| assert!((scale - expected).abs() < 1e-9, "{scale}, expected {expected}");
    near(scale_after(&[2000; 5]), 1.0);
    near(scale_after(&[4000]), 1.2);
    near(scale_after(&[4000, 2000]), 0.2 + 0.8 * 1.2);
    assert!((scale_after(&[4000; 60]) - 2.0).abs() < 1e-3);
    near(scale_after(&[2_000_000]), 1.6);
    assert!((scale_after(&[2_000_000; 99]) - 4.0).abs() < 1e-3);
    near(scale_after(&[1]), 0.2 * 0.5 + 0.8);
    let mut gate = flat(2.0);
    gate.record_plain(1000, 0);
    (0..99).for_each(|_| gate.record_verify(4, 3, 4, 1));
    near(gate.stats().scale, 0.5);
    let mut gate = flat(1.5);
    gate.record_plain(1000, 0);
    (0..99).for_each(|_| gate.record_verify(4, 3, 4, 500));
    assert!(gate.verify_cost(4) >= 1.0 && gate.verify_cost(4) < 1.0 + 1e-9, "never less than a plain step");
}

#[test]
fn the_plain_step_is_a_moving_average_without_drafting() {
    let mut gate = flat(2.0);
    gate.record_verify(4, 3, 4, 9000);
    assert_eq!((gate.stats().scale, gate.stats().plain_ns), (1.0, None), "nothing to compare with yet");
    gate.record_plain(1000, 0);
    gate.record_plain(3000, 1000);
    assert_eq!(gate.stats().plain_ns, Some(0.25 * 2000.0 + 0.75 * 1000.0));
    gate.record_plain(0, 0);
    assert_eq!(gate.stats().plain_ns, Some(1250.0), "an untimed step says nothing");
}

#[test]
fn the_first_timings_are_left_out() {
    let mut gate = Gate::new(table(&[(1, 2.0)]), GateOptions { warmup: 1, ..GateOptions::default() }).unwrap();
    gate.record_plain(9_000_000, 0);
    assert_eq!(gate.stats().plain_ns, None);
    gate.record_plain(1000, 0);
    gate.record_verify(4, 3, 4, 9_000_000);
    assert_eq!((gate.stats().plain_ns, gate.stats().scale), (Some(1000.0), 1.0));
    gate.record_verify(4, 3, 4, 4000);
    assert!((gate.stats().scale - 1.2).abs() < 1e-12);
}

#[test]
fn a_stream_of_drafts_is_interrupted_to_time_a_plain_step() {
    let options = GateOptions { baseline_after: 3, baseline_every: 5, ..GateOptions::default() };
    let mut gate = Gate::new(table(&[(1, 2.0)]), options).unwrap();
    let mut allowed = String::new();
    for _ in 0..20 {
        if gate.allows() {
            gate.record_verify(4, 4, 5, 2000);
            allowed.push('v');
        } else {
            gate.record_plain(1000, 0);
            allowed.push('p');
        }
    }
    assert_eq!(allowed, "vvvpvvvvvpvvvvvpvvvv");
    assert_eq!(gate.stats().plain_ns, Some(1000.0), "not a first timing, so it counts at once");
    let mut untimed = Gate::new(table(&[(1, 2.0)]), options).unwrap();
    (0..20).for_each(|_| {
        assert!(untimed.allows());
        untimed.record_verify(4, 4, 5, 0);
    });
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
        let mut gate = Gate::new(CostTable::default(), GateOptions::default()).unwrap();
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
    let mut gate = Gate::new(table(&[(1, 2.0)]), options).unwrap();
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
        let mut gate = Gate::new(table(&[(1, 2.0)]), options).unwrap();
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
fn a_verification_while_closed_changes_the_scale_only() {
    let mut gate = flat(2.0);
    gate.record_plain(1000, 0);
    gate.record_verify(4, 0, 1, 2000);
    gate.record_verify(4, 0, 1, 2000);
    let before = gate.stats();
    gate.record_verify(4, 4, 5, 4000);
    let after = gate.stats();
    assert!(after.scale > before.scale);
    assert_eq!(GateStats { scale: before.scale, ..after }, before);
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
    let mut gate = Gate::new(costs.clone(), GateOptions::for_costs(costs)).unwrap();
    let (mut spent, mut done) = (0.0, 0);
    while done < tokens {
        let k = if gate.allows() { gate.budget(16) } else { 0 };
        let accepted = (0..k).take_while(|_| dice.chance(right(done))).count();
        spent += costs.cost(k);
        done += accepted + 1;
        let ns = (costs.cost(k) * 1e6) as u64;
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
        let mut gate = Gate::new(table(&[(1, cost)]), options).unwrap();
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
        let mut gate = Gate::new(costs.clone(), options).unwrap();
        let mut all = Vec::new();
        for (drafted, accepted) in outcomes {
            let accepted = accepted.min(drafted);
            gate.record_verify(drafted, accepted, accepted + 1, 0);
            all.push((drafted, accepted));
            let last = &all[all.len().saturating_sub(16)..];
            let cost: f64 = last.iter().map(|&(drafted, _)| costs.cost(drafted)).sum();
            let committed: usize = last.iter().map(|&(_, accepted)| accepted + 1).sum();
            prop_assert!((gate.stats().estimated_speedup.unwrap() - committed as f64 / cost).abs() < 1e-9);
            let (a, d) = last.iter().fold((0, 0), |(a, d), &(drafted, accepted)| (a + accepted, d + drafted));
            let expected = (2 + (a as f64 * 16.0 / d as f64).ceil() as usize).min(16);
            prop_assert_eq!(gate.budget(16), expected);
        }
    }
}
