"""The decode loop with sources that answer at random: right, wrong, impossible, too much, nothing, an error. Whatever
they say, and whatever the caller does between, the tokens are those of a decoder that does not guess.

A case follows from its number alone; `tools/fuzz decode` tries as many as there is time for.
"""

from __future__ import annotations

import importlib.util
import os
import random
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import quoth
from broken import model_bytes
from program import ROOT
from sources import OPEN

CASES = 100
MODELS = ("llama-Q4_K_M", "qwen3-Q2_K", "qwen3moe-Q4_K_M", "gemma3-Q4_K_M")
N_CTX = 96


@cache
def loaded(name: str) -> quoth.Model:
    """A model of `tests/data/models`."""
    file, path = tempfile.mkstemp(suffix=".gguf")
    try:
        with os.fdopen(file, "wb") as out:
            out.write(model_bytes(name))
        return quoth.Model(path, n_ctx=N_CTX, threads=1)
    finally:
        Path(path).unlink()


class Dice:
    """A source that answers at random; what it knows to be right it says half of the time."""

    topk = 4

    def __init__(self, draw: random.Random, n_vocab: int) -> None:
        self.draw, self.n_vocab = draw, n_vocab
        self.stream: list[int] = []
        self.fails = draw.choice([20, 200, 10**9])

    def _call(self) -> None:
        if self.draw.randrange(self.fails) == 0:
            raise RuntimeError("at random")

    def suggest(self, context: list[int], max_tokens: int) -> object:
        self._call()
        draw = self.draw
        n = draw.randrange(3 * max_tokens + 2 if draw.randrange(6) == 0 else max_tokens + 1)
        known = self.stream[len(context) :] if self.stream[: len(context)] == context else []
        found = known[:n] if draw.random() < 0.5 else [draw.randrange(self.n_vocab) for _ in range(n)]
        if found and draw.randrange(3) == 0:
            found[draw.randrange(len(found))] = draw.choice([0, self.n_vocab, self.n_vocab - 1, 2**32 - 1, -1, 2**70])
        return draw.choice([found, found, tuple(found), iter(found), found if found else None])

    def observe(self, committed: list[int]) -> None:
        self._call()

    def observe_topk(self, rows: list[tuple[int, list[int]]]) -> None:
        self._call()

    def truncate_pending(self, n: int) -> None:
        self._call()


def draw_sampling(draw: random.Random) -> quoth.Sampling:
    """Greedy or not, with penalties or not."""
    options: dict[str, float] = {"seed": draw.randrange(2**64)}
    if draw.random() < 0.6:
        options |= {"temperature": draw.choice([0.3, 0.8, 1.5]), "top_k": draw.choice([0, 1, 20])}
        options |= {"top_p": draw.choice([1.0, 0.9]), "min_p": draw.choice([0.0, 0.05])}
    if draw.random() < 0.3:
        options |= {"repeat_penalty": 1.2, "frequency_penalty": 0.3, "repeat_last_n": draw.choice([0, 5, 64])}
    return quoth.Sampling(**options)  # type: ignore[arg-type]


def decode_case(number: int) -> Counter[str]:
    """A few requests to a plain decoder and to one that guesses, with the same answers.

    Returns:
        What was drafted and accepted, and what happened.
    """
    draw = random.Random(f"decode {number}")
    model = loaded(draw.choice(MODELS))
    dice = Dice(draw, model.n_vocab) if draw.random() < 0.7 else None
    max_draft = draw.choice([1, 2, 5, 16, 64])
    options = quoth.Speculation(
        max_draft=max_draft, min_draft=1, source=dice, gate=draw.choice([OPEN, quoth.Gate()]), costs={1: 1.0}
    )
    plain, guess = model.decoder(speculation=None), model.decoder(speculation=options)
    counts: Counter[str] = Counter()
    for _ in range(draw.randrange(1, 6)):
        sampling = draw_sampling(draw)
        plain.sampling = guess.sampling = sampling
        history = list(plain.history)
        kept = draw.randrange(len(history) + 1) if history else 0
        letters = draw.choice([3, 20, model.n_vocab])
        prompt = history[:kept] + [draw.randrange(letters) for _ in range(draw.randrange(1, 30))]
        what = {
            "max_tokens": draw.choice([1, 2, 17, 40]),
            "stop": [draw.randrange(model.n_vocab)] if draw.random() < 0.2 else [],
            "logprobs": draw.choice([None, None, 2]),
            "stop_at_eog": draw.random() < 0.5,
        }
        if dice is None and draw.random() < 0.5:
            guess.add_reference([draw.randrange(letters) for _ in range(draw.randrange(50))])
        if draw.random() < 0.2:
            n = draw.randrange(len(history) + 1)
            plain.rewind(n)
            guess.rewind(n)
        if len(prompt) > N_CTX:
            for decoder in (plain, guess):
                with pytest.raises(quoth.ContextFullError, match=f"do not fit the context of {N_CTX}"):
                    decoder.generate(prompt, **what)  # type: ignore[arg-type]
            counts["full"] += 1
            continue
        expected = plain.generate(prompt, **what)  # type: ignore[arg-type]
        if dice is not None:
            dice.stream = [*prompt, *expected.tokens]
        found = guess.generate(prompt, **what)  # type: ignore[arg-type]
        assert (found.tokens, found.text, found.logprobs) == (expected.tokens, expected.text, expected.logprobs)
        assert (found.finish_reason, found.stats.draws) == (expected.finish_reason, expected.stats.draws)
        assert list(guess.history) == list(plain.history)
        assert guess._core.same_prefix(plain._core, min(plain.cached_tokens, guess.cached_tokens))
        counts += Counter(
            answers=1, tokens=len(found.tokens), drafted=found.stats.drafted, accepted=found.stats.accepted,
            shut=found.stats.gate.reason is not None,
        )  # fmt: skip
    return counts


def test_whatever_a_source_says_at_random_the_tokens_are_those_of_plain_decoding() -> None:
    counts: Counter[str] = Counter()
    for number in range(CASES):
        print(f"case {number}")  # the last one is shown when it fails
        counts += decode_case(number)
    print(dict(counts))
    assert counts["answers"] > 150
    assert counts["accepted"] > 250
    assert counts["drafted"] > 2 * counts["accepted"]
    assert counts["full"] > 0


def test_a_long_run_repeats_cases_by_number_and_names_the_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("long_run", ROOT / "tools" / "long_run.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tried: list[int] = []

    def attempt(number: int) -> Counter[str]:
        tried.append(number)
        assert number != 7
        return Counter(tokens=number)

    monkeypatch.setattr(tool, "cases", lambda target: attempt)
    assert tool.main(["decode", "--only", "3"]) == 0
    assert capsys.readouterr().out == "decode: 1 cases from 3 held: 3 tokens\n"
    assert tool.main(["decode", "60", "--first", "4"]) == 1
    assert tried == [3, 4, 5, 6, 7]
    assert "case 7 failed; to see it again: tools/fuzz decode --only 7" in capsys.readouterr().err
