"""What the bench commands share: lists of numbers, options by name, what a figure belongs to, where records go.

In: options, a model. Out: numbers, the description of a run, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quoth.cli._console import note
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from pathlib import Path

    import typer

    from quoth.bench.quiet import Quiet

__all__ = ["facts", "keep_record", "numbers", "warn"]


def numbers(text: str, name: str, least: int) -> list[int]:
    """Whole numbers with commas between them.

    Raises:
        OptionsError: The text is something else, or a number is too small.
    """
    found = []
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) < least:
            raise OptionsError(f"{name} is {text!r}, expected whole numbers of at least {least} with commas between")
        found.append(int(word))
    return found


def facts(given: Sequence[str] | None) -> dict[str, str]:
    """`NAME=TEXT` for each fact.

    Raises:
        OptionsError: A fact is something else.
    """
    found = {}
    for entry in given or ():
        name, is_pair, text = entry.partition("=")
        if not is_pair or not name.strip():
            raise OptionsError(f"--fact is {entry!r}, expected NAME=TEXT")
        found[name.strip()] = text
    return found


def keep_record(
    path: Path | None, context: typer.Context, what: str, run: Mapping[str, Any], figures: Mapping[str, Any]
) -> None:
    """Write a record, if one is wanted.

    Raises:
        OSError: It cannot be written.
    """
    if path is None:
        return
    from quoth.bench.record import command_line, write_record  # noqa: PLC0415  most runs leave no record

    write_record(path, what, command_line(context.obj or ()), run, figures)
    note(f"recorded in {path}")


def warn(quiet: Quiet) -> None:
    """Say so if other processes disturbed a measurement."""
    if quiet.disturbed:
        note(f"warning: other processes had the cores too, so these figures are not the machine's: {quiet}")
