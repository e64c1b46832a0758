"""`DraftIndex` without a model: drafts quote what followed the longest repeated end, found by looking everywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import quoth


def longest_repeated_end(stream: Sequence[int]) -> tuple[int, set[int]]:
    """How many tokens at the end occur earlier, too, and what followed there."""
    length, follows = 0, set()
    for end in range(1, len(stream)):
        n = 0
        while n < end and stream[end - 1 - n] == stream[-1 - n]:
            n += 1
        if n > length:
            length, follows = n, set()
        if n and n == length:
            follows.add(stream[end])
    return length, follows


def streams() -> dict[str, list[int]]:
    """Small alphabets, and streams that are hard for an index."""
    dice, n = random.Random(3), 220
    a, b = [0], [0, 1]
    while len(b) < n:
        a, b = b, b + a
    word, de_bruijn = [0], []
    while word:  # the Lyndon words of 2 letters whose lengths divide 7
        if 7 % len(word) == 0:
            de_bruijn += word
        word = (word * 7)[:7]
        while word and word[-1] == 1:
            word.pop()
        if word:
            word[-1] += 1
    return {
        **{f"random {m}": [dice.randrange(m) for _ in range(n)] for m in (2, 5, 31)},
        "periodic": [i % 7 if i != 90 else 30 for i in range(n)],
        "Fibonacci": b[:n],
        "de Bruijn": de_bruijn,
    }


@pytest.mark.parametrize("name", streams())
def test_a_draft_begins_as_the_longest_repeated_end_went_on_after_every_token(name: str) -> None:
    stream = streams()[name]
    index = quoth.DraftIndex(64, costs={1: 1.0}, min_match=2, recycling=False)
    drafted = 0
    for i, token in enumerate(stream):
        index.observe([token])
        length, follows = longest_repeated_end(stream[: i + 1])
        draft = index.suggest(max_tokens=4)
        assert not draft or (length >= 2 and draft[0] in follows), f"{draft} after {i + 1} tokens"
        drafted += bool(draft)
        index.truncate_pending(0)  # not verified here
    assert len(index) == len(stream)
    assert drafted > len(stream) // 3 or name == "random 31"


def test_a_repetition_is_drafted_past_the_end_of_the_stream_and_a_reference_to_its_own() -> None:
    index = quoth.DraftIndex(100, costs={1: 1.0}, min_match=2, recycling=False)
    index.observe([9, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    assert index.suggest(max_tokens=7) == [1, 2, 3, 1, 2, 3, 1]
    index.rebuild([50, 51, 52])
    assert index.suggest() == []
    index.add_reference([7, 51, 52, 60, 61])
    assert index.suggest() == [60, 61]
    index.clear_references()
    assert index.suggest() == []


def test_an_index_of_text_takes_at_most_64_bytes_a_token() -> None:
    """Bytes of prose as tokens: fewer different tokens, so more edges a token than words have."""
    text = (Path(__file__).parent / "data" / "prose.txt").read_bytes()
    index = quoth.DraftIndex(256)
    index.observe(list(text))
    assert index.n_bytes / len(text) <= 64
