"""Plain decoding against speculative decoding on one prompt: equal tokens, and what drafting gains.

In: a model, a prompt, options. Out: both speeds, the ratio of each pair. Every run is a fresh decoder, so none profits
from what another cached or learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quoth.bench.paired import Spread

if TYPE_CHECKING:
    from quoth.decoder import Decoder
    from quoth.results import Result

__all__ = ["Comparison", "Difference", "compare", "first_difference"]


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
class Comparison:
    """Pairs of runs."""

    plain: Result
    """The last plain run."""
    speculative: Result
    """The last speculative run."""
    difference: Difference | None
    """The first difference of any two runs; None if all are equal."""
    plain_rate: Spread
    """Tokens a second of plain decoding, the prompt left out."""
    speculative_rate: Spread
    """Tokens a second of speculative decoding, the prompt left out."""
    speedup: Spread
    """Ratio of the decoding times of each pair, above 1 where drafting gains."""
    total_speedup: Spread
    """As `speedup`, the prompt included."""

    @property
    def verdict(self) -> str:
        """What the spread allows to say: `faster`, `slower` or `no difference`."""
        if self.speedup.low > 1:
            return "faster"
        return "slower" if self.speedup.high < 1 else "no difference"


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
    times: list[tuple[Result, Result]] = []
    difference = None
    for i in range(pairs):
        results: dict[int, Result] = {}
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            results[which] = run(makers[which]())
            progress(2 * i + len(results), 2 * pairs)
        times.append((results[0], results[1]))
        difference = first_difference(times[0][0].tokens, results[0].tokens, results[1].tokens)
        if difference is not None:
            break
    # A generation of one token has no step to time; its speeds are 0 and the ratio is that of the prompts.
    steps = [(max(a.stats.decode_ns, 1), max(b.stats.decode_ns, 1)) for a, b in times]
    whole = [(_total_ns(a), _total_ns(b)) for a, b in times]
    return Comparison(
        plain=times[-1][0],
        speculative=times[-1][1],
        difference=difference,
        plain_rate=Spread.of(a.stats.tokens_per_second for a, _ in times),
        speculative_rate=Spread.of(b.stats.tokens_per_second for _, b in times),
        speedup=Spread.of(a / b for a, b in steps),
        total_speedup=Spread.of(a / b for a, b in whole),
    )


def _total_ns(result: Result) -> int:
    return result.stats.prefill_ns + result.stats.decode_ns


def first_difference(first: Sequence[int], *others: Sequence[int]) -> Difference | None:
    """Where one of the others parts from the first."""
    for other in others:
        for at in range(max(len(first), len(other))):
            a = first[at] if at < len(first) else None
            b = other[at] if at < len(other) else None
            if a != b:
                return Difference(at, a, b)
    return None
