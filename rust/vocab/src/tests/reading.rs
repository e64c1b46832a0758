//! What is read from metadata.

use super::{BYTE, CONTROL, File, NORMAL, UNKNOWN, UNUSED, USER, file, open, texts};
use crate::{TokenKind, Tokenizer, Value, VocabError};

#[test]
fn a_byte_alphabet_vocabulary_reads_with_bytes_kinds_and_roles() {
    let tokens = [("Ġthe", NORMAL), ("Ã", NORMAL), ("<|im_end|>", CONTROL), ("Ġ!", USER), ("[PAD]", UNUSED)];
    let builder = file("gpt2", &tokens)
        .kv("suppress_tokens", vec![3i64, 1, 5, -1, 1])
        .kv("eos_token_id", 2i128)
        .kv("padding_token_id", 4i128);
    let vocab = open(builder).expect("sound");
    assert_eq!((vocab.n_vocab(), vocab.suppressed()), (5, &[1, 3][..]));
    let bytes: Vec<&[u8]> = (0..6).map(|id| vocab.token_bytes(id)).collect();
    assert_eq!(bytes, [&b" the"[..], b"\xc3", b"<|im_end|>", "Ġ!".as_bytes(), b"[PAD]", b""]);
    let kinds: Vec<_> = (0..6).map(|id| vocab.kind(id)).collect();
    use TokenKind::*;
    assert_eq!(kinds, [Some(Normal), Some(Normal), Some(Control), Some(UserDefined), Some(Unused), None]);
    assert_eq!((vocab.eog_ids(), vocab.add_space_prefix()), (&[2][..], false));
}

#[test]
fn a_scored_vocabulary_reads_with_marks_as_spaces_and_byte_tokens() {
    let tokens = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<0x0A>", BYTE), ("▁a", NORMAL)];
    let vocab = open(file("llama", &tokens)).expect("sound");
    assert_eq!((vocab.token_bytes(3), vocab.token_bytes(4)), (&b"\n"[..], &b" a"[..]));
    assert!(vocab.add_space_prefix());
    assert_eq!(vocab.eog_ids(), [2]);
    assert!(vocab.is_eog(2) && !vocab.is_eog(1) && !vocab.is_eog(99));
}

#[test]
fn without_types_byte_names_and_roles_are_recognised() {
    let tokens = ["<0x41>", "x", "<s>", "<unk>"];
    let builder = |model: &str| {
        File::default()
            .kv("model", model)
            .kv("tokens", texts(tokens))
            .kv("bos_token_id", 2i128)
            .kv("eos_token_id", 2i128)
            .kv("unknown_token_id", 3i128)
    };
    let kinds = |model: &str| {
        let vocab = open(builder(model)).expect("sound");
        (0..4).map(|id| vocab.kind(id).expect("inside")).collect::<Vec<_>>()
    };
    use TokenKind::*;
    assert_eq!(kinds("llama"), [Byte, Normal, Control, Normal]);
    assert_eq!(kinds("gpt2"), [Normal, Normal, Control, Normal]);
}

#[test]
fn generation_ends_at_ids_of_keys_and_at_well_known_names() {
    let tokens = [
        ("</s>", NORMAL),
        ("<|im_end|>", NORMAL),
        ("<end_of_turn>", USER),
        ("<|endoftext|>", CONTROL),
        ("<eos>", CONTROL),
        ("[EOT]", USER),
        ("x", NORMAL),
        ("y", NORMAL),
        ("z", NORMAL),
        ("<|file_sep|>", CONTROL),
        ("<|im_start|>", CONTROL),
        ("<｜end▁of▁sentence｜>", CONTROL),
    ];
    let builder = file("gpt2", &tokens).kv("eos_token_id", 6i128).kv("eot_token_id", 7i128).kv("eom_token_id", 8i128);
    let vocab = open(builder).expect("sound");
    // `</s>` is text here, and `[EOT]` something that a user may write.
    assert_eq!(vocab.eog_ids(), [1, 2, 3, 4, 6, 7, 8, 9, 11]);
    // A name that ends a turn is a mark whatever its type.
    assert_eq!(vocab.kind(1), Some(TokenKind::Control));
    assert_eq!(vocab.kind(2), Some(TokenKind::Control));
    assert_eq!(vocab.kind(0), Some(TokenKind::Normal));
}

#[test]
fn every_well_known_name_ends_a_generation_and_no_other_does() {
    let always = "<|eot_id|> <|im_end|> <|end|> <|return|> <|flush|> <end_of_turn> <|endoftext|> <|eom_id|> <|end_of_text|> \
                  <end_of_utterance> <turn|> [e~[ <｜end▁of▁sentence｜> <|fim_pad|> <|fim_repo|> <|repo_name|> <|file_sep|> \
                  <|tool_response>";
    let as_control = "</s> <eos> <EOT> _<EOT> [EOT] [EOS]";
    let never = "<s> <bos> <|im_start|> <|turn> <|channel> <|tool_call> <|start|> <|message|> <pad> [BOS]";
    let eog = |names: &str, kind: i64| {
        let tokens: Vec<_> = names.split_whitespace().map(|name| (name, kind)).collect();
        let vocab = open(file("gpt2", &tokens)).expect("sound");
        (vocab.eog_ids().len(), vocab.n_vocab())
    };
    for kind in [NORMAL, UNKNOWN, CONTROL, USER, UNUSED] {
        assert_eq!(eog(always, kind), (18, 18));
        assert_eq!(eog(never, kind).0, 0);
    }
    assert_eq!((eog(as_control, CONTROL), eog(as_control, UNKNOWN)), ((6, 6), (6, 6)));
    assert_eq!((eog(as_control, NORMAL).0, eog(as_control, USER).0), (0, 0));
    // The end of text that the kind `llama` has by default needs no name.
    let vocab = open(file("llama", &[("a", NORMAL), ("b", NORMAL), ("c", NORMAL)])).expect("sound");
    assert_eq!(vocab.eog_ids(), [2]);
}

#[test]
fn an_end_of_message_inside_a_turn_does_not_end_a_generation() {
    let eog = |names: &[&str]| {
        let tokens: Vec<_> = names.iter().map(|name| (*name, CONTROL)).collect();
        open(file("gpt2", &tokens)).expect("sound").eog_ids().to_vec()
    };
    assert_eq!(eog(&["<|end|>", "<|return|>"]), [0, 1]);
    assert_eq!(eog(&["<|end|>", "<|return|>", "<|call|>"]), [1, 2]);
    assert_eq!(eog(&["<|flush|>", "<|end|>", "<|calls|>"]), [0, 2]);
    assert_eq!(eog(&["<|return|>", "<|calls|>", "<|end|>"]), [0, 1, 2]);
}

#[test]
fn ids_outside_the_vocabulary_are_refused_for_bos_and_eos_and_none_for_others() {
    let two = [("a", NORMAL), ("b", NORMAL)];
    for (name, key) in
        [("bos_token_id", "tokenizer.ggml.bos_token_id"), ("eos_token_id", "tokenizer.ggml.eos_token_id")]
    {
        for found in [2, -1, i128::from(u64::MAX)] {
            let error = open(file("gpt2", &two).kv(name, found)).expect_err("outside");
            assert_eq!(error, VocabError::TokenOutOfRange { key, found, n_vocab: 2 });
        }
        let text = open(file("gpt2", &two).kv(name, "a")).expect_err("no number").to_string();
        assert_eq!(text, format!("key `{key}` is the text `a`, expected a token id"));
    }
    let others = file("gpt2", &two).kv("padding_token_id", 2i128).kv("eot_token_id", i128::from(u32::MAX));
    let vocab = open(others.kv("mask_token_id", 1i128)).expect("other roles are optional");
    assert!(vocab.eog_ids().is_empty());
    assert_eq!((vocab.role("pad_token"), vocab.role("mask_token")), (None, Some(1)));
}

#[test]
fn unknown_kinds_and_missing_or_short_arrays_are_refused_by_name() {
    let why = |file: File| open(file).expect_err("refused").to_string();
    let known = "expected one of `gemma4`, `gpt2`, `llama`";
    assert_eq!(
        why(file("bert", &[("a", NORMAL)])),
        format!("the vocabulary `bert` is unknown (key tokenizer.ggml.model), {known}")
    );
    assert_eq!(why(File::default()), format!("the file names no vocabulary (key tokenizer.ggml.model), {known}"));
    let bare = || File::default().kv("model", "gpt2");
    assert_eq!(why(bare()), "key `tokenizer.ggml.tokens` is missing, expected an array of text");
    assert_eq!(
        why(bare().kv("tokens", texts::<&str>([]))),
        "key `tokenizer.ggml.tokens` has 0 elements, expected 1 to 2097152"
    );
    let tokens = || bare().kv("tokens", texts(["a", "b", "c"]));
    let short = "elements, expected one for each of 3 tokens";
    let types = why(tokens().kv("token_type", vec![1i64, 1]));
    assert_eq!(types, format!("key `tokenizer.ggml.token_type` has 2 {short}"));
    for (key, expected) in [
        ("eot_token_id", "a token id"),
        ("mask_token_id", "a token id"),
        ("unknown_token_id", "a token id"),
        ("add_space_prefix", "a flag"),
        ("suppress_tokens", "an array of whole numbers"),
    ] {
        let wrong = why(tokens().kv(key, "x"));
        assert_eq!(wrong, format!("key `tokenizer.ggml.{key}` is the text `x`, expected {expected}"));
    }
    let long = "\u{1b}".repeat(90);
    for (value, found) in [
        (Value::Int(7), "the whole number 7"),
        (Value::Float(2.0), "the number 2.0"),
        (Value::Flag(true), "the flag true"),
        (Value::Floats(vec![]), "an array of numbers"),
        (Value::Other("a dict".into()), "a dict"),
        (Value::Text(b"\xff".to_vec()), "the text `\u{fffd}`"),
        (Value::Text(long.into_bytes()), &format!("the text `{}…`", "\\u{1b}".repeat(80))),
    ] {
        let text = matches!(value, Value::Text(_));
        let key = if text { "pre" } else { "model" };
        let expected = if text { "text in UTF-8" } else { "text" };
        if found.len() < 100 {
            assert_eq!(
                why(tokens().kv(key, value)),
                format!("key `tokenizer.ggml.{key}` is {found}, expected {expected}")
            );
        } else {
            let error = Tokenizer::from_metadata(&tokens().kv(key, value), None).expect_err("unknown").to_string();
            assert!(error.contains(&"\\u{1b}".repeat(80)) && !error.contains(&"\\u{1b}".repeat(81)), "{error}");
        }
    }
    // Arrays that say more than is asked are no lie about the tokens that exist.
    let vocab = open(tokens().kv("token_type", vec![1i64, 3, 77, 4])).expect("long enough");
    assert_eq!(
        (vocab.kind(1), vocab.kind(2), vocab.kind(3)),
        (Some(TokenKind::Control), Some(TokenKind::Undefined), None)
    );
}

#[test]
fn tokens_that_are_not_utf8_stand_for_themselves_and_encode_nothing() {
    let tokens = texts([&[b'a', 0xff][..], &[], &[0xc4]]);
    let file =
        File::default().kv("model", "gpt2").kv("tokens", tokens).kv("pre", "gpt-2").kv("merges", texts::<&str>([]));
    let vocab = open(file.clone()).expect("bytes are bytes");
    assert_eq!((0..3).map(|id| vocab.token_bytes(id)).collect::<Vec<_>>(), [&[b'a', 0xff][..], b"", &[0xc4]]);
    let error = Tokenizer::from_metadata(&file, None).expect("nothing is built").tokenize_bytes(b"a");
    assert_eq!(
        error.expect_err("no text").to_string(),
        "token 0 of key `tokenizer.ggml.tokens` is `a\u{fffd}`, expected text in UTF-8"
    );
}
