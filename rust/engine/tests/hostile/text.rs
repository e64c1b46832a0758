//! Detokenizer and stops on vocabularies of random bytes: what is shown, joined, is what decoding everything at once gives.

use std::sync::Arc;

use quoth_engine::gguf::GgufFile;
use quoth_engine::gguf::testing::{GgufBuilder, Kv};
use quoth_engine::vocab::{Detokenizer, StopSet, TextStream, Vocab};

use crate::budget::{BYTES, TIME, measured};
use crate::dice::Dice;

const VOCABULARIES: u64 = 600;
const STREAMS: usize = 40;

/// Pieces that texts of tokens are made of: whole characters, halves of them, nothing, bytes by name.
const PIECES: [&[u8]; 20] = [
    b"a",
    b" ",
    b"ab",
    b"",
    b"\xff",
    b"\xc3",
    b"\xa9",
    b"\xe2\x82",
    b"\xac",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xed\xa0\x80",
    b"\0",
    "é".as_bytes(),
    "\u{120}".as_bytes(),
    "\u{2581}".as_bytes(),
    "\u{10a}".as_bytes(),
    b"<0x41>",
    b"<0xE2>",
    b"</s>",
];

fn texts(dice: &mut Dice, most: usize) -> Vec<u8> {
    (0..dice.below(most))
        .flat_map(|_| if dice.once_in(9) { dice.bytes(2) } else { dice.pick(&PIECES).to_vec() })
        .collect()
}

fn vocabulary(dice: &mut Dice) -> Vocab {
    let n = 1 + dice.below(40);
    let tokens: Vec<Vec<u8>> = (0..n).map(|_| texts(dice, 4)).collect();
    let kinds: Vec<i32> = (0..n).map(|_| dice.below(9) as i32 - 1).collect();
    let mut builder = GgufBuilder::new()
        .kv("tokenizer.ggml.model", *dice.pick(&["gpt2", "llama", "gemma4"]))
        .kv("tokenizer.ggml.tokens", Kv::Strs(tokens))
        .kv("tokenizer.ggml.add_space_prefix", dice.once_in(2));
    if dice.once_in(2) {
        builder = builder.kv("tokenizer.ggml.token_type", kinds);
    }
    let file = GgufFile::from_bytes("v.gguf", builder.build()).unwrap();
    Vocab::from_metadata(file.metadata()).unwrap()
}

/// The text of tokens by the definition: all bytes that show, decoded at once; and where a stop first ends in them.
fn all_at_once(vocab: &Vocab, tokens: &[u32], show: bool, stops: &[Vec<u8>]) -> (String, bool) {
    let mut bytes = Vec::new();
    for token in tokens {
        let hidden = vocab.kind(*token).is_some_and(|kind| kind.is_hidden());
        if show || !hidden {
            bytes.extend_from_slice(vocab.token_bytes(*token));
        }
    }
    if vocab.add_space_prefix() && bytes.first() == Some(&b' ') {
        bytes.remove(0);
    }
    for end in 1..=bytes.len() {
        let longest = stops.iter().filter(|stop| bytes[..end].ends_with(stop)).map(Vec::len).max();
        if let Some(len) = longest {
            return (String::from_utf8_lossy(&bytes[..end - len]).into_owned(), true);
        }
    }
    (String::from_utf8_lossy(&bytes).into_owned(), false)
}

#[test]
fn random_tokens_of_random_vocabularies_show_as_all_their_bytes_decoded_at_once() {
    let (mut shown, mut hits, mut replaced) = (0, 0, 0);
    for number in 0..VOCABULARIES {
        let ((), cost) = measured(|| {
            let mut dice = Dice(number);
            let vocab = vocabulary(&mut dice);
            let n = vocab.n_vocab() as u32;
            for _ in 0..STREAMS {
                let stops: Vec<Vec<u8>> =
                    (0..dice.below(4)).map(|_| texts(&mut dice, 4)).filter(|stop| !stop.is_empty()).collect();
                let show = dice.once_in(3);
                let tokens: Vec<u32> = (0..dice.below(30))
                    .map(|_| if dice.once_in(20) { dice.next() as u32 } else { dice.below(n as usize) as u32 })
                    .collect();
                let (expected, hit) = all_at_once(&vocab, &tokens, show, &stops);
                let set = Arc::new(StopSet::new(&stops).unwrap());
                let mut stream = TextStream::new(Detokenizer::new(&vocab, true, show), set);
                let mut text = String::new();
                let mut ended = false;
                for token in &tokens {
                    ended |= stream.push(&vocab, *token, &mut text).is_some();
                    assert!(stream.held() <= stops.iter().map(Vec::len).max().unwrap_or(0), "held back too much");
                }
                stream.finish(&mut text);
                assert_eq!((&text, ended), (&expected, hit), "vocabulary {number}, {tokens:?}, {stops:?}");
                shown += usize::from(!text.is_empty());
                hits += usize::from(hit);
                replaced += usize::from(text.contains('\u{fffd}'));
            }
        });
        assert!(cost.bytes < BYTES && cost.time < TIME, "vocabulary {number}: {cost:?}");
    }
    println!(
        "{} streams: {shown} with text, {hits} stopped, {replaced} with bytes that are no text",
        VOCABULARIES as usize * STREAMS
    );
    assert!(shown > 10_000 && hits > 3_000 && replaced > 3_000, "{shown}, {hits}, {replaced}");
}

#[test]
fn as_many_stops_as_are_allowed_and_one_as_long_as_is_allowed_cost_little() {
    let (_, cost) = measured(|| {
        let many: Vec<Vec<u8>> = (0..16_384u32).map(|i| i.to_be_bytes().to_vec()).collect();
        let one = [vec![b'a'; 65_536]];
        for set in [StopSet::new(&many), StopSet::new(&one)] {
            let mut matcher = quoth_engine::vocab::StopMatcher::new(Arc::new(set.unwrap()));
            let text = [vec![b'a'; 65_535], vec![b'b'; 100_000]].concat();
            assert!(matcher.push(&text).hit.is_none());
        }
        assert!(StopSet::new(&[vec![b'a'; 65_537]]).is_err());
    });
    assert!(cost.bytes < BYTES && cost.time < TIME, "{cost:?}");
}
