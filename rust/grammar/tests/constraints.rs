//! G1 to G5: what compiled grammars allow, along drafts and plainly; what they force; where they begin; what is refused, and where.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod vocabulary;

use std::time::{Duration, Instant};

use quoth_engine::constraint::{Constraint, Mask};
use quoth_engine::vocab::Vocab;
use quoth_grammar::{Compiler, Grammar, MAX_CACHED, Start, Tokens};
use serde_json::{Value, json};
use vocabulary::{Dice, EOS, THINK, THOUGHT, text, vocab};

fn compiler() -> (Vocab, Compiler) {
    let vocab = vocab();
    let compiler = Compiler::new(Tokens::new(&vocab, None));
    (vocab, compiler)
}

fn schema(schema: &Value) -> Grammar {
    Grammar::JsonSchema { schema: schema.to_string(), whitespace: false }
}

fn allowed(mask: &Mask, n_vocab: usize) -> Vec<u32> {
    (0..n_vocab as u32).filter(|id| mask.allows(*id)).collect()
}

fn mask(constraint: &mut dyn Constraint) -> Mask {
    let mut masks = Vec::new();
    constraint.masks(&[], &mut masks).unwrap();
    assert_eq!(masks.len(), 1);
    masks.remove(0)
}

/// An answer of random allowed tokens, without an end of generation at its end.
fn answer(constraint: &mut dyn Constraint, vocab: &Vocab, dice: &mut Dice) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        let ids = allowed(&mask(constraint), vocab.n_vocab());
        // Quotes and ends come often, so that answers do.
        let ends: Vec<u32> = ids.iter().copied().filter(|id| *id == EOS || vocab.token_bytes(*id) == b"\"").collect();
        let token = match ends.first() {
            Some(end) if dice.below(4) == 0 || tokens.len() > 400 => *end,
            _ => ids[dice.below(ids.len())],
        };
        if token != EOS {
            tokens.push(token);
        }
        if constraint.commit(token).unwrap() {
            return tokens;
        }
        assert!(tokens.len() < 5000, "{}", text(vocab, &tokens));
    }
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "tags": { "type": "array", "items": { "enum": ["a", "bé", "漢字"] }, "minItems": 1, "maxItems": 3 },
            "more": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/date" }] }
        },
        "required": ["name", "age", "tags", "more"],
        "additionalProperties": false,
        "$defs": { "date": { "type": "string", "format": "date" } }
    })
}

fn grammars() -> Vec<Grammar> {
    vec![
        schema(&person()),
        Grammar::JsonSchema { schema: person().to_string(), whitespace: true },
        schema(&json!({ "type": "object" })),
        schema(&json!({ "type": "array", "items": { "type": "number" }, "maxItems": 4 })),
        Grammar::Regex("(yes|no), [0-9]{2,5}( the)*".into()),
        Grammar::Choice(vec!["the".into(), "the end".into(), "é".into(), "a \"b\" \\ /c/".into()]),
        Grammar::Lark("start: \"SELECT \" NAME (\", \" NAME)* \" FROM \" NAME\nNAME: /[a-z]{1,8}/".into()),
    ]
}

#[test]
fn answers_are_what_the_grammar_says() {
    let (vocab, compiler) = compiler();
    let mut dice = Dice(1);
    for _ in 0..40 {
        let mut constraint = compiler.compile(&schema(&person())).unwrap().start(&Start::Now);
        let answer = text(&vocab, &answer(&mut *constraint, &vocab, &mut dice));
        let value: Value = serde_json::from_str(&answer).unwrap();
        assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{answer}");
        assert!(value["age"].as_u64().unwrap() <= 150, "{answer}");
        assert!((1..=3).contains(&value["tags"].as_array().unwrap().len()), "{answer}");
        assert!(value["more"].is_null() || value["more"].as_str().unwrap().len() == 10, "{answer}");
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["name", "age", "tags", "more"], "{answer}");
    }
    let texts = ["the", "the end", "é", "a \"b\" \\ /c/"].map(String::from);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..60 {
        let mut constraint = compiler.compile(&Grammar::Choice(texts.to_vec())).unwrap().start(&Start::Now);
        let chosen = text(&vocab, &answer(&mut *constraint, &vocab, &mut dice));
        assert!(texts.contains(&chosen), "{chosen}");
        seen.insert(chosen);
    }
    assert_eq!(seen.len(), texts.len());
}

#[test]
fn masks_along_a_draft_are_those_of_a_constraint_that_took_its_tokens_one_by_one() {
    let (vocab, compiler) = compiler();
    let n_vocab = vocab.n_vocab();
    let mut dice = Dice(2);
    for grammar in grammars() {
        for start in [Start::Now, Start::After { text: "the\"".into(), open: None }] {
            for _ in 0..8 {
                let compiled = compiler.compile(&grammar).unwrap();
                let mut tokens = Vec::new();
                if start != Start::Now {
                    let word = |word: &str| {
                        (0..n_vocab as u32).rev().find(|t| vocab.token_bytes(*t) == word.as_bytes()).unwrap()
                    };
                    tokens.extend(["name", " the", "the", "\""].map(word));
                }
                let mut other = compiled.start(&Start::Now);
                tokens.extend(answer(&mut *other, &vocab, &mut dice));
                let mut plain = compiled.start(&start);
                let mut fast = compiled.start(&start);
                let mut at = 0;
                while at < tokens.len() {
                    // The draft: right ones, and behind them a wrong one.
                    let n = (dice.below(9)).min(tokens.len() - at);
                    let wrong = dice.below(n_vocab) as u32;
                    let draft: Vec<u32> = tokens[at..at + n].iter().copied().chain([wrong]).collect();
                    let mut masks = Vec::new();
                    fast.masks(&draft, &mut masks).unwrap();
                    let valid = fast.valid_prefix(&draft).unwrap();
                    let mut forced = Vec::new();
                    fast.forced(5, &mut forced).unwrap();
                    assert!(tokens[at..].starts_with(&forced) || at + forced.len() > tokens.len());
                    // What is foretold is allowed, and asking changes nothing.
                    let (mut all, mut likely) = (Vec::new(), Vec::new());
                    fast.forced(64, &mut all).unwrap();
                    fast.likely(64, &mut likely).unwrap();
                    all.extend(likely);
                    assert_eq!(fast.valid_prefix(&all).unwrap(), all.len(), "{all:?}");
                    let mut fork = fast.fork();
                    for i in 0..=n {
                        if i < n || at + i < tokens.len() || masks.len() > i {
                            let expected = mask(&mut *plain);
                            assert_eq!(masks[i], expected, "{grammar:?}, token {i} of the draft {draft:?}");
                            assert_eq!(valid > i, expected.allows(draft[i]), "token {i} of the draft {draft:?}");
                            if i < forced.len() {
                                assert_eq!(expected, Mask::One(forced[i]));
                            }
                        }
                        if i < n {
                            let complete = plain.commit(draft[i]).unwrap();
                            assert_eq!(fast.commit(draft[i]).unwrap(), complete);
                            assert_eq!(fork.commit(draft[i]).unwrap(), complete);
                        }
                    }
                    at += n;
                    if n == 0 {
                        plain.commit(tokens[at]).unwrap();
                        fast.commit(tokens[at]).unwrap();
                        at += 1;
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_schema_forces_is_forced_up_to_a_token_that_could_be_longer() {
    let (vocab, compiler) = compiler();
    let mut constraint = compiler.compile(&schema(&person())).unwrap().start(&Start::Now);
    let mut forced = Vec::new();
    constraint.forced(64, &mut forced).unwrap();
    // `": ` could go on as `": "`, so the model chooses there.
    let said = text(&vocab, &forced);
    assert!("{\"name\": \"".starts_with(&said) && said.starts_with("{\"name"), "{said}");
    constraint.likely(64, &mut forced).unwrap();
    assert_eq!(text(&vocab, &forced), "{\"name\": \"");
    // Spelled otherwise it is not what the vocabulary makes of the text.
    let brace = (0..vocab.n_vocab() as u32).find(|t| vocab.token_bytes(*t) == b"{").unwrap();
    assert_eq!(constraint.valid_prefix(&[brace]).unwrap(), 0);
}

#[test]
fn marks_are_never_text_and_ends_are_allowed_where_the_answer_may_end() {
    let (vocab, compiler) = compiler();
    let n_vocab = vocab.n_vocab();
    let mut dice = Dice(3);
    let compiled = compiler.compile(&Grammar::Regex("(?s:.){0,40}".into())).unwrap();
    let mut constraint = compiled.start(&Start::Now);
    let mask_here = mask(&mut *constraint);
    assert!(mask_here.allows(EOS) && !mask_here.allows(THOUGHT) && !mask_here.allows(3));
    // A user-defined token is text.
    assert!(mask_here.allows(THINK));
    let compiled = compiler.compile(&schema(&json!({ "type": "string", "maxLength": 30 }))).unwrap();
    for _ in 0..20 {
        let mut constraint = compiled.start(&Start::Now);
        for token in answer(&mut *compiled.start(&Start::Now), &vocab, &mut dice) {
            let mask = mask(&mut *constraint);
            assert!(!allowed(&mask, n_vocab).contains(&THOUGHT));
            assert!(!mask.allows(EOS), "an end inside a text");
            constraint.commit(token).unwrap();
        }
    }
}

#[test]
fn a_text_starts_the_grammar_wherever_tokens_part_it() {
    let (vocab, compiler) = compiler();
    let n_vocab = vocab.n_vocab();
    let word = |word: &str| (0..n_vocab as u32).rev().find(|t| vocab.token_bytes(*t) == word.as_bytes()).unwrap();
    let compiled = compiler.compile(&schema(&json!({ "type": "object", "properties": { "name": { "enum": ["on"] } }, "required": ["name"], "additionalProperties": false }))).unwrap();
    let start = Start::After { text: "```json\n".into(), open: None };
    let byte = |byte: u8| 4 + u32::from(byte);
    for tokens in [
        vec![word("name"), word("```json\n")],
        "```json\n".bytes().map(byte).collect::<Vec<u32>>(),
        vec![byte(b'`'), byte(b'`'), word("```json\n"), word("\n\n"), word("  ")],
    ] {
        let mut constraint = compiled.start(&start);
        for (i, token) in tokens.iter().enumerate() {
            assert!(mask(&mut *constraint).allows(*token), "token {i} of {tokens:?}");
            assert!(!constraint.commit(*token).unwrap());
        }
        let mut answer = Vec::new();
        let mut dice = Dice(4);
        loop {
            let ids = allowed(&mask(&mut *constraint), n_vocab);
            // No more space than was there.
            let ids: Vec<u32> = ids
                .into_iter()
                .filter(|t| {
                    !vocab.token_bytes(*t).is_empty()
                        && (!answer.is_empty() || !vocab.token_bytes(*t)[0].is_ascii_whitespace())
                })
                .collect();
            let token = ids[dice.below(ids.len())];
            answer.push(token);
            if constraint.commit(token).unwrap() {
                break;
            }
        }
        assert_eq!(text(&vocab, &answer), "{\"name\": \"on\"}", "{tokens:?}");
    }
    // A token that completes the text and goes on as the grammar cannot.
    let compiled = compiler.compile(&Grammar::Regex("x+".into())).unwrap();
    let mut constraint = compiled.start(&Start::After { text: "na".into(), open: None });
    let first = mask(&mut *constraint);
    assert!(!first.allows(word("name")) && first.allows(word("na")) && first.allows(word("the")));
    let compiled = compiler.compile(&Grammar::Regex("me+".into())).unwrap();
    let mut constraint = compiled.start(&Start::After { text: "na".into(), open: None });
    assert!(mask(&mut *constraint).allows(word("name")));
    assert!(!constraint.commit(word("name")).unwrap());
    assert_eq!(allowed(&mask(&mut *constraint), n_vocab), [EOS, byte(b'e')]);
}

#[test]
fn an_answer_may_think_first_or_not_and_ends_as_the_grammar_says() {
    let (vocab, compiler) = compiler();
    let compiled = compiler.compile(&Grammar::Choice(vec!["on".into(), "in".into()])).unwrap();
    let word =
        |word: &str| (0..vocab.n_vocab() as u32).rev().find(|t| vocab.token_bytes(*t) == word.as_bytes()).unwrap();
    let start = Start::After { text: "</think>".into(), open: Some(THINK) };
    let mut plain = compiled.start(&start);
    assert!(!mask(&mut *plain).allows(word("the")));
    assert!(plain.commit(word("on")).unwrap());
    let mut thinks = compiled.start(&start);
    let draft = [THINK, word("the"), THOUGHT, word("\n\n"), word("on")];
    assert_eq!(thinks.valid_prefix(&draft).unwrap(), 5, "the end of thinking lies inside a draft");
    let mut masks = Vec::new();
    thinks.masks(&draft, &mut masks).unwrap();
    assert_eq!(masks.len(), 5, "nothing follows the last token");
    for (i, token) in draft.into_iter().enumerate() {
        let one = mask(&mut *thinks);
        assert_eq!(one, masks[i]);
        assert!(one.allows(token), "token {i}");
        assert_eq!(thinks.commit(token).unwrap(), i == 4);
    }
    let mut wrong = compiled.start(&start);
    assert_eq!(wrong.valid_prefix(&[THINK, THOUGHT, word("the"), word("on")]).unwrap(), 2);
}

#[test]
fn a_request_does_not_depend_on_those_before_it_and_a_text_is_compiled_once() {
    let (vocab, compiler) = compiler();
    let grammar = schema(&person());
    let first = compiler.compile(&grammar).unwrap();
    let run = |seed| answer(&mut *first.start(&Start::Now), &vocab, &mut Dice(seed));
    let alone = run(5);
    (6..20).for_each(|seed| drop(run(seed)));
    assert_eq!(run(5), alone);
    assert!(std::sync::Arc::ptr_eq(&first, &compiler.compile(&grammar).unwrap()));
    for i in 0..2 * MAX_CACHED {
        compiler.compile(&Grammar::Regex(format!("a{{{i}}}b"))).unwrap();
        compiler.compile(&grammar).unwrap();
    }
    assert_eq!(compiler.cached(), MAX_CACHED);
    assert!(std::sync::Arc::ptr_eq(&first, &compiler.compile(&grammar).unwrap()), "what is used stays");
}

#[test]
fn a_refusal_names_the_place() {
    let (_, compiler) = compiler();
    let cases = [
        (json!({ "type": "strng" }), "#/type", "strng"),
        (
            json!({ "properties": { "a/b": { "type": "object", "required": "x" } } }),
            "#/properties/a~1b/required",
            "list of names",
        ),
        (json!({ "type": "array", "items": { "type": "array", "uniqueItems": true } }), "#/items", "uniqueItems"),
        (json!({ "properties": { "a": { "not": { "type": "null" } } } }), "#/properties/a", "not"),
        (
            json!({ "type": "object", "properties": { "a": { "type": "integer", "minimum": 5, "maximum": 3 } }, "required": ["a"] }),
            "#/properties/a",
            "5",
        ),
        (
            json!({ "properties": { "a": { "type": "string", "pattern": "(" } }, "required": ["a"] }),
            "#/properties/a",
            "unclosed",
        ),
        (json!({ "properties": { "a": { "type": "string", "format": "nonsense" } } }), "#/properties/a", "format"),
        (
            json!({ "$ref": "#/$defs/x", "$defs": { "x": { "type": "object", "properties": { "y": { "if": true } } } } }),
            "#/$defs/x/properties/y",
            "if",
        ),
        (json!({ "allOf": [{ "type": "string" }, 7] }), "#/allOf/1", "a schema"),
        (json!({ "properties": { "a": { "$ref": "#/nowhere" } } }), "#/properties/a", "nowhere"),
        (json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }), "#", "exclude each other"),
        (json!(false), "#", "false"),
        (json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }), "#", "finite"),
        (
            json!({ "type": "object", "properties": { "a": { "type": "array", "items": { "$ref": "#/$defs/x" }, "minItems": 1 } }, "required": ["a"], "$defs": { "x": { "anyOf": [{ "$ref": "#/$defs/x" }, { "$ref": "#" }] } } }),
            "#",
            "finite",
        ),
        (json!({ "$ref": "#" }), "#", "finite"),
    ];
    for (case, place, words) in cases {
        let error = compiler.compile(&schema(&case)).unwrap_err();
        assert_eq!(error.place.as_deref(), Some(place), "{case}: {error}");
        assert!(error.message.contains(words), "{case}: {error}");
        assert!(!error.message.contains('\n') && !error.message.is_empty() && error.to_string().len() < 600, "{error}");
    }
    for grammar in [
        Grammar::Regex("a(b".into()),
        Grammar::Regex("(?=a)b".into()),
        Grammar::Lark("start: missing".into()),
        Grammar::Lark("nothing".into()),
        Grammar::Choice(Vec::new()),
        Grammar::Choice(vec!["a".into(), String::new()]),
        Grammar::JsonSchema { schema: "{".into(), whitespace: false },
    ] {
        let error = compiler.compile(&grammar).unwrap_err();
        assert_eq!(error.place, None, "{grammar:?}");
        assert!(error.to_string().len() > 10, "{grammar:?}: {error}");
    }
}

/// Schemas that ask for more than a compiler should give.
fn hostile() -> Vec<(&'static str, Grammar)> {
    let deep =
        |open: &str, middle: &str, close: &str, n: usize| format!("{}{middle}{}", open.repeat(n), close.repeat(n));
    let json = |schema: String| Grammar::JsonSchema { schema, whitespace: false };
    let chain: serde_json::Map<String, Value> =
        (0..5000).map(|i| (format!("d{i}"), json!({ "$ref": format!("#/$defs/d{}", (i + 1) % 5000) }))).collect();
    let nest: serde_json::Map<String, Value> = (0..3000)
        .map(|i| {
            (
                format!("d{i}"),
                json!({ "type": "array", "items": { "$ref": format!("#/$defs/d{}", i + 1) }, "maxItems": 2 }),
            )
        })
        .chain([("d3000".to_owned(), json!({ "type": "null" }))])
        .collect();
    let any: Vec<Value> = (0..12).map(|i| json!({ "anyOf": (0..12).map(|j| json!({ "type": "object", "properties": { format!("p{i}"): { "const": j } } })).collect::<Vec<_>>() })).collect();
    let wide: serde_json::Map<String, Value> = (0..5_000)
        .map(|i| (format!("property {i}"), json!({ "type": "string", "pattern": format!("^[a-z]{{{i}}}$") })))
        .collect();
    vec![
        ("arrays within arrays", json(deep("{\"type\": \"array\", \"items\": ", "true", "}", 60))),
        ("deeper than JSON readers go", json(deep("{\"items\": ", "true", "}", 100_000))),
        ("a chain of references that bites its tail", json(json!({ "$ref": "#/$defs/d0", "$defs": chain }).to_string())),
        ("a tower of references", json(json!({ "$ref": "#/$defs/d0", "$defs": nest }).to_string())),
        ("a reference to itself", json(json!({ "$ref": "#" }).to_string())),
        ("only an endless value", json(json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }).to_string())),
        ("alternatives that multiply", json(json!({ "allOf": any }).to_string())),
        ("five thousand patterns", json(json!({ "type": "object", "properties": wide }).to_string())),
        ("a million items", json(json!({ "type": "array", "items": { "type": "integer" }, "minItems": 1_000_000, "maxItems": 2_000_000 }).to_string())),
        ("a billion characters", json(json!({ "type": "string", "minLength": 1_000_000_000 }).to_string())),
        ("numbers beyond numbers", json(json!({ "type": "integer", "minimum": 1e308, "maximum": 1.7e308 }).to_string())),
        ("an odd step", json(json!({ "type": "number", "multipleOf": 1e-300 }).to_string())),
        ("a lone half of a pair", json("{\"const\": \"\\ud800\"}".into())),
        ("names of all kinds", json(json!({ "type": "object", "properties": { "\u{0}": { "const": "\u{10ffff}" }, "漢\"\\": {}, "": {} }, "required": ["", "\u{0}"] }).to_string())),
        ("an enum of ten thousand", json(json!({ "enum": (0..10_000).collect::<Vec<_>>() }).to_string())),
        ("too long", json(format!("{{\"description\": \"{}\"}}", "x".repeat(2 << 20)))),
        ("repetitions of repetitions", Grammar::Regex("((a{1,1000}){1,1000}){1,1000}".into())),
        ("expressions within expressions", Grammar::Regex(deep("(a|", "b", ")*", 5000))),
        ("the longest ambiguity", Grammar::Regex("(a|b|ab)*c(.*a){30}".into())),
        ("every letter of every script", Grammar::Regex(r"\p{L}{500}[^\p{L}]{500}".into())),
        ("an expression of a megabyte", Grammar::Regex("a".repeat(1 << 20))),
        ("rules without an end", Grammar::Lark("start: start start | \"a\"".into())),
        ("rules that lead nowhere", Grammar::Lark("start: start".into())),
        ("brackets", Grammar::Lark(format!("start: {}", deep("(", "\"a\"", ")", 20_000)))),
        ("a rule of a thousand rules", Grammar::Lark((0..1000).map(|i| format!("r{i}: r{} r{}\n", i + 1, i + 1)).collect::<String>() + "r1000: \"a\"\nstart: r0\n")),
        ("ten thousand choices", Grammar::Choice((0..10_000).map(|i| format!("{i:06}")).collect())),
    ]
}

#[test]
fn hostile_grammars_end_in_an_error_or_a_bounded_compile() {
    let (vocab, compiler) = compiler();
    for (what, grammar) in hostile() {
        let start = Instant::now();
        let compiled = compiler.compile(&grammar);
        let compile = start.elapsed();
        assert!(compile < Duration::from_secs(25), "{what}: {compile:?}");
        let outcome = match &compiled {
            Ok(_) => "compiles".to_owned(),
            Err(error) => error.to_string().chars().take(120).collect(),
        };
        println!("{what}: {compile:.1?}, {outcome}");
        let Ok(compiled) = compiled else { continue };
        // An answer can begin, and masks come in time or are refused in words.
        let mut constraint = compiled.start(&Start::Now);
        let mut dice = Dice(6);
        for _ in 0..30 {
            let start = Instant::now();
            let mut masks = Vec::new();
            if let Err(error) = constraint.masks(&[], &mut masks) {
                assert!(error.to_string().len() < 600, "{what}: {error}");
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(2), "{what}: {:?}", start.elapsed());
            let ids = allowed(&masks[0], vocab.n_vocab());
            match constraint.commit(ids[dice.below(ids.len())]) {
                Ok(false) => {}
                _ => break,
            }
        }
    }
}

#[test]
fn a_vocabulary_without_some_bytes_still_forces_what_it_can_spell() {
    let vocab = vocabulary::without(&[0x04, 0xf1]);
    let compiler = Compiler::new(Tokens::new(&vocab, None));
    let forced = |grammar: &Grammar| {
        let mut forced = Vec::new();
        compiler.compile(grammar).unwrap().start(&Start::Now).forced(64, &mut forced).unwrap();
        text(&vocab, &forced)
    };
    assert!(forced(&schema(&person())).starts_with("{\"name"));
    assert!(forced(&schema(&json!({ "const": "é" }))).starts_with("\"é"));
    // U+40000 begins with the byte that is not there, so the grammar cannot be met; it is not spelled wrongly either.
    let error = compiler.compile(&Grammar::Choice(vec!["\u{40000}".into()])).unwrap_err();
    assert!(error.message.contains("no answer"), "{error}");
    assert_eq!(forced(&Grammar::Choice(vec!["a\u{40000}".into(), "name".into()])), "");
}
