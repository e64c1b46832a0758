"""`quoth generate --compare`: plain and speculative decoding of one prompt, in turn.

In: a model, a prompt, options. Out: both speeds and their ratio; or the first token that differs, which would be a
defect.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quoth.cli._bench import warn
from quoth.cli._console import bar, is_terminal, note, show, table, visible
from quoth.cli._report import as_data
from quoth.cli._units import as_json, rate, times

if TYPE_CHECKING:
    from quoth.bench.compare import Comparison, Difference
    from quoth.decoder import Decoder
    from quoth.results import Result
    from quoth.tokenizer import Tokenizer

__all__ = ["run_comparison"]


def run_comparison(
    tokenizer: Tokenizer,
    plain: Callable[[], Decoder],
    speculative: Callable[[], Decoder],
    run: Callable[[Decoder], Result],
    *,
    pairs: int,
    threads: int,
    json_: bool,
) -> bool:
    """Compare, and print what came out.

    Returns:
        Whether all tokens were equal.
    """
    from quoth.bench.compare import compare
    from quoth.bench.quiet import watch

    with bar("comparing", after_s=0.2) as update, watch(threads) as quiet:
        compared = compare(plain, speculative, run, pairs, update)
    if json_:
        print(json.dumps(as_json(_data(compared)), ensure_ascii=False))
    elif compared.difference is None:
        _print(compared, pairs)
    warn(quiet)
    if compared.difference is not None:
        note(f"error: {_told(compared.difference, tokenizer)}")
    return compared.difference is None


def _print(compared: Comparison, pairs: int) -> None:
    text = compared.plain.text
    print(visible(text) if is_terminal(sys.stdout) else text)
    made = table("", "plain", "speculative", "ratio", right=(1, 2, 3))
    made.add_row("decode", rate(compared.plain_rate), rate(compared.speculative_rate), times(compared.speedup))
    made.add_row("with the prompt", "", "", times(compared.total_speedup))
    show(made)
    stats = compared.speculative.stats
    show(f"{len(compared.plain.tokens)} tokens, identical in {2 * pairs} runs")
    drafts = f"{stats.accepted} of {stats.drafted} drafted tokens accepted, gate {stats.gate.state}"
    show(f"{stats.tokens_per_step:.2f} tokens a step, {drafts}")
    show(f"speculative decoding: {compared.verdict.word} ({compared.verdict.reason})")


def _told(difference: Difference, tokenizer: Tokenizer) -> str:
    """The first difference in words."""

    def token(id: int | None) -> str:
        if id is None:
            return "the end"
        return f"{id} {json.dumps(tokenizer.token_bytes(id).decode('utf-8', 'replace'))}"

    plain, speculative = token(difference.plain), token(difference.speculative)
    return f"token {difference.at} differs: plain {plain}, speculative {speculative}"


def _data(compared: Comparison) -> dict[str, Any]:
    difference = compared.difference
    return {
        "identical": difference is None,
        "difference": None if difference is None else dataclasses.asdict(difference),
        "text": compared.plain.text,
        "tokens": list(compared.plain.tokens),
        "plain_rate": compared.plain_rate,
        "speculative_rate": compared.speculative_rate,
        "speedup": dataclasses.asdict(compared.speedup),
        "total_speedup": dataclasses.asdict(compared.total_speedup),
        "verdict": compared.verdict.word,
        "reason": compared.verdict.reason,
        "plain": as_data(compared.plain.stats),
        "speculative": as_data(compared.speculative.stats),
    }
