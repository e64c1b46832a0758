"""Records: what was measured, as data with provenance.

In: figures, and what they belong to. Out: a TOML file.

R1  A record says what it is, the command that made it, the machine, the instruction set, the threads, the version and
    the day. Figures that were measured several times carry their spread, losing rows included.
R2  Paths are left out of commands: a record is read on other machines. So are the options that say where it went.
R3  Written whole or not at all (`quoth._files`).
R4  Floats have five significant digits: more is noise. What is None is left out, as TOML has no such thing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoth._files import write_whole

if TYPE_CHECKING:
    from quoth.model import Model

__all__ = ["command_line", "run_facts", "to_toml", "write_record"]

_LINE = 120
"""Longest line of an array that stays on one."""

_OWN_OPTIONS = ("--record", "--fact", "--plot", "--traces")
"""Options with a value that say where things go."""


def run_facts(model: Model | None = None, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What figures belong to: the machine, the program, the day, and the model if there is one.

    Args:
        model: The model that was measured.
        more: Further facts, such as the commit.
    """
    import datetime  # noqa: PLC0415  imported only to measure
    import platform  # noqa: PLC0415

    from quoth import __version__  # noqa: PLC0415
    from quoth.machine import cores, cpu_name, usable_cores  # noqa: PLC0415

    facts: dict[str, Any] = {} if model is None else {"model": model.path.name}
    usable = usable_cores()
    facts |= {
        "machine": cpu_name(),
        "cores": cores() if usable is None else len(usable),
        "system": platform.system(),
    }
    if model is not None:
        facts |= {"threads": model.threads, "set": model._model.kernels_detail, "kv_type": model.kv_type}
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return facts | {"quoth": __version__, "date": today} | dict(more or {})


def command_line(arguments: Sequence[str], program: str = "quoth") -> str:
    """A command without the places of this machine (R2)."""
    words, rest = [program], iter(arguments)
    for word in rest:
        name, has_value, _ = word.partition("=")
        if name in _OWN_OPTIONS:
            if not has_value:
                next(rest, None)
        elif word != "--json":
            words.append(Path(word).name if os.sep in word and Path(word).exists() else word)
    return shlex.join(words)


def write_record(path: Path, what: str, command: str, run: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """Write a record.

    Args:
        path: The file; replaced if it exists.
        what: What was measured, in a sentence.
        command: What to type to measure it again.
        run: `run_facts`.
        figures: Numbers, texts, mappings, sequences and dataclasses of them.

    Raises:
        OptionsError: What is there is no file.
        OSError: It cannot be written.
    """
    text = to_toml({"what": what, "command": command, "run": run, **figures})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def to_toml(data: Mapping[str, Any]) -> str:
    """Data as TOML: a key a line, an array of tables with a table a line."""
    return "".join(f"{_key(key)} = {_value(value, 0)}\n" for key, value in _kept(data))


def _kept(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(str(key), _plain(value)) for key, value in data.items() if value is not None]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return value


def _key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if bare else _text(key)


def _text(text: str) -> str:
    # JSON's quotes are TOML's, but for one control character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, depth: int) -> str:
    value = _plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(entry, depth + 1)}" for key, entry in _kept(value))
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        entries = [_value(entry, depth + 1) for entry in value]
        line = f"[{', '.join(entries)}]"
        # An inline table must not be broken, so arrays inside one stay on its line.
        if depth > 0 or (len(line) <= _LINE and not any(entry.startswith("{") for entry in entries)):
            return line
        return "[\n" + "".join(f"    {entry},\n" for entry in entries) + "]"
    return _text(str(value))


def _float(value: float) -> str:
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return repr(float(f"{value:.5g}"))
