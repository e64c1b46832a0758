"""A decoder: prompts to text, whole or streamed, with the same tokens whether or not it speculates.

In: a model, options, prompts. Out: chunks and results. A decoder is a running session: a second prompt reuses the
longest prefix that it shares with what is cached, with the same bits as a fresh one.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from quoth import _core
from quoth._arguments import token_ids, whole
from quoth._files import as_path, read_text
from quoth._resource import Closed, Resource
from quoth.asynchronous import AsyncSteps, Cancel, Worker
from quoth.costs import expected_costs
from quoth.errors import BusyError, ClosedError, ContextFullError, OptionsError
from quoth.loaded import LoadedModel
from quoth.options import CoreSampling, CoreSpeculation, DraftSource, Sampling, Speculation, as_sampling, as_speculation
from quoth.request import GenerateOptions, Request, StreamOptions, takes
from quoth.results import Chunk, FinishReason, Result, TokenLogprobs, as_logprobs
from quoth.stats import Stats, stats_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Decoder"]

_log = logging.getLogger("quoth")

REFERENCE_BYTES: Final = 1 << 26
"""Most bytes of a file that is a reference: 64 MiB."""


class Decoder(Resource):
    """Generates text. Made by `Model.decoder`; belongs to one caller at a time (`BusyError`).

    Attributes:
        model: The model.
        sampling: How tokens are chosen where a call does not say. What is set is checked at once (`OptionsError`) and
            counts from the next call on.
        speculation: How they are guessed; None for plain decoding. Only to be read.
    """

    _instead = "make one in the other process; in this one, `fork` copies it"

    def __init__(
        self,
        model: LoadedModel,
        *,
        sampling: Sampling | None = None,
        speculation: Speculation | DraftSource | bool | None = True,
        _fork_of: Decoder | None = None,
    ) -> None:
        self.model = model
        self.sampling = model.default_sampling if sampling is None else sampling
        self.speculation = as_speculation(speculation)
        self._request: Request | None = None
        self._last_stop: str | int | None = None
        self._warned: str | None = None
        self._generation = 0
        self._held = Lock()
        self._worker = Worker()
        options, source = None, None
        if self.speculation is not None:
            expected = expected_costs(model) if self.speculation.costs is None else None
            drafters = model._chosen(self.speculation.drafters)
            options, source = CoreSpeculation(self.speculation, expected, drafters), self.speculation.source
        self._core: _core.Decoder = (
            _core.Decoder(model._model, model.kv_type, options, source)
            if _fork_of is None
            else _fork_of._core.fork(options, source)
        )
        model._children[self] = None

    @property
    def sampling(self) -> Sampling:
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        _core.check_sampling(CoreSampling(as_sampling(sampling)), self.model.n_vocab)
        self._sampling = sampling

    def __repr__(self) -> str:
        how = "plain" if self.speculation is None else f"up to {self.speculation.max_draft} drafted"
        try:
            return f"Decoder({how}, {len(self.history)} tokens)"
        except BusyError:  # it may be printed by a callback of the call under way
            return f"Decoder({how}, in use)"
        except ClosedError:
            return "Decoder(closed)"

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return isinstance(self._core, Closed)

    def _shut(self, what: str) -> None:
        with self._claim():
            if not self.closed:
                self._core.cached()  # a decoder in use is not closed
                self._core = Closed(what)  # type: ignore[assignment]

    # -- generating ----------------------------------------------------------------------------------------------------

    @takes(GenerateOptions)
    def generate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Result:
        """Generate after a prompt, and return when it is done.

        Args:
            prompt: Text (encoded without parsing special tokens; the model's begin token goes in front if the file says
                so) or token ids, used as they are.
            **options: See below.

        Raises:
            OptionsError: The prompt is empty or has a token out of range, or an argument makes no sense. Nothing has
                changed.
            ContextFullError: The prompt does not fit the context. Nothing has changed.
            BusyError: Another caller is using the decoder.

        After an error the decoder stands at the last committed token and can be used again. Ctrl-C works between steps.
        """
        request, tokens = self._asked(options), self._prompt(prompt)
        with self._claim():
            steps = [self._begin(tokens, request)]
            if steps[0].finish is None:
                steps.append(self._core.run())
        finish = steps[-1].finish
        assert finish is not None, "the core ends every generation with a reason"
        self._last_stop = request.stop_of(finish)
        self._warn_if_disabled()
        ids = [step.tokens for step in steps]
        logprobs = (row for step, own in zip(steps, ids, strict=True) for row in as_logprobs(own, step.logprobs))
        return self._result(
            "".join(step.text for step in steps),
            tuple(token for own in ids for token in own),
            finish.reason,
            None if request.logprobs is None else tuple(logprobs),
            len(tokens),
        )

    @takes(GenerateOptions)
    async def agenerate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Result:
        """As `generate`, on a thread of the decoder's own, so that the event loop goes on.

        A cancellation waits for the step under way and then arrives; the decoder stands at a committed token and can
        be used again. `progress` is called on that thread.
        """
        request, cancel = self._asked(options), Cancel()
        watched = replace(request, progress=cancel.watched(request.progress))

        def work() -> Result:
            tokens = self._prompt(prompt)
            chunks = []
            for chunk in self._chunks(tokens, watched):
                chunks.append(chunk)
                cancel.check()
            return self._result(
                "".join(chunk.text for chunk in chunks),
                tuple(token for chunk in chunks for token in chunk.tokens),
                chunks[-1].finish_reason,
                None if request.logprobs is None else tuple(row for chunk in chunks for row in chunk.logprobs),
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
        return Result(text, tokens, finish_reason, self._last_stop, logprobs, self.stats, prompt_tokens)

    @takes(StreamOptions)
    def stream(self, prompt: str | Sequence[int], **options: Unpack[StreamOptions]) -> Iterator[Chunk]:
        """As `generate`, a chunk at a time, as soon as a step is done.

        The texts of all chunks, joined, are the text of `generate`. Leaving the loop early is fine: the decoder then
        stands at the last token that was handed out, and the next prompt goes on from what it shares with it. With
        `trace`, chunks name the source of their draft. Once something else was generated, or the decoder was rewound,
        going on with an older stream raises `BusyError`.
        """
        request = self._asked(options, StreamOptions)
        return self._chunks(self._prompt(prompt), request)

    @takes(StreamOptions)
    def astream(self, prompt: str | Sequence[int], **options: Unpack[StreamOptions]) -> AsyncSteps[Chunk]:
        """As `stream`, for `async for`; each step runs on a thread of the decoder's own, so that the event loop goes
        on.

        A cancellation waits for the step under way and then arrives; that step is not handed out. The decoder can be
        used again. `progress` is called on that thread.
        """
        request, cancel = self._asked(options, StreamOptions), Cancel()
        watched = replace(request, progress=cancel.watched(request.progress))

        def chunks() -> Generator[Chunk]:
            yield from self._chunks(self._prompt(prompt), watched)

        running = chunks()
        return AsyncSteps(self._worker, running.__next__, lambda chunk: None, cancel, running.close)

    @takes(GenerateOptions)
    def tokens(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Iterator[int]:
        """As `stream`, one token id at a time."""
        request = self._asked(options)
        return (token for chunk in self._chunks(self._prompt(prompt), request) for token in chunk.tokens)

    def _chunks(self, tokens: list[int], request: Request) -> Iterator[Chunk]:
        with self._claim():
            made, generation = self._begin(tokens, request), self._generation
        step = 0
        while True:
            ids, finish = made.tokens, made.finish
            if finish is not None:
                self._last_stop = request.stop_of(finish)
                self._warn_if_disabled()
            yield Chunk(
                text=made.text,
                tokens=tuple(ids),
                step=step,
                drafted=made.drafted,
                accepted=made.accepted,
                source=made.source,
                logprobs=() if request.logprobs is None else as_logprobs(ids, made.logprobs),
                finish_reason=None if finish is None else finish.reason,
            )
            if finish is not None:
                return
            with self._claim():
                if generation != self._generation:
                    raise BusyError("the decoder was used for something else meanwhile, so this generation is over")
                made = self._core.step()
            step += 1

    def _asked(self, options: Mapping[str, Any], kind: type[GenerateOptions] = GenerateOptions) -> Request:
        return Request.of(options, kind, self.sampling, self.model.n_vocab)

    def _prompt(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt, add_bos=None)
        return token_ids("prompt", prompt, "text or token ids")

    def _begin(self, tokens: list[int], request: Request) -> _core.Step:
        """Take in a prompt; the caller holds the decoder. A request that the core refuses leaves seed, stop and open
        streams as they were."""
        told, progress = False, request.progress

        def tell(done: int, total: int) -> object:
            nonlocal told
            told = True
            return None if progress is None else progress(done, total)

        try:
            step = self._core.begin(tokens, request, None if progress is None else tell)
        except BaseException as error:
            if told or not isinstance(error, (OptionsError, ContextFullError, BusyError, ClosedError)):
                self._over()  # some of the prompt has taken the place of what was there
            raise
        self._over()
        self._request = request
        return step

    def _over(self) -> None:
        """What was being generated is no longer."""
        self._generation += 1
        self._last_stop = None

    def _claim(self) -> AbstractContextManager[object]:
        """The decoder, to be held by a `with` for what takes two calls of the core. A second caller is refused; only
        in a race of two threads does one wait for the other."""
        if self._held.locked():
            raise BusyError("the decoder is in use by another caller")
        return self._held

    def _warn_if_disabled(self) -> None:
        speculation = self._core.speculation_stats()
        if speculation is None or speculation.gate.state != "disabled":
            return
        reason = speculation.gate.reason
        if reason != self._warned:
            self._warned = reason
            _log.warning("drafting is off: %s", reason)

    # -- references ----------------------------------------------------------------------------------------------------

    def add_reference(self, reference: str | Sequence[int] | os.PathLike[str]) -> int:
        """Offer a document to quote from.

        It is never shown to the model, so it cannot change the text, only when it appears.

        Args:
            reference: Text (encoded alone, without special tokens), token ids, each 0 to `n_vocab` - 1, or the path of
                a UTF-8 file as a `pathlib.Path`, of at most 64 MiB. An empty one is allowed and never matches.

        Returns:
            A handle, valid until `clear_references` or `remove_reference`. Without speculation 0: the same program runs
            with and without.

        Raises:
            OptionsError: A token is out of range, the file is not UTF-8 or too large, or the draft source is your own,
                which has no references. Nothing was added.
            OSError: The file cannot be read.
        """
        return self._add_reference(self._reference(reference))

    def _add_reference(self, tokens: list[int]) -> int:
        return 0 if self.speculation is None else self._core.add_reference(tokens)

    def _reference(self, reference: str | Sequence[int] | os.PathLike[str]) -> list[int]:
        """A reference as token ids, checked."""
        if isinstance(reference, os.PathLike):
            reference = read_text("the reference", as_path("reference", reference), REFERENCE_BYTES)
        if isinstance(reference, str):
            return self.model.tokenizer.encode(reference, errors="ignore")
        return self.model._model.token_ids(token_ids("reference", reference, "text, token ids or a path"))

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
        asked = self._request
        drawn = asked is not None and asked.sampling.temperature > 0
        return stats_of(
            self._core.stats(),
            self._core.speculation_stats(),
            kernels=self.model.kernels,
            threads=self.model.threads,
            seed=asked.seed if asked is not None and drawn else None,
        )

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
        self._core.cached()  # a decoder in use is not copied from
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
