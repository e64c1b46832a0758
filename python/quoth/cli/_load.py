"""From a model's name to a model in memory, with bars where somebody waits.

In: a name or path, options of the machine. Out: a `Path`, a `Model`.
"""
# ruff: noqa: PLC0415 - loading is all that needs these

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quoth.cli._console import bar, is_terminal, note

if TYPE_CHECKING:
    from quoth.cli._options import KvTypes
    from quoth.model import Model

__all__ = ["MAX_TEXT_BYTES", "find", "load", "read_text"]

MAX_TEXT_BYTES: Final = 256 << 20
"""Most bytes of a text: several times what the longest context holds."""


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
) -> Model:
    """Load a model."""
    from quoth.model import Model

    path = find(name)
    with bar("loading", "bytes") as update:
        return Model(
            path,
            n_ctx=ctx,
            threads=threads,
            kernels=kernels,
            kv_type=None if kv_type is None else kv_type.value,
            pre=pre,
            progress=update,
        )


def read_text(path: str, what: str) -> str:
    """A text file as it is, line ends included; `-` is stdin.

    Raises:
        OSError: It cannot be read.
        QuothError: It is a device, has more than `MAX_TEXT_BYTES`, or is not UTF-8.
    """
    from quoth.errors import QuothError

    name = "stdin" if path == "-" else f"`{path}`"
    if path == "-":
        data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    else:
        # Looked at before it is opened: opening a device may do something. Pipes are files like others.
        mode = Path(path).stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise QuothError(f"{what} {name} is a device, expected a file or a pipe")
        with Path(path).open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise QuothError(f"{what} in {name} has more than {MAX_TEXT_BYTES} bytes, expected at most these")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise QuothError(f"{what} in {name} is not UTF-8: byte 0x{data[error.start]:02x} at {error.start}") from None
