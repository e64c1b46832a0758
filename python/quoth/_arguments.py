"""Arguments of callers: plain values, or an `OptionsError` that names the argument.

In: whatever a caller gave. Out: `int`, `bool`, `list`. numpy's whole numbers count as such; True and False do not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from quoth.errors import OptionsError

__all__ = ["callback", "flag", "shown", "token_ids", "whole"]


def shown(value: object) -> str:
    """A value for a message: short, on one line."""
    try:
        text = repr(value)
    except Exception:  # numbers of more than 4300 digits have no text, and a class may do anything
        size = f" of {value.bit_length()} bits" if isinstance(value, int) else ""
        text = f"<{type(value).__name__}{size}>"
    return text if len(text) <= 80 else f"{text[:79]}…"


def whole(name: str, value: object, low: int, high: int | None = None, *, or_none: bool = False) -> int:
    """A whole number of `low` to `high` (None: no upper bound).

    Raises:
        OptionsError: It is something else; `or_none` only says in the message that None was allowed too.
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
    raise OptionsError(f"{name} is {shown(value)}, expected a whole number of {bounds}{', or None' if or_none else ''}")


def flag(name: str, value: object) -> bool:
    """True or False."""
    if isinstance(value, bool):
        return value
    raise OptionsError(f"{name} is {shown(value)}, expected True or False")


def callback(name: str, value: Callable[..., object] | None) -> None:
    """Refuse what is neither callable nor None."""
    if value is not None and not callable(value):
        raise OptionsError(f"{name} is {shown(value)}, expected something to call, or None")


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
