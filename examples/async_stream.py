#!/usr/bin/env python3
"""Several conversations on one event loop, streamed as they come; one of them has a time limit.

A step runs on a thread of its conversation's own and lets the interpreter go, so the loop is never kept waiting. One
that is cancelled stops after the step under way; what it had handed out stays in its conversation.

    python examples/async_stream.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

import quoth

QUESTIONS = {"short": "Name three colours.", "long": "Write a long story about a lighthouse."}


async def tell(name: str, chat: quoth.Conversation, question: str) -> None:
    """Print an answer, a line of output for each line of text."""
    line = ""
    try:
        async for chunk in chat.asend(question):
            *whole, line = (line + chunk.text).split("\n")
            for text in whole:
                print(f"{name}: {text}")
    finally:
        print(f"{name}: {line}")


async def talk(model: quoth.Model, max_tokens: int, limit: float) -> None:
    chats = {name: model.conversation(max_tokens=max_tokens) for name in QUESTIONS}

    async def limited(name: str) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(tell(name, chats[name], QUESTIONS[name]), limit)

    await asyncio.gather(tell("short", chats["short"], QUESTIONS["short"]), limited("long"))
    for name, chat in chats.items():
        last = chat.last
        how = "nothing" if last is None else f"{len(last.tokens)} tokens, ended by {last.finish_reason or 'the limit'}"
        print(f"[{name}] {how}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream several conversations at once.")
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a name")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--limit", type=float, default=3.0, help="seconds for the long answer")
    options = parser.parse_args()
    asyncio.run(talk(quoth.Model(options.model), options.max_tokens, options.limit))


if __name__ == "__main__":
    main()
