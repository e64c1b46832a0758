"""Chunks of text on their way to stdout, with the drafted part marked if the user asks for it.

In: chunks. Out: their text, all of it and nothing else, perhaps in colours or brackets.

A chunk says how many of its tokens were drafted, and its text may lag behind its tokens (half a character, the start of
a possible stop). So tokens are spelled a second time here, and the text is cut along these spellings.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Literal

from quoth.cli._console import is_terminal, visible

if TYPE_CHECKING:
    from quoth.results import Chunk
    from quoth.tokenizer import Tokenizer

__all__ = ["Attribution", "Writer"]

Marks = Literal["none", "colours", "brackets"]

# Colour and, where colours are not wanted, another attribute.
_STYLES = {"conversation": ("32", "4"), "recycling": ("35", "3"), "reference": ("36", "1"), "other": ("33", "7")}
_END = "\x1b[0m"


class Attribution:
    """Says which part of the text was drafted, and by whom."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spelling = tokenizer.stream()
        self._ahead: deque[tuple[int, str | None]] = deque()

    def split(self, chunk: Chunk) -> list[tuple[str, str | None]]:
        """Cut a chunk's text.

        Returns:
            Pieces that, joined, are `chunk.text`, each with the source that drafted it; None for the model's own.
        """
        for i, token in enumerate(chunk.tokens):
            drafted = (chunk.source or "other") if i < chunk.accepted else None
            if piece := self._spelling.push(token):
                self._ahead.append((len(piece), drafted))
        parts: list[tuple[str, str | None]] = []
        text = chunk.text
        while text:
            length, source = self._ahead.popleft() if self._ahead else (len(text), None)
            if length > len(text):
                self._ahead.appendleft((length - len(text), source))
            part, text = text[:length], text[length:]
            if parts and parts[-1][1] == source:
                parts[-1] = (parts[-1][0] + part, source)
            else:
                parts.append((part, source))
        return parts


class Writer:
    """Writes chunks to stdout.

    Args:
        tokenizer: To know which token a character belongs to.
        show: Mark drafted text in colours, if stdout is a terminal that has them.
        mark: Mark drafted text in brackets, wherever it goes.
    """

    def __init__(self, tokenizer: Tokenizer, *, show: bool, mark: bool) -> None:
        self._clean = is_terminal(sys.stdout)
        self._colours = not os.environ.get("NO_COLOR")
        self.marks: Marks = "none"
        if mark:
            self.marks = "brackets"
        elif show and self._clean and os.environ.get("TERM") != "dumb":
            self.marks = "colours"
        self._attribution = Attribution(tokenizer) if self.marks != "none" else None
        self.sources: dict[str, int] = {}
        """Characters that each source drafted."""

    def write(self, chunk: Chunk) -> None:
        """Write a chunk."""
        if self._attribution is None:
            self._put(chunk.text)
            return
        for text, source in self._attribution.split(chunk):
            if source is None:
                self._put(text)
                continue
            self.sources[source] = self.sources.get(source, 0) + len(text)
            before, after = ("[", "]") if self.marks == "brackets" else (self.style(source), _END)
            sys.stdout.write(before)
            self._put(text)
            sys.stdout.write(after)
        sys.stdout.flush()

    def end(self) -> None:
        """End the last line."""
        sys.stdout.write("\n")
        sys.stdout.flush()

    def style(self, source: str) -> str:
        """The sequence that begins a source's style."""
        colour, attribute = _STYLES.get(source.partition("-")[0], _STYLES["other"])
        return f"\x1b[{colour if self._colours else attribute}m"

    def legend(self) -> str | None:
        """Which style is whose; None if nothing is marked."""
        if self.marks == "none":
            return None
        if not self.sources:
            return "nothing was drafted"
        styled = self.marks == "colours" and is_terminal(sys.stderr)
        entries = [
            f"{self.style(source)}{source}{_END} {n}" if styled else f"{source} {n}"
            for source, n in self.sources.items()
        ]
        return f"drafted characters: {', '.join(entries)}"

    def _put(self, text: str) -> None:
        sys.stdout.write(visible(text) if self._clean else text)
        if self._attribution is None:
            sys.stdout.flush()
