"""Calls of tools: the constraint that an answer is one, and the calls that an answer holds.

In: descriptions of functions, a chat template. Out: a `Constraint`; `ToolCall`s.

How a model writes a call is its template's affair. So the template is asked to write one, and the call is found in what
it wrote: a JSON object with the function's name and its arguments, some text before it and behind it. A template that
writes calls in another way is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from quoth._arguments import shown
from quoth.constraints import MAX_TEXT, Constraint, lark
from quoth.errors import OptionsError, TokenizerError

if TYPE_CHECKING:
    from quoth.template import ChatTemplate
    from quoth.tokenizer import Tokenizer

__all__ = ["ToolCall", "Tools"]

_NAME: Final = "name_of_the_function"
_ARGUMENTS: Final = {"one_argument": "its value"}
_ID: Final = "a1b2c3d4e"
_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_THOUGHT: Final = "</think>"


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer holds.

    Attributes:
        name: The function.
        arguments: Its arguments by name. Those of an answer that was constrained fit the function's schema; of another,
            what the model wrote.
    """

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class _Form:
    """How a template writes a call."""

    before: str
    name: str
    """The key of the function's name."""
    arguments: str
    """The key of the arguments."""
    rest: dict[str, Any]
    """Other keys with their values."""
    keys: list[str]
    """All keys, in order."""
    behind: str


class Tools:
    """The functions that a model may call, and how its chat template writes calls.

    Args:
        tokenizer: The model's tokenizer.
        tools: JSON schemas of functions, as chat templates take them.
        template: The chat template.
        variables: More variables for the template.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Mapping[str, Any]],
        template: ChatTemplate,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._tools = list(tools)
        self._template = template
        self._variables = dict(variables or {})
        self._known: _Form | None = None

    def constraint(self, choice: str = "required") -> Constraint:
        """The constraint that an answer is a call.

        A model that thinks may do so before the call.

        Args:
            choice: `required` for any of the tools, or the name of one.

        Raises:
            OptionsError: There is no such tool, or a tool has no name.
            TokenizerError: The template writes calls in a way that is not known.
        """
        names = list(self._parameters) if choice == "required" else [choice]
        if choice not in self._parameters and choice != "required":
            raise OptionsError(
                f"tool_choice is {shown(choice)}, expected required or one of {', '.join(self._parameters)}"
            )
        form = self._form()
        calls = {"anyOf": [self._call(form, name) for name in names], "x-guidance": _SPACING}
        before, behind = self._spelled(form.before), self._spelled(form.behind)
        start = " ".join([*before, "call", *behind])
        after = _THOUGHT if self._tokenizer.token_id(_THOUGHT) is not None else None
        return lark(f"start: {start}\ncall: %json {json.dumps(calls, ensure_ascii=False)}\n", after=after)

    def calls(self, text: str) -> tuple[ToolCall, ...]:
        """The calls that an answer holds; none if it is something else, or if the template's way is not known."""
        try:
            form, names = self._form(), self._parameters
        except (OptionsError, TokenizerError):
            return ()
        found: list[ToolCall] = []
        text = text.rpartition(_THOUGHT)[2]
        mark = form.before
        for control in self._tokenizer._control_texts:  # which text does not show
            mark = mark.replace(control, "")
        if mark.strip() not in text:
            return ()
        at = text.find("{")
        while 0 <= at < MAX_TEXT:
            try:
                value, end = json.JSONDecoder().raw_decode(text, at)
            except (ValueError, RecursionError):
                at = text.find("{", at + 1)
                continue
            name, arguments = value.get(form.name), value.get(form.arguments)
            if isinstance(name, str) and name in names and isinstance(arguments, dict):
                found.append(ToolCall(name, arguments))
            at = text.find("{", end)
        return tuple(found)

    def _call(self, form: _Form, name: str) -> dict[str, Any]:
        """The schema of a call."""
        values = {form.name: {"const": name}, form.arguments: self._parameters[name]}
        for key, value in form.rest.items():
            values[key] = {"type": "string", "pattern": "^[a-zA-Z0-9]{9}$"} if value == _ID else {"const": value}
        return {
            "type": "object",
            "properties": {key: values[key] for key in form.keys},
            "required": form.keys,
            "additionalProperties": False,
        }

    def _spelled(self, text: str) -> list[str]:
        """Text with control tokens, as Lark has it."""
        pieces: list[str] = []
        plain: list[int] = []

        def end() -> None:
            if plain:
                said = self._tokenizer.decode(plain, strip_prefix=False)
                pieces.append(json.dumps(said, ensure_ascii=False))
                plain.clear()

        for token in self._tokenizer.encode(text, special=True, add_bos=False, add_space_prefix=False):
            if self._tokenizer.is_control(token):
                end()
                pieces.append(f"<[{token}]>")
            else:
                plain.append(token)
        end()
        return pieces

    @cached_property
    def _parameters(self) -> dict[str, Any]:
        """The schema of each function's arguments."""
        return dict(_function(tool, number) for number, tool in enumerate(self._tools))

    def _form(self) -> _Form:
        if self._known is None:
            self._known = self._find_form()
        return self._known

    def _find_form(self) -> _Form:
        """Let the template write a call, and find its parts."""
        function = {"name": _NAME, "arguments": _ARGUMENTS}
        asked = [{"role": "user", "content": "x"}]
        call = {"type": "function", "id": _ID, "function": function}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        opened = self._template.render(asked, True, tools=self._tools, **self._variables)
        written = self._template.render([*asked, said], False, tools=self._tools, **self._variables)
        same = next((i for i, (a, b) in enumerate(zip(opened, written, strict=False)) if a != b), len(opened))
        answer = written[same:]
        at = answer.find("{")
        while 0 <= at <= answer.find(_NAME):
            try:
                value, end = json.JSONDecoder().raw_decode(answer, at)
            except ValueError:
                at = answer.find("{", at + 1)
                continue
            by_value = {json.dumps(item): key for key, item in value.items()}
            name, arguments = by_value.get(json.dumps(_NAME)), by_value.get(json.dumps(_ARGUMENTS))
            if name is None or arguments is None:
                at = answer.find("{", at + 1)
                continue
            rest = {key: item for key, item in value.items() if key not in (name, arguments)}
            behind = answer[end:]
            marks = [behind.find(mark) for mark in self._tokenizer._control_texts if mark in behind]
            behind = behind[: min(marks)] if marks else behind
            # What ends the turn belongs to the template, not to the call.
            return _Form(answer[:at].lstrip(), name, arguments, rest, list(value), behind.rstrip())
        raise TokenizerError("the chat template does not write calls of tools as JSON objects with name and arguments")


def _function(tool: Mapping[str, Any], number: int) -> tuple[str, Any]:
    """Name and parameters of a tool."""
    inner = tool.get("function", tool)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or not name:
        raise OptionsError(f"tools[{number}] is {shown(tool)}, expected a function with a name")
    parameters = inner.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
    return name, parameters
