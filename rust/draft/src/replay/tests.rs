//! Replay by hand, on lying sources, and on streams whose answer is known.

use super::*;
use crate::cascade::Cascade;
use crate::cost::Costs;
use crate::gate::{Gate, GateOptions};
use crate::oracle::{self, Dice};
use crate::policy::CascadeOptions;
use crate::source::{Budget, Draft, DraftSource, TopkRow};
use crate::table::CostPoint;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

fn table(points: &[(usize, f64)]) -> CostTable {
    CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test").unwrap()
}

fn goal() -> CostTable {
    table(&[(1, 1.02), (4, 1.10), (8, 1.5), (16, 2.7)])
}

/// Drafts up to `max_draft` from `source`, which the test keeps, with a table and the options that fit it.
fn speculator<S: DraftSource + 'static>(source: &Arc<Mutex<S>>, costs: &CostTable, max_draft: usize) -> Speculator {
    let gate = Gate::new(GateOptions::for_costs(costs)).unwrap();
    Speculator::new(Box::new(source.clone()), gate, Costs::from(costs.clone()), max_draft).unwrap()
}

fn shared<S>(source: S) -> Arc<Mutex<S>> {
    Arc::new(Mutex::new(source))
}

/// A source that drafts by a rule of the trace, the place and what is asked, and notes what it observes.
struct Rule<F> {
    trace: Vec<u32>,
    seen: Vec<u32>,
    rule: F,
}

impl<F: FnMut(&[u32], usize, usize) -> Vec<u32> + Send> DraftSource for Rule<F> {
    fn suggest(&mut self, context: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        assert_eq!(context, self.seen, "the context is what was observed");
        draft.tokens.extend((self.rule)(&self.trace, context.len(), budget.max_tokens));
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

fn run_up_to(
    max_draft: usize,
    trace: &[u32],
    options: &ReplayOptions,
    rule: impl FnMut(&[u32], usize, usize) -> Vec<u32> + Send + 'static,
) -> (ReplayReport, Vec<ReplayStep>) {
    let source = shared(Rule { trace: trace.to_vec(), seen: vec![], rule });
    let mut steps = Vec::new();
    let mut speculator = speculator(&source, &options.costs, max_draft);
    let report = replay(trace, &mut speculator, options, |step| steps.push(*step)).unwrap();
    assert_eq!(source.lock().unwrap().seen, trace, "every token is observed once, in order");
    (report, steps)
}

fn run(
    trace: &[u32],
    options: &ReplayOptions,
    rule: impl FnMut(&[u32], usize, usize) -> Vec<u32> + Send + 'static,
) -> (ReplayReport, Vec<ReplayStep>) {
    run_up_to(16, trace, options, rule)
}

fn options(costs: CostTable) -> ReplayOptions {
    ReplayOptions { plain_ns: 1_000_000, draft_ns: 0, costs, ..ReplayOptions::default() }
}

#[test]
fn the_sums_are_those_of_the_steps() {
    let trace: Vec<u32> = (0..10).collect();
    let options = ReplayOptions { prompt_tokens: 2, ..options(table(&[(1, 1.5), (4, 3.0)])) };
    // Three right of four, then right all along: 2 | 3 4 5 6 | 7 8 9: the last draft is bounded by the trace.
    let (report, steps) = run_up_to(4, &trace, &options, |trace, pos, max| match pos {
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
        let source = shared(Cascade::new(9, CascadeOptions::default()).unwrap());
        replay(&[1, 2], &mut speculator(&source, &goal(), 16), &options, |_| {}).unwrap_err().to_string()
    };
    assert!(refused(ReplayOptions { prompt_tokens: 3, ..Default::default() }).starts_with("`prompt_tokens`"));
    assert!(refused(ReplayOptions { plain_ns: 0, ..Default::default() }).starts_with("`plain_ns`"));
}

#[test]
fn an_empty_trace_is_no_step() {
    let (report, steps) = run(&[], &options(goal()), |_, _, _| vec![]);
    assert_eq!((report.tokens, report.steps, report.cost, steps.len()), (0, 0, 0.0, 0));
    assert_eq!((report.speedup(), report.tokens_per_step(), report.acceptance()), (1.0, 0.0, 0.0));
}

#[test]
fn a_failing_source_ends_the_replay_with_its_words() {
    struct Failing;
    impl DraftSource for Failing {
        fn suggest(&mut self, _: &[u32], _: Budget<'_>, _: &mut Draft) -> Result<(), SourceError> {
            Err(SourceError("lost".into()))
        }
        fn observe(&mut self, _: &[u32]) -> Result<(), SourceError> {
            Ok(())
        }
        fn rebuild(&mut self, _: &[u32]) -> Result<(), SourceError> {
            Ok(())
        }
    }
    let mut speculator = speculator(&shared(Failing), &goal(), 16);
    let error = replay(&[1; 9], &mut speculator, &options(goal()), |_| {}).unwrap_err();
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
    let source = shared(Rule {
        trace: trace.clone(),
        seen: vec![],
        rule: |_: &[u32], pos: usize, max: usize| vec![pos as u32 / 7 % 2; max],
    });
    let mut speculator = speculator(&source, &table_says, 16);
    let report = replay(&trace, &mut speculator, &options(truth), |_| {}).unwrap();
    assert!(speculator.stats().costs.scale > 1.5, "{:?}", speculator.stats());
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
    let source = shared(Cascade::new(1_000, CascadeOptions::default()).unwrap());
    let mut speculator = speculator(&source, &goal(), 16);
    let mut accepted = 0;
    let report = replay(&trace, &mut speculator, &options, |step| {
        assert_eq!(step.committed, step.accepted + 1);
        accepted += step.accepted as u64;
    })
    .unwrap();
    let sources = &report.sources;
    assert_eq!(sources.iter().map(|stats| stats.accepted).sum::<u64>(), accepted);
    assert_eq!(sources.iter().map(|stats| stats.drafted).sum::<u64>(), report.drafted);
    assert_eq!(report.tokens, 1_500);
    assert!(report.speedup() > 2.0, "{report:?}");
}

/// What a source is told, in order.
#[derive(Debug, PartialEq)]
enum Told {
    Observed(Vec<u32>),
    Rebuilt(Vec<u32>),
    Rows(Vec<(u32, Vec<u32>)>),
    Truncated(usize),
}

/// Drafts what a script says for each length of the context, and keeps what it is told.
struct Listener {
    script: fn(usize) -> Vec<u32>,
    told: Vec<Told>,
}

impl DraftSource for Listener {
    fn suggest(&mut self, context: &[u32], _: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        draft.tokens.extend((self.script)(context.len()));
        Ok(())
    }
    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        self.told.push(Told::Observed(committed.to_vec()));
        Ok(())
    }
    fn topk(&self) -> usize {
        2
    }
    fn observe_topk(&mut self, rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        self.told.push(Told::Rows(rows.iter().map(|row| (row.token, row.top.to_vec())).collect()));
        Ok(())
    }
    fn truncate_pending(&mut self, n: usize) {
        self.told.push(Told::Truncated(n));
    }
    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        self.told.push(Told::Rebuilt(history.to_vec()));
        Ok(())
    }
}

fn told(turns: &[Turn<'_>], script: fn(usize) -> Vec<u32>) -> (ReplayReport, Vec<Told>) {
    let source = shared(Listener { script, told: vec![] });
    let report = replay_turns(turns, &mut speculator(&source, &goal(), 16), &options(goal()), |_| {}).unwrap();
    let told = std::mem::take(&mut source.lock().unwrap().told);
    (report, told)
}

/// Y4 and Y6, by hand: the prompt, the first token, two right of three, the rows of what was sampled, a stop that the source never hears of.
#[test]
fn a_turn_tells_the_source_what_a_decoder_would() {
    let top: Vec<u32> = (0..6).flat_map(|row| [100 + row, 200 + row, 300 + row]).collect();
    let answer = [10, 11, 12, 13, 14, 15];
    let turn = Turn { prompt: &[1, 2], answer: &answer, top: &top, width: 3, stopped: true, stops: &[] };
    let (report, told) = told(&[turn], |len| if len == 3 { vec![11, 12, 99] } else { vec![] });
    assert_eq!((report.tokens, report.steps, report.drafted, report.accepted), (5, 3, 3, 2));
    // Row i of the answer is the one that answer[i] came from; its input is the token before.
    let rows = vec![(10, vec![101, 201]), (11, vec![102, 202]), (12, vec![103, 203])];
    let expected = vec![
        Told::Observed(vec![1, 2]),
        Told::Observed(vec![10]),
        Told::Observed(vec![11, 12, 13]),
        Told::Rows(rows),
        Told::Observed(vec![14]),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_second_turn_goes_on_from_the_first_or_starts_anew() {
    let first = Turn { prompt: &[1, 2], answer: &[3, 4, 9], stopped: true, ..Turn::default() };
    let on = Turn { prompt: &[1, 2, 3, 4, 5], answer: &[6], ..Turn::default() };
    let anew = Turn { prompt: &[1, 2, 7], answer: &[6], ..Turn::default() };
    let (report, told_on) = told(&[first, on], |_| vec![]);
    assert_eq!((report.tokens, report.steps), (2, 2));
    assert_eq!(told_on[3..], [Told::Observed(vec![5]), Told::Observed(vec![6])]);
    let (_, told_anew) = told(&[first, anew], |_| vec![]);
    assert_eq!(told_anew[3..], [Told::Rebuilt(vec![1, 2, 7]), Told::Observed(vec![6])]);
}

#[test]
fn a_draft_is_cut_before_a_stop_and_the_source_is_told() {
    let turn = Turn { prompt: &[1], answer: &[2, 3, 4, 5, 6, 7], stops: &[9, 8], ..Turn::default() };
    let (report, told) = told(&[turn], |len| match len {
        2 => vec![3, 4, 8, 5],
        5 => vec![9, 7],
        _ => vec![],
    });
    assert_eq!((report.steps, report.verify_steps, report.drafted, report.accepted), (3, 1, 2, 2));
    let truncated: Vec<_> = told.iter().filter(|told| matches!(told, Told::Truncated(_))).collect();
    assert_eq!(truncated, [&Told::Truncated(2), &Told::Truncated(0)]);
}

#[test]
fn a_new_turn_shortens_a_wait_that_earlier_ones_have_drawn_out() {
    // Garbage closes the gate and fails its probes until the wait is long; then a turn of which every draft is right.
    let garbage = vec![1; 5_200];
    let mut echo: Vec<u32> = (0..2_000).map(|i| 2 + i % 90).collect();
    echo[0] = 2;
    let prompt: Vec<u32> = garbage.iter().copied().chain([0]).collect();
    let turns = [
        Turn { prompt: &[1], answer: &garbage[1..], ..Turn::default() },
        Turn { prompt: &prompt, answer: &echo, ..Turn::default() },
    ];
    let first_allowed = |turns: &[Turn<'_>]| {
        let rule = move |_: &[u32], pos: usize, max: usize| match pos {
            0..5_200 => vec![99; max],
            _ => (pos..pos + max).map(|at| 2 + (at as u32 - 5_201) % 90).collect(),
        };
        let source = shared(Rule { trace: vec![], seen: vec![], rule });
        let mut first = None;
        replay_turns(turns, &mut speculator(&source, &goal(), 16), &options(goal()), |step| {
            if step.pos > 5_200 && step.allowed {
                first.get_or_insert(step.pos);
            }
        })
        .unwrap();
        first.unwrap()
    };
    let whole: Vec<u32> = prompt[1..].iter().chain(&echo).copied().collect();
    let one = [Turn { prompt: &[1], answer: &whole, ..Turn::default() }];
    let patient = GateOptions::for_costs(&goal()).reprobe_after as usize;
    assert!(first_allowed(&turns) <= 5_202 + patient, "{}", first_allowed(&turns));
    assert!(first_allowed(&one) > 5_202 + patient, "{}", first_allowed(&one));
}

#[test]
fn an_answer_that_is_a_stop_is_no_step() {
    let turn = Turn { prompt: &[1], answer: &[9], stopped: true, ..Turn::default() };
    let (report, told) = told(&[turn, Turn::default()], |_| vec![]);
    assert_eq!((report.tokens, report.steps, report.cost), (0, 0, 0.0));
    assert_eq!(told, [Told::Observed(vec![1]), Told::Rebuilt(vec![])]);
}

#[test]
fn rows_that_do_not_fit_the_answer_are_refused() {
    let turn = Turn { prompt: &[1], answer: &[2, 3], top: &[7; 5], width: 3, ..Turn::default() };
    let source = shared(Cascade::new(9, CascadeOptions::default()).unwrap());
    let error = replay_turns(&[turn], &mut speculator(&source, &goal(), 16), &options(goal()), |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "`top`: expected 6 to 6, found 5");
}

#[test]
fn a_conversation_that_may_not_quote_drafts_nothing_and_learns_all_the_same() {
    let answer: Vec<u32> = (0..300).map(|i| i % 30).collect();
    let turn = Turn { prompt: &[7], answer: &answer, ..Turn::default() };
    let source = shared(Cascade::new(40, CascadeOptions { recycling: false, ..CascadeOptions::default() }).unwrap());
    let mut speculator = speculator(&source, &goal(), 16);
    source.lock().unwrap().quote_conversation(false);
    let report = replay_turns(&[turn], &mut speculator, &options(goal()), |_| {}).unwrap();
    assert_eq!((report.drafted, report.steps), (0, 299));
    let asked: u64 = source.lock().unwrap().rates()[0].1.iter().map(|rate| rate.asked).sum();
    assert!(asked > 200, "{asked}");
    source.lock().unwrap().quote_conversation(true);
    let report = replay_turns(&[turn], &mut speculator, &options(goal()), |_| {}).unwrap();
    assert!(report.accepted > 200, "{report:?}");
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
            prop_assert!(step.accepted <= step.drafted && step.drafted <= 16);
            prop_assert!(step.allowed || step.drafted == 0);
        }
    }

    /// A turn is the stream of its prompt and its answer, of which the first token came with the prompt.
    #[test]
    fn a_turn_takes_the_steps_of_its_stream(seed in prop::num::u64::ANY, prompt in 0usize..30, answer in 1usize..200) {
        let mut dice = Dice(seed);
        let stream = oracle::random_stream(&mut dice, 4, prompt + answer);
        let script = |context: &[u32], _: usize, max: usize| vec![context.len() as u32 % 4; max];
        let options = ReplayOptions { prompt_tokens: prompt + 1, ..options(goal()) };
        let (whole, _) = run(&stream, &options, script);
        let source = shared(Rule { trace: stream.clone(), seen: vec![], rule: script });
        let turn = Turn { prompt: &stream[..prompt], answer: &stream[prompt..], ..Turn::default() };
        let turned = replay_turns(&[turn], &mut speculator(&source, &goal(), 16), &options, |_| {}).unwrap();
        prop_assert_eq!(turned, whole);
        prop_assert_eq!(&source.lock().unwrap().seen, &stream);
    }
}
