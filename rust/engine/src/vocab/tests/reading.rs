//! What is read from metadata.

use super::{file, open};
use crate::gguf::GgufFile;
use crate::gguf::testing::{Damage, GgufBuilder, Kv};
use crate::vocab::{Detokenizer, TokenKind, Vocab, VocabError};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

#[test]
fn a_byte_alphabet_vocabulary_reads_with_bytes_kinds_and_roles() {
    let tokens = [("Ġthe", NORMAL), ("Ã", NORMAL), ("<|im_end|>", CONTROL), ("Ġ!", USER), ("[PAD]", UNUSED)];
    let builder = file("gpt2", &tokens)
        .kv("tokenizer.ggml.suppress_tokens", vec![3i32, 1, 5, -1, 1])
        .kv("tokenizer.ggml.eos_token_id", 2u32)
        .kv("tokenizer.ggml.padding_token_id", 4u32);
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
        GgufBuilder::new()
            .kv("tokenizer.ggml.model", model)
            .kv("tokenizer.ggml.tokens", Kv::strs(tokens))
            .kv("tokenizer.ggml.bos_token_id", 2u32)
            .kv("tokenizer.ggml.eos_token_id", 2u32)
            .kv("tokenizer.ggml.unknown_token_id", 3u32)
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
    let builder = file("gpt2", &tokens)
        .kv("tokenizer.ggml.eos_token_id", 6u32)
        .kv("tokenizer.ggml.eot_token_id", 7i32)
        .kv("tokenizer.ggml.eom_token_id", 8u64);
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
    let eog = |names: &str, kind: i32| {
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
    for key in ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"] {
        for (value, found) in [(Kv::U32(2), 2), (Kv::I32(-1), -1), (Kv::U64(u64::MAX), i128::from(u64::MAX))] {
            match open(file("gpt2", &two).kv(key, value)).expect_err("outside") {
                VocabError::TokenOutOfRange { key: k, found: f, n_vocab: 2 } => assert_eq!((k, f), (key, found)),
                other => panic!("{other}"),
            }
        }
        let text = open(file("gpt2", &two).kv(key, "a")).expect_err("no number").to_string();
        assert_eq!(text, format!("v.gguf: key `{key}` is string, expected u32"));
    }
    let vocab = open(
        file("gpt2", &two)
            .kv("tokenizer.ggml.padding_token_id", 2u32)
            .kv("tokenizer.ggml.eot_token_id", u32::MAX)
            .kv("tokenizer.ggml.mask_token_id", 1u32),
    )
    .expect("other roles are optional");
    assert!(vocab.eog_ids().is_empty());
}

#[test]
fn unknown_kinds_and_missing_or_short_arrays_are_refused_by_name() {
    let why = |builder| open(builder).expect_err("refused").to_string();
    assert_eq!(
        why(file("bert", &[("a", NORMAL)])),
        "vocabulary of the kind `bert`, expected one of `gemma4`, `gpt2`, `llama`"
    );
    assert_eq!(why(GgufBuilder::new()), "v.gguf: key `tokenizer.ggml.model` is missing, expected string");
    let bare = || GgufBuilder::new().kv("tokenizer.ggml.model", "gpt2");
    assert_eq!(why(bare()), "v.gguf: key `tokenizer.ggml.tokens` is missing, expected array of string");
    assert_eq!(
        why(bare().kv("tokenizer.ggml.tokens", Kv::Strs(vec![]))),
        "key `tokenizer.ggml.tokens` has 0 elements, expected 1 to 2097152"
    );
    let tokens = || bare().kv("tokenizer.ggml.tokens", Kv::strs(["a", "b", "c"]));
    let short = "elements, expected one for each of 3 tokens";
    let types = why(tokens().kv("tokenizer.ggml.token_type", vec![1i32, 1]));
    assert_eq!(types, format!("key `tokenizer.ggml.token_type` has 2 {short}"));
    for (key, expected) in [
        ("eot_token_id", "u32"),
        ("mask_token_id", "u32"),
        ("unknown_token_id", "u32"),
        ("add_space_prefix", "bool"),
        ("suppress_tokens", "array of i32"),
    ] {
        let wrong = why(tokens().kv(&format!("tokenizer.ggml.{key}"), "x"));
        assert_eq!(wrong, format!("v.gguf: key `tokenizer.ggml.{key}` is string, expected {expected}"));
    }
    let wrong = why(tokens().kv("tokenizer.ggml.token_type", vec![1f32; 3]));
    assert_eq!(wrong, "v.gguf: key `tokenizer.ggml.token_type` is array of f32, expected array of i32");
    // Arrays that say more than is asked are no lie about the tokens that exist.
    let vocab = open(tokens().kv("tokenizer.ggml.token_type", vec![1i32, 3, 77, 4])).expect("long enough");
    assert_eq!(
        (vocab.kind(1), vocab.kind(2), vocab.kind(3)),
        (Some(TokenKind::Control), Some(TokenKind::Undefined), None)
    );
}

#[test]
fn tokens_that_are_not_utf8_stand_for_themselves() {
    let builder = GgufBuilder::new()
        .kv("tokenizer.ggml.model", "gpt2")
        .kv("tokenizer.ggml.tokens", vec![vec![b'a', 0xff], vec![], vec![0xc4]]);
    let vocab = open(builder).expect("bytes are bytes");
    assert_eq!((0..3).map(|id| vocab.token_bytes(id)).collect::<Vec<_>>(), [&[b'a', 0xff][..], b"", &[0xc4]]);
}

#[test]
fn thousands_of_damaged_vocabularies_read_with_bytes_for_every_token_or_are_refused() {
    let tokens =
        [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<0x0A>", BYTE), ("▁é", NORMAL), ("", NORMAL)];
    for model in ["llama", "gpt2"] {
        let builder = file(model, &tokens)
            .kv("tokenizer.ggml.suppress_tokens", vec![1i32, 2])
            .kv("tokenizer.ggml.bos_token_id", 1u32)
            .kv("tokenizer.ggml.eos_token_id", 2u32)
            .kv("tokenizer.ggml.add_space_prefix", true);
        let whole = builder.build();
        let mut damage = Damage::new(7);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let Ok(file) = GgufFile::from_bytes("v.gguf", damage.apply(&whole, whole.len())) else { continue };
            let Ok(vocab) = Vocab::from_metadata(file.metadata()) else {
                refused += 1;
                continue;
            };
            read += 1;
            let (mut state, mut out) = (Detokenizer::new(&vocab, true, true), String::new());
            for id in 0..vocab.n_vocab() as u32 + 1 {
                assert_eq!(vocab.kind(id).is_some(), (id as usize) < vocab.n_vocab());
                state.push(&vocab, id, &mut out);
            }
            assert!(vocab.eog_ids().iter().chain(vocab.suppressed()).all(|id| (*id as usize) < vocab.n_vocab()));
        }
        assert!(read > 1_000 && refused > 500, "{read} read, {refused} refused");
    }
}
