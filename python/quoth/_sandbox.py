"""What a chat template may spend: jinja2's immutable sandbox with a budget.

In: a class of environments. Out: one whose templates cannot run for ever or fill memory, to `template`.

B1  A rendering makes at most `STEPS` rounds of loops and macros, computes for at most `SECONDS`, and makes text and
    lists of at most `BYTES` bytes, more where the conversation is large. Past any of these it fails with the figure.
B2  No value weighs more than a quarter of that. The weight is the length of the value written out, what it holds
    several times counted as often: so no single operation on values, which cannot be interrupted, takes long.
B3  What multiplies (`*`, padding, replacing, joining, formats) is reckoned before it is made.

Loops and macros get a call in front of their bodies; lists, slices and `~` become calls; operators, filters and calls
are jinja2's own hooks. Weights are kept by identity: values cannot be changed, and all are kept until the end.
Cost: about a microsecond a round, a call or an output.
"""

from __future__ import annotations

import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import MappingProxyType
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["LimitedEnvironment", "budget"]

SOURCE_CHARACTERS: Final = 1 << 17
"""The longest in use have about 30 000."""
SOURCE_NODES: Final = 20_000
"""Parts of the source after parsing. The longest in use have about 3 000."""
STEPS: Final = 100_000
"""One more is allowed for each byte of the conversation."""
SECONDS: Final = 2.0
BYTES: Final = 64 << 20
BYTES_A_BYTE: Final = 512
"""Bytes that may be made for each byte of the conversation: templates add texts up, message by message."""

_PAD: Final = 10_000
_BITS: Final = 4096
_SLOW_INPUT: Final = 1 << 16
_NONE: Final[dict[str, int]] = {}
_VIEWS: Final = (type(_NONE.keys()), type(_NONE.values()), type(_NONE.items()))
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, *_VIEWS)


class _Budget:
    """What one rendering has spent."""

    def __init__(self, conversation: Any) -> None:
        self.steps = self.spent = self.events = 0
        self.end = time.thread_time() + SECONDS
        self.known: dict[int, tuple[Any, int]] = {}
        self.most_weight = sys.maxsize
        weight = self.weigh(conversation)
        self.most_steps, self.most_bytes = STEPS + weight, BYTES + BYTES_A_BYTE * weight
        self.most_weight = self.most_bytes // 4

    def step(self, n_bytes: int) -> None:
        self.steps += 1
        if self.steps > self.most_steps:
            raise SecurityError(f"expected at most {self.most_steps} rounds of loops and macros, found more")
        self.charge(n_bytes)

    def charge(self, n_bytes: int) -> None:
        self.spent += n_bytes
        if self.spent > self.most_bytes:
            raise SecurityError(f"expected at most {self.most_bytes} bytes of text and lists, found more")
        self.events += 1
        if self.events & 31 == 0 and time.thread_time() > self.end:
            raise SecurityError(f"expected at most {SECONDS} seconds of rendering, found more")

    def weigh(self, value: Any) -> int:
        """The length of a value written out, about."""
        if isinstance(value, str | bytes):
            return self.light(len(value))
        if not isinstance(value, _CONTAINERS):
            return 8
        if (known := self.known.get(id(value))) is not None:
            return known[1]
        total = 8
        for entry in value:
            total += self.weigh(entry) + 2
            if isinstance(value, Mapping):
                total += self.weigh(value[entry])
            self.light(total)
        self.known[id(value)] = (value, total)
        return total

    def total(self, args: Iterable[Any], kwargs: Mapping[str, Any] = MappingProxyType({})) -> int:
        """What arguments weigh; the containers that hold them are not remembered."""
        return sum(map(self.weigh, args)) + sum(map(self.weigh, kwargs.values()))

    def light(self, weight: int) -> int:
        """Refuse what weighs too much."""
        if weight > self.most_weight:
            raise SecurityError(f"expected values of at most {self.most_weight} bytes, found a larger one")
        return weight

    def made(self, value: Any) -> Any:
        """Charge for a new value."""
        if isinstance(value, str | bytes):
            self.light(len(value))
            self.charge(sys.getsizeof(value))
        elif isinstance(value, _CONTAINERS):
            self.weigh(value)
            self.charge(64 + 8 * len(value))
        else:
            self.charge(16)
        return value


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


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The environment; renders within `budget`."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_shown, **options)
        self.globals.pop("lipsum")
        self.filters = {name: _reckoned(name, made) for name, made in self.filters.items()}

    def add_filter(self, name: str, made: Callable[..., Any]) -> None:
        """Add a filter that is charged for as the others are."""
        self.filters[name] = _reckoned(name, made)

    # ---- the source

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > SOURCE_CHARACTERS:
            raise SecurityError(f"expected a template of at most {SOURCE_CHARACTERS} characters, found {len(source)}")
        tree = super()._parse(source, name, filename)
        if (found := sum(1 for _ in _all(tree))) > SOURCE_NODES:
            raise SecurityError(f"expected a template of at most {SOURCE_NODES} parts, found {found}")
        _count(tree)
        return tree

    # ---- what counting calls

    def step(self, n_bytes: int) -> None:
        """A round of a loop or macro begins, which writes so many bytes of the template's own."""
        _now().step(n_bytes)

    def concatenated(self, *values: Any) -> str:
        """`a ~ b`."""
        now = _now()
        now.light(now.total(values))
        text: str = now.made("".join(map(str, values)))
        return text

    def sliced(self, value: Any, *edges: Any) -> Any:
        """`a[b:c:d]`."""
        try:
            return _now().made(value[slice(*edges)])
        except (TypeError, ValueError, KeyError):
            return self.undefined(obj=value)

    def listed(self, *values: Any) -> list[Any]:
        """`[a, b]`."""
        made: list[Any] = _now().made(list(values))
        return made

    def tupled(self, *values: Any) -> tuple[Any, ...]:
        """`(a, b)`."""
        made: tuple[Any, ...] = _now().made(values)
        return made

    def mapped(self, *pairs: Any) -> dict[Any, Any]:
        """`{a: b}`."""
        for key in pairs[::2]:
            _now().weigh(key)
        made: dict[Any, Any] = _now().made(dict(zip(pairs[::2], pairs[1::2], strict=True)))
        return made

    # ---- jinja2's hooks

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        now = _now()
        sizes = [len(side) for side in (left, right) if isinstance(side, str | bytes | list | tuple)]
        if operator == "*":
            if sizes:
                times = [side for side in (left, right) if isinstance(side, int)]
                now.charge(8 * sizes[0] * max(0, *times, 0))
            elif _bits(left) + _bits(right) > _BITS:
                raise SecurityError(f"expected a product of at most {_BITS} bits")
        elif operator == "**" and _bits(left) * (right if isinstance(right, int) else 1) > _BITS:
            raise SecurityError(f"expected a power of at most {_BITS} bits")
        elif operator == "%" and isinstance(left, str | bytes):
            _check_percent(left)
            # A mapping's entries may be named as often as there are signs.
            signs = left.count("%" if isinstance(left, str) else b"%")  # type: ignore[arg-type]
            now.charge(len(left) + (now.total(right) if isinstance(right, tuple) else signs * now.weigh(right)))
        elif operator == "+" and sizes:
            now.charge(8 * sum(sizes))
        return now.made(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if getattr(obj, "__self__", None) is self:  # one of those above, which count for themselves
            return obj(*args)
        now = _now()
        now.light(now.total(args, kwargs))
        now.charge(16)
        original = getattr(obj, "__wrapped__", obj)
        owner, name = getattr(original, "__self__", None), getattr(original, "__name__", "")
        if isinstance(owner, str | bytes):
            args = _check_text_method(now, owner, name, args, kwargs)
        elif (isinstance(owner, int) or owner is int) and name in ("to_bytes", "from_bytes"):
            raise SecurityError(f"{name} of numbers is not allowed")
        return now.made(super().call(context, obj, *args, **kwargs))


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _shown(value: Any) -> str:
    """What `{{ value }}` writes."""
    now = _now()
    if not isinstance(value, str):
        now.charge(now.weigh(value))
        value = str(value)
    text: str = now.made(value)
    return text


def _check_percent(text: str | bytes) -> None:
    """Refuse a pattern for `%` that pads widely."""
    shown = text if isinstance(text, str) else text.decode("latin-1")
    for part in shown.split("%")[1:]:
        width = part.lstrip("-+ #0").partition("(")[0]
        after_name = part.rpartition(")")[2] if part.startswith("(") else part
        for digits in (width, after_name):
            _check_spec(digits.lstrip("-+ #0")[:32])


def _check_spec(spec: str) -> None:
    digits = 0
    for character in spec:
        digits = digits + 1 if character.isdigit() else 0
        if digits > 4 or character in "*{":
            raise SecurityError("expected a format that pads to at most 9999 characters")
        if not (character.isdigit() or character in ".-+ #0<>^=,_"):
            digits = 0


def _check_text_method(
    now: _Budget, owner: str | bytes, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Reckon what a method of a text will make."""
    numbers = [abs(value) for value in (*args, *kwargs.values()) if isinstance(value, int)]
    if name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        width = max(numbers, default=8)
        if width > _PAD:
            raise SecurityError(f"expected padding to at most {_PAD} characters, found {width}")
        now.charge(width * (owner.count("\t" if isinstance(owner, str) else b"\t") if name == "expandtabs" else 1))  # type: ignore[arg-type]
    elif name in ("format", "format_map"):
        assert isinstance(owner, str)
        for _, field, spec, _ in string.Formatter().parse(owner):
            if field is not None:
                _check_spec(spec or "")
        now.charge(owner.count("{") * now.total(args, kwargs))
    elif name == "replace" and len(args) > 1:
        now.charge(len(owner) + owner.count(args[0]) * len(args[1]))
    elif name == "join" and args:
        args = (list(args[0]), *args[1:])
        now.charge(now.weigh(args[0]) + len(owner) * len(args[0]))
    elif name == "translate" and args and isinstance(args[0], Mapping):
        longest = max((now.weigh(value) for value in args[0].values()), default=1)
        now.charge(len(owner) * longest)
    elif name in ("split", "rsplit", "splitlines"):
        pieces = owner.count(args[0]) if args and isinstance(args[0], str | bytes) else len(owner) // 2  # type: ignore[arg-type]
        now.charge(64 * pieces + len(owner))
    return args


def _reckoned(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is charged for."""
    first = 1 if hasattr(made, "jinja_pass_arg") else 0

    @wraps(made)
    def filter(*args: Any, **kwargs: Any) -> Any:
        now = _now()
        if len(args) > first:
            value = args[first]
            now.charge(0 if isinstance(value, str) else now.weigh(value) // 8)
            args = _check_filter(now, name, args, first, kwargs)
        return now.made(made(*args, **kwargs))

    return filter


def _argument(at: int, name: str, rest: tuple[Any, ...], kwargs: Mapping[str, Any], default: Any) -> Any:
    return kwargs.get(name, rest[at] if len(rest) > at else default)


def _check_filter(
    now: _Budget, name: str, args: tuple[Any, ...], first: int, kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Reckon what a filter will make."""
    value, rest = args[first], args[first + 1 :]

    def most(at: int, key: str, limit: int, default: Any = 0) -> Any:
        found = _argument(at, key, rest, kwargs, default)
        size = abs(found) if isinstance(found, int) else len(found) if isinstance(found, str) else 0
        if size > limit:
            raise SecurityError(f"filter {name}: expected {key} of at most {limit}, found {size}")
        return size

    if name == "center":
        now.charge(most(0, "width", _PAD))
    elif name == "indent":
        now.charge(most(0, "width", _PAD, 4) * (str(value).count("\n") + 1))
    elif name == "tojson":
        for at, key in enumerate(("ensure_ascii", "indent", "separators", "sort_keys")):
            most(at, key, 64)
        if any(len(part) > 64 for part in _argument(2, "separators", rest, kwargs, None) or ()):
            raise SecurityError("filter tojson: expected separators of at most 64 characters")
        now.charge(now.weigh(value))
    elif name == "round":
        most(0, "precision", 64)
    elif name in ("batch", "slice"):
        most(0, "linecount" if name == "batch" else "slices", 100_000)
    elif name == "replace":
        old, new = (str(_argument(at, key, rest, kwargs, "")) for at, key in enumerate(("old", "new")))
        now.charge(len(str(value)) + str(value).count(old) * len(new))
    elif name == "join":
        value = list(value) if isinstance(value, Iterable) else value
        glue = str(_argument(0, "d", rest, kwargs, ""))
        now.charge(now.weigh(value) + len(glue) * (len(value) if isinstance(value, list) else 0))
    elif name == "sum" and not isinstance(_argument(1, "start", rest, kwargs, 0), int | float):
        value = list(value)
        now.charge(8 * len(value) * sum(len(part) for part in value if isinstance(part, list | tuple)))
    elif name == "format":
        _check_percent(str(value))
        now.charge(str(value).count("%") * now.total(rest, kwargs))
    elif name == "list" and not isinstance(value, _CONTAINERS):
        now.charge(64 * len(value) if hasattr(value, "__len__") else 0)
    elif name in ("pprint", "urlize", "striptags", "wordwrap", "xmlattr", "title", "wordcount", "truncate"):
        if now.weigh(value) > _SLOW_INPUT:
            raise SecurityError(f"filter {name}: expected a value of at most {_SLOW_INPUT} characters, found more")
        most(2, "wrapstring", 1000)
    return (*args[:first], value, *rest)


def _all(node: nodes.Node) -> Iterator[nodes.Node]:
    """A node and all below it; jinja2's own walk takes time in proportion to the depth for each."""
    todo = [node]
    while todo:
        node = todo.pop()
        todo += node.iter_child_nodes()
        yield node


def _count(tree: nodes.Template) -> None:
    """Rewrite a template so that it counts."""
    rounds: list[Any] = [
        node for node in _all(tree) if isinstance(node, nodes.Template | nodes.For | nodes.Macro | nodes.CallBlock)
    ]
    for node in rounds:
        written = nodes.Const(_written(node))
        node.body.insert(0, nodes.ExprStmt(_calling("step", [written], node), lineno=node.lineno))
    _replace(tree)


def _replace(node: nodes.Node) -> None:
    """Put calls in place of what makes values, inner ones first."""
    for name, field in node.iter_fields():
        if isinstance(field, nodes.Node):
            _replace(field)
            setattr(node, name, _call_for(field))
        elif isinstance(field, list):
            for at, entry in enumerate(field):
                if isinstance(entry, nodes.Node):
                    _replace(entry)
                    field[at] = _call_for(entry)


def _written(node: nodes.Node) -> int:
    """Bytes that a round writes of the template's own, and makes of lists that stand in it."""
    n_bytes = 0
    for found in _all(node):
        if isinstance(found, nodes.TemplateData):
            n_bytes += len(found.data)
        elif isinstance(found, nodes.List | nodes.Tuple | nodes.Dict):
            n_bytes += 16 * len(found.items)
    return n_bytes


def _calling(method: str, args: list[Any], at: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method, lineno=at.lineno)
    return nodes.Call(function, args, [], None, None, lineno=at.lineno)


def _call_for(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.Concat):
        return _calling("concatenated", list(node.nodes), node)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        edges = [edge or nodes.Const(None) for edge in (node.arg.start, node.arg.stop, node.arg.step)]
        return _calling("sliced", [node.node, *edges], node)
    if isinstance(node, nodes.List):
        return _calling("listed", list(node.items), node)
    if isinstance(node, nodes.Tuple) and node.ctx == "load":
        return _calling("tupled", list(node.items), node)
    if isinstance(node, nodes.Dict):
        return _calling("mapped", [part for pair in node.items for part in (pair.key, pair.value)], node)
    return node
