//! Text to tokens against the definitions written out plainly.

use super::{BYTE, CONTROL, File, NORMAL, UNKNOWN, USER, file, texts, tokenizer};
use crate::split::{Family, Splitter};
use crate::{EncodeOptions, Tokenizer, Vocab, VocabError, spell};
use proptest::collection::vec;
use proptest::prelude::*;

/// Byte names, from token 0 on.
fn byte_names() -> Vec<String> {
    (0..256).map(|byte| format!("<0x{byte:02X}>")).collect()
}

/// Merges of a small vocabulary: some of spaces, some that lead nowhere unless another came first.
const MERGES: [(&str, &str); 12] = [
    ("a", "b"),
    ("Ġ", "a"),
    ("b", "a"),
    ("Ġ", "Ġ"),
    ("ab", "a"),
    ("Ġa", "b"),
    ("1", "2"),
    ("a", "a"),
    ("ĠĠ", "Ġ"),
    ("Ã", "©"),
    ("aa", "aa"),
    ("ba", "b"),
];

/// A vocabulary in the byte alphabet: each byte at its own id, what the merges make, then more.
fn merging(pre: &str, more: &[(&str, i64)]) -> File {
    let bytes: Vec<String> = spell::byte_alphabet().iter().map(char::to_string).collect();
    let joined: Vec<String> = MERGES.iter().map(|(left, right)| format!("{left}{right}")).collect();
    let mut tokens: Vec<(&str, i64)> = bytes.iter().chain(&joined).map(|text| (text.as_str(), NORMAL)).collect();
    tokens.extend(more);
    let merges = texts(MERGES.iter().map(|(left, right)| format!("{left} {right}")));
    file("gpt2", &tokens).kv("pre", pre).kv("merges", merges)
}

/// The same merges over UTF-8: byte tokens first.
fn marked(model: &str, more: &[(&str, i64)]) -> File {
    let names = byte_names();
    let mut tokens: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), BYTE)).collect();
    let pieces = ["a", "b", "▁", "ab", "▁a", "ba", "▁▁", "aba", "▁ab", "aa", "é", "x▁", "▁▁▁", "y<", "c", "▁c", "aaaa"];
    tokens.extend(pieces.map(|piece| (piece, NORMAL)));
    tokens.extend(more);
    let scores: Vec<f32> =
        tokens.iter().enumerate().map(|(i, (text, _))| -((i * 7 % 4) as f32) - (text.len() % 3) as f32).collect();
    let merges = texts(["a b", "▁ a", "b a", "▁ ▁", "ab a", "▁a b", "a a", "▁▁ ▁", "aa aa"]);
    file(model, &tokens).kv("scores", scores).kv("merges", merges)
}

fn bytes_of(vocab: &Vocab, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| vocab.token_bytes(*id).to_vec()).collect()
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer
        .encode(text, &EncodeOptions { add_bos: Some(false), add_eos: Some(false), ..Default::default() })
        .expect("spelled")
}

/// The best pair first, the leftmost of equals; by trying all of them.
fn naive(mut symbols: Vec<String>, rank: impl Fn(&str, &str) -> Option<f32>) -> Vec<String> {
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 1..symbols.len() {
            if let Some(rank) = rank(&symbols[at - 1], &symbols[at])
                && best.is_none_or(|(other, _)| rank < other)
            {
                best = Some((rank, at));
            }
        }
        let Some((_, at)) = best else { return symbols };
        let right = symbols.remove(at);
        symbols[at - 1] += &right;
    }
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a", "b", "ab", " ", "  ", "é", "漢", "12", "\n", "x", "y<", "▁", "<0x41>", "c", "aaaa", "\u{301}",
    ]);
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Bytes that are mostly text.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    (text(), vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)).prop_map(|(text, changes)| {
        let mut bytes = text.into_bytes();
        for (at, byte) in changes {
            bytes.insert(at.index(bytes.len() + 1), byte);
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn merges_are_joined_by_rank_in_each_word(text in "[ab 1é]{0,80}") {
        let tokenizer = tokenizer(&merging("viking", &[]));
        let alphabet = spell::byte_alphabet();
        let (mut expected, mut words) = (Vec::new(), Vec::new());
        Splitter::new(Family::named("viking").unwrap()).cut(text.as_bytes(), &mut |word| words.push(word));
        for word in words {
            let symbols = text[word].bytes().map(|byte| alphabet[usize::from(byte)].to_string()).collect();
            let rank = |left: &str, right: &str| MERGES.iter().position(|pair| *pair == (left, right)).map(|rank| rank as f32);
            for symbol in naive(symbols, rank) {
                expected.push(tokenizer.vocab().id_of(symbol.as_bytes()).unwrap().expect("a token"));
            }
        }
        prop_assert_eq!(encode(&tokenizer, &text), expected);
    }

    #[test]
    fn scores_are_joined_best_first_wherever_the_text_is_cut(text in text()) {
        let file = marked("llama", &[]).kv("add_space_prefix", false);
        let tokenizer = tokenizer(&file);
        let vocab = tokenizer.vocab();
        let scores = crate::keys::floats(&file, "tokenizer.ggml.scores").unwrap().unwrap();
        let usable = |text: &str| vocab.id_of(text.as_bytes()).unwrap().filter(|id| *id > 255);
        let rank = |left: &str, right: &str| usable(&format!("{left}{right}")).map(|id| -scores[id as usize]);
        let symbols = text.replace(' ', "▁").chars().map(String::from).collect();
        let mut expected = Vec::new();
        for symbol in naive(symbols, rank) {
            match usable(&symbol) {
                Some(id) => expected.push(id),
                None => expected.extend(symbol.bytes().map(u32::from)),
            }
        }
        prop_assert_eq!(encode(&tokenizer, &text), expected);
    }

    #[test]
    fn the_ids_of_bytes_joined_are_the_bytes_and_for_text_those_of_the_text(bytes in bytes(), which in 0usize..5) {
        let files = [merging("qwen2", &[("  x", USER)]), merging("llama3", &[]), marked("llama", &[("<0x41> ", USER)]), marked("gemma4", &[]), merging("superbpe", &[])];
        let tokenizer = tokenizer(&files[which]);
        let ids = tokenizer.tokenize_bytes(&bytes).expect("each byte has a token");
        prop_assert_eq!(bytes_of(tokenizer.vocab(), &ids), &bytes[..]);
        if let Ok(text) = std::str::from_utf8(&bytes)
            && !text.contains('▁')
        {
            let options = EncodeOptions { add_bos: Some(false), add_space_prefix: Some(false), ..Default::default() };
            prop_assert_eq!(tokenizer.encode(text, &options).unwrap(), ids);
        }
    }
}

#[test]
fn characters_without_a_token_become_the_tokens_of_their_bytes() {
    for model in ["llama", "gemma4"] {
        let tokenizer = tokenizer(&marked(model, &[]).kv("add_space_prefix", false));
        assert_eq!(encode(&tokenizer, "é漢"), [266, 0xe6, 0xbc, 0xa2]);
        // The mark itself: a space to `encode`, as the models' own tokenizers read it; itself to `tokenize_bytes`.
        assert_eq!(encode(&tokenizer, "▁"), [258]);
        assert_eq!(tokenizer.tokenize_bytes("▁".as_bytes()).unwrap(), [0xe2, 0x96, 0x81]);
    }
}

#[test]
fn what_cannot_be_spelled_is_named_by_its_place_or_left_out() {
    let alphabet = spell::byte_alphabet();
    let bytes: Vec<String> =
        alphabet.iter().enumerate().map(|(b, c)| if b == 4 { "gone".into() } else { c.to_string() }).collect();
    let tokens: Vec<(&str, i64)> = bytes.iter().map(|text| (text.as_str(), NORMAL)).collect();
    let byte_level = file("gpt2", &tokens).kv("pre", "gpt-2").kv("merges", texts::<&str>([]));
    let mut names = byte_names();
    names[4] = "gone".into();
    names[0xa2] = "lost".into();
    let tokens: Vec<(&str, i64)> =
        names.iter().map(|name| (name.as_str(), BYTE)).chain([("▁", NORMAL), ("a", NORMAL)]).collect();
    let scored = |model| file(model, &tokens).kv("scores", vec![0f32; 258]).kv("merges", texts::<&str>([]));
    for file in [byte_level, scored("llama"), scored("gemma4")] {
        let tokenizer = tokenizer(&file);
        let strict = |text: &str| tokenizer.encode(text, &EncodeOptions::default()).map_err(|error| error.to_string());
        assert_eq!(strict("é b\u{4}c"), Err("the vocabulary has no token for U+0004, found at character 3".into()));
        let bytes = tokenizer.tokenize_bytes("é \u{4}".as_bytes()).expect_err("lost").to_string();
        assert_eq!(bytes, "the vocabulary has no token for byte 0x04, found at byte 3");
        let lossy =
            EncodeOptions { add_space_prefix: Some(false), add_bos: Some(false), lossy: true, ..Default::default() };
        assert_eq!(bytes_of(tokenizer.vocab(), &tokenizer.encode("ab\u{4}c", &lossy).unwrap()), b"abc");
    }
    let error = tokenizer(&scored("llama")).encode("é  漢", &EncodeOptions::default()).expect_err("half a character");
    assert_eq!(error, VocabError::Unspelled { character: '漢', at: 3 });
}

#[test]
fn control_tokens_are_made_from_text_only_where_the_caller_asks() {
    let more = [("[INST", CONTROL), ("whole", NORMAL), ("<tool>", USER), ("  \n", USER)];
    let tokenizer = tokenizer(&merging("llama3", &more)); // takes words whole
    let id = |text: &str| tokenizer.vocab().id_of(text.as_bytes()).unwrap().unwrap();
    let special = EncodeOptions { special: true, add_bos: Some(false), ..Default::default() };
    assert_eq!(encode(&tokenizer, "whole"), [id("whole")]);
    assert!(!encode(&tokenizer, "[INST").contains(&id("[INST")));
    assert_eq!(tokenizer.encode("[INST", &special).unwrap(), [id("[INST")]);
    for options in [special, EncodeOptions { special: false, ..special }] {
        assert_eq!(
            tokenizer.encode("a<tool>b  \nx", &options).unwrap(),
            [u32::from(b'a'), id("<tool>"), u32::from(b'b'), id("  \n"), u32::from(b'x')]
        );
    }
    // A merge may name one; then this merge reaches it, and nothing else does.
    let named = merging("llama3", &[("12a", CONTROL)]).kv("merges", texts(["1 2", "12 a"]));
    let tokenizer = super::tokenizer(&named);
    assert_eq!(encode(&tokenizer, "12"), [tokenizer.vocab().id_of(b"12").unwrap().unwrap()]);
    assert!(
        encode(&tokenizer, "12a").iter().all(|id| tokenizer.vocab().token_text(*id) != b"12a"),
        "digits are cut from letters"
    );
}

#[test]
fn control_and_byte_tokens_are_not_joined_by_score() {
    let more = [
        ("<", NORMAL),
        ("s", NORMAL),
        (">", NORMAL),
        ("<s", NORMAL),
        ("<s>", CONTROL),
        ("<0", NORMAL),
        ("x4", NORMAL),
        ("1>", NORMAL),
        ("<0x4", NORMAL),
        ("<unk>", UNKNOWN),
    ];
    let tokenizer = tokenizer(&marked("llama", &more).kv("add_space_prefix", false));
    let texts = |text| -> Vec<String> {
        encode(&tokenizer, text)
            .iter()
            .map(|id| String::from_utf8_lossy(tokenizer.vocab().token_text(*id)).into())
            .collect()
    };
    assert_eq!(texts("<s>"), ["<s", ">"]);
    assert_eq!(texts("<0x41>"), ["<0x4", "1>"]);
    assert!(!texts("<unk>").contains(&"<unk>".to_owned()));
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused_when_they_are_first_used() {
    let why = |file: File| {
        Tokenizer::from_metadata(&file, None)
            .expect("nothing is built")
            .tokenize_bytes(b"a")
            .expect_err("refused")
            .to_string()
    };
    let merges = |merges: &[&str]| merging("gpt-2", &[]).kv("merges", texts(merges));
    let parts = "of key `tokenizer.ggml.merges` is";
    for wrong in ["ab", "a", "", " a", "a ", " "] {
        assert_eq!(why(merges(&["a b", wrong])), format!("merge 1 {parts} `{wrong}`, expected two parts"));
    }
    for (merge, token) in [("never a", "never"), ("a seen", "seen"), ("b b", "bb"), ("a  b", " b")] {
        assert_eq!(
            why(merges(&[merge])),
            format!("merge 0 of key `tokenizer.ggml.merges` does not fit the vocabulary: it has no token `{token}`")
        );
    }
    assert_eq!(why(merging("gpt-2", &[("a", USER)])), "expected distinct tokens, found `a` with the ids 97 and 268");
    assert!(
        Tokenizer::from_metadata(&merging("gpt-2", &[("", USER), ("", CONTROL)]), None)
            .unwrap()
            .tokenize_bytes(b"a")
            .is_ok()
    );
    // Of equal merges the last one counts, and a part may begin with a space.
    let tokenizer = tokenizer(
        &merging("gpt-2", &[(" ", NORMAL), (" a", NORMAL)]).kv("merges", texts(["a b", "b a", "a b", "  a"])),
    );
    assert_eq!(encode(&tokenizer, "aba"), [97, tokenizer.vocab().id_of(b"ba").unwrap().unwrap()]);
}

#[test]
fn what_the_file_does_not_say_follows_from_its_kind_and_splitter() {
    let bos = |file: &File| tokenizer(file).add_bos();
    assert_eq!(["qwen2", "llama3", "tekken", "glm4"].map(|pre| bos(&merging(pre, &[]))), [false, true, true, false]);
    assert!(bos(&marked("llama", &[])) && bos(&marked("gemma4", &[]).kv("add_bos_token", false)));
    assert!(!bos(&marked("llama", &[]).kv("add_bos_token", false)));
    let why = |file: &File, pre: Option<&str>| Tokenizer::from_metadata(file, pre).expect_err("refused").to_string();
    assert!(why(&merging("foo", &[]), None).starts_with(
        "the splitter `foo` (key tokenizer.ggml.pre) is unknown; pre= takes one of these instead: a.x-4.0, afmoe, "
    ));
    assert!(why(&merging("gpt-2", &[]), Some("foo")).starts_with("the splitter `foo` (argument pre) is unknown; "));
    assert!(
        why(&marked("gpt2", &[]), None).starts_with("the file does not name its splitter (key tokenizer.ggml.pre); ")
    );
    assert_eq!(
        why(&marked("llama", &[]), Some("qwen2")),
        "expected no pre= for a vocabulary of the kind `llama`, found `qwen2`"
    );
    assert_eq!(
        why(&marked("llama", &[]).kv("scores", vec![0f32; 3]), None),
        "key `tokenizer.ggml.scores` has 3 elements, expected one for each of 273 tokens"
    );
    assert_eq!(
        why(&file("llama", &[("a", NORMAL)]), None),
        "key `tokenizer.ggml.scores` is missing, expected an array of numbers"
    );
    assert_eq!(
        why(&file("gemma4", &[("a", NORMAL)]), None),
        "key `tokenizer.ggml.merges` is missing, expected an array of text"
    );
    assert_eq!(
        why(&merging("gpt-2", &[]).kv("add_bos_token", 1i128), None),
        "key `tokenizer.ggml.add_bos_token` is the whole number 1, expected a flag"
    );
    // A splitter of vocabularies in UTF-8 says how the tokens are spelled.
    let sarvam = marked("gpt2", &[]).kv("pre", "sarvam-moe");
    assert_eq!(super::open(sarvam.clone()).unwrap().token_bytes(260), b" a");
    assert_eq!(bytes_of(tokenizer(&sarvam).vocab(), &encode(&tokenizer(&sarvam), " a é")), " a é".as_bytes());
}
