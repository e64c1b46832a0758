"""What a generation did: counts, times, the gate, each source.

In: the core's counters. Out: values to users. Times are wall-clock nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

__all__ = ["GateStats", "SourceStats", "Stats", "total"]

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
]


@dataclass(frozen=True)
class SourceStats:
    """What one draft source did in this generation."""

    drafts: int
    """Drafts that were verified."""
    drafted: int
    """Tokens in those drafts."""
    accepted: int
    """Tokens among them that were committed."""
    reason: str | None = None
    """Why it drafts nothing any more, if so."""

    @property
    def acceptance(self) -> float:
        """Accepted tokens a drafted one, 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class GateStats:
    """Whether drafting was let through, and why."""

    state: str
    """`open`, `closed`, `probing`; `off` without speculation; `disabled` if the source failed."""
    estimated_speedup: float | None = None
    """Committed tokens a cost over the last verifications; None before the first."""
    trips: int = 0
    """How often the gate closed."""
    probes: int = 0
    """Probes begun."""
    reopened: int = 0
    """Probes that opened it again."""
    closed_steps: int = 0
    """Steps that were refused a draft."""
    probe_in: int = 0
    """Steps until the next probe, while closed."""
    scale: float = 1.0
    """Live correction of the cost table."""
    plain_ns: float | None = None
    """The running plain step."""
    costs: str = ""
    """Where the cost table comes from."""
    reason: str | None = None
    """Why the gate last closed, or why the source is asked no more."""


@dataclass(frozen=True)
class Stats:
    """Counts and times of one generation."""

    prefill_tokens: int = 0
    """Prompt tokens that were computed."""
    prefill_ns: int = 0
    """From the start of the request to its first token."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache."""
    steps: int = 0
    """Forwards after the first token."""
    verify_steps: int = 0
    """Steps that verified a draft."""
    plain_steps: int = 0
    """Steps without a draft."""
    committed: int = 0
    """Committed tokens, one that completes a stop included."""
    draws: int = 0
    """Random draws: `committed` when sampling, 0 when greedy."""
    drafted: int = 0
    """Drafted tokens that were verified."""
    accepted: int = 0
    """Drafted tokens that were committed."""
    bonus: int = 0
    """Tokens committed after a draft that was accepted whole."""
    tokens_per_step: float = 0.0
    """Committed tokens a step, without the first, which comes with the prompt."""
    acceptance: float = 0.0
    """Accepted tokens a drafted one, 0 to 1."""
    decode_ns: int = 0
    """All steps together."""
    draft_ns: int = 0
    """Of those, asking sources and telling them."""
    verify_ns: int = 0
    """Of those, forwards that verified a draft."""
    sample_ns: int = 0
    """Of those, sampling and log-probabilities."""
    longest_draft: int = 0
    """Length of the longest draft that was verified."""
    gate: GateStats = field(default_factory=lambda: GateStats("off"))
    """The gate."""
    sources: dict[str, SourceStats] = field(default_factory=dict)
    """Each draft source by name."""
    kernels: str = ""
    """The instruction set."""
    threads: int = 0
    """Threads of a forward."""
    seed: int | None = None
    """The seed of the draws; None when greedy."""

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens a second of decoding, the prompt left out; 0 before the first step."""
        return self.steps * self.tokens_per_step / self.decode_ns * 1e9 if self.decode_ns else 0.0


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
            counts = (old.drafts + new.drafts, old.drafted + new.drafted, old.accepted + new.accepted)
            sources[name] = SourceStats(*counts, reason=new.reason)
    return replace(
        every[-1],
        **sums,
        tokens_per_step=(sums["committed"] - first) / sums["steps"] if sums["steps"] else 0.0,
        acceptance=sums["accepted"] / sums["drafted"] if sums["drafted"] else 0.0,
        longest_draft=max(stats.longest_draft for stats in every),
        sources=sources,
    )
