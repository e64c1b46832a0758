#!/usr/bin/env python3
"""Time to the first token of a conversation's second turn, beside that of the same prompt read from its beginning.

In: a model, a text to take messages from. Out: medians with their spread, as lines of TOML for a record.

M1  A point is a length of the first turn and one of the second message, in tokens. Its runs are pairs: the second turn
    of a conversation that has had its first, and a conversation that reads both at once; which comes first alternates.
M2  Before the clock starts, both must give the same tokens and log-probabilities.
M3  The clock runs from `send` to the first chunk: the template, the tokenizer and the forward pass are in it.
M4  As in `time_start.py`, a pair begins when the cores have been idle for a moment, and is thrown away if others
    were let in between.

    python tools/time_second_turn.py smollm2 tests/data/prose.txt
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import quoth
from time_start import quiet_runs, spread

ANSWER = 8
"""Tokens of an answer."""


def passages(model: quoth.Model, text: str, lengths: Sequence[int]) -> list[str]:
    """Pieces of a text, one behind the other, of about so many tokens."""
    tokens = model.tokenizer.encode(text)
    ends = list(itertools.accumulate(lengths))
    if ends[-1] > len(tokens):
        raise SystemExit(f"the text has {len(tokens)} tokens, expected at least {ends[-1]}")
    return [model.tokenizer.decode(tokens[end - n : end]) for end, n in zip(ends, lengths, strict=True)]


class Point:
    """One length of a first turn and of a second message."""

    def __init__(self, model: quoth.Model, text: str, first: int, second: int) -> None:
        self.model = model
        begun, self.message = passages(model, text, [first, second])
        self.chat = model.conversation(max_tokens=ANSWER)
        self.chat.reply(begun)
        self.turns = 0
        went_on, whole = self._went_on(), self._whole()
        results = [chat.reply(self.message, logprobs=2) for chat in (went_on, whole)]
        same = [(result.tokens, result.logprobs, result.prompt_tokens) for result in results]
        if same[0] != same[1]:
            raise SystemExit("the second turn is not what the whole conversation gives")
        stats = results[0].stats
        self.counts = {"cached_tokens": stats.cached_tokens, "new_tokens": stats.prefill_tokens}
        assert results[1].stats.cached_tokens == 0

    def _went_on(self) -> quoth.Conversation:
        """The conversation after its first turn, with its cache."""
        return self.chat.fork()

    def _whole(self) -> quoth.Conversation:
        """The same conversation, with nothing cached."""
        other = self.chat.fork()
        other.decoder.reset()
        return other

    def run(self) -> dict[str, Any]:
        """A pair of turns: milliseconds to the first token."""
        self.turns += 1
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        found: dict[str, Any] = {}
        for name in ("ms", "whole_ms")[:: 1 if self.turns % 2 else -1]:
            chat = self._went_on() if name == "ms" else self._whole()
            start = time.perf_counter()
            answer = chat.send(self.message)
            next(answer)
            found[name] = (time.perf_counter() - start) * 1e3
            answer.close()
        found["preemptions"] = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
        return found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the straight line through points, by least squares."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time to the first token of a second turn.")
    parser.add_argument("model", help="a GGUF file or a model's name")
    parser.add_argument("text", type=Path, help="a text to take messages from")
    parser.add_argument("--first", type=int, nargs="+", default=[128, 512, 2048], help="tokens of the first message")
    parser.add_argument("--second", type=int, nargs="+", default=[8, 64, 256], help="tokens of the second")
    parser.add_argument("--pairs", type=int, default=5, help="pairs that count (5)")
    parser.add_argument("--most-preemptions", type=int, default=40, help="a pair with more is thrown away (40)")
    parser.add_argument("--patience", type=float, default=300, help="seconds to wait for quiet, for each point (300)")
    args = parser.parse_args(argv)

    model = quoth.Model(args.model)
    text = args.text.read_text(encoding="utf-8")
    print(f'threads = {model.threads}\nkernels = "{model.kernels}"\nkv_type = "{model.kv_type}"\npairs = {args.pairs}')
    print("points = [")
    lines: dict[int, list[tuple[float, float]]] = {}
    thrown = 0
    for first, second in itertools.product(args.first, args.second):
        point = Point(model, text, first, second)
        kept, bad = quiet_runs(point.run, args.pairs, args.most_preemptions, time.monotonic() + args.patience)
        thrown += bad
        if len(kept) < args.pairs:
            print(f"{len(kept)} quiet pairs in {args.patience:.0f} s: the machine is busy", file=sys.stderr)
            return 1
        counts = ", ".join(f"{name} = {n}" for name, n in point.counts.items())
        times = ", ".join(f"{name} = {spread([run[name] for run in kept], 1)}" for name in ("ms", "whole_ms"))
        print(f"    {{ {counts}, {times} }},", flush=True)
        middle = statistics.median(run["ms"] for run in kept)
        lines.setdefault(point.counts["cached_tokens"], []).append((point.counts["new_tokens"], middle))
    print(f"]\npairs_thrown_away = {thrown}")
    if len(args.second) > 1:
        slopes = ", ".join(f"{{ cached_tokens = {n}, ms = {slope(line):.3f} }}" for n, line in lines.items())
        print(f"a_new_token = [{slopes}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
