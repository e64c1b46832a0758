"""Fast encoding equals slow encoding: the definitions written out plainly, and other programs, on long mixed texts."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoth.errors import TokenizerError
from quoth.tokenizer import Tokenizer
from quoth.vocabulary import bpe
from quoth.vocabulary.bpe import MergeEncoder, _pre_tokenizer
from quoth.vocabulary.splitters import EACH_NUMBER, SPLITTERS, splitter
from quoth.vocabulary.tokens import TokenTable
from vocabularies import (
    NaiveMerges,
    mixed_text,
    naive_scores,
    pieces,
    read_metadata,
    sentencepiece_model,
    tiny_vocabulary,
    vocabulary,
)

SAMPLES = [
    "Hello WORLD, it's 1234567 x12 \u4e2d\u6587\u6f22\u5b57abc'LL   \n\n  (x):\n\ttabs\r\n\r\n'Tis I'D 'sS",
    "  a\u00a0b\u3000c \u0c87\u0c82 e\u0301a\u0308 \u0e1c\u0e39\u0e49 \u10d0\u10d1 \u00b5\u212b\u2126 ",
    "\u01c5\u02b0 \uff21\uff5a\uff01\u3002 42 \u4e2d\uff0c\u3002\u3001\u0964\u06d4\u060c",
    "<sentinel:12>IMGIMGABCZ $+<=>^~|` ... \u2026\u201cq\u201d\u2014 1,000,000.00 v1.2.3 \u00bd\u2167 ",
    "\u1100\u1161 \u0628\u0650\u0633\u0652 \ua000\u2f00 \u1780\u1000 \u3105\u31a0 \ufe30\uff65 \uac00\ub098\ub2e4",
    "camelCaseHTTPServer2Go snake_case __init__ -> :: && || ;; {}();  \n \n\n   end   ",
    "",
    " ",
    "\n",
]  # fmt: skip


def word_pieces(text: str, name: str) -> list[str]:
    return pieces(text, splitter(name).steps, EACH_NUMBER)


@pytest.mark.parametrize("name", sorted(SPLITTERS))
def test_each_splitter_cuts_as_its_expressions_say(name):
    cuts = splitter(name)
    fast = _pre_tokenizer(cuts)
    alphabet = {character: byte for byte, character in enumerate(byte_alphabet())}
    for text in SAMPLES:
        found = [piece for piece, _ in fast.pre_tokenize_str(text)]
        if not cuts.metaspace:
            found = [bytes(alphabet[character] for character in piece).decode() for piece in found]
        assert found == word_pieces(text, name), text
        assert "".join(found) == text


RUNS = [" ", "\n", "\r\n", "7", "x", "X", "xY", ".", "\u4e2d", "e\u0301", "'s", "a ", " \n", "-1 "]


@pytest.mark.parametrize("name", sorted({cuts: name for name, cuts in SPLITTERS.items()}.values()))
def test_a_text_in_windows_has_the_ids_of_the_whole(name, monkeypatch):
    cuts = splitter(name)
    metadata = tiny_vocabulary("gemma4") if cuts.metaspace else vocabulary("gpt-2")
    table = TokenTable(metadata, byte_alphabet=not cuts.metaspace)
    encoder = MergeEncoder(table, metadata["tokenizer.ggml.merges"], cuts)
    draw = random.Random(1)
    runs = [draw.choice(RUNS) * draw.randrange(1, 99) for _ in range(60)]
    text = "".join([*SAMPLES, *runs, " " * 1100, *SAMPLES[::-1], mixed_text(20_000)])
    whole = encoder.encode(text)
    for window in (37, 97, 300, 1000):
        monkeypatch.setattr(bpe, "_WINDOW", window)
        assert encoder.encode(text) == whole
    monkeypatch.setattr(bpe, "_WINDOW", 1)
    assert (
        encoder.encode(text[:500])
        == encoder._tokenizer.encode(text[:500].replace(" ", "\u2581" if cuts.metaspace else " ")).ids
    )


def byte_alphabet() -> list[str]:
    tokens: dict[str, int] = {}
    for byte in range(256):
        character = chr(byte)
        tokens[
            character if character.isprintable() and character != " " else chr(256 + sum(t > "\xff" for t in tokens))
        ] = byte
    return list(tokens)


TWINS = ["gpt-2", "qwen2", "llama-bpe", "qwen35"]


@pytest.mark.parametrize("name", TWINS)
def test_a_megabyte_encodes_as_joining_pairs_one_by_one_does(name):
    metadata = vocabulary(name)
    text = mixed_text()
    tokenizer = Tokenizer.from_metadata(metadata)
    cuts = splitter(tokenizer.pre)
    twin = NaiveMerges(metadata, byte_alphabet=True, whole_words=cuts.whole_words)
    expected = [id for word in word_pieces(text, tokenizer.pre) for id in twin.word(word)]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == text


def test_gemma4_encodes_as_joining_pairs_one_by_one_does():
    metadata = vocabulary("gemma-4")
    text = mixed_text(300_000)
    twin = NaiveMerges(metadata, byte_alphabet=False, whole_words=False)
    spaced = text.replace(" ", "\u2581")
    expected = [id for word in pieces(spaced, [r"[^\n]+|\n+"], EACH_NUMBER) for id in twin.word(word)]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == text


def test_smollm2_encodes_as_joining_pairs_one_by_one_does(smollm2_metadata):
    text = mixed_text().replace("\x1f", "").replace("\x1d", "")
    tokenizer = Tokenizer.from_metadata(smollm2_metadata)
    twin = NaiveMerges(smollm2_metadata, byte_alphabet=True, whole_words=False)
    expected = [id for word in word_pieces(text, "smollm") for id in twin.word(word)]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == text


@pytest.fixture(scope="session")
def smollm2_metadata(request):
    try:
        path = request.getfixturevalue("smollm2_path")
    except pytest.FixtureLookupError:
        pytest.skip("no fixture `smollm2_path` gives the default model's file")
    return read_metadata(path)


def test_a_megabyte_encodes_as_sentencepiece_does():
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    metadata = vocabulary("llama-spm")
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(metadata))
    tokenizer = Tokenizer.from_metadata(metadata)
    text = mixed_text()
    lines = text.split("\n")
    assert [tokenizer.encode(line, add_space_prefix=False) for line in lines] == reference.encode(lines)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids == reference.encode(" " + text)


def test_joining_by_score_equals_the_definition_on_texts_full_of_ties():
    metadata = vocabulary("llama-spm")
    tokenizer = Tokenizer.from_metadata(metadata)
    draw = random.Random(5)
    text = mixed_text(100_000)
    for trial in range(300):
        start = draw.randrange(len(text) - 120)
        sample = text[start : start + draw.randrange(1, 120)]
        if trial % 3 == 0:
            sample = "".join(draw.choice(["a", "b", " ", "  ", "=", "\n", "0"]) for _ in range(draw.randrange(1, 60)))
        assert tokenizer.encode(sample, add_space_prefix=False) == naive_scores(metadata, sample), sample


SMALL = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [
        "<unk>",
        "a",
        "b",
        "\u2581",
        "aa",
        "ab",
        "ba",
        "aaa",
        "aba",
        "bb",
        "\u2581a",
        "a\u2581",
        "aab",
    ]
    + [f"<0x{byte:02X}>" for byte in range(256)],
    "tokenizer.ggml.scores": [0.0, -9, -9, -9, -2, -2, -2, -1, -1, -3, -2, -2, -1] + [0.0] * 256,
    "tokenizer.ggml.token_type": [2] + [1] * 12 + [6] * 256,
    "tokenizer.ggml.add_space_prefix": False,
}


@given(st.text(alphabet="ab c", max_size=24))
@settings(max_examples=400, deadline=None)
def test_joining_by_score_takes_the_leftmost_of_equals(text):
    assert Tokenizer.from_metadata(SMALL).encode(text) == naive_scores(SMALL, text)


@pytest.mark.parametrize("name", ["gpt-2", "qwen2", "llama3", "qwen35", "llama", "gemma3", "gemma4"])
@given(text=st.text())
@settings(max_examples=150, deadline=None)
def test_decoding_gives_back_every_text_and_so_do_the_bytes_of_its_tokens(name, text):
    tokenizer = made(name)
    if tokenizer.model != "gpt2":
        text = text.replace("\u2581", "_")  # in these vocabularies this character is the space
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


MADE: dict[str, Tokenizer] = {}


def made(name: str) -> Tokenizer:
    if name not in MADE:
        MADE[name] = Tokenizer.from_metadata(vocabulary(name) if name == "gpt-2" else tiny_vocabulary(name))
    return MADE[name]


@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=200, deadline=None)
def test_a_stream_gives_the_same_text_wherever_its_tokens_are_parted_and_only_whole_characters(text, cuts):
    tokenizer = made("gpt-2")
    ids = tokenizer.encode(text)
    stream = tokenizer.stream()
    edges = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    parts = [stream.push(ids[a:b]) for a, b in pairwise(edges)]
    assert "".join(parts) == text
    assert stream.finish() == ""
    assert "".join([stream.push(id) for id in ids]) == text
    assert not any("\ufffd" in part for part in parts) or "\ufffd" in text


@given(st.lists(st.integers(0, 50256), max_size=30))
@settings(max_examples=200, deadline=None)
def test_a_stream_of_any_tokens_is_what_decoding_them_at_once_gives(ids):
    tokenizer = made("gpt-2")
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids)


def test_a_stream_holds_back_the_bytes_of_a_character_until_it_is_whole():
    tokenizer = made("qwen2")
    ids = tokenizer.encode("\U0001f44d")
    assert len(ids) == 4
    stream = tokenizer.stream()
    assert [stream.push(id) for id in ids] == ["", "", "", "\U0001f44d"]
    assert [stream.push(ids[0]), stream.finish()] == ["", "\ufffd"]
    with pytest.raises(TokenizerError):
        stream.push(tokenizer.n_vocab)
