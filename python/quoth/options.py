"""What a user may choose: how tokens are sampled, how they are guessed.

Frozen, and refused at once where they make no sense.

In: keyword arguments. Out: values to decoders. The core holds the ranges and says what is wrong, so there is one truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from quoth import _core
from quoth._arguments import flag, shown, token_ids, whole
from quoth.errors import OptionsError

__all__ = ["DraftSource", "Gate", "Sampling", "Speculation"]


@runtime_checkable
class DraftSource(Protocol):
    """What guesses the next tokens. Any object with these two methods is one; it must be deterministic.

    A source may be wrong, lie about lengths, name impossible tokens or raise: the text stays the same. One that raises
    is asked no more, and `stats.gate` says why. Beside these, a source may have

    - `observe_topk(rows)`: `rows` is a list of (input token, its most probable successors, best first) for each
      verified row. Without it they are never computed. An attribute `topk` says how many are wanted (8).
    - `truncate_pending(n)`: only the first n tokens of the draft just suggested will be verified.
    - `rebuild(history)`: the stream now is `history`. Without it, `reset()` (if there is one) and `observe(history)`
      are called.
    """

    def suggest(self, context: list[int], max_tokens: int) -> Sequence[int] | None:
        """Guess what follows `context`: it ends with the last committed token, or with tokens that a constraint forces
        behind it.

        At most `max_tokens` ids, best an empty list if unsure.

        The list is the decoder's own and grows with the stream; it is for reading.
        """

    def observe(self, committed: list[int]) -> object:
        """Learn tokens that were committed: the prompt, then the tokens of each step."""


def _in_range(cls: type[Any], name: str, value: object, kind: type[int] | type[float]) -> int | float:
    """A number of this kind, or an error that names the option."""
    number: object = value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        # numpy's numbers know how to become Python's.
        item = getattr(value, "item", None)
        number = item() if callable(item) else None
    if number is not None and not isinstance(number, bool):
        if kind is float and isinstance(number, (int, float)):
            try:
                return float(number)
            except OverflowError:
                raise OptionsError(f"{name} is {shown(value)}, expected a number that a float can hold") from None
        if kind is int and isinstance(number, int):
            if not 0 <= number < 2**32:
                raise OptionsError(f"{name} is {shown(number)}, expected a whole number of 0 to {2**32 - 1}")
            return number
    expected = "a number" if kind is float else "a whole number"
    raise OptionsError(f"{name} is {shown(value)}, expected {expected}")


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from a row of logits.

    The order is: bias and bans, penalties, temperature, top-k, top-p, min-p, one draw. The draw of token number i of a
    generation depends on `seed` and i alone, so the same seed gives the same text on every machine, with speculation
    and without.

    Args:
        temperature: Divides the logits. 0 or less: the most probable token, no draw; ties go to the lowest id.
        top_k: Keep the k most probable tokens. 0: all.
        top_p: Keep the most probable tokens whose probabilities reach this sum, the crossing one included; 0 to 1, 1:
            all.
        min_p: Keep tokens at least this share as probable as the best; 0 to 1, 0: all.
        repeat_penalty: Divides positive logits (multiplies others) of tokens in the window; above 0, 1: off.
        frequency_penalty: Subtracted from a token's logit for each time it is in the window; -100 to 100, 0: off.
        presence_penalty: Subtracted once from the logit of each token in the window; -100 to 100, 0: off.
        repeat_last_n: The window of the penalties, in tokens, the prompt's included.
        seed: 0 to 2^64 - 1. None: each generation draws anew; `stats.seed` tells its seed.
        logit_bias: Added to the logits of these token ids; -inf bans.
        banned: Token ids that are never chosen.

    Raises:
        OptionsError: A value is out of range; the message names it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty"):
            object.__setattr__(self, name, _in_range(Sampling, name, getattr(self, name), float))
        for name in ("top_k", "repeat_last_n"):
            object.__setattr__(self, name, _in_range(Sampling, name, getattr(self, name), int))
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("seed", self.seed, 0, 2**64 - 1))
        if not isinstance(self.logit_bias, Mapping):
            raise OptionsError(f"logit_bias is {shown(self.logit_bias)}, expected numbers by token id")
        bias = {
            int(_in_range(Sampling, "a token of logit_bias", token, int)): float(
                _in_range(Sampling, "logit_bias", value, float)
            )
            for token, value in self.logit_bias.items()
        }
        object.__setattr__(self, "logit_bias", bias)
        tokens = token_ids("banned", self.banned)
        banned = tuple(int(_in_range(Sampling, "a token of banned", token, int)) for token in tokens)
        object.__setattr__(self, "banned", banned)
        _core.check_sampling(CoreSampling(self), None)


class CoreSampling:
    """The options in the form that the core reads."""

    def __init__(self, sampling: Sampling) -> None:
        self.temperature = sampling.temperature
        self.top_k = sampling.top_k
        self.top_p = sampling.top_p
        self.min_p = sampling.min_p
        self.repeat_penalty = sampling.repeat_penalty
        self.frequency_penalty = sampling.frequency_penalty
        self.presence_penalty = sampling.presence_penalty
        self.repeat_last_n = sampling.repeat_last_n
        self.logit_bias = list(sampling.logit_bias.items())
        self.banned = list(sampling.banned)


@dataclass(frozen=True)
class Gate:
    """When drafting is let through. The defaults suit every machine.

    Args:
        window: Verifications that are judged together, 2 to 4096.
        min_speedup: Estimated speedup under which the gate closes, 0.5 to 10.
        probe_margin: What a probe must show above that to open it again.
        reprobe_after: Steps before the first probe; doubled with each failed one up to
        reprobe_max: this many.
        probe_steps: Verifications of a probe, 1 to `window`.
        adapt_budget: Whether recent acceptance limits the next draft.
        first_risk: Most plain steps that the first verification after a closed phase may cost above a plain step.
        max_debt: Loss in plain steps after which a bad estimate closes the gate.
        credit: Gain in plain steps that may be lost again before it does.
    """

    window: int = 16
    min_speedup: float = 1.0
    probe_margin: float = 0.10
    reprobe_after: int = 128
    reprobe_max: int = 1024
    probe_steps: int = 4
    adapt_budget: bool = True
    first_risk: float = 0.5
    max_debt: float = 1.0
    credit: float = 8.0

    def __post_init__(self) -> None:
        for name in ("window", "reprobe_after", "reprobe_max", "probe_steps"):
            object.__setattr__(self, name, _in_range(Gate, name, getattr(self, name), int))
        for name in ("min_speedup", "probe_margin", "first_risk", "max_debt", "credit"):
            object.__setattr__(self, name, _in_range(Gate, name, getattr(self, name), float))
        flag("adapt_budget", self.adapt_budget)
        Speculation(gate=self)  # the core knows the ranges


@dataclass(frozen=True)
class Speculation:
    """How tokens are guessed before they are verified. On by default; it changes when text appears, never which.

    Drafts are as long as pays by the costs of verification and by what was accepted so far.

    Args:
        max_draft: Longest draft of a step, 1 to 64 tokens.
        min_draft: Shortest draft that is verified. None: 1 where verifying one token is nearly free on this machine,
            else 2.
        min_match: Shortest repeated run of tokens that is quoted from. None: 1.
        recycling: Whether to draft, where no longer run is repeated, what came after a token the last time. Costs 4
            bytes a vocabulary token.
        costs: Cost of verifying k tokens, in plain steps, by k. None: what `quoth bench verify` measured for this
            model, machine, threads and instruction set, or else a shipped table, one for dense models and one for
            mixtures of experts.
        gate: When drafting is let through.
        source: A draft source of your own, in place of the built-in cascade.
        drafters: Which drafters with weights of their own draft beside it: `auto`, all that are attached to the model
            (`Model(drafter=...)`), or names of some of them; an empty list for none.

    Raises:
        OptionsError: A value is out of range; the message names it.
    """

    max_draft: int = 16
    min_draft: int | None = None
    min_match: int | None = None
    recycling: bool = True
    costs: Mapping[int, float] | None = None
    gate: Gate = field(default_factory=Gate)
    source: DraftSource | None = None
    drafters: Literal["auto"] | Sequence[str] = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_draft", _in_range(Speculation, "max_draft", self.max_draft, int))
        for name in ("min_draft", "min_match"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _in_range(Speculation, name, getattr(self, name), int))
        if not isinstance(self.gate, Gate):
            raise OptionsError(f"gate is {shown(self.gate)}, expected a quoth.Gate")
        flag("recycling", self.recycling)
        if self.costs is not None and not isinstance(self.costs, Mapping):
            raise OptionsError(f"costs is {shown(self.costs)}, expected costs by draft length")
        if self.source is not None and not _is_source(self.source):
            raise OptionsError(f"source is {shown(self.source)}, expected an object with suggest and observe")
        if self.drafters != "auto":
            named = () if isinstance(self.drafters, str) or not isinstance(self.drafters, Sequence) else self.drafters
            if not (named or self.drafters in ((), [])) or not all(isinstance(name, str) for name in named):
                raise OptionsError(f"drafters is {shown(self.drafters)}, expected auto or a list of names")
            object.__setattr__(self, "drafters", tuple(named))
        if self.min_draft is not None and self.min_draft > self.max_draft:
            raise OptionsError(f"min_draft is {self.min_draft}, expected at most max_draft, which is {self.max_draft}")
        _core.check_speculation(CoreSpeculation(self))


_LIVE_COSTS = True
"""Whether costs follow the clock. Tests that count drafts turn it off."""


class CoreSpeculation:
    """The options in the form that the core reads."""

    def __init__(
        self,
        speculation: Speculation,
        expected: tuple[Mapping[int, float], str] | None = None,
        drafters: Sequence[_core.Drafter] = (),
    ) -> None:
        self.drafters = list(drafters)
        self.max_draft = speculation.max_draft
        self.min_draft = speculation.min_draft
        self.min_match = speculation.min_match
        self.recycling = speculation.recycling
        self.gate = speculation.gate
        self.live_costs = _LIVE_COSTS
        costs, provenance = speculation.costs, "given by the caller"
        if costs is None and expected is not None:
            costs, provenance = expected
        self.costs: list[tuple[int, float]] | None = None
        if costs is not None:
            self.costs = [
                (
                    int(_in_range(Speculation, "a draft length of costs", k, int)),
                    float(_in_range(Speculation, "a cost", cost, float)),
                )
                for k, cost in costs.items()
            ]
            self.costs.sort()
        self.cost_provenance = provenance


def as_sampling(value: Sampling) -> Sampling:
    """What a user gave as `sampling`."""
    if not isinstance(value, Sampling):
        raise OptionsError(f"sampling is {shown(value)}, expected quoth.Sampling")
    return value


def as_speculation(value: Speculation | DraftSource | bool | None) -> Speculation | None:
    """What a user gave as `speculation`: options, a bare source, True (defaults) or None (plain decoding)."""
    if value is None or value is False:
        return None
    if value is True:
        return Speculation()
    if isinstance(value, Speculation):
        return value
    if _is_source(value):
        return Speculation(source=value)
    raise OptionsError(
        f"speculation is {shown(value)}, expected quoth.Speculation, a draft source, True, False or None"
    )


def _is_source(value: object) -> bool:
    """Whether this can be asked for drafts. A class has the methods too, but no object to call them on."""
    return isinstance(value, DraftSource) and not isinstance(value, type)
