"""Draft sources that know everything, nothing, or lie, stall and break; and a gate that lets them all through."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import quoth

ROLES = (
    "perfect", "garbage", "alternating", "lying", "silent", "slow",
    "raising suggest", "raising observe", "raising observe_topk", "raising truncate_pending", "raising rebuild",
)  # fmt: skip

OPEN = quoth.Gate(adapt_budget=False, min_speedup=0.5, max_debt=1000.0)


class Source:
    """A source of some role that may know whole streams, prompts and answers.

    It checks what it is told: contexts are what was observed, rows of top-k come after their step.
    """

    topk = 8

    def __init__(self, role: str, streams: Iterable[Sequence[int]] = (), n_vocab: int = 97) -> None:
        self.role, self.streams, self.n_vocab = role, [list(s) for s in streams], n_vocab
        self.seen: list[int] = []
        self.calls: dict[str, int] = {}
        self.faults: list[str] = []
        self.failed = False
        self.asked: list[int] = []

    def _enter(self, method: str, after: int = 3) -> None:
        if self.failed:
            self.faults.append(f"{method} was called after a failure")
        self.calls[method] = self.calls.get(method, 0) + 1
        if self.role == f"raising {method}" and self.calls[method] >= after:
            self.failed = True
            raise RuntimeError(f"{method} does not work")

    def suggest(self, context: list[int], max_tokens: int) -> object:
        self._enter("suggest")
        self.asked.append(max_tokens)
        if context != self.seen:
            self.faults.append(f"a context of {len(context)} tokens that was not observed so")
        known = next((s[len(context) :] for s in self.streams if s[: len(context)] == context), [])
        right, n = known[:max_tokens], self.calls["suggest"]
        match self.role:
            case "garbage":
                return [(len(context) * 31 + 17 * i) % self.n_vocab for i in range(max_tokens)]
            case "alternating":
                wrong = n % (max_tokens + 1)
                return [(t + 1) % self.n_vocab if i == wrong else t for i, t in enumerate(right)]
            case "lying":
                return (
                    [*known, *[self.n_vocab] * 1000],
                    [*right[:2], self.n_vocab, *right[2:]],
                    [-1, 2**40],
                    iter(known + list(range(10_000))),
                )[n % 4]
            case "silent":
                return None if n % 2 else []
            case "slow":
                time.sleep(50e-6)
                return tuple(right)
            case "raising truncate_pending":
                return [*known, 0, 0, 0]  # longer than asked for, so it is cut
            case _:
                return right

    def observe(self, committed: list[int]) -> None:
        self._enter("observe")
        self.seen += committed

    def observe_topk(self, rows: list[tuple[int, list[int]]]) -> None:
        self._enter("observe_topk")
        if not rows or any(len(top) > self.topk for _, top in rows):
            self.faults.append(f"{len(rows)} rows of top-k")

    def truncate_pending(self, n: int) -> None:
        self._enter("truncate_pending")

    def rebuild(self, history: list[int]) -> None:
        self._enter("rebuild", after=1)
        self.seen = list(history)


def speculation(source: object, max_draft: int = 8, **options: object) -> quoth.Speculation:
    """Options that ask a source in every step."""
    options = {"gate": OPEN, "costs": {1: 1.0}, "min_draft": 1, **options}
    return quoth.Speculation(max_draft=max_draft, source=source, **options)  # type: ignore[arg-type]
