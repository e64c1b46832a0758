"""One answer of a conversation, as it comes.

In: a plan (the prompt and what will be in the conversation once the answer begins), a decoder's chunks. Out: chunks to
the reader; to the conversation, what was handed out (V2, V3 in `quoth.conversation`).

A chunk is fetched, then accepted, then handed out. What was fetched and not accepted never happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from quoth.decoder import Chunk, Progress, Result, TokenLogprobs
from quoth.errors import BusyError

if TYPE_CHECKING:
    from quoth.conversation import Conversation
    from quoth.decoder import _Request
    from quoth.options import Sampling
    from quoth.tokenizer import Tokenizer
    from quoth.transcript import Entry, Prompt

__all__ = ["Answer", "Plan"]

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
    request: _Request
    sampling: Sampling
    seed: int
    progress: Progress | None
    version: int
    """The state of the conversation that the plan is for."""


class Answer(Iterator[Chunk]):
    """An answer as it comes: iterate over it. Made by `Conversation.send`.

    What was handed out is in the conversation at once. Leaving early is fine: break, raise, or `close`.
    """

    def __init__(self, chat: Conversation, plan: Plan) -> None:
        self._chat = chat
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
            if not isinstance(
                error, Exception
            ):  # an interrupt; the chunk on its way may be lost, and then all behind it
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
            with self._chat._claim():
                self._end()

    # -- for the conversation ------------------------------------------------------------------------------------------

    def _fetch(self) -> Chunk:
        """Take a step."""
        if self._over and not self._displaced:
            raise StopIteration
        with self._chat._claim():
            self._check()
            plan, decoder = self._plan, self._chat.decoder
            try:
                if self._chunks is None:
                    decoder.set_sampling(plan.sampling, seed=plan.seed)
                    self._chunks = decoder._chunks(plan.prompt.tokens, plan.request, plan.progress)
                return next(self._chunks)
            except BaseException:
                self._end()
                raise

    def _accept(self, chunk: Chunk) -> None:
        """Take a step's chunk into the conversation."""
        with self._chat._claim():
            self._check()
            tokens, texts = [*self._tokens, *chunk.tokens], [*self._texts, chunk.text]
            logprobs = [*self._logprobs, *chunk.logprobs]
            self._tokens, self._texts, self._logprobs = tokens, texts, logprobs
            if not self._begun:
                self._chat._begin(self, self._plan)
            if chunk.finish_reason is not None:
                self._end(chunk)

    def _check(self) -> None:
        """Refuse to go on once the conversation has."""
        if self._version != self._chat._version:
            self._over = self._displaced = True
            raise BusyError(_OVER)

    def _end(self, last: Chunk | None = None) -> None:
        """No more chunks: the answer takes its place in the conversation."""
        if self._over:
            return
        if not self._begun:
            self._over = True
            return
        chat, plan = self._chat, self._plan
        tokenizer, decoder = chat.model.tokenizer, chat.decoder
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
        )
        chat._end(self, result, kept, rest)

    def _message(self) -> dict[str, Any]:
        """The answer as a message, as far as it has come."""
        text = self._chat.model.tokenizer.stream().push(self._tokens) if self._result is None else self._result.text
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
    shown = tokenizer._shown(True)
    spelled = [shown(token) for token in tokens]
    data = b"".join(spelled)
    kept = len(spelled)
    # What ends inside a character reads as if the rest of it never came; if it did, the text does not begin so.
    while not text.startswith(before := data.decode("utf-8", "replace")):
        kept -= 1
        data = data[: len(data) - len(spelled[kept])]
    rest = text[len(before) :]
    return list(tokens[:kept]), tokenizer.encode(rest, add_space_prefix=False, errors="ignore") if rest else []
