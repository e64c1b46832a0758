//! Who drafts, how much, and what is written in the books; against a naive cascade where it counts.

use super::*;
use crate::cost::{CostPoint, CostTable};
use crate::oracle::{self, Dice};
use proptest::prelude::*;

fn cascade(options: CascadeOptions) -> Cascade {
    Cascade::new(1000, options).unwrap()
}

/// A default cascade without recycling, which has observed `stream`.
fn matching(stream: &[u32]) -> Cascade {
    let mut cascade = cascade(CascadeOptions { recycling: false, ..CascadeOptions::default() });
    cascade.observe(stream).unwrap();
    cascade
}

fn suggest(cascade: &mut Cascade, context: &[u32], max: usize) -> Vec<u32> {
    let mut out = vec![99; 3];
    cascade.suggest(context, max, &mut out).unwrap();
    out
}

/// Accepted and drafted of the source called `name`.
fn counts(cascade: &Cascade, name: &str) -> (u64, u64) {
    let stats = cascade.stats().into_iter().find(|stats| stats.name == name).unwrap();
    (stats.accepted, stats.drafted)
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
fn a_draft_is_in_proportion_to_its_match_and_never_over_what_is_asked() {
    let run: Vec<u32> = (0..60).collect();
    for budget_factor in [1, 2] {
        for len in [2, 3, 5, 10] {
            let stream = [&run[..], &[99], &run[..len]].concat();
            let policy = Policy::Fixed { budget_factor };
            let mut cascade = cascade(CascadeOptions { policy, recycling: false, ..CascadeOptions::default() });
            cascade.observe(&stream).unwrap();
            assert_eq!(suggest(&mut cascade, &stream, 100).len(), budget_factor * (1 + len));
            assert_eq!(suggest(&mut cascade, &stream, 4).len(), (budget_factor * (1 + len)).min(4));
            assert_eq!(suggest(&mut cascade, &stream, 1), [], "nothing under min_draft");
            assert_eq!(suggest(&mut cascade, &stream, 0), []);
        }
    }
}

#[test]
fn a_match_under_the_least_does_not_draft() {
    let stream = [1, 2, 3, 9, 1];
    assert_eq!(suggest(&mut matching(&stream), &stream, 8), []);
    let mut eager = cascade(CascadeOptions { min_match: 1, recycling: false, ..CascadeOptions::default() });
    eager.observe(&stream).unwrap();
    assert_eq!(suggest(&mut eager, &stream, 8), [2, 3, 9, 1]);
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
    assert_eq!(suggest(&mut cascade, &[7], 16), [], "one token is under min_draft");
    cascade.observe_topk(&[TopkRow { token: 8, top: &[1, 2] }]).unwrap();
    assert_eq!(suggest(&mut cascade, &[8], 16), [1, 2, 3, 4]);
    assert_eq!(cascade.topk(), 0, "rows are taken, not asked for");
    assert_eq!(matching(&[]).topk(), 0, "without the matrix top-k is never computed");
}

#[test]
fn committed_bigrams_outlast_the_rows_of_the_same_step() {
    let mut cascade = cascade(CascadeOptions::default());
    cascade.observe(&[1]).unwrap();
    cascade.observe(&[2, 3]).unwrap();
    let rows = [TopkRow { token: 1, top: &[40, 2, 41] }, TopkRow { token: 2, top: &[50, 51] }];
    cascade.observe_topk(&rows).unwrap();
    assert_eq!(suggest(&mut cascade, &[1], 2), [2, 3], "the bigram across the calls as well as the one within");
    let recycler = cascade.recycler.as_ref().unwrap();
    assert_eq!(recycler.successors(1).collect::<Vec<_>>(), [2, 40, 41]);
    assert_eq!(recycler.successors(2).collect::<Vec<_>>(), [3, 50, 51]);
}

#[test]
fn a_draft_settles_as_the_common_prefix_with_what_was_committed() {
    let stream = [1, 2, 3, 4, 5, 6, 9, 1, 2];
    let settled = |committed: &[u32]| {
        let mut cascade = matching(&stream);
        assert_eq!(suggest(&mut cascade, &stream, 4), [3, 4, 5, 6]);
        cascade.observe(committed).unwrap();
        counts(&cascade, "conversation")
    };
    assert_eq!(settled(&[8]), (0, 4));
    assert_eq!(settled(&[3, 4, 8]), (2, 4));
    assert_eq!(settled(&[3, 4, 5, 6, 7]), (4, 4));
    assert_eq!(settled(&[3, 4]), (2, 2), "a stop after two: the rest was never verified");
    assert_eq!(settled(&[]), (0, 0), "nothing was committed, nothing settles");
}

#[test]
fn what_was_never_verified_is_not_counted() {
    let stream = [1, 2, 3, 4, 5, 6, 9, 1, 2];
    let truncated = |n: usize| {
        let mut cascade = matching(&stream);
        suggest(&mut cascade, &stream, 4);
        cascade.truncate_pending(n);
        cascade.observe(&[3, 4, 8]).unwrap();
        counts(&cascade, "conversation")
    };
    assert_eq!(truncated(9), (2, 4));
    assert_eq!(truncated(3), (2, 3));
    assert_eq!(truncated(2), (2, 2));
    assert_eq!(truncated(1), (0, 0), "a draft under min_draft is a plain step");
    let mut cascade = matching(&stream);
    suggest(&mut cascade, &stream, 4);
    suggest(&mut cascade, &[5], 4);
    cascade.observe(&[3, 4, 8]).unwrap();
    assert_eq!(counts(&cascade, "conversation"), (0, 0), "another suggestion forgets the first");
    for (context, max) in [(&[][..], 4), (&stream[..], 1)] {
        suggest(&mut cascade, &stream, 4);
        suggest(&mut cascade, context, max);
        cascade.observe(&[3, 4, 5, 6, 9, 1, 2]).unwrap();
        assert_eq!(counts(&cascade, "conversation"), (0, 0), "so does one that cannot draft");
    }
    suggest(&mut cascade, &stream, 4);
    cascade.clear_references();
    cascade.observe(&[3]).unwrap();
    assert_eq!(counts(&cascade, "conversation"), (0, 0));
}

#[test]
fn a_source_that_is_mostly_wrong_is_muted_keeps_learning_and_comes_back() {
    let options = CascadeOptions { mute_window: 8, mute_tokens: 5, recycling: false, ..CascadeOptions::default() };
    let mut cascade = cascade(options);
    cascade.observe(&[1, 2, 3, 4, 5, 6, 1, 2]).unwrap();
    let right = [1, 2, 3, 4, 5, 6];
    cascade.add_reference(&right).unwrap();
    // Two drafts of four, one token of eight accepted: 12 %.
    assert_eq!(suggest(&mut cascade, &[2], 4), [3, 4, 5, 6]);
    cascade.observe(&[3, 9, 1, 2]).unwrap();
    assert_eq!(suggest(&mut cascade, &[2], 4).len(), 4);
    cascade.observe(&[8, 1, 2]).unwrap();
    let stats = &cascade.stats()[0];
    assert_eq!((stats.muted, stats.mutes, stats.drafts), (true, 1, 2));
    assert_eq!(stats.reason.as_deref(), Some("1 of the last 8 drafted tokens were accepted"));
    assert_eq!(suggest(&mut cascade, &[2], 4), [3, 4, 5, 6], "the reference takes over");
    assert_eq!(cascade.pending, Some(Origin::Reference(0)));
    cascade.observe(&[3, 4, 7, 2]).unwrap();
    assert!(cascade.stats()[0].muted, "four of five tokens have passed");
    cascade.observe(&[3, 4, 7, 2]).unwrap();
    assert!(!cascade.stats()[0].muted);
    assert_eq!(suggest(&mut cascade, &[2], 4), [3, 4, 7, 2], "what was committed meanwhile is known");
    assert_eq!(cascade.pending, Some(Origin::Conversation));
    cascade.observe(&[9, 1, 2]).unwrap();
    assert!(!cascade.stats()[0].muted, "four more drafted tokens do not fill the window again");
    assert_eq!(cascade.stats()[0].drafted, 12);
}

#[test]
fn a_shut_index_leaves_references_and_recycling_at_work() {
    let mut cascade = cascade(CascadeOptions::default());
    cascade.observe(&[1, 2, 3, 1, 2, 3]).unwrap();
    let early = cascade.add_reference(&[7, 8, 9, 10, 11]).unwrap();
    cascade.observe(&[u32::MAX, 7]).unwrap();
    let stats = &cascade.stats()[0];
    assert!(stats.muted && stats.reason.as_deref().unwrap().contains("found 4294967295 at position 6"), "{stats:?}");
    cascade.add_reference(&[6, 7, 8, 20, 21, 22]).unwrap();
    cascade.observe(&[8]).unwrap();
    assert_eq!(suggest(&mut cascade, &[8], 3), [9, 10, 11], "both match two tokens: the later one saw only the last");
    assert!(cascade.remove_reference(early));
    cascade.observe(&[6, 7, 8]).unwrap();
    assert_eq!(suggest(&mut cascade, &[8], 3), [20, 21, 22]);
    cascade.clear_references();
    assert_eq!(suggest(&mut cascade, &[1], 3), [2, 3, 1], "from the matrix");
    cascade.rebuild(&[1, 2, 3, 1, 2]).unwrap();
    assert!(!cascade.stats()[0].muted, "a rebuilt index is open again");
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
    assert_eq!(counts(&cascade, "conversation"), (0, 0));
}

fn best_rate(points: &[(usize, f64)]) -> Cascade {
    let points = points.iter().map(|&(k, cost)| CostPoint { k, cost }).collect();
    cascade(CascadeOptions::for_costs(&CostTable::new(points, "a test").unwrap()))
}

#[test]
fn best_rate_drafts_long_where_matches_hold_and_not_where_they_break() {
    let mut good = best_rate(&[(1, 1.02), (8, 1.5), (16, 2.7)]);
    let stream: Vec<u32> = (0..40).cycle().take(600).collect();
    stream.iter().for_each(|token| good.observe(&[*token]).unwrap());
    assert_eq!(suggest(&mut good, &stream, 16).len(), 16);

    let mut bad = best_rate(&[(1, 1.02), (8, 1.5), (16, 2.7)]);
    let mut dice = Dice(8);
    let stream: Vec<u32> = (0..3000).map(|_| dice.below(300)).collect();
    let drafted = stream.iter().enumerate().skip(1).filter(|&(i, token)| {
        bad.observe(&[*token]).unwrap();
        i > 1000 && !suggest(&mut bad, &[*token], 16).is_empty()
    });
    let drafted = drafted.count();
    assert!(drafted < 400, "drafted {drafted} of 2000 times on noise");
}

#[test]
fn best_rate_drafts_less_where_verification_is_dear() {
    let stream: Vec<u32> = (0..40).cycle().take(300).collect();
    let len = |points: &[(usize, f64)], scale: f64| {
        let mut cascade = best_rate(points);
        stream.iter().for_each(|token| cascade.observe(&[*token]).unwrap());
        cascade.set_cost_scale(scale);
        suggest(&mut cascade, &stream, 32).len()
    };
    let curve = [(1, 1.05), (8, 1.5), (16, 4.0), (32, 20.0)];
    assert_eq!(len(&curve, 1.0), 16);
    assert!(len(&curve, 4.0) < 16, "a live correction counts");
    assert_eq!(len(&[(1, 9.0), (2, 20.0), (32, 300.0)], 1.0), 0);
}

#[test]
fn best_rate_prefers_the_source_that_has_been_right() {
    let mut cascade = best_rate(&[(1, 1.02), (16, 2.0)]);
    let mut dice = Dice(6);
    // The reference continues as the text does; the conversation's own repetitions never continue as before.
    let text: Vec<u32> = (0..800).map(|_| dice.below(12)).collect();
    cascade.add_reference(&text).unwrap();
    text[..700].iter().for_each(|token| cascade.observe(&[*token]).unwrap());
    assert_eq!(suggest(&mut cascade, &text[..700], 8), text[700..708]);
    assert_eq!(cascade.pending, Some(Origin::Reference(0)));
}

/// What `Fixed` should do, from the definitions: the winner by match, its draft's length, the drafts it may give.
fn check_against_naive(options: &CascadeOptions, references: &[Vec<u32>], stream: &[u32], max: usize, draft: &[u32]) {
    let Policy::Fixed { budget_factor } = options.policy else { return };
    let own = oracle::longest_earlier_suffix(stream);
    let lens: Vec<usize> = references.iter().map(|r| oracle::longest_suffix_within(r, stream)).collect();
    let budget = |len: usize| max.min(budget_factor * (1 + len));
    let copies =
        |ends: Vec<usize>, len| ends.iter().map(|&end| oracle::copy_from(stream, end, len)).collect::<Vec<_>>();
    let quotes = |r: &[u32], len: usize| {
        let ends = (len..=r.len()).filter(|&end| r[..end].ends_with(&stream[stream.len() - len..]));
        ends.map(|end| r[end..r.len().min(end + budget(len))].to_vec()).collect::<Vec<_>>()
    };
    let mut allowed = vec![vec![]];
    let mut best = 0;
    if own >= options.min_match {
        best = own;
        allowed = copies(oracle::earlier_ends(stream), budget(own));
    }
    for (reference, &len) in references.iter().zip(&lens) {
        if len >= options.min_match && len > best {
            let drafts = quotes(reference, len);
            // At the end of a document there is nothing to quote, and the next best source drafts.
            if drafts.iter().any(|draft| draft.len() < options.min_draft) {
                return;
            }
            best = len;
            allowed = drafts;
        }
    }
    assert!(allowed.iter().any(|a| a == draft), "{draft:?} is none of {allowed:?} after {stream:?}");
}

proptest! {
    #[test]
    fn the_winner_and_its_draft_equal_the_definitions(
        stream in prop::collection::vec(0u32..3, 1..60),
        references in prop::collection::vec(prop::collection::vec(0u32..3, 0..30), 0..3),
        budget_factor in 1usize..3,
        max in 2usize..20,
    ) {
        let policy = Policy::Fixed { budget_factor };
        let options = CascadeOptions { policy, recycling: false, mute_below: 0.0, ..CascadeOptions::default() };
        let mut cascade = cascade(options.clone());
        for reference in &references {
            cascade.add_reference(reference).unwrap();
        }
        for (i, token) in stream.iter().enumerate() {
            cascade.observe(&[*token]).unwrap();
            let draft = suggest(&mut cascade, &stream[..=i], max);
            check_against_naive(&options, &references, &stream[..=i], max, &draft);
        }
    }

    #[test]
    fn a_reference_added_late_drafts_as_if_it_had_been_there(
        stream in prop::collection::vec(0u32..3, 1..60),
        reference in prop::collection::vec(0u32..3, 0..30),
    ) {
        let (mut early, mut late) = (matching(&[]), matching(&[]));
        early.add_reference(&reference).unwrap();
        early.observe(&stream).unwrap();
        late.observe(&stream).unwrap();
        late.add_reference(&reference).unwrap();
        prop_assert_eq!(early.references[0].cursor, late.references[0].cursor);
        prop_assert_eq!(suggest(&mut early, &stream, 9), suggest(&mut late, &stream, 9));
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
        fresh.observe(&history).unwrap();
        prop_assert_eq!(suggest(&mut rebuilt, &history, 9), suggest(&mut fresh, &history, 9));
        rebuilt.observe(&[1]).unwrap();
        fresh.observe(&[1]).unwrap();
        prop_assert_eq!(suggest(&mut rebuilt, &[1], 9), suggest(&mut fresh, &[1], 9));
    }

    /// Nothing a caller can say makes the cascade panic, over-draft, or forget a token.
    #[test]
    fn any_order_of_calls_is_safe(
        calls in prop::collection::vec((0u8..8, prop::collection::vec(prop::num::u32::ANY, 0..6), 0usize..40), 0..60),
        best in prop::bool::ANY,
    ) {
        let mut cascade = if best { best_rate(&[(1, 1.1), (16, 2.0)]) } else { cascade(CascadeOptions::default()) };
        let mut out = Vec::new();
        for (call, tokens, n) in calls {
            let small: Vec<u32> = tokens.iter().map(|token| token % 5).collect();
            match call {
                0 => cascade.observe(&tokens).unwrap(),
                1 | 2 => cascade.observe(&small).unwrap(),
                3 => {
                    cascade.suggest(&small, n, &mut out).unwrap();
                    prop_assert!(out.len() <= n && (out.is_empty() || out.len() >= cascade.options().min_draft));
                }
                4 => cascade.truncate_pending(n),
                5 => cascade.observe_topk(&[TopkRow { token: n as u32 % 5, top: &tokens }]).unwrap(),
                6 => drop(cascade.add_reference(&small)),
                _ => cascade.rebuild(&small).unwrap(),
            }
        }
        for stats in cascade.stats() {
            prop_assert!(stats.accepted <= stats.drafted && stats.drafts <= stats.drafted);
        }
    }
}
