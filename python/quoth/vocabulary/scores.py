"""Scores: text to token ids for sentencepiece-style vocabularies, which have scores and no list of merges.

In: a `TokenTable` with scores. Out: ids of a text without special tokens, to `quoth.tokenizer`.

C1  The pair of neighbours whose join is the token with the highest score is joined first, the leftmost of equals,
    until no pair is a token; what is then no token becomes byte tokens.
C2  Control, unknown and byte tokens are never made from text.
C3  Text is cut between two characters only if no token holds these two side by side. No join can cross such a cut,
    so cutting changes nothing; it makes chunks short and worth remembering.

A list of merges could not express C1: equals on the left and on the right of one character would need opposite ranks.
Cost: 10 ms to prepare 32 000 tokens; half a second a megabyte of prose, n log n in the length of a chunk (worst, one
chunk: 4 s).
Source: sentencepiece's BPE encoder, as llama.cpp runs it on GGUF vocabularies.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice
from operator import add
from typing import Final

from quoth.errors import TokenizerError
from quoth.vocabulary.tokens import BYTE_NAMES, Kind, TokenTable

__all__ = ["ScoreEncoder"]

_REMEMBERED_CHUNKS: Final = 1 << 16
_REMEMBERED_LENGTH: Final = 64
_NOT_FROM_TEXT: Final = (Kind.CONTROL, Kind.UNKNOWN)


class ScoreEncoder:
    """Encodes text by joining neighbours in the order of the scores.

    Args:
        table: The tokens, with scores.

    Raises:
        TokenizerError: The vocabulary has no scores.
    """

    def __init__(self, table: TokenTable) -> None:
        if table.scores is None:
            raise TokenizerError("expected a score for each token in tokenizer.ggml.scores, found none")
        self._scores = table.scores
        self._byte_ids = {byte: table.ids[name] for name, byte in BYTE_NAMES.items() if name in table.ids}
        hidden = {id for id, kind in table.special.items() if kind in _NOT_FROM_TEXT} | set(self._byte_ids.values())
        self._ids = {text: id for text, id in table.ids.items() if id not in hidden}
        in_a_row = "\ud800".join(self._ids)  # a character that no text holds keeps the tokens apart
        self._side_by_side = set(map(add, in_a_row, islice(in_a_row, 1, None)))
        self._remembered: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Encode text without special tokens.

        Args:
            text: Text without lone surrogates, its spaces still spaces.

        Returns:
            Token ids. What the vocabulary cannot spell is left out; see `unspelled`.
        """
        text = text.replace(" ", "\u2581")
        ids: list[int] = []
        start = 0
        neighbours = map(add, text, islice(text, 1, None))
        together = self._side_by_side
        for end in [at for at, pair in enumerate(neighbours, 1) if pair not in together] + [len(text)]:
            chunk = text[start:end]
            found = self._remembered.get(chunk)
            if found is None:
                found = self._encode_chunk(chunk)
                if len(chunk) <= _REMEMBERED_LENGTH and len(self._remembered) < _REMEMBERED_CHUNKS:
                    self._remembered[chunk] = found
            ids += found
            start = end
        return ids

    def unspelled(self, text: str) -> set[str]:
        """Find the characters of a text that the vocabulary cannot spell.

        Args:
            text: Text without lone surrogates.

        Returns:
            Those characters; empty for almost every text and vocabulary.
        """
        if len(self._byte_ids) == 256:
            return set()
        lost = set()
        for character in set(text):
            spelled = character.replace(" ", "\u2581")
            if spelled not in self._ids and any(byte not in self._byte_ids for byte in spelled.encode()):
                lost.add(character)
        return lost

    def _encode_chunk(self, chunk: str) -> list[int]:
        ids, scores = self._ids, self._scores
        n = len(chunk)
        length = [1] * n  # of the piece that starts here; 0 once it has been joined to the piece on its left
        before = list(range(-1, n - 1))
        behind = list(range(1, n + 1))
        heap: list[tuple[float, int, int, int]] = []
        for at in range(n - 1):
            id = ids.get(chunk[at : at + 2])
            if id is not None:
                heap.append((-scores[id], at, at + 1, 2))
        heapify(heap)
        while heap:
            _, left, right, total = heappop(heap)
            if length[left] == 0 or length[right] == 0 or length[left] + length[right] != total:
                continue  # one of the two has been joined since
            length[left], length[right] = total, 0
            next_ = behind[left] = behind[right]
            if next_ < n:
                before[next_] = left
                joined = total + length[next_]
                id = ids.get(chunk[left : left + joined])
                if id is not None:
                    heappush(heap, (-scores[id], left, next_, joined))
            previous = before[left]
            if previous >= 0:
                joined = length[previous] + total
                id = ids.get(chunk[previous : previous + joined])
                if id is not None:
                    heappush(heap, (-scores[id], previous, left, joined))
        found: list[int] = []
        at = 0
        while at < n:
            piece = chunk[at : at + length[at]]
            id = ids.get(piece)
            if id is not None:
                found.append(id)
            else:
                found += [self._byte_ids[byte] for byte in piece.encode() if byte in self._byte_ids]
            at += length[at]
        return found
