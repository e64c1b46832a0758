"""What a generation did: counts, times, the gate, each source.

In: the core's counters. Out: values to users. Times are wall-clock nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quoth import _core

__all__ = ["GateStats", "SourceStats", "Stats", "sources_of", "stats_of", "total"]

_SUMMED = [
    "prefill_tokens",
    "prefill_ns",
    "cached_tokens",
    "steps",
    "verify_steps",
    "plain_steps",
    "committed",
    "draws",
    "drafted",
    "accepted",
    "bonus",
    "decode_ns",
    "draft_ns",
    "verify_ns",
    "sample_ns",
    "mask_ns",
    "forced",
]


@dataclass(frozen=True)
class SourceStats:
    """What one draft source did in this generation.

    Attributes:
        drafts: Drafts that were verified.
        drafted: Tokens in those drafts.
        accepted: Tokens among them that were committed.
        grafted: Of those, tokens that were quoted behind guesses of a drafter.
        ns: Nanoseconds that a drafter with weights of its own took; 0 for quoting, which is not timed apart.
        tried_at: How often a token at each place of a draft was verified where those before it were right.
        accepted_at: How often it was right.
        reason: Why it drafts nothing any more, if so.
    """

    drafts: int
    drafted: int
    accepted: int
    grafted: int = 0
    ns: int = 0
    tried_at: Sequence[int] = ()
    accepted_at: Sequence[int] = ()
    reason: str | None = None

    @property
    def acceptance(self) -> float:
        """Accepted tokens a drafted one, 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class GateStats:
    """Whether drafting was let through, and why.

    Attributes:
        state: `open`, `closed`, `probing`; `off` without speculation; `disabled` if the source failed.
        estimated_speedup: Committed tokens a cost over the last verifications; None before the first.
        trips: How often the gate closed.
        probes: Probes begun.
        reopened: Probes that opened it again.
        closed_steps: Steps that were refused a draft.
        probe_in: Steps until the next probe, while closed.
        scale: Live correction of the cost table.
        plain_ns: The running plain step.
        costs: Where the cost table comes from.
        reason: Why the gate last closed, or why the source is asked no more.
    """

    state: str
    estimated_speedup: float | None = None
    trips: int = 0
    probes: int = 0
    reopened: int = 0
    closed_steps: int = 0
    probe_in: int = 0
    scale: float = 1.0
    plain_ns: float | None = None
    costs: str = ""
    reason: str | None = None


@dataclass(frozen=True, repr=False)
class Stats:
    """Counts and times of one generation.

    Attributes:
        prefill_tokens: Prompt tokens that were computed.
        prefill_ns: From the start of the request to its first token.
        cached_tokens: Prompt tokens that were found in the cache.
        steps: Forwards after the first token.
        verify_steps: Steps that verified a draft.
        plain_steps: Steps without a draft.
        committed: Committed tokens, one that completes a stop included.
        draws: Random draws: `committed` when sampling, 0 when greedy.
        drafted: Drafted tokens that were verified.
        accepted: Drafted tokens that were committed.
        bonus: Tokens committed after a draft that was accepted whole.
        tokens_per_step: Committed tokens a step, without the first, which comes with the prompt.
        acceptance: Accepted tokens a drafted one, 0 to 1.
        decode_ns: All steps together.
        draft_ns: Of those, asking sources and telling them.
        verify_ns: Of those, forwards that verified a draft.
        sample_ns: Of those, sampling and log-probabilities.
        mask_ns: Computing what a constraint allows, on a thread beside the forwards.
        forced: Committed tokens that were the only ones which a constraint allowed.
        longest_draft: Length of the longest draft that was verified.
        gate: The gate.
        sources: Each draft source by name.
        kernels: The instruction set.
        threads: Threads of a forward.
        seed: The seed of the draws; None when greedy.
    """

    prefill_tokens: int = 0
    prefill_ns: int = 0
    cached_tokens: int = 0
    steps: int = 0
    verify_steps: int = 0
    plain_steps: int = 0
    committed: int = 0
    draws: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    tokens_per_step: float = 0.0
    acceptance: float = 0.0
    decode_ns: int = 0
    draft_ns: int = 0
    verify_ns: int = 0
    sample_ns: int = 0
    mask_ns: int = 0
    forced: int = 0
    longest_draft: int = 0
    gate: GateStats = field(default_factory=lambda: GateStats("off"))
    sources: dict[str, SourceStats] = field(default_factory=dict)
    kernels: str = ""
    threads: int = 0
    seed: int | None = None

    def __repr__(self) -> str:
        drafts = "" if self.gate.state == "off" else f", {self.accepted} of {self.drafted} drafted accepted"
        return (
            f"Stats({self.cached_tokens} cached + {self.prefill_tokens} prompt tokens, "
            f"{self.committed} tokens in {self.steps} steps, {self.tokens_per_second:.1f} tokens/s{drafts}, "
            f"gate {self.gate.state})"
        )

    @property
    def forced_share(self) -> float:
        """Tokens that a constraint forced, of all committed ones, 0 to 1."""
        return self.forced / self.committed if self.committed else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens a second of decoding, the prompt left out; 0 before the first step."""
        return self.steps * self.tokens_per_step / self.decode_ns * 1e9 if self.decode_ns else 0.0


def _taken(kind: type, found: object, *without: str) -> dict[str, Any]:
    """The fields of a kind, as an object of the core has them."""
    return {one.name: getattr(found, one.name) for one in fields(kind) if one.name not in without}


def sources_of(found: Iterable[_core.SourceStats]) -> dict[str, SourceStats]:
    """What the core tells of sources, by name."""
    return {one.name: SourceStats(**_taken(SourceStats, one)) for one in found}


def stats_of(
    found: _core.DecodeStats, guessed: _core.SpeculationStats | None, *, kernels: str, threads: int, seed: int | None
) -> Stats:
    """What the core tells of a generation, with what only the caller knows."""
    return Stats(
        **_taken(Stats, found, "gate", "sources", "kernels", "threads", "seed"),
        gate=GateStats("off") if guessed is None else GateStats(**_taken(GateStats, guessed.gate)),
        sources={} if guessed is None else sources_of(guessed.sources),
        kernels=kernels,
        threads=threads,
        seed=seed,
    )


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]


def total(several: Iterable[Stats]) -> Stats:
    """Add up what several generations did.

    Returns:
        Counts and times added; the gate, the machine and the seed of the last; rates of the sums.
    """
    every = list(several)
    if not every:
        return Stats()
    sums = {name: sum(getattr(stats, name) for stats in every) for name in _SUMMED}
    # The first token of each comes with its prompt, not with a step.
    first = sum(1 for stats in every if stats.committed)
    sources: dict[str, SourceStats] = {}
    for stats in every:
        for name, new in stats.sources.items():
            old = sources.get(name, SourceStats(0, 0, 0))
            sources[name] = SourceStats(
                drafts=old.drafts + new.drafts,
                drafted=old.drafted + new.drafted,
                accepted=old.accepted + new.accepted,
                grafted=old.grafted + new.grafted,
                ns=old.ns + new.ns,
                tried_at=_sums(old.tried_at, new.tried_at),
                accepted_at=_sums(old.accepted_at, new.accepted_at),
                reason=new.reason,
            )
    return replace(
        every[-1],
        **sums,
        tokens_per_step=(sums["committed"] - first) / sums["steps"] if sums["steps"] else 0.0,
        acceptance=sums["accepted"] / sums["drafted"] if sums["drafted"] else 0.0,
        longest_draft=max(stats.longest_draft for stats in every),
        sources=sources,
    )
