"""What an answer has to look like: JSON of a schema, text of an expression or a grammar, one of several texts.

In: schemas, expressions, grammars. Out: a `Constraint`, which requests take and the core compiles, once for each model
and text. A constraint never costs more than the tokens that it forbids: what it forces is drafted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from quoth._arguments import flag, shown, text, token_ids, utf8
from quoth.errors import OptionsError

__all__ = ["Constraint", "as_constraint", "choice", "json_object", "json_schema", "lark", "regex"]

MAX_TEXT: Final = 1 << 20
"""Bytes of the longest schema; the core refuses longer ones, too."""


@dataclass(frozen=True, repr=False)
class Constraint:
    """What an answer has to look like. Made by `json_schema`, `json_object`, `regex`, `lark` and `choice`.

    Attributes:
        kind: `json_schema`, `regex`, `lark` or `choice`.
        texts: The schema as JSON, the expression or the grammar; the texts of a choice.
        whitespace: Whether whitespace between the parts of JSON is the model's choice.
        after: The text behind which the constraint begins; None: it begins with the first token.
    """

    kind: Literal["json_schema", "regex", "lark", "choice"]
    texts: tuple[str, ...]
    whitespace: bool = False
    after: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.after is not None and not text("after", self.after):
            raise OptionsError("after is '', expected text of at least one character")

    def __repr__(self) -> str:
        after = "" if self.after is None else f", after={shown(self.after)}"
        return f"{self.kind}({shown(self.texts if self.kind == 'choice' else self.texts[0])}{after})"


def json_schema(
    schema: str | bool | Mapping[str, Any] | type, *, whitespace: bool = False, after: str | None = None
) -> Constraint:
    """JSON that a schema describes.

    Keys come in the order of `properties`. What JSON Schema cannot promise with a grammar is refused, never ignored:
    `docs/constraints.md` has the list.

    Args:
        schema: A JSON Schema as a mapping, as JSON text, or a class with `model_json_schema`, such as a pydantic model.
        whitespace: Whether the model chooses the whitespace between parts, up to 40 characters in one place. False:
            it is that of `json.dumps`, so the model need not.
        after: Text behind which the constraint begins, such as a marker of your prompt, or `</think>`: where the
            vocabulary has a token for the opening tag, the answer may think first or not. None: the first token.

    Raises:
        OptionsError: The schema is none of these, or no JSON. What is wrong within it is told by the first request.
    """
    dump = getattr(schema, "model_json_schema", None)
    if callable(dump):
        schema = dump()
    if isinstance(schema, str):
        said = text("schema", schema)
    elif isinstance(schema, (bool, Mapping)):
        try:
            said = json.dumps(_plain(schema), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionsError(f"schema is {shown(schema)}, expected what JSON can say: {error}") from None
        utf8("schema", said)
    else:
        raise OptionsError(f"schema is {shown(schema)}, expected a mapping, JSON text or a pydantic model class")
    return Constraint("json_schema", (said,), flag("whitespace", whitespace), after=after)


def _plain(value: Any) -> Any:
    """Mappings of any kind as those that `json` knows."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def json_object(*, whitespace: bool = False, after: str | None = None) -> Constraint:
    """Any JSON object. The keywords are those of `json_schema`."""
    return json_schema({"type": "object"}, whitespace=whitespace, after=after)


def regex(pattern: str, *, after: str | None = None) -> Constraint:
    """Text that an expression matches as a whole.

    Args:
        pattern: In the syntax of Rust's `regex`: as Python's, without look-around and back-references.
        after: As for `json_schema`.
    """
    return Constraint("regex", (text("pattern", pattern),), after=after)


def lark(grammar: str, *, after: str | None = None) -> Constraint:
    """Text that a context-free grammar derives.

    Args:
        grammar: In the syntax of Lark: rules in lower case, terminals in upper case, beginning with `start`; `%json
            {...}` is JSON of a schema.
        after: As for `json_schema`.
    """
    return Constraint("lark", (text("grammar", grammar),), after=after)


def choice(options: Sequence[str], *, after: str | None = None) -> Constraint:
    """One of several texts.

    Args:
        options: The texts, each of at least one character.
        after: As for `json_schema`.

    Raises:
        OptionsError: There are none, or one is empty or no text.
    """
    texts = () if isinstance(options, str) else tuple(token_ids("options", options, "texts"))
    if not texts or not all(isinstance(option, str) and utf8("options", option) for option in texts):
        raise OptionsError(f"options is {shown(options)}, expected texts of at least one character")
    return Constraint("choice", texts, after=after)


def as_constraint(constraint: object) -> Constraint | None:
    """What a user gave as `constraint`.

    Raises:
        OptionsError: It is no constraint.
    """
    if constraint is None or isinstance(constraint, Constraint):
        return constraint
    raise OptionsError(f"constraint is {shown(constraint)}, expected one of quoth.json_schema, regex, lark or choice")
