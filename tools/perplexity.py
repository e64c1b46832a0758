#!/usr/bin/env python3
"""Perplexity of a model on a text, counted as llama.cpp's `llama-perplexity` counts, so that figures can be compared.

In: a model, a text. Out: perplexity, its standard error, what it was taken over.

P1  The text is encoded in one piece, special tokens not parsed, the begin and end tokens added as the file says. One
    newline at the end of the file is dropped.
P2  The tokens are cut into whole windows from the start; what is left over is not looked at. Each window starts with an
    empty cache, and if the model's prompts begin with a begin token, its first token is replaced by that.
P3  A window of w tokens scores the tokens after position w // 2, so that each has at least half a window of context:
    w - w // 2 - 1 of them. The perplexity is exp of the mean negative log-probability over all windows.
P4  The standard error is that of the mean, tokens taken as independent, times the perplexity.

Cost: a forward of the text, and w x n_vocab floats.

    python tools/perplexity.py smollm2 tests/data/prose.txt
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import quoth

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Perplexity:
    """A perplexity and what it was taken over."""

    perplexity: float
    """exp of the mean negative log-probability."""
    error: float
    """One standard error of it."""
    tokens: int
    """Tokens of the text."""
    windows: int
    """Windows that were scored."""
    scored: int
    """Tokens that were scored."""
    running: tuple[float, ...]
    """The perplexity after each window, as `llama-perplexity` prints it."""


def read_text(path: Path) -> str:
    """The text of a file without one newline at its end (P1)."""
    return path.read_bytes().decode("utf-8").removesuffix("\n")


def encode(model: quoth.Model, text: str) -> list[int]:
    """Token ids of a text as the measurement takes them (P1)."""
    return model.tokenizer.encode(text, add_bos=None, add_eos=None)


def negative_log_probabilities(logits: npt.NDArray[np.float32], targets: npt.NDArray[np.int64]) -> Floats:
    """The negative natural logarithm of each target's probability.

    Args:
        logits: float32 `[n, n_vocab]`; row i foretells `targets[i]`.
        targets: Token ids `[n]`.

    Returns:
        float64 `[n]`.
    """
    # A row at a time: a float64 copy of all rows would double the memory.
    out = np.empty(len(targets))
    for i, target in enumerate(targets):
        row = logits[i].astype(np.float64)
        top = row.max()
        out[i] = top + np.log(np.exp(row - top).sum()) - row[target]
    return out


def perplexity(model: quoth.Model, tokens: Sequence[int], window: int = 512) -> Perplexity:
    """Measure the perplexity of a model on tokens.

    Args:
        model: A model whose context holds a window.
        tokens: Token ids, at least one window.
        window: Tokens of a window, at least 4.

    Returns:
        The perplexity.

    Raises:
        ValueError: The window is too short, or longer than the tokens or the context.
    """
    if not 4 <= window <= min(len(tokens), model.n_ctx):
        raise ValueError(
            f"window is {window}, expected 4 to {min(len(tokens), model.n_ctx)}: "
            f"there are {len(tokens)} tokens and a context of {model.n_ctx}"
        )
    first = window // 2
    begin = model.tokenizer.bos_id if model.tokenizer.add_bos else None
    parts: list[Floats] = []
    session = model.session()
    for start in range(0, len(tokens) - window + 1, window):
        chunk = list(tokens[start : start + window])
        if begin is not None:
            chunk[0] = begin
        session.truncate(0)
        logits = session.forward(chunk)
        parts.append(negative_log_probabilities(logits[first:-1], np.asarray(chunk[first + 1 :], np.int64)))
    every = np.concatenate(parts)
    # All windows score equally many tokens.
    means = np.cumsum([part.mean() for part in parts]) / np.arange(1, len(parts) + 1)
    value = float(np.exp(every.mean()))
    error = float(every.std() / np.sqrt(len(every) - 1)) * value
    return Perplexity(value, error, len(tokens), len(parts), len(every), tuple(np.exp(means).tolist()))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Perplexity of a model on a text, as llama-perplexity counts it.")
    parser.add_argument("model", help="a GGUF file or a model's name")
    parser.add_argument("text", type=Path, help="a UTF-8 text file")
    parser.add_argument("--tokens", type=int, help="only the first TOKENS tokens of the text")
    parser.add_argument("--window", type=int, default=512, help="tokens of a window (512)")
    parser.add_argument("--threads", type=int, help="threads of a forward")
    parser.add_argument("--kv-type", choices=("f32", "f16", "q8_0"), help="how keys and values are kept")
    parser.add_argument("--kernels", help="an instruction set, or reference")
    parser.add_argument("--ids", type=Path, help="write the token ids to this file, one a line")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    try:
        model = quoth.Model(
            args.model, n_ctx=args.window, threads=args.threads, kv_type=args.kv_type, kernels=args.kernels
        )
        tokens = encode(model, read_text(args.text))[: args.tokens]
        if args.ids:
            args.ids.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
        found = perplexity(model, tokens, args.window)
    except (quoth.QuothError, OSError, ValueError) as error:
        print(f"perplexity: {error}", file=sys.stderr)
        return 1
    if args.json:
        run: dict[str, Any] = {"kernels": model.kernels, "threads": model.threads, "kv_type": model.kv_type}
        print(json.dumps({**asdict(found), "window": args.window, **run}))
    else:
        print(f"perplexity {found.perplexity:.4f} +/- {found.error:.4f}")
        print(f"{found.scored} of {found.tokens} tokens scored, in {found.windows} windows of {args.window}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
