"""One answer of a conversation, as it comes, and the turns that it takes its place in.

In: a plan (the prompt and what will be in the conversation once the answer begins), a decoder's chunks. Out: chunks to
the reader; to the turns, what was handed out (V2, V3 in `quoth.conversation`).

A chunk is fetched, then accepted, then handed out. What was fetched and not accepted never happened.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from quoth.decoder import Decoder
from quoth.errors import BusyError, OptionsError
from quoth.request import Request
from quoth.results import Chunk, Result, TokenLogprobs
from quoth.stats import Stats, total
from quoth.tools import Tools
from quoth.transcript import Entry, Prompt

if TYPE_CHECKING:
    from quoth.tokenizer import Tokenizer

__all__ = ["Answer", "Plan", "Turns"]

_OVER = "the conversation was used for something else meanwhile, so this answer is over"


@dataclass(frozen=True)
class Plan:
    """A turn that has not begun."""

    before: list[Entry]
    """The conversation as it is."""
    entries: list[Entry]
    """The conversation with the new messages, without turns that had to go."""
    trimmed: int
    """How many turns had to go."""
    prompt: Prompt
    request: Request
    version: int
    """The state of the conversation that the plan is for."""
    tools: Tools | None
    """What the answer may call."""


class Turns:
    """What a conversation holds: its entries, what they took, the answer that is coming.

    Signals arrive where something is called; so an interrupt comes before or behind each run of assignments (V6).
    """

    def __init__(self, entries: list[Entry], spent: list[Stats], trimmed: int) -> None:
        self.entries = entries
        self.spent = spent
        self.trimmed = trimmed
        self.open: Answer | None = None
        self.version = 0
        self.lock = threading.Lock()

    def claim(self) -> AbstractContextManager[object]:
        """The lock, to be held by a `with`, which no interrupt can come between. A second caller is refused; only in a
        race of two threads does one wait for the other's step."""
        if self.lock.locked():
            raise BusyError("the conversation is in use by another caller")
        return self.lock

    def change(self, entries: list[Entry]) -> None:
        """Take other entries."""
        self.entries = entries
        self.version += 1

    def settle(self) -> None:
        """End the answer that is still open."""
        if self.open is not None:
            self.open._displaced = True
            self.open._end()
            self.version += 1

    def begin(self, answer: Answer) -> None:
        """An answer hands out its first chunk: its turn is in the conversation now."""
        self.entries = answer._plan.entries
        self.trimmed += answer._plan.trimmed
        self.open = answer
        self.version += 1
        answer._version = self.version
        answer._begun = True

    def end(self, answer: Answer, result: Result, tokens: Sequence[int]) -> None:
        """An answer is over: it stays as these tokens."""
        entry = Entry({"role": "assistant", "content": result.text}, tuple(tokens), answer._plan.prompt.lead, result)
        spent = [total([*self.spent, result.stats])]
        self.entries = [*self.entries, entry]
        self.open = None
        self.spent = spent
        self.version += 1
        answer._version = self.version
        answer._result = result
        answer._over = True

    def take_back(self, answer: Answer) -> None:
        """An answer failed whose reader wants all or nothing: its turn has not happened."""
        with self.lock:
            answer._end()
            if answer._begun and answer._version == self.version:
                self.entries = answer._plan.before
                self.trimmed -= answer._plan.trimmed
                self.version += 1


class Answer(Iterator[Chunk]):
    """An answer as it comes: iterate over it. Made by `Conversation.send`.

    What was handed out is in the conversation at once. Leaving early is fine: break, raise, or `close`.
    """

    def __init__(self, turns: Turns, decoder: Decoder, plan: Plan) -> None:
        self._turns = turns
        self._decoder = decoder
        self._plan = plan
        self._version = plan.version
        self._chunks: Iterator[Chunk] | None = None
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._begun = False
        self._over = False
        self._displaced = False
        self._result: Result | None = None

    def __repr__(self) -> str:
        state = "over" if self._over else "open" if self._begun else "not begun"
        return f"Answer({state}, {len(self._tokens)} tokens)"

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Chunk:
        try:
            chunk = self._fetch()
            self._accept(chunk)
            return chunk
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt; the chunk on its way may be lost, and all behind it
                self.close()
            raise

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def text(self) -> str:
        """The text that was handed out."""
        return "".join(self._texts) if self._result is None else self._result.text

    @property
    def tokens(self) -> list[int]:
        """The tokens that were handed out."""
        return list(self._tokens)

    @property
    def result(self) -> Result | None:
        """The answer as a whole, once it is over; None before, and if nothing was handed out."""
        return self._result

    def close(self) -> None:
        """Leave the answer where it is. What was handed out stays in the conversation."""
        if not self._over:
            with self._turns.claim():
                self._end()

    # -- for the conversation ------------------------------------------------------------------------------------------

    def _fetch(self) -> Chunk:
        """Take a step."""
        if self._over and not self._displaced:
            raise StopIteration
        with self._turns.claim():
            self._check()
            try:
                if self._chunks is None:
                    self._chunks = self._decoder._chunks(self._plan.prompt.tokens, self._plan.request)
                return next(self._chunks)
            except BaseException:
                self._end()
                raise

    def _accept(self, chunk: Chunk) -> None:
        """Take a step's chunk into the conversation."""
        with self._turns.claim():
            self._check()
            tokens, texts = [*self._tokens, *chunk.tokens], [*self._texts, chunk.text]
            logprobs = [*self._logprobs, *chunk.logprobs]
            self._tokens, self._texts, self._logprobs = tokens, texts, logprobs
            if not self._begun:
                self._turns.begin(self)
            if chunk.finish_reason is not None:
                self._end(chunk)

    def _check(self) -> None:
        """Refuse to go on once the conversation has."""
        if self._version != self._turns.version:
            self._over = self._displaced = True
            raise BusyError(_OVER)

    def _end(self, last: Chunk | None = None) -> None:
        """No more chunks: the answer takes its place in the conversation."""
        if self._over:
            return
        if not self._begun:
            self._over = True
            return
        plan, decoder = self._plan, self._decoder
        tokenizer = decoder.model.tokenizer
        finish_reason = None if last is None else last.finish_reason
        stop = decoder.stop if finish_reason == "stop" else None
        # An answer that was left shows what it had held back, like one that `max_tokens` ended.
        text = tokenizer.stream().push(self._tokens) if finish_reason is None else "".join(self._texts)
        kept, rest = cut_at(tokenizer, self._tokens, text) if isinstance(stop, str) else (self._tokens, [])
        result = Result(
            text=text,
            tokens=tuple(self._tokens),
            finish_reason=finish_reason,
            stop=stop,
            logprobs=None if plan.request.logprobs is None else tuple(self._logprobs),
            stats=decoder.stats,
            prompt_tokens=len(plan.prompt.tokens),
            tool_calls=() if plan.tools is None else plan.tools.calls(text),
        )
        self._turns.end(self, result, (*kept, *rest))
        # Layers with a sliding window may not reach back so far; then the next turn begins anew.
        with suppress(OptionsError):
            decoder.rewind(len(plan.prompt.tokens) + len(kept))

    def _message(self) -> dict[str, Any]:
        """The answer as a message, as far as it has come."""
        text = self._decoder.model.tokenizer.stream().push(self._tokens) if self._result is None else self._result.text
        return {"role": "assistant", "content": text}


def cut_at(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> tuple[list[int], list[int]]:
    """Spell an answer that a stop text cut off.

    The stop may begin inside a token, which then says more than the answer; and the token that completed the stop,
    which is not among the answer's, may have said the answer's last characters.

    Args:
        tokenizer: To know the tokens' bytes.
        tokens: All tokens before the one that completed the stop.
        text: The text before the stop.

    Returns:
        The tokens that lie wholly in the text, and an encoding of what is left of it.
    """
    spelled = [tokenizer._shown([token]) for token in tokens]
    data = b"".join(spelled)
    kept = len(spelled)
    # What ends inside a character reads as if the rest of it never came; if it did, the text does not begin so.
    while not text.startswith(before := data.decode("utf-8", "replace")):
        kept -= 1
        data = data[: len(data) - len(spelled[kept])]
    rest = text[len(before) :]
    return list(tokens[:kept]), tokenizer.encode(rest, add_space_prefix=False, errors="ignore") if rest else []
