//! The model's formulas by hand: alone as one sequence, in company, at contexts of its own.

use super::*;
use crate::table::CostPoint;
use proptest::prelude::*;

fn table(points: &[(usize, f64)]) -> CostTable {
    CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test").unwrap()
}

/// The same prior for any draft, and no timings left out.
fn level(cost: f64) -> CostModel {
    let options = CostOptions { warmup: 0, ..CostOptions::default() };
    CostModel::with_options(table(&[(1, cost), (2, cost)]), options).unwrap()
}

/// One sequence: a step with `drafted` tokens.
fn alone(drafted: usize, ns: u64) -> TimedStep {
    TimedStep { rows: drafted + 1, spans: 1, cached: 0, drafted, ns }
}

fn scale(model: &CostModel) -> f64 {
    model.stats(1, 0).scale
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let ok = CostOptions::default();
    let refused = |options| CostModel::with_options(CostTable::default(), options).map(|_| ()).unwrap_err().option;
    assert_eq!(refused(CostOptions { baseline_after: 0, ..ok }), "baseline_after");
    assert_eq!(refused(CostOptions { baseline_every: 0, ..ok }), "baseline_every");
}

#[test]
fn before_anything_is_timed_costs_are_those_of_the_table() {
    let model = CostModel::new(table(&[(1, 1.1), (3, 1.5), (7, 2.3)]));
    for (rows, cost) in [(1, 1.0), (2, 1.1), (4, 1.5), (8, 2.3), (12, 3.1)] {
        assert_near(model.cost(rows, 1, 500), cost);
        assert_near(model.cost(rows, 4.min(rows), 500), cost);
    }
    assert_near(model.cost(1, 4, 500), 1.5);
}

/// The scale after verifications that took `ns`, against a plain step of 1000 ns and a table that says 2.
fn scale_after(samples: &[u64]) -> f64 {
    let mut model = level(2.0);
    model.observe(alone(0, 1000));
    samples.iter().for_each(|&ns| model.observe(alone(4, ns)));
    scale(&model)
}

#[test]
fn the_live_scale_is_a_clamped_moving_average() {
    assert_near(scale_after(&[2000; 5]), 1.0);
    assert_near(scale_after(&[4000]), 1.2);
    assert_near(scale_after(&[4000, 2000]), 0.2 + 0.8 * 1.2);
    assert!((scale_after(&[4000; 60]) - 2.0).abs() < 1e-3);
    assert_near(scale_after(&[2_000_000]), 1.6);
    assert!((scale_after(&[2_000_000; 99]) - 4.0).abs() < 1e-3);
    assert_near(scale_after(&[1]), 0.2 * 0.5 + 0.8);
    assert_near(scale_after(&[1; 99]), 0.5);
    let mut model = level(1.5);
    model.observe(alone(0, 1000));
    (0..99).for_each(|_| model.observe(alone(4, 500)));
    assert!(model.cost(5, 1, 0) >= 1.0 && model.cost(5, 1, 0) < 1.0 + 1e-9, "never less than a plain step");
}

#[test]
fn the_plain_step_is_a_moving_average() {
    let mut model = level(2.0);
    model.observe(alone(4, 9000));
    assert_eq!((scale(&model), model.plain_ns(0)), (1.0, None), "nothing to compare with yet");
    model.observe(alone(0, 1000));
    model.observe(alone(0, 2000));
    assert_eq!(model.plain_ns(0), Some(0.25 * 2000.0 + 0.75 * 1000.0));
    model.observe(alone(0, 0));
    assert_eq!(model.plain_ns(0), Some(1250.0), "an untimed step says nothing");
}

#[test]
fn the_first_timings_are_left_out() {
    let mut model = CostModel::new(table(&[(1, 2.0), (2, 2.0)]));
    model.observe(alone(0, 9_000_000));
    assert_eq!(model.plain_ns(0), None);
    model.observe(alone(0, 1000));
    model.observe(alone(4, 9_000_000));
    assert_eq!((model.plain_ns(0), scale(&model)), (Some(1000.0), 1.0));
    model.observe(alone(4, 4000));
    assert_near(scale(&model), 1.2);
}

#[test]
fn a_stream_of_drafts_is_interrupted_to_time_a_plain_step() {
    let options = CostOptions { baseline_after: 3, baseline_every: 5, ..CostOptions::default() };
    for spans in [1, 4] {
        let mut model = CostModel::with_options(table(&[(1, 2.0)]), options).unwrap();
        let mut steps = String::new();
        for _ in 0..20 {
            if model.wants_plain_step(spans) {
                model.observe(TimedStep { rows: spans, spans, cached: 0, drafted: 0, ns: 1000 });
                steps.push('p');
            } else {
                model.observe(TimedStep { rows: spans + 4, spans, cached: 0, drafted: 4, ns: 2000 });
                steps.push('v');
            }
        }
        assert_eq!(steps, "vvvpvvvvvpvvvvvpvvvv");
        assert!(!model.wants_plain_step(5 - spans), "the counts of one and of several are apart");
    }
    let mut model = CostModel::with_options(table(&[(1, 2.0)]), options).unwrap();
    (0..20).for_each(|_| {
        assert!(!model.wants_plain_step(1), "what was not timed needs nothing to compare with");
        model.observe(alone(4, 0));
    });
}

/// What verification costs at one context says nothing about another that has been timed, and something about one that has not.
#[test]
fn each_context_has_a_scale_of_its_own_and_unseen_ones_take_the_nearest() {
    let mut model = level(2.0);
    for (cached, plain, verify) in [(100, 1000, 2000), (5_000, 1500, 6000)] {
        for _ in 0..60 {
            model.observe(TimedStep { cached, ..alone(0, plain) });
            model.observe(TimedStep { cached, ..alone(4, verify) });
        }
    }
    for (cached, cost, plain) in
        [(0, 2.0, 1000.0), (127, 2.0, 1000.0), (500, 2.0, 1000.0), (3_000, 4.0, 1500.0), (1 << 40, 4.0, 1500.0)]
    {
        assert!((model.cost(5, 1, cached) - cost).abs() < 1e-3, "{} at {cached}", model.cost(5, 1, cached));
        assert!((model.plain_ns(cached).unwrap() - plain).abs() < 1e-3, "at {cached}");
    }
}

#[test]
fn a_new_bucket_goes_on_from_its_neighbour() {
    let mut model = level(2.0);
    model.observe(alone(0, 1000));
    model.observe(TimedStep { cached: 64, ..alone(0, 2000) });
    assert_eq!((model.plain_ns(0), model.plain_ns(64)), (Some(1000.0), Some(1250.0)));
    model.observe(alone(4, 4000));
    model.observe(TimedStep { cached: 64, ..alone(4, 2500) });
    assert_near(model.stats(1, 64).scale, 0.2 + 0.8 * 1.2);
}

#[test]
fn of_two_buckets_equally_near_the_lower_counts() {
    let mut model = level(2.0);
    model.observe(TimedStep { cached: 64, ..alone(0, 1000) });
    model.observe(TimedStep { cached: 300, ..alone(0, 5000) });
    assert_eq!(model.plain_ns(128), Some(1000.0));
}

/// M3 by hand. The table says 1.5 for four rows and 2.3 for eight.
#[test]
fn the_costs_of_a_batch_are_learned_apart_from_those_of_one_sequence() {
    let step = |drafted: usize, ns| TimedStep { rows: 4 + drafted, spans: 4, cached: 0, drafted, ns };
    let prior = || CostModel::new(table(&[(1, 1.1), (3, 1.5), (7, 2.3)]));
    let mut model = prior();
    (0..60).for_each(|_| model.observe(alone(0, 1000)));
    (0..60).for_each(|_| model.observe(alone(3, 3000)));
    assert!((model.cost(4, 1, 0) - 3.0).abs() < 1e-3);
    assert!(
        (model.cost(4, 4, 0) - 3.0).abs() < 1e-3,
        "as long as no batch was timed, the scale of one sequence is the best guess"
    );
    (0..60).for_each(|_| model.observe(step(0, 2000)));
    assert!((model.cost(4, 4, 0) - 2.0).abs() < 1e-3, "2000 ns are two plain steps");
    assert!((model.cost(8, 4, 0) - 2.0 * 2.3 / 1.5).abs() < 1e-3, "drafts cost what the table says above that");
    (0..60).for_each(|_| model.observe(step(4, 4000)));
    assert!((model.cost(8, 4, 0) - 4.0).abs() < 1e-3);
    assert!((model.cost(4, 1, 0) - 3.0).abs() < 1e-3, "one sequence is not touched");
    (0..60).for_each(|_| model.observe(step(4, 1)));
    assert!((model.cost(8, 4, 0) - model.cost(4, 4, 0)).abs() < 1e-3, "never less than without drafts");
}

#[test]
fn a_step_with_rows_of_a_prompt_teaches_no_cost() {
    let mut model = level(2.0);
    model.observe(TimedStep { rows: 128, spans: 2, cached: 0, drafted: 0, ns: 70_000 });
    model.observe(TimedStep { rows: 128, spans: 1, cached: 0, drafted: 0, ns: 70_000 });
    model.observe(TimedStep { rows: 132, spans: 2, cached: 0, drafted: 4, ns: 70_000 });
    assert_eq!((model.plain_ns(0), model.stats(2, 0).scale, model.company.unbased), (None, 1.0, 0));
}

/// A draft's cost by hand: eight rows cost 2.3, four 1.5, so four drafted rows add 0.8, at four tokens in 1.5.
#[test]
fn a_draft_in_company_costs_its_share_of_the_batch() {
    let model = CostModel::new(table(&[(1, 1.1), (3, 1.5), (7, 2.3)]));
    assert_near(model.draft_cost(4, 8, 4, 0), 1.0 + 0.8 * 4.0 / 1.5);
    // The same step, of which another sequence drafted two rows: this draft is the costlier half or the cheaper, and pays only for itself.
    assert_near(model.draft_cost(2, 8, 4, 0), 1.0 + 0.4 * 4.0 / 1.5);
    assert_near(model.draft_cost(0, 8, 4, 0), 1.0);
    let mut extra = Vec::new();
    model.extras(3, 4, 0, 4, &mut extra);
    assert_near(extra[4], 0.8 * 4.0 / 1.5);
    assert_eq!(extra.len(), 5);
}

proptest! {
    /// Alone a draft's cost is its verification's, to the bit.
    #[test]
    fn alone_a_draft_costs_what_its_verification_does(
        steps in prop::collection::vec((0usize..17, 1u64..5000, 0usize..9000), 0..60),
        cached in 0usize..9000,
    ) {
        let mut model = CostModel::new(CostTable::default());
        for (drafted, ns, cached) in steps {
            model.observe(TimedStep { cached, ..alone(drafted, ns) });
        }
        let mut extra = Vec::new();
        model.extras(0, 1, cached, 64, &mut extra);
        for (drafted, extra) in extra.into_iter().enumerate() {
            let cost = model.cost(drafted + 1, 1, cached);
            prop_assert!(cost >= 1.0);
            prop_assert_eq!(model.draft_cost(drafted, drafted + 1, 1, cached), cost);
            prop_assert_eq!(extra, cost - 1.0);
        }
    }

    /// No step costs less than without its drafts, in any company, whatever was timed.
    #[test]
    fn drafts_never_make_a_step_cheaper(
        steps in prop::collection::vec((1usize..9, 0usize..17, 1u64..5000), 0..60),
        spans in 1usize..9,
        others in 0usize..20,
        drafted in 0usize..20,
    ) {
        let mut model = CostModel::new(CostTable::default());
        for (spans, drafted, ns) in steps {
            model.observe(TimedStep { rows: spans + drafted, spans, cached: 0, drafted, ns });
        }
        let others = if spans == 1 { 0 } else { others };
        prop_assert!(model.draft_cost(drafted, spans + others + drafted, spans, 0) >= 1.0);
    }
}
