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
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from quoth._arguments import copied, shown, text, token_ids, whole
from quoth._files import as_path, read_text
from quoth.answer import Answer, Plan
from quoth.asynchronous import AsyncSteps, Cancel
from quoth.decoder import Chunk, Decoder, Progress, Result, as_stops
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

REFERENCE_BYTES: Final = 1 << 26
"""Most bytes of a file that is a reference: 64 MiB."""
RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of templates that a conversation fills."""


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
        trimmed: Turns that were dropped so far because the context was full. Only to be read.

    Options that are set are checked at once, as when the conversation was made (`OptionsError`), and count from the
    next turn on.
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
        if system is not None:
            text("system", system, or_none=True)
        self.model: Final = model
        self.max_tokens = max_tokens
        self.stop = stop
        self.overflow = overflow
        self._trimmed = 0
        if chat_template is not None:
            text("chat_template", chat_template, or_none=True)
        tools, documents = _mappings("tools", tools), _mappings("documents", documents)
        template_kwargs = _variables(template_kwargs)
        self._template_options = {
            "chat_template": chat_template,
            "tools": tools,
            "documents": documents,
            "template_kwargs": template_kwargs,
        }
        self._transcript = Transcript(
            model.tokenizer, chat_template=chat_template, tools=tools, documents=documents, variables=template_kwargs
        )
        head = [] if system is None else [Entry({"role": "system", "content": system})]
        self._entries: list[Entry] = [*head, *_entries(messages)]
        self.decoder: Final[Decoder] = (
            model.decoder(sampling=sampling, speculation=speculation) if _fork_of is None else _fork_of.decoder.fork()
        )
        self.sampling = self.decoder.sampling
        seed = self.sampling.seed
        self.seed = secrets.randbits(64) if seed is None else seed
        self._open: Answer | None = None
        self._version = 0
        self._claimed = threading.Lock()
        self._spent: list[Stats] = []
        self._references: dict[int, tuple[int, list[int]]] = {}
        self._next_reference = 1

    # -- options -------------------------------------------------------------------------------------------------------

    @property
    def sampling(self) -> Sampling:
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampling = _as_sampling(sampling)

    @property
    def seed(self) -> int:
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = whole("seed", seed, 0, 2**64 - 1)

    @property
    def max_tokens(self) -> int:
        return self._max_tokens

    @max_tokens.setter
    def max_tokens(self, max_tokens: int) -> None:
        self._max_tokens = whole("max_tokens", max_tokens, 1, 2**31 - 1)

    @property
    def stop(self) -> tuple[str | int, ...]:
        return self._stop

    @stop.setter
    def stop(self, stop: Stops) -> None:
        self._stop = as_stops(stop, self.model.n_vocab)

    @property
    def overflow(self) -> Overflow:
        return self._overflow

    @overflow.setter
    def overflow(self, overflow: Overflow) -> None:
        if not isinstance(overflow, str) or overflow not in ("error", "trim"):
            raise OptionsError(f"overflow is {shown(overflow)}, expected error or trim")
        self._overflow: Overflow = overflow

    @property
    def trimmed(self) -> int:
        return self._trimmed

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
        chosen = self.sampling if sampling is None else _as_sampling(sampling)
        if seed is None:
            seed = self.seed if chosen.seed is None else chosen.seed
        seed = whole("seed", seed, 0, 2**64 - 1, or_none=True)
        request = self.decoder._request(
            self.max_tokens if max_tokens is None else max_tokens,
            (*self.stop, *as_stops(stop, self.model.n_vocab)),
            True,
            logprobs,
            trace=trace,
            progress=progress,
        )
        entries, trimmed, prompt = self._fit(kept, new, request.max_tokens)
        plan = Plan(
            self._entries, entries, trimmed, prompt, request, chosen, seed, progress=progress, version=self._version
        )
        return Answer(self, plan)

    def _fit(self, kept: list[Entry], new: list[Entry], max_tokens: int) -> tuple[list[Entry], int, Prompt]:
        """The prompt, without as many of the oldest turns as have to go.

        A template writes less with a turn less, so how many have to go is found by doubling and halving, and rendered
        is a logarithm of that number. Where a template does not keep to this, more turns may go than have to. What is
        left fits in any case; only where nothing is left to drop, the room for the answer may be missing.
        """
        n_ctx = self.model.n_ctx
        room = min(max_tokens, n_ctx // 4) if self.overflow == "trim" else 0
        head, turns = groups(kept)

        def without(dropped: int) -> tuple[list[Entry], int, Prompt]:
            entries = [*head, *(entry for turn in turns[dropped:] for entry in turn), *new]
            return entries, dropped, self._transcript.prompt(entries)

        def fits(found: tuple[list[Entry], int, Prompt]) -> bool:
            return len(found[2].tokens) + room <= n_ctx

        best = without(0)
        if self.overflow == "trim":
            low, high, step = 0, 0, 1
            while not fits(best) and high < len(turns):
                low, high, step = high, min(high + step, len(turns)), step * 2
                best = without(high)
            while fits(best) and high - low > 1:  # without `low` turns it does not fit
                middle = (low + high) // 2
                found = without(middle)
                if fits(found):
                    best, high = found, middle
                else:
                    low = middle
        n_tokens = len(best[2].tokens)
        if n_tokens > n_ctx:
            what = "the conversation" if self.overflow == "error" else "the message alone"
            raise ContextFullError(f"{what} takes {n_tokens} tokens, expected at most {n_ctx}, which the context holds")
        return best

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
                    self._trimmed -= answer._plan.trimmed
                    self._version += 1
            raise
        assert answer.result is not None, "an answer that was read to its end has a result"
        return answer.result

    # -- the course of an answer, told by it ---------------------------------------------------------------------------
    # Signals arrive where something is called; so an interrupt comes before or behind each run of assignments (V6).

    def _begin(self, answer: Answer, plan: Plan) -> None:
        """An answer hands out its first chunk: its turn is in the conversation now."""
        self._entries = plan.entries
        self._trimmed += plan.trimmed
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
    def system(self, system: str | None) -> None:
        if system is not None:
            text("system", system, or_none=True)
        with self._claim():
            self._settle()
            rest = self._entries if self.system is None else self._entries[1:]
            self._change([*([] if system is None else [Entry({"role": "system", "content": system})]), *rest])

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
            new, old = _entries(messages), self._entries
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
        """An independent conversation at the same point, with the same options, cache, references, results and
        statistics. References have the same handles in it.

        An answer that is still coming is in it as far as it has come, as text: not among its results and statistics.

        Raises:
            OptionsError: The draft source is your own and cannot be copied (`Decoder.fork`).
        """
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
            other.sampling, other.seed, other._trimmed = self.sampling, self.seed, self.trimmed
            other._entries = list(self._entries)
            other._spent = list(self._spent)
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
                `pathlib.Path`, of at most 64 MiB.

        Returns:
            A handle, valid until `clear_references` or `remove_reference`.

        Raises:
            OptionsError: A token is out of range, the file is not UTF-8 or too large, or the draft source is your own,
                which has no references. Nothing was added.
            OSError: The file cannot be read.
        """
        if isinstance(reference, os.PathLike):
            reference = read_text("the reference", as_path("reference", reference), REFERENCE_BYTES)
        if isinstance(reference, str):
            tokens = self.model.tokenizer.encode(reference, errors="ignore")
        else:
            tokens = _ids("reference", reference, self.model, "text, token ids or a path")
        with self._claim():
            inner = self.decoder.add_reference(tokens)
            handle = self._next_reference
            self._next_reference += 1
            self._references[handle] = (inner, tokens)
            return handle

    def remove_reference(self, handle: int) -> bool:
        """Take a reference away. False if there is none of that handle."""
        handle = whole("handle", handle, 0)
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
        come. The file appears under its name only when complete. A symbolic link stays, and what it points to is
        written.

        Raises:
            OSError: It cannot be written.
            OptionsError: The path is none, or is that of a folder, a device or a pipe; a message holds something that
                JSON cannot say; or the file would have more than 256 MiB, which `load` would refuse.
        """
        from quoth.saved import write  # noqa: PLC0415  only who saves pays for it

        write(self, as_path("path", path))

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
            path: The file, of at most 256 MiB; no device or pipe.
            model: The model, with the vocabulary that the conversation was made with.
            speculation: As for `Model.conversation`; it changes nothing but time.

        Raises:
            OSError: The file cannot be read.
            OptionsError: It is not such a file, is too large or damaged, or its vocabulary is another one.
        """
        from quoth.saved import read  # noqa: PLC0415

        return read(cls, as_path("path", path), model, speculation)

    def _new(self, message: str | Sequence[int] | Message | Sequence[Message]) -> list[Entry]:
        """What a user says, as entries."""
        if isinstance(message, str):
            return [Entry({"role": "user", "content": text("the message", message)})]
        if isinstance(message, Mapping):
            return _entries([message])
        expected = "text, token ids or messages"
        items = token_ids("the message", message, expected)
        if items and isinstance(items[0], Mapping):
            return _entries(items)
        ids = _ids("the message", items, self.model, expected)
        content = self.model.tokenizer.decode(ids, skip_special=False)
        return [Entry({"role": "user", "content": content}, tuple(ids))]


def _entries(messages: Sequence[Message]) -> list[Entry]:
    """Messages as entries, copied."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise OptionsError(f"messages is {shown(messages)}, expected a list of messages")
    made = []
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise OptionsError(f"messages[{at}] is {shown(message)}, expected a mapping with a role")
        made.append(Entry(copied(f"messages[{at}]", message, 1)))
    return made


def _mappings(name: str, values: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools or documents, copied."""
    if values is None:
        return None
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise OptionsError(f"{name} is {shown(values)}, expected a list of mappings or None")
    for at, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise OptionsError(f"{name}[{at}] is {shown(value)}, expected a mapping")
    made: list[dict[str, Any]] = copied(name, list(values))
    return made


def _variables(variables: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A template's own variables, copied."""
    if variables is None:
        return None
    if not isinstance(variables, Mapping):
        raise OptionsError(f"template_kwargs is {shown(variables)}, expected a mapping or None")
    for name in variables:
        if not isinstance(name, str):
            raise OptionsError(f"template_kwargs has the name {shown(name)}, expected text")
        if name in RESERVED:
            raise OptionsError(
                f"template_kwargs has the name {name!r}, expected none of those that the conversation fills: "
                f"{', '.join(sorted(RESERVED))}"
            )
    return {
        text("a name of template_kwargs", name): copied(f"template_kwargs[{name!r}]", value)
        for name, value in variables.items()
    }


def _as_sampling(sampling: Sampling) -> Sampling:
    if not isinstance(sampling, Sampling):
        raise OptionsError(f"sampling is {shown(sampling)}, expected quoth.Sampling")
    return sampling


def _ids(name: str, tokens: Sequence[int], model: Model, expected: str) -> list[int]:
    """Token ids as a list, checked."""
    last = model.n_vocab - 1
    return [whole(f"token {at}", token, 0, last) for at, token in enumerate(token_ids(name, tokens, expected))]
