"""From arguments to an exit code: what is caught, and what is said about it.

In: the program, arguments. Out: an exit code; at most a few lines on stderr.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quoth.cli._console import visible
from quoth.errors import OptionsError, QuothError

if TYPE_CHECKING:
    import typer

__all__ = ["FAILED", "INTERRUPTED", "MISUSED", "debugging", "run", "said"]

FAILED = 1
MISUSED = 2
INTERRUPTED = 130

_OPTIONS = (
    "n_ctx|threads|kernels|kv_type|pre|max_tokens|stop|logprobs|max_draft|seed|system|temperature|top_k|top_p|min_p|"
    "repeat_penalty|frequency_penalty|presence_penalty|repeat_last_n|logit_bias"
)
"""Arguments of the library that are options here."""


def debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get("QUOTH_DEBUG", "") not in ("", "0")


def run(app: typer.Typer, args: Sequence[str] | None = None) -> int:
    """Run the program and say what went wrong, if something did."""
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    _log()
    try:
        given = list(sys.argv[1:] if args is None else args)
        code: object = app(args=given, prog_name="quoth", standalone_mode=False, obj=given)
        sys.stdout.flush()
    except SystemExit as leaving:  # how the parser leaves when stdout was closed
        code = leaving.code
    except (KeyboardInterrupt, Exception) as error:
        code = said(error)
    _close_stdout()
    return code if isinstance(code, int) else 0


def _open_closed() -> None:
    """Give streams that were closed before the start something to write to and to read from."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  it stays open


def said(error: BaseException, *, raises: bool = True) -> int:
    """Say what an error means, and give its exit code.

    A defect is raised again if `raises`, else it is said too, as one.
    """
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return FAILED  # the reader of stdout closed it, so no message can reach it
    if debugging():
        traceback.print_exception(error)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        return _misused(error)
    if isinstance(error, QuothError | OSError | MemoryError):
        print(f"error: {visible(' '.join(_text(error).splitlines()))}", file=sys.stderr)
        return MISUSED if isinstance(error, OptionsError) else FAILED
    if raises:
        raise error
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    more = "" if debugging() else " (QUOTH_DEBUG=1 shows where)"
    print(f"error: a defect of quoth: {visible(' '.join(text.splitlines()))}{more}", file=sys.stderr)
    return FAILED


def _text(error: BaseException) -> str:
    """What an error says."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"`{os.fsdecode(error.filename)}`: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if isinstance(error, OptionsError):
        return _worded(str(error))
    return str(error) or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)


def _worded(text: str) -> str:
    """A message of the library, which names its argument first, with the option that the user wrote."""
    return re.sub(
        rf"^(?:sampling option )?`?({_OPTIONS})`?(?= is | has |: |, token)",
        lambda found: f"--{found[1].removeprefix('n_').replace('_', '-')}",
        text,
    )


def _misused(error: Any) -> int:
    """Say how the arguments are wrong. The parser's exceptions are known by shape: they moved between its versions."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return MISUSED
    if context is not None:
        print(f"{context.get_usage().strip()}\nTry '{context.command_path} --help'.", file=sys.stderr)
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    print(f"error: {visible(message[:1].lower() + message[1:])}", file=sys.stderr)
    return int(error.exit_code)


def _close_stdout() -> None:
    """Flush, and if stdout was closed, keep the interpreter from complaining about it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log() -> None:
    """Show what the library warns of; everything it logs when debugging."""

    class Lower(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return f"{record.levelname.lower()}: {visible(_worded(record.getMessage()))}"

    handler = logging.StreamHandler()
    handler.setFormatter(Lower())
    logger = logging.getLogger("quoth")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if debugging() else logging.WARNING)
