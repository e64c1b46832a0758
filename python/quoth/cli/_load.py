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

if TYPE_CHECKING:
    from quoth.cli._options import KvTypes
    from quoth.model import Model

__all__ = ["find", "load", "read_text"]


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
