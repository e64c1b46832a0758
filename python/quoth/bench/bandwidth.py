"""How fast this machine reads memory: the bound of plain decoding, which reads all weights once a step.

In: a size, a number of threads. Out: bytes a second. Each thread takes the maximum of its part of one large array of
32-bit integers: numpy does that with vector loads and without the interpreter's lock, and on the machines it was tried
on it reads as fast as a loop written for the purpose. The best pass counts: other processes can only slow a pass down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DEFAULT_BYTES", "Bandwidth", "Reader", "read_bandwidth", "reader"]

DEFAULT_BYTES = 512 << 20
"""Far more than any cache holds."""


@dataclass(frozen=True)
class Bandwidth:
    """What was read, and how fast."""

    best: float
    """Bytes a second of the best pass."""
    median: float
    """Bytes a second of the median pass."""
    n_bytes: int
    """Bytes that each pass reads."""
    threads: int
    """Threads that read."""
    passes: int
    """Passes."""

    @property
    def how(self) -> str:
        """The measurement in words."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{threads} reading {self.n_bytes >> 20} MiB, best of {self.passes} passes"


class Reader:
    """An array, and threads that read it. Made by `reader`."""

    def __init__(self, array: NDArray[np.int32], pool: ThreadPoolExecutor, threads: int) -> None:
        self._pool = pool
        self.threads = threads
        self.n_bytes = array.nbytes
        step = -(-len(array) // threads)
        self._parts = [array[at : at + step] for at in range(0, len(array), step)]

    def bytes_per_second(self) -> float:
        """Read the array once."""
        start = time.perf_counter_ns()
        for largest in self._pool.map(lambda part: part.max(), self._parts):
            assert largest == 1, "the array holds ones"
        return self.n_bytes / (time.perf_counter_ns() - start) * 1e9


@contextmanager
def reader(threads: int, n_bytes: int = DEFAULT_BYTES) -> Iterator[Reader]:
    """Make an array of `n_bytes` and `threads` threads to read it; both are gone afterwards."""
    import numpy as np  # noqa: PLC0415  imported only to measure

    array = np.empty(n_bytes // 4, np.int32)
    array[:] = 1
    with ThreadPoolExecutor(threads) as pool:
        yield Reader(array, pool, threads)


def read_bandwidth(threads: int, n_bytes: int = DEFAULT_BYTES, passes: int = 9) -> Bandwidth:
    """Measure.

    Args:
        threads: Threads, at least 1.
        n_bytes: Bytes to read, which are allocated; at least 4 a thread.
        passes: How often, at least 1.

    Returns:
        The best and the median pass.

    Raises:
        MemoryError: There is no room for the array.
    """
    with reader(threads, n_bytes) as array:
        array.bytes_per_second()  # the first pass wakes the threads
        rates = sorted(array.bytes_per_second() for _ in range(passes))
        return Bandwidth(rates[-1], rates[len(rates) // 2], array.n_bytes, threads, passes)
