"""The drafting cascade without a model: for other engines, and for research.

In: committed tokens, documents, optionally the most probable successors that verification showed. Out: drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from quoth import _core
from quoth._arguments import whole
from quoth.options import Speculation, _CoreSpeculation
from quoth.stats import SourceStats

__all__ = ["DraftIndex"]


class DraftIndex:
    """Guesses the next tokens of a stream from what the stream and documents have shown.

    The order in a step of an engine: `suggest`, verify, `observe` the committed tokens, and if the engine has them
    `observe_topk`.

    Args:
        n_vocab: Token ids are 0 to `n_vocab` - 1.
        min_draft: Shortest draft worth suggesting. None: 1.
        min_match: Shortest repeated run of tokens that is quoted from. None: as `policy` needs.
        policy: `best-rate` or `fixed`, as in `Speculation`.
        recycling: Whether to draft from `observe_topk` and committed pairs.
        costs: Cost of verifying k tokens, in plain steps, by k, for `best-rate`.

    Raises:
        OptionsError: An argument is out of range.
    """

    def __init__(
        self,
        n_vocab: int,
        *,
        min_draft: int | None = None,
        min_match: int | None = None,
        policy: Literal["best-rate", "fixed"] = "best-rate",
        recycling: bool = True,
        costs: dict[int, float] | None = None,
    ) -> None:
        n_vocab = whole("n_vocab", n_vocab, 1)
        options = Speculation(min_draft=min_draft, min_match=min_match, policy=policy, recycling=recycling, costs=costs)
        self.n_vocab = n_vocab
        self._core = _core.DraftIndex(n_vocab, _CoreSpeculation(options))

    def __len__(self) -> int:
        """Tokens observed."""
        return len(self._core)

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn tokens that were committed, in order: a prompt, or all tokens of a step."""
        self._core.observe(tokens)

    def suggest(self, context: Sequence[int] | None = None, max_tokens: int = 16) -> list[int]:
        """Guess what follows.

        Args:
            context: The stream so far, or its end; its last token must be the last one observed, or nothing is
                suggested. None: what was observed.
            max_tokens: Most tokens to suggest.

        Returns:
            Up to `max_tokens` token ids; empty if nothing is worth a guess.
        """
        max_tokens = whole("max_tokens", max_tokens, 0)
        return self._core.suggest(context, max_tokens)

    def observe_topk(self, rows: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Learn from verified rows, after `observe` of the same step.

        Args:
            rows: For each row its input token, and its most probable successors, best first.
        """
        self._core.observe_topk([(token, list(top)) for token, top in rows])

    def truncate_pending(self, n: int) -> None:
        """Say that only the first `n` tokens of the last draft will be verified; the rest does not count as wrong."""
        self._core.truncate_pending(n)

    def rebuild(self, history: Sequence[int]) -> None:
        """Forget the stream and learn `history` in its place. References stay."""
        self._core.rebuild(history)

    def add_reference(self, tokens: Sequence[int]) -> int:
        """Offer a document to quote from; returns a handle.

        Raises:
            OptionsError: A token is out of range. Nothing was added.
        """
        return self._core.add_reference(tokens)

    def clear_references(self) -> None:
        """Take all references away."""
        self._core.clear_references()

    @property
    def stats(self) -> dict[str, SourceStats]:
        """What each source did, by name."""
        return {r[0]: SourceStats(r[1], r[2], r[3], r[5], r[6]) for r in self._core.stats()}

    @property
    def n_bytes(self) -> int:
        """Bytes of the index of the stream."""
        return self._core.index_bytes()
