"""Numbers as people read them.

In: numbers. Out: short text.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quoth.bench.paired import Ratio, Spread

__all__ = ["as_json", "count", "rate", "seconds", "share", "size", "spread", "times"]


def size(n_bytes: float) -> str:
    """Bytes, in powers of 1000, as sizes of files and speeds of memory are given."""
    value, unit = float(n_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def count(n: float) -> str:
    """A large number: 134.5 M."""
    value, unit = float(n), ""
    for unit in ("", " k", " M", " G", " T"):
        if abs(value) < 999.5 or unit == " T":
            break
        value /= 1000
    return f"{value:.0f}" if not unit else f"{value:.4g}{unit}"


def seconds(ns: float) -> str:
    """A time, given in nanoseconds."""
    if ns < 1e6:
        return f"{ns / 1e3:.0f} µs"
    return f"{ns / 1e6:.3g} ms" if ns < 0.9995e9 else f"{ns / 1e9:.3g} s"


def rate(per_second: float) -> str:
    """Tokens a second."""
    return f"{per_second:.0f} tok/s" if per_second >= 100 else f"{per_second:.3g} tok/s"


def share(part: float) -> str:
    """A share as per cent."""
    return f"{100 * part:.0f} %"


def spread(figure: Spread, digits: int = 2, unit: str = "") -> str:
    """A median with its 25th and 75th percentile."""
    return f"{figure.median:.{digits}f}{unit} ({figure.low:.{digits}f} - {figure.high:.{digits}f})"


def times(figure: Ratio) -> str:
    """A ratio of summed times with the least and the greatest of its pairs."""
    return f"{figure.ratio:.2f}x ({figure.low:.2f} - {figure.high:.2f})"


def as_json(value: Any) -> Any:
    """Plain data for JSON, which knows no infinities: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    return [as_json(entry) for entry in value] if isinstance(value, list | tuple) else value
