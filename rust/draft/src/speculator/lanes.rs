//! U5 and U6: which lane drafts, when it stops, what is verified of it, and what it costs whom.

use super::*;
use crate::cascade::Cascade;
use crate::cost::{CostModel, CostOptions};
use crate::gate::GateOptions;
use crate::lane::LEVELS;
use crate::oracle::Dice;
use crate::policy::CascadeOptions;
use crate::table::{CostPoint, CostTable};

const ANY: Bounds<'static> =
    Bounds { room: usize::MAX, wanted: usize::MAX, n_vocab: 100, stop_ids: &[7], forced: &[], certain: 0 };

/// A source that drafts what it is given.
struct Fixed(Draft);

impl DraftSource for Fixed {
    fn suggest(&mut self, _: &[u32], _: Budget<'_>, draft: &mut Draft) -> Result<(), SourceError> {
        draft.clone_from(&self.0);
        Ok(())
    }
    fn observe(&mut self, _: &[u32]) -> Result<(), SourceError> {
        Ok(())
    }
    fn rebuild(&mut self, _: &[u32]) -> Result<(), SourceError> {
        Ok(())
    }
}

/// Costs that learn nothing: each drafted token `each` plain steps.
fn costs(each: f64) -> Costs {
    let points = (1..=32).map(|k| CostPoint { k, cost: 1.0 + each * k as f64 }).collect();
    let never = CostOptions { warmup: u32::MAX, baseline_after: u32::MAX, baseline_every: u32::MAX };
    CostModel::with_options(CostTable::new(points, "a test").unwrap(), never).unwrap().into()
}

fn speculator(source: Box<dyn DraftSource>, each: f64, lanes: &[f64]) -> Speculator {
    let gate = GateOptions { min_draft: 1, adapt_budget: false, ..GateOptions::default() };
    let mut speculator = Speculator::new(source, Gate::new(gate).unwrap(), costs(each), 8).unwrap();
    for (i, assumed) in lanes.iter().enumerate() {
        speculator.add_lane(format!("lane-{i}").into(), *assumed);
    }
    speculator
}

fn silent() -> Box<dyn DraftSource> {
    Box::new(Fixed(Draft::default()))
}

/// A step: the lane that was asked, and the tokens that are verified. The lane guesses 10, 11, ... at a level.
fn step(speculator: &mut Speculator, level: usize) -> (Option<usize>, Vec<u32>) {
    speculator.propose(&[1, 2, 3], ANY, Load::default());
    let ask = speculator.ask(|_| true);
    if ask.is_some() {
        for token in 10.. {
            if !speculator.take(&[1, 2, 3], token, level, 1, &ANY) {
                break;
            }
        }
        speculator.finish(None);
    }
    (ask.map(|ask| ask.lane), speculator.draft().tokens.clone())
}

#[test]
fn the_lane_of_greatest_expected_gain_is_asked_and_none_where_none_gains() {
    assert_eq!(step(&mut speculator(silent(), 0.05, &[0.2, 0.1, 0.3]), LEVELS - 1).0, Some(1));
    assert_eq!(step(&mut speculator(silent(), 0.05, &[0.9, 0.8]), LEVELS - 1).0, None);
    assert_eq!(step(&mut speculator(silent(), 0.05, &[]), LEVELS - 1).0, None);
    // A lane that is not ready is passed over.
    let mut two = speculator(silent(), 0.05, &[0.2, 0.1]);
    two.propose(&[1], ANY, Load::default());
    assert_eq!(two.ask(|lane| lane == 0).map(|ask| ask.lane), Some(0));
}

#[test]
fn a_quotation_that_is_expected_to_gain_more_is_kept() {
    let quoted = |reach: f64| Fixed(Draft { tokens: vec![40, 41, 42], reach: vec![reach; 3], source: None });
    let mut sure = speculator(Box::new(quoted(0.9)), 0.05, &[0.1]);
    assert_eq!(step(&mut sure, LEVELS - 1), (None, vec![40, 41, 42]));
    let mut unsure = speculator(Box::new(quoted(0.05)), 0.05, &[0.05]);
    assert_eq!(step(&mut unsure, LEVELS - 1).0, Some(0));
    // Asked, but its guesses are less sure than what was quoted: the quotation is verified after all.
    let mut middling = speculator(Box::new(quoted(0.15)), 0.05, &[0.05]);
    assert_eq!(step(&mut middling, 0), (Some(0), vec![40, 41, 42]));
}

/// Guessing goes on and verification takes as much as the twin says that gains most, for random rates.
#[test]
fn as_much_is_guessed_and_verified_as_is_expected_to_pay() {
    let mut dice = Dice(5);
    for _ in 0..300 {
        let (each, assumed) = (f64::from(dice.below(8)) / 50.0, f64::from(dice.below(6)) / 50.0);
        let mut one = speculator(silent(), each, &[assumed]);
        for _ in 0..dice.below(60) {
            let levels: Vec<usize> = (0..1 + dice.below(5)).map(|_| dice.below(8) as usize).collect();
            let accepted = dice.below(1 + levels.len() as u32) as usize;
            one.lanes[0].learn(&levels, accepted, accepted < levels.len());
        }
        let level = dice.below(8) as usize;
        let (sure, lane) = (one.lanes[0].level_rate(level), one.lanes[0].clone());
        let (asked, verified) = step(&mut one, level);
        let Some(_) = asked else { continue };
        // The twin: guesses while some longer draft is expected to gain on this one, then the length that gains most.
        let gain_on = |n: usize| {
            (n + 1..=8).any(|d| {
                let further = |d: usize| sure.powi(n as i32) * (n..d).map(|i| lane.depth_rate(i)).product::<f64>();
                (n + 1..=d).map(further).sum::<f64>() > (each + assumed) * (d - n) as f64
            })
        };
        let guesses = (1..8).find(|n| !gain_on(*n)).unwrap_or(8);
        let gain = |n: usize| (1..=n as i32).map(|i| sure.powi(i)).sum::<f64>() - each * n as f64;
        let best = (1..=guesses).map(gain).fold(0.0, f64::max);
        let found = if verified.is_empty() { 0.0 } else { gain(verified.len()) };
        assert!((found - best).abs() < 1e-9 && verified.len() <= guesses, "{verified:?} of {guesses}");
    }
}

#[test]
fn guesses_outside_the_vocabulary_and_ends_of_generation_end_a_draft() {
    for bad in [100, u32::MAX, 7] {
        let mut one = speculator(silent(), 0.01, &[0.01]);
        one.propose(&[1], ANY, Load::default());
        one.ask(|_| true).unwrap();
        assert!(one.take(&[1], 10, LEVELS - 1, 1, &ANY));
        assert!(!one.take(&[1], bad, LEVELS - 1, 1, &ANY));
        one.finish(None);
        assert_eq!(one.draft().tokens, [10]);
        assert_eq!(one.draft().source.as_deref(), Some("lane-0"));
    }
}

#[test]
fn quoting_goes_on_behind_a_guess_whose_token_was_seen() {
    let mut cascade = Cascade::new(100, CascadeOptions { recycling: false, ..CascadeOptions::default() }).unwrap();
    let stream = [20, 21, 22, 23, 24, 25, 26, 1, 2, 3];
    cascade.observe(&stream).unwrap();
    let mut one = speculator(Box::new(cascade), 0.01, &[0.05]);
    one.propose(&stream, ANY, Load::default());
    let ask = one.ask(|_| true).unwrap();
    // After 20 alone a quotation is less likely than the next guess; after 20, 21, 22 it is likelier.
    let mut guesses = 0;
    for token in 20..28 {
        guesses += 1;
        if !one.take(&stream, token, LEVELS - 1, 1, &ANY) {
            break;
        }
    }
    one.finish(None);
    assert!(guesses > 1 && guesses < 6, "{guesses} guesses of {ask:?}");
    assert!(one.draft().len() > guesses, "{:?}", one.draft());
    assert_eq!(one.draft().tokens, stream[..one.draft().len()]);
    let n = one.draft().len();
    one.record_verify(n, n + 1, Some(1.1));
    let stats = one.stats();
    let own = stats.sources.iter().find(|source| &*source.name == "lane-0").unwrap();
    assert_eq!((own.accepted, own.grafted), (n as u64, (n - guesses) as u64));
}

#[test]
fn a_lane_pays_for_itself_alone() {
    let mut one = speculator(silent(), 0.3, &[0.05]);
    let mut asked = 0;
    for _ in 0..200 {
        let (lane, verified) = step(&mut one, LEVELS - 1);
        asked += usize::from(lane.is_some());
        one.observe(&[50]);
        match verified.len() {
            0 => one.record_plain(0),
            n => one.record_verify(0, 1, Some(1.0 + 0.3 * n as f64)),
        }
    }
    assert!(asked < 60, "asked {asked} times");
    assert!(!one.listens(0), "still told of what is committed");
    assert_eq!(one.gate().stats().trips, 0);
    let stats = one.stats();
    let own = stats.sources.iter().find(|source| &*source.name == "lane-0").unwrap();
    assert!(own.drafts > 0 && own.accepted == 0);
    assert!(own.reason.as_deref().is_some_and(|reason| reason.starts_with("does not pay: ")), "{own:?}");
}

#[test]
fn a_lane_that_slept_wakes_and_drafts_again_when_its_guesses_have_become_right() {
    let mut one = speculator(silent(), 0.05, &[0.1]);
    let mut drafted = [0; 2];
    for i in 0..3000 {
        let (_, verified) = step(&mut one, 3);
        one.observe(&[50]);
        let n = verified.len();
        let right = if i < 300 { 0 } else { n };
        match n {
            0 => one.record_plain(0),
            n => one.record_verify(right, right + 1, Some(1.0 + 0.05 * n as f64)),
        }
        drafted[0] += usize::from((200..300).contains(&i) && n > 0);
        drafted[1] += usize::from(i >= 2900 && n > 0);
    }
    assert!(drafted[0] < 20 && drafted[1] > 95, "{drafted:?}");
}

#[test]
fn a_lane_that_fails_is_asked_no_more_and_its_guesses_stand() {
    let mut one = speculator(silent(), 0.01, &[0.01]);
    one.propose(&[1], ANY, Load::default());
    one.ask(|_| true).unwrap();
    one.take(&[1], 10, LEVELS - 1, 1, &ANY);
    one.finish(Some("broken".into()));
    assert_eq!(one.draft().tokens, [10]);
    one.record_verify(1, 2, Some(1.0));
    assert!(!one.listens(0));
    assert_eq!(step(&mut one, 5).0, None);
    assert_eq!(one.stats().sources[0].reason.as_deref(), Some("broken"));
}

#[test]
fn a_cascade_takes_a_lanes_step_for_a_step() {
    // The cascade scores what it would have named also where a lane drafted, though several tokens come at once.
    let stream = [1, 2, 3, 1, 2, 3, 1];
    let mut cascade = Cascade::new(100, CascadeOptions::default()).unwrap();
    cascade.observe(&stream).unwrap();
    let asked = |cascade: &Cascade| cascade.rates()[0].1.iter().map(|rate| rate.asked).sum::<u64>();
    let before = asked(&cascade);
    cascade.give_way(Some(0.4));
    cascade.observe(&[2, 3]).unwrap();
    assert_eq!(asked(&cascade), before + 2);
    cascade.give_way(Some(0.4));
    cascade.give_way(None);
    cascade.observe(&[1, 2]).unwrap();
    assert_eq!(asked(&cascade), before + 2, "two tokens without a draft are a prompt");
}
