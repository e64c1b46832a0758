"""The drafting cascade without a model: for other engines, and for research.

In: committed tokens, documents, optionally the most probable successors that verification showed. Out: drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

from quoth import _core
from quoth._arguments import shown, token_ids, whole
from quoth.errors import OptionsError
from quoth.options import Speculation, _CoreSpeculation
from quoth.stats import SourceStats

__all__ = ["DraftIndex"]

# The core's bound, so that numbers which it could not even hold are refused by the same name.
_MAX_VOCAB = 1 << 22
# More tokens than any context has.
_MANY = 1 << 24


class DraftIndex:
    """Guesses the next tokens of a stream from what the stream and documents have shown.

    The order in a step of an engine: `suggest`, verify, `observe` the committed tokens, and if the engine has them
    `observe_topk`.

    Args:
        n_vocab: Token ids are 0 to `n_vocab` - 1.
        min_draft: Shortest draft worth suggesting. None: 1.
        min_match: Shortest repeated run of tokens that is quoted from. None: 1.
        recycling: Whether to draft, where no longer run is repeated, the newest known successor of each token: from
            committed pairs and the best of each row of `observe_topk`.
        costs: Cost of verifying k tokens, in plain steps, by k: drafts are as long as pays.

    Raises:
        OptionsError: An argument is out of range.
    """

    def __init__(
        self,
        n_vocab: int,
        *,
        min_draft: int | None = None,
        min_match: int | None = None,
        recycling: bool = True,
        costs: dict[int, float] | None = None,
    ) -> None:
        n_vocab = whole("n_vocab", n_vocab, 1, _MAX_VOCAB)
        options = Speculation(min_draft=min_draft, min_match=min_match, recycling=recycling, costs=costs)
        self.n_vocab = n_vocab
        self._core = _core.DraftIndex(n_vocab, _CoreSpeculation(options))

    def __len__(self) -> int:
        """Tokens observed."""
        return len(self._core)

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn tokens that were committed, in order: a prompt, or all tokens of a step.

        Raises:
            OptionsError: These are no token ids. Nothing was learnt.
        """
        self._core.observe(_as_tokens("tokens", tokens))

    def suggest(self, context: Sequence[int] | None = None, max_tokens: int = 16) -> list[int]:
        """Guess what follows.

        Args:
            context: The stream so far, or its end; its last token must be the last one observed, or nothing is
                suggested. None: what was observed.
            max_tokens: Most tokens to suggest.

        Returns:
            Up to `max_tokens` token ids; empty if nothing is worth a guess.

        Raises:
            OptionsError: `context` holds no token ids, or `max_tokens` is negative or no whole number.
        """
        most = min(whole("max_tokens", max_tokens, 0), _MANY)
        return self._core.suggest(None if context is None else _as_tokens("context", context), most)

    def observe_topk(self, rows: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Learn from verified rows, after `observe` of the same step.

        Args:
            rows: For each row its input token, and its most probable successors, best first. The best is kept.

        Raises:
            OptionsError: A row is something else. Nothing was learnt.
        """
        pairs = []
        for at, row in enumerate(token_ids("rows", rows, "pairs of a token and its successors")):
            try:
                token, top = row
            except (TypeError, ValueError):
                raise OptionsError(f"row {at} is {shown(row)}, expected a token and its successors") from None
            successors = token_ids(f"successors of row {at}", top)
            pairs.append(
                (_token(f"token of row {at}", token), [_token(f"successor in row {at}", t) for t in successors])
            )
        self._core.observe_topk(pairs)

    def truncate_pending(self, n: int) -> None:
        """Say that only the first `n` tokens of the last draft will be verified; the rest does not count as wrong.

        Raises:
            OptionsError: `n` is negative or no whole number.
        """
        self._core.truncate_pending(min(whole("n", n, 0), _MANY))

    def rebuild(self, history: Sequence[int]) -> None:
        """Forget the stream and learn `history` in its place. References stay.

        Raises:
            OptionsError: These are no token ids. Nothing was forgotten.
        """
        self._core.rebuild(_as_tokens("history", history))

    def add_reference(self, tokens: Sequence[int]) -> int:
        """Offer a document to quote from; returns a handle.

        Raises:
            OptionsError: A token is out of range, or these are no token ids. Nothing was added.
        """
        return self._core.add_reference(_as_tokens("tokens", tokens))

    def clear_references(self) -> None:
        """Take all references away."""
        self._core.clear_references()

    @property
    def stats(self) -> dict[str, SourceStats]:
        """What each source did, by name."""
        return {r[0]: SourceStats(*r[1:]) for r in self._core.stats()}

    @property
    def n_bytes(self) -> int:
        """Bytes of the index of the stream."""
        return self._core.index_bytes()


def _as_tokens(name: str, value: Sequence[int]) -> Sequence[int]:
    """Tokens for the core, which reads lists and arrays as they are and looks at each item."""
    return value if hasattr(value, "__array__") else token_ids(name, value)


def _token(name: str, value: object) -> int:
    return whole(name, value, 0, 2**32 - 1)
