//! Bytes as calls of the draft sources: whatever order they come in, drafts keep their bounds and quote what was said.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quoth_draft::{Budget, Cascade, CascadeOptions, Draft, DraftSource, SuffixIndex, TopkRow};

/// Whether `draft` follows `last` somewhere in `text`.
fn quotes(text: &[u32], last: u32, draft: &[u32]) -> bool {
    text.windows(draft.len() + 1).any(|w| w[0] == last && w[1..] == *draft)
}

fuzz_target!(|data: &[u8]| {
    let [first, rest @ ..] = data else { return };
    let n_vocab = 1 + usize::from(first % 7);
    let recycling = first & 128 != 0;
    let options = CascadeOptions { recycling, ..CascadeOptions::default() };
    // Either each drafted token costs as much, or none anything.
    let slope = if first & 64 != 0 { 0.05 } else { 0.0 };
    let extra: Vec<f64> = (0..64).map(|d| slope * f64::from(d)).collect();
    let mut cascade = Cascade::new(n_vocab, options).expect("options are in range");
    let (mut stream, mut references, mut made): (Vec<u32>, Vec<Vec<u32>>, Draft) = Default::default();
    let token = |byte: &u8| u32::from(*byte) % n_vocab as u32;
    for call in rest.chunks(6) {
        let tokens: Vec<u32> = call[1..].iter().map(token).collect();
        match call[0] % 9 {
            0..=2 => {
                cascade.observe(&tokens).expect("own sources do not fail");
                stream.extend(&tokens);
            }
            3 | 4 => {
                let max = 1 + usize::from(call[0] / 9);
                let budget = Budget { min_tokens: 1, max_tokens: max, extra: &extra, ahead: 0 };
                cascade.suggest(&stream, budget, &mut made).expect("own sources do not fail");
                let draft = &made.tokens;
                assert!(draft.len() <= max && made.reach.len() == draft.len() && draft.iter().all(|t| (*t as usize) < n_vocab));
                if let (Some(last), false, false) = (stream.last(), draft.is_empty(), recycling) {
                    // A quote that reaches the end of the conversation goes on with itself; a document ends.
                    let before = &stream[..stream.len() - 1];
                    let repeats = before
                        .iter()
                        .enumerate()
                        .any(|(at, token)| token == last && [&stream[at + 1..], draft].concat().starts_with(draft));
                    let quoted = references.iter().any(|text| quotes(text, *last, draft));
                    assert!(repeats || quoted, "{stream:?} {draft:?}");
                }
            }
            5 => {
                if let Some(n) = made.len().checked_sub(1 + usize::from(call[0] / 9) % made.len().max(1)) {
                    cascade.truncate_pending(n);
                }
            }
            6 => {
                let rows: Vec<TopkRow<'_>> = tokens.iter().map(|t| TopkRow { token: *t, top: &tokens }).collect();
                cascade.observe_topk(&rows).expect("own sources do not fail");
            }
            7 => {
                let n = usize::from(call[0] / 9).min(stream.len());
                stream.truncate(n);
                cascade.rebuild(&stream).expect("own sources do not fail");
                made.clear();
            }
            _ => {
                if references.len() < 4 {
                    let document = [&tokens[..], &stream[..stream.len().min(40)]].concat();
                    cascade.add_reference(&document).expect("tokens are in range");
                    references.push(document);
                } else {
                    cascade.clear_references();
                    references.clear();
                }
            }
        }
    }
    // The index is that of the stream, however it came to it.
    let mut fresh = SuffixIndex::new();
    fresh.extend(&stream).expect("small");
    assert_eq!(cascade.index().len(), stream.len());
    assert_eq!(cascade.index().match_len(), fresh.match_len());
});
