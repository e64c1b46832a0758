"""The default model answers: real weights, greedy, through the chat template of the file.

A model that is computed wrong in a small way still writes; it writes worse. So what is asked of it is what it does
well: short answers that end by themselves, do not go round in circles, and name the right thing.

The model is small and its file has 4-bit weights: asked for the capital of France it goes round in circles, here and in
llama.cpp alike. The questions below are ones that it answers the same way with every kind of cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import quoth

ANSWERS = [
    ("How many days are there in a week?", "7 days"),
    ("What is the opposite of hot?", "cold"),
    ("What is 2 + 2?", "4"),
    ("What is the capital of Germany?", "Berlin"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is the largest ocean on Earth?", "Pacific"),
    ("What is the first month of the year?", "January"),
    ("What language is spoken in Spain?", "Spanish"),
    ("Explain in two sentences why the sky is blue.", "scatter"),
    ("Give me a short definition of photosynthesis.", "light"),
]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> quoth.Model:
    return quoth.Model(smollm2_path, n_ctx=1024)


def longest_run(tokens: Sequence[int]) -> int:
    """How often a token follows itself at most."""
    best = run = 1 if tokens else 0
    for before, now in pairwise(tokens):
        run = run + 1 if now == before else 1
        best = max(best, run)
    return best


def most_repeated(tokens: Sequence[int], n: int = 4) -> int:
    """How often the most frequent run of `n` tokens stands in the text."""
    runs = Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
    return max(runs.values(), default=0)


def test_circles_are_seen() -> None:
    assert longest_run([]) == 0
    assert longest_run([1, 1, 2, 2, 2, 3]) == 3
    assert most_repeated([1, 2, 3, 4, 5]) == 1
    assert most_repeated([9, *[1, 2, 3, 4] * 6]) == 6


@pytest.mark.parametrize(("question", "answer"), ANSWERS, ids=[answer for _, answer in ANSWERS])
def test_the_default_model_answers_and_ends_by_itself(model: quoth.Model, question: str, answer: str) -> None:
    prompt = model.tokenizer.apply_chat_template([{"role": "user", "content": question}])
    end = model.tokenizer.token_id("<|im_end|>")
    plain = model.decoder(speculation=None).generate(prompt, max_tokens=200)
    assert (plain.finish_reason, plain.stop) == ("stop", end)
    assert end not in plain.tokens
    assert "<|im_end|>" not in plain.text
    assert plain.text == model.tokenizer.decode(plain.tokens)
    assert answer in plain.text
    assert 3 <= len(plain.tokens) <= 150
    assert longest_run(plain.tokens) <= 8
    assert most_repeated(plain.tokens) <= 4
    drafted = model.decoder().generate(prompt, max_tokens=200)
    assert (drafted.tokens, drafted.text, drafted.stop) == (plain.tokens, plain.text, plain.stop)


def test_the_default_model_goes_on_from_text(model: quoth.Model) -> None:
    """Without a template: the model has learnt to count."""
    result = model.decoder().generate("one, two, three, four, five, six,", max_tokens=8)
    assert result.text.startswith(" seven, eight, nine, ten")


def test_the_default_model_goes_on_with_what_it_has_seen_twice(model: quoth.Model) -> None:
    """What speculation is for: the text stands in the prompt, and most of it is drafted."""
    code = (
        "def area(width, height):\n    return width * height\n\n\n"
        "def perimeter(width, height):\n    return 2 * (width + height)\n\n\n"
    )
    options = quoth.Speculation(costs={1: 1.0, 16: 1.0})
    result = model.decoder(speculation=options).generate(2 * code + "def area(width,", max_tokens=32)
    assert result.text.startswith(code.removeprefix("def area(width,")[:90])
    assert result.stats.accepted > len(result.tokens) // 2
    plain = model.decoder(speculation=None).generate(2 * code + "def area(width,", max_tokens=32)
    assert result.tokens == plain.tokens
