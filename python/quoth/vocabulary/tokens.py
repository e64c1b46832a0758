"""Tokens: what each id of a vocabulary is and which bytes it stands for, read from a GGUF file's metadata.

In: the mapping of metadata. Out: texts, kinds, bytes and named ids, to `bpe`, `scores`, `special` and
`quoth.tokenizer`.

T1  Every id in 0 to `n_vocab` - 1 has bytes; control and user-defined tokens stand for their own text, byte tokens
    for one byte.
T2  In the byte alphabet the bytes of the tokens of a text, joined, are the text's UTF-8.
T3  A token whose name says that a turn ends counts as control whatever its type says: files exist that mistype it.
T4  Reading costs nothing but references; the index from text to id and the bytes are made when first asked for.

The byte alphabet gives each of the 256 bytes a printable character: 188 stand for themselves, the other 68 follow
from U+0100 in order of their byte (as GPT-2 defined it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from operator import index
from typing import Any, Final

from quoth._arguments import shown
from quoth.errors import TokenizerError

__all__ = ["BYTE_NAMES", "BYTE_OF", "CHARACTER_OF", "Kind", "TokenTable", "all_text"]

_KEY: Final = "tokenizer.ggml."
_SPACE: Final = "\u2581"


class Kind(IntEnum):
    """What a token is for, with the numbers that `tokenizer.ggml.token_type` uses."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


CHARACTER_OF: Final = _byte_alphabet()
"""The character that stands for each byte in the byte alphabet, by byte."""
BYTE_OF: Final = {character: byte for byte, character in enumerate(CHARACTER_OF)}
"""The byte that each character of the byte alphabet stands for."""
BYTE_NAMES: Final = {f"<0x{byte:02X}>": byte for byte in range(256)}
"""The byte that each byte token stands for, by the token's text, where text is spelled in UTF-8."""

_ROLES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelled so in the format
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
_TURN_ENDS: Final = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>",
        "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "[e~[",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)  # fmt: skip
_PERHAPS_TURN_ENDS: Final = frozenset({"</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"})  # ordinary text elsewhere
_OTHER_ENDS: Final = frozenset({"<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>", "<|tool_response>"})
_END_KEYS: Final = tuple(f"{name}_token_id" for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"))
_SPECIAL_KINDS: Final = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)


def all_text(values: Sequence[Any], key: str) -> Sequence[str]:
    """A list of a file, if all of it is text.

    Args:
        values: The list.
        key: Its key, for the message.

    Returns:
        The list.

    Raises:
        TokenizerError: Something in it is not text; strings of a file that are not UTF-8 arrive as bytes.
    """
    try:
        "".join(values)  # the fastest look at every type
    except TypeError:
        at, wrong = next((at, value) for at, value in enumerate(values) if not isinstance(value, str))
        found = "bytes that are not UTF-8" if isinstance(wrong, bytes) else type(wrong).__name__
        raise TokenizerError(f"expected text in {key}, found {found} as entry {at}") from None
    return values


class TokenTable:
    """The tokens of one vocabulary.

    Args:
        metadata: Metadata of a GGUF file, `tokenizer.ggml.*` keys with lists for arrays. Read, never changed; arrays
            are kept by reference.
        byte_alphabet: True if normal tokens spell bytes in the byte alphabet, false if they spell UTF-8 with `▁` for
            a space.

    Raises:
        TokenizerError: The token list is missing or empty, an array has the wrong length, a key is of a wrong type,
            or the id of the beginning or the end of text is outside the vocabulary.
    """

    def __init__(self, metadata: Mapping[str, Any], *, byte_alphabet: bool) -> None:
        self.byte_alphabet: Final = byte_alphabet
        tokens = metadata.get(_KEY + "tokens")
        if not isinstance(tokens, Sequence) or isinstance(tokens, str | bytes) or len(tokens) == 0:
            raise TokenizerError(f"expected a list of tokens in {_KEY}tokens, found {type(tokens).__name__}")
        self.texts: Final[Sequence[str]] = all_text(tokens, _KEY + "tokens")
        self._types = self._array(metadata, "token_type")
        self.scores: Final = self._array(metadata, "scores")
        self._bytes: dict[int, bytes] = {}
        self.role_ids: Final = {role: id for role, key in _ROLES.items() if (id := self._id(metadata, key)) is not None}
        self._end_ids: Final = {id for key in _END_KEYS if (id := self._id(metadata, key)) is not None}
        suppressed = metadata.get(_KEY + "suppress_tokens") or []
        if not isinstance(suppressed, list) or not all(type(id) is int for id in suppressed):
            raise TokenizerError(
                f"expected a list of whole numbers in {_KEY}suppress_tokens, found {shown(suppressed)}"
            )
        self.suppressed_ids: Final = frozenset(id for id in suppressed if 0 <= id < len(self.texts))

    def _array(self, metadata: Mapping[str, Any], key: str) -> Sequence[Any] | None:
        values = metadata.get(_KEY + key)
        if values is None:
            return None
        if not hasattr(values, "__len__") or len(values) < len(self.texts):
            found = f"{len(values)} entries" if hasattr(values, "__len__") else type(values).__name__
            raise TokenizerError(f"expected {len(self.texts)} entries in {_KEY}{key}, found {found}")
        array: Sequence[Any] = values.tolist() if hasattr(values, "tolist") else values
        if isinstance(array[0], bool) or not isinstance(
            array[0], int if key == "token_type" else int | float
        ):  # arrays of a file are of one type
            raise TokenizerError(f"expected numbers in {_KEY}{key}, found {type(array[0]).__name__}")
        return array

    def _id(self, metadata: Mapping[str, Any], key: str) -> int | None:
        value = metadata.get(_KEY + key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise TokenizerError(f"expected a token id in {_KEY}{key}, found {shown(value)}")
        if 0 <= value < len(self.texts):
            return value
        if key in ("bos_token_id", "eos_token_id"):
            raise TokenizerError(f"expected an id below {len(self.texts)} in {_KEY}{key}, found {shown(value)}")
        return None  # files name padding that the vocabulary lacks

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.texts)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id by text, without tokens of empty text.

        Raises:
            TokenizerError: Two tokens have the same text.
        """
        ids = dict(zip(self.texts, range(len(self.texts)), strict=True))
        n_empty = self.texts.count("") if "" in ids else 0
        if len(ids) != len(self.texts) - max(n_empty - 1, 0):
            twice = next(id for id, text in enumerate(self.texts) if text and ids[text] != id)
            text = self.texts[twice]
            raise TokenizerError(f"expected distinct tokens, found {shown(text)} with the ids {twice} and {ids[text]}")
        ids.pop("", None)
        return ids

    def kind(self, id: int) -> Kind:
        """Say what a token is for.

        Args:
            id: A token id in 0 to `n_vocab` - 1.

        Returns:
            Its kind; an unknown number in the file is `UNDEFINED`.
        """
        if id in self._changed_kinds:
            return self._changed_kinds[id]
        number = 1 if self._types is None else int(self._types[id])
        return Kind(number) if 0 <= number <= Kind.BYTE else Kind.UNDEFINED

    @cached_property
    def _changed_kinds(self) -> dict[int, Kind]:
        changed = {self.ids[name]: Kind.CONTROL for name in _TURN_ENDS if name in self.ids}
        if self._types is None:
            if not self.byte_alphabet:
                changed |= {self.ids[name]: Kind.BYTE for name in BYTE_NAMES if name in self.ids}
            changed |= {id: Kind.CONTROL for role, id in self.role_ids.items() if role != "unk_token"}
        return changed

    @cached_property
    def special(self) -> dict[int, Kind]:
        """Kind by id of every control, user-defined and unknown token."""
        numbers = tuple(int(kind) for kind in _SPECIAL_KINDS)
        found = {} if self._types is None else {i: n for i, n in enumerate(self._types) if n in numbers}
        kinds = {id: Kind(int(number)) for id, number in found.items() if id < len(self.texts)}
        return kinds | {id: kind for id, kind in self._changed_kinds.items() if kind in _SPECIAL_KINDS}

    @cached_property
    def eog_ids(self) -> frozenset[int]:
        """Ids after which generation ends: end of text, of turn and of message, by key and by well-known name."""
        found = set(self._end_ids)
        names = _TURN_ENDS | _OTHER_ENDS
        found |= {self.ids[name] for name in names if name in self.ids}
        marks = {id for id, kind in self.special.items() if kind != Kind.USER_DEFINED}
        found |= {self.ids[name] for name in _PERHAPS_TURN_ENDS if self.ids.get(name) in marks}
        if {"<|return|>", "<|call|>", "<|end|>"} <= self.ids.keys() or {
            "<|calls|>",
            "<|flush|>",
            "<|end|>",
        } <= self.ids.keys():
            found.discard(self.ids["<|end|>"])  # in these vocabularies it ends a message inside a turn
        return frozenset(found)

    def check(self, id: Any) -> None:
        """Refuse what is not the id of a token.

        Raises:
            TokenizerError: The id is outside the vocabulary, or no whole number.
        """
        try:
            if not isinstance(id, bool) and 0 <= index(id) < len(self.texts):
                return
        except TypeError:
            pass
        raise TokenizerError(f"expected a token id in 0 to {len(self.texts) - 1}, found {shown(id)}")

    def bytes_of(self, id: int) -> bytes:
        """Give the bytes that a token stands for.

        Args:
            id: A token id in 0 to `n_vocab` - 1.

        Returns:
            The bytes; not every token is valid UTF-8 by itself. Control tokens give their text.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        try:
            return self._bytes[id]
        except (KeyError, TypeError):
            self.check(id)
        text, kind = self.texts[id], self.kind(id)
        if kind is Kind.BYTE and text in BYTE_NAMES:
            value = bytes((BYTE_NAMES[text],))
        elif kind in _SPECIAL_KINDS:
            value = text.encode()
        elif not self.byte_alphabet:
            value = text.replace(_SPACE, " ").encode()
        elif all(map(BYTE_OF.__contains__, text)):
            value = bytes(map(BYTE_OF.__getitem__, text))
        else:
            value = text.encode()  # added by hand, outside the alphabet
        self._bytes[id] = value
        return value
