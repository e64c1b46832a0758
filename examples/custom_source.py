#!/usr/bin/env python3
"""A draft source of your own: a book of phrases. Whatever it suggests, the text stays that of plain decoding.

python examples/custom_source.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import quoth

PHRASES = [
    "Dear Hiring Manager,\n\nI am writing to request",
    "a new library card",
    "Thank you for your attention to this matter.",
    "I look forward to hearing from you soon.\n\nSincerely,\n[Your Name]",
]
PROMPT = "Write a short formal letter that asks for a new library card."


class Phrasebook:
    """Suggests the rest of a phrase once two of its tokens in a row were generated."""

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        self._after = {
            tuple(phrase[at - 2 : at]): list(phrase[at:]) for phrase in phrases for at in range(2, len(phrase))
        }

    def suggest(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """The context ends with the last generated token; up to `max_tokens` of what may follow."""
        return self._after.get(tuple(context[-2:]), [])[:max_tokens]

    def observe(self, committed: Sequence[int]) -> None:
        """Told of the prompt, then of each step's tokens. This source learns nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode with a draft source of your own.")
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a name")
    parser.add_argument("--max-tokens", type=int, default=160)
    options = parser.parse_args()

    model = quoth.Model(options.model)
    phrasebook = Phrasebook([model.tokenizer.encode(phrase) for phrase in PHRASES])
    quoting = model.conversation(speculation=phrasebook).reply(PROMPT, max_tokens=options.max_tokens)
    plain = model.conversation(speculation=None).reply(PROMPT, max_tokens=options.max_tokens)
    print(quoting.text)
    stats = quoting.stats
    print(f"\nthe phrasebook was right about {stats.accepted} of {stats.drafted} tokens: {stats.steps} steps")
    print(f"plain decoding took {plain.stats.steps}; the same tokens: {quoting.tokens == plain.tokens}")


if __name__ == "__main__":
    main()
