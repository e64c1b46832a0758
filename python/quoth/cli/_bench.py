"""What the bench commands share: lists of numbers, and what a figure belongs to.

In: options, a model. Out: numbers, the description of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quoth.cli._console import note
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from quoth.bench.quiet import Quiet
    from quoth.model import Model

__all__ = ["numbers", "summary", "warn"]


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


def summary(model: Model, date: str) -> dict[str, Any]:
    """What a record says about its run."""
    import platform  # noqa: PLC0415

    from quoth import __version__  # noqa: PLC0415
    from quoth.machine import cpu_name  # noqa: PLC0415

    return {
        "model": model.path.name,
        "machine": cpu_name(),
        "system": platform.system(),
        "threads": model.threads,
        "set": model._model.kernels_detail,
        "kv_type": model.kv_type,
        "quoth": __version__,
        "date": date,
    }


def warn(quiet: Quiet) -> None:
    """Say so if other processes disturbed a measurement."""
    if quiet.disturbed:
        note(f"warning: other processes had the cores too, so these figures are not the machine's: {quiet}")
