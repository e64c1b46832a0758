"""Replay: traces through cascade and gate with a table of costs, to judge a policy in seconds and without a model.

In: traces, options, costs. Out: tokens a step, acceptance by source and by match length, the speedup that the table
foretells, the time that drafting takes.

P1  Each trace starts with nothing learned; its turns follow one another as in a conversation.
P2  A verification costs what the table says of its length; a suggestion takes `draft_ns`. Nothing else takes time, so
    the same traces and options give the same figures, the time of drafting alone excepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quoth import _core
from quoth.bench.traces import Trace
from quoth.errors import OptionsError
from quoth.options import CoreSpeculation, Speculation

__all__ = ["SOURCES", "Replayed", "Tally", "replay_trace", "replay_traces"]

SOURCES = ("conversation", "references", "recycling")
"""Parts of the cascade that can be switched off."""


@dataclass(frozen=True)
class Replayed:
    """What one trace gave."""

    id: str
    kind: str
    tokens: int
    """Tokens that steps committed."""
    steps: int
    verify_steps: int
    closed_steps: int
    """Steps that the gate refused a draft."""
    drafted: int
    accepted: int
    cost: float
    """Time of all steps, in plain steps."""
    trips: int
    """How often the gate closed."""
    elapsed_ns: int
    """Time of drafting, indexing and the gate."""
    index_bytes: int
    """Memory of the stream's index at the end."""
    sources: dict[str, tuple[int, int, int]]
    """Drafts, drafted tokens, accepted tokens by source; all references together."""
    by_match: dict[str, list[tuple[int, int, int]]]
    """By source, for each shortest match length of a bucket: tokens that it had an opinion on, and how many were right.
    For all tokens, drafted or not."""
    measured: float | None = None
    """The speedup that was measured."""

    @property
    def speedup(self) -> float:
        """Time of plain decoding over the time of this."""
        return self.tokens / self.cost if self.cost else 1.0


@dataclass
class Tally:
    """Several traces taken together."""

    name: str
    n: int = 0
    tokens: int = 0
    steps: int = 0
    verify_steps: int = 0
    closed_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    cost: float = 0.0
    trips: int = 0
    elapsed_ns: int = 0
    index_bytes: int = 0
    sources: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    by_match: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    measured_cost: float = 0.0
    """Time of the measured runs, in plain steps of the replay."""
    measured_n: int = 0

    def add(self, one: Replayed) -> None:
        """Take a trace in."""
        self.n += 1
        for name in ("tokens", "steps", "verify_steps", "closed_steps", "drafted", "accepted", "cost", "trips"):
            setattr(self, name, getattr(self, name) + getattr(one, name))
        self.elapsed_ns += one.elapsed_ns
        self.index_bytes += one.index_bytes
        for source, counts in one.sources.items():
            old = self.sources.get(source, (0, 0, 0))
            self.sources[source] = (old[0] + counts[0], old[1] + counts[1], old[2] + counts[2])
        for source, rates in one.by_match.items():
            known = self.by_match.get(source, [(start, 0, 0) for start, _, _ in rates])
            self.by_match[source] = [(s, a + b, r + q) for (s, a, r), (_, b, q) in zip(known, rates, strict=True)]
        if one.measured is not None:
            self.measured_n += 1
            self.measured_cost += one.tokens / one.measured

    @property
    def tokens_per_step(self) -> float:
        """Committed tokens a step."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted tokens a drafted one."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def speedup(self) -> float:
        """Time of plain decoding over the time of this, all traces together."""
        return self.tokens / self.cost if self.cost else 1.0

    @property
    def measured(self) -> float | None:
        """The measured speedup of all traces together; None unless each of them has one."""
        return self.tokens / self.measured_cost if self.measured_n == self.n and self.measured_cost else None

    @property
    def ns_per_token(self) -> float:
        """Time of drafting, indexing and the gate for a committed token."""
        return self.elapsed_ns / self.tokens if self.tokens else 0.0

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "traces": self.n,
            "tokens": self.tokens,
            "tokens_per_step": self.tokens_per_step,
            "acceptance": self.acceptance,
            "speedup": self.speedup,
            "measured": self.measured,
            "verify_steps": self.verify_steps,
            "steps": self.steps,
            "closed_steps": self.closed_steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "trips": self.trips,
            "ns_per_token": self.ns_per_token,
            "index_bytes_per_token": self.index_bytes / self.tokens if self.tokens else 0.0,
            "sources": {
                name: {"drafts": drafts, "drafted": drafted, "accepted": accepted}
                for name, (drafts, drafted, accepted) in self.sources.items()
            },
            "by_match": {
                name: [{"from": start, "asked": asked, "right": right} for start, asked, right in rates if asked]
                for name, rates in self.by_match.items()
            },
        }


def replay_trace(
    trace: Trace,
    speculation: Speculation | None = None,
    *,
    costs: Mapping[int, float] | None = None,
    plain_ns: int = 10_000_000,
    draft_ns: int = 1_000,
    without: Iterable[str] = (),
) -> Replayed:
    """Replay one trace.

    Args:
        trace: The trace.
        speculation: How tokens are guessed. None: the defaults.
        costs: What the gate believes and a verification costs, in plain steps, by k. None: the shipped table.
        plain_ns: A plain step.
        draft_ns: A suggestion.
        without: Names of `SOURCES` that do not draft.

    Raises:
        OptionsError: An option or a token is out of range.
    """
    off = set(without)
    if unknown := off - set(SOURCES):
        raise OptionsError(f"there is no source {sorted(unknown)[0]!r}, expected some of {', '.join(SOURCES)}")
    options = CoreSpeculation(speculation or Speculation(), None if costs is None else (costs, "given by the caller"))
    if "recycling" in off:
        options.recycling = False
    empty = trace.turns[0].prompt[:0] if trace.turns else ()
    turns = []
    for turn in trace.turns:
        top, width = (empty, 0) if turn.top is None else (turn.top.ravel(), turn.top.shape[1])
        turns.append((turn.prompt, turn.answer, top, width, turn.stopped))
    seen = [ids for turn in trace.turns for ids in (turn.prompt, turn.answer, turn.top) if ids is not None and ids.size]
    n_vocab = trace.n_vocab or 1 + max((int(ids.max()) for ids in (*seen, *trace.references) if ids.size), default=0)
    references = [] if "references" in off else [reference.tolist() for reference in trace.references]
    report, sources = _core.replay_turns(
        turns, trace.stops, n_vocab, options, plain_ns, draft_ns, None, references, "conversation" not in off
    )
    merged: dict[str, tuple[int, int, int]] = {}
    for one in sources:
        old = merged.get(_family(one.name), (0, 0, 0))
        merged[_family(one.name)] = (old[0] + one.drafts, old[1] + one.drafted, old[2] + one.accepted)
    by_match: dict[str, list[tuple[int, int, int]]] = {}
    for name, rates in report["rates"]:
        old_rates = by_match.get(_family(name), [(start, 0, 0) for start, _, _ in rates])
        by_match[_family(name)] = [(s, a + b, r + q) for (s, a, r), (_, b, q) in zip(old_rates, rates, strict=True)]
    return Replayed(
        id=trace.id,
        kind=trace.kind,
        tokens=report["tokens"],
        steps=report["steps"],
        verify_steps=report["verify_steps"],
        closed_steps=report["closed_steps"],
        drafted=report["drafted"],
        accepted=report["accepted"],
        cost=report["cost"],
        trips=report["gate_trips"],
        elapsed_ns=report["elapsed_ns"],
        index_bytes=report["index_bytes"],
        sources=merged,
        by_match=by_match,
        measured=trace.measured,
    )


def replay_traces(
    traces: Iterable[Trace],
    replay: Callable[[Trace], Replayed],
    progress: Callable[[Replayed], object] = lambda one: None,
) -> tuple[list[Replayed], list[Tally]]:
    """Replay many.

    Args:
        traces: Traces.
        replay: `replay_trace` with its options.
        progress: Called with each.

    Returns:
        Each trace, and tallies: one a kind, then `all`.
    """
    every: list[Replayed] = []
    kinds: dict[str, Tally] = {}
    whole = Tally("all")
    for trace in traces:
        one = replay(trace)
        every.append(one)
        kinds.setdefault(one.kind, Tally(one.kind)).add(one)
        whole.add(one)
        progress(one)
    return every, [*kinds.values(), whole]


def _family(name: str) -> str:
    return "references" if name.startswith("reference-") else name
