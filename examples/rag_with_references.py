#!/usr/bin/env python3
"""Answers about documents: the best passage goes into the prompt, every document goes to the drafter as a reference.

What an answer quotes comes in long strides, also where the quotation goes on beyond the passage. A reference is never
shown to the model, so offering a whole library cannot change an answer.

    python examples/rag_with_references.py "When was the lamp at Northpoint lit by hand?"
"""

from __future__ import annotations

import argparse
import re

import quoth

DOCUMENTS = {
    "lights": (
        "The light at Northpoint was built in 1874 and stands 41 metres above the sea. Its lamp was lit by hand until "
        "1931, when the wire from Gull Rock was laid.\n\nThe light at Gull Rock was built in 1891. Its keeper rowed "
        "out in the storm of 1902 and brought eleven people home."
    ),
    "ferries": (
        "The ferry from Northpoint to Gull Rock leaves at 07:15, 11:40 and 18:05. In winter there is no boat at 11:40."
        "\n\nBicycles travel free of charge. Dogs need a ticket, which costs two crowns and is sold on board."
    ),
}


def words(text: str) -> set[str]:
    return set(re.findall(r"\w{5,}", text.lower()))


def best_passage(question: str) -> str:
    """The passage that shares the most words with a question: a stand-in for a real search."""
    passages = [passage for document in DOCUMENTS.values() for passage in document.split("\n\n")]
    return max(passages, key=lambda passage: len(words(passage) & words(question)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer a question about documents.")
    parser.add_argument("question", nargs="?", default="When does the ferry from Northpoint to Gull Rock leave?")
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a name")
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args()

    chat = quoth.Model(options.model).conversation(system="Answer by quoting the text.", max_tokens=options.max_tokens)
    for document in DOCUMENTS.values():
        chat.add_reference(document)
    for chunk in chat.send(f"{best_passage(options.question)}\n\n{options.question}"):
        print(chunk.text, end="", flush=True)
    print()

    stats = chat.stats
    print(f"\n{stats.committed} tokens in {stats.steps} steps; drafts were right by source:")
    for name, source in stats.sources.items():
        print(f"  {name}: {source.accepted} of {source.drafted}")


if __name__ == "__main__":
    main()
