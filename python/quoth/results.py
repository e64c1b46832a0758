"""What generations give: chunks while they run, a result when they are over.

In: the core's steps. Out: values to users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quoth._arguments import shown
from quoth.stats import Stats
from quoth.tools import ToolCall

if TYPE_CHECKING:
    from quoth import _core

__all__ = ["Chunk", "FinishReason", "Result", "TokenLogprobs"]

FinishReason = Literal["stop", "length", "context"]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one token: natural logarithms, before bias, penalties and temperature.

    Attributes:
        token: The chosen token.
        logprob: Its log-probability.
        top: The most probable tokens with theirs, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, repr=False)
class Chunk:
    """What one step handed out.

    Attributes:
        text: Text that is certain: whole characters, nothing of a stop. May be empty.
        tokens: Committed tokens.
        step: Number of the step; 0 came with the prompt.
        drafted: Drafted tokens that the step verified.
        accepted: How many of them, the first ones of `tokens`, were right.
        source: The source that drafted them, if `trace` was asked for.
        logprobs: One a token, if asked for.
        finish_reason: Why the generation ended, in its last chunk.
    """

    text: str
    tokens: tuple[int, ...]
    step: int
    drafted: int = 0
    accepted: int = 0
    source: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None

    def __repr__(self) -> str:
        drafts = f", {self.accepted} of {self.drafted} drafted accepted" if self.drafted else ""
        end = f", finish_reason={self.finish_reason!r}" if self.finish_reason else ""
        return f"Chunk({shown(self.text[:80])}, {len(self.tokens)} tokens, step {self.step}{drafts}{end})"


@dataclass(frozen=True, repr=False)
class Result:
    """A whole generation.

    Attributes:
        text: The text before any stop, whole characters only.
        tokens: The generated tokens, without one that completed a stop.
        finish_reason: `stop` (also where a constraint's answer is complete), `length` (all wanted tokens) or `context`
            (the context is full); with a constraint, the text is then only the beginning of an answer. None only for
            an answer in a conversation whose reader left before its end.
        stop: The stop that fired: a stop text as given, or the id of a token that ends generation.
        logprobs: One a token, if asked for.
        stats: Counts and times.
        prompt_tokens: Tokens of the prompt.
        tool_calls: Calls of the conversation's tools that the text holds.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    stop: str | int | None
    logprobs: tuple[TokenLogprobs, ...] | None
    stats: Stats
    prompt_tokens: int = 0
    tool_calls: tuple[ToolCall, ...] = ()

    def __repr__(self) -> str:
        stop = "" if self.stop is None else f", stop={shown(self.stop)}"
        return (
            f"Result({shown(self.text[:80])}, {len(self.tokens)} tokens, finish_reason={self.finish_reason!r}{stop}, "
            f"{self.stats.tokens_per_second:.1f} tokens/s)"
        )


def as_logprobs(tokens: Sequence[int], found: Sequence[_core.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """The core's log-probabilities with their tokens."""
    pairs = zip(tokens, found, strict=True)
    return tuple(TokenLogprobs(token, one.logprob, tuple(one.top)) for token, one in pairs)
