"""How a model's file wants the model to be used: sampling, and what it says that nothing here reads.

In: metadata. Out: options to `Model`, names of keys to `quoth inspect`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quoth._arguments import shown
from quoth.errors import ModelFileError, OptionsError
from quoth.options import Sampling

__all__ = ["default_sampling", "unused_keys"]

_SAMPLING: Final = "general.sampling."
_OPTIONS: Final[dict[str, tuple[str, type]]] = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "penalty_repeat": ("repeat_penalty", float),
    "penalty_last_n": ("repeat_last_n", int),
}
"""Options by the last part of their key."""

_READ: Final = frozenset(
    f"tokenizer.ggml.{name}"
    for name in (
        *("add_bos_token", "add_eos_token", "add_space_prefix", "bos_token_id", "cls_token_id", "eom_token_id"),
        *("eos_token_id", "eot_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "mask_token_id"),
        *("merges", "model", "padding_token_id", "pre", "scores", "seperator_token_id", "suppress_tokens"),
        *("token_type", "tokens", "unknown_token_id"),
    )
)


def default_sampling(metadata: Mapping[str, Any]) -> Sampling:
    """The sampling that a file asks for where the user chose nothing; greedy where it asks for none.

    Raises:
        ModelFileError: A value is no number or out of range; the message names the key.
    """
    given: dict[str, int | float] = {}
    for name, (option, kind) in _OPTIONS.items():
        key = _SAMPLING + name
        value = metadata.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            expected = "a whole number" if kind is int else "a number"
            raise ModelFileError(f"key `{key}` is {shown(value)}, expected {expected}")
        # Other engines say all tokens with -1 for a window, and with 0 or less for top-k.
        given[option] = value if kind is float or value >= 0 else 2**32 - 1 if name == "penalty_last_n" else 0
        try:
            Sampling(**{option: given[option]})  # type: ignore[arg-type]
        except OptionsError as error:
            raise ModelFileError(f"key `{key}`: {error}") from None
    return Sampling(**given)  # type: ignore[arg-type]


def unused_keys(metadata: Mapping[str, Any]) -> list[str]:
    """Keys about the tokenizer and about sampling that change nothing here, in the file's order."""
    return [
        key
        for key in metadata
        if (key.startswith("tokenizer.") and key not in _READ and not key.startswith("tokenizer.chat_template"))
        or (key.startswith(_SAMPLING) and key.removeprefix(_SAMPLING) not in _OPTIONS)
    ]
