"""From a model's name to a model in memory, with bars at a terminal.

In: a name or path, options of the machine. Out: a `Path`, a `Model`.
"""
# ruff: noqa: PLC0415 - loading is all that needs these

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quoth.cli._console import bar, is_terminal, note
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from quoth.cli._options import KvTypes
    from quoth.constraints import Constraint
    from quoth.model import Model

__all__ = ["chosen_constraint", "find", "load", "read_text"]


def find(name: str) -> Path:
    """The file behind a name, downloaded if it is not here yet."""
    from quoth.hub import resolve

    with bar(f"downloading {name}", "bytes") as update:
        told = False

        def progress(done: int, total: int | None) -> None:
            nonlocal told
            if not told and not is_terminal(sys.stderr):
                note(f"downloading {name}")
            told = True
            update(done, total)

        return resolve(name, progress=progress)


def load(
    name: str,
    *,
    ctx: int | None = None,
    threads: int | None = None,
    kernels: str | None = None,
    kv_type: KvTypes | None = None,
    pre: str | None = None,
    drafters: Sequence[str] | None = None,
) -> Model:
    """Load a model, and drafters for it."""
    from quoth.model import Model

    path, files = find(name), [find(drafter) for drafter in drafters or ()]
    with bar("loading", "bytes") as update:
        return Model(
            path,
            n_ctx=ctx,
            threads=threads,
            kernels=kernels,
            kv_type=None if kv_type is None else kv_type.value,
            pre=pre,
            drafter=files,
            progress=update,
        )


def read_text(path: str, what: str) -> str:
    """A text file as `quoth._files.read_text` reads it; `-` is stdin."""
    from quoth import _files

    return _files.read_text(what, None if path == "-" else _files.as_path(what, path))


def chosen_constraint(
    json_schema: str | None, regex: str | None, lark: str | None, after: str | None
) -> Constraint | None:
    """What the answer has to look like.

    Raises:
        OptionsError: There is more than one constraint, or a text behind which none begins.
        OSError: A file cannot be read.
    """
    from quoth import constraints

    given = [one for one in (json_schema, regex, lark) if one is not None]
    if len(given) > 1:
        raise OptionsError("--json-schema, --regex and --lark do not go together")
    if not given and after is not None:
        raise OptionsError("--after needs --json-schema, --regex or --lark, which begin behind it")
    if json_schema is not None:
        return constraints.json_schema(read_text(json_schema, "the schema"), after=after)
    if lark is not None:
        return constraints.lark(read_text(lark, "the grammar"), after=after)
    return None if regex is None else constraints.regex(regex, after=after)
