"""A decoder: prompts to text, whole or streamed, with the same tokens whether or not it speculates.

In: a model, options, prompts. Out: chunks and results. A decoder is a running session: a second prompt reuses the
longest prefix that it shares with what is cached, with the same bits as a fresh one.
"""

from __future__ import annotations

import copy
import logging
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Literal

from quoth import _core
from quoth._arguments import callback, flag, shown, token_ids, utf8, whole
from quoth.asynchronous import AsyncSteps, Cancel, Worker
from quoth.costs import expected_costs
from quoth.errors import BusyError, ContextFullError, OptionsError
from quoth.options import DraftSource, Sampling, Speculation, _CoreSampling, _CoreSpeculation, as_speculation
from quoth.stats import GateStats, SourceStats, Stats

if TYPE_CHECKING:
    from quoth.model import Model

__all__ = ["Chunk", "Decoder", "Result", "TokenLogprobs"]

_log = logging.getLogger("quoth")

FinishReason = Literal["stop", "length", "context"]
Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one token: natural logarithms, before bias, penalties and temperature."""

    token: int
    """The chosen token."""
    logprob: float
    """Its log-probability."""
    top: tuple[tuple[int, float], ...]
    """The most probable tokens with theirs, best first."""


@dataclass(frozen=True)
class Chunk:
    """What one step handed out."""

    text: str
    """Text that is certain: whole characters, nothing of a stop. May be empty."""
    tokens: tuple[int, ...]
    """Committed tokens."""
    step: int
    """Number of the step; 0 came with the prompt."""
    drafted: int = 0
    """Drafted tokens that the step verified."""
    accepted: int = 0
    """How many of them, the first ones of `tokens`, were right."""
    source: str | None = None
    """Who drafted them, if `trace` was asked for."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One a token, if asked for."""
    finish_reason: FinishReason | None = None
    """Why the generation ended, in its last chunk."""


@dataclass(frozen=True)
class Result:
    """A whole generation."""

    text: str
    """The text before any stop, whole characters only."""
    tokens: tuple[int, ...]
    """The generated tokens, without one that completed a stop."""
    finish_reason: FinishReason | None
    """`stop`, `length` (all wanted tokens) or `context` (the context is full). None only for an answer in a
    conversation whose reader left before its end."""
    stop: str | int | None
    """The stop that fired: a stop text as given, or the id of a token that ends generation."""
    logprobs: tuple[TokenLogprobs, ...] | None
    """One a token, if asked for."""
    stats: Stats
    """Counts and times."""
    prompt_tokens: int = 0
    """Tokens of the prompt."""


@dataclass
class _Request:
    """The fields that the core reads."""

    max_tokens: int
    stop_ids: list[int]
    stop_at_eog: bool
    stop_texts: list[bytes]
    logprobs: int | None
    trace: bool
    texts: list[str] = field(default_factory=list)


class Decoder:
    """Generates text. Made by `Model.decoder`; belongs to one caller at a time (`BusyError`)."""

    def __init__(
        self,
        model: Model,
        *,
        sampling: Sampling | None = None,
        speculation: Speculation | DraftSource | bool | None = True,
        _fork_of: Decoder | None = None,
    ) -> None:
        self.model = model
        self.sampling = sampling if sampling is not None else model.default_sampling
        if not isinstance(self.sampling, Sampling):
            raise OptionsError(f"sampling is {shown(sampling)}, expected quoth.Sampling")
        self.speculation = as_speculation(speculation)
        self._seed = self.sampling.seed if self.sampling.seed is not None else secrets.randbits(64)
        self._last_stop: str | int | None = None
        self._warned: str | None = None
        self._generation = 0
        self._held = Lock()
        self._seed_is_due = False  # whether the core may have the seed of a request that never began
        self._worker = Worker()
        self._core: _core.Decoder
        options, source = None, None
        if self.speculation is not None:
            expected = expected_costs(model) if self.speculation.costs is None else None
            options, source = _CoreSpeculation(self.speculation, expected), self.speculation.source
        if _fork_of is not None:
            self._seed, self._seed_is_due = _fork_of._seed, _fork_of._seed_is_due
            self._core = _fork_of._core.fork(options, source)
        else:
            self._core = _core.Decoder(
                model._model, model.kv_type, _CoreSampling(self.sampling), self._seed, options, source
            )

    def __repr__(self) -> str:
        how = "plain" if self.speculation is None else f"up to {self.speculation.max_draft} drafted"
        try:
            return f"Decoder({how}, {len(self.history)} tokens)"
        except BusyError:  # who prints it may be a callback of the call under way
            return f"Decoder({how}, in use)"

    # -- generating ----------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        stop: str | int | Sequence[str | int] = (),
        stop_at_eog: bool = True,
        logprobs: int | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Generate after a prompt, and return when it is done.

        Args:
            prompt: Text (encoded without parsing special tokens; the model's begin token goes in front if the file says
                so) or token ids, used as they are.
            max_tokens: Most tokens, at least 1.
            stop: Texts or token ids that end the generation. A text may span tokens; neither it nor anything after it
                is returned.
            stop_at_eog: Whether the model's own ends of generation end it.
            logprobs: Log-probabilities of the chosen and this many best tokens, 0 to 20.
            seed: For this and later generations, in place of the sampling's.
            progress: Called during a long prompt with tokens done and in all.

        Raises:
            OptionsError: The prompt is empty or has a token out of range, or an argument makes no sense. Nothing has
                changed.
            ContextFullError: The prompt does not fit the context. Nothing has changed.
            BusyError: Another caller is using the decoder.

        After an error the decoder stands at the last committed token and can be used again. Ctrl-C works between steps.
        """
        request = self._request(max_tokens, stop, stop_at_eog, logprobs, trace=False, progress=progress)
        tokens, seed = self._prompt(prompt), self._own_seed(seed)
        with self._claim():
            first = self._begin(tokens, request, progress, seed)
            rest = first if first[6] is not None else self._core.run()
        rows = (first,) if rest is first else (first, rest)
        finish = rest[6]
        assert finish is not None, "the core ends every generation with a reason"
        self._last_stop = _stop_of(finish, request)
        out = tuple(token for row in rows for token in row[0])
        lps = tuple(row for r in rows for row in r[2])
        self._warn_if_disabled()
        return self._result(
            "".join(row[1] for row in rows),
            out,
            finish[0],
            None if logprobs is None else _logprobs(out, lps),
            len(tokens),
        )

    async def agenerate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        stop: str | int | Sequence[str | int] = (),
        stop_at_eog: bool = True,
        logprobs: int | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """As `generate`, on a thread of the decoder's own, so that the event loop goes on.

        A cancellation waits for the step under way and then arrives; the decoder stands at a committed token and can
        be used again. `progress` is called on that thread.
        """
        request = self._request(max_tokens, stop, stop_at_eog, logprobs, trace=False, progress=progress)
        seed = self._own_seed(seed)
        cancel = Cancel()

        def work() -> Result:
            tokens = self._prompt(prompt)
            chunks = []
            for chunk in self._chunks(tokens, request, cancel.watched(progress), seed):
                chunks.append(chunk)
                cancel.check()
            return self._result(
                "".join(chunk.text for chunk in chunks),
                tuple(token for chunk in chunks for token in chunk.tokens),
                chunks[-1].finish_reason,
                None if logprobs is None else tuple(row for chunk in chunks for row in chunk.logprobs),
                len(tokens),
            )

        return await self._worker.run(work, cancel)

    def _result(
        self,
        text: str,
        tokens: tuple[int, ...],
        finish_reason: FinishReason | None,
        logprobs: tuple[TokenLogprobs, ...] | None,
        prompt_tokens: int,
    ) -> Result:
        return Result(
            text=text,
            tokens=tokens,
            finish_reason=finish_reason,
            stop=self._last_stop,
            logprobs=logprobs,
            stats=self.stats,
            prompt_tokens=prompt_tokens,
        )

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        stop: str | int | Sequence[str | int] = (),
        stop_at_eog: bool = True,
        logprobs: int | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        trace: bool = False,
    ) -> Iterator[Chunk]:
        """As `generate`, a chunk at a time, as soon as a step is done.

        The texts of all chunks, joined, are the text of `generate`. Leaving the loop early is fine: the decoder then
        stands at the last token that was handed out, and the next prompt goes on from what it shares with it. With
        `trace`, chunks name the source of their draft. Once something else was generated, or the decoder was rewound,
        going on with an older stream raises `BusyError`.
        """
        request = self._request(max_tokens, stop, stop_at_eog, logprobs, trace=trace, progress=progress)
        return self._chunks(self._prompt(prompt), request, progress, self._own_seed(seed))

    def astream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        stop: str | int | Sequence[str | int] = (),
        stop_at_eog: bool = True,
        logprobs: int | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        trace: bool = False,
    ) -> AsyncSteps[Chunk]:
        """As `stream`, for `async for`; each step runs on a thread of the decoder's own, so that the event loop goes
        on.

        A cancellation waits for the step under way and then arrives; that step is not handed out. The decoder can be
        used again. `progress` is called on that thread.
        """
        request = self._request(max_tokens, stop, stop_at_eog, logprobs, trace=trace, progress=progress)
        seed = self._own_seed(seed)
        cancel = Cancel()

        def chunks() -> Generator[Chunk]:
            yield from self._chunks(self._prompt(prompt), request, cancel.watched(progress), seed)

        running = chunks()
        return AsyncSteps(self._worker, running.__next__, lambda chunk: None, cancel, running.close)

    def tokens(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        stop: str | int | Sequence[str | int] = (),
        stop_at_eog: bool = True,
        seed: int | None = None,
    ) -> Iterator[int]:
        """As `stream`, one token id at a time."""
        for chunk in self.stream(prompt, max_tokens=max_tokens, stop=stop, stop_at_eog=stop_at_eog, seed=seed):
            yield from chunk.tokens

    def _chunks(
        self, tokens: list[int], request: _Request, progress: Progress | None, seed: int | None = None
    ) -> Iterator[Chunk]:
        with self._claim():
            row, generation = self._begin(tokens, request, progress, seed), self._generation
        step = 0
        while True:
            ids, text, lps, drafted, accepted, source, finish = row
            if finish is not None:
                self._last_stop = _stop_of(finish, request)
                self._warn_if_disabled()
            yield Chunk(
                text=text,
                tokens=tuple(ids),
                step=step,
                drafted=drafted,
                accepted=accepted,
                source=source,
                logprobs=_logprobs(ids, lps) if lps else (),
                finish_reason=finish[0] if finish else None,
            )
            if finish is not None:
                return
            with self._claim():
                if generation != self._generation:
                    raise BusyError("the decoder was used for something else meanwhile, so this generation is over")
                row = self._core.step()
            step += 1

    def _request(
        self,
        max_tokens: int,
        stop: str | int | Sequence[str | int],
        stop_at_eog: bool,
        logprobs: int | None,
        *,
        trace: bool,
        progress: Progress | None = None,
    ) -> _Request:
        max_tokens = whole("max_tokens", max_tokens, 1, 2**31 - 1)
        if logprobs is not None:
            logprobs = whole("logprobs", logprobs, 0, 20, or_none=True)
        flag("stop_at_eog", stop_at_eog)
        flag("trace", trace)
        callback("progress", progress)
        stops = as_stops(stop, self.model.n_vocab)
        ids = [s for s in stops if isinstance(s, int)]
        texts = [s for s in stops if isinstance(s, str)]
        encoded = [utf8("stop", text) for text in texts]
        return _Request(max_tokens, ids, stop_at_eog, encoded, logprobs, trace, texts)

    def _prompt(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt, add_bos=None)
        return token_ids("prompt", prompt, "text or token ids")

    @staticmethod
    def _own_seed(seed: int | None) -> int | None:
        """The seed of a request, checked."""
        return None if seed is None else whole("seed", seed, 0, 2**64 - 1, or_none=True)

    def _begin(self, tokens: list[int], request: _Request, progress: Progress | None, seed: int | None) -> _core._Step:
        """Take in a prompt, for who holds the decoder. A request that the core refuses leaves seed, stop and open
        streams as they were."""
        told = False

        def tell(done: int, total: int) -> object:
            nonlocal told
            told = True
            return None if progress is None else progress(done, total)

        chosen = self._seed if seed is None else seed
        try:
            if seed is not None or self._seed_is_due:
                self._seed_is_due = True
                self._core.set_sampling(_CoreSampling(self.sampling), chosen)
            row = self._core.begin(tokens, request, None if progress is None else tell)
            self._over()
            self._seed, self._seed_is_due = chosen, False
        except BaseException as error:
            if told or not isinstance(error, (OptionsError, ContextFullError, BusyError)):
                self._over()  # some of the prompt has taken the place of what was there
            raise
        return row

    def _over(self) -> None:
        """Whatever was being generated is so no more."""
        self._generation += 1
        self._last_stop = None

    def _claim(self) -> AbstractContextManager[object]:
        """The decoder, to be held by a `with` for what takes two calls of the core. Who comes second is refused; only
        in a race of two threads does one wait for the other."""
        if self._held.locked():
            raise BusyError("the decoder is in use by another caller")
        return self._held

    def _warn_if_disabled(self) -> None:
        speculation = self._core.speculation_stats()
        if speculation is None or speculation[0]["state"] != "disabled":
            return
        reason = speculation[0]["reason"]
        if reason != self._warned:
            self._warned = reason
            _log.warning("drafting is off: %s", reason)

    # -- references ----------------------------------------------------------------------------------------------------

    def add_reference(self, reference: str | Sequence[int]) -> int:
        """Offer a document to quote from.

        It is never shown to the model, so it cannot change the text, only when it appears.

        Args:
            reference: Text (encoded alone, without special tokens) or token ids, each 0 to `n_vocab` - 1. An empty one
                is allowed and never matches.

        Returns:
            A handle, valid until `clear_references` or `remove_reference`.

        Raises:
            OptionsError: A token is out of range, or the draft source is your own, which has no references. Nothing was
                added.
        """
        if not isinstance(reference, str):
            reference = token_ids("reference", reference, "text or token ids")
        if self.speculation is None:
            return 0  # plain decoding has no use for it; the same program runs with and without speculation
        if not self._core.has_cascade:
            raise OptionsError("the draft source is the caller's own, expected the built-in ones to take a reference")
        tokens = self.model.tokenizer.encode(reference, errors="ignore") if isinstance(reference, str) else reference
        return self._core.add_reference(tokens)

    def remove_reference(self, handle: int) -> bool:
        """Take a reference away. False if there is none of that handle."""
        return self._core.remove_reference(min(whole("handle", handle, 0), 2**63))

    def clear_references(self) -> None:
        """Take all references away."""
        self._core.clear_references()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def history(self) -> list[int]:
        """Prompt and generated tokens up to now; the next prompt reuses the longest prefix that it shares with them."""
        return self._core.history()

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values are cached."""
        return self._core.cached()

    @property
    def stop(self) -> str | int | None:
        """The stop that ended the last generation: a text as given, or a token id."""
        return self._last_stop

    @property
    def stats(self) -> Stats:
        """Counts and times of the current or last generation."""
        speculation = self._core.speculation_stats()
        gate, sources = GateStats("off"), {}
        if speculation is not None:
            fields, rows = speculation
            gate = GateStats(**fields)
            sources = {r[0]: SourceStats(r[1], r[2], r[3], r[5], r[6]) for r in rows}
        greedy = self.sampling.temperature <= 0
        return Stats(
            **self._core.stats(),
            gate=gate,
            sources=sources,
            kernels=self.model.kernels,
            threads=self.model.threads,
            seed=None if greedy else self._seed,
        )

    def set_sampling(self, sampling: Sampling, *, seed: int | None = None) -> None:
        """Use other sampling options from the next generation on.

        Args:
            sampling: The options.
            seed: In place of the options' seed, 0 to 2^64 - 1.
        """
        if not isinstance(sampling, Sampling):
            raise OptionsError(f"sampling is {shown(sampling)}, expected quoth.Sampling")
        if seed is not None:
            seed = whole("seed", seed, 0, 2**64 - 1, or_none=True)
        chosen = seed if seed is not None else sampling.seed if sampling.seed is not None else secrets.randbits(64)
        with self._claim():
            self._seed_is_due = True
            self._core.set_sampling(_CoreSampling(sampling), chosen)
            self.sampling, self._seed, self._seed_is_due = sampling, chosen, False

    def rewind(self, n: int) -> None:
        """Go back to the first `n` tokens of the history.

        Raises:
            OptionsError: `n` is negative, or layers with a sliding window no longer keep what is needed.
        """
        n = min(whole("n", n, 0), self.model.n_ctx + 1)  # a full context and the token it carries
        with self._claim():
            self._core.rewind(n)
            self._generation += 1

    def reset(self) -> None:
        """Forget all tokens. Options and references stay."""
        with self._claim():
            self._core.reset()
            self._generation += 1

    def fork(self) -> Decoder:
        """An independent decoder at the same point, with the same options and references.

        A draft source of your own is copied (`copy.deepcopy`), since each decoder tells its source another stream.
        What `__deepcopy__` returns is used: it may share parts, or be the source itself if that keeps no stream.

        Raises:
            OptionsError: The draft source is your own and cannot be copied.
            BusyError: Another caller is using the decoder.
        """
        self._core.cached()  # who is in use is not copied from
        speculation: Speculation | None = self.speculation
        if speculation is not None and speculation.source is not None:
            speculation = replace(speculation, source=_copy_of(speculation.source))
        return Decoder(self.model, sampling=self.sampling, speculation=speculation, _fork_of=self)


def _copy_of(source: DraftSource) -> DraftSource:
    try:
        return copy.deepcopy(source)
    except Exception as error:  # whatever a source raises
        raise OptionsError(
            f"the draft source cannot be copied for the fork: {type(error).__name__}: {error}; expected one that "
            "`copy.deepcopy` can copy, or that has `__deepcopy__`"
        ) from error


def as_stops(stop: str | int | Sequence[str | int], n_vocab: int) -> tuple[str | int, ...]:
    """What a user gave as `stop`: texts and token ids.

    Raises:
        OptionsError: Something is neither, a text is empty or no Unicode, or a token is out of range.
    """
    stops = [stop] if isinstance(stop, (str, int)) else token_ids("stop", stop, "texts and token ids")
    for item in stops:
        if not isinstance(item, (str, int)) or isinstance(item, bool):
            raise OptionsError(f"stop is {shown(stop)}, expected texts and token ids")
        if isinstance(item, int) and not 0 <= item < n_vocab:
            raise OptionsError(f"stop is {shown(stop)}, expected token ids of 0 to {n_vocab - 1}")
        if isinstance(item, str) and not utf8("stop", item):
            raise OptionsError(f"stop is {shown(stop)}, expected texts of at least one character")
    return tuple(stops)


def _stop_of(finish: tuple[FinishReason, int | None, int | None], request: _Request) -> str | int | None:
    _, stop_id, stop_text = finish
    return request.texts[stop_text] if stop_text is not None else stop_id


def _logprobs(
    tokens: Sequence[int], rows: Sequence[tuple[float, list[tuple[int, float]]]]
) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(t, chosen, tuple(top)) for t, (chosen, top) in zip(tokens, rows, strict=True))
