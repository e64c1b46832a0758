//! The planner against all ways to share rows, on small steps.

use super::*;
use crate::cost::CostModel;
use crate::oracle::Dice;
use crate::table::{CostPoint, CostTable};
use proptest::prelude::*;

fn model(points: &[(usize, f64)]) -> CostModel {
    let points = points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect();
    CostModel::new(CostTable::new(points, "a test").unwrap())
}

fn decode(spans: usize) -> BaseStep {
    BaseStep { rows: spans, spans, cached: 100 }
}

fn plan(offers: &[Vec<f64>], step: BaseStep, costs: &CostModel) -> Vec<usize> {
    let offers: Vec<&[f64]> = offers.iter().map(Vec::as_slice).collect();
    Planner::new().plan(&offers, step, costs)
}

#[test]
fn rows_go_to_the_drafts_that_are_likeliest_right_until_they_cost_too_much() {
    // Up to eight rows cost nothing more, each row beyond costs half a plain step.
    let costs = model(&[(1, 1.0), (7, 1.0), (15, 5.0)]);
    let offers = [vec![0.9, 0.8, 0.7, 0.1], vec![0.3, 0.1], vec![], vec![0.85, 0.75, 0.6]];
    // Four rows are free: 0.9, 0.85, 0.8, 0.75. A plain step is worth four tokens, so no other row pays.
    assert_eq!(plan(&offers, decode(4), &costs), [2, 0, 0, 2]);
    assert_eq!(plan(&offers, BaseStep { rows: 7, ..decode(4) }, &costs), [1, 0, 0, 0], "a prompt has taken three");
    assert_eq!(plan(&offers, BaseStep { rows: 40, ..decode(4) }, &costs), [0, 0, 0, 0]);
    assert_eq!(plan(&offers[2..3], decode(4), &costs), [0]);
    assert_eq!(plan(&[], decode(4), &costs), []);
}

#[test]
fn a_sequence_that_is_alone_keeps_its_draft() {
    let costs = model(&[(1, 9.0), (2, 99.0)]);
    assert_eq!(plan(&[vec![0.1, 0.05]], decode(1), &costs), [2]);
    assert_eq!(plan(&[vec![0.1, 0.05]], decode(2), &costs), [0]);
}

#[test]
fn a_batch_that_has_lately_done_better_takes_fewer_meagre_rows() {
    let costs = model(&[(1, 1.1), (3, 1.3), (7, 1.7), (15, 2.5)]);
    let offers = [vec![0.4, 0.25], vec![0.9, 0.8], vec![0.3], vec![]];
    let taken = |planner: &Planner| {
        let offers: Vec<&[f64]> = offers.iter().map(Vec::as_slice).collect();
        planner.plan(&offers, decode(4), &costs).iter().sum::<usize>()
    };
    let mut planner = Planner::new();
    let before = taken(&planner);
    (0..200).for_each(|_| planner.record(decode(4), 4, 8, &costs));
    assert!((planner.factor - 2.0 * 1.3 / 1.7).abs() < 0.01, "{}", planner.factor);
    assert!(taken(&planner) < before, "{} of {before}", taken(&planner));
    (0..200).for_each(|_| planner.record(BaseStep { rows: 99, ..decode(4) }, 4, 0, &costs));
    assert!(planner.factor > 1.5, "steps with prompts say nothing");
    (0..200).for_each(|_| planner.record(decode(2), 4, 2, &costs));
    assert_eq!(planner.factor, 1.0, "never less than without drafts");
}

/// All ways to cut the offers.
fn ways(offers: &[Vec<f64>]) -> Vec<Vec<usize>> {
    let Some((last, rest)) = offers.split_last() else { return vec![vec![]] };
    let longer = |way: Vec<usize>| (0..=last.len()).map(move |n| [&way[..], &[n]].concat());
    ways(rest).into_iter().flat_map(longer).collect()
}

proptest! {
    #[test]
    fn no_other_way_to_share_rows_gains_more(
        seed in prop::num::u64::ANY,
        spans in 2usize..5,
        prompt in 0usize..3,
        steps in 0usize..40,
    ) {
        let mut dice = Dice(seed);
        let mut points = vec![];
        for k in [1, 2, 3, 5, 8] {
            points.push((k, 1.0 + f64::from(dice.below(300)) / 100.0));
        }
        let costs = model(&points);
        let offers: Vec<Vec<f64>> = (0..spans)
            .map(|_| {
                let mut reach = 1.0;
                let len = dice.below(5);
                let fall = |_| {
                    // Ties between sequences are common: chances come in tenths.
                    reach *= f64::from(1 + dice.below(10)) / 10.0;
                    reach
                };
                (0..len).map(fall).collect()
            })
            .collect();
        let step = BaseStep { rows: spans + prompt, spans, cached: 0 };
        let mut planner = Planner::new();
        for _ in 0..steps {
            let drafted = dice.below(6) as usize;
            planner.record(decode(spans), drafted, spans + dice.below(1 + drafted as u32) as usize, &costs);
        }
        let rate = planner.factor * spans as f64 / costs.cost(spans, spans, 0);
        let gain = |way: &[usize]| {
            let expected: f64 = way.iter().zip(&offers).map(|(&n, reach)| reach[..n].iter().sum::<f64>()).sum();
            let rows = step.rows + way.iter().sum::<usize>();
            expected - rate * (costs.cost(rows, spans, 0) - costs.cost(step.rows, spans, 0))
        };
        let slices: Vec<&[f64]> = offers.iter().map(Vec::as_slice).collect();
        let taken = planner.plan(&slices, step, &costs);
        let best = ways(&offers).iter().map(|way| gain(way)).fold(f64::MIN, f64::max);
        prop_assert!((gain(&taken) - best).abs() < 1e-9, "{taken:?} gains {} of {best} with {offers:?}", gain(&taken));
        let fewest = ways(&offers).into_iter().filter(|way| gain(way) > best - 1e-9).map(|way| way.iter().sum::<usize>()).min();
        prop_assert!(taken.iter().sum::<usize>() <= fewest.unwrap() + usize::from(best < 1e-9), "no more rows than the gain needs");
    }
}
