"""Plain decoding against speculative decoding on one prompt: equal tokens, and what drafting gains.

In: a model, a prompt, options. Out: both speeds, their ratio, a verdict.

C1  Each run is a fresh decoder, so no run profits from what another cached or learned.
C2  Speeds and ratios are of the summed times of all pairs, so the ratio is the quotient of the two speeds.
C3  A verdict needs a difference beyond chance (`chance` of the pairs at most `MOST_CHANCE`) and a cause: `faster` needs
    accepted tokens, `slower` needs drafted tokens. Without drafts both ways run the same forwards, so any difference is
    the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quoth.bench.paired import Ratio, chance

if TYPE_CHECKING:
    from quoth.decoder import Decoder
    from quoth.results import Result

__all__ = ["LEAST_PAIRS", "MOST_CHANCE", "Comparison", "Difference", "Verdict", "compare", "first_difference"]

MOST_CHANCE = 0.05
"""How probable an outcome may be by chance and still count as a difference: the error rate of a verdict."""

LEAST_PAIRS = 6
"""Pairs below which no outcome is that improbable."""


@dataclass(frozen=True)
class Difference:
    """Where two generations part."""

    at: int
    """Index of the first token that differs."""
    plain: int | None
    """The token of plain decoding; None if it had ended."""
    speculative: int | None
    """The token of speculative decoding; None if it had ended."""


@dataclass(frozen=True)
class Verdict:
    """What pairs of decoding times allow to say."""

    word: str
    """`faster`, `slower` or `no difference`."""
    reason: str
    """What it rests on, in words."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, int]], drafted: int, accepted: int) -> Verdict:
        """Judge.

        Args:
            pairs: Times of (plain, speculative) decoding, each above 0; at least one pair.
            drafted: Drafted tokens of all speculative runs.
            accepted: How many of them were accepted.
        """
        if drafted == 0:
            return cls("no difference", "nothing was drafted, so both ways ran the same forwards")
        by_chance = chance(pairs)
        percent = f"{100 * by_chance:.{0 if by_chance > 0.1 else 1}f} %"
        how_often = f"by chance {percent} of comparisons are as one-sided"
        if by_chance > MOST_CHANCE:
            few = f"{len(pairs)} pairs cannot tell one from chance, {LEAST_PAIRS} can"
            return cls("no difference", few if len(pairs) < LEAST_PAIRS else how_often)
        faster = sum(a > b for a, b in pairs) > len(pairs) / 2
        if faster != (Ratio.of(pairs).ratio > 1):
            return cls("no difference", "most pairs say the contrary of their sum")
        if faster and accepted == 0:
            return cls("no difference", "no drafted token was accepted, so drafting saved no step")
        return cls("faster" if faster else "slower", how_often)


@dataclass(frozen=True)
class Comparison:
    """Pairs of runs."""

    plain: Result
    """The last plain run."""
    speculative: Result
    """The last speculative run."""
    difference: Difference | None
    """The first difference of any two runs; None if all are equal."""
    plain_rate: float
    """Tokens a second of plain decoding over all pairs, the prompt left out."""
    speculative_rate: float
    """Tokens a second of speculative decoding over all pairs, the prompt left out."""
    speedup: Ratio
    """Plain decoding time over speculative decoding time, above 1 where drafting gains."""
    total_speedup: Ratio
    """As `speedup`, the prompt included."""
    verdict: Verdict
    """What the pairs allow to say of decoding."""


def compare(
    plain: Callable[[], Decoder],
    speculative: Callable[[], Decoder],
    run: Callable[[Decoder], Result],
    pairs: int,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Comparison:
    """Run both in turn, plain first in every other pair, and stop at the first difference.

    Args:
        plain: Makes a plain decoder.
        speculative: Makes a speculative one with the same sampling options and seed.
        run: Generates with a decoder.
        pairs: Pairs of runs, at least 1.
        progress: Called with runs done and in all.
    """
    makers = (plain, speculative)
    runs: list[tuple[Result, Result]] = []
    difference = None
    for i in range(pairs):
        results: dict[int, Result] = {}
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            results[which] = run(makers[which]())
            progress(2 * i + len(results), 2 * pairs)
        runs.append((results[0], results[1]))
        difference = first_difference(runs[0][0].tokens, results[0].tokens, results[1].tokens)
        if difference is not None:
            break
    # A generation of one token has no step to time; its speeds are 0 and the ratio is that of the prompts.
    steps = [(max(a.stats.decode_ns, 1), max(b.stats.decode_ns, 1)) for a, b in runs]
    return Comparison(
        plain=runs[-1][0],
        speculative=runs[-1][1],
        difference=difference,
        plain_rate=_rate([a for a, _ in runs]),
        speculative_rate=_rate([b for _, b in runs]),
        speedup=Ratio.of(steps),
        total_speedup=Ratio.of([(_total_ns(a), _total_ns(b)) for a, b in runs]),
        verdict=Verdict.of(steps, sum(b.stats.drafted for _, b in runs), sum(b.stats.accepted for _, b in runs)),
    )


def _rate(runs: Sequence[Result]) -> float:
    """Tokens a second of all runs together, the first token of each left out, as it comes with the prompt."""
    tokens = sum(run.stats.steps * run.stats.tokens_per_step for run in runs)
    return tokens / max(sum(run.stats.decode_ns for run in runs), 1) * 1e9


def _total_ns(result: Result) -> int:
    return max(result.stats.prefill_ns + result.stats.decode_ns, 1)


def first_difference(first: Sequence[int], *others: Sequence[int]) -> Difference | None:
    """Where one of the others parts from the first."""
    for other in others:
        for at in range(max(len(first), len(other))):
            a = first[at] if at < len(first) else None
            b = other[at] if at < len(other) else None
            if a != b:
                return Difference(at, a, b)
    return None
