"""Special tokens in text: where they stand, before anything is merged.

In: a text and the tokens that count. Out: stretches of text and token ids by turns, to `quoth.tokenizer`.

P1  The leftmost token wins, of several at one place the longest. Nothing inside a token is looked at again.
P2  The stretches and the texts of the ids, joined, are the text, but for space behind tokens that swallow it.

Texts hold few special tokens, so the search is one for the first two characters of any token; the whole token is
looked up by length.
Cost: a few milliseconds a megabyte for marks such as `<|im_end|>`; with tokens for runs of space, 0.3 s a megabyte
of code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from typing import Final

__all__ = ["SpecialFinder"]

_PREFIX: Final = 2
_SWALLOWED: Final = " \t\n\v\f\r"


class SpecialFinder:
    """Finds tokens in text.

    Args:
        tokens: Text and id of each token that counts.
        swallowing: Ids behind which white space is dropped.
    """

    def __init__(self, tokens: Iterable[tuple[str, int]], swallowing: Set[int] = frozenset()) -> None:
        self._ids = {text: id for text, id in tokens if text}
        self._swallowing = swallowing
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:_PREFIX], set()).add(len(text))
        self._lengths = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}
        prefixes = sorted(self._lengths, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, prefixes))) if prefixes else None

    def split(self, text: str) -> list[str | int]:
        """Part a text at its special tokens.

        Args:
            text: Any text.

        Returns:
            Stretches of text, none empty, and token ids, in order.
        """
        if self._pattern is None:
            return [text] if text else []
        parts: list[str | int] = []
        start = at = 0
        while (match := self._pattern.search(text, at)) is not None:
            at = match.start()
            length = self._length_at(text, at)
            if length == 0:
                at += 1
                continue
            if start < at:
                parts.append(text[start:at])
            id = self._ids[text[at : at + length]]
            parts.append(id)
            start = at = at + length
            if id in self._swallowing:
                while start < len(text) and text[start] in _SWALLOWED:
                    start += 1
                at = start
        if start < len(text):
            parts.append(text[start:])
        return parts

    def _length_at(self, text: str, at: int) -> int:
        for size in range(_PREFIX, 0, -1):
            for length in self._lengths.get(text[at : at + size], ()):
                if text[at : at + length] in self._ids:
                    return length
        return 0
