"""What a user types or a program pipes in, as messages and commands.

In: a terminal, or lines on stdin. Out: inputs, one at a time.

L1  In a terminal a line can be edited, earlier inputs are recalled with the arrow keys, and a pasted text of several
    lines is one input. Elsewhere stdin is read line by line, as UTF-8, and nothing is shown.
L2  A line that ends with a backslash goes on in the next one. Lines between two lines that say only three double
    quotes are one message, whatever they begin with.
L3  Ctrl-C drops what was begun, as `KeyboardInterrupt`. Ctrl-D, or the end of stdin, ends the input that was begun, or
    else everything.

Editing is the system's readline, which the interpreter brings along: it knows pasting, searching and the user's own key
bindings. Inputs are remembered as long as the program runs and written nowhere.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from quoth.cli._console import is_terminal
from quoth.errors import QuothError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["BLOCK", "Input", "Reader"]

BLOCK: Final = '"""'
PROMPT: Final = "> "
CONTINUED: Final = ". "
MAX_LINE_BYTES: Final = 64 << 20
"""Far more than any context holds."""


@dataclass(frozen=True)
class Input:
    """One message or command."""

    text: str
    """Without the last line end."""
    block: bool = False
    """Whether it stood between quotes, and so is a message for sure."""


class Reader:
    """Reads inputs.

    Args:
        commands: Names that the tab key completes at the beginning of a line; behind them, it completes paths.
    """

    def __init__(self, commands: Sequence[str]) -> None:
        self.typed: Final = is_terminal(sys.stdin)
        """Whether a user types at a terminal."""
        self.reading = False
        """Whether a line was being read when an exception came."""
        self._n_lines = 0
        self._editor = _editor(commands) if self.typed and is_terminal(sys.stdout) else None

    def read(self) -> Input | None:
        """Read the next input; None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C. What was begun is dropped; the next input can be read.
            QuothError: A line is not UTF-8, or longer than `MAX_LINE_BYTES`.
        """
        line = self._line(PROMPT)
        if line is None:
            return None
        block = line.strip() == BLOCK
        lines = [] if block else [line]
        while block or lines[-1].endswith("\\"):
            if not block:
                lines[-1] = lines[-1][:-1]
            line = self._line(CONTINUED)
            if line is None or (block and line.strip() == BLOCK):
                break
            lines.append(line)
        found = Input("\n".join(lines), block)
        if self._editor is not None and found.text.strip():
            # What stood between quotes must not come back as a command.
            self._editor.add_history(f"/{found.text}" if block and found.text.startswith("/") else found.text)
        return found

    def _line(self, prompt: str) -> str | None:
        """A line without its end; None at the end of the input."""
        self._n_lines += 1
        self.reading = True
        line = self._raw_line(prompt)
        self.reading = False
        return line

    def _raw_line(self, prompt: str) -> str | None:
        try:
            if self._editor is not None:
                with suppress(EOFError):
                    # Some locales let bytes that are no text through, as lone surrogates.
                    return input(prompt).encode("utf-8", "surrogateescape").decode("utf-8")
                sys.stdout.write("\n")
                return None
            if self.typed:
                sys.stderr.write(prompt)
                sys.stderr.flush()
            data = sys.stdin.buffer.readline(MAX_LINE_BYTES + 1)
            if len(data) > MAX_LINE_BYTES:
                self.reading = False
                raise QuothError(f"line {self._n_lines} of stdin has more than {MAX_LINE_BYTES} bytes, expected fewer")
            if not data:
                return None
            text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
            return text.removeprefix("\ufeff") if self._n_lines == 1 else text
        except UnicodeDecodeError as error:
            found = f"byte 0x{error.object[error.start]:02x} at {error.start}"
            raise QuothError(f"line {self._n_lines} of stdin is not UTF-8: {found}") from None


def _editor(commands: Sequence[str]) -> ModuleType | None:
    """The system's line editor, set up; None where there is none."""
    try:
        import readline  # noqa: PLC0415  importing it changes how every `input` works
    except ImportError:
        return None

    def complete(begun: str, number: int) -> str | None:
        if readline.get_begidx() == 0:
            fitting = [f"{name} " for name in commands if name.startswith(begun)] if begun else []
        else:
            paths = sorted(glob.glob(glob.escape(os.path.expanduser(begun)) + "*"))
            fitting = [f"{path}/" if os.path.isdir(path) else path for path in paths]
        return fitting[number] if number < len(fitting) else None

    readline.set_auto_history(False)
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    if not libedit:
        # A byte beyond ASCII is text, also where the locale has none: readline would take it for a key with Meta.
        readline.parse_and_bind("set input-meta on")
        readline.parse_and_bind("set convert-meta off")
    if not libedit:
        readline.parse_and_bind("set enable-bracketed-paste on")
    return readline
