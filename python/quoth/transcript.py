"""A conversation as token ids, without encoding anew what already was tokens.

In: entries (messages, some with the ids that they really are), a chat template. Out: the prompt of the next answer, to
`Conversation`.

M1  An answer stands in every later prompt as the ids that were generated, never as its text encoded anew; so does a
    message that was given as ids. What the template writes between them, and all other messages, is encoded.
M2  The prompt's text is what the template renders, behind the beginning-of-text token where the file asks for one and
    the template wrote none. Where it alters an answer (drops reasoning, say), the ids that spell
    what is left are kept if they end the answer, else what is left is encoded; white space that it trims at an answer's
    ends is kept.
M3  Where a template writes the part before an answer as it was when the answer was generated, but for white space at
    its end, the ids of then are used. So with a template that only appends, a prompt begins with the ids of the prompt
    before it and of its answer.
M4  The prompt is a function of the entries alone: after edits, forks and reloads it is what it would have been.
M5  Control tokens that messages spell out stay plain text: content cannot end a turn or forge one.

How the places of the ids are found: the template is rendered twice, once as it is, and once with a word that occurs
nowhere else in place of each message that has ids. A message whose word does not come out once and in order (a template
may drop it, quote it, repeat it) is encoded like any other.
Cost: two renderings and one encoding of what is new; linear in the conversation, far below a step of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quoth.results import Result
    from quoth.template import ChatTemplate
    from quoth.tokenizer import Tokenizer

__all__ = ["Entry", "Lead", "Prompt", "Transcript", "groups"]


@dataclass(frozen=True)
class Lead:
    """What came before an answer, since the last message that has ids of its own."""

    text: str
    """As the template wrote it, escapes included."""
    tokens: tuple[int, ...]
    """The ids that it became."""
    continues: bool
    """Whether it goes on from earlier ids."""


@dataclass(frozen=True)
class Entry:
    """One message of a conversation."""

    message: Mapping[str, Any]
    """As the template sees it."""
    tokens: tuple[int, ...] | None = None
    """The ids that its content really is; None where the text is all that is known."""
    lead: Lead | None = None
    """What came before it when it was generated."""
    result: Result | None = None
    """How it was generated, if it was, in this process."""


@dataclass(frozen=True)
class Prompt:
    """What an answer goes on from."""

    tokens: list[int]
    """The ids."""
    lead: Lead
    """The part after the last message that has ids of its own."""


@dataclass
class _Rendered:
    """What a template made of entries."""

    mark: str
    text: str
    """The real text."""
    around: list[str]
    """The text before, between and behind the contents that have ids."""
    contents: list[str]
    """These contents, as they were given to the template."""


class Transcript:
    """Turns conversations into prompts, with one template and its variables.

    Args:
        tokenizer: The tokenizer.
        chat_template: Name of one of the file's templates, or a template's source. None: the file's own.
        tools: JSON schemas of functions.
        documents: Documents for templates that take them.
        variables: More variables for the template.

    Raises:
        TokenizerError: The file has no template, and none was given.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = tokenizer.chat_template(chat_template, tools=tools is not None)
        self._tools = tools
        self._documents = documents
        self._variables = dict(variables or {})

    @property
    def template(self) -> ChatTemplate:
        """The template."""
        return self._template

    def prompt(self, entries: Sequence[Entry]) -> Prompt:
        """Write a conversation out, up to the place where the next answer begins.

        Raises:
            TokenizerError: A message is malformed, the template fails, or a character cannot be spelled.
        """
        exact = [at for at, entry in enumerate(entries) if entry.tokens]
        while True:
            rendered, lost = self._render(entries, exact)
            if not lost:
                break
            exact = [at for at in exact if at not in lost]
        return self._assemble([entries[at] for at in exact], rendered)

    def _render(self, entries: Sequence[Entry], exact: Sequence[int]) -> tuple[_Rendered, set[int]]:
        """Render, and say which of the `exact` entries cannot be found in what came out."""
        from quoth.template import escaped  # noqa: PLC0415  only conversations need templates

        real = [dict(entry.message) for entry in entries]
        word = "slot"
        while any(word in str(message) for message in real) or word in str(self._tools):
            word += "s"
        words = [f"{word}{number}end" for number in range(len(exact))]
        open_ = list(real)
        for at, name in zip(exact, words, strict=True):
            open_[at] = {**real[at], "content": name}
        control = self._tokenizer._control_texts
        mark, both, tools, documents = escaped(control, [*real, *open_], self._tools, self._documents)
        render = self._template.render
        text = render(both[: len(real)], True, tools=tools, documents=documents, **self._variables)
        if not exact:
            return _Rendered(mark, text, [text], []), set()
        rest = render(both[len(real) :], True, tools=tools, documents=documents, **self._variables)
        lost = {at for at, name in zip(exact, words, strict=True) if rest.count(name) != 1}
        around = []
        for at, name in zip(exact, words, strict=True):
            if at in lost:
                continue
            before, found, rest = rest.partition(name)
            if not found:  # out of order
                lost.add(at)
                continue
            around.append(before)
        return _Rendered(mark, text, [*around, rest], [both[at]["content"] for at in exact]), lost

    def _assemble(self, entries: Sequence[Entry], rendered: _Rendered) -> Prompt:
        """Put ids where they belong, and encode the rest."""
        text, around = rendered.text, rendered.around
        tokens: list[int] = []
        at = 0
        for number, entry in enumerate(entries):
            lead, behind = around[number], around[number + 1]
            if not text.startswith(lead, at):
                break
            last = number + 1 == len(entries)
            end = _end(text, at + len(lead), rendered.contents[number], behind, last=last)
            if end is None:
                break
            content = text[at + len(lead) : end]
            own = entry.tokens or ()
            if content.strip() != rendered.contents[number].strip():
                tokens += self._encode(lead, rendered.mark, continues=at > 0)
                tokens += self._part(own, content, rendered.mark)
            else:
                known = entry.lead
                if known is not None and known.continues == (at > 0) and known.text.rstrip() == lead.rstrip():
                    tokens += known.tokens
                else:
                    tokens += self._encode(lead, rendered.mark, continues=at > 0)
                tokens += own
            at = end
        rest = tuple(self._encode(text[at:], rendered.mark, continues=at > 0))
        return Prompt(self._tokenizer._begun([*tokens, *rest]), Lead(text[at:], rest, at > 0))

    def _encode(self, text: str, mark: str, *, continues: bool) -> list[int]:
        return self._tokenizer._encode_marked(text, mark, continues=continues)

    def _part(self, own: Sequence[int], content: str, mark: str) -> Sequence[int]:
        """The ids of what a template left of an answer: the answer's last ones if they spell it."""
        wanted = content.replace(mark, "").strip()
        decode = self._tokenizer.decode
        if wanted and decode(own, strip_prefix=False).strip().endswith(wanted):
            size = len(wanted.encode())
            n_bytes = 0
            for first in range(len(own) - 1, -1, -1):
                n_bytes += len(self._tokenizer.token_bytes(own[first]))
                if n_bytes >= size and decode(own[first:], strip_prefix=False).strip() == wanted:
                    return own[first:]
                if n_bytes > size + 64:  # white space and marks around it cannot be longer without being odd
                    break
        return self._encode(content, mark, continues=True)


def _end(text: str, begin: int, content: str, behind: str, *, last: bool) -> int | None:
    """Where a content that begins at `begin` ends in a text, `behind` being what follows it. None if unclear."""
    for form in (content, content.rstrip(), content.lstrip(), content.strip()):
        end = begin + len(form)
        if (
            text.startswith(form, begin)
            and text.startswith(behind, end)
            and (not last or end + len(behind) == len(text))
        ):
            return end
    if last:
        end = len(text) - len(behind)
        return end if end >= begin and text.endswith(behind) else None
    end = text.find(behind, begin) if behind else -1
    return None if end < 0 else end


def groups(entries: Sequence[Entry]) -> tuple[list[Entry], list[list[Entry]]]:
    """Part a conversation into what stands before it and its turns.

    Returns:
        System messages at the beginning; then turns, each from a user's message up to before the next one.
    """
    first = 0
    while first < len(entries) and entries[first].message.get("role") in ("system", "developer"):
        first += 1
    turns: list[list[Entry]] = []
    previous = None
    for entry in entries[first:]:
        role = entry.message.get("role")
        if not turns or (role == "user" and previous != "user"):
            turns.append([])
        turns[-1].append(entry)
        previous = role
    return list(entries[:first]), turns
