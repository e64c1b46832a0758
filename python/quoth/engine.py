"""Many requests at once: one forward a step for all that run, so that each weight is read once for all of them.

In: prompts with options, from any thread or event loop. Out: a `Generation` for each: chunks as they come, a result.

E1  A generation has the tokens, text and log-probabilities that `Decoder.generate` gives for the same request, whatever
    runs beside it.
E2  One thread of the engine's takes all steps. Submitting and cancelling wait for no step.
E3  Each generation ends once: with a result, an error, or its cancellation. When the engine is closed, what still runs
    is cancelled.

Cost: a step is the core's; handing out a chunk costs some microseconds.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quoth import _core
from quoth._arguments import token_ids, whole
from quoth._resource import Resource
from quoth.costs import expected_costs
from quoth.errors import ClosedError, OptionsError, QuothError
from quoth.options import CoreSampling, CoreSpeculation, DraftSource, Sampling, Speculation, as_sampling, as_speculation
from quoth.request import EngineOptions, Request, takes
from quoth.results import Chunk, Result, TokenLogprobs, as_logprobs
from quoth.stats import Stats, stats_of

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Unpack

    from quoth.loaded import LoadedModel

__all__ = ["Engine", "Generation", "generate_many"]

T = TypeVar("T")

_DEFAULT_PREFIX_BYTES: Final = 1 << 30


class Generation(Iterator[Chunk], AsyncIterator[Chunk]):
    """A request under way. Made by `Engine.submit`.

    Iterate over it, with `for` or `async for`, to read its chunks as they come; each chunk is handed out once. `result`
    waits for its end, `await generation` does the same in an event loop. It goes on whether or not it is read.
    """

    def __init__(self, engine: Engine, request: Request, prompt_tokens: int) -> None:
        self._engine = engine
        self._request = request
        self._prompt_tokens = prompt_tokens
        self._task: int | None = None
        self._chunks: deque[Chunk] = deque()
        self._steps = 0
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._end: Future[Result] = Future()
        self._news = threading.Condition()
        self._loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled else "done" if self.done else "running"
        return f"Generation({state}, {len(self._tokens)} tokens)"

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._end.done()

    @property
    def cancelled(self) -> bool:
        """Whether it ended by a cancellation."""
        return self._end.cancelled()

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens so far."""
        return tuple(self._tokens)

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end.

        Args:
            timeout: Seconds to wait at most. None: without a limit.

        Raises:
            TimeoutError: It has not ended by then; it goes on.
            concurrent.futures.CancelledError: It was cancelled.
            QuothError: It failed.
        """
        return self._end.result(timeout)

    def cancel(self) -> None:
        """End it where it stands. What was handed out stays; nothing more comes. After its end this does nothing."""
        if self._task is not None and self._end.cancel():
            self._engine._core.cancel(self._task)
            self._engine._wake.set()
            self._tell()

    # -- reading -------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Chunk:
        with self._news:
            while not (self._chunks or self.done):
                self._news.wait()
        return self._next(StopIteration)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Chunk:
        await self._arrival(lambda: bool(self._chunks) or self.done)
        return self._next(StopAsyncIteration)

    def __await__(self) -> Generator[Any, None, Result]:
        return self._aresult().__await__()

    async def _aresult(self) -> Result:
        await self._arrival(lambda: self.done)
        return self._end.result()

    def _next(self, end: type[Exception]) -> Chunk:
        if self._chunks:
            return self._chunks.popleft()
        if self.cancelled:
            raise end
        error = self._end.exception()
        if error is not None:
            raise error
        raise end

    async def _arrival(self, ready: Callable[[], bool]) -> None:
        """Wait in an event loop."""
        import asyncio  # noqa: PLC0415  threads do not need it

        loop = asyncio.get_running_loop()
        while True:
            with self._news:
                if ready():
                    return
                news = loop.create_future()
                self._loops.append((loop, news))
            await news

    # -- for the engine's thread ---------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Wake everything that waits for news."""
        with self._news:
            loops, self._loops = self._loops, []
            self._news.notify_all()
        for loop, news in loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, news)

    def _take(self, event: _core.Event) -> None:
        """Take in a step."""
        step = event.step
        if step is not None and not self.done:
            logprobs = () if self._request.logprobs is None else as_logprobs(step.tokens, step.logprobs)
            self._texts.append(step.text)
            self._tokens.extend(step.tokens)
            self._logprobs.extend(logprobs)
            if step.tokens or step.text or step.finish is not None:
                finish_reason = None if step.finish is None else step.finish.reason
                self._chunks.append(
                    Chunk(
                        text=step.text,
                        tokens=tuple(step.tokens),
                        step=self._steps,
                        drafted=step.drafted,
                        accepted=step.accepted,
                        source=step.source,
                        logprobs=logprobs,
                        finish_reason=finish_reason,
                    )
                )
                self._steps += 1
        if event.outcome is not None:
            self._finish(event, self._engine._stats(event.outcome, self._request))
        self._tell()

    def _finish(self, event: _core.Event, stats: Stats) -> None:
        if not self._end.set_running_or_notify_cancel():
            return
        if event.error is not None:
            self._end.set_exception(event.error)
            return
        finish = event.step.finish if event.step is not None else None
        self._end.set_result(
            Result(
                text="".join(self._texts),
                tokens=tuple(self._tokens),
                finish_reason=None if finish is None else finish.reason,
                stop=None if finish is None else self._request.stop_of(finish),
                logprobs=None if self._request.logprobs is None else tuple(self._logprobs),
                stats=stats,
                prompt_tokens=self._prompt_tokens,
            )
        )

    def _fail(self, error: BaseException) -> None:
        if not self._end.done() and self._end.set_running_or_notify_cancel():
            self._end.set_exception(error)
        self._tell()


def _settle(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)


class Engine(Resource):
    """Generates for many requests at once. Safe to use from several threads and event loops.

    Args:
        model: The model. Its decoders and conversations can be used beside the engine; they take turns with it.
        max_sequences: Requests that run at once, 1 to 512. More than these wait, first come first served.
        max_kv_bytes: Bytes of cached keys and values of all sequences of the model, stored prefixes included. A request
            waits until all that it may need fits. None: no bound.
        prefix_bytes: Bytes of finished sequences that are kept, so that a request which begins as one of them computes
            only the rest. 0: none.
        sampling: How tokens are chosen where a request does not say. None: as the model's `default_sampling`.
        speculation: How they are drafted where a request does not say; True for the defaults, None for plain decoding.
            It never changes which tokens are generated. A draft source of your own can only be given with a request.

    Raises:
        OptionsError: An argument is out of range.
        TokenizerError: The file's vocabulary is damaged or of an unknown kind.
    """

    _instead = "make one in the other process"

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_sequences: int = 8,
        max_kv_bytes: int | None = None,
        prefix_bytes: int = _DEFAULT_PREFIX_BYTES,
        sampling: Sampling | None = None,
        speculation: Speculation | bool | None = True,
    ) -> None:
        self.model = model
        self.sampling = model.default_sampling if sampling is None else as_sampling(sampling)
        _core.check_sampling(CoreSampling(self.sampling), model.n_vocab)
        self.speculation = as_speculation(speculation)
        if self.speculation is not None and self.speculation.source is not None:
            raise OptionsError("speculation has a source, expected none: give it with each request")
        self._expected = expected_costs(model)
        self._core: _core.Scheduler = _core.Scheduler(
            model._model,
            model.kv_type,
            CoreSpeculation(self.speculation or Speculation(), self._expected),
            whole("max_sequences", max_sequences, 1, 512),
            None if max_kv_bytes is None else whole("max_kv_bytes", max_kv_bytes, 1, 2**62),
            whole("prefix_bytes", prefix_bytes, 0, 2**62),
        )
        self._wake = threading.Event()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._running: dict[int, Generation] = {}
        self._held = threading.Lock()  # of `_running`, `_closed` and the thread's beginning
        self._thread: threading.Thread | None = None
        self._closed: str | None = None
        self._process = os.getpid()
        model._children[self] = None

    def __repr__(self) -> str:
        state = f"{len(self._running)} requests" if self._closed is None else "closed"
        return f"Engine({state})"

    # -- requests ------------------------------------------------------------------------------------------------------

    @takes(EngineOptions)
    def submit(
        self,
        prompt: str | Sequence[int],
        *,
        priority: int = 0,
        speculation: Speculation | DraftSource | bool | None = True,
        references: Iterable[str | Sequence[int]] = (),
        **options: Unpack[EngineOptions],
    ) -> Generation:
        """Give the engine a request. It returns at once; the generation begins when a sequence is free.

        Args:
            prompt: Text (encoded without parsing special tokens; the model's begin token goes in front if the file says
                so) or token ids, used as they are.
            priority: Greater is sooner; among equals the first come is the first served. A request waits for at most 32
                later ones.
            speculation: As for `Model.decoder`. True: as the engine says.
            references: Texts or token ids that drafts may quote; the model does not see them.
            **options: See below.

        Raises:
            OptionsError: The prompt is empty or has a token out of range, or an argument makes no sense.
            ContextFullError: The prompt does not fit the context.
            ClosedError: The engine is closed.
        """
        request = Request.of(options, EngineOptions, self.sampling, self.model.n_vocab)
        tokens = self._tokens("prompt", prompt)
        quoted = [self._tokens("references", reference) for reference in references]
        chosen = self.speculation if speculation is True else as_speculation(speculation)
        core, source = None, None
        if chosen is not None:
            core = CoreSpeculation(chosen, self._expected, self.model._chosen(chosen.drafters))
            source = chosen.source
        generation = Generation(self, request, len(tokens))
        with self._held:
            self._check()
            task = self._core.submit(tokens, request, core, source, quoted, whole("priority", priority, -(2**31)))
            generation._task = task
            self._running[task] = generation
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="quoth-engine", daemon=True)
                self._thread.start()
        self._wake.set()
        return generation

    @takes(EngineOptions)
    def generate(self, prompt: str | Sequence[int], **options: Unpack[EngineOptions]) -> Result:
        """Submit, and wait for the result. An exception while waiting, such as Ctrl-C, cancels the request."""
        generation = self.submit(prompt, **options)
        try:
            return generation.result()
        except BaseException:
            generation.cancel()
            raise

    # -- what it holds -------------------------------------------------------------------------------------------------

    @property
    def kv_bytes(self) -> int:
        """Bytes of cached keys and values of all sequences of the model, stored prefixes included."""
        return self._call(self._core.kv_bytes)

    @property
    def prefix_bytes(self) -> int:
        """Bytes of stored prefixes."""
        return self._call(self._core.prefix_bytes)

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return self._call(self._core.waiting)

    @property
    def running(self) -> int:
        """Requests that run."""
        return self._call(self._core.running)

    def clear_prefixes(self) -> None:
        """Forget stored prefixes."""
        self._call(self._core.clear_prefixes)

    def save_prefixes(self, path: str | os.PathLike[str]) -> None:
        """Write the stored prefixes to a file, whole or not at all. Generation pauses meanwhile.

        Raises:
            OSError: The file cannot be written.
        """
        self._call(lambda: self._core.save_prefixes(os.fspath(path)))

    def load_prefixes(self, path: str | os.PathLike[str]) -> int:
        """Read stored prefixes from a file that `save_prefixes` wrote for this model and kind of cache.

        Returns:
            Blocks of 128 tokens that were taken, at most as many as fit `prefix_bytes`.

        Raises:
            OSError: The file cannot be read.
            OptionsError: It is damaged, or of another model, cache type or version; nothing was taken.
        """
        return self._call(lambda: self._core.load_prefixes(os.fspath(path)))

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        core = self._core
        while True:
            self._wake.clear()
            while not self._calls.empty():
                self._calls.get()()
            if self._closed is not None:
                return
            try:
                if core.is_idle():
                    self._wake.wait()
                    continue
                events = core.step()
            except BaseException as error:  # a defect of the core, or an interrupt of a source: the requests are told
                for generation in self._taken():
                    core.cancel(generation._task or 0)
                    generation._fail(error)
                continue
            for event in events:
                over = event.outcome is not None
                with self._held:
                    told = self._running.pop(event.task, None) if over else self._running.get(event.task)
                if told is not None:
                    told._take(event)

    def _taken(self) -> list[Generation]:
        """All requests under way, which are no more."""
        with self._held:
            generations = list(self._running.values())
            self._running.clear()
        return generations

    def _call(self, function: Callable[[], T]) -> T:
        """Call the core between two steps."""
        with self._held:
            self._check()
            thread = self._thread
            if thread is None or thread is threading.current_thread():
                return function()
            answer: Future[T] = Future()

            def call() -> None:
                try:
                    answer.set_result(function())
                except BaseException as error:
                    answer.set_exception(error)

            self._calls.put(call)
        self._wake.set()
        return answer.result()

    def _check(self) -> None:
        if self._closed is not None:
            raise ClosedError(f"{self._closed} is closed")
        if self._process != os.getpid():
            raise OptionsError("the engine belongs to the process that made it, this one was forked from it")

    def _shut(self, what: str) -> None:
        with self._held:
            if self._closed is not None:
                return
            self._closed, thread = what, self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread() and self._process == os.getpid():
            thread.join()
        for generation in self._taken():
            generation._end.cancel()
            generation._tell()
        del self._core

    def _tokens(self, name: str, given: str | Sequence[int]) -> list[int]:
        if isinstance(given, str):
            return self.model.tokenizer.encode(given, add_bos=None if name == "prompt" else False)
        return token_ids(name, given, "text or token ids")

    def _stats(self, outcome: _core.Outcome, request: Request) -> Stats:
        return stats_of(
            outcome.stats,
            outcome.speculation,
            kernels=self.model.kernels,
            threads=self.model.threads,
            seed=request.seed if request.sampling.temperature > 0 else None,
        )


def generate_many(
    model: LoadedModel,
    prompts: Iterable[str | Sequence[int] | Mapping[str, Any]],
    *,
    max_sequences: int,
    progress: bool | Callable[[int, Stats], object],
    return_exceptions: bool,
    speculation: Speculation | bool | None,
    options: Mapping[str, Any],
) -> Iterator[tuple[int, Result]]:
    """`Model.generate_many`."""
    ended: SimpleQueue[tuple[int, Generation]] = SimpleQueue()
    left = enumerate(prompts)
    report = _Report() if progress is True else progress or None
    with Engine(model, max_sequences=max_sequences, speculation=speculation) as engine:
        under_way = done = 0
        more = True
        while True:
            # A few more than can run, so that a sequence that ends is replaced at once.
            while more and under_way < max_sequences + 2:
                item = next(left, None)
                if item is None:
                    more = False
                    break
                number, prompt = item
                own = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
                try:
                    generation = engine.submit(**{**options, **own})
                except QuothError as error:
                    if not return_exceptions:
                        raise
                    yield number, error  # type: ignore[misc]
                    continue
                generation._end.add_done_callback(lambda _, n=number, g=generation: ended.put((n, g)))  # type: ignore[misc]
                under_way += 1
            if not under_way:
                return
            number, generation = ended.get()
            under_way -= 1
            done += 1
            failure = generation._end.exception()
            if failure is not None:
                if not return_exceptions:
                    raise failure
                yield number, failure  # type: ignore[misc]
                continue
            result = generation.result()
            if report is not None:
                report(done, result.stats)
            yield number, result


class _Report:
    """Says on standard error how far it is."""

    def __init__(self) -> None:
        self._begun = monotonic()
        self._tokens = 0

    def __call__(self, done: int, stats: Stats) -> None:
        self._tokens += stats.committed
        rate = self._tokens / max(monotonic() - self._begun, 1e-9)
        print(f"\r{done} done, {rate:.0f} tokens/s ", end="", file=sys.stderr, flush=True)
