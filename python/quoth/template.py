"""Chat templates: a conversation as the text that a model was trained on.

In: a template's source, messages, tools, variables. Out: text, to `Tokenizer.apply_chat_template`.

J1  The text is what transformers renders from the same source and messages.
J2  A template comes with the model file and is not trusted: it runs in jinja2's immutable sandbox, sees plain data
    only, and has a budget of steps, bytes and time (`_sandbox`).
J3  Whatever goes wrong inside a template becomes a `TemplateError` with the template's line.
J4  jinja2 is imported and the source compiled on the first `render`; a broken template spoils nothing before that.

What transformers gives templates, and so do we: blocks trimmed, `break` and `continue`, `{% generation %}`, `tojson`
without HTML escapes, `raise_exception`, `strftime_now`; messages without their empty entries, reasoning under its
three names.
Cost: jinja2's import 20 ms, compiling 5 to 30 ms a template, rendering well under a millisecond a message.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from quoth._arguments import as_mapping
from quoth.errors import TokenizerError

if TYPE_CHECKING:
    import jinja2
    from jinja2.parser import Parser

__all__ = ["ChatTemplate", "TemplateError", "escaped", "open_ended"]

_log = logging.getLogger("quoth")

_DEPTH: Final = 64
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")


class TemplateError(TokenizerError):
    """A chat template or the conversation given to it is faulty.

    Attributes:
        line: The template's line, counted from 1; None where the fault is not in the template.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"chat template, line {line}: {message}")
        self.line = line


class ChatTemplate:
    """One chat template.

    Args:
        source: The template, in jinja2's language.
        special_tokens: Texts of special tokens by the names that templates use: `bos_token`, `eos_token`, …
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] = MappingProxyType({})) -> None:
        if not isinstance(source, str):
            raise TemplateError(f"expected text as a template, found {type(source).__name__}")
        self.source: Final = source
        self.special_tokens: Final = dict(special_tokens)
        self._ignored: set[str] = set()

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Write a conversation out.

        Args:
            messages: Oldest first, at least one; each with a `role` and, but for an assistant's, with `content` (text
                or a list of parts), `tool_calls` or reasoning. Entries that are None count as absent.
            add_generation_prompt: Ask the template to end with the mark that opens the model's turn.
            tools: JSON schemas of functions.
            documents: Documents, each a mapping.
            **kwargs: More variables for the template; they win over special tokens of the same name.

        Returns:
            The text, marks included.

        Raises:
            TemplateError: A message is malformed, a value is not plain data, or the template fails.
        """
        variables = {
            **self.special_tokens,
            **{name: _plain(value, name) for name, value in kwargs.items()},
            "messages": _conversation(messages),
            "tools": None if tools is None else _mappings(tools, "tools"),
            "documents": None if documents is None else _mappings(documents, "documents"),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        compiled = self._compiled
        for name in ("tools", "documents"):
            if variables[name] and name not in self._reads and name not in self._ignored:
                self._ignored.add(name)
                _log.warning("%s= has no effect: the chat template never reads it, so the model does not see it", name)
        from quoth._sandbox import budget  # noqa: PLC0415 - see J4

        try:
            with budget(variables):
                return compiled.render(variables)
        except Exception as error:
            raise _failure(error) from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        from quoth._sandbox import budget  # noqa: PLC0415 - see J4

        try:
            # Constant parts are computed while compiling.
            with budget(None):
                return _environment().from_string(self.source)
        except Exception as error:
            raise _failure(error) from error

    @cached_property
    def _reads(self) -> set[str]:
        """Names of the variables that the template reads."""
        from jinja2 import meta  # noqa: PLC0415 - see J4

        return meta.find_undeclared_variables(_environment().parse(self.source))


def open_ended(messages: Sequence[Mapping[str, Any]], field: str) -> tuple[list[dict[str, Any]], Callable[[str], str]]:
    """Leave the last message of a conversation without an end, so that the model goes on with it.

    Args:
        messages: The conversation.
        field: What is gone on with, such as `content`; of a list of parts the last text.

    Returns:
        The conversation with a mark behind that text, and a function that cuts at the mark what was rendered.

    Raises:
        TemplateError: The last message has no such text. The function raises it where the text does not come out.
    """
    made = _conversation(messages)
    where, last = f"messages[{len(made) - 1}]", made[-1]
    mark = "continued"
    while mark in str(made):
        mark += "d"
    value = last.get(field)
    parts = [part for part in value if isinstance(part, dict) and "text" in part] if isinstance(value, list) else []
    text = parts[-1]["text"] if parts else value
    if not isinstance(text, str):
        raise TemplateError(f"expected text in {where}[{field!r}] to continue, found {type(value).__name__}")
    for holder, name in [(parts[-1], "text")] if parts else [(last, n) for n in (field, *_REASONING)]:
        if holder.get(name) == text:  # reasoning stands under several names
            holder[name] = f"{text}{mark} "

    def cut(rendered: str) -> str:
        before, found, behind = rendered.rpartition(mark)
        if not found or text.strip() not in before:
            raise TemplateError(f"the template does not write {where}[{field!r}], so it cannot be continued")
        return before if behind.startswith(" ") else before.rstrip()  # a template that trims, trims here, too

    return made, cut


def escaped(
    control: Iterable[str],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    documents: Sequence[Mapping[str, Any]] | None,
) -> tuple[str, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, Sequence[Mapping[str, Any]] | None]:
    """Break the control tokens that a conversation spells out.

    Args:
        control: Texts of the control tokens.
        messages: The conversation.
        tools: Its tools.
        documents: Its documents.

    Returns:
        A mark, and copies in which each control token has the mark behind its first character. The mark is a
        character that occurs in none of them, so that taking it out again restores the text.

    Raises:
        TemplateError: A value is not plain data, or holds every character that could be a mark.
    """
    plain = [
        _plain(_listed(messages), "messages"),
        None if tools is None else _mappings(tools, "tools"),
        None if documents is None else _mappings(documents, "documents"),
    ]
    everything = json.dumps(plain, ensure_ascii=False)
    mark = next((character for character in map(chr, range(0xFDD0, 0xFDF0)) if character not in everything), None)
    if mark is None:
        raise TemplateError("the conversation holds all of the characters U+FDD0 to U+FDEF")
    pattern = re.compile("|".join(re.escape(text) for text in sorted(control, key=len, reverse=True)) or "(?!)")

    def broken(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: match[0][0] + mark + match[0][1:], value)
        if isinstance(value, dict):
            return {key: broken(entry) for key, entry in value.items()}
        return [broken(entry) for entry in value] if isinstance(value, list) else value

    return mark, *broken(plain)


def _conversation(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if len(_listed(messages)) == 0:
        raise TemplateError("expected at least one message, found none")
    return [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _listed(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise TemplateError(f"expected a list of messages, found {type(messages).__name__}")
    return list(messages)


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    message = as_mapping(message)
    if not isinstance(message, Mapping):
        raise TemplateError(f"expected a mapping with a role in {where}, found {type(message).__name__}")
    entries = {key: value for key, value in _plain(message, where).items() if value is not None}
    role, content = entries.get("role"), entries.get("content")
    if not isinstance(role, str) or not role:
        raise TemplateError(f"expected text in {where}['role'], found {role!r}")
    if content is None and role != "assistant" and not ({"tool_calls", *_REASONING} & entries.keys()):
        raise TemplateError(f"expected content in {where}, found only {', '.join(sorted(entries))}")
    if content is not None and not isinstance(content, str):
        parts = content if isinstance(content, list) else [content]
        if not isinstance(content, list) or not all(isinstance(part, str | dict) for part in parts):
            raise TemplateError(
                f"expected text or a list of parts in {where}['content'], found {type(content).__name__}"
            )
    reasoning = next((entries[name] for name in _REASONING if name in entries), None)
    return entries if reasoning is None else {"thinking": reasoning, **entries, "reasoning_content": reasoning}


def _mappings(values: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise TemplateError(f"expected a list of mappings in {name}, found {type(values).__name__}")
    for at, value in enumerate(values):
        if not isinstance(as_mapping(value), Mapping):
            raise TemplateError(f"expected a mapping in {name}[{at}], found {type(value).__name__}")
    plain: list[Any] = _plain(list(values), name)
    return plain


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    if depth > _DEPTH:
        raise TemplateError(f"expected at most {_DEPTH} levels in {where}, found more")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    value = as_mapping(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, f"{where}[{key!r}]", depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{where}[{at}]", depth + 1) for at, entry in enumerate(value)]
    raise TemplateError(f"expected text, numbers, lists and mappings in {where}, found {type(value).__name__}")


@cache
def _environment() -> jinja2.Environment:
    """Make the environment, once: a render changes nothing of it, and its budget is the running thread's."""
    import jinja2  # noqa: PLC0415 - see J4
    from jinja2 import exceptions, ext, nodes, utils  # noqa: PLC0415

    from quoth._sandbox import LimitedEnvironment  # noqa: PLC0415

    class Generation(ext.Extension):
        """`{% generation %}`: marks the model's own words for training; here only a scope."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

    class Namespace(utils.Namespace):
        """A namespace whose attributes cannot reach into Python."""

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                raise exceptions.SecurityError(f"attribute {name!r} of a namespace is not allowed")
            super().__setitem__(name, value)

        def __repr__(self) -> str:
            return "<Namespace>"  # what it holds could hold it again

    class Dict:
        """The part of `dict` that templates use."""

        def __call__(self, *args: Any, **entries: Any) -> dict[Any, Any]:
            return dict(*args, **entries)

        def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
            return dict.fromkeys(keys, value)

    def namespace(*args: Any, **entries: Any) -> Namespace:
        made = Namespace()
        for name, value in dict(*args, **entries).items():
            made[name] = value
        return made

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(format: str) -> str:
        return datetime.now().strftime(format)

    environment = LimitedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    environment.add_filter("tojson", tojson)
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=strftime_now, namespace=namespace, dict=Dict()
    )
    return environment


def _failure(error: Exception) -> TemplateError:
    line = getattr(error, "lineno", None)
    if not isinstance(line, int):
        line = _line(error.__traceback__)
    text = str(getattr(error, "message", None) or error) or type(error).__name__
    return TemplateError(text, line)


def _line(traceback: TracebackType | None) -> int | None:
    """Find the line of the innermost frame that is a template's; jinja2 rewrites these frames and marks them."""
    found = None
    while traceback is not None:
        if "__jinja_exception__" in traceback.tb_frame.f_globals:
            found = traceback.tb_lineno
        traceback = traceback.tb_next
    return found
