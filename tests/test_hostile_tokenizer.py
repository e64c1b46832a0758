"""Values by a stranger under each key make a tokenizer that works, or are refused by name; ids by a stranger as well.

Thousands of vocabularies that lie are tried in Rust (`rust/engine/tests/hostile/tokenizer.rs`).
"""
# ruff: noqa: E501, PT017, PERF203  tables of oddities; errors are one of two good ends

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from quoth.errors import TokenizerError
from quoth.tokenizer import Tokenizer
from vocabularies import tiny_vocabulary

TEXT = "Hello, <s>w\u00f6rld</s>!  \n 3333"
# What a file can hold: numbers, booleans, texts, and lists of one of these. Text that is not UTF-8 arrives as bytes.
ODD: list[Any] = [
    True, 0, -1, 1 << 40, (1 << 64) - 1, 2.5, math.nan, math.inf, "", "x", b"\xff\xfe", "gpt2", "llama", "gemma4", "qwen2", "llama-bpe",
    "a" * 10_000, [], [1], ["a"], [2.5], [True], ["a"] * 512, [1] * 512, [-5] * 512, [0.5] * 512, [math.nan] * 512, [True] * 512,
]  # fmt: skip


@pytest.mark.parametrize("name", ["qwen2", "llama", "gemma4"])
def test_odd_values_are_refused_by_name_or_change_nothing_that_is_promised(name: str) -> None:
    refused = used = 0
    for key in [key for key in tiny_vocabulary(name) if key.startswith("tokenizer.ggml.")]:
        for value in ODD:
            try:
                tokenizer = Tokenizer.from_metadata({**tiny_vocabulary(name), key: value})
                ids = tokenizer.encode(TEXT, special=True, errors="ignore")
                assert all(0 <= id < tokenizer.n_vocab for id in ids)
                assert isinstance(tokenizer.decode(ids, skip_special=False), str)
                assert repr(tokenizer)
                used += 1
            except TokenizerError as error:
                assert 0 < len(str(error)) < 2000, (key, value)
                refused += 1
    assert used > 10
    assert refused > 100


@pytest.mark.parametrize("name", ["qwen2", "llama", "gemma4"])
def test_random_ids_and_parts_of_texts_decode_to_the_same_at_once_and_in_a_stream(name: str) -> None:
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary(name))
    draw = random.Random(5)
    for _ in range(300):
        ids = [draw.randrange(tokenizer.n_vocab) for _ in range(draw.randrange(60))]
        at_once = tokenizer.decode(ids, strip_prefix=False)
        stream = tokenizer.stream()
        pieces = [stream.push(id) for id in ids]
        assert "".join(pieces) + stream.finish() == at_once
        bad = draw.choice([-1, tokenizer.n_vocab, 1 << 70])
        with pytest.raises(TokenizerError, match="token"):
            tokenizer.decode([*ids, bad])
        with pytest.raises(TokenizerError, match="token"):
            stream.push(bad)
