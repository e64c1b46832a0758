"""Plain against speculative decoding on whole workloads, kind by kind.

In: a model, prompts with their kinds. Out: speeds of both, their ratio with its spread, what each source brought.

W1  A round runs every workload once each way, and which way goes first alternates from workload to workload and from
    round to round. Each run is a conversation of its own: an empty cache, nothing learned elsewhere.
W2  The tokens of all runs of a workload are compared. One that differs is a failure and has no speed.
W3  A time is summed over the rounds, and in a group over its workloads. Speeds and ratios are of these sums alone: a
    ratio is the quotient of the two speeds beside it, and no group is below the least or above the greatest ratio of
    its workloads. What is told beside a ratio are the least and the greatest round.
W4  References go to the speculative run alone, before the clock starts. The first token of an answer comes with the
    prompt; prompts are left out of the decoding times and are in `total_speedup`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoth._files import read_text
from quoth.bench.compare import Difference, first_difference
from quoth.bench.paired import Ratio, Spread
from quoth.errors import OptionsError
from quoth.options import Sampling, Speculation
from quoth.stats import SourceStats, Stats, total

if TYPE_CHECKING:
    from quoth.model import Model
    from quoth.results import Result

__all__ = [
    "COPIES",
    "Group",
    "Run",
    "Workload",
    "WorkloadResult",
    "groups",
    "measure_workloads",
    "read_workloads",
    "subsets",
]

COPIES = ("repeat", "code-edit", "extract-json", "translate-format")
"""Kinds whose answers are copies of their prompts, for the most part; `rag` with the document in the prompt is too."""


@dataclass(frozen=True)
class Workload:
    """A prompt, or several that are answered one after another."""

    id: str
    """Unique name."""
    kind: str
    """What it is an example of."""
    system: str | None
    """The system message."""
    history: tuple[dict[str, Any], ...]
    """Messages before the first that is answered."""
    turns: tuple[str | dict[str, Any], ...]
    """Messages that are answered."""
    references: tuple[str, ...]
    """Documents to draft from."""
    max_tokens: int
    """Most tokens of an answer."""

    @property
    def copies(self) -> bool:
        """Whether the answer is mostly a copy of the prompt."""
        return self.kind in COPIES or (self.kind == "rag" and not self.references)


def read_workloads(path: Path, kinds: Sequence[str] = ()) -> list[Workload]:
    """Read a JSONL file.

    Args:
        path: The file. An object a line: `id`, `kind`, `messages` (the last is answered) or `turns` (texts, all are),
            and optionally `system`, `references`, `max_tokens` (256).
        kinds: Kinds to keep. None given: all.

    Raises:
        OSError: It cannot be read.
        OptionsError: A line is something else, an id occurs twice, or nothing is left.
    """
    found: dict[str, Workload] = {}
    for at, line in enumerate(read_text("the list of workloads", path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            workload = _workload(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise OptionsError(f"line {at} of `{path}` is no workload: {_reason(error)}") from None
        if workload.id in found:
            raise OptionsError(f"line {at} of `{path}`: the id {workload.id!r} occurs twice")
        found[workload.id] = workload
    present = {workload.kind for workload in found.values()}
    if unknown := [kind for kind in kinds if kind not in present]:
        raise OptionsError(f"kind {unknown[0]!r} is not in `{path}`, expected some of {', '.join(sorted(present))}")
    kept = [workload for workload in found.values() if not kinds or workload.kind in kinds]
    if not kept:
        raise OptionsError(f"`{path}` has no workloads, expected at least one")
    return kept


def _workload(data: dict[str, Any]) -> Workload:
    """One line.

    Raises:
        ValueError, KeyError, TypeError: It makes no sense.
    """
    if not isinstance(data, dict):
        raise ValueError(f"it is {type(data).__name__}, expected an object")
    messages, turns = data.get("messages") or [], data.get("turns") or []
    if bool(messages) == bool(turns):
        raise ValueError("expected either messages or turns")
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise ValueError("messages are not all objects with a role")
    if not all(isinstance(turn, str) for turn in turns):
        raise ValueError("turns are not all texts")
    references = data.get("references") or []
    if not all(isinstance(reference, str) for reference in references):
        raise ValueError("references are not all texts")
    max_tokens = data.get("max_tokens", 256)
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens!r}, expected a whole number of at least 1")
    return Workload(
        id=str(data["id"]),
        kind=str(data["kind"]),
        system=data.get("system"),
        history=tuple(messages[:-1]),
        turns=tuple(messages[-1:]) or tuple(turns),
        references=tuple(references),
        max_tokens=max_tokens,
    )


def _reason(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


# -- one run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A workload, run once."""

    results: tuple[Result, ...]
    """The answers."""
    prompts: tuple[tuple[int, ...], ...]
    """The token ids of the prompts."""
    stats: Stats
    """All answers together."""

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        """The answers' token ids."""
        return [result.tokens for result in self.results]


def run_workload(
    model: Model,
    workload: Workload,
    *,
    sampling: Sampling,
    speculation: Speculation | None,
    max_tokens: int | None = None,
) -> Run:
    """Run a workload once, from an empty cache.

    Args:
        model: A model with a chat template.
        workload: What to run.
        sampling: How tokens are chosen.
        speculation: How they are guessed; None: plainly, and references are left aside.
        max_tokens: A limit below the workload's own.
    """
    chat = model.conversation(
        system=workload.system,
        messages=workload.history,
        sampling=sampling,
        speculation=speculation,
        template_kwargs={"enable_thinking": False},
    )
    if speculation is not None and speculation.source is None:
        for reference in workload.references:
            chat.add_reference(reference)
    limit = workload.max_tokens if max_tokens is None else min(workload.max_tokens, max_tokens)
    results: list[Result] = []
    prompts: list[tuple[int, ...]] = []
    for turn in workload.turns:
        result = chat.reply(turn, max_tokens=limit)
        results.append(result)
        prompts.append(tuple(chat.tokens[: result.prompt_tokens]))
    return Run(tuple(results), tuple(prompts), total(result.stats for result in results))


# -- many runs ---------------------------------------------------------------------------------------------------------


@dataclass
class WorkloadResult:
    """What the runs of a workload showed."""

    workload: Workload
    plain_ns: list[int] = field(default_factory=list)
    """Decoding time of each plain run."""
    speculative_ns: list[int] = field(default_factory=list)
    """Decoding time of each speculative run."""
    plain_total_ns: list[int] = field(default_factory=list)
    """The prompts included."""
    speculative_total_ns: list[int] = field(default_factory=list)
    """The prompts included."""
    draft_ns: list[int] = field(default_factory=list)
    """Time that speculative runs spent asking sources and telling them."""
    plain: Run | None = None
    """The last plain run."""
    speculative: Run | None = None
    """The last speculative run."""
    difference: tuple[int, Difference] | None = None
    """The answer (counted from 0) and the place where two runs part."""
    _first: list[tuple[int, ...]] | None = None

    def add(self, plain: Run, speculative: Run) -> None:
        """Take a pair in."""
        first = self._first = self._first or plain.tokens
        for at, expected in enumerate(first):
            difference = first_difference(expected, plain.tokens[at], speculative.tokens[at])
            if difference is not None:
                self.difference = (at, difference)
                return
        self.plain, self.speculative = plain, speculative
        self.plain_ns.append(max(plain.stats.decode_ns, 1))
        self.speculative_ns.append(max(speculative.stats.decode_ns, 1))
        self.plain_total_ns.append(max(plain.stats.decode_ns + plain.stats.prefill_ns, 1))
        self.speculative_total_ns.append(max(speculative.stats.decode_ns + speculative.stats.prefill_ns, 1))
        self.draft_ns.append(speculative.stats.draft_ns)

    @property
    def identical(self) -> bool:
        """Whether all runs gave the same tokens."""
        return self.difference is None

    @property
    def speedup(self) -> Ratio:
        """Plain decoding time over speculative decoding time."""
        return Ratio.of(list(zip(self.plain_ns, self.speculative_ns, strict=True)))


@dataclass(frozen=True)
class Group:
    """Workloads taken together."""

    name: str
    """A kind, or what else they have in common."""
    n: int
    """How many."""
    plain_rate: float
    """Tokens a second of plain decoding, the prompts left out."""
    speculative_rate: float
    """Tokens a second of speculative decoding, the prompts left out."""
    speedup: Ratio
    """Plain decoding time over speculative decoding time; its pairs are rounds."""
    total_speedup: Ratio
    """As `speedup`, the prompts included."""
    geometric_mean: float
    """Of the workloads' own ratios."""
    worst: float
    """The least of the workloads' own ratios."""
    worst_id: str
    """The workload that has it."""
    stats: Stats
    """The last speculative runs, added up."""
    trips: int
    """How often gates closed."""
    draft_ns_per_token: Spread
    """Asking sources and telling them, for a committed token."""

    @property
    def sources(self) -> dict[str, SourceStats]:
        """What each source brought; references of all workloads together."""
        merged: dict[str, SourceStats] = {}
        for name, new in self.stats.sources.items():
            known = "references" if name.startswith("reference-") else name
            old = merged.get(known, SourceStats(0, 0, 0))
            counts = (old.drafts + new.drafts, old.drafted + new.drafted, old.accepted + new.accepted)
            merged[known] = SourceStats(*counts)
        return merged


def measure_workloads(
    model: Model,
    workloads: Sequence[Workload],
    *,
    rounds: int = 3,
    sampling: Sampling | None = None,
    speculation: Speculation | None = None,
    max_tokens: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[WorkloadResult]:
    """Run all workloads both ways, round by round.

    Args:
        model: A model with a chat template.
        workloads: At least one.
        rounds: Rounds, at least 1.
        sampling: How tokens are chosen. None: greedily. With a temperature above 0 it must name a seed.
        speculation: How tokens are guessed. None: the defaults.
        max_tokens: A limit below the workloads' own.
        progress: Called with runs done and in all.

    Raises:
        OptionsError: There is nothing to run, or no seed.
        TokenizerError: The model has no chat template.
        ContextFullError: A workload does not fit the context.
    """
    if rounds < 1 or not workloads:
        raise OptionsError(f"{rounds} rounds of {len(workloads)} workloads, expected at least one of each")
    sampling = sampling or Sampling()
    if sampling.temperature > 0 and sampling.seed is None:
        raise OptionsError("seed is None, expected one: both ways must draw the same")
    guessing = speculation or Speculation()
    results = [WorkloadResult(workload) for workload in workloads]
    done, in_all = 0, 2 * rounds * len(workloads)

    def run(workload: Workload, speculative: bool, limit: int | None) -> Run:
        how = guessing if speculative else None
        return run_workload(model, workload, sampling=sampling, speculation=how, max_tokens=limit)

    for speculative in (False, True):  # warms up, and does not count
        run(workloads[0], speculative, 16)
    for i in range(rounds):
        for at, result in enumerate(results):
            if not result.identical:
                done += 2
                continue
            pair: dict[bool, Run] = {}
            for speculative in (False, True) if (i + at) % 2 == 0 else (True, False):
                pair[speculative] = run(result.workload, speculative, max_tokens)
                progress(done := done + 1, in_all)
            result.add(pair[False], pair[True])
    return results


def groups(results: Sequence[WorkloadResult]) -> list[Group]:
    """The kinds, then `all`. Only of workloads whose runs were identical."""
    same = [result for result in results if result.identical]
    kinds = dict.fromkeys(result.workload.kind for result in same)
    made = [_group(kind, [result for result in same if result.workload.kind == kind]) for kind in kinds]
    return [*made, _group("all", same)] if same else []


def subsets(results: Sequence[WorkloadResult]) -> list[Group]:
    """Workloads of some of the kinds that have something in common. Only of those whose runs were identical.

    `copies` are those whose answers are mostly in their prompts; `reference-only` are `rag` workloads whose document
    the model does not see.
    """
    same = [result for result in results if result.identical]
    copies = [result for result in same if result.workload.copies]
    only = [result for result in same if result.workload.kind == "rag" and result.workload.references]
    return [_group(name, members) for name, members in (("copies", copies), ("reference-only", only)) if members]


def _group(name: str, members: Sequence[WorkloadResult]) -> Group:
    stats = total(run.stats for member in members if (run := member.speculative) is not None)
    steps_tokens = stats.steps * stats.tokens_per_step

    def by_round(which: Callable[[WorkloadResult], list[int]]) -> list[int]:
        return [sum(times) for times in zip(*(which(member) for member in members), strict=True)]

    def rate(ns: list[int]) -> float:
        return steps_tokens * len(ns) / sum(ns) * 1e9

    plain, speculative = by_round(lambda m: m.plain_ns), by_round(lambda m: m.speculative_ns)
    whole = zip(by_round(lambda m: m.plain_total_ns), by_round(lambda m: m.speculative_total_ns), strict=True)
    own = {member.workload.id: member.speedup.ratio for member in members}
    worst_id = min(own, key=lambda id: own[id])
    return Group(
        name=name,
        n=len(members),
        plain_rate=rate(plain),
        speculative_rate=rate(speculative),
        speedup=Ratio.of(list(zip(plain, speculative, strict=True))),
        total_speedup=Ratio.of(list(whole)),
        geometric_mean=_geometric_mean(own.values()),
        worst=own[worst_id],
        worst_id=worst_id,
        stats=stats,
        trips=sum(_trips(member.speculative) for member in members),
        draft_ns_per_token=Spread.of(ns / max(steps_tokens, 1) for ns in by_round(lambda m: m.draft_ns)),
    )


def _trips(run: Run | None) -> int:
    # A gate's counts go on from turn to turn.
    return 0 if run is None else run.results[-1].stats.gate.trips


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
