"""`quoth pull NAME`: fetch a model, or check the one that is here.

In: a name. Out: the path of the file, its checksum compared.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

from typing import Annotated

import typer

from quoth.cli._console import bar, note
from quoth.cli._units import size


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2, or hf:org/repo/file.gguf.", show_default=False)],
) -> None:
    """Fetch a model into the cache folder, or check the one that is there; prints its path."""
    from quoth import hub

    arrived = 0

    with bar(f"downloading {name}", "bytes", after_s=0.2) as update:

        def progress(done: int, total: int | None) -> None:
            nonlocal arrived
            if not arrived:
                note(f"downloading {name}" + (f", {size(total)}" if total else ""))
            arrived = max(done, 1)
            update(done, total)

        path = hub.pull(name, progress=progress)
    known = hub.KNOWN.get(name)
    how = "fetched" if arrived else "already here"
    checked = f", sha256 {known.sha256} verified" if known is not None else ""
    note(f"{how}: {size(path.stat().st_size)}{checked}")
    print(path)
