"""A conversation at a terminal or over a pipe: what becomes of messages and commands.

In: inputs. Out: answers on stdout, everything else on stderr; a conversation.

C1  stdout carries answers alone, each ended by a line end.
C2  The conversation is what was shown: an answer that Ctrl-C stops stays as the text that was written, and one that
    had not begun leaves its message out too.
C3  Whatever fails leaves the conversation as it was (V4 in `quoth.conversation`).
C4  A file that this session neither wrote nor read is never written over.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quoth.cli._console import bar, grid, note, show
from quoth.cli._load import read_text
from quoth.cli._report import ended, print_stats
from quoth.cli._stream import Writer
from quoth.errors import OptionsError
from quoth.results import Chunk

if TYPE_CHECKING:
    from types import FrameType

    from quoth.answer import Answer
    from quoth.cli._input import Input
    from quoth.conversation import Conversation
    from quoth.options import Speculation

__all__ = ["COMMANDS", "Talk"]

_ENDS: Final = {
    "length": "[the answer ends here: it has as many tokens as it may]",
    "context": "[the answer ends here: the context is full]",
}


class _Watch:
    """Passes a prompt's progress on to a bar that is made later than the answer."""

    update: Callable[[int, int | None], None] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self.update is not None:
            self.update(done, total)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done. A second one does not wait: what is written to may be stuck."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # interrupts are ignored, or have another handler
        return
    caught = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal caught
        if caught:
            signal.default_int_handler(number, frame)
        caught = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if caught:
        raise KeyboardInterrupt


@dataclass
class Talk:
    """A session of `quoth chat`."""

    chat: Conversation
    speculation: Speculation | None
    """For conversations that are loaded."""
    show_drafts: bool = False
    mark_drafts: bool = False
    file: Path | None = None
    """Where the conversation was last written to or read from."""
    over: bool = False
    """Whether the session is to end."""

    def take(self, given: Input) -> None:
        """Answer a message or follow a command; do nothing for blanks.

        Raises:
            KeyboardInterrupt: Ctrl-C, once C2 holds again.
            QuothError, OSError: It failed; the conversation is as it was.
        """
        text = given.text
        if not text.strip():
            return
        if given.block or not text.startswith("/"):
            self.say(text)
        elif text.startswith("//"):
            self.say(text[1:])
        else:
            self.follow(text)

    # -- messages ------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Say something and show the answer."""
        self._answer(partial(self.chat.send, text))

    def _answer(self, ask: Callable[..., Answer]) -> None:
        """Ask, and show the answer."""
        chat = self.chat
        writer = Writer(chat.model.tokenizer, show=self.show_drafts, mark=self.mark_drafts)
        before = chat.trimmed
        watch = _Watch()
        answer = ask(trace=writer.marks != "none", progress=watch)
        try:
            self._show(answer, writer, watch)
        except KeyboardInterrupt:
            note("[stopped]" if answer.result is not None else "[stopped before the answer began: nothing has changed]")
            raise
        finally:
            if chat.trimmed > before:
                n = chat.trimmed - before
                note(f"[the context was full: the oldest turns, {n} of them, are no longer in it]")

    def _show(self, answer: Answer, writer: Writer, watch: _Watch) -> None:
        """Write an answer as it comes, and bring it and its line to an end, wherever it stands."""
        shown = 0
        try:
            with bar("prompt") as update:
                watch.update = update
                first = next(answer)
            for chunk in itertools.chain((first,), answer):
                with _interrupts_held():
                    shown += len(chunk.text)
                    writer.write(chunk)
        finally:
            answer.close()
            if answer.result is not None:
                # What a stop text might have become, or what an interrupt came before.
                writer.write(Chunk(text=answer.text[shown:], tokens=(), step=0))
                writer.end()
                if how := _ENDS.get(answer.result.finish_reason or ""):
                    note(how)
                if legend := writer.legend():
                    print(legend, file=sys.stderr)

    # -- commands ------------------------------------------------------------------------------------------------------

    def follow(self, line: str) -> None:
        """Follow a command.

        Raises:
            OptionsError: There is no such command, or it cannot be followed.
        """
        name, _, argument = line.partition(" ")
        if name not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise OptionsError(f"unknown command {name}, expected {known}; a message that begins with / takes //")
        argument = argument.strip()
        if argument and not COMMANDS[name].takes:
            raise OptionsError(f"expected nothing behind {name}, found {_short(argument)}")
        COMMANDS[name].run(self, argument)

    def help(self, argument: str) -> None:
        """Explain."""
        rows = [(f"{name} {command.takes}".rstrip(), command.does) for name, command in COMMANDS.items()]
        rows += [
            ("", ""),
            ("text \\", "A line that ends with a backslash goes on in the next one."),
            ('"""', "Between two lines of these, all lines are one message."),
            ("//text", "A message that begins with /."),
            ("Ctrl-C", "Stops the answer, or drops the input. Ctrl-D ends the session."),
        ]
        show(grid(rows), stderr=True)

    def ref(self, argument: str) -> None:
        """Offer a reference, or list them."""
        if not argument:
            sizes = self.chat.references
            note("\n".join(f"reference {handle}: {n} tokens" for handle, n in sizes.items()) or "no references")
            return
        text = read_text(str(_path(argument)), "the reference")
        handle = self.chat.add_reference(text)
        said = f"reference {handle}: {argument}, {self.chat.references[handle]} tokens"
        note(said if self.speculation is not None else f"{said}; of no use, since drafting is off")

    def unref(self, argument: str) -> None:
        """Take references away."""
        self.chat.clear_references()
        note("no references")

    def stats(self, argument: str) -> None:
        """Tell what the last answer took, and all of them."""
        last, n = self.chat.last, len(self.chat.results)
        if last is None:
            note("no answers yet")
            return
        print_stats(last.stats, ended(last.finish_reason, last.stop, self.chat.model.tokenizer), self.chat.sampling)
        if n > 1:
            note("all answers of this session together:")
            print_stats(self.chat.stats, f"{n} answers in the conversation")

    def system(self, argument: str) -> None:
        """Show or change the system message."""
        if argument:
            self.chat.system = None if argument == "-" else argument
        note("no system message" if self.chat.system is None else f"system message: {self.chat.system}")

    def undo(self, argument: str) -> None:
        """Drop the last turn."""
        dropped = self.chat.undo()
        if not dropped:
            raise OptionsError("there is no turn to undo")
        note(f"dropped: {_short(str(dropped[0].get('content') or ''))}")

    def retry(self, argument: str) -> None:
        """Answer once more."""
        if self.chat.sampling.temperature <= 0:
            note("[the temperature is 0: the answer stays the same]")
        elif self.chat.seed is not None:
            note(f"[the seed is {self.chat.seed}: the answer stays the same; /seed - draws anew]")
        self._answer(self.chat.retry)

    def seed(self, argument: str) -> None:
        """Show or change the seed."""
        if argument:
            self.chat.seed = None if argument == "-" else _number("/seed", argument, int)
        seed = self.chat.seed
        last = None if self.chat.last is None else self.chat.last.stats.seed
        drawn = "" if last is None or last == seed else f"; the last answer's was {last}"
        note(f"seed: {'drawn anew for each answer' if seed is None else seed}{drawn}")

    def set(self, argument: str) -> None:
        """Show or change options."""
        name, _, value = argument.partition(" ")
        if value:
            kind = _SETTINGS.get(name)
            if kind is None:
                raise OptionsError(f"unknown option {name}, expected {', '.join(_SETTINGS)}")
            number = _number(f"/set {name}", value.strip(), kind)
            try:
                if name == "max_tokens":
                    self.chat.max_tokens = number
                else:
                    self.chat.sampling = dataclasses.replace(self.chat.sampling, **{name: number})
            except OptionsError as error:
                raise OptionsError(f"/set {name}: {error}") from None
        elif argument and name not in _SETTINGS:
            raise OptionsError(f"unknown option {name}, expected {', '.join(_SETTINGS)}")
        options = {**dataclasses.asdict(self.chat.sampling), "max_tokens": self.chat.max_tokens}
        note("\n".join(f"{one}: {options[one]}" for one in ([name] if argument else _SETTINGS)))

    def reset(self, argument: str) -> None:
        """Begin anew."""
        self.chat.reset()
        note("all turns are dropped; the system message and the references stay")

    def save(self, argument: str) -> None:
        """Write the conversation to a file."""
        path = _path(argument) if argument else self.file
        if path is None:
            raise OptionsError("expected a file behind /save, found nothing, and nothing was saved or loaded before")
        if path != self.file and os.path.lexists(path):
            raise OptionsError(f"`{path}` exists, expected a new file or the one that was last saved or loaded")
        self.chat.save(path)
        self.file = path
        note(f"saved to {path}: {_count(len(self.chat.messages), 'message')}")

    def load(self, argument: str) -> None:
        """Go on with a conversation from a file."""
        if not argument:
            raise OptionsError("expected a file behind /load, found nothing")
        path = _path(argument)
        from quoth.conversation import Conversation

        self.chat = Conversation.load(path, self.chat.model, speculation=self.speculation)
        self.file = path
        messages = self.chat.messages
        note(f"loaded {path}: {_count(len(messages), 'message')}, with the options that it was saved with")
        for message in messages[-2:]:
            note(f"{message['role']}: {_short(str(message.get('content') or ''))}")

    def quit(self, argument: str) -> None:
        """End the session."""
        self.over = True


@dataclass(frozen=True)
class _Command:
    takes: str
    does: str
    run: Callable[[Talk, str], None]


COMMANDS: Final = {
    "/help": _Command("", "This list.", Talk.help),
    "/ref": _Command("[FILE]", "Draft from a text; the model does not see it. Without FILE: list them.", Talk.ref),
    "/unref": _Command("", "Take all references away.", Talk.unref),
    "/stats": _Command("", "What the last answer took, and all together.", Talk.stats),
    "/system": _Command("[TEXT]", "Set the system message; - removes it. Without TEXT: show it.", Talk.system),
    "/undo": _Command("", "Drop the last message and its answer.", Talk.undo),
    "/retry": _Command("", "Answer the last message once more.", Talk.retry),
    "/seed": _Command("[N]", "Set the seed; - draws anew for each answer. Without N: show it.", Talk.seed),
    "/set": _Command("[NAME [VALUE]]", "Set an option, such as temperature. Without VALUE: show it.", Talk.set),
    "/reset": _Command("", "Drop all turns.", Talk.reset),
    "/save": _Command("[FILE]", "Write the conversation to a new file, or again to the last one.", Talk.save),
    "/load": _Command("FILE", "Go on with a saved conversation in place of this one.", Talk.load),
    "/quit": _Command("", "End the session, as Ctrl-D does.", Talk.quit),
}
"""What can be done beside talking, by name."""


_SETTINGS: Final[dict[str, type[int] | type[float]]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repeat_penalty": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repeat_last_n": int,
    "max_tokens": int,
}
"""Options that `/set` knows."""


def _number(name: str, text: str, kind: type[int] | type[float]) -> Any:
    """A number that was typed."""
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise OptionsError(f"expected {what} behind {name}, found {_short(text)}") from None


def _path(argument: str) -> Path:
    """A file that was named in a command.

    Raises:
        OptionsError: It cannot be the name of one.
    """
    if "\0" in argument:
        raise OptionsError(f"expected a file, found a name with the character U+0000 at {argument.index(chr(0))}")
    try:
        path = Path(argument).expanduser()
    except RuntimeError:
        raise OptionsError(f"expected a file, found `{argument}`: there is no such user's folder") from None
    return Path.cwd() / path if argument == "-" else path  # elsewhere that name means stdin


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _short(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 70 else f"{line[:69]}…"
