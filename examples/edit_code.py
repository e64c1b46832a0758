#!/usr/bin/env python3
"""Edits a file: the model writes it out with a change, and nearly all of that is quoted from the prompt.

python examples/edit_code.py "Remove the comments." shapes.py
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

import quoth

CODE = '''\
def area(width, height):
    """The area of a rectangle."""
    return width * height


def volume(width, height, depth):
    """The volume of a box."""
    return width * height * depth


print(area(3, 4), volume(3, 4, 5))
'''


def code_of(answer: str) -> str:
    """What stands between code marks, or else the whole answer."""
    found = re.search(r"```\w*\n(.*?)(?:```|\Z)", answer, re.DOTALL)
    return found[1] if found else answer


def main() -> None:
    parser = argparse.ArgumentParser(description="Have a file edited, and show the change.")
    parser.add_argument("change", nargs="?", default="Remove the docstrings.")
    parser.add_argument("file", nargs="?", type=Path, help="a text file; it is not written to")
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a name")
    parser.add_argument("--max-tokens", type=int, default=512)
    options = parser.parse_args()

    before = options.file.read_text(encoding="utf-8") if options.file else CODE
    chat = quoth.Model(options.model).conversation(max_tokens=options.max_tokens)
    result = chat.reply(f"{options.change} Give the whole code, and nothing else.\n\n```python\n{before}```")
    after = code_of(result.text)
    sys.stdout.writelines(
        line if line.endswith("\n") else f"{line}\n"
        for line in difflib.unified_diff(before.splitlines(True), after.splitlines(True), "before", "after")
    )
    stats = result.stats
    print(f"\n{stats.committed} tokens in {stats.steps} steps, {stats.tokens_per_step:.1f} tokens a step")


if __name__ == "__main__":
    main()
