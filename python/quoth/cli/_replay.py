"""What `quoth bench replay` reads: traces, tables of costs, options by name.

In: names, paths, texts. Out: traces, tables, options.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoth._files import read_text
from quoth.cli._load import find, load
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from quoth.bench.traces import Trace
    from quoth.options import Speculation

__all__ = ["Costs", "Way", "all_traces", "as_way", "read_costs"]


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to draft."""

    options: tuple[str, ...]
    """As they were given."""
    speculation: Speculation
    sources: tuple[str, ...]
    """The sources that draft."""


def as_way(options: Sequence[str], sources: Sequence[str]) -> Way:
    """Options by name, `sources=NAME,…` among them, on top of which sources draft.

    Raises:
        OptionsError: A name is unknown, or a value makes no sense.
    """
    from quoth.bench.replay import SOURCES

    rest, chosen = [], tuple(sources)
    for entry in options:
        if entry.startswith("sources="):
            chosen = tuple(name.strip() for name in entry.removeprefix("sources=").split(",") if name.strip())
        else:
            rest.append(entry)
    if unknown := [name for name in chosen if name not in SOURCES]:
        raise OptionsError(f"sources has {unknown[0]!r}, expected some of {', '.join(SOURCES)}")
    return Way(tuple(options), as_options(rest), chosen)


def all_traces(paths: Sequence[Path], tokenizer: str | None, join: bool, most: int | None) -> Iterator[Trace]:
    """All traces, read as they are needed."""
    from quoth.bench.traces import read_traces, text_traces

    reader = None
    left = most
    for path in paths:
        if path.is_file() and path.suffix == ".jsonl":
            yield from read_traces(path)
            continue
        if not path.exists():
            raise FileNotFoundError(2, "no such file or folder", str(path))
        if tokenizer is None:
            raise OptionsError(f"`{path}` is no JSONL file; to read it as text, name a model's vocabulary: --tokenizer")
        if reader is None:
            from quoth import _core
            from quoth.model import Metadata
            from quoth.tokenizer import Tokenizer

            reader = Tokenizer.from_metadata(Metadata(_core.GgufFile(find(tokenizer))))
        for trace in text_traces(path, reader, join=join, most=left):
            yield trace
            if left is not None:
                left -= trace.tokens
        if left is not None and left <= 0:
            return


@dataclasses.dataclass(frozen=True)
class Costs:
    """A table of costs."""

    table: Mapping[int, float] | None
    """Cost by drafted tokens; None: the shipped table."""
    source: str
    """Where it comes from."""
    plain_ns: int | None = None
    """The plain step, where it is known."""
    model: str | None = None
    """Name of the file of the model that it belongs to, where it is known."""

    def fits(self, trace: Trace) -> bool:
        """Whether what was measured of a trace can be compared with what this table foretells."""
        return self.model is None or self.model == trace.model


def read_costs(name: str) -> Costs:
    """The shipped table, one in a file of `bench verify`, or what was measured of a model here.

    Raises:
        OptionsError: There is no table.
        OSError: The file cannot be read.
    """
    if name == "shipped":
        return Costs(None, "shipped")
    path = Path(name)
    if path.suffix in (".json", ".toml"):
        data = _read_table(path)
        try:
            table = {int(k): float(cost) for k, cost in data["costs"].items()}
            plain = (data.get("contexts") or [{}])[0].get("plain_ns", {}).get("median")
            model = data.get("run", {}).get("model")
        except (KeyError, ValueError, TypeError, AttributeError):
            raise OptionsError(f"`{path}` has no table of costs, expected `costs`: cost by drafted tokens") from None
        return Costs(table, path.name, None if plain is None else round(plain), model)
    from quoth.costs import measured_costs

    loaded = load(name)
    measured = measured_costs(loaded)
    if measured is None:
        raise OptionsError(f"the costs of {name} were never measured here: quoth bench verify {name}")
    return Costs(measured[0], measured[1], None, loaded.path.name)


def _read_table(path: Path) -> Any:
    text = read_text("the table of costs", path)
    try:
        if path.suffix == ".json":
            return json.loads(text)
        import importlib

        return importlib.import_module("tomllib").loads(text)
    except ModuleNotFoundError:
        raise OptionsError(f"`{path}` needs Python 3.11 to be read, expected JSON") from None
    except ValueError as error:
        raise OptionsError(f"`{path}` is damaged: {error}") from None


def as_options(given: Sequence[str]) -> Speculation:
    """Options by name.

    Raises:
        OptionsError: A name is unknown, or a value makes no sense.
    """
    from quoth.options import Gate, Speculation

    fields = {
        cls: {field.name: field for field in dataclasses.fields(cls) if field.name not in ("gate", "source", "costs")}
        for cls in (Speculation, Gate)
    }
    values: dict[type[Any], dict[str, Any]] = {Speculation: {}, Gate: {}}
    for entry in given:
        name, _, text = entry.partition("=")
        cls = next((cls for cls, known in fields.items() if name in known), None)
        if cls is None:
            every = ", ".join(name for known in fields.values() for name in known)
            raise OptionsError(f"there is no option {name!r}, expected one of {every}")
        values[cls][name] = _value(text)
    try:
        return Speculation(gate=Gate(**values[Gate]), **values[Speculation])
    except OptionsError as error:
        raise OptionsError(f"options: {error}") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower().replace("none", "null"))
    except ValueError:
        return text
