"""What a chat template may use: jinja2's immutable sandbox with bounds on time and memory.

In: the conversation that a template sees. Out: an environment whose templates end soon and stay small, to `template`.

B1  A rendering computes for at most `SECONDS`, and `SECONDS_A_PAIR` more for each pair of messages. The clock is read
    every few rounds of a loop, calls, filters and operators.
B2  No value weighs more than `LARGEST` and `TIMES` the conversation. The weight is the length of the value written out;
    what it holds several times counts as often. So no single operation, which nothing can interrupt, takes long.
B3  All values that are alive together take at most `HELD` times that. A ledger keeps the values that were made; when it
    is full, it drops those that only the ledger still refers to.
B4  What multiplies (`*`, `**`, replacing, joining, formats) is computed beforehand. Padding is not offered.

A conversation may be of any length: a template may scan all messages for each message, and may add its text up message
by message.
Cost: about a tenth of a microsecond a round, one to two microseconds a call or filter.
"""

from __future__ import annotations

import re
import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from itertools import chain
from typing import Any, Final, NamedTuple

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.runtime import str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["LimitedEnvironment", "budget"]

SOURCE_CHARACTERS: Final = 1 << 17
"""The longest in use have about 30 000."""
SECONDS: Final = 5.0
SECONDS_A_PAIR: Final = 5e-6
LARGEST: Final = 3 << 18
TIMES: Final = 64
HELD: Final = 4

_NOT_OFFERED: Final = frozenset(
    {"center", "expandtabs", "from_bytes", "ljust", "maketrans", "rjust", "striptags", "to_bytes"}
    | {"translate", "unescape", "zfill"}
)  # methods of text and numbers that pad, or that take more than time in proportion
_FILTERS_NOT_OFFERED: Final = ("batch", "center", "pprint", "slice", "striptags", "urlize", "wordwrap", "xmlattr")
_BITS: Final = 4096
_INDENT: Final = 8
_TRACKED: Final = 64
"""Shorter texts are counted with what holds them."""
_NONE: Final[dict[str, int]] = {}
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, type(_NONE.keys()), type(_NONE.values()), type(_NONE.items()))


class _Made(NamedTuple):
    """A value that is alive, or was."""

    value: Any
    weight: int
    n_bytes: int


def _references(made: _Made) -> int:
    return sys.getrefcount(made.value)


_ALONE: Final = _references(_Made(object(), 0, 0))


class _Budget:
    """What one rendering has spent and holds."""

    def __init__(self, conversation: Any) -> None:
        self.ledger: dict[int, _Made] = {}
        self.n_bytes = self.events = 0
        self.largest = self.held = self.full = sys.maxsize
        weight = self.weigh(conversation)
        self.largest = LARGEST + TIMES * weight
        self.held = self.n_bytes + HELD * self.largest
        self.full = self.n_bytes + self.held // 2
        n = len(conversation["messages"]) if conversation else 0
        self.seconds = SECONDS + SECONDS_A_PAIR * n * n
        self.end = time.thread_time() + self.seconds

    def tick(self) -> None:
        """Count an event, and look at the clock now and then (B1)."""
        self.events += 1
        if not self.events & 31 and time.thread_time() > self.end:
            raise SecurityError(f"expected at most {self.seconds:.1f} seconds of rendering, found more")

    def check(self, weight: int) -> None:
        """Refuse what would weigh too much (B2)."""
        if weight > self.largest:
            raise SecurityError(f"expected values of at most {self.largest} characters, found a larger one")

    def made(self, value: Any) -> Any:
        """Take a new value into the ledger."""
        self.weigh(value)
        return value

    def weigh(self, value: Any) -> int:
        """The length of a value written out, about; unless it is small, it is in the ledger afterwards."""
        if isinstance(value, str):
            weight = len(value)
            if weight < _TRACKED or id(value) in self.ledger:
                return weight
            n_bytes = sys.getsizeof(value)
        elif isinstance(value, _CONTAINERS):
            if (known := self.ledger.get(id(value))) is not None:
                return known.weight
            weight, n_bytes = 8, 64 + 64 * len(value)
            for part in chain(value, value.values()) if isinstance(value, dict) else value:
                weight += 2 + self.weigh(part)
        else:
            return 8
        self.check(weight)
        self.ledger[id(value)] = _Made(value, weight, n_bytes)
        self.n_bytes += n_bytes
        if self.n_bytes > self.full:
            self._sweep()
        return weight

    def _sweep(self) -> None:
        """Drop what is in the ledger alone, holders before what they hold (B3)."""
        for key in reversed(list(self.ledger)):
            if _references(self.ledger[key]) <= _ALONE:
                self.n_bytes -= self.ledger.pop(key).n_bytes
        if self.n_bytes > self.held:
            raise SecurityError(f"expected at most {self.held} bytes of text and lists, found more")
        self.full = (self.n_bytes + 1 + self.held) // 2


_CURRENT: ContextVar[_Budget | None] = ContextVar("quoth_template_budget", default=None)


@contextmanager
def budget(conversation: Any) -> Iterator[None]:
    """Give what runs inside a budget.

    Args:
        conversation: Plain data that the template sees; the larger, the more may be spent.
    """
    token = _CURRENT.set(_Budget(conversation))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _now() -> _Budget:
    return _CURRENT.get() or _Budget(None)


class _Rounds:
    """What a loop walks through, with a look at the clock."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)  # type: ignore[arg-type]  # `loop.length` expects a TypeError where there is none

    def __iter__(self) -> Iterator[Any]:
        now = _now()
        for n, value in enumerate(self.values):
            if not n & 15:
                now.tick()
            yield value


class _Written(list[str]):
    """What a template, macro or block has written so far."""

    def __init__(self) -> None:
        self.now = _now()
        self.weight = 0

    def append(self, text: str) -> None:
        self.weight += len(text) + 8
        self.now.check(self.weight)
        super().append(self.now.made(text))

    def extend(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.append(text)

    def joined(self) -> str:
        text: str = self.now.made("".join(self))
        return text


class _Counting(CodeGenerator):
    """Writes code in which new values go through `made`, and written text through `_Written`."""

    def buffer(self, frame: Any) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.written()")

    def _making(self, visit: Callable[[Any, Any], None], node: Any, frame: Any) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Any) -> None:
        self._making(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Any) -> None:
        self._making(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Any) -> None:
        if node.ctx == "load":
            self._making(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Any) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._making(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The environment; renders within `budget`."""

    code_generator_class = _Counting
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    written = _Written

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals.pop("lipsum")
        for name in _FILTERS_NOT_OFFERED:
            self.filters.pop(name, None)
        self.filters = {name: _bounded(name, made) for name, made in self.filters.items()}
        self.filters["rounds"] = _Rounds

    def add_filter(self, name: str, made: Callable[..., Any]) -> None:
        """Add a filter that is bounded as the others are."""
        self.filters[name] = _bounded(name, made)

    def made(self, value: Any) -> Any:
        """A value that the template makes of others."""
        return _now().made(value)

    def concat(self, pieces: Iterable[str]) -> str:
        """What was written, as one text."""
        if not isinstance(pieces, _Written):
            written = _Written()
            written.extend(pieces)
            pieces = written
        return pieces.joined()

    # ---- jinja2's hooks

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > SOURCE_CHARACTERS:
            raise SecurityError(f"expected a template of at most {SOURCE_CHARACTERS} characters, found {len(source)}")
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "rounds", [], [], None, None, lineno=loop.lineno)
        return tree

    def from_string(self, *args: Any, **options: Any) -> Any:
        """Compile a template."""

        def joined(values: Iterable[Any]) -> str:
            values = list(values)
            now = _now()
            now.check(sum(map(now.weigh, values)))
            return str(now.made(str_join(values)))

        template = super().from_string(*args, **options)
        # The names of jinja2's own functions in the code that it wrote.
        template.root_render_func.__globals__.update(concat=self.concat, str_join=joined, markup_join=joined)
        return template

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not (attr in _NOT_OFFERED and isinstance(obj, str | int))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        now = _now()
        now.tick()
        numbers = [side for side in (left, right) if isinstance(side, int)]
        if operator == "*" and len(numbers) < 2:
            weight = sum(now.weigh(side) for side in (left, right) if not isinstance(side, int))
            now.check(weight * max(0, *numbers, 0))
        elif operator == "*" and sum(number.bit_length() for number in numbers) > _BITS:
            raise SecurityError(f"expected a product of at most {_BITS} bits")
        elif operator == "**" and len(numbers) == 2 and left.bit_length() * abs(right) > _BITS:
            raise SecurityError(f"expected a power of at most {_BITS} bits")
        elif operator == "%" and isinstance(left, str):
            _check_percent(left)
        return now.made(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        now = _now()
        now.tick()
        given = sum(map(now.weigh, (*args, *kwargs.values())))
        now.check(given)
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            if name in ("format", "format_map"):
                _check_format(now, owner, given)
            elif name == "replace" and len(args) > 1:
                _check_replaced(now, owner, args[0], args[1])
            elif name == "join" and args:
                args = (_check_joined(now, owner, args[0]),)
            elif name == "encode":
                raise SecurityError("encode of a text is not allowed")
        return now.made(super().call(context, obj, *args, **kwargs))


def _check_percent(pattern: str) -> None:
    if re.search(r"%(\(|[-+ #0-9.]*(\d{4}|\*))", pattern):
        raise SecurityError("expected a format without names that pads to at most 999 characters")


def _check_format(now: _Budget, pattern: str, given: int) -> None:
    for _, _, spec, _ in string.Formatter().parse(pattern):
        if spec and re.search(r"\d{4}|\{", spec):
            raise SecurityError("expected a format that pads to at most 999 characters")
    now.check(len(pattern) + pattern.count("{") * given)


def _check_replaced(now: _Budget, text: str, old: Any, new: Any) -> None:
    now.check(len(text) + text.count(str(old)) * len(str(new)))


def _check_joined(now: _Budget, glue: str, values: Iterable[Any]) -> list[Any]:
    values = list(values)
    now.check(now.weigh(values) + len(glue) * len(values))
    return values


def _check_filter(now: _Budget, name: str, given: dict[str, Any]) -> None:
    """Compute what a filter will make, from its arguments by name."""
    if name == "replace":
        _check_replaced(now, str(given["s"]), given["old"], given["new"])
    elif name == "join" and not isinstance(given["value"], str):
        given["value"] = _check_joined(now, str(given["d"]), given["value"])
    elif name == "sum" and not isinstance(given["start"], int | float):
        raise SecurityError("filter sum: expected a number to start with")
    elif name == "format":
        _check_percent(str(given["value"]))
    elif name == "round" and abs(given["precision"]) > 64:
        raise SecurityError("filter round: expected a precision of at most 64")
    elif name in ("indent", "tojson"):
        width = given["width" if name == "indent" else "indent"]
        wide = [width or 0, *map(len, given.get("separators") or ())]
        widest = max(len(part) if isinstance(part, str) else part for part in wide)
        if widest > _INDENT:
            raise SecurityError(
                f"filter {name}: expected an indentation and separators of at most {_INDENT} characters"
            )
        if name == "tojson":
            now.check(now.weigh(given["value"]) * max(1, widest * _levels(given["value"]) // 8))


def _levels(value: Any) -> int:
    """How many lists and mappings stand inside each other."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return 0 if inner is None else 1 + max(map(_levels, inner), default=0)


_CHECKED: Final = ("format", "indent", "join", "replace", "round", "sum", "tojson")


def _bounded(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that looks at the clock, and whose results are in the ledger."""
    names = signature(made)

    @wraps(made)
    def filter(*args: Any, **kwargs: Any) -> Any:
        now = _now()
        now.tick()
        now.check(sum(now.weigh(value) for value in (*args, *kwargs.values()) if isinstance(value, _CONTAINERS)))
        if name in _CHECKED:
            given = names.bind(*args, **kwargs)
            given.apply_defaults()
            _check_filter(now, name, given.arguments)
            args, kwargs = given.args, given.kwargs
        return now.made(made(*args, **kwargs))

    return filter
