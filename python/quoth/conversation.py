"""A conversation: turns of a chat model, as messages and as the tokens that they really were.

In: a user's messages, options. Out: answers, whole or streamed, with the same tokens whether or not the decoder
speculates.

V1  The entries are the truth; the decoder is a cache of them. Each turn's prompt is made from the entries alone
    (`quoth.transcript`), and the decoder keeps what it shares with it. So whatever interrupted an earlier turn, the
    next one equals that of a conversation which came to the same entries undisturbed.
V2  What was handed out stays; nothing else does. A reader that leaves (breaks, raises, Ctrl-C, is cancelled) leaves an
    answer that ends with the last chunk it got, as if `max_tokens` had ended it there. Before the first chunk nothing
    has happened, and `reply` hands out all or nothing.
V3  An answer stays as the tokens that were generated, and nothing of a stop stays: the token that completes one was
    never kept, and where a stop text cuts through tokens, those wholly before it are kept, and what is left of the
    answer's text is encoded. Entries, cache and index agree on that.
V4  A failed call changes nothing.
V5  An answer depends on the entries, the sampling and the turn's seed alone, not on how often the conversation was
    tried, edited, forked or reloaded: each turn's draws begin with number 0. A seed is the call's, else the
    sampling's; a conversation without either draws one anew for each turn, which `result.stats.seed` tells, so asking
    again gives another answer, and so do its forks and what is loaded from its file.
V6  An interrupt may come at any moment: a change of the conversation happens as a whole or not at all, and no lock
    stays held.

Cost: a turn computes what its prompt does not share with the one before, that is the new message and the template's
marks; beside that it renders the template twice (`quoth.transcript`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from quoth._arguments import as_mapping, copied, shown, text, token_ids, whole
from quoth._files import as_path
from quoth._resource import Resource
from quoth.answer import Answer, Plan, Turns
from quoth.asynchronous import AsyncSteps, Cancel
from quoth.decoder import Decoder
from quoth.errors import ContextFullError, OptionsError
from quoth.loaded import LoadedModel
from quoth.options import DraftSource, Sampling, Speculation
from quoth.request import GenerateOptions, Request, StreamOptions, as_stops, takes
from quoth.results import Chunk, Result
from quoth.saved import Saved, read, write
from quoth.stats import Stats, total
from quoth.tools import Tools
from quoth.transcript import Entry, Prompt, Transcript, groups

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Conversation"]

Message: TypeAlias = Mapping[str, Any]
Said: TypeAlias = "str | Sequence[int] | Message | Sequence[Message]"
Stops: TypeAlias = "str | int | Sequence[str | int]"
Overflow: TypeAlias = Literal["error", "trim"]

RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of templates that a conversation fills."""


class Conversation(Resource):
    """A conversation with a chat model. Made by `Model.conversation`; belongs to one caller at a time (`BusyError`).

    Attributes:
        model: The model.
        decoder: The decoder that runs it. Look, but generate with the conversation's own methods.
        sampling: How tokens are chosen, from the next turn on.
        seed: The sampling's seed: with one, the same turn gives the same answer; with None, each turn draws anew.
        max_tokens: Most tokens of an answer, where a turn does not say.
        stop: What ends answers beside the model's own ends of turn: texts and token ids.
        tool_choice: What an answer is where there are tools: `auto` for what the model likes, `required` for a call of
            one of them, or the name of one. The calls are `result.tool_calls`.
        overflow: What happens when a turn does not fit the context: `error` or `trim`.
        trimmed: Turns that were dropped so far because the context was full. Only to be read.

    Options that are set are checked at once, as when the conversation was made (`OptionsError`), and count from the
    next turn on.
    """

    _instead = "`save` writes it to a file; in this process, `fork` copies it"

    def __init__(
        self,
        model: LoadedModel,
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
        tool_choice: str = "auto",
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        _fork_of: Conversation | None = None,
    ) -> None:
        if system is not None:
            text("system", system)
        self.model: Final = model
        self.max_tokens = max_tokens
        self.stop = stop
        self.overflow = overflow
        if chat_template is not None:
            text("chat_template", chat_template)
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
        self._tools: Final = (
            None if tools is None else Tools(model.tokenizer, tools, self._transcript.template, template_kwargs)
        )
        self.tool_choice = tool_choice
        head = [] if system is None else [Entry({"role": "system", "content": system})]
        entries = [*head, *_entries(messages)]
        self._turns: Final[Turns] = (
            Turns(entries, [], 0)
            if _fork_of is None
            else Turns([*entries, *_fork_of._shown()], [*_fork_of._turns.spent], _fork_of.trimmed)
        )
        self.decoder: Final[Decoder] = (
            Decoder(model, sampling=sampling, speculation=speculation) if _fork_of is None else _fork_of.decoder.fork()
        )
        self._references: dict[int, tuple[int, list[int]]] = {}
        self._next_reference = 1
        model._children[self] = None

    def _shut(self, what: str) -> None:
        with self._turns.claim():
            if not self.decoder.closed:
                self._turns.settle()
            self.decoder._shut(what)

    # -- options -------------------------------------------------------------------------------------------------------

    @property
    def sampling(self) -> Sampling:
        return self.decoder.sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self.decoder.sampling = sampling

    @property
    def seed(self) -> int | None:
        return self.sampling.seed

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self.sampling = replace(self.sampling, seed=seed)

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
    def tool_choice(self) -> str:
        return self._tool_choice

    @tool_choice.setter
    def tool_choice(self, tool_choice: str) -> None:
        if tool_choice != "auto":
            if self._tools is None:
                raise OptionsError(f"tool_choice is {shown(tool_choice)}, expected auto: there are no tools")
            self._tools.constraint(tool_choice)
        self._tool_choice = tool_choice

    @property
    def trimmed(self) -> int:
        return self._turns.trimmed

    def __repr__(self) -> str:
        return f"Conversation({len(self.messages)} messages, {self.decoder!r})"

    # -- turns ---------------------------------------------------------------------------------------------------------

    @takes(StreamOptions, max_tokens=None)
    def send(self, message: Said, **options: Unpack[StreamOptions]) -> Answer:
        """Say something, and read the answer as it comes.

        Args:
            message: A user's text; or its token ids, used as they are, control tokens too; or a message with a role, as
                a mapping, a dataclass or a pydantic model; or several, such as the results of tools. Control tokens
                that texts spell out stay plain text.
            **options: See below. `stop` ends this answer beside the conversation's and the model's ends of turn.

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
        return self._ask(message, self._asked(options, StreamOptions))

    @takes(GenerateOptions, max_tokens=None)
    def reply(self, message: Said, **options: Unpack[GenerateOptions]) -> Result:
        """As `send`, and return the whole answer. If it fails or is interrupted, the turn has not happened."""
        return self._whole(self._ask(message, self._asked(options)))

    @takes(StreamOptions, max_tokens=None)
    def asend(self, message: Said, **options: Unpack[StreamOptions]) -> AsyncSteps[Chunk]:
        """As `send`, for `async for`; each step runs on a thread of the conversation's own, so that the event loop goes
        on.

        A cancellation waits for the step under way and then arrives; that step is not in the conversation. `progress`
        is called on that thread.
        """
        request, cancel = self._asked(options, StreamOptions), Cancel()
        watched = replace(request, progress=cancel.watched(request.progress))
        answer: Answer | None = None

        def fetch() -> Chunk:
            nonlocal answer
            if answer is None:
                answer = self._ask(message, watched)
            return answer._fetch()

        def accept(chunk: Chunk) -> None:
            assert answer is not None, "a chunk comes from an answer"
            answer._accept(chunk)

        def close() -> None:
            if answer is not None:
                answer.close()

        return AsyncSteps(self.decoder._worker, fetch, accept, cancel, close)

    @takes(GenerateOptions, max_tokens=None)
    async def areply(self, message: Said, **options: Unpack[GenerateOptions]) -> Result:
        """As `reply`, on a thread of the conversation's own. If it is cancelled, the turn has not happened."""
        request, cancel = self._asked(options), Cancel()
        watched = replace(request, progress=cancel.watched(request.progress))
        return await self.decoder._worker.run(lambda: self._whole(self._ask(message, watched), cancel), cancel)

    @takes(StreamOptions, max_tokens=None)
    def edit(self, message: Said, **options: Unpack[StreamOptions]) -> Answer:
        """Say something else in place of the last turn. As `undo` and `send`, but the old turn stays until the first
        chunk.

        Raises:
            OptionsError: There is no turn to edit.
        """
        request = self._asked(options, StreamOptions)
        with self._turns.claim():
            self._turns.settle()
            head, turns = groups(self._turns.entries)
            if not turns:
                raise OptionsError("there is no turn to edit")
            kept = [*head, *(entry for turn in turns[:-1] for entry in turn)]
            return self._plan(kept, self._new(message), request)

    @takes(StreamOptions, max_tokens=None)
    def retry(self, **options: Unpack[StreamOptions]) -> Answer:
        """Answer once more what was answered last. The old answer stays until the first chunk.

        Without a seed the draws are new ones; with the same seed the answer is the same.

        Raises:
            OptionsError: The conversation does not end with an answer.
        """
        request = self._asked(options, StreamOptions)
        with self._turns.claim():
            self._turns.settle()
            asked = list(self._turns.entries)
            if not asked or asked.pop().message.get("role") != "assistant":
                raise OptionsError("there is no answer to try again")
            new: list[Entry] = []
            while asked and asked[-1].message.get("role") not in ("assistant", "system", "developer"):
                new.insert(0, asked.pop())
            return self._plan(asked, new, request)

    def _asked(self, options: Mapping[str, Any], kind: type[GenerateOptions] = GenerateOptions) -> Request:
        """The request of a turn: what the call does not say, the conversation does."""
        own: dict[str, Any] = {"stop": (*self.stop, *as_stops(options.get("stop", ()), self.model.n_vocab))}
        if options.get("max_tokens") is None:
            own["max_tokens"] = self.max_tokens
        if self._tools is not None and self.tool_choice != "auto" and options.get("constraint") is None:
            own["constraint"] = self._tools.constraint(self.tool_choice)
        return self.decoder._asked({**options, **own}, kind)

    def _ask(self, message: Said, request: Request) -> Answer:
        with self._turns.claim():
            self._turns.settle()
            return self._plan(self._turns.entries, self._new(message), request)

    def _plan(self, kept: list[Entry], new: list[Entry], request: Request) -> Answer:
        """Plan a turn behind the entries that are kept."""
        entries, trimmed, prompt = self._fit(kept, new, request.max_tokens)
        plan = Plan(self._turns.entries, entries, trimmed, prompt, request, self._turns.version, self._tools)
        return Answer(self._turns, self.decoder, plan)

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
            self._turns.take_back(answer)
            raise
        assert answer.result is not None, "an answer that was read to its end has a result"
        return answer.result

    # -- history -------------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as messages, oldest first; a copy. An answer that is coming shows as far as it has come."""
        return [copy.deepcopy(dict(entry.message)) for entry in self._shown()]

    def _shown(self) -> list[Entry]:
        """The entries, and the answer that is coming as far as it has come."""
        answer = self._turns.open
        if answer is None:
            return list(self._turns.entries)
        coming = Entry(answer._message(), tuple(answer._tokens), answer._plan.prompt.lead)
        return [*self._turns.entries, coming]

    @property
    def tokens(self) -> list[int]:
        """The conversation as token ids: the prompt of the last answer, and that answer. Empty before the first."""
        answer, entries = self._turns.open, self._turns.entries
        if answer is not None:
            return [*answer._plan.prompt.tokens, *answer._tokens]
        last = max((at for at, entry in enumerate(entries) if entry.lead is not None), default=None)
        if last is None:
            return []
        return [*self._transcript.prompt(entries[:last]).tokens, *(entries[last].tokens or ())]

    @property
    def results(self) -> list[Result]:
        """The answers of this conversation, oldest first. Those that came from a file or another program are not among
        them."""
        return [entry.result for entry in self._turns.entries if entry.result is not None]

    @property
    def last(self) -> Result | None:
        """The last answer."""
        results = self.results
        return results[-1] if results else None

    @property
    def stats(self) -> Stats:
        """Counts and times of all turns together, also of those that were undone or edited. `last.stats` are the last
        turn's."""
        turns = self._turns
        return total(turns.spent if turns.open is None else [*turns.spent, self.decoder.stats])

    @property
    def system(self) -> str | None:
        """The system message. Setting it takes effect with the next turn, which then reads the conversation anew; None
        removes it."""
        first = self._turns.entries[0].message if self._turns.entries else {}
        return str(first.get("content", "")) if first.get("role") == "system" else None

    @system.setter
    def system(self, system: str | None) -> None:
        if system is not None:
            text("system", system)
        with self._turns.claim():
            self._turns.settle()
            rest = self._turns.entries if self.system is None else self._turns.entries[1:]
            self._turns.change([*([] if system is None else [Entry({"role": "system", "content": system})]), *rest])

    def undo(self) -> list[dict[str, Any]]:
        """Drop the last turn: the user's last message and everything behind it.

        Returns:
            The messages that were dropped; empty if there was no turn.
        """
        with self._turns.claim():
            self._turns.settle()
            head, turns = groups(self._turns.entries)
            if not turns:
                return []
            self._turns.change([*head, *(entry for turn in turns[:-1] for entry in turn)])
            return [copy.deepcopy(dict(entry.message)) for entry in turns[-1]]

    def rewrite(self, messages: Sequence[Message]) -> None:
        """Replace the whole conversation. Answers that come in it unchanged, as far as the messages before or behind
        are unchanged too, keep the token ids that they really were.

        Raises:
            OptionsError: Something in `messages` is no message. Nothing has changed.
        """
        with self._turns.claim():
            self._turns.settle()
            new, old = _entries(messages), self._turns.entries
            front = 0
            while front < min(len(new), len(old)) and new[front].message == old[front].message:
                new[front] = old[front]
                front += 1
            back = 1
            while back <= min(len(new), len(old)) - front and new[-back].message == old[-back].message:
                new[-back] = old[-back]
                back += 1
            self._turns.change(new)

    def reset(self) -> None:
        """Drop all turns. The system message and references stay."""
        with self._turns.claim():
            self._turns.settle()
            self._turns.change(groups(self._turns.entries)[0])

    def fork(self) -> Conversation:
        """An independent conversation at the same point, with the same options, cache, references, results and
        statistics. References have the same handles in it.

        An answer that is still coming is in it as far as it has come, as text: not among its results and statistics.

        Raises:
            OptionsError: The draft source is your own and cannot be copied (`Decoder.fork`).
        """
        with self._turns.claim():
            other = Conversation(
                self.model,
                max_tokens=self.max_tokens,
                stop=self.stop,
                overflow=self.overflow,
                tool_choice=self.tool_choice,
                _fork_of=self,
                **self._template_options,  # type: ignore[arg-type]
            )
            handles = other.decoder._core.references()
            for at, (handle, (_, tokens)) in enumerate(self._references.items()):
                other._references[handle] = (handles[at] if handles else 0, tokens)
            other._next_reference = self._next_reference
            return other

    # -- references ----------------------------------------------------------------------------------------------------

    def add_reference(self, reference: str | Sequence[int] | os.PathLike[str]) -> int:
        """Offer a document to quote from, for all turns from now on. As `Decoder.add_reference`."""
        tokens = self.decoder._reference(reference)
        with self._turns.claim():
            inner = self.decoder._add_reference(tokens)
            handle = self._next_reference
            self._next_reference += 1
            self._references[handle] = (inner, tokens)
            return handle

    def remove_reference(self, handle: int) -> bool:
        """Take a reference away. False if there is none of that handle."""
        handle = whole("handle", handle, 0)
        with self._turns.claim():
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
        with self._turns.claim():
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
        options = {"max_tokens": self.max_tokens, "stop": list(self.stop), "overflow": self.overflow}
        references = [tokens for _, tokens in self._references.values()]
        saved = Saved(self._shown(), self.sampling, {**options, **self._template_options}, self.trimmed, references)
        write(as_path("path", path), self.model, saved)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: LoadedModel,
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
        file = as_path("path", path)
        saved = read(file, model)
        try:
            chat = cls(model, sampling=saved.sampling, speculation=speculation, **saved.options)
        except OptionsError as error:
            raise OptionsError(f"`{file}`, options: {error}") from None
        chat._turns.entries, chat._turns.trimmed = saved.entries, saved.trimmed
        for reference in saved.references:
            chat.add_reference(reference)
        return chat

    def _new(self, message: Said) -> list[Entry]:
        """What a user says, as entries."""
        if isinstance(message, str):
            return [Entry({"role": "user", "content": text("the message", message)})]
        if isinstance(as_mapping(message), Mapping):
            return _entries([message])  # type: ignore[list-item]
        expected = "text, token ids or messages"
        items = token_ids("the message", message, expected)
        if items and isinstance(as_mapping(items[0]), Mapping):
            return _entries(items)
        ids = self.model._model.token_ids(items)
        content = self.model.tokenizer.decode(ids, skip_special=False)
        return [Entry({"role": "user", "content": content}, tuple(ids))]


def _entries(messages: Sequence[Message]) -> list[Entry]:
    """Messages as entries, copied."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise OptionsError(f"messages is {shown(messages)}, expected a list of messages")
    made = []
    for at, given in enumerate(messages):
        message = as_mapping(given)
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise OptionsError(f"messages[{at}] is {shown(message)}, expected a mapping with a role")
        made.append(Entry(copied(f"messages[{at}]", message, 1)))
    return made


def _mappings(name: str, values: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools or documents, copied."""
    if values is None:
        return None
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise OptionsError(f"{name} is {shown(values)}, expected a list of mappings")
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
        raise OptionsError(f"template_kwargs is {shown(variables)}, expected a mapping")
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
