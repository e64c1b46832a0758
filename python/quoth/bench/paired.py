"""Figures with their spread, and two pieces of work timed in turn.

In: callables, or figures. Out: `Spread`s of figures, `Ratio`s of times. The clock is an argument, so that tests are
exact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Clock", "Ratio", "Spread", "alternate", "chance", "quantile", "timed"]

Clock = Callable[[], int]
"""Nanoseconds since some moment."""


@dataclass(frozen=True)
class Spread:
    """A figure that was measured several times."""

    median: float
    """The middle one."""
    low: float
    """25th percentile."""
    high: float
    """75th percentile."""
    n: int
    """How many were measured."""

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Sum up figures; at least one.

        Raises:
            ValueError: There is none.
        """
        ordered = sorted(values)
        return cls(quantile(ordered, 0.5), quantile(ordered, 0.25), quantile(ordered, 0.75), len(ordered))

    def per(self, amount: float) -> Spread:
        """The spread of `amount / figure`: a rate from a time."""
        return Spread(amount / self.median, amount / self.high, amount / self.low, self.n)

    def scaled(self, factor: float) -> Spread:
        """The spread of `figure * factor`, `factor` above 0."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.n)

    @property
    def relative(self) -> float:
        """Width of the spread as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclass(frozen=True)
class Ratio:
    """How the times of two ways compare that ran in pairs.

    The ratio is of the summed times. So it is a mean of the pairs' ratios, weighted by time: it lies between the least
    and the greatest of them, and the ratio of several workloads together lies between the least and the greatest of
    theirs.
    """

    ratio: float
    """Summed time of the one over summed time of the other."""
    low: float
    """The least ratio of a pair."""
    high: float
    """The greatest ratio of a pair."""
    n: int
    """Pairs."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, int]]) -> Ratio:
        """Compare times; at least one pair.

        Args:
            pairs: Times of (the one, the other), each above 0.

        Raises:
            ValueError: There is none.
        """
        if not pairs:
            raise ValueError("expected at least one pair of times, found none")
        ratios = [a / b for a, b in pairs]
        return cls(sum(a for a, _ in pairs) / sum(b for _, b in pairs), min(ratios), max(ratios), len(pairs))


def chance(pairs: Sequence[tuple[int, int]]) -> float:
    """The sign test: how probable so one-sided an outcome is if neither way is faster.

    Args:
        pairs: Times of both ways. A pair of equal times says nothing and is left out.

    Returns:
        The probability, 0 to 1, that of so many pairs at least as many fall on one side, whichever it is, if each falls
        on either side with the same probability. 6 of 6 pairs: 0.031; 3 of 3: 0.25.
    """
    faster, slower = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    n, most = faster + slower, max(faster, slower)
    outcomes = sum(math.comb(n, k) for k in range(most, n + 1))
    return min(1.0, 2 * outcomes / float(2**n))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, linear between neighbours.

    Args:
        ordered: Values, ascending; at least one.
        share: 0 to 1.

    Raises:
        ValueError: There is no value.
    """
    if not ordered:
        raise ValueError("expected at least one value, found none")
    at = (len(ordered) - 1) * share
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def timed(work: Callable[[], object], clock: Clock = time.perf_counter_ns) -> int:
    """Nanoseconds that a piece of work takes."""
    start = clock()
    work()
    return clock() - start


def alternate(
    a: Callable[[], object],
    b: Callable[[], object],
    rounds: int,
    clock: Clock = time.perf_counter_ns,
    reset: Callable[[], object] = lambda: None,
) -> list[tuple[int, int]]:
    """Time two pieces of work in turn: a b, b a, a b, …, so that a drift of the machine falls on both.

    Args:
        a: The one.
        b: The other.
        rounds: How often each is done.
        clock: The clock.
        reset: Called after each piece of work, off the clock.

    Returns:
        Nanoseconds of (a, b), a pair a round.
    """
    pairs = []
    for i in range(rounds):
        times = [0, 0]
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            times[which] = timed((a, b)[which], clock)
            reset()
        pairs.append((times[0], times[1]))
    return pairs
