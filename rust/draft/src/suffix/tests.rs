//! The index against brute force and against the textbook automaton, after every append.

use super::*;
use crate::oracle::{self, Dice, Recipe};
use proptest::prelude::*;

fn check_every_append(stream: &[u32]) {
    let mut index = SuffixIndex::new();
    let mut recipe = Recipe::new();
    for (i, &token) in stream.iter().enumerate() {
        index.append(token).unwrap();
        recipe.append(token);
        let text = &stream[..=i];
        assert_eq!(index.match_len(), oracle::longest_earlier_suffix(text), "match of {text:?}");
        assert_eq!(index.match_len(), recipe.match_len, "match of {text:?}");
        for max in [0, 1, 3, 20] {
            let mut draft = Vec::new();
            index.draft(max, &mut draft);
            let Some(end) = recipe.sample() else {
                assert_eq!(draft, [], "a draft without a match after {text:?}");
                continue;
            };
            assert_eq!(draft, oracle::copy_from(text, end, max), "draft of {max} after {text:?}");
            assert!(oracle::earlier_ends(text).contains(&end), "quotes no earlier occurrence in {text:?}");
            assert_eq!(index.next_token(), Some(text[end]));
        }
        let n = text.len();
        assert!(index.states() <= 2 * n + 1, "{} states for {n} tokens: {text:?}", index.states());
        assert!(index.transitions() <= 3 * n, "{} transitions for {n} tokens: {text:?}", index.transitions());
    }
    assert!(index.tokens().eq(stream.iter().copied()));
}

#[test]
fn match_and_draft_equal_the_slow_twins_after_each_of_100_000_random_tokens() {
    let mut dice = Dice(1);
    let mut steps = 0;
    for round in 0.. {
        if steps >= 100_000 {
            break;
        }
        let len = 1 + dice.below(260) as usize;
        let stream = oracle::random_stream(&mut dice, [2, 5, 31][round % 3], len);
        check_every_append(&stream);
        steps += stream.len();
    }
}

#[test]
fn match_and_draft_equal_the_slow_twins_on_adversarial_streams() {
    for stream in oracle::adversarial_streams() {
        check_every_append(&stream);
    }
}

/// Where the stream would stand with guesses behind it: the longest end of both that the stream holds, and what followed it there.
#[test]
fn what_is_foreseen_is_the_longest_end_of_stream_and_guesses_that_the_stream_holds() {
    let mut dice = Dice(11);
    for round in 0..3000 {
        let len = 1 + dice.below(60) as usize;
        let stream = oracle::random_stream(&mut dice, [2, 3, 9][round % 3], len);
        let n = 1 + dice.below(5) as usize;
        let guessed = oracle::random_stream(&mut dice, [2, 3, 9][round % 3], n);
        let mut index = SuffixIndex::new();
        index.extend(&stream).unwrap();
        let (state, found) = index.foresee(&guessed);
        let both = [&stream[..], &guessed[..]].concat();
        assert_eq!(found as usize, oracle::longest_suffix_within(&stream, &both), "{guessed:?} after {stream:?}");
        if found > 0 {
            let after: Vec<u32> = index.after(state).collect();
            let end = stream.len() - after.len();
            assert!(stream[..end].ends_with(&both[both.len() - found as usize..]), "{guessed:?} after {stream:?}");
            assert_eq!(after, stream[end..]);
        }
    }
}

proptest! {
    #[test]
    fn match_and_draft_equal_the_slow_twins_on_any_stream(stream in prop::collection::vec(0u32..4, 0..60)) {
        check_every_append(&stream);
    }

    #[test]
    fn rebuilding_equals_a_fresh_index(
        old in prop::collection::vec(0u32..3, 0..80),
        keep in 0usize..80,
        new in prop::collection::vec(0u32..3, 0..80),
    ) {
        let history = [&old[..keep.min(old.len())], &new].concat();
        let mut index = SuffixIndex::new();
        index.extend(&old).unwrap();
        index.rebuild(&history).unwrap();
        let mut fresh = SuffixIndex::new();
        fresh.extend(&history).unwrap();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        index.draft(9, &mut a);
        fresh.draft(9, &mut b);
        prop_assert_eq!(index.match_len(), fresh.match_len());
        prop_assert_eq!(a, b);
        prop_assert_eq!((index.states(), index.transitions()), (fresh.states(), fresh.transitions()));
    }
}

fn draft(stream: &[u32], max: usize) -> Vec<u32> {
    let mut index = SuffixIndex::new();
    index.extend(stream).unwrap();
    let mut out = Vec::new();
    index.draft(max, &mut out);
    out
}

#[test]
fn the_newest_occurrence_is_quoted() {
    assert_eq!(draft(&[1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 2), [4, 8]);
    assert_eq!(draft(&[0, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 5, 7, 1, 2], 2), [5, 7]);
}

#[test]
fn a_token_never_matches_itself() {
    assert_eq!(draft(&[5], 4), []);
    assert_eq!(draft(&[5, 6, 7], 4), []);
    assert_eq!(draft(&[1, 2, 3, 1, 2], 1), [3], "and not 1, which would follow the end itself");
}

#[test]
fn a_repetition_drafts_past_the_end_of_the_stream() {
    assert_eq!(draft(&[4, 4], 5), [4; 5]);
    assert_eq!(draft(&[9, 1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
}

#[test]
fn an_index_at_its_limit_is_shut_with_the_reason() {
    let mut index = SuffixIndex::with_limit(3);
    index.extend(&[1, 1, 1]).unwrap();
    assert_eq!(index.match_len(), 2);
    let full = IndexError::TooLong { limit: 3 };
    assert_eq!(index.append(1), Err(full));
    assert_eq!((index.match_len(), index.len(), index.next_token(), index.last()), (0, 0, None, None));
    assert_eq!(index.append(1), Err(full), "the first error stays");
    assert_eq!(index.append(u32::MAX), Err(full), "the first error stays");
    let mut out = Vec::new();
    index.draft(4, &mut out);
    assert_eq!(out, []);
    index.clear();
    assert_eq!(index.extend(&[1, 1, 1]), Ok(()), "a cleared index is open again, with the same limit");
    assert_eq!(index.rebuild(&[2; 4]), Err(full));
    assert_eq!(index.rebuild(&[2; 3]), Ok(()));
    assert_eq!(index.match_len(), 2);
}

#[test]
fn the_reserved_token_shuts_the_index() {
    let mut index = SuffixIndex::new();
    index.append(1).unwrap();
    assert_eq!(index.append(u32::MAX), Err(IndexError::TokenTooLarge { token: u32::MAX, pos: 1 }));
    assert_eq!(
        index.failed().map(|e| e.to_string()).unwrap(),
        "expected a token below 4294967295, found 4294967295 at position 1"
    );
}

#[test]
fn capacity_stays_within_a_quarter_and_a_half_of_use() {
    let mut dice = Dice(5);
    let mut index = SuffixIndex::new();
    for _ in 0..200_000 {
        index.append(dice.below(3000)).unwrap();
        if index.len().is_multiple_of(10_000) {
            let bytes = index.bytes();
            assert!(bytes.capacity < bytes.used * 2, "{bytes:?}");
            assert!(bytes.used >= index.len() * 8);
        }
    }
}
