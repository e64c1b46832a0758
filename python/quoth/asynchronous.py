"""The async twins: the same work on a thread of its own, so that an event loop never waits.

In: functions that take a step, from `Decoder` and `Conversation`. Out: awaitables and async iterators.

A1  Only a worker's thread computes. The event loop's thread hands out what came, and never holds a core's lock.
A2  One job at a time: a second caller gets `BusyError`, as with threads.
A3  A cancelled task waits for the step under way, at most a forward of 512 tokens of a prompt. Nothing of that step is
    handed out, and no thread computes when the cancellation arrives.
A4  A forked child process gets a thread of its own: its parent's thread does not exist there.
A5  Between two chunks nothing runs. Leaving an `async for` early needs no `aclose`.

Cost: two switches of threads a step. The thread is made with the first use and ends with its owner.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from quoth.errors import BusyError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["AsyncSteps", "Cancel", "Progress", "Worker"]

T = TypeVar("T")
Progress = Callable[[int, int], object]


class _Stopped(BaseException):
    """Ends a prompt's computation whose caller was cancelled."""


class Cancel:
    """Whether the task that waits for a job was cancelled."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Say so."""
        self._event.set()

    def check(self) -> None:
        """Stop the job if its caller was cancelled."""
        if self._event.is_set():
            raise _Stopped

    def watched(self, progress: Progress | None) -> Progress:
        """A callback for prompts that also stops them."""

        def watch(done: int, total: int) -> object:
            if done < total:  # a prompt that is through has its first token
                self.check()
            return None if progress is None else progress(done, total)

        return watch


class Worker:
    """One thread that takes the steps of one decoder."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._busy = False
        self._process = os.getpid()

    async def run(self, job: Callable[[], T], cancel: Cancel) -> T:
        """Run a job on the thread.

        Raises:
            BusyError: Another job is under way.
            asyncio.CancelledError: The caller was cancelled; the job has ended.
        """
        import asyncio  # noqa: PLC0415  only callers that await pay for it
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

        if self._process != os.getpid():
            # The thread and its job stayed in the process that this one was forked from.
            self._thread, self._busy, self._process = None, False, os.getpid()
        if self._busy:
            raise BusyError("the decoder is in use by another caller")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="quoth")
        self._busy = True
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, job)
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                cancel.set()
                while not future.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([future])
                future.exception()  # asyncio logs an exception that was never read
                raise
            return future.result()
        finally:
            self._busy = False


class AsyncSteps(AsyncIterator[T], Generic[T]):
    """Steps as they come, for `async for`.

    Args:
        worker: Takes the steps.
        fetch: Takes the next step, on the worker's thread; raises `StopIteration` at the end.
        accept: Told of a step, on the loop's thread, when it is about to be handed out.
        cancel: Stops a long first step.
        close: Ends the work, between steps.
    """

    def __init__(
        self,
        worker: Worker,
        fetch: Callable[[], T],
        accept: Callable[[T], object],
        cancel: Cancel,
        close: Callable[[], object],
    ) -> None:
        self._worker = worker
        self._fetch = fetch
        self._accept = accept
        self._cancel = cancel
        self._close = close
        self._running = False
        self._over = False

    async def __anext__(self) -> T:
        if self._over:
            raise StopAsyncIteration
        if self._running:  # the task that waits for that step gets it
            raise BusyError("another task waits for the next step already")
        self._running = True
        try:
            steps = await self._worker.run(self._next, self._cancel)
            if steps:
                self._accept(steps[0])
        except _Stopped:
            steps = []
        except BaseException:
            self._over = True
            raise
        finally:
            self._running = False
            if self._over:  # by the error, or by another task meanwhile
                self._close()
        if not steps:
            self._over = True
            raise StopAsyncIteration
        return steps[0]

    def _next(self) -> list[T]:
        """The next step, or none: an exception `StopIteration` cannot pass through a future."""
        try:
            return [self._fetch()]
        except StopIteration:
            return []

    async def aclose(self) -> None:
        """End the work; what was handed out stays. A step that another task waits for is the last one."""
        if self._over:
            return
        self._over = True
        if self._running:
            self._cancel.set()
        else:
            self._close()

    async def __aenter__(self) -> AsyncSteps[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
