"""Terminals: what may be written to one, and bars that appear only at a terminal.

In: text, counts. Out: stdout for results, stderr for the rest. Nothing here imports rich before it is needed.
"""
# ruff: noqa: PLC0415 - rich takes longer to import than most commands take to run

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID
    from rich.table import Table

__all__ = ["bar", "console", "grid", "is_terminal", "note", "show", "table", "visible"]

PATIENCE_S = 0.5
"""What takes less than this gets no bar."""

PIPED_WIDTH = 160
"""Width of tables that go to a file or a pipe."""

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
_PICTURES |= {0x7F: "\u2421"} | dict.fromkeys(range(128, 160), "�")


def visible(text: str) -> str:
    """Show control characters as pictures (␛ for escape), so that they cannot steer a terminal."""
    return text.translate(_PICTURES)


def is_terminal(stream: IO[Any]) -> bool:
    """Whether a stream is a terminal."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def console(stderr: bool = False) -> Console:
    """A rich console on stdout or stderr that takes text as it is: no markup, no highlighting."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    fixed = None if is_terminal(stream) or os.environ.get("COLUMNS") else PIPED_WIDTH
    return Console(file=stream, width=fixed, markup=False, highlight=False, emoji=False, soft_wrap=False)


def show(*parts: RenderableType, stderr: bool = False) -> None:
    """Print tables and lines; into a file or a pipe without the blanks that fill lines up."""
    out = console(stderr)
    if out.is_terminal:
        out.print(*parts, sep="\n")
        return
    with out.capture() as captured:
        out.print(*parts, sep="\n")
    stream = sys.stderr if stderr else sys.stdout
    stream.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def note(text: str) -> None:
    """Say something beside the result."""
    print(visible(text), file=sys.stderr)


def table(*columns: str, right: tuple[int, ...] = ()) -> Table:
    """A plain table with a line under its head; columns whose index is in `right` are flush right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i in right else "left", no_wrap=i in right, overflow="fold")
    return made


def grid(rows: list[tuple[str, str]]) -> Table:
    """Names and values, one below the other."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


class _Bar:
    """A bar on stderr that appears after a while, drawn by threads of its own."""

    def __init__(self, label: str, unit: Literal["bytes", "count"], after_s: float) -> None:
        self._label, self._unit = label, unit
        self._lock = threading.Lock()
        self._state: tuple[int, int | None] = (0, None)
        self._shown: tuple[Progress, TaskID] | None = None
        self._closed = False
        self._timer = threading.Timer(after_s, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        amounts = [DownloadColumn(), TransferSpeedColumn()] if self._unit == "bytes" else [MofNCompleteColumn()]
        with self._lock:
            if self._closed:
                return
            progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                *amounts,
                TimeRemainingColumn(),
                console=console(stderr=True),
                transient=True,
            )
            done, total = self._state
            self._shown = progress, progress.add_task(self._label, completed=done, total=total)
            progress.start()

    def update(self, done: int, total: int | None) -> None:
        with self._lock:
            self._state = (done, total)
            if self._shown is not None:
                self._shown[0].update(self._shown[1], completed=done, total=total)

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._shown is not None:
                self._shown[0].stop()
        self._timer.join()  # it may be importing, which must not meet the end of the interpreter


@contextmanager
def bar(
    label: str, unit: Literal["bytes", "count"] = "count", after_s: float | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """Show how far something is, if it takes a while and stderr is a terminal.

    Args:
        label: What is being done.
        unit: What the numbers are.
        after_s: Seconds after which the bar appears. None: `PATIENCE_S`.

    Yields:
        A function to be told what is done and what there is in all (None: not known).
    """
    if not is_terminal(sys.stderr):
        yield lambda done, total: None
        return
    shown = _Bar(label, unit, PATIENCE_S if after_s is None else after_s)
    try:
        yield shown.update
    finally:
        shown.close()
