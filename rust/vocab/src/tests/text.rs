//! Streams of text against twins that see everything at once.

use super::{file, open};
use crate::{Detokenizer, StopHit, StopMatcher, StopSet, TextStream, Utf8Stream, Vocab, VocabError};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;

/// A vocabulary of the kind `llama` that adds a space prefix: ids 0 to 255 are bytes, then pieces and marks.
fn bytes_and_pieces() -> Vocab {
    let names: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
    let mut tokens: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 6)).collect();
    tokens.extend([("▁a", 1), ("é漢", 1), ("<s>", 3), ("▁", 1), ("<mark>", 4), ("", 1), ("😀b", 1), ("▁▁c", 1)]);
    open(file("llama", &tokens)).expect("sound")
}

/// The bytes of all tokens that show, joined; a space in front dropped at the start of a text.
fn all_bytes(vocab: &Vocab, tokens: &[u32], at_start: bool, show_control: bool) -> Vec<u8> {
    let shown = tokens.iter().filter(|t| show_control || **t != 258);
    let bytes: Vec<u8> = shown.flat_map(|t| vocab.token_bytes(*t).to_vec()).collect();
    match bytes.strip_prefix(b" ") {
        Some(rest) if at_start => rest.to_vec(),
        _ => bytes,
    }
}

/// Bytes at the end that begin a character and do not finish it, by trying all ways to go on.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let whole = String::from_utf8_lossy(bytes).into_owned();
    (1..=3.min(bytes.len()))
        .rev()
        .find(|&n| {
            let (before, tail) = bytes.split_at(bytes.len() - n);
            let alone = String::from_utf8_lossy(before).into_owned() + "\u{fffd}";
            // It must be one replacement by itself, and a character with the right bytes behind.
            whole == alone && (1..4).any(|more| goes_on(tail, more))
        })
        .unwrap_or(0)
}

fn goes_on(tail: &[u8], more: usize) -> bool {
    let last = [0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf];
    (0..last.len()).any(|first| {
        let mut text = tail.to_vec();
        text.push(last[first]);
        text.resize(tail.len() + more, 0x80);
        std::str::from_utf8(&text).is_ok_and(|t| t.chars().count() == 1)
    })
}

/// Bytes that are often parts of characters.
fn nasty_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![
            0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xed, 0xa0, 0x80, 0xf0, 0x9f, 0x98, 0xf4, 0x90, 0xc0, 0xe0, b'a', b' '
        ]),
    ]
}

fn token() -> impl Strategy<Value = u32> {
    prop_oneof![nasty_byte().prop_map(u32::from), 256u32..264, Just(999)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn text_in_pieces_is_text_decoded_at_once_after_every_token(
        tokens in vec(token(), 0..24), at_start: bool, show_control: bool,
    ) {
        let vocab = bytes_and_pieces();
        let mut state = Detokenizer::new(&vocab, at_start, show_control);
        let mut out = String::new();
        for end in 1..=tokens.len() {
            state.push(&vocab, tokens[end - 1], &mut out);
            let bytes = all_bytes(&vocab, &tokens[..end], at_start, show_control);
            let shown = &bytes[..bytes.len() - incomplete_tail(&bytes)];
            prop_assert_eq!(&out, &String::from_utf8_lossy(shown));
            // A copy can end here without disturbing the stream.
            let (mut copy, mut text) = (state, out.clone());
            copy.finish(&mut text);
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn bytes_cut_anywhere_decode_alike(bytes in vec(nasty_byte(), 0..40), cuts in vec(1usize..6, 40)) {
        let (mut stream, mut out, mut rest) = (Utf8Stream::new(), String::new(), &bytes[..]);
        for cut in cuts {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            stream.push(now, &mut out);
            rest = later;
            let so_far = &bytes[..bytes.len() - rest.len()];
            prop_assert_eq!(stream.held(), incomplete_tail(so_far));
        }
        stream.push(rest, &mut out);
        stream.finish(&mut out);
        prop_assert_eq!(&out, &String::from_utf8_lossy(&bytes));
        prop_assert_eq!(stream, Utf8Stream::new());
    }
}

#[test]
fn only_the_first_space_of_a_text_is_dropped_and_only_where_the_vocabulary_adds_one() {
    let vocab = bytes_and_pieces();
    let text = |vocab: &Vocab, at_start, show, tokens: &[u32]| {
        let (mut state, mut out) = (Detokenizer::new(vocab, at_start, show), String::new());
        tokens.iter().for_each(|t| state.push(vocab, *t, &mut out));
        state.finish(&mut out);
        out
    };
    let (a, bos, space, mark, empty, two) = (256, 258, 259, 260, 261, 263);
    assert_eq!(text(&vocab, true, false, &[a, a]), "a a");
    assert_eq!(text(&vocab, false, false, &[a, a]), " a a");
    assert_eq!(text(&vocab, true, false, &[bos, a]), "a");
    assert_eq!(text(&vocab, true, true, &[bos, a]), "<s> a");
    assert_eq!(text(&vocab, true, false, &[empty, space, a]), " a");
    assert_eq!(text(&vocab, true, false, &[two]), " c");
    assert_eq!(text(&vocab, true, false, &[mark, a]), "<mark> a");
    let without = open(file("llama", &[("▁a", 1)]).kv("add_space_prefix", false)).expect("sound");
    assert_eq!(text(&without, true, false, &[0, 0]), " a a");
}

/// The first place where a stop ends, and of those that end there the longest; by looking at every place.
fn naive_hit(text: &[u8], stops: &[Vec<u8>]) -> Option<StopHit> {
    (0..=text.len()).find_map(|end| {
        let ending = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop));
        // The longest; of equal ones the first.
        let best = ending.max_by_key(|(i, stop)| (stop.len(), std::cmp::Reverse(*i)));
        best.map(|(stop, found)| StopHit { stop, start: (end - found.len()) as u64, end: end as u64 })
    })
}

/// The longest tail of the text that begins a stop.
fn naive_held(text: &[u8], stops: &[Vec<u8>]) -> usize {
    (0..=text.len())
        .rev()
        .find(|&n| stops.iter().any(|s| n < s.len() && s.starts_with(&text[text.len() - n..])))
        .unwrap_or(0)
}

fn word(letters: &'static str, len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    vec(prop::sample::select(letters.as_bytes().to_vec()), len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn stops_are_found_as_by_looking_at_every_place_after_every_token(
        stops in vec(word("ab", 1..6), 0..5), tokens in vec(word("abc", 0..5), 0..14), cut in 0usize..14,
    ) {
        let set = Arc::new(StopSet::new(&stops).expect("not empty"));
        let mut matcher = StopMatcher::new(set);
        let mut text = Vec::new();
        let mut at_cut = None;
        for (i, token) in tokens.iter().enumerate() {
            if i == cut {
                at_cut = Some((matcher.clone(), text.clone()));
            }
            let step = matcher.push(token);
            text.extend_from_slice(token);
            let hit = naive_hit(&text, &stops);
            prop_assert_eq!(step.hit, hit);
            prop_assert_eq!(step.held, if hit.is_some() { 0 } else { naive_held(&text, &stops) });
            prop_assert_eq!((matcher.hit(), matcher.held(), matcher.seen()), (hit, step.held, text.len() as u64));
        }
        // Going back to a clone and on with other tokens is the same as never having gone further.
        if let Some((mut matcher, mut text)) = at_cut {
            for token in tokens.iter().rev() {
                let step = matcher.push(token);
                text.extend_from_slice(token);
                prop_assert_eq!(step.hit, naive_hit(&text, &stops));
            }
        }
    }

    #[test]
    fn shown_text_ends_where_a_stop_begins_and_never_runs_ahead(
        stops in vec(prop_oneof![word("ab ", 1..5), Just("é".into()), Just("漢a".into()), Just("<s>".into())], 0..4),
        tokens in vec(prop_oneof![
            prop::sample::select(vec![97u32, 98, 32, 0xc3, 0xa9, 0xe6, 0xbc, 0xa2]), 256u32..264,
        ], 0..20),
        at_start: bool, show_control: bool,
    ) {
        let vocab = bytes_and_pieces();
        let set = Arc::new(StopSet::new(&stops).expect("not empty"));
        let mut stream = TextStream::new(Detokenizer::new(&vocab, at_start, show_control), set);
        let mut out = String::new();
        for end in 1..=tokens.len() {
            let found = stream.push(&vocab, tokens[end - 1], &mut out);
            let bytes = all_bytes(&vocab, &tokens[..end], at_start, show_control);
            let hit = naive_hit(&bytes, &stops);
            prop_assert_eq!(found, hit);
            match hit {
                Some(hit) => prop_assert_eq!(&out, &String::from_utf8_lossy(&bytes[..hit.start as usize])),
                None => {
                    let free = &bytes[..bytes.len() - naive_held(&bytes, &stops)];
                    let shown = &free[..free.len() - incomplete_tail(free)];
                    prop_assert_eq!(&out, &String::from_utf8_lossy(shown));
                    prop_assert_eq!(stream.held(), bytes.len() - free.len());
                }
            }
            let (mut copy, mut text) = (stream.clone(), out.clone());
            copy.finish(&mut text);
            let until = hit.map_or(bytes.len(), |hit| hit.start as usize);
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes[..until]));
        }
    }
}

#[test]
fn a_stop_that_spans_tokens_is_cut_from_the_text() {
    let vocab = bytes_and_pieces();
    let set = Arc::new(StopSet::new(&["\n\n", "END"]).expect("not empty"));
    let mut stream = TextStream::new(Detokenizer::new(&vocab, false, false), set);
    let mut shown = Vec::new();
    for byte in "a\nE\nENDb".bytes() {
        let mut out = String::new();
        let hit = stream.push(&vocab, u32::from(byte), &mut out);
        shown.push((out, hit.map(|h| (h.stop, h.start, h.end))));
    }
    let texts: Vec<&str> = shown.iter().map(|s| s.0.as_str()).collect();
    assert_eq!(texts, ["a", "", "\n", "E", "\n", "", "", ""]);
    assert_eq!((shown[5].1, shown[6].1, shown[7].1), (None, Some((1, 4, 7)), Some((1, 4, 7))));
}

#[test]
fn stops_that_cannot_be_used_are_refused() {
    let empty = StopSet::new(&["a", ""]).expect_err("empty");
    assert!(matches!(empty, VocabError::EmptyStop { index: 1 }));
    let most = "x".repeat(1 << 16);
    assert!(StopSet::new(&[&most]).is_ok());
    let long = StopSet::new(&[most.as_str(), "y"]).expect_err("too long");
    assert!(matches!(long, VocabError::StopsTooLong { found: 65_537, limit: 65_536 }));
    let none = StopSet::new::<&str>(&[]).expect("allowed");
    assert!(none.is_empty());
}
