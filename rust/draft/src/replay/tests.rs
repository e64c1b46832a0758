//! Replay by hand, on lying sources, and on streams whose answer is known.

use super::*;
use crate::cascade::Cascade;
use crate::cost::CostPoint;
use crate::gate::GateOptions;
use crate::oracle::{self, Dice};
use crate::policy::CascadeOptions;
use proptest::prelude::*;

fn table(points: &[(usize, f64)]) -> CostTable {
    CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test").unwrap()
}

fn goal() -> CostTable {
    table(&[(1, 1.02), (4, 1.10), (8, 1.5), (16, 2.7)])
}

/// A source that drafts by a rule of the trace, the place and what is asked, and notes what it observes.
struct Rule<F> {
    trace: Vec<u32>,
    seen: Vec<u32>,
    rule: F,
}

impl<F: FnMut(&[u32], usize, usize) -> Vec<u32> + Send> DraftSource for Rule<F> {
    fn suggest(&mut self, context: &[u32], max_tokens: usize, out: &mut Vec<u32>) -> Result<(), SourceError> {
        assert_eq!(context, self.seen, "the context is what was observed");
        out.extend((self.rule)(&self.trace, context.len(), max_tokens));
        Ok(())
    }

    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        self.seen.extend(committed);
        Ok(())
    }

    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        self.seen = history.to_vec();
        Ok(())
    }
}

fn run(
    trace: &[u32],
    options: &ReplayOptions,
    rule: impl FnMut(&[u32], usize, usize) -> Vec<u32> + Send,
) -> (ReplayReport, Vec<ReplayStep>) {
    let mut source = Rule { trace: trace.to_vec(), seen: vec![], rule };
    let mut gate = Gate::new(options.costs.clone(), GateOptions::for_costs(&options.costs)).unwrap();
    let mut steps = Vec::new();
    let report = replay(trace, &mut source, &mut gate, options, |step| steps.push(*step)).unwrap();
    assert_eq!(source.seen, trace, "every token is observed once, in order");
    (report, steps)
}

fn options(costs: CostTable) -> ReplayOptions {
    ReplayOptions { plain_ns: 1_000_000, draft_ns: 0, costs, ..ReplayOptions::default() }
}

#[test]
fn the_sums_are_those_of_the_steps() {
    let trace: Vec<u32> = (0..10).collect();
    let options = ReplayOptions { prompt_tokens: 2, max_draft: 4, ..options(table(&[(1, 1.5), (4, 3.0)])) };
    // Three right of four, then right all along: 2 | 3 4 5 6 | 7 8 9: the last draft is bounded by the trace.
    let (report, steps) = run(&trace, &options, |trace, pos, max| match pos {
        2 => vec![],
        3 => vec![3, 4, 5, 99],
        _ => trace[pos..pos + max].to_vec(),
    });
    let taken: Vec<_> = steps.iter().map(|s| (s.pos, s.drafted, s.accepted, s.committed)).collect();
    assert_eq!(taken, [(2, 0, 0, 1), (3, 2, 2, 3), (6, 3, 3, 4)]);
    assert_eq!((report.tokens, report.steps, report.verify_steps, report.closed_steps), (8, 3, 2, 0));
    assert_eq!((report.drafted, report.accepted), (5, 5));
    assert!((report.cost - (1.0 + 2.0 + 2.5)).abs() < 1e-12);
    assert!((report.speedup() - 8.0 / 5.5).abs() < 1e-12);
    assert!((report.tokens_per_step() - 8.0 / 3.0).abs() < 1e-12);
}

#[test]
fn options_out_of_range_are_refused() {
    let refused = |options: ReplayOptions| {
        let mut gate = Gate::new(CostTable::default(), GateOptions::default()).unwrap();
        let mut source = Cascade::new(9, CascadeOptions::default()).unwrap();
        replay(&[1, 2], &mut source, &mut gate, &options, |_| {}).unwrap_err().to_string()
    };
    assert!(refused(ReplayOptions { prompt_tokens: 3, ..Default::default() }).starts_with("`prompt_tokens`"));
    assert!(refused(ReplayOptions { max_draft: 0, ..Default::default() }).starts_with("`max_draft`"));
    assert!(refused(ReplayOptions { plain_ns: 0, ..Default::default() }).starts_with("`plain_ns`"));
}

#[test]
fn an_empty_trace_is_no_step() {
    let (report, steps) = run(&[], &options(goal()), |_, _, _| vec![]);
    assert_eq!((report, steps.len()), (ReplayReport::default(), 0));
    assert_eq!((report.speedup(), report.tokens_per_step(), report.acceptance()), (1.0, 0.0, 0.0));
}

#[test]
fn a_failing_source_ends_the_replay_with_its_words() {
    struct Failing;
    impl DraftSource for Failing {
        fn suggest(&mut self, _: &[u32], _: usize, _: &mut Vec<u32>) -> Result<(), SourceError> {
            Err(SourceError("lost".into()))
        }
        fn observe(&mut self, _: &[u32]) -> Result<(), SourceError> {
            Ok(())
        }
        fn rebuild(&mut self, _: &[u32]) -> Result<(), SourceError> {
            Ok(())
        }
    }
    let mut gate = Gate::new(goal(), GateOptions::default()).unwrap();
    let error = replay(&[1; 9], &mut Failing, &mut gate, &options(goal()), |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "the draft source failed: lost");
}

#[test]
fn a_perfect_source_comes_near_what_the_curve_allows() {
    let trace: Vec<u32> = (0..17_000).map(|i| i % 977).collect();
    let (report, _) = run(&trace, &options(goal()), |trace, pos, max| trace[pos..pos + max].to_vec());
    let best = 17.0 / 2.7;
    assert!(report.speedup() > 0.99 * best && report.speedup() <= best + 1e-9, "{} of {best}", report.speedup());
}

#[test]
fn garbage_and_silent_sources_are_no_loss() {
    let trace = vec![1; 4_000];
    for costs in [goal(), table(&[(2, 1.65), (4, 1.42), (8, 2.84), (16, 4.5)]), table(&[(2, 2.4), (4, 3.7), (8, 5.5)])]
    {
        let (garbage, _) = run(&trace, &options(costs.clone()), |_, _, max| vec![0; max]);
        assert!(garbage.speedup() >= 1.0 / 1.02, "{}", garbage.speedup());
        assert!(garbage.closed_steps > 3_900);
        let (silent, _) = run(&trace, &ReplayOptions { draft_ns: 5_000, ..options(costs) }, |_, _, _| vec![]);
        assert_eq!(silent.closed_steps, 0, "silence that costs half a percent is no reason to close");
        assert!(silent.speedup() >= 0.994);
    }
}

#[test]
fn a_gate_with_a_wrong_table_learns_from_the_clock() {
    // Half the drafts fail, and a verification costs three times what the table says: a loss that the table hides.
    let trace = vec![1; 20_000];
    let (table_says, truth) = (goal(), table(&[(1, 3.0), (16, 8.0)]));
    let mut source = Rule {
        trace: trace.clone(),
        seen: vec![],
        rule: |_: &[u32], pos: usize, max: usize| vec![pos as u32 / 7 % 2; max],
    };
    let mut gate = Gate::new(table_says, GateOptions::default()).unwrap();
    let report = replay(&trace, &mut source, &mut gate, &options(truth), |_| {}).unwrap();
    assert!(gate.stats().scale > 1.5, "{:?}", gate.stats());
    assert!(report.speedup() >= 0.98, "{}", report.speedup());
}

/// The whole crate on a text that repeats itself with changes: drafts are accepted as a naive count says, and pay.
#[test]
fn an_edited_copy_is_decoded_several_times_faster() {
    let mut dice = Dice(12);
    let document: Vec<u32> = (0..1_500).map(|_| dice.below(900)).collect();
    let mut trace = document.clone();
    trace.extend(document.iter().map(|&token| if dice.chance(0.03) { 950 } else { token }));
    let options = ReplayOptions { prompt_tokens: 1_500, ..options(goal()) };
    for cascade_options in [CascadeOptions::default(), CascadeOptions::for_costs(&goal())] {
        let mut source = Cascade::new(1_000, cascade_options).unwrap();
        let mut gate = Gate::new(goal(), GateOptions::for_costs(&goal())).unwrap();
        let mut accepted = 0;
        let report = replay(&trace, &mut source, &mut gate, &options, |step| {
            assert_eq!(step.committed, step.accepted + 1);
            accepted += step.accepted as u64;
        })
        .unwrap();
        assert_eq!(source.stats().iter().map(|stats| stats.accepted).sum::<u64>(), accepted);
        assert_eq!(source.stats().iter().map(|stats| stats.drafted).sum::<u64>(), report.drafted);
        assert_eq!(report.tokens, 1_500);
        assert!(report.speedup() > 2.0, "{report:?}");
    }
}

proptest! {
    /// Y2 under sources that lie about lengths, invent tokens and change their mind.
    #[test]
    fn every_token_is_committed_once_whatever_the_source_does(seed in prop::num::u64::ANY, len in 0usize..300, prompt in 0usize..50) {
        let mut dice = Dice(seed);
        let trace = oracle::random_stream(&mut dice, 5, len);
        let options = ReplayOptions { prompt_tokens: prompt.min(len), ..options(goal()) };
        let (report, steps) = run(&trace, &options, move |trace, pos, max| match dice.below(5) {
            0 => vec![],
            1 => trace[pos..].to_vec(),
            2 => vec![u32::MAX; 100],
            3 => trace[pos..pos + max.min(2)].iter().copied().chain([77]).collect(),
            _ => vec![dice.below(5); max],
        });
        prop_assert_eq!(report.tokens as usize, len - prompt.min(len));
        prop_assert_eq!(steps.iter().map(|step| step.committed).sum::<usize>() as u64, report.tokens);
        prop_assert!((steps.iter().map(|step| step.cost).sum::<f64>() - report.cost).abs() < 1e-6);
        for step in &steps {
            prop_assert!(step.accepted <= step.drafted && step.drafted <= options.max_draft);
            prop_assert!(step.allowed || step.drafted == 0);
        }
    }
}
