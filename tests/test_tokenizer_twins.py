"""Encoding equals what other programs make of long texts; decoding gives every text back, at once and in a stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoth.errors import TokenizerError
from quoth.tokenizer import Tokenizer
from vocabularies import Metadata, mixed_text, sentencepiece_model, tiny_vocabulary, vocabulary

SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACE = r"\s+(?!\S)|\s+"
BEHIND = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{SPACE}"
WORDS = {
    "gpt-2": rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{SPACE}",
    "qwen2": rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{BEHIND}",
    "llama-bpe": rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{BEHIND}",
}


@pytest.mark.parametrize("name", WORDS)
def test_a_megabyte_encodes_as_hf_tokenizers_does(name: str) -> None:
    metadata = vocabulary(name)
    text = mixed_text()
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode(text)
    assert ids == hf_ids(metadata, WORDS[name], text, whole_words=name == "llama-bpe")
    assert tokenizer.decode(ids) == text


def hf_ids(metadata: Metadata, words: str, text: str, *, whole_words: bool) -> list[int]:
    """What HF tokenizers makes of a text, with the same vocabulary, merges and words, without special tokens."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    ids = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [(merge[: (at := merge.index(" ", 1))], merge[at + 1 :]) for merge in metadata["tokenizer.ggml.merges"]]
    reference = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=merges, ignore_merges=whole_words))
    steps = tokenizers.pre_tokenizers
    split = steps.Split(tokenizers.Regex(words), "isolated")
    reference.pre_tokenizer = steps.Sequence([split, steps.ByteLevel(add_prefix_space=False, use_regex=False)])
    found: list[int] = reference.encode(text, add_special_tokens=False).ids
    return found


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
