"""What verifying a draft costs, in plain steps: the table that the gate decides by.

In: a model. Out: cost by length of the draft, to the cost table of this machine.

V1  Verifying k drafted tokens is a forward of k + 1 rows, a plain step one of one row. Each is timed beside a plain
    step of its own, in alternating order, and the cost is the median of the pairs' ratios.
V2  Both are what a greedy decoder does: of a row it keeps the most probable tokens alone, one in a plain step, and as
    many as sources learn from in a verification. Drafting itself and the index are microseconds, and left out; where
    tokens are drawn, sampling takes longer for each row. The gate corrects the table by what it sees.
V3  The session is rewound after each forward, so all of them begin at the same position.
V4  Before the clock starts the rows of the longest forward are compared, bit for bit, with rows computed one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from quoth.bench.paired import Clock, Spread, alternate
from quoth.errors import InternalError, OptionsError

if TYPE_CHECKING:
    from quoth.model import Model, Session

__all__ = ["DRAFTS", "DraftCost", "VerifyCosts", "cost_table", "verify_costs"]

WIDTH = 8
"""Tokens of a verified row that sources learn from."""

DRAFTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Lengths that are measured."""


@dataclass(frozen=True)
class DraftCost:
    """The cost of verifying drafts of one length."""

    k: int
    """Drafted tokens."""
    cost: Spread
    """In plain steps."""
    ns: Spread
    """Nanoseconds."""


@dataclass(frozen=True)
class VerifyCosts:
    """The costs at one length of context."""

    n_cached: int
    """Tokens that are cached before the step."""
    plain_ns: Spread
    """The plain step."""
    noise: Spread
    """A plain step in plain steps: how far 1 can be from 1 here."""
    drafts: tuple[DraftCost, ...]
    """By rising length."""


def verify_costs(
    model: Model,
    n_cached: int = 256,
    *,
    drafts: Sequence[int] = DRAFTS,
    rounds: int = 15,
    progress: Callable[[int, int], object] = lambda done, total: None,
    clock: Clock = time.perf_counter_ns,
) -> VerifyCosts:
    """Measure at one length of context.

    Args:
        model: The model; its `n_ctx` must hold the context and the longest draft.
        n_cached: Tokens to cache before the steps, at least 0.
        drafts: Lengths of drafts, each at least 1.
        rounds: Pairs for each length, at least 1.
        progress: Called with lengths done and in all.
        clock: The clock.

    Raises:
        OptionsError: A length is out of range, or `n_ctx` too small.
    """
    lengths = sorted(set(drafts))
    if not lengths or lengths[0] < 1 or rounds < 1 or n_cached < 0:
        raise OptionsError(
            f"drafts are {list(drafts)}, rounds {rounds}, n_cached {n_cached}: expected positive numbers"
        )
    needed = n_cached + lengths[-1] + 1
    if needed > model.n_ctx:
        raise OptionsError(f"n_ctx is {model.n_ctx}, expected {needed}: {n_cached} cached, {lengths[-1]} drafted, one")
    tokens = _tokens(model.n_vocab, needed)
    session = model.session()
    if n_cached:
        session.forward(tokens[:n_cached], rows="last")
    row, rest = tokens[n_cached : n_cached + 1], tokens[n_cached:]
    check_rows(session, rest)

    def rewind() -> None:
        session.truncate(n_cached)

    def plain() -> None:
        session._session.best(row, 1)

    def verify(tokens: list[int]) -> None:
        session._session.best(tokens, WIDTH)

    timings: dict[int, list[tuple[int, int]]] = {}
    for done, k in enumerate((0, *lengths)):
        progress(done, len(lengths) + 1)
        other = partial(verify, rest[: k + 1]) if k else plain
        timings[k] = alternate(plain, other, rounds, clock, rewind)
    progress(len(lengths) + 1, len(lengths) + 1)
    points = {k: DraftCost(k, _ratio(pairs), Spread.of(b for _, b in pairs)) for k, pairs in timings.items()}
    plain_ns = Spread.of(a for pairs in timings.values() for a, _ in pairs)
    return VerifyCosts(n_cached, plain_ns, points.pop(0).cost, tuple(points.values()))


def cost_table(measured: Sequence[VerifyCosts]) -> Mapping[int, float]:
    """The gate's table: cost by length of the draft, the mean over the lengths of context.

    A verification does all that a plain step does, so what is below 1 is noise and becomes 1.
    """
    lengths = sorted({point.k for costs in measured for point in costs.drafts})
    means = {k: fmean(p.cost.median for costs in measured for p in costs.drafts if p.k == k) for k in lengths}
    return {k: max(1.0, cost) for k, cost in means.items()}


def check_rows(session: Session, tokens: Sequence[int]) -> None:
    """Compare the rows of one forward with those of one forward a token, bit for bit; the session is as before.

    Raises:
        InternalError: They differ, and a cost would be the cost of something else.
    """
    start = len(session)
    together = session.forward(tokens)
    session.truncate(start)
    for i, token in enumerate(tokens):
        alone = session.forward([token])
        if alone.tobytes() != together[i].tobytes():
            raise InternalError(f"row {i} of {len(tokens)} differs from the same row computed alone")
    session.truncate(start)


def _ratio(pairs: Sequence[tuple[int, int]]) -> Spread:
    return Spread.of(b / a for a, b in pairs)


def _tokens(n_vocab: int, n: int) -> list[int]:
    """Some tokens, the same each time, spread over the vocabulary."""
    return [(7919 * i + 17) % n_vocab for i in range(n)]
