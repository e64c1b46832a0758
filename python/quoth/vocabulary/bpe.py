"""Byte pairs: text to token ids for vocabularies that come with a list of merges.

In: a `TokenTable`, the merges and a `Splitter`. Out: ids of a text without special tokens, to `quoth.tokenizer`.

B1  The ids are those of the HF tokenizers model over the same vocabulary, merges and cuts, without a normalizer.
B2  Control and unknown tokens are never made from text, whatever a word spells; only if a merge names one it stays
    reachable.
B3  A character that the vocabulary cannot spell is found before merging, not lost in it.
B4  A long text goes through in windows, with the ids of the whole. No splitter looks behind, so the words from any word
    on are the same whatever stood before; and none looks further ahead than the end of a run of like characters, so
    only the last words of a window can differ from the whole's. These are left to the next window, or, if there are no
    others, to a window twice as long.

Cost: building 50 000 tokens takes about 50 ms, 150 000 about 180 ms, half of it inside the `BPE` constructor (from JSON
it takes twice as long); a megabyte of text takes about 0.4 s. Memory while encoding: 150 bytes a byte of the window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from tokenizers import Encoding, Regex, Tokenizer, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from quoth._arguments import shown
from quoth.errors import TokenizerError
from quoth.vocabulary.splitters import EACH_NUMBER, Splitter
from quoth.vocabulary.tokens import BYTE_NAMES, CHARACTER_OF, Kind, TokenTable, all_text

__all__ = ["MergeEncoder"]

_WINDOW: Final = 1 << 18  # characters
_UNSETTLED_WORDS: Final = 16  # jais-2 cuts the end of a run of space into up to nine
_NEVER_IN_UTF8: Final = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


class MergeEncoder:
    """Encodes text by merging pairs in the order of a list.

    Args:
        table: The tokens.
        merges: Pairs such as `"Ġ t"`, best first; the first space behind the first character parts them.
        cuts: How text is split before merging.

    Raises:
        TokenizerError: A merge has no two parts, or names a token that the vocabulary lacks.
    """

    def __init__(self, table: TokenTable, merges: Sequence[str], cuts: Splitter) -> None:
        pairs = _pairs(all_text(merges, "tokenizer.ggml.merges"))
        visible = dict(table.ids)
        for id, kind in table.special.items():
            if kind is not Kind.USER_DEFINED:
                visible.pop(table.texts[id], None)
        options: dict[str, Any] = {"byte_fallback": not table.byte_alphabet, "ignore_merges": cuts.whole_words}
        try:
            model = models.BPE(vocab=visible, merges=pairs, **options)
        except Exception:
            try:
                model = models.BPE(vocab=table.ids, merges=pairs, **options)
            except Exception as error:
                raise TokenizerError(f"the merges do not fit the vocabulary: {error}") from error
        self._tokenizer = Tokenizer(model)
        self._tokenizer.pre_tokenizer = _pre_tokenizer(cuts)
        self._metaspace = not table.byte_alphabet
        self._looks_far_ahead = cuts.looks_far_ahead
        self._table = table
        if self._metaspace:
            missing = [byte for name, byte in BYTE_NAMES.items() if name not in table.ids]
        else:
            missing = [byte for byte, character in enumerate(CHARACTER_OF) if character not in table.ids]
        self._missing_bytes = bytes(byte for byte in missing if byte not in _NEVER_IN_UTF8)

    def encode(self, text: str) -> list[int]:
        """Encode text without special tokens.

        Args:
            text: Text without lone surrogates.

        Returns:
            Token ids. What the vocabulary cannot spell is left out; see `unspelled`.
        """
        if self._metaspace:
            text = text.replace(" ", "\u2581")
        ids: list[int] = []
        at, size = 0, len(text) if self._looks_far_ahead else _WINDOW
        while at + size < len(text):
            window = self._tokenizer.encode(text[at : at + size], add_special_tokens=False)
            kept, end = _settled(window)
            if end == 0:
                size *= 2
                continue
            ids += window.ids[:kept]
            at, size = at + end, _WINDOW
        return ids + self._tokenizer.encode(text[at:], add_special_tokens=False).ids

    def unspelled(self, text: str) -> set[str]:
        """Find the characters of a text that the vocabulary cannot spell.

        Args:
            text: Text without lone surrogates.

        Returns:
            Those characters; empty for almost every text and vocabulary.
        """
        if not self._missing_bytes:
            return set()
        data = text.encode()
        if len(data.translate(None, self._missing_bytes)) == len(data):
            return set()
        lost = {character for character in set(text) if not set(self._missing_bytes).isdisjoint(character.encode())}
        return {character for character in lost if not (self._metaspace and self._spells(character))}

    def _spells(self, character: str) -> bool:
        return ("\u2581" if character == " " else character) in self._table.ids


def _settled(window: Encoding) -> tuple[int, int]:
    """Count the tokens of a window without its last words, and the characters in front of these words."""
    words = [-1 if word is None else word for word in window.word_ids]
    last = words[-1] - _UNSETTLED_WORDS if words else -1
    if last < 0:
        return 0, 0
    kept = bisect_right(words, last)
    behind = window.token_to_chars(kept)
    return (0, 0) if behind is None else (kept, behind[0])


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    if all(left and right for left, right in pairs):
        return pairs
    pairs = []
    for rank, merge in enumerate(merges):  # a part may itself begin with a space
        at = merge.find(" ", 1)
        if at < 0:
            raise TokenizerError(f"expected two parts in merge {rank} of tokenizer.ggml.merges, found {shown(merge)}")
        pairs.append((merge[:at], merge[at + 1 :]))
    return pairs


def _pre_tokenizer(cuts: Splitter) -> PreTokenizer:
    steps: list[PreTokenizer] = [
        pre_tokenizers.Digits(individual_digits=True)
        if step is EACH_NUMBER
        else pre_tokenizers.Split(Regex(step), "isolated")
        for step in cuts.steps
    ]
    if not cuts.metaspace:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)
