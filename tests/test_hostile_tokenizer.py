"""A vocabulary by a stranger makes a tokenizer that keeps its promises, or is refused by name; so do ids and bytes by a stranger."""
# ruff: noqa: E501, PT017  tables of oddities; errors are one of two good ends

from __future__ import annotations

import math
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from quoth.errors import TokenizerError
from quoth.tokenizer import Tokenizer
from vocabularies import tiny_vocabulary

CASES = 1500
MOST_BYTES = 100_000_000
TEXTS = [
    "Hello, world! It's 3333+777 = 4110.",
    "  \n\t é\u0301 \u4e2d\u6587 \U0001f44d\u200d\U0001f469 \x00\x7f \ufffd",
    "<s></s><|im_start|>user<unk><0x41>\u2581\u0120",
    "",
    "a" * 300,
]
# What a file can hold: numbers, booleans, texts, and lists of one of these. Text that is not UTF-8 arrives as bytes.
ODD: list[Any] = [
    True, 0, -1, 1 << 40, (1 << 64) - 1, 2.5, math.nan, math.inf, "", "x", b"\xff\xfe", "gpt2", "llama", "gemma4", "qwen2", "llama-bpe",
    "a" * 10_000, [], [1], ["a"], [2.5], [True], ["a"] * 512, [1] * 512, [-5] * 512, [0.5] * 512, [math.nan] * 512, [True] * 512,
]  # fmt: skip
OF_A_KIND: dict[type, list[Any]] = {
    int: [0, 1, 2, 3, 4, 5, 6, 7, -1, 1 << 31, 1 << 63],
    float: [0.0, -1.0, math.nan, math.inf, -math.inf, 1e38],
    bool: [True, False],
    str: [
        "", " ", "a", "a", "</s>", "\u2581", "\u0120", "<0x41>", "<0x4", "\ufffd", "x" * 5000, "\x00", "<|im_end|>", "\u00e9", "a b",
        "ab", "  ", "a  b", "a b c", "\u0120 a", "zz zz", "b a", " a", b"\xff", b"a \xc3",
    ],
}  # fmt: skip


def draw_list(draw: random.Random, old: list[Any]) -> list[Any]:
    """A list that lies in some places, or is shorter, longer or in another order."""
    new = list(old)
    odd = OF_A_KIND[type(old[0]) if old else str]
    for _ in range(draw.randrange(1, 4)):
        kind = draw.randrange(7)
        if not new:
            return [draw.choice(odd)]
        at = draw.randrange(len(new))
        if kind < 2:
            new[at] = draw.choice(odd)
        elif kind == 2:
            new[at] = draw.choice(new)
        elif kind == 3:
            del new[at]
        elif kind == 4:
            new.insert(at, draw.choice(odd))
        elif kind == 5:
            del new[draw.randrange(len(new)) :]
        else:
            draw.shuffle(new)
    return new


def damaged(metadata: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Metadata with one to three lies."""
    new = dict(metadata)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        key = draw.choice([key for key in new if key.startswith("tokenizer.")] or ["tokenizer.ggml.model"])
        old = new.get(key)
        kind = draw.randrange(6)
        if kind == 0:
            new.pop(key, None)
        elif kind < 4 and isinstance(old, list):
            new[key] = draw_list(draw, old)
        elif kind < 5:
            new[key] = draw.choice([draw.choice(ODD), 511, 512, "default", "gpt2", "llama", "gemma4"])
        else:
            role = draw.choice(["bos", "eos", "eot", "eom", "unknown", "padding", "fim_pad", "mask"])
            new[f"tokenizer.ggml.{role}_token_id"] = draw.choice([0, 5, 511, 512, -1, 1 << 33, 2.0, "1", True])
    return new


def use(tokenizer: Tokenizer, draw: random.Random) -> int:
    """All that users do with a tokenizer; says how many of its promises were put to the test."""
    promises = 0
    for text in TEXTS:
        for special in (False, True):
            ids = tokenizer.encode(text, special=special, errors="ignore")
            assert all(0 <= id < tokenizer.n_vocab for id in ids)
            decoded = tokenizer.decode(ids, skip_special=False)
            assert isinstance(decoded, str)
        try:
            ids = tokenizer.encode(text, add_space_prefix=False)
        except TokenizerError as error:
            assert "no token for U+" in str(error)
        else:
            shown = b"".join(map(tokenizer.token_bytes, ids))
            # Two tokens may have one text, and a vocabulary by a stranger may spell bytes as it likes; then the bytes still show as they are.
            assert tokenizer.decode(ids, skip_special=False, strip_prefix=False) == shown.decode("utf-8", "replace")
            promises += shown == text.encode()
    ids = [draw.randrange(tokenizer.n_vocab) for _ in range(40)]
    stream = tokenizer.stream()
    assert "".join([*(stream.push(id) for id in ids), stream.finish()]) == tokenizer.decode(ids, strip_prefix=False)
    assert tokenizer.eog_ids <= set(range(tokenizer.n_vocab))
    assert repr(tokenizer)
    for id in (tokenizer.bos_id, tokenizer.eos_id):
        assert id is None or 0 <= id < tokenizer.n_vocab
    assert all(isinstance(text, str) for text in tokenizer.special_tokens.values())
    return promises


def vocabulary_case(number: int) -> Counter[str]:
    """A damaged vocabulary; the case follows from its number alone.

    Returns:
        What became of it, and how many promises were put to the test.
    """
    draw = random.Random(number)
    name = draw.choice(["qwen2", "llama", "llama3", "gemma3", "gemma4", "qwen35"])
    metadata = damaged(tiny_vocabulary(name), draw)
    counts: Counter[str] = Counter()
    try:
        tokenizer = Tokenizer.from_metadata(metadata)
        counts["made"] += 1
        counts["promises kept"] += use(tokenizer, draw)
        counts["used"] += 1
    except TokenizerError as error:
        counts["refused"] += 1
        assert 0 < len(str(error)) < 2000, (number, len(str(error)))
    except BaseException as error:
        raise AssertionError(f"case {number} of {name}: {type(error).__name__}: {error}") from error
    return counts


def test_a_damaged_vocabulary_is_refused_by_name_or_keeps_its_promises() -> None:
    counts: Counter[str] = Counter()
    slowest, largest = 0.0, 0
    tracemalloc.start()
    for number in range(CASES):
        tracemalloc.reset_peak()
        before, start = tracemalloc.get_traced_memory()[0], time.thread_time()
        counts += vocabulary_case(number)
        slowest = max(slowest, time.thread_time() - start)
        largest = max(largest, tracemalloc.get_traced_memory()[1] - before)
        assert largest < MOST_BYTES, number
        assert slowest < 3, number  # tracing memory takes two thirds of it
    tracemalloc.stop()
    print(f"{CASES} vocabularies: {dict(counts)}, slowest {slowest:.2f} s, largest {largest >> 10} KB")
    assert counts["used"] > 300
    assert counts["refused"] > 300
    assert counts["promises kept"] > 1000


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


LONG: list[tuple[str, Callable[[], dict[str, Any]]]] = [
    # Joining is n log n: a text of one letter and merges that double it are the worst that a file can ask for.
    ("merges of one letter", lambda: one_letter(merges=True)),
    ("scores of one letter", lambda: one_letter(merges=False)),
]


def one_letter(merges: bool) -> dict[str, Any]:
    """A vocabulary of powers of one letter."""
    tokens = ["a" * (1 << n) for n in range(14)]
    if merges:
        pairs = [f"{token} {token}" for token in tokens[:-1]]
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": pairs,
        }
    scores = [float(n) for n in range(len(tokens))]
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores}


@pytest.mark.parametrize(("name", "metadata"), LONG, ids=[name for name, _ in LONG])
def test_a_text_and_a_vocabulary_made_to_be_slow_take_time_in_proportion(
    name: str, metadata: Callable[[], dict[str, Any]]
) -> None:
    tokenizer = Tokenizer.from_metadata(metadata())
    tokenizer.encode("a", add_space_prefix=False)

    def seconds(n: int) -> float:
        start = time.thread_time()
        ids = tokenizer.encode("a" * n, add_space_prefix=False)
        assert sum(len(tokenizer.token_bytes(id)) for id in ids) == n
        return time.thread_time() - start

    assert min(seconds(1 << 16) for _ in range(3)) < 1
