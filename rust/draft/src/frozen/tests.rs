//! Cursors against brute force, after every token.

use super::*;
use crate::oracle::{self, Dice};
use proptest::prelude::*;

fn check_every_token(document: &[u32], fed: &[u32]) {
    let index = FrozenIndex::build(document).unwrap();
    let mut cursor = Cursor::default();
    for (i, &token) in fed.iter().enumerate() {
        index.advance(&mut cursor, token);
        let text = &fed[..=i];
        let len = oracle::longest_suffix_within(document, text);
        assert_eq!(cursor.match_len(), len, "{text:?} in {document:?}");
        let mut draft = Vec::new();
        index.draft(&cursor, 6, &mut draft);
        assert_eq!(draft.len(), index.available(&cursor).min(6));
        assert_eq!(draft.first().copied(), index.next_token(&cursor));
        let matched = &text[text.len() - len..];
        let quoted = (len..=document.len()).filter(|&end| len > 0 && document[..end].ends_with(matched));
        let follows = quoted.map(|end| &document[end..document.len().min(end + 6)]).collect::<Vec<_>>();
        assert!(
            follows.is_empty() && draft.is_empty() || follows.contains(&&draft[..]),
            "{draft:?} not in {follows:?}"
        );
    }
}

#[test]
fn a_cursor_equals_brute_force_after_each_of_100_000_random_tokens() {
    let mut dice = Dice(2);
    let mut steps = 0;
    for round in 0.. {
        if steps >= 100_000 {
            break;
        }
        let alphabet = [2, 5, 31][round % 3];
        let len = dice.below(120) as usize;
        let document = oracle::random_stream(&mut dice, alphabet, len);
        let mut fed = oracle::random_stream(&mut dice, alphabet + 1, 60);
        if document.len() > 30 {
            let from = dice.below(document.len() as u32 - 25) as usize;
            fed.extend(&document[from..from + 25]);
        }
        check_every_token(&document, &fed);
        steps += fed.len();
    }
}

#[test]
fn a_cursor_equals_brute_force_on_adversarial_documents() {
    let streams = oracle::adversarial_streams();
    for document in &streams {
        for fed in &streams {
            check_every_token(&document[..document.len().min(90)], &fed[..fed.len().min(60)]);
        }
        check_every_token(document, document);
    }
}

proptest! {
    #[test]
    fn a_cursor_equals_brute_force(
        document in prop::collection::vec(0u32..3, 0..40),
        fed in prop::collection::vec(0u32..4, 0..40),
    ) {
        check_every_token(&document, &fed);
    }
}

fn fed(index: &FrozenIndex, tokens: &[u32]) -> (usize, Vec<u32>) {
    let mut cursor = Cursor::default();
    tokens.iter().for_each(|&token| index.advance(&mut cursor, token));
    let mut out = Vec::new();
    index.draft(&cursor, 3, &mut out);
    (cursor.match_len(), out)
}

#[test]
fn the_newest_occurrence_is_quoted_and_nothing_past_the_end() {
    let index = FrozenIndex::build(&[1, 2, 3, 9, 1, 2, 4, 8, 6]).unwrap();
    assert_eq!(fed(&index, &[1, 2]), (2, vec![4, 8, 6]));
    assert_eq!(fed(&index, &[7, 7, 4]), (1, vec![8, 6]));
    assert_eq!(fed(&index, &[4, 8, 6]), (3, vec![]), "at the end of the document");
    assert_eq!(fed(&index, &[1, 2, u32::MAX]), (0, vec![]), "an unknown token");
}

#[test]
fn an_empty_document_never_matches() {
    let index = FrozenIndex::build(&[]).unwrap();
    assert!(index.is_empty());
    assert_eq!(fed(&index, &[0, 1, u32::MAX]), (0, vec![]));
}

#[test]
fn a_document_with_the_reserved_token_is_refused() {
    assert_eq!(FrozenIndex::build(&[1, u32::MAX]).err(), Some(IndexError::TokenTooLarge { token: u32::MAX, pos: 1 }));
}

/// A cursor from the end of a growing stream, along tokens that the stream does not have yet.
#[test]
fn from_the_end_of_a_stream_a_cursor_finds_what_occurs_in_it_by_brute_force() {
    let mut dice = Dice(5);
    for round in 0..2000 {
        let alphabet = [2, 4, 9][round % 3];
        let len = dice.below(60) as usize;
        let stream = oracle::random_stream(&mut dice, alphabet, len);
        let ahead = match dice.below(3) {
            0 => oracle::random_stream(&mut dice, alphabet + 1, 6),
            _ => stream[dice.below(stream.len() as u32 + 1) as usize..].iter().copied().take(6).collect(),
        };
        let mut index = SuffixIndex::new();
        index.extend(&stream).unwrap();
        let mut cursor = Cursor::at_end(&index);
        let mut text = stream.clone();
        for &token in &ahead {
            cursor.advance(&index, token);
            text.push(token);
            let len = oracle::longest_suffix_within(&stream, &text);
            assert_eq!(cursor.match_len(), len, "{ahead:?} behind {stream:?}");
            let after: Vec<u32> = cursor.after(&index).collect();
            let matched = &text[text.len() - len..];
            let quoted = (len..=stream.len()).filter(|&end| len > 0 && stream[..end].ends_with(matched));
            let follows: Vec<&[u32]> = quoted.map(|end| &stream[end..]).collect();
            assert!(follows.is_empty() && after.is_empty() || follows.contains(&&after[..]), "{after:?}, {follows:?}");
        }
    }
}
