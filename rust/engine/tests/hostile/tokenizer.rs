//! Vocabularies by strangers: each makes a tokenizer that keeps its promises, or is refused by name, cheaply.

use quoth_engine::vocab::{Detokenizer, EncodeOptions, Keys, StringTable, Tokenizer, Value, VocabError};

use crate::budget::{BYTES, TIME, measured};
use crate::dice::Dice;

const CASES: u64 = 6_000;
const TEXTS: [&str; 4] = [
    "Hello, world! It's 3333+777 = 4110.",
    "  \n\t é\u{301} 中文 \u{1f44d}\u{200d}\u{1f469} \0\u{7f} \u{fffd}",
    "<s></s><|im_start|>user<unk><0x41>\u{2581}\u{120}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];
/// What stands among texts where a file lies.
const ODD: [&[u8]; 20] = [
    b"",
    b" ",
    b"a",
    b"</s>",
    b"\xe2\x96\x81",
    b"\xc4\xa0",
    b"<0x41>",
    b"<0x4",
    b"\0",
    b"<|im_end|>",
    b"a b",
    b"ab",
    b"  ",
    b"a  b",
    b"a b c",
    b"zz zz",
    b"b a",
    b" a",
    b"\xff",
    b"a \xc3",
];

#[derive(Clone)]
struct File(Vec<(&'static str, Value)>);

impl Keys for File {
    fn get(&self, key: &str) -> Option<Value> {
        self.0.iter().find(|(known, _)| key.strip_prefix("tokenizer.ggml.") == Some(known)).map(|(_, v)| v.clone())
    }
}

fn texts<S: AsRef<[u8]>>(texts: impl IntoIterator<Item = S>) -> Value {
    Value::Texts(texts.into_iter().collect())
}

/// A sound vocabulary: bytes, what some merges make, marks.
fn sound(dice: &mut Dice) -> File {
    let model = *dice.pick(&["gpt2", "llama", "gemma4"]);
    let pre = *dice.pick(&["gpt-2", "llama3", "qwen2", "gpt-4o", "deepseek-llm", "default", "superbpe"]);
    let space = if model == "gpt2" { "Ġ" } else { "▁" };
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let hidden = (0u32..256).filter(|b| !printable(*b)).zip(0x100..).collect::<Vec<_>>();
    let mut tokens: Vec<String> = (0u32..256)
        .map(|byte| match hidden.iter().find(|(b, _)| *b == byte) {
            _ if model != "gpt2" => format!("<0x{byte:02X}>"),
            Some((_, character)) => char::from_u32(*character).unwrap().into(),
            None => char::from_u32(byte).unwrap().into(),
        })
        .collect();
    let mut types = vec![if model == "gpt2" { 1 } else { 6 }; 256];
    if model != "gpt2" {
        tokens.extend(["a", "b", "l", "o", "▁", "é", "中"].map(String::from));
    }
    let pairs = [("a", "a"), ("aa", "aa"), ("l", "o"), (space, "a"), (space, space), ("a", "b"), ("ab", "a")];
    tokens.extend(pairs.map(|(left, right)| format!("{left}{right}")));
    types.resize(tokens.len(), 1);
    for (mark, kind) in [("<s>", 3), ("</s>", 3), ("<unk>", 2), ("<|im_start|>", 3), ("<tool>", 4), ("  \n", 4)] {
        tokens.push(mark.into());
        types.push(kind);
    }
    let scores = (0..tokens.len()).map(|_| -(dice.below(9) as f32)).collect();
    File(vec![
        ("model", Value::Text(model.into())),
        ("pre", Value::Text(pre.into())),
        ("tokens", texts(&tokens)),
        ("token_type", Value::Ints(types)),
        ("scores", Value::Floats(scores)),
        ("merges", texts(pairs.map(|(left, right)| format!("{left} {right}")))),
        ("bos_token_id", Value::Int(tokens.len() as i128 - 6)),
        ("eos_token_id", Value::Int(tokens.len() as i128 - 5)),
        ("add_bos_token", Value::Flag(dice.once_in(2))),
        ("add_space_prefix", Value::Flag(dice.once_in(2))),
    ])
}

/// A list that lies in some places, or is shorter, longer or in another order.
fn lie<T: Clone>(dice: &mut Dice, list: &mut Vec<T>, odd: impl Fn(&mut Dice) -> T) {
    for _ in 0..1 + dice.below(3) {
        if list.is_empty() {
            return list.push(odd(dice));
        }
        let (at, other) = (dice.below(list.len()), dice.below(list.len()));
        match dice.below(6) {
            0 | 1 => list[at] = odd(dice),
            2 => list[at] = list[other].clone(),
            3 => drop(list.remove(at)),
            4 => list.insert(at, odd(dice)),
            _ if dice.once_in(4) => list.truncate(at),
            _ => list.swap(at, other),
        }
    }
}

fn damaged(dice: &mut Dice) -> File {
    let mut file = sound(dice);
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(file.0.len());
        match &mut file.0[at].1 {
            Value::Texts(table) if !dice.once_in(4) => {
                let mut list: Vec<Vec<u8>> = table.iter().map(<[u8]>::to_vec).collect();
                lie(dice, &mut list, |dice| dice.pick(&ODD).to_vec());
                *table = list.into_iter().collect();
            }
            Value::Ints(list) if !dice.once_in(4) => {
                lie(dice, list, |dice| *dice.pick(&[0, 1, 2, 3, 4, 5, 6, 7, -1, 1 << 31, i64::MAX]));
            }
            Value::Floats(list) if !dice.once_in(4) => {
                lie(dice, list, |dice| {
                    *dice.pick(&[0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38])
                });
            }
            value => {
                *value = match dice.below(9) {
                    0 => Value::Text(dice.pick(&ODD).to_vec()),
                    1 => {
                        Value::Text(dice.pick(&["gpt2", "llama", "gemma4", "qwen2", "sarvam-moe"]).as_bytes().to_vec())
                    }
                    2 => Value::Int(*dice.pick(&[0, 1, 5, 255, 280, -1, 1 << 33, i128::MAX])),
                    3 => Value::Flag(dice.once_in(2)),
                    4 => Value::Float(f64::NAN),
                    5 => texts(dice.pick(&[&ODD[..], &[], &ODD[2..4]]).iter()),
                    6 => Value::Ints(vec![-5; dice.below(600)]),
                    7 => Value::Floats(vec![0.5; dice.below(600)]),
                    _ => Value::Other("of the type dict".into()),
                };
            }
        }
        if dice.once_in(6) {
            file.0.remove(at);
        }
        if file.0.is_empty() {
            break;
        }
    }
    file
}

/// All that a tokenizer is used for. Gives how many texts came back as they were.
fn used(tokenizer: &Tokenizer, dice: &mut Dice) -> Result<usize, VocabError> {
    let (vocab, mut kept) = (tokenizer.vocab(), 0);
    let n_vocab = vocab.n_vocab();
    let bytes_of = |ids: &[u32]| ids.iter().flat_map(|id| vocab.token_bytes(*id)).copied().collect::<Vec<u8>>();
    for text in TEXTS {
        for (special, lossy) in [(false, true), (true, true), (false, false)] {
            let options = EncodeOptions {
                special,
                lossy,
                add_bos: Some(false),
                add_eos: Some(false),
                add_space_prefix: Some(false),
            };
            match tokenizer.encode(text, &options) {
                Ok(ids) => {
                    assert!(ids.iter().all(|id| (*id as usize) < n_vocab));
                    kept += usize::from(bytes_of(&ids) == text.as_bytes());
                }
                Err(VocabError::Unspelled { character, at }) => {
                    assert!(!lossy && text.chars().nth(at) == Some(character));
                }
                Err(error) => return Err(error),
            }
        }
        let mut bytes = text.as_bytes().to_vec();
        let at = dice.below(bytes.len());
        bytes.insert(at, dice.next() as u8);
        match tokenizer.tokenize_bytes(&bytes) {
            // A stranger's tokens may stand for something else than what spells them: two of one text, or a user-defined one that merges make.
            Ok(ids) => kept += usize::from(bytes_of(&ids) == bytes),
            Err(VocabError::UnspelledByte { byte, at }) => assert_eq!(bytes[at], byte),
            Err(error) => return Err(error),
        }
        tokenizer.split(text.as_bytes())?;
    }
    let (mut state, mut shown) = (Detokenizer::new(vocab, true, true), String::new());
    (0..40).for_each(|_| state.push(vocab, dice.below(n_vocab) as u32, &mut shown));
    assert!(vocab.eog_ids().iter().chain(vocab.suppressed()).all(|id| (*id as usize) < n_vocab));
    assert!(vocab.roles().iter().all(|role| (role.id as usize) < n_vocab));
    Ok(kept)
}

#[test]
fn damaged_vocabularies_are_refused_by_name_or_keep_their_promises() {
    let (mut refused, mut good, mut kept) = (0, 0, 0);
    for number in 0..CASES {
        let (result, cost) = measured(|| {
            let mut dice = Dice(number);
            let file = if number % 50 == 0 { sound(&mut dice) } else { damaged(&mut dice) };
            Tokenizer::from_metadata(&file, None).and_then(|tokenizer| used(&tokenizer, &mut dice))
        });
        match result {
            Ok(n) => {
                good += 1;
                kept += n;
            }
            Err(error) => {
                assert!(number % 50 != 0, "{error}");
                assert!((1..2000).contains(&error.to_string().len()), "case {number}: {error}");
                refused += 1;
            }
        }
        assert!(cost.bytes < BYTES && cost.time < TIME, "case {number}: {cost:?}");
    }
    println!("{CASES} vocabularies: {good} used, {refused} refused, {kept} texts came back");
    assert!(good > 1_000 && refused > 3_000 && kept > 12_000, "{good}, {refused}, {kept}");
}

#[test]
fn a_text_and_a_vocabulary_made_to_be_slow_take_time_in_proportion() {
    // Joining is n log n: a text of one letter and merges that double it are the worst that a file can ask for.
    let tokens: Vec<String> = (0..14).map(|n| "a".repeat(1 << n)).collect();
    let merges = texts(tokens[..13].iter().map(|token| format!("{token} {token}")));
    let scores = Value::Floats((0..14).map(|n| n as f32).collect());
    let file = |model: &str, pre: &str| {
        let (model, pre) = (Value::Text(model.into()), Value::Text(pre.into()));
        File(vec![
            ("model", model),
            ("pre", pre),
            ("tokens", texts(&tokens)),
            ("token_type", Value::Ints(vec![1; 14])),
            ("merges", merges.clone()),
            ("scores", scores.clone()),
        ])
    };
    for file in [file("gpt2", "default"), file("llama", ""), file("gemma4", "")] {
        let tokenizer = Tokenizer::from_metadata(&file, None).unwrap();
        tokenizer.tokenize_bytes(b"a").unwrap();
        let text = "a".repeat(1 << 18);
        let (ids, cost) = measured(|| tokenizer.tokenize_bytes(text.as_bytes()).unwrap());
        assert_eq!(ids.len(), 1 << 5);
        assert!(cost.time < TIME && cost.bytes < BYTES, "{cost:?}");
    }
}

#[test]
fn as_much_text_as_a_header_holds_costs_little_whatever_it_is_said_to_be() {
    // Tokens of 1 to 4096 letters: as much text as the header may have, and more than is looked for.
    let tokens: StringTable = (0..8192).map(|n| "a".repeat(n) + &n.to_string()).collect();
    let n_vocab = tokens.len();
    let file = |kind| {
        File(vec![
            ("model", Value::Text("llama".into())),
            ("tokens", Value::Texts(tokens.clone())),
            ("token_type", Value::Ints(vec![kind; n_vocab])),
            ("scores", Value::Floats(vec![0.0; n_vocab])),
        ])
    };
    for kind in [3, 4] {
        let file = file(kind);
        let (result, cost) = measured(|| Tokenizer::from_metadata(&file, None).unwrap().tokenize_bytes(b"a"));
        assert!(matches!(result, Err(VocabError::SpecialTooLong { .. })), "{result:?}");
        assert!(cost.bytes < 2 * BYTES && cost.time < TIME, "{cost:?}");
    }
    let file = file(1);
    let tokenizer = Tokenizer::from_metadata(&file, None).unwrap();
    let (_, cost) = measured(|| {
        let _ = tokenizer.tokenize_bytes("a".repeat(4096).as_bytes());
    });
    assert!(cost.bytes < BYTES && cost.time < TIME, "{cost:?}");
}
