"""Files of the user: written whole or not at all, read up to a limit.

In: a path, text or a limit. Out: a file, or its bytes; errors name the path that the user gave.

F1  A file appears under its name only when it is complete. Before that it stands beside it under a name of its own,
    which is gone after an error.
F2  Only files are written over: not folders, devices or pipes. A symbolic link stays, and what it points to is written.
F3  A file keeps its permissions; a new one gets those that the process gives new files.
F4  No more than the limit is read, whatever a file says its size is; devices are refused before they are opened.
F5  A text is UTF-8 with its own line ends. A byte order mark at its beginning is no part of it.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

from quoth._arguments import shown
from quoth.errors import OptionsError

__all__ = ["TEXT_BYTES", "as_path", "read_text", "read_whole", "write_whole"]

TEXT_BYTES = 256 << 20
"""Most bytes of a text: several times what the longest context holds."""

_PIECE = 1 << 20
"""Bytes that are read at once."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def as_path(name: str, value: object) -> Path:
    """The path that an argument names.

    Raises:
        OptionsError: It is no path, or one that no file can have.
    """
    try:
        path = Path(value)  # type: ignore[arg-type]
        data = os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        data, path = b"\0", Path()
    if b"\0" in data:
        raise OptionsError(f"{name} is {shown(value)}, expected a path")
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file, in UTF-8 with the line ends of the text; replaces what is there (F1 to F3).

    Raises:
        OptionsError: What is there is no file.
        OSError: It cannot be written. What was there is as it was.
    """
    data = text.encode("utf-8")
    target = Path(os.path.realpath(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    # The beginning of the name alone: names have a longest length.
    beside = target.parent / f".{target.name[:32]}.{secrets.token_hex(6)}.tmp"
    try:
        mode = _mode(path)
        with os.fdopen(os.open(beside, flags, 0o666), "wb") as file:
            file.write(data)
        if mode is not None:
            os.chmod(beside, mode)
        os.replace(beside, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _mode(path: Path) -> int | None:
    """The permissions of a file; None where there is none yet."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OptionsError(f"`{path}` is {_kind(found)}, expected a file or a new name")
    return stat.S_IMODE(found.st_mode) & 0o777


def _kind(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "no file")


def read_text(what: str, path: Path | None, limit_bytes: int | None = None) -> str:
    """Read a text from a file or a pipe (F4, F5).

    Args:
        what: What it is, for messages: `the prompt`.
        path: The file; None: stdin.
        limit_bytes: Most bytes that it may have. None: `TEXT_BYTES`.

    Raises:
        OptionsError: It is larger, a device, or not UTF-8.
        OSError: It cannot be read.
    """
    limit = TEXT_BYTES if limit_bytes is None else limit_bytes
    if path is not None:
        data, name = read_whole(path, limit, pipes=True), f"`{path}`"
    elif len(data := sys.stdin.buffer.read(limit + 1)) > limit:
        raise OptionsError(f"stdin has {len(data)} bytes or more, expected at most {limit}")
    else:
        name = "stdin"
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise OptionsError(f"{what} in {name} is not UTF-8: byte 0x{data[error.start]:02x} at {error.start}") from None


def read_whole(path: Path, limit_bytes: int, *, pipes: bool = False) -> bytes:
    """Read a file to its end (F4).

    Args:
        path: The file.
        limit_bytes: Most bytes that it may have.
        pipes: Whether it may be a pipe. One without a writer is waited for.

    Raises:
        OptionsError: It is larger, or no file.
        OSError: It cannot be read.
    """
    found = os.stat(path)
    regular = stat.S_ISREG(found.st_mode)
    if not regular and not (pipes and (stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode))):
        raise OptionsError(f"`{path}` is {_kind(found)}, expected a file{' or a pipe' if pipes else ''}")
    pieces, n_bytes = [], found.st_size if regular else 0
    if n_bytes <= limit_bytes:
        n_bytes = 0
        with path.open("rb", buffering=0) as file:
            while n_bytes <= limit_bytes and (piece := file.read(_PIECE)):
                pieces.append(piece)
                n_bytes += len(piece)
    if n_bytes > limit_bytes:
        raise OptionsError(f"`{path}` has {n_bytes} bytes or more, expected at most {limit_bytes}")
    return b"".join(pieces)
