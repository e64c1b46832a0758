"""A conversation: turns of a chat model, as messages and as the tokens that they really were.

In: a user's messages, options. Out: answers, whole or streamed, with the same tokens whether or not the decoder
speculates.

V1  The entries are the truth; the decoder is a cache of them. Each turn's prompt is made from the entries alone
    (`quoth.transcript`), and the decoder keeps what it shares with it. So whatever interrupted an earlier turn, the
    next one equals that of a conversation which came to the same entries undisturbed.
V2  What was handed out stays; nothing else does. A reader who leaves (breaks, raises, Ctrl-C, is cancelled) leaves an
    answer that ends with the last chunk it got, as if `max_tokens` had ended it there. Before the first chunk nothing
    has happened, and `reply` hands out all or nothing.
V3  An answer stays as the tokens that were generated, and nothing of a stop stays: the token that completes one was
    never kept, and where a stop text cuts through tokens, those wholly before it are kept, and what is left of the
    answer's text is encoded. Entries, cache and index agree on that.
V4  A failed call changes nothing.
V5  Turn by turn the same seed is used, and each turn's draws begin with number 0: an answer depends on the entries, the
    sampling and the seed, not on how often the conversation was tried, edited or reloaded.
V6  An interrupt may come at any moment: a change of the conversation happens as a whole or not at all, and nobody is
    left holding it.

Cost: a turn computes what its prompt does not share with the one before, that is the new message and the template's
marks; beside that it renders the template twice (`quoth.transcript`).
"""

from __future__ import annotations

import copy
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from quoth.answer import Answer, Plan
from quoth.asynchronous import AsyncSteps, Cancel
from quoth.decoder import Chunk, Decoder, Progress, Result
from quoth.errors import BusyError, ContextFullError, OptionsError
from quoth.options import DraftSource, Sampling, Speculation
from quoth.stats import Stats, total
from quoth.transcript import Entry, Prompt, Transcript, groups

if TYPE_CHECKING:
    from quoth.model import Model

__all__ = ["Conversation"]

Message: TypeAlias = Mapping[str, Any]
Stops: TypeAlias = "str | int | Sequence[str | int]"
Overflow: TypeAlias = Literal["error", "trim"]


class Conversation:
    """A conversation with a chat model. Made by `Model.conversation`; belongs to one caller at a time (`BusyError`).

    Attributes:
        model: The model.
        decoder: The decoder that runs it. Look, but generate with the conversation's own methods.
        sampling: How tokens are chosen, from the next turn on.
        seed: The seed of turns whose sampling names none.
        max_tokens: Most tokens of an answer, where a turn does not say.
        stop: What ends answers beside the model's own ends of turn: texts and token ids.
        overflow: What happens when a turn does not fit the context: `error` or `trim`.
        trimmed: Turns that were dropped so far because the context was full.
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        messages: Sequence[Message] = (),
        sampling: Sampling | None = None,
        speculation: Speculation | DraftSource | bool | None = True,
        max_tokens: int = 1024,
        stop: Stops = (),
        overflow: Overflow = "error",
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        _fork_of: Conversation | None = None,
    ) -> None:
        if overflow not in ("error", "trim"):
            raise OptionsError(f"overflow is {overflow!r}, expected error or trim")
        if system is not None and not isinstance(system, str):
            raise OptionsError(f"system is {system!r}, expected text")
        self.model: Final = model
        self.max_tokens = max_tokens
        self.stop = (stop,) if isinstance(stop, (str, int)) else tuple(stop)
        self.overflow = overflow
        self.trimmed = 0
        self._template_options = {
            "chat_template": chat_template,
            "tools": copy.deepcopy(tools),
            "documents": copy.deepcopy(documents),
            "template_kwargs": copy.deepcopy(template_kwargs),
        }
        self._transcript = Transcript(
            model.tokenizer, chat_template=chat_template, tools=tools, documents=documents, variables=template_kwargs
        )
        self.decoder: Final[Decoder] = (
            model.decoder(sampling=sampling, speculation=speculation) if _fork_of is None else _fork_of.decoder.fork()
        )
        self.sampling = self.decoder.sampling
        seed = self.sampling.seed
        self.seed = secrets.randbits(64) if seed is None else seed
        self.decoder._request(self.max_tokens, self.stop, True, None, trace=False)
        head = [] if system is None else [Entry({"role": "system", "content": system})]
        self._entries: list[Entry] = [*head, *_entries(messages, model)]
        self._open: Answer | None = None
        self._version = 0
        self._claimed = threading.Lock()
        self._spent: list[Stats] = []
        self._references: dict[int, tuple[int, list[int]]] = {}
        self._next_reference = 1

    def __repr__(self) -> str:
        return f"Conversation({len(self.messages)} messages, {self.decoder!r})"

    # -- turns ---------------------------------------------------------------------------------------------------------

    def send(
        self,
        message: str | Sequence[int] | Message | Sequence[Message],
        *,
        max_tokens: int | None = None,
        stop: Stops = (),
        logprobs: int | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        trace: bool = False,
    ) -> Answer:
        """Say something, and read the answer as it comes.

        Args:
            message: A user's text; or its token ids, used as they are, control tokens too; or a message with a role; or
                several, such as the results of tools. Control tokens that texts spell out stay plain text.
            max_tokens: Most tokens of the answer. None: the conversation's.
            stop: Texts and token ids that end this answer, beside the conversation's and the model's ends of turn.
            logprobs: Log-probabilities of the chosen and this many best tokens, 0 to 20.
            sampling: How the tokens of this answer are chosen. None: as the conversation says.
            seed: For this answer, 0 to 2^64 - 1. None: the sampling's, or else the conversation's.
            progress: Called during a long prompt with tokens done and in all.
            trace: Chunks name the source of their draft.

        Returns:
            The answer, to be iterated over. Nothing has happened before its first chunk. Leaving it early is fine:
            what was handed out stays in the conversation.

        Raises:
            OptionsError: An argument makes no sense.
            TokenizerError: A message is malformed, or the template fails.
            ContextFullError: The conversation with this message does not fit the context. With `overflow="trim"` only
                if it does not fit without all earlier turns.
            BusyError: Another caller is using the conversation.

        After an error, the conversation is as it was. An answer that was still open ends with this call.
        """
        with self._claim():
            self._settle()
            new = self._new(message)
            return self._answer(
                self._entries,
                new,
                max_tokens=max_tokens,
                stop=stop,
                logprobs=logprobs,
                sampling=sampling,
                seed=seed,
                progress=progress,
                trace=trace,
            )

    def reply(
        self,
        message: str | Sequence[int] | Message | Sequence[Message],
        *,
        max_tokens: int | None = None,
        stop: Stops = (),
        logprobs: int | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """As `send`, and return the whole answer. If it fails or is interrupted, the turn has not happened."""
        answer = self.send(
            message,
            max_tokens=max_tokens,
            stop=stop,
            logprobs=logprobs,
            sampling=sampling,
            seed=seed,
            progress=progress,
        )
        return self._whole(answer)

    def asend(
        self,
        message: str | Sequence[int] | Message | Sequence[Message],
        *,
        max_tokens: int | None = None,
        stop: Stops = (),
        logprobs: int | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        trace: bool = False,
    ) -> AsyncSteps[Chunk]:
        """As `send`, for `async for`; each step runs on a thread of the conversation's own, so that the event loop goes
        on.

        A cancellation waits for the step under way and then arrives; that step is not in the conversation. `progress`
        is called on that thread.
        """
        cancel = Cancel()
        answer: Answer | None = None

        def fetch() -> Chunk:
            nonlocal answer
            if answer is None:
                answer = self.send(
                    message,
                    max_tokens=max_tokens,
                    stop=stop,
                    logprobs=logprobs,
                    sampling=sampling,
                    seed=seed,
                    progress=cancel.watched(progress),
                    trace=trace,
                )
            return answer._fetch()

        def accept(chunk: Chunk) -> None:
            assert answer is not None, "a chunk comes from an answer"
            answer._accept(chunk)

        def close() -> None:
            if answer is not None:
                answer.close()

        return AsyncSteps(self.decoder._worker, fetch, accept, cancel, close)

    async def areply(
        self,
        message: str | Sequence[int] | Message | Sequence[Message],
        *,
        max_tokens: int | None = None,
        stop: Stops = (),
        logprobs: int | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """As `reply`, on a thread of the conversation's own. If it is cancelled, the turn has not happened."""
        cancel = Cancel()

        def work() -> Result:
            answer = self.send(
                message,
                max_tokens=max_tokens,
                stop=stop,
                logprobs=logprobs,
                sampling=sampling,
                seed=seed,
                progress=cancel.watched(progress),
            )
            return self._whole(answer, cancel)

        return await self.decoder._worker.run(work, cancel)

    def edit(
        self,
        message: str | Sequence[int] | Message | Sequence[Message],
        *,
        max_tokens: int | None = None,
        stop: Stops = (),
        logprobs: int | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        trace: bool = False,
    ) -> Answer:
        """Say something else in place of the last turn. As `undo` and `send`, but the old turn stays until the first
        chunk.

        Raises:
            OptionsError: There is no turn to edit.
        """
        with self._claim():
            self._settle()
            head, turns = groups(self._entries)
            if not turns:
                raise OptionsError("there is no turn to edit")
            kept = [*head, *(entry for turn in turns[:-1] for entry in turn)]
            new = self._new(message)
            return self._answer(
                kept,
                new,
                max_tokens=max_tokens,
                stop=stop,
                logprobs=logprobs,
                sampling=sampling,
                seed=seed,
                progress=progress,
                trace=trace,
            )

    def _answer(
        self,
        kept: list[Entry],
        new: list[Entry],
        *,
        max_tokens: int | None,
        stop: Stops,
        logprobs: int | None,
        sampling: Sampling | None,
        seed: int | None,
        progress: Progress | None,
        trace: bool,
    ) -> Answer:
        """Plan a turn behind the entries that are kept."""
        chosen = self.sampling if sampling is None else sampling
        if not isinstance(chosen, Sampling):
            raise OptionsError(f"sampling is {chosen!r}, expected quoth.Sampling")
        if seed is None:
            seed = self.seed if chosen.seed is None else chosen.seed
        more = (stop,) if isinstance(stop, (str, int)) else tuple(stop)
        request = self.decoder._request(
            self.max_tokens if max_tokens is None else max_tokens, (*self.stop, *more), True, logprobs, trace=trace
        )
        entries, trimmed, prompt = self._fit(kept, new, request.max_tokens)
        plan = Plan(
            self._entries, entries, trimmed, prompt, request, chosen, seed, progress=progress, version=self._version
        )
        return Answer(self, plan)

    def _fit(self, kept: list[Entry], new: list[Entry], max_tokens: int) -> tuple[list[Entry], int, Prompt]:
        """The prompt, without as many of the oldest turns as have to go."""
        n_ctx = self.model.n_ctx
        room = min(max_tokens, n_ctx // 4) if self.overflow == "trim" else 0
        head, turns = groups(kept)
        for dropped in range(len(turns) + 1):
            entries = [*head, *(entry for turn in turns[dropped:] for entry in turn), *new]
            prompt = self._transcript.prompt(entries)
            if len(prompt.tokens) + room <= n_ctx:
                return entries, dropped, prompt
            if self.overflow == "error" or (dropped == len(turns) and len(prompt.tokens) > n_ctx):
                what = "the conversation" if self.overflow == "error" else "the message alone"
                raise ContextFullError(
                    f"{what} takes {len(prompt.tokens)} tokens, expected at most {n_ctx}, which the context holds"
                )
        return entries, dropped, prompt

    def _whole(self, answer: Answer, cancel: Cancel | None = None) -> Result:
        """Read an answer to its end; if that fails, the turn has not happened."""
        try:
            for _ in answer:
                if cancel is not None:
                    cancel.check()
        except BaseException:
            with self._claimed:
                answer._end()
                if answer._begun and answer._version == self._version:
                    self._entries = answer._plan.before
                    self.trimmed -= answer._plan.trimmed
                    self._version += 1
            raise
        assert answer.result is not None, "an answer that was read to its end has a result"
        return answer.result

    # -- the course of an answer, told by it ---------------------------------------------------------------------------
    # Signals arrive where something is called; so an interrupt comes before or behind each run of assignments (V6).

    def _begin(self, answer: Answer, plan: Plan) -> None:
        """An answer hands out its first chunk: its turn is in the conversation now."""
        self._entries = plan.entries
        self.trimmed += plan.trimmed
        self._open = answer
        self._version += 1
        answer._version = self._version
        answer._begun = True

    def _end(self, answer: Answer, result: Result, kept: Sequence[int], rest: Sequence[int]) -> None:
        """An answer is over: it stays as the tokens that are kept, and those that spell the rest of its text."""
        prompt = answer._plan.prompt
        entry = Entry({"role": "assistant", "content": result.text}, (*kept, *rest), prompt.lead, result)
        spent = [total([*self._spent, result.stats])]
        n = len(prompt.tokens) + len(kept)
        self._entries = [*self._entries, entry]
        self._open = None
        self._spent = spent
        self._version += 1
        answer._version = self._version
        answer._result = result
        answer._over = True
        # Layers with a sliding window may not reach back so far; then the next turn begins anew.
        with suppress(OptionsError):
            self.decoder.rewind(n)

    def _settle(self) -> None:
        """End the answer that is still open."""
        if self._open is not None:
            self._open._displaced = True
            self._open._end()
            self._version += 1

    def _claim(self) -> AbstractContextManager[object]:
        """The lock, to be held by a `with`, which no interrupt can come between. Who comes second is refused; only in
        a race of two threads does one wait for the other's step."""
        if self._claimed.locked():
            raise BusyError("the conversation is in use by another caller")
        return self._claimed

    # -- history -------------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as messages, oldest first; a copy. An answer that is coming shows as far as it has come."""
        shown = [copy.deepcopy(dict(entry.message)) for entry in self._entries]
        return shown if self._open is None else [*shown, self._open._message()]

    @property
    def tokens(self) -> list[int]:
        """The conversation as token ids: the prompt of the last answer, and that answer. Empty before the first."""
        if self._open is not None:
            return [*self._open._plan.prompt.tokens, *self._open._tokens]
        last = max((at for at, entry in enumerate(self._entries) if entry.lead is not None), default=None)
        if last is None:
            return []
        return [*self._transcript.prompt(self._entries[:last]).tokens, *(self._entries[last].tokens or ())]

    @property
    def results(self) -> list[Result]:
        """The answers of this conversation, oldest first. Those that came from a file or another program are not among
        them."""
        return [entry.result for entry in self._entries if entry.result is not None]

    @property
    def last(self) -> Result | None:
        """The last answer."""
        results = self.results
        return results[-1] if results else None

    @property
    def stats(self) -> Stats:
        """Counts and times of all turns together, also of those that were undone or edited. `last.stats` are the last
        turn's."""
        return total([*self._spent] if self._open is None else [*self._spent, self.decoder.stats])

    @property
    def system(self) -> str | None:
        """The system message. Setting it takes effect with the next turn, which then reads the conversation anew; None
        removes it."""
        first = self._entries[0].message if self._entries else {}
        return str(first.get("content", "")) if first.get("role") == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None and not isinstance(text, str):
            raise OptionsError(f"system is {text!r}, expected text")
        with self._claim():
            self._settle()
            rest = self._entries if self.system is None else self._entries[1:]
            self._change([*([] if text is None else [Entry({"role": "system", "content": text})]), *rest])

    def undo(self) -> list[dict[str, Any]]:
        """Drop the last turn: the user's last message and everything behind it.

        Returns:
            The messages that were dropped; empty if there was no turn.
        """
        with self._claim():
            self._settle()
            head, turns = groups(self._entries)
            if not turns:
                return []
            self._change([*head, *(entry for turn in turns[:-1] for entry in turn)])
            return [copy.deepcopy(dict(entry.message)) for entry in turns[-1]]

    def rewrite(self, messages: Sequence[Message]) -> None:
        """Replace the whole conversation. Answers that come in it unchanged, as far as the messages before or behind
        are unchanged too, keep the token ids that they really were.

        Raises:
            OptionsError: Something in `messages` is no message. Nothing has changed.
        """
        with self._claim():
            self._settle()
            new, old = _entries(messages, self.model), self._entries
            front = 0
            while front < min(len(new), len(old)) and new[front].message == old[front].message:
                new[front] = old[front]
                front += 1
            back = 1
            while back <= min(len(new), len(old)) - front and new[-back].message == old[-back].message:
                new[-back] = old[-back]
                back += 1
            self._change(new)

    def reset(self) -> None:
        """Drop all turns. The system message and references stay."""
        with self._claim():
            self._settle()
            self._change(groups(self._entries)[0])

    def _change(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._version += 1

    def fork(self) -> Conversation:
        """An independent conversation at the same point, with the same options, cache and references. References have
        the same handles in it."""
        with self._claim():
            other = Conversation(
                self.model,
                sampling=self.sampling,
                max_tokens=self.max_tokens,
                stop=self.stop,
                overflow=self.overflow,
                _fork_of=self,
                **self._template_options,  # type: ignore[arg-type]
            )
            other.sampling, other.seed, other.trimmed = self.sampling, self.seed, self.trimmed
            other._entries = list(self._entries)
            if self._open is not None:
                answer = self._open
                tokens = tuple(answer._tokens)
                other._entries.append(Entry(answer._message(), tokens, answer._plan.prompt.lead))
            handles = other.decoder._core.references()
            for at, (handle, (_, tokens_)) in enumerate(self._references.items()):
                other._references[handle] = (handles[at] if handles else 0, tokens_)
            other._next_reference = self._next_reference
            return other

    # -- references ----------------------------------------------------------------------------------------------------

    def add_reference(self, reference: str | Sequence[int] | os.PathLike[str]) -> int:
        """Offer a document to quote from, for all turns from now on.

        It is never shown to the model, so it cannot change the text, only when it appears.

        Args:
            reference: Text (encoded alone, without special tokens), token ids, or the path of a UTF-8 file as a
                `pathlib.Path`.

        Returns:
            A handle, valid until `clear_references` or `remove_reference`.

        Raises:
            OptionsError: A token is out of range, the file is not UTF-8, or the draft source is your own, which has no
                references. Nothing was added.
            OSError: The file cannot be read.
        """
        if isinstance(reference, os.PathLike):
            reference = _read(Path(reference))
        if isinstance(reference, str):
            tokens = self.model.tokenizer.encode(reference, errors="ignore")
        else:
            tokens = _ids(reference, self.model)
        with self._claim():
            inner = self.decoder.add_reference(tokens)
            handle = self._next_reference
            self._next_reference += 1
            self._references[handle] = (inner, tokens)
            return handle

    def remove_reference(self, handle: int) -> bool:
        """Take a reference away. False if there is none of that handle."""
        with self._claim():
            if handle not in self._references:
                return False
            self.decoder.remove_reference(self._references.pop(handle)[0])
            return True

    @property
    def references(self) -> dict[int, int]:
        """Tokens of each reference, by its handle."""
        return {handle: len(tokens) for handle, (_, tokens) in self._references.items()}

    def clear_references(self) -> None:
        """Take all references away."""
        with self._claim():
            self.decoder.clear_references()
            self._references.clear()

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation to a JSON file: messages, token ids, options, references.

        Speculation, statistics and log-probabilities are not in it. An answer that is coming is saved as far as it has
        come. The file appears under its name only when complete.

        Raises:
            OSError: It cannot be written.
        """
        from quoth.saved import write  # noqa: PLC0415  only who saves pays for it

        write(self, Path(path))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: Model,
        *,
        speculation: Speculation | DraftSource | bool | None = True,
    ) -> Conversation:
        """Read a conversation that `save` wrote.

        The cache is made anew by the next turn, with the same bits; that turn and all later ones are what they would
        have been.

        Args:
            path: The file.
            model: The model, with the vocabulary that the conversation was made with.
            speculation: As for `Model.conversation`; it changes nothing but time.

        Raises:
            OSError: The file cannot be read.
            OptionsError: It is not such a file, is damaged, or its vocabulary is another one.
        """
        from quoth.saved import read  # noqa: PLC0415

        return read(cls, Path(path), model, speculation)

    def _new(self, message: str | Sequence[int] | Message | Sequence[Message]) -> list[Entry]:
        """What a user says, as entries."""
        if isinstance(message, str):
            return [Entry({"role": "user", "content": message})]
        if isinstance(message, Mapping):
            return _entries([message], self.model)
        items = list(message) if isinstance(message, Sequence) or hasattr(message, "__array__") else None
        if items is None:
            raise OptionsError(f"the message is {message!r}, expected text, token ids or messages")
        if items and isinstance(items[0], Mapping):
            return _entries(items, self.model)  # type: ignore[arg-type]
        ids = _ids(items, self.model)  # type: ignore[arg-type]
        text = self.model.tokenizer.decode(ids, skip_special=False)
        return [Entry({"role": "user", "content": text}, tuple(ids))]


def _entries(messages: Sequence[Message], model: Model) -> list[Entry]:
    """Messages as entries, copied."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise OptionsError(f"messages is {messages!r}, expected a list of messages")
    made = []
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise OptionsError(f"messages[{at}] is {message!r}, expected a mapping with a role")
        made.append(Entry(copy.deepcopy(dict(message))))
    return made


def _ids(tokens: Sequence[int], model: Model) -> list[int]:
    """Token ids as a list, checked."""
    made = []
    for at, token in enumerate(tokens):
        id = token if isinstance(token, int) else getattr(token, "__index__", lambda: None)()
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < model.n_vocab:
            raise OptionsError(f"token {at} is {token!r}, expected a token id of 0 to {model.n_vocab - 1}")
        made.append(int(id))
    return made


def _read(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionsError(
            f"the reference in `{path}` is not UTF-8: byte 0x{data[error.start]:02x} at {error.start}"
        ) from None
