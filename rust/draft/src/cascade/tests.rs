//! Which candidate drafts, and how much; against the definitions where it counts.

use super::*;
use crate::oracle::{self, Dice};
use crate::table::{CostPoint, CostTable};
use proptest::prelude::*;

fn cascade(options: CascadeOptions) -> Cascade {
    Cascade::new(1000, options).unwrap()
}

/// A cascade without recycling, which has observed `stream`.
fn matching(stream: &[u32]) -> Cascade {
    let mut cascade = cascade(CascadeOptions { recycling: false, ..CascadeOptions::default() });
    cascade.observe(stream).unwrap();
    cascade
}

/// A draft of at most `max` tokens, where verification is free.
fn draft(cascade: &mut Cascade, context: &[u32], max: usize) -> Draft {
    let mut draft = Draft { tokens: vec![99; 3], ..Draft::default() };
    cascade.suggest(context, Budget::free(max), &mut draft).unwrap();
    draft
}

fn suggest(cascade: &mut Cascade, context: &[u32], max: usize) -> Vec<u32> {
    draft(cascade, context, max).tokens
}

/// A draft where a verification costs what the table of `points` says.
fn priced(cascade: &mut Cascade, context: &[u32], max: usize, points: &[(usize, f64)]) -> Draft {
    let points = points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect();
    let table = CostTable::new(points, "a test").unwrap();
    let extra: Vec<f64> = (0..=max).map(|k| table.cost(k, 0) - 1.0).collect();
    let mut draft = Draft::default();
    cascade.suggest(context, Budget { min_tokens: 1, max_tokens: max, extra: &extra, ahead: 0 }, &mut draft).unwrap();
    draft
}

fn source(draft: &Draft) -> &str {
    draft.source.as_deref().unwrap_or("none")
}

#[test]
fn a_vocabulary_out_of_range_is_refused() {
    let refused = |n_vocab| Cascade::new(n_vocab, CascadeOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert_eq!(refused(0), "`n_vocab`: expected 1 to 4194304, found 0");
    assert_eq!(refused(usize::MAX), format!("`n_vocab`: expected 1 to 4194304, found {}", usize::MAX));
}

#[test]
fn the_longest_match_drafts_and_a_tie_goes_to_the_conversation() {
    let stream = [1, 2, 3, 50, 51, 52, 1, 2, 3];
    let mut cascade = matching(&stream);
    assert_eq!(suggest(&mut cascade, &stream, 3), [50, 51, 52]);
    let tie = cascade.add_reference(&[1, 2, 3, 60, 61, 62]).unwrap();
    assert_eq!(suggest(&mut cascade, &stream, 3), [50, 51, 52], "a tie goes to the conversation");
    let longer = cascade.add_reference(&[52, 1, 2, 3, 70, 71, 72]).unwrap();
    cascade.add_reference(&[52, 1, 2, 3, 80, 81, 82]).unwrap();
    assert_eq!(suggest(&mut cascade, &stream, 3), [70, 71, 72], "caught up, longer, and added first");
    assert!(cascade.remove_reference(longer) && !cascade.remove_reference(longer));
    assert_eq!(suggest(&mut cascade, &stream, 3), [80, 81, 82]);
    assert_eq!(cascade.references().collect::<Vec<_>>(), [tie, ReferenceId(3)]);
    cascade.clear_references();
    assert_eq!(suggest(&mut cascade, &stream, 3), [50, 51, 52]);
    assert_eq!(cascade.add_reference(&[]).unwrap(), ReferenceId(4), "an id is never given twice");
    assert_eq!(suggest(&mut cascade, &stream, 3), [50, 51, 52]);
}

#[test]
fn a_reference_with_a_token_out_of_range_is_not_added() {
    let mut cascade = matching(&[]);
    let error = cascade.add_reference(&[1, 1000, 2]).unwrap_err();
    assert_eq!(error.to_string(), "expected tokens below 1000, found 1000 at position 1 of the reference");
    assert_eq!(cascade.references().len(), 0);
}

#[test]
fn a_match_under_the_least_does_not_draft() {
    let stream = [1, 2, 3, 9, 1];
    assert_eq!(suggest(&mut matching(&stream), &stream, 4), [2, 3, 9, 1]);
    let mut wary = cascade(CascadeOptions { min_match: 2, recycling: false, ..CascadeOptions::default() });
    wary.observe(&stream).unwrap();
    wary.add_reference(&[1, 7, 8]).unwrap();
    assert_eq!(suggest(&mut wary, &stream, 8), []);
}

#[test]
fn a_draft_has_its_source_and_chances_and_fits_the_budget() {
    let stream = [1, 2, 3, 9, 1, 2];
    let mut cascade = matching(&stream);
    let made = draft(&mut cascade, &stream, 4);
    assert_eq!((source(&made), &made.tokens[..]), ("conversation", &[3, 9, 1, 2][..]));
    // The priors of matches of two, three, four and five tokens.
    let chances = [0.35, 0.35 * 0.5, 0.35 * 0.5 * 0.6, 0.35 * 0.5 * 0.6 * 0.65];
    assert!(made.reach.iter().zip(chances).all(|(a, b)| (a - b).abs() < 1e-6), "{:?}", made.reach);
    let none = Draft::default();
    let budget = |min_tokens, max_tokens| Budget { min_tokens, max_tokens, extra: &[], ahead: 0 };
    for (budget, len) in [(budget(1, 0), 0), (budget(3, 2), 0), (budget(2, 2), 2), (budget(1, 9), 9)] {
        let mut made = draft(&mut cascade, &stream, 4);
        cascade.suggest(&stream, budget, &mut made).unwrap();
        assert_eq!((made.len(), made.reach.len()), (len, len));
        assert!(len > 0 || made == none);
    }
}

#[test]
fn a_context_that_does_not_end_in_the_observed_token_gets_no_match() {
    let stream = [1, 2, 3, 9, 1, 2];
    let mut cascade = matching(&stream);
    cascade.add_reference(&[9, 1, 2, 4, 5, 6]).unwrap();
    assert_eq!(suggest(&mut cascade, &[2, 3], 8), []);
    assert_eq!(suggest(&mut cascade, &[], 8), []);
    assert_eq!(suggest(&mut cascade, &[2], 8), [4, 5, 6]);
}

#[test]
fn recycling_drafts_where_nothing_matches_and_stops_at_the_unseen() {
    let mut cascade = cascade(CascadeOptions { chain: 4, ..CascadeOptions::default() });
    cascade.observe(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(suggest(&mut cascade, &[8], 16), []);
    assert_eq!(suggest(&mut cascade, &[3], 16), [4, 5, 6, 7], "at most a chain, also out of step with the stream");
    assert_eq!(suggest(&mut cascade, &[3], 3), [4, 5, 6]);
    assert_eq!(suggest(&mut cascade, &[6], 16), [7, 8]);
    let (mut one, budget) = (Draft::default(), Budget { min_tokens: 2, max_tokens: 16, extra: &[], ahead: 0 });
    cascade.suggest(&[7], budget, &mut one).unwrap();
    assert!(one.is_empty(), "one token is less than the budget's least");
    cascade.observe_topk(&[TopkRow { token: 8, top: &[1, 2] }]).unwrap();
    assert_eq!(suggest(&mut cascade, &[8], 16), [1, 2, 3, 4]);
    assert_eq!(cascade.topk(), 0, "rows are taken, not asked for");
    assert_eq!(matching(&[]).topk(), 0, "without recycling, too");
}

#[test]
fn committed_pairs_outlast_the_rows_of_the_same_step() {
    let mut cascade = cascade(CascadeOptions::default());
    cascade.observe(&[1]).unwrap();
    cascade.observe(&[2, 3]).unwrap();
    let rows = [TopkRow { token: 1, top: &[40, 2, 41] }, TopkRow { token: 2, top: &[50, 51] }];
    cascade.observe_topk(&rows).unwrap();
    assert_eq!(suggest(&mut cascade, &[1], 2), [2, 3], "the pair across the calls as well as the one within");
    assert_eq!(suggest(&mut cascade, &[2], 2), [3]);
}

#[test]
fn a_shut_index_leaves_references_and_recycling_at_work() {
    let mut cascade = cascade(CascadeOptions::default());
    cascade.observe(&[1, 2, 3, 1, 2, 3]).unwrap();
    let early = cascade.add_reference(&[7, 8, 9, 10, 11]).unwrap();
    cascade.observe(&[u32::MAX, 7]).unwrap();
    let part = &cascade.parts()[0];
    assert!(part.shut.as_deref().unwrap().contains("found 4294967295 at position 6"), "{part:?}");
    cascade.add_reference(&[6, 7, 8, 20, 21, 22]).unwrap();
    cascade.observe(&[8]).unwrap();
    assert_eq!(suggest(&mut cascade, &[8], 3), [9, 10, 11], "both match two tokens: the later one saw only the last");
    assert!(cascade.remove_reference(early));
    cascade.observe(&[6, 7, 8]).unwrap();
    assert_eq!(suggest(&mut cascade, &[8], 3), [20, 21, 22]);
    cascade.clear_references();
    assert_eq!(suggest(&mut cascade, &[1], 3), [2, 3, 1], "recycled");
    cascade.rebuild(&[1, 2, 3, 1, 2]).unwrap();
    assert_eq!(cascade.parts()[0].shut, None, "a rebuilt index is open again");
    assert_eq!(suggest(&mut cascade, &[2], 3), [3, 1, 2]);
}

#[test]
fn rates_are_learned_from_every_committed_token_drafted_or_not() {
    let stream: Vec<u32> = (0..40).cycle().take(400).collect();
    let mut cascade = matching(&stream[..50]);
    assert!(cascade.rates()[0].1.iter().all(|bucket| bucket.seen == 0), "a prompt is not scored");
    for &token in &stream[50..] {
        cascade.observe(&[token]).unwrap();
    }
    let (name, rates) = &cascade.rates()[0];
    assert_eq!(name, "conversation");
    let last = rates.last().unwrap();
    assert!(last.from == 33 && last.seen > 100 && last.rate > 0.99, "{last:?}");
}

#[test]
fn drafts_are_long_where_matches_hold_and_rare_where_they_break() {
    let curve = [(1, 1.02), (8, 1.5), (16, 2.7)];
    let mut good = cascade(CascadeOptions::default());
    let stream: Vec<u32> = (0..40).cycle().take(600).collect();
    stream.iter().for_each(|token| good.observe(&[*token]).unwrap());
    assert_eq!(priced(&mut good, &stream, 16, &curve).len(), 16);

    let mut bad = cascade(CascadeOptions::default());
    let mut dice = Dice(8);
    let stream: Vec<u32> = (0..3000).map(|_| dice.below(300)).collect();
    let drafted = stream.iter().enumerate().skip(1).filter(|&(i, token)| {
        bad.observe(&[*token]).unwrap();
        i > 1000 && !priced(&mut bad, &[*token], 16, &curve).is_empty()
    });
    let drafted = drafted.count();
    assert!(drafted < 400, "drafted {drafted} of 2000 times on noise");
}

#[test]
fn drafts_are_short_where_verification_costs_much() {
    let stream: Vec<u32> = (0..40).cycle().take(300).collect();
    let mut cascade = cascade(CascadeOptions::default());
    stream.iter().for_each(|token| cascade.observe(&[*token]).unwrap());
    let mut len = |points: &[(usize, f64)]| priced(&mut cascade, &stream, 32, points).len();
    assert_eq!(len(&[(1, 1.05), (8, 1.5), (16, 4.0), (32, 20.0)]), 16);
    assert_eq!(len(&[(1, 4.2), (8, 6.0), (16, 16.0), (32, 80.0)]), 8, "four times as much");
    assert_eq!(len(&[(1, 9.0), (2, 20.0), (32, 300.0)]), 0);
}

#[test]
fn the_candidate_that_has_been_right_is_preferred() {
    let mut cascade = cascade(CascadeOptions::default());
    let mut dice = Dice(6);
    // The reference continues as the text does; the conversation's own repetitions never continue as before.
    let text: Vec<u32> = (0..800).map(|_| dice.below(12)).collect();
    cascade.add_reference(&text).unwrap();
    text[..700].iter().for_each(|token| cascade.observe(&[*token]).unwrap());
    let made = priced(&mut cascade, &text[..700], 8, &[(1, 1.02), (16, 2.0)]);
    assert_eq!((source(&made), &made.tokens[..]), ("reference-1", &text[700..708]));
}

#[test]
fn the_rate_counts_what_was_verified_of_the_pending_draft() {
    let stream = [1, 2, 3, 4, 5, 6, 9, 1, 2];
    let rate_after = |act: fn(&mut Cascade), committed: &[u32]| {
        let mut cascade = matching(&stream);
        cascade.rater.record(0.0, 33);
        priced(&mut cascade, &stream, 4, &[(1, 1.01), (2, 1.02), (3, 1.04), (4, 1.05)]);
        assert_eq!(cascade.pending.len(), 5);
        act(&mut cascade);
        cascade.observe(committed).unwrap();
        cascade.rater
    };
    let expected = |extra: f64, committed: usize| {
        let mut rater = Rater::new();
        rater.record(0.0, 33);
        rater.record(extra, committed);
        rater
    };
    let near = |a: Rater, b: Rater| assert!(format!("{a:.9?}") == format!("{b:.9?}"), "{a:?} {b:?}");
    near(rate_after(|_| (), &[3, 4, 8]), expected(0.05, 3));
    near(rate_after(|cascade| cascade.truncate_pending(3), &[3, 4, 8]), expected(0.04, 3));
    near(rate_after(|cascade| cascade.truncate_pending(9), &[3, 4, 8]), expected(0.05, 3));
    near(rate_after(|cascade| cascade.truncate_pending(0), &[3]), expected(0.0, 1));
    near(rate_after(Cascade::clear_references, &[3]), expected(0.0, 1));
    // Several tokens without a draft are a prompt, and so says nothing.
    let mut nothing = Rater::new();
    nothing.record(0.0, 33);
    near(rate_after(|cascade| cascade.truncate_pending(0), &[3, 4, 8]), nothing.clone());
    near(rate_after(|cascade| suggest(cascade, &[], 4).clear(), &[3, 4, 8]), nothing);
}

/// A draft that a candidate may make.
struct Naive {
    gain: f64,
    draft: Vec<u32>,
}

/// Each candidate's possible drafts with their gains, from the definitions: matches by brute force, the rates that the cascade shows.
fn naive(cascade: &Cascade, references: &[Vec<u32>], stream: &[u32], max: usize, slope: f64) -> Vec<Vec<Naive>> {
    let rates = cascade.rates();
    let offer = |candidate: usize, match_len: usize, quoted: Vec<u32>| {
        let rate = |len: usize| rates[candidate].1.iter().rev().find(|bucket| bucket.from <= len).unwrap().rate;
        let (mut reach, mut sum) = (1.0, 0.0);
        let mut best = Naive { gain: 0.0, draft: vec![] };
        for (i, _) in quoted.iter().take(max).enumerate() {
            reach *= rate(match_len + i);
            sum += reach;
            let gain = sum - slope * (i + 1) as f64;
            if gain > best.gain {
                best = Naive { gain, draft: quoted[..=i].to_vec() };
            }
        }
        best
    };
    let own = oracle::longest_earlier_suffix(stream);
    let mut all: Vec<Vec<Naive>> = vec![
        oracle::earlier_ends(stream).iter().map(|&end| offer(0, own, oracle::copy_from(stream, end, max))).collect(),
    ];
    for (i, reference) in references.iter().enumerate() {
        let len = oracle::longest_suffix_within(reference, stream);
        let ends = (len.max(1)..=reference.len())
            .filter(|&end| len > 0 && reference[..end].ends_with(&stream[stream.len() - len..]));
        all.push(ends.map(|end| offer(1 + i, len, reference[end..].to_vec())).collect());
    }
    all
}

proptest! {
    /// The rate stays 1 here, as each step commits one token; costs rise by the same for each token.
    #[test]
    fn the_winner_and_its_draft_equal_the_definitions(
        stream in prop::collection::vec(0u32..3, 1..60),
        references in prop::collection::vec(prop::collection::vec(0u32..3, 0..30), 0..3),
        slope in 0.0f64..0.5,
        max in 1usize..20,
    ) {
        let mut cascade = matching(&[]);
        for reference in &references {
            cascade.add_reference(reference).unwrap();
        }
        let extra: Vec<f64> = (0..=max).map(|d| slope * d as f64).collect();
        let mut made = Draft::default();
        for (i, token) in stream.iter().enumerate() {
            cascade.observe(&[*token]).unwrap();
            cascade.suggest(&stream[..=i], Budget { min_tokens: 1, max_tokens: max, extra: &extra, ahead: 0 }, &mut made).unwrap();
            cascade.truncate_pending(0);
            let all = naive(&cascade, &references, &stream[..=i], max, slope);
            // Which of several equal matches is quoted is not defined, so a candidate's gain is one of several.
            let least = |drafts: &Vec<Naive>| drafts.iter().map(|naive| naive.gain).reduce(f64::min).unwrap_or(0.0);
            let named = |at: usize| if at == 0 { "conversation".to_owned() } else { format!("reference-{at}") };
            let fits = |(at, drafts): (usize, &Vec<Naive>)| {
                let others = all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, drafts)| least(drafts));
                let bar = others.fold(0.0, f64::max);
                let same = |naive: &Naive| naive.draft == made.tokens && naive.gain > bar - 1e-9;
                source(&made) == named(at) && drafts.iter().any(same)
            };
            if made.is_empty() {
                prop_assert!(all.iter().all(|drafts| least(drafts) < 1e-9));
            } else {
                prop_assert!(all.iter().enumerate().any(fits), "{made:?} after {:?}", &stream[..=i]);
            }
        }
    }

    #[test]
    fn a_reference_added_late_drafts_as_if_it_had_been_there(
        stream in prop::collection::vec(0u32..3, 2..60),
        reference in prop::collection::vec(0u32..3, 0..30),
        next in 0u32..3,
    ) {
        let (mut early, mut late) = (matching(&[]), matching(&[]));
        early.add_reference(&reference).unwrap();
        early.observe(&stream).unwrap();
        late.observe(&stream).unwrap();
        late.add_reference(&reference).unwrap();
        prop_assert_eq!(draft(&mut early, &stream, 9), draft(&mut late, &stream, 9));
        early.observe(&[next]).unwrap();
        late.observe(&[next]).unwrap();
        prop_assert_eq!(draft(&mut early, &[next], 9), draft(&mut late, &[next], 9));
    }

    #[test]
    fn a_rebuilt_cascade_drafts_as_a_fresh_one(
        old in prop::collection::vec(0u32..3, 1..60),
        keep in 0usize..60,
        new in prop::collection::vec(0u32..3, 1..30),
        reference in prop::collection::vec(0u32..3, 0..30),
    ) {
        let history = [&old[..keep.min(old.len())], &new].concat();
        let (mut rebuilt, mut fresh) = (matching(&[]), matching(&[]));
        rebuilt.add_reference(&reference).unwrap();
        fresh.add_reference(&reference).unwrap();
        rebuilt.observe(&old).unwrap();
        rebuilt.rebuild(&history).unwrap();
        fresh.rebuild(&history).unwrap();
        prop_assert_eq!(suggest(&mut rebuilt, &history, 9), suggest(&mut fresh, &history, 9));
        rebuilt.observe(&[1]).unwrap();
        fresh.observe(&[1]).unwrap();
        prop_assert_eq!(suggest(&mut rebuilt, &[1], 9), suggest(&mut fresh, &[1], 9));
    }

    /// Nothing a caller can say makes the cascade panic, over-draft, or forget a token.
    #[test]
    fn any_order_of_calls_is_safe(
        calls in prop::collection::vec((0u8..8, prop::collection::vec(prop::num::u32::ANY, 0..6), 0usize..40), 0..60),
        free in prop::bool::ANY,
    ) {
        let mut cascade = cascade(CascadeOptions::default());
        let extra: Vec<f64> = if free { vec![] } else { (0..40).map(|d| 0.06 * f64::from(d)).collect() };
        let mut made = Draft::default();
        for (call, tokens, n) in calls {
            let small: Vec<u32> = tokens.iter().map(|token| token % 5).collect();
            match call {
                0 => cascade.observe(&tokens).unwrap(),
                1 | 2 => cascade.observe(&small).unwrap(),
                3 => {
                    cascade.suggest(&small, Budget { min_tokens: 2, max_tokens: n, extra: &extra, ahead: 0 }, &mut made).unwrap();
                    prop_assert!(made.len() <= n && made.len() != 1 && made.reach.len() == made.len());
                    prop_assert_eq!(made.source.is_some(), !made.is_empty());
                }
                4 => cascade.truncate_pending(n),
                5 => cascade.observe_topk(&[TopkRow { token: n as u32 % 5, top: &tokens }]).unwrap(),
                6 => drop(cascade.add_reference(&small)),
                _ => cascade.rebuild(&small).unwrap(),
            }
        }
        let parts = cascade.parts();
        let names: std::collections::HashSet<_> = parts.iter().map(|part| &part.name).collect();
        prop_assert_eq!(names.len(), parts.len(), "no two candidates have one name");
    }
}
