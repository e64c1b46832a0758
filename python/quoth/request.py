"""What is asked of one generation: the keywords that every generating method takes, and what the core makes of them.

In: keywords as users give them. Out: a `Request`, checked and with a seed of its own.

Q1  The keywords are written down, documented and checked here alone. `help()` shows them for each method.
Q2  A request owns its sampling and its seed. Without a seed, from the call or from the sampling, it draws one anew.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from quoth._arguments import callback, flag, shown, token_ids, utf8, whole
from quoth.constraints import Constraint, as_constraint
from quoth.errors import OptionsError
from quoth.options import CoreSampling, Sampling, as_sampling

if TYPE_CHECKING:
    from quoth import _core

__all__ = ["EngineOptions", "GenerateOptions", "Progress", "Request", "Stops", "StreamOptions", "as_stops", "takes"]

F = TypeVar("F", bound=Callable[..., Any])
Progress = Callable[[int, int], object]
Stops = "str | int | Sequence[str | int]"


class _RequestOptions(TypedDict, total=False):
    max_tokens: int
    stop: str | int | Sequence[str | int]
    stop_at_eog: bool
    logprobs: int | None
    sampling: Sampling | None
    seed: int | None
    constraint: Constraint | None


class GenerateOptions(_RequestOptions, total=False):
    """Keywords of methods that give a whole generation."""

    progress: Progress | None


class StreamOptions(GenerateOptions, total=False):
    """Keywords of methods that give chunks."""

    trace: bool


class EngineOptions(_RequestOptions, total=False):
    """Keywords of requests to an engine."""

    trace: bool


MEANINGS: Final = {
    "max_tokens": "Most tokens, at least 1. Default: 256; in a conversation, what the conversation says.",
    "stop": "Texts or token ids that end the generation. A text may span tokens; neither it nor anything after it is "
    "returned.",
    "stop_at_eog": "Whether the model's own ends of generation end it.",
    "logprobs": "Log-probabilities of the chosen and this many best tokens, 0 to 20.",
    "sampling": "How the tokens are chosen. None: as the decoder, the engine or the conversation says.",
    "seed": "Of the draws, 0 to 2^64 - 1, in place of the sampling's. The same seed gives the same text. None in both "
    "places: drawn anew, and told by `stats.seed`.",
    "constraint": "What the answer has to look like: `quoth.json_schema`, `json_object`, `regex`, `lark` or `choice`. "
    "The generation ends where it is complete, with the finish reason `stop`; ended by `length` or `context`, the text "
    "is only the beginning of an answer.",
    "progress": "Called during a long prompt with tokens done and in all. What it raises stops the prompt.",
    "trace": "Chunks name the source of their draft.",
}
DEFAULTS: Final[StreamOptions] = {
    "max_tokens": 256,
    "stop": (),
    "stop_at_eog": True,
    "logprobs": None,
    "sampling": None,
    "seed": None,
    "constraint": None,
    "progress": None,
    "trace": False,
}


def takes(kind: type[_RequestOptions], **defaults: Any) -> Callable[[F], F]:
    """Let `help()` show a method's keywords, which its signature has only as `**options: Unpack[kind]`.

    Args:
        kind: The keywords.
        **defaults: Defaults that differ from `DEFAULTS`.
    """

    def told(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=({**DEFAULTS, **defaults})[name],
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in kind.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        said = "".join(f"    {name}: {MEANINGS[name]}\n" for name in kind.__annotations__)
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{said}"
        return function

    return told


@dataclass
class Request:
    """What is asked of one generation. The core reads all but `stops` and `progress`."""

    max_tokens: int
    stop_ids: list[int]
    stop_texts: list[bytes]
    stop_at_eog: bool
    logprobs: int | None
    trace: bool
    sampling: CoreSampling
    seed: int
    stops: tuple[str | int, ...]
    """The stops as given."""
    progress: Progress | None
    constraint: Constraint | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], kind: type[_RequestOptions], sampling: Sampling, n_vocab: int) -> Request:
        """Check what was asked.

        Args:
            options: Keywords as given.
            kind: The keywords that there are.
            sampling: What counts where the keywords have none.
            n_vocab: Token ids are below it.

        Raises:
            TypeError: There is no such keyword.
            OptionsError: A value makes no sense.
        """
        for name in options:
            if name not in kind.__annotations__:
                raise TypeError(
                    f"unexpected keyword argument {name!r}, expected some of {', '.join(kind.__annotations__)}"
                )
        given: StreamOptions = {**DEFAULTS, **options}  # type: ignore[typeddict-item]
        logprobs, seed = given["logprobs"], given["seed"]
        callback("progress", given["progress"])
        stops = as_stops(given["stop"], n_vocab)
        sampling = sampling if given["sampling"] is None else as_sampling(given["sampling"])
        if seed is None:
            seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        return cls(
            max_tokens=whole("max_tokens", given["max_tokens"], 1, 2**31 - 1),
            stop_ids=[stop for stop in stops if isinstance(stop, int)],
            stop_texts=[stop.encode() for stop in stops if isinstance(stop, str)],
            stop_at_eog=flag("stop_at_eog", given["stop_at_eog"]),
            logprobs=None if logprobs is None else whole("logprobs", logprobs, 0, 20),
            trace=flag("trace", given["trace"]),
            sampling=CoreSampling(sampling),
            seed=whole("seed", seed, 0, 2**64 - 1),
            stops=stops,
            progress=given["progress"],
            constraint=as_constraint(given["constraint"]),
        )

    def stop_of(self, finish: _core.Finish) -> str | int | None:
        """The stop that ended a generation, as it was given."""
        if finish.stop_text is None:
            return finish.stop_id
        return [stop for stop in self.stops if isinstance(stop, str)][finish.stop_text]


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
