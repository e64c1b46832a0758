"""Conversations as files: JSON, with the token ids that were really used.

In: what a conversation is made of, or a file and a model. Out: the other one.

A file holds what a prompt is made from (`quoth.transcript`), so a conversation that was read is the one that was
written: same ids, and by the invariance of the forward pass the same bits in the cache once it is filled again. What
cannot change a token is left out: speculation, statistics, log-probabilities.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from quoth._arguments import copied, shown, text
from quoth._files import read_whole, write_whole
from quoth.errors import OptionsError
from quoth.loaded import LoadedModel
from quoth.options import Sampling
from quoth.transcript import Entry, Lead

__all__ = ["Saved", "read", "write"]

FORMAT: Final = "quoth conversation"
VERSION: Final = 2
"""Version 1 had a seed beside the sampling, for turns whose sampling had none."""

LIMIT_BYTES: Final = 1 << 28
"""Most bytes of a file: 256 MiB, some 25 million tokens."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a file holds."""

    entries: list[Entry]
    sampling: Sampling
    options: dict[str, Any]
    """Keywords of `Conversation` by name."""
    trimmed: int
    references: list[list[int]]


def write(path: Path, model: LoadedModel, saved: Saved) -> None:
    """Write a conversation to a file.

    Raises:
        OSError: It cannot be written.
        OptionsError: A message holds something that JSON cannot say, the file would be too large, or what is there is
            no file.
    """
    name = model.metadata.get("general.name")
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": {
            "name": name if isinstance(name, str) else None,  # bytes where the file has no text
            "architecture": model.metadata.get("general.architecture"),
            "vocabulary": _vocabulary(model),
        },
        "entries": [_entry(entry) for entry in saved.entries],
        "options": {"sampling": _sampling(saved.sampling), **saved.options},
        "trimmed": saved.trimmed,
        "references": saved.references,
    }
    try:
        written = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
        n_bytes = len(written.encode("utf-8"))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionsError(f"the conversation cannot be written as JSON: {error}") from None
    if n_bytes > LIMIT_BYTES:
        raise OptionsError(f"the conversation takes {n_bytes} bytes, expected at most {LIMIT_BYTES} for `{path}`")
    write_whole(path, written)


def read(path: Path, model: LoadedModel) -> Saved:
    """Read a conversation.

    Raises:
        OSError: It cannot be read.
        OptionsError: It is no such file, is too large, is damaged, or is of another vocabulary.
    """
    whole_file = read_whole(path, LIMIT_BYTES)
    try:
        data = json.loads(whole_file, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise OptionsError(f"`{path}` is no conversation: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise OptionsError(f"`{path}` is no conversation: expected the format `{FORMAT}`")
    version = data.get("version")
    if version not in (1, VERSION):
        raise OptionsError(f"`{path}` has version {version!r}, expected {VERSION}")
    found = _Found(data, f"`{path}`")
    made_with = found.field("model", dict).field("vocabulary", str).value
    if made_with != _vocabulary(model):
        raise OptionsError(f"`{path}` was made with another vocabulary than that of `{model.path}`")
    options = found.field("options", dict)
    sampling = _as_sampling(options.field("sampling", dict))
    if version == 1 and sampling.seed is None:
        sampling = dataclasses.replace(sampling, seed=_whole(options.field("seed", int), 2**64 - 1))
    last = model.n_vocab - 1
    return Saved(
        entries=[_as_entry(entry.of(dict), last) for entry in found.field("entries", list).items()],
        sampling=sampling,
        options={
            "max_tokens": options.field("max_tokens", int).value,
            "stop": [stop.of(str, int).value for stop in options.field("stop", list).items()],
            "overflow": options.field("overflow", str).value,
            "chat_template": options.field("chat_template", str, type(None)).value,
            "tools": options.field("tools", list, type(None)).value,
            "documents": options.field("documents", list, type(None)).value,
            "template_kwargs": options.field("template_kwargs", dict, type(None)).value,
        },
        trimmed=_whole(found.field("trimmed", int), 2**63),
        references=[_tokens(reference.of(list), last) for reference in found.field("references", list).items()],
    )


class _Found:
    """A part of a file, and where it stands."""

    def __init__(self, value: Any, where: str) -> None:
        self.value = value
        self.where = where

    def of(self, *kinds: type) -> _Found:
        """This part, checked."""
        if not isinstance(self.value, kinds) or (isinstance(self.value, bool) and bool not in kinds):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise OptionsError(f"expected {names} in {self.where}, found {type(self.value).__name__}")
        return self

    def field(self, name: str, *kinds: type) -> _Found:
        """A field of this part."""
        return _Found(self.value.get(name), f"{self.where}, {name}").of(*kinds)

    def items(self) -> list[_Found]:
        """The items of this part."""
        return [_Found(value, f"{self.where}[{at}]") for at, value in enumerate(self.value)]


def _entry(entry: Entry) -> dict[str, Any]:
    data: dict[str, Any] = {"message": dict(entry.message)}
    if entry.tokens is not None:
        data["tokens"] = list(entry.tokens)
    if entry.lead is not None:
        data["lead"] = {**dataclasses.asdict(entry.lead), "tokens": list(entry.lead.tokens)}
    return data


def _as_entry(found: _Found, last: int) -> Entry:
    message = found.field("message", dict)
    message.field("role", str)
    copied(message.where, message.value, 1)
    tokens, lead = None, None
    if "tokens" in found.value:
        tokens = tuple(_tokens(found.field("tokens", list), last))
        message.field("content", str)
    if "lead" in found.value:
        part = found.field("lead", dict)
        lead_text = part.field("text", str)
        lead = Lead(
            text(lead_text.where, lead_text.value),
            tuple(_tokens(part.field("tokens", list), last)),
            part.field("continues", bool).value,
        )
    return Entry(message.value, tokens, lead)


def _tokens(found: _Found, last: int) -> list[int]:
    return [_whole(token.of(int), last) for token in found.items()]


def _whole(found: _Found, last: int) -> int:
    number: int = found.value
    if not 0 <= number <= last:
        raise OptionsError(f"expected 0 to {last} in {found.where}, found {number}")
    return number


def _refused(constant: str) -> None:
    raise ValueError(f"found {constant}, expected a number")


def _sampling(sampling: Sampling) -> dict[str, Any]:
    data = dataclasses.asdict(sampling)
    # JSON knows no infinities, and no numbers as names.
    data["logit_bias"] = [
        [id, value if math.isfinite(value) else str(value)] for id, value in data["logit_bias"].items()
    ]
    return data


def _as_sampling(found: _Found) -> Sampling:
    data: Mapping[str, Any] = found.value
    known = {field.name for field in dataclasses.fields(Sampling)}
    if unknown := sorted(data.keys() - known):
        raise OptionsError(f"expected options of sampling in {found.where}, found `{unknown[0]}`")
    bias = {}
    for item in found.field("logit_bias", list).items():
        pair = item.of(list).value
        if len(pair) != 2 or not isinstance(pair[0], int) or (isinstance(pair[1], str) and pair[1] != "-inf"):
            raise OptionsError(f"expected a token and its bias in {item.where}, found {shown(pair)}")
        bias[pair[0]] = float(pair[1]) if isinstance(pair[1], str) else pair[1]
    try:
        return Sampling(**{**data, "logit_bias": bias, "banned": found.field("banned", list).value})
    except (OptionsError, TypeError, OverflowError) as error:  # a number may be too large for a float
        raise OptionsError(f"{found.where}: {error}") from None


def _vocabulary(model: LoadedModel) -> str:
    """What tells vocabularies apart: a hash of all token texts."""
    texts = "\0".join(map(model.tokenizer.token_text, range(model.n_vocab)))
    return hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest()
