"""Arguments of callers: plain values, or an `OptionsError` that names the argument.

In: whatever a caller gave. Out: `int`, `bool`, `list`. numpy's whole numbers count as such; True and False do not.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from quoth.errors import OptionsError

__all__ = ["as_mapping", "callback", "copied", "flag", "shown", "text", "token_ids", "utf8", "whole"]

LEVELS: Final = 64
"""Lists and mappings that may stand inside each other; chat templates see no more."""


def shown(value: object) -> str:
    """A value for a message: short, on one line."""
    try:
        text = repr(value)
    except (
        Exception
    ):  # numbers of more than 4300 digits have no text, nor do very deep lists, and a class may do anything
        size = f" of {value.bit_length()} bits" if isinstance(value, int) else ""
        text = f"<{type(value).__name__}{size}>"
    return text if len(text) <= 80 else f"{text[:79]}…"


def utf8(name: str, value: str) -> bytes:
    """Text as UTF-8.

    Raises:
        OptionsError: It has a lone surrogate, which UTF-8 cannot say.
    """
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptionsError(f"{name} has a lone surrogate at character {error.start}, expected text") from None


def text(name: str, value: object) -> str:
    """Text that can be encoded.

    Raises:
        OptionsError: It is something else.
    """
    if not isinstance(value, str):
        raise OptionsError(f"{name} is {shown(value)}, expected text")
    utf8(name, value)
    return value


def as_mapping(value: Any) -> Any:
    """A dataclass or a pydantic model (`model_dump`) as a mapping; everything else as it is."""
    if isinstance(value, (type, Mapping)):
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value.model_dump() if callable(getattr(value, "model_dump", None)) else value


def copied(name: str, value: Any, level: int = 0) -> Any:
    """A copy of plain data that the caller cannot change any more.

    Args:
        name: What it is called in errors.
        value: Texts, numbers, lists and mappings; mappings, dataclasses and pydantic models become `dict`. Anything
            else in it is copied by `copy.deepcopy`.
        level: How many lists and mappings it stands in.

    Raises:
        OptionsError: A text has a lone surrogate, it has more than 64 levels, or something in it cannot be copied.
    """

    def walk(value: Any, where: str, level: int) -> Any:
        if level > LEVELS:
            raise OptionsError(f"{name} has more than {LEVELS} levels, expected at most that")
        if isinstance(value, str):
            utf8(where, value)
            return value
        if value is None or isinstance(value, (bool, int, float)):
            return value
        value = as_mapping(value)
        if isinstance(value, Mapping):
            return {walk(key, f"a key of {where}", level): walk(entry, f"{where}[{key!r}]", level + 1)
                    for key, entry in value.items()}  # fmt: skip
        if isinstance(value, (list, tuple)):
            items = [walk(entry, f"{where}[{at}]", level + 1) for at, entry in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        try:
            return copy.deepcopy(value)
        except Exception as error:  # whatever such a thing raises
            raise OptionsError(f"{where} cannot be copied: {type(error).__name__}: {error}") from error

    return walk(value, name, level)


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """A whole number of `low` to `high` (None: no upper bound).

    Raises:
        OptionsError: It is something else.
    """
    number = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is not None and low <= number and (high is None or number <= high):
        return number
    bounds = f"at least {low}" if high is None else f"{low} to {high if high < 2**32 else '2^64 - 1'}"
    raise OptionsError(f"{name} is {shown(value)}, expected a whole number of {bounds}")


def flag(name: str, value: object) -> bool:
    """True or False."""
    if isinstance(value, bool):
        return value
    raise OptionsError(f"{name} is {shown(value)}, expected True or False")


def callback(name: str, value: Callable[..., object] | None) -> None:
    """Refuse what is neither callable nor None."""
    if value is not None and not callable(value):
        raise OptionsError(f"{name} is {shown(value)}, expected something to call")


def token_ids(name: str, value: Any, expected: str = "token ids") -> list[Any]:
    """The items of a sequence that may be token ids; the core looks at each.

    Raises:
        OptionsError: It is text or bytes, has no order, or cannot be walked through at all.
    """
    if isinstance(value, list):
        return value
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        kind = "text" if isinstance(value, str) else type(value).__name__
        raise OptionsError(f"{name} is {kind}, expected {expected}")
    plain = value.tolist() if hasattr(value, "tolist") else value  # arrays
    if not isinstance(plain, (AbstractSet, Mapping)):
        try:
            items = iter(plain)
        except TypeError:
            pass
        else:
            return list(items)
    raise OptionsError(f"{name} is {shown(value)}, expected {expected}")
