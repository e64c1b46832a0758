"""Whether other processes took the cores from a measurement.

In: the time that a measurement takes. Out: how much of the cores it had. The threads of a forward wait for one another,
so a single other process can make a step many times slower, and all figures beside the truth, with hardly any spread.
A quiet measurement has its threads running nearly all the time and is hardly ever put aside by the system.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Quiet", "watch"]

LEAST_SHARE = 0.9
MOST_PREEMPTIONS = 500.0


@dataclass
class Quiet:
    """What a measurement had of the cores. Filled in when it is over."""

    share: float = 1.0
    """Time of the processor, as a share of what its threads could have had."""
    preempted_per_s: float | None = None
    """How often a second the system put a thread aside; None where it does not tell."""

    @property
    def disturbed(self) -> bool:
        """Whether others had the cores too."""
        often = self.preempted_per_s is None or self.preempted_per_s > MOST_PREEMPTIONS
        return self.share < LEAST_SHARE and often

    def __str__(self) -> str:
        text = f"the threads ran {100 * self.share:.0f} % of the time"
        if self.preempted_per_s is not None:
            text += f" and were put aside {self.preempted_per_s:.0f} times a second"
        return text


@contextmanager
def watch(threads: int) -> Iterator[Quiet]:
    """Watch over a measurement.

    Args:
        threads: Threads that it keeps busy.

    Yields:
        The finding, to be read afterwards.
    """
    found = Quiet()
    wall, cpu, preempted = time.perf_counter(), time.process_time(), _preempted()
    try:
        yield found
    finally:
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        now = _preempted()
        found.share = cpu / (wall * threads) if wall > 0 else 1.0
        if now is not None and preempted is not None and wall > 0:
            found.preempted_per_s = (now - preempted) / wall


def _preempted() -> int | None:
    """How often the system took a core from this process."""
    try:
        import resource  # noqa: PLC0415  not there on every system
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
