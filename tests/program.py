"""The command line as a user runs it, with pipes or in a terminal. Used by the fixtures in `conftest`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import quoth

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Ran:
    """What a run of the program left."""

    code: int
    out: str
    err: str

    @property
    def last_error(self) -> str:
        """The last line of stderr."""
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


def program_env(folder: Path, extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a run: this quoth, a cache of its own, nothing that changes what is printed."""
    dropped = (
        "PYTHONUNBUFFERED",
        "COLUMNS",
        "NO_COLOR",
        "FORCE_COLOR",
        "QUOTH_DEBUG",
        "QUOTH_THREADS",
        "QUOTH_KERNELS",
        "GITHUB_ACTIONS",
    )
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"PYTHONPATH": str(Path(quoth.__file__).parent.parent), "QUOTH_CACHE": str(folder), "TERM": "xterm-256color"}
    return env | (extra or {})


def without_styles(text: str) -> str:
    """Text without the sequences that choose colours and weights."""
    return re.sub("\x1b\\[[0-9;]*m", "", text)


Run = Callable[..., Ran]


def with_pipes(folder: Path, *args: object, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ran:
    """Run the program with pipes."""
    done = subprocess.run(
        [sys.executable, "-m", "quoth", *map(str, args)],
        input=stdin,
        capture_output=True,
        env=program_env(folder / "cache", env),
        cwd=folder,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def with_terminal(
    folder: Path,
    *args: object,
    columns: int = 80,
    keys: bytes = b"",
    after: str = "",
    env: dict[str, str] | None = None,
    command: Sequence[str] = ("-m", "quoth"),
) -> Ran:
    """Run the program in a terminal of its own.

    Args:
        folder: The current folder; the cache lies in it.
        args: Arguments.
        columns: Width of the terminal.
        keys: What is typed,
        after: once this text was seen.
        env: Changes of the environment.
        command: What Python runs.

    Returns:
        The exit code, and in `out` everything that was sent to the terminal.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        argv = [sys.executable, *command, *map(str, args)]
        os.execve(sys.executable, argv, program_env(folder / "cache", env))
    seen, sent, end = b"", not keys, time.monotonic() + 120
    try:
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(terminal, 65536)
            except OSError:  # Linux says so when the other side is closed
                break
            if not data:
                break
            seen += data
            if not sent and after.encode() in seen:
                os.write(terminal, keys)
                sent = True
        else:
            os.kill(child, signal.SIGKILL)
    finally:
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(OSError):
            os.close(terminal)
    text = seen.decode("utf-8", "replace").replace("\r\n", "\n")
    return Ran(os.waitstatus_to_exitcode(status), text, "")
