//! The limits on a draft, what the source is told, what is learned from the outcome, and that today's costs reach the chooser of lengths.

use super::*;
use crate::cascade::Cascade;
use crate::cost::{CostModel, CostOptions, TimedStep};
use crate::gate::{GateOptions, GateState};
use crate::oracle::{self, Dice};
use crate::policy::CascadeOptions;
use crate::source::Part;
use crate::table::{CostPoint, CostTable};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const ANY: Bounds<'static> =
    Bounds { room: usize::MAX, wanted: usize::MAX, n_vocab: 100, stop_ids: &[], forced: &[], certain: 0 };

fn table(points: &[(usize, f64)]) -> CostTable {
    CostTable::new(points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect(), "a test").unwrap()
}

/// A gate that stays open as long as nothing is recorded and does not limit drafts.
fn open(min_draft: usize) -> Gate {
    Gate::new(GateOptions { min_draft, adapt_budget: false, ..GateOptions::default() }).unwrap()
}

/// What a source was told, and how it was asked.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    Asked(usize),
    Observed(Vec<u32>),
    Rebuilt(Vec<u32>),
    Rows(Vec<(u32, Vec<u32>)>),
    Cut(usize),
}

/// Drafts what it is given, whatever it is asked for.
#[derive(Debug, Default)]
struct Puppet {
    next: Draft,
    fails: bool,
    told: Vec<Told>,
}

impl Puppet {
    fn tell(&mut self, told: Told) -> Result<(), SourceError> {
        self.told.push(told);
        if self.fails { Err(SourceError("lost".into())) } else { Ok(()) }
    }
}

impl DraftSource for Puppet {
    fn suggest(&mut self, _: &[u32], budget: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        assert_eq!((&*draft, budget.extra.len()), (&Draft::default(), budget.max_tokens + 1));
        draft.clone_from(&self.next);
        self.tell(Told::Asked(budget.max_tokens))
    }
    fn observe(&mut self, committed: &[u32]) -> Result<(), SourceError> {
        self.tell(Told::Observed(committed.to_vec()))
    }
    fn topk(&self) -> usize {
        2
    }
    fn observe_topk(&mut self, rows: &[TopkRow<'_>]) -> Result<(), SourceError> {
        self.tell(Told::Rows(rows.iter().map(|row| (row.token, row.top.to_vec())).collect()))
    }
    fn truncate_pending(&mut self, n: usize) {
        self.told.push(Told::Cut(n));
    }
    fn rebuild(&mut self, history: &[u32]) -> Result<(), SourceError> {
        self.tell(Told::Rebuilt(history.to_vec()))
    }
}

type Strings = Arc<Mutex<Puppet>>;

/// A speculator over a puppet with an open gate and free verifications, and the puppet's strings.
fn puppet(min_draft: usize, max_draft: usize) -> (Speculator, Strings) {
    let strings = Strings::default();
    let costs = table(&[(1, 1.0), (2, 1.0)]).into();
    (Speculator::new(Box::new(strings.clone()), open(min_draft), costs, max_draft).unwrap(), strings)
}

fn give(strings: &Strings, tokens: &[u32], source: Option<&str>) {
    let next = Draft { tokens: tokens.to_vec(), reach: vec![], source: source.map(Arc::from) };
    strings.lock().unwrap().next = next;
}

fn told(strings: &Strings) -> Vec<Told> {
    std::mem::take(&mut strings.lock().unwrap().told)
}

#[test]
fn lengths_that_make_no_sense_are_refused_by_name() {
    let refused = |min_draft, max_draft| {
        let costs = CostTable::default().into();
        Speculator::new(Box::new(Strings::default()), open(min_draft), costs, max_draft).map(|_| ()).unwrap_err()
    };
    assert_eq!(refused(1, 0).to_string(), "`max_draft`: expected 1 to 4096, found 0");
    assert_eq!(refused(1, 4097).option, "max_draft");
    assert_eq!(refused(3, 2).to_string(), "`min_draft`: expected at most max_draft, 2, found 3");
}

/// U1 and U2: what is left of a draft, and what the source is told about it.
#[test]
fn a_draft_is_cut_to_what_can_be_verified_and_the_source_is_told() {
    let cases: [(&[u32], Bounds<'_>, usize, &[u32]); 9] = [
        (&[1, 2, 3], ANY, 1, &[1, 2, 3]),
        (&[1, 2, 3, 4, 5, 6], ANY, 1, &[1, 2, 3, 4]),
        (&[1, 2, 100, 4], ANY, 1, &[1, 2]),
        (&[1, 2, u32::MAX, 4], ANY, 1, &[1, 2]),
        (&[1, 2, 3], Bounds { stop_ids: &[0, 3], ..ANY }, 1, &[1, 2]),
        (&[3, 2, 1], Bounds { stop_ids: &[0, 3], ..ANY }, 1, &[]),
        (&[1, 2, 3], Bounds { room: 2, ..ANY }, 1, &[1, 2]),
        (&[1, 2, 3], Bounds { wanted: 3, ..ANY }, 1, &[1, 2]),
        (&[1, 2], ANY, 3, &[]),
    ];
    for (given, bounds, min_draft, left) in cases {
        let (mut speculator, strings) = puppet(min_draft, 4);
        give(&strings, given, None);
        let draft = speculator.propose(&[9], bounds, Load::default());
        assert_eq!((&draft.tokens[..], draft.reach.len()), (left, left.len()), "{given:?} in {bounds:?}");
        let cut = (left.len() < given.len()).then_some(Told::Cut(left.len()));
        let most = 4.min(bounds.room).min(bounds.wanted.saturating_sub(1));
        assert_eq!(told(&strings), [Some(Told::Asked(most)), cut].into_iter().flatten().collect::<Vec<_>>());
    }
}

/// U4: what is forced stands first, whatever the gate and `min_draft` say, and only the rest is the source's.
#[test]
fn forced_tokens_stand_before_the_draft_and_count_for_nothing() {
    let (mut speculator, strings) = puppet(2, 3);
    give(&strings, &[1, 2, 3, 4], Some("puppet"));
    let bounds = Bounds { forced: &[7, 8], certain: 2, room: 6, ..ANY };
    let draft = speculator.propose(&[9], bounds, Load::default()).clone();
    assert_eq!((&draft.tokens[..], draft.source.as_deref()), (&[7, 8, 1, 2, 3][..], Some("puppet")));
    assert_eq!((&draft.reach[..2], speculator.forced()), (&[1.0, 1.0][..], 2));
    assert_eq!(told(&strings), [Told::Asked(3), Told::Cut(3)]);
    // Cut inside the source's part, below `min_draft`, and inside the forced part.
    speculator.cut(4);
    assert_eq!((speculator.draft().len(), told(&strings)), (4, vec![Told::Cut(2)]));
    speculator.cut(3);
    assert_eq!((&speculator.draft().tokens[..], told(&strings)), (&[7, 8][..], vec![Told::Cut(0)]));
    assert_eq!(speculator.draft().source.as_deref(), Some("grammar"));
    speculator.cut(1);
    assert_eq!((speculator.draft().len(), speculator.forced(), told(&strings)), (1, 1, vec![]));
    // Only what the source drafted is counted.
    give(&strings, &[1, 2], Some("puppet"));
    speculator.propose(&[9], bounds, Load::default());
    speculator.record_verify(3, 4, Some(1.5));
    let stats = speculator.stats();
    let puppet = stats.sources.iter().find(|s| &*s.name == "puppet").unwrap();
    assert_eq!((puppet.drafts, puppet.drafted, puppet.accepted), (1, 2, 1));
    assert_eq!(stats.gate.estimated_speedup, Some(2.0 / 1.5));
    // A source that fails, and one that has failed, take nothing from what is forced.
    strings.lock().unwrap().fails = true;
    for _ in 0..2 {
        let draft = speculator.propose(&[9], bounds, Load::default());
        assert_eq!((&draft.tokens[..], draft.source.as_deref()), (&[7, 8][..], Some("grammar")));
    }
    assert!(speculator.disabled().is_some());
    let one = Bounds { wanted: 2, ..bounds };
    assert_eq!(speculator.propose(&[9], one, Load::default()).tokens, [7]);
}

#[test]
fn a_source_is_not_asked_where_no_draft_fits() {
    let (mut speculator, strings) = puppet(2, 4);
    give(&strings, &[1, 2, 3], None);
    for bounds in [Bounds { room: 1, ..ANY }, Bounds { wanted: 2, ..ANY }, Bounds { wanted: 0, ..ANY }] {
        assert!(speculator.propose(&[9], bounds, Load::default()).is_empty());
        assert!(speculator.allowed());
    }
    assert_eq!(told(&strings), []);
}

#[test]
fn a_planner_may_cut_a_draft_further() {
    let (mut speculator, strings) = puppet(2, 8);
    give(&strings, &[1, 2, 3, 4], None);
    for (n, left, expected) in [(9, 4, vec![]), (4, 4, vec![]), (3, 3, vec![Told::Cut(3)]), (1, 0, vec![Told::Cut(0)])]
    {
        speculator.propose(&[9], ANY, Load::default());
        told(&strings);
        speculator.cut(n);
        assert_eq!((speculator.draft().len(), speculator.draft().reach.len()), (left, left));
        assert_eq!(told(&strings), expected, "cut to {n}");
    }
    // What was dropped whole is not pending any more.
    speculator.drop_pending();
    assert_eq!(told(&strings), []);
}

#[test]
fn a_draft_whose_step_failed_is_dropped_once() {
    let (mut speculator, strings) = puppet(1, 8);
    give(&strings, &[1, 2], None);
    speculator.propose(&[9], ANY, Load::default());
    told(&strings);
    speculator.drop_pending();
    speculator.drop_pending();
    assert_eq!(told(&strings), [Told::Cut(0)]);
    speculator.propose(&[9], ANY, Load::default());
    speculator.observe(&[1, 5]);
    speculator.drop_pending();
    assert_eq!(told(&strings), [Told::Asked(8), Told::Observed(vec![1, 5])]);
}

#[test]
fn a_source_that_fails_is_asked_no_more_and_its_words_are_kept() {
    type Act = fn(&mut Speculator);
    let acts: [Act; 4] = [
        |s| assert!(s.propose(&[9], ANY, Load::default()).is_empty()),
        |s| s.observe(&[1]),
        |s| s.rebuild(&[1]),
        |s| {
            s.capture([1, 2]);
            s.observe_topk(&[9]);
        },
    ];
    for failing in acts {
        let (mut speculator, strings) = puppet(1, 8);
        give(&strings, &[1, 2], None);
        speculator.propose(&[9], ANY, Load::default());
        strings.lock().unwrap().fails = true;
        failing(&mut speculator);
        let stats = speculator.stats();
        assert_eq!(stats.disabled.as_deref(), Some("the draft source failed: lost"));
        assert_eq!(stats.sources[0].reason, stats.disabled);
        strings.lock().unwrap().fails = false;
        told(&strings);
        for act in acts {
            act(&mut speculator);
        }
        speculator.drop_pending();
        speculator.cut(0);
        assert_eq!((told(&strings), speculator.topk(), speculator.allowed()), (vec![], 0, false));
    }
}

#[test]
fn rows_reach_the_source_with_the_tokens_that_went_in() {
    let (mut speculator, strings) = puppet(1, 8);
    speculator.capture([5, 6]);
    speculator.capture([7]);
    speculator.observe_topk(&[1, 2]);
    speculator.observe_topk(&[1]);
    speculator.capture([8]);
    speculator.capture([9]);
    speculator.observe_topk(&[3]);
    let expected = [Told::Rows(vec![(1, vec![5, 6]), (2, vec![7])]), Told::Rows(vec![(3, vec![8])])];
    assert_eq!(told(&strings), expected, "rows that were not sampled are not told, and none is told twice");
}

#[test]
fn the_counts_of_a_request_stand_under_the_name_that_the_draft_gives() {
    let (mut speculator, strings) = puppet(1, 8);
    let row = |name: &str, drafts, drafted, accepted| (name.to_owned(), drafts, drafted, accepted);
    let rows = |s: &Speculator| {
        s.stats().sources.iter().map(|s| row(&s.name, s.drafts, s.drafted, s.accepted)).collect::<Vec<_>>()
    };
    assert_eq!(rows(&speculator), [row("source", 0, 0, 0)]);
    for (name, accepted) in [(None, 1), (Some("b"), 3), (None, 0), (Some("b"), 2)] {
        give(&strings, &[1, 2, 3], name);
        speculator.propose(&[9], ANY, Load::default());
        speculator.record_verify(accepted, accepted + 1, None);
    }
    assert_eq!(rows(&speculator), [row("source", 2, 6, 1), row("b", 2, 6, 5)]);
    speculator.begin_request();
    assert_eq!(rows(&speculator), [row("source", 0, 0, 0)]);
}

#[test]
fn parts_stand_in_the_order_of_their_source_and_say_why_they_are_shut() {
    struct Parts;
    impl DraftSource for Parts {
        fn suggest(&mut self, _: &[u32], _: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
            *draft = Draft { tokens: vec![1], reach: vec![], source: Some("z".into()) };
            Ok(())
        }
        fn observe(&mut self, _: &[u32]) -> Result<(), SourceError> {
            Ok(())
        }
        fn rebuild(&mut self, _: &[u32]) -> Result<(), SourceError> {
            Ok(())
        }
        fn parts(&self) -> Vec<Part> {
            let part = |name: &str, shut: Option<&str>| Part { name: name.into(), shut: shut.map(Into::into) };
            vec![part("a", None), part("z", Some("full"))]
        }
    }
    let mut speculator = Speculator::new(Box::new(Parts), open(1), CostTable::default().into(), 4).unwrap();
    speculator.propose(&[9], ANY, Load::default());
    speculator.record_verify(1, 2, None);
    let sources = speculator.stats().sources;
    let rows: Vec<_> = sources.iter().map(|s| (&*s.name, s.drafts, s.accepted, s.reason.as_deref())).collect();
    assert_eq!(rows, [("a", 0, 0, None), ("z", 1, 1, Some("full"))]);
}

/// A source without an opinion gets the chances that its drafts have earned, by depth and by name.
#[test]
fn chances_are_learned_by_depth_for_each_name() {
    let (mut speculator, strings) = puppet(1, 8);
    let mut reach = |name: Option<&str>| {
        give(&strings, &[1, 2, 3, 4], name);
        speculator.propose(&[9], ANY, Load::default()).reach.clone()
    };
    assert_eq!(reach(None), [0.5, 0.25, 0.125, 0.0625], "nothing is known yet");
    for _ in 0..300 {
        give(&strings, &[1, 2, 3, 4], None);
        speculator.propose(&[9], ANY, Load::default());
        // Two are right, the third is wrong, so nothing is known about the fourth.
        speculator.record_verify(2, 3, None);
    }
    let mut reach = |name: Option<&str>| {
        give(&strings, &[1, 2, 3, 4], name);
        speculator.propose(&[9], ANY, Load::default()).reach.clone()
    };
    let learned = reach(None);
    assert!(learned[1] > 0.95 && learned[2] < 0.05 && (learned[3] / learned[2] - 0.5).abs() < 1e-9, "{learned:?}");
    assert_eq!(reach(Some("other"))[0], 0.5, "another name has earned nothing");
}

#[test]
fn tokens_that_a_stop_left_unsampled_count_neither_way() {
    let (mut speculator, strings) = puppet(1, 8);
    for _ in 0..300 {
        give(&strings, &[1, 2, 3], None);
        speculator.propose(&[9], ANY, Load::default());
        speculator.record_verify(1, 1, None);
    }
    let reach = &speculator.propose(&[9], ANY, Load::default()).reach;
    assert!(reach[0] > 0.95 && (reach[1] / reach[0] - 0.5).abs() < 1e-9, "{reach:?}");
}

#[test]
fn chances_that_cannot_be_chances_are_replaced() {
    for (reach, kept) in [
        (vec![0.9, 0.9, 0.1], true),
        (vec![1.0, 0.0, 0.0], true),
        (vec![0.9, 0.8], false),
        (vec![0.9, 0.8, 0.7, 0.6], false),
        (vec![0.5, 0.6, 0.1], false),
        (vec![f64::NAN; 3], false),
        (vec![0.9, 0.5, f64::NAN], false),
        (vec![1.5, 0.5, 0.1], false),
        (vec![0.5, 0.1, -0.1], false),
    ] {
        let (mut speculator, strings) = puppet(1, 8);
        strings.lock().unwrap().next = Draft { tokens: vec![1, 2, 3], reach: reach.clone(), source: None };
        let found = &speculator.propose(&[9], ANY, Load::default()).reach;
        assert_eq!(*found, if kept { reach } else { vec![0.5, 0.25, 0.125] });
    }
}

#[test]
fn a_step_without_a_draft_is_taken_where_costs_need_one_to_compare_with() {
    let (mut speculator, strings) = puppet(1, 8);
    let often = CostOptions { baseline_after: 3, baseline_every: 5, warmup: 0 };
    speculator.costs = CostModel::with_options(CostTable::default(), often).unwrap().into();
    give(&strings, &[1, 2], None);
    let mut steps = String::new();
    for _ in 0..20 {
        let drafted = speculator.propose(&[9], ANY, Load::default()).len();
        let ns = 1000 + 100 * drafted as u64;
        speculator.costs().lock().observe(TimedStep { rows: drafted + 1, spans: 1, cached: 0, drafted, ns });
        steps.push(if drafted > 0 { 'v' } else { 'p' });
        assert_eq!(speculator.allowed(), drafted > 0);
    }
    assert_eq!(steps, "vvvpvvvvvpvvvvvpvvvv");
}

#[test]
fn a_closed_gate_is_asked_once_a_step() {
    let (mut speculator, strings) = puppet(1, 8);
    speculator.gate =
        Gate::new(GateOptions { min_draft: 1, reprobe_after: 5, loss_share: 1.0, ..GateOptions::default() }).unwrap();
    give(&strings, &[1, 2], None);
    for _ in 0..2 {
        speculator.propose(&[9], ANY, Load::default());
        speculator.record_verify(0, 1, Some(3.0));
    }
    assert_eq!(speculator.gate().state(), GateState::Closed);
    let refused = (0..).take_while(|_| speculator.propose(&[9], ANY, Load::default()).is_empty()).count();
    assert_eq!(refused, 4);
}

/// What fruitless drafting takes is weighed by what the time is worth to all sequences of the step.
#[test]
fn time_for_drafts_that_do_not_come_counts_more_in_company() {
    let idle = |load: Load| {
        let (mut speculator, _) = puppet(1, 8);
        let costs =
            CostModel::with_options(table(&[(1, 1.0), (2, 1.0)]), CostOptions { warmup: 0, ..CostOptions::default() });
        speculator.costs = costs.unwrap().into();
        speculator.costs().lock().observe(TimedStep { rows: 1, spans: 1, cached: 0, drafted: 0, ns: 1000 });
        speculator.propose(&[9], ANY, load);
        speculator.record_plain(100);
        speculator.record_verify(3, 4, Some(2.0));
        4.0 / speculator.stats().gate.estimated_speedup.unwrap() - 2.0
    };
    assert!((idle(Load::default()) - 0.1).abs() < 1e-9);
    assert!((idle(Load { rows: 3, spans: 3, cached: 0 }) - 0.4).abs() < 1e-9, "four tokens could have been made");
}

/// The cascade over a text that has repeated every forty tokens, as often as its drafts have been right all along.
fn repeating(table: CostTable) -> (Speculator, Vec<u32>) {
    let stream: Vec<u32> = (0..400).map(|i| i % 40).collect();
    let cascade = Cascade::new(100, CascadeOptions::default()).unwrap();
    let mut speculator = Speculator::new(Box::new(cascade), open(1), table.into(), 32).unwrap();
    stream.iter().for_each(|token| speculator.observe(&[*token]));
    (speculator, stream)
}

/// The costs that the clock finds at a context reach the chooser of lengths: no table says them, and the gate is open all along.
#[test]
fn drafts_become_shorter_where_verification_is_measured_to_cost_more_than_the_table_says() {
    let says = table(&[(1, 1.05), (8, 1.5), (16, 4.0), (32, 20.0)]);
    let (mut speculator, stream) = repeating(says.clone());
    let len = |speculator: &mut Speculator, cached| {
        speculator.propose(&stream, ANY, Load { cached, ..Load::default() }).len()
    };
    assert_eq!([100, 5_000].map(|cached| len(&mut speculator, cached)), [16, 16], "the table knows no contexts");
    for _ in 0..40 {
        for (cached, times) in [(100, 1.0), (5_000, 4.0)] {
            let costs = speculator.costs().clone();
            let step = |drafted: usize, cost: f64| TimedStep {
                rows: drafted + 1,
                spans: 1,
                cached,
                drafted,
                ns: (1e6 * cost) as u64,
            };
            costs.lock().observe(step(0, 1.0));
            costs.lock().observe(step(8, times * says.cost(8, 0)));
        }
    }
    let [short, long] = [100, 5_000].map(|cached| len(&mut speculator, cached));
    assert_eq!((short, long), (16, 8), "where verification takes four times as long");
}

/// A draft is as long as pays beside the other sequences of the step: where they use up the cheap rows, it is short.
#[test]
fn drafts_become_shorter_in_company() {
    let (mut speculator, stream) = repeating(table(&[(1, 1.02), (11, 1.2), (12, 2.0), (32, 30.0)]));
    let mut len = |others| speculator.propose(&stream, ANY, Load { rows: others, spans: others, cached: 400 }).len();
    assert_eq!([0, 1, 3, 6, 10, 20].map(&mut len), [12, 10, 8, 5, 1, 0]);
}

proptest! {
    /// Whatever a source answers, the draft keeps its bounds, and the source is told of each cut.
    #[test]
    fn no_answer_breaks_the_bounds(
        seed in prop::num::u64::ANY,
        min_draft in 1usize..4,
        room in 0usize..12,
        wanted in 0usize..12,
        stop in 0u32..6,
    ) {
        let mut dice = Dice(seed);
        let (mut speculator, strings) = puppet(min_draft, 8);
        for _ in 0..30 {
            let tokens = oracle::random_stream(&mut dice, 7, 20);
            let given = &tokens[..dice.below(20) as usize];
            let reach = (0..dice.below(20)).map(|_| f64::from(dice.below(12)) / 10.0).collect();
            strings.lock().unwrap().next = Draft { tokens: given.to_vec(), reach, source: None };
            let bounds = Bounds { room, wanted, n_vocab: 6, stop_ids: &[stop], forced: &[], certain: 0 };
            let draft = speculator.propose(&[0], bounds, Load::default()).clone();
            prop_assert!(draft.len() <= 8.min(room).min(wanted.saturating_sub(1)));
            prop_assert!(draft.is_empty() || draft.len() >= min_draft);
            prop_assert!(draft.tokens.iter().all(|&token| token < 6 && token != stop));
            prop_assert!(given.starts_with(&draft.tokens) && is_reach(&draft));
            let cuts: Vec<Told> = told(&strings).into_iter().filter(|told| matches!(told, Told::Cut(_))).collect();
            let asked = 8.min(room).min(wanted.saturating_sub(1)) >= min_draft;
            let expected = if asked && draft.len() < given.len() { vec![Told::Cut(draft.len())] } else { vec![] };
            prop_assert_eq!(cuts, expected);
        }
    }
}
