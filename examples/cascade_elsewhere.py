#!/usr/bin/env python3
"""The drafting cascade, lent to the loop of another engine.

All that the engine must be able to do is in `Engine`: compute the logits of several tokens in one pass, and forget the
last ones again. Here a bare `quoth.Session` stands for it. `quoth.DraftIndex` needs no model; it sees token ids alone.
The text is the engine's own as long as its logits do not depend on how many tokens share a pass.

    python examples/cascade_elsewhere.py
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import quoth

PROMPT = "Repeat this list twice: apples and pears, plums and cherries, figs and dates, nuts and raisins."


class Engine:
    """Another engine. Put yours in its place."""

    def __init__(self, model: quoth.Model) -> None:
        self._session = model.session()
        self.passes = 0

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """Append tokens; give a row of logits after each."""
        self.passes += 1
        return self._session.forward(tokens)

    def keep(self, n: int) -> None:
        """Forget all but the first `n` tokens."""
        self._session.truncate(n)


def plainly(engine: Engine, prompt: list[int], max_tokens: int, ends: frozenset[int]) -> list[int]:
    """The loop as it was: a token a pass."""
    tokens = [*prompt, int(engine.logits(prompt)[-1].argmax())]
    while tokens[-1] not in ends and len(tokens) < len(prompt) + max_tokens:
        tokens.append(int(engine.logits(tokens[-1:])[-1].argmax()))
    return tokens[len(prompt) :]


def quoting(engine: Engine, prompt: list[int], max_tokens: int, ends: frozenset[int], n_vocab: int) -> list[int]:
    """The loop with drafts: what the index suggests is verified in one pass with the last token."""
    index = quoth.DraftIndex(n_vocab)
    tokens = [*prompt, int(engine.logits(prompt)[-1].argmax())]
    index.observe(tokens)
    while tokens[-1] not in ends and len(tokens) < len(prompt) + max_tokens:
        draft = index.suggest(max_tokens=min(16, len(prompt) + max_tokens - len(tokens) - 1))
        rows = engine.logits([tokens[-1], *draft])
        used, new = [], []
        for token, row in zip([tokens[-1], *draft], rows, strict=True):
            best = np.argsort(-row, kind="stable")[:8]
            used.append((token, best.tolist()))
            new.append(int(best[0]))
            if new[-1] in ends or len(new) > len(draft) or new[-1] != draft[len(new) - 1]:
                break
        tokens += new
        engine.keep(len(tokens) - 1)  # all but the last are cached, and no draft that was wrong
        index.observe(new)
        index.observe_topk(used)
    return tokens[len(prompt) :]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draft for another engine.")
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a name")
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args()

    model = quoth.Model(options.model)
    tokenizer = model.tokenizer
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": PROMPT}])
    with_drafts, without = Engine(model), Engine(model)
    text = quoting(with_drafts, prompt, options.max_tokens, tokenizer.eog_ids, model.n_vocab)
    same = text == plainly(without, prompt, options.max_tokens, tokenizer.eog_ids)
    print(tokenizer.decode(text))
    print(f"\n{len(text)} tokens in {with_drafts.passes} passes, plainly in {without.passes}; the same tokens: {same}")


if __name__ == "__main__":
    main()
