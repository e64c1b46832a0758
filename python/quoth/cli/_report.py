"""What a generation did, as a page for people or as plain data.

In: stats, a result. Out: a rich renderable, or a dictionary for JSON.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from quoth.cli._console import grid, show, table, visible
from quoth.cli._units import rate, seconds, share

if TYPE_CHECKING:
    from quoth.options import Sampling
    from quoth.results import Result, TokenLogprobs
    from quoth.stats import Stats
    from quoth.tokenizer import Tokenizer

__all__ = ["as_data", "ended", "print_stats", "result_data", "shown_sampling"]


def as_data(stats: Stats) -> dict[str, Any]:
    """The counts and times, with what is derived from them."""
    data = dataclasses.asdict(stats)
    data["tokens_per_second"] = stats.tokens_per_second
    for name, source in stats.sources.items():
        data["sources"][name]["acceptance"] = source.acceptance
    return data


def result_data(result: Result, tokenizer: Tokenizer) -> dict[str, Any]:
    """A generation as plain data."""
    data: dict[str, Any] = {
        "text": result.text,
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "prompt_tokens": result.prompt_tokens,
        "stats": as_data(result.stats),
    }
    if result.logprobs is not None:
        data["logprobs"] = [_logprob(entry, tokenizer) for entry in result.logprobs]
    return data


def _logprob(entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.token_bytes(token).decode("utf-8", "replace")
        return {"token": token, "text": text, "logprob": logprob}

    return one(entry.token, entry.logprob) | {"top": [one(*top) for top in entry.top]}


def shown_sampling(sampling: Sampling) -> str:
    """How tokens were chosen, in words: what differs from greedy, and no lists of tokens."""
    if sampling.temperature <= 0:
        chosen = {"greedy": ""}
    else:
        chosen = {"temperature": f"{sampling.temperature:g}"}
        chosen |= {"top-k": str(sampling.top_k)} if sampling.top_k else {}
        chosen |= {"top-p": f"{sampling.top_p:g}"} if sampling.top_p < 1 else {}
        chosen |= {"min-p": f"{sampling.min_p:g}"} if sampling.min_p else {}
    penalties = {
        "repeat penalty": (sampling.repeat_penalty, 1),
        "frequency penalty": (sampling.frequency_penalty, 0),
        "presence penalty": (sampling.presence_penalty, 0),
    }
    in_force = {name: f"{value:g}" for name, (value, off) in penalties.items() if value != off}
    if in_force:
        in_force["of the last"] = f"{sampling.repeat_last_n} tokens"
    return ", ".join(f"{name} {value}".strip() for name, value in (chosen | in_force).items())


def print_stats(stats: Stats, ended: str, sampling: Sampling | None = None) -> None:
    """Print a page about a generation to stderr.

    Args:
        stats: Its counts and times.
        ended: Why it ended.
        sampling: How tokens were chosen, if that was the same for all.
    """
    prefill = f"{stats.prefill_tokens} tokens in {seconds(stats.prefill_ns)}"
    if stats.prefill_ns:
        prefill += f", {rate(stats.prefill_tokens / stats.prefill_ns * 1e9)}"
    if stats.cached_tokens:
        prefill += f"; {stats.cached_tokens} were cached"
    decode = f"{stats.committed} tokens"
    if stats.steps:
        decode += f", {rate(stats.tokens_per_second)} after the first"
    rows = [("prompt", prefill), ("decode", decode)]
    if stats.steps:
        verified = f" ({stats.verify_steps} verified a draft)" if stats.gate.state != "off" else ""
        rows.append(("steps", f"{stats.steps}{verified}, {stats.tokens_per_step:.2f} tokens a step"))
        rest = max(stats.decode_ns - stats.draft_ns - stats.sample_ns, 0)
        times = f"{seconds(stats.decode_ns)}: forwards {seconds(rest)}, sampling {seconds(stats.sample_ns)}"
        if stats.gate.state != "off":
            times += f", drafting {seconds(stats.draft_ns)}"
        rows.append(("time", times))
    if stats.gate.state != "off":
        drafts = f"{stats.accepted} of {stats.drafted} drafted tokens accepted"
        if stats.drafted:
            drafts += f" ({share(stats.acceptance)}), the longest draft {stats.longest_draft}"
        rows += [("drafts", drafts), ("gate", _gate(stats)), ("costs", stats.gate.costs)]
    if sampling is not None:
        rows.append(("sampling", shown_sampling(sampling)))
    if stats.seed is not None:
        rows.append(("seed", str(stats.seed)))
    rows += [("ended", ended), ("machine", f"{stats.kernels}, {stats.threads} threads")]
    show("", grid([(name, visible(text)) for name, text in rows]), stderr=True)
    if stats.sources:
        made = table("source", "drafts", "drafted", "accepted", "share", "time", "now", right=(1, 2, 3, 4, 5))
        for name, source in stats.sources.items():
            part = share(source.acceptance) if source.drafted else "-"
            now = f"stopped: {source.reason}" if source.reason else "asked"
            time = seconds(source.ns) if source.ns else "-"
            cells = (name, str(source.drafts), str(source.drafted), str(source.accepted), part, time, now)
            made.add_row(*map(visible, cells))
        show(made, stderr=True)


def _gate(stats: Stats) -> str:
    """The gate in words."""
    gate = stats.gate
    text = gate.state
    if gate.estimated_speedup is not None:
        text += f", estimated speedup {gate.estimated_speedup:.2f}"
    if gate.trips:
        text += f", closed {gate.trips} times, {gate.closed_steps} steps without drafts, {gate.reopened} times reopened"
    if gate.state == "closed" and gate.probe_in:
        text += f", next try in {gate.probe_in} steps"
    if gate.reason:
        text += f"; {'it last closed because' if gate.state != 'disabled' else 'because'} {gate.reason}"
    return text


def ended(reason: str | None, stop: str | int | None, tokenizer: Tokenizer) -> str:
    """Why a generation ended, in words."""
    if reason == "stop" and stop is None:
        return "the constraint is complete"
    if reason == "stop":
        return f"at token {stop}, {tokenizer.token_text(stop)}" if isinstance(stop, int) else f"at the text {stop!r}"
    return {"length": "all tokens that were asked for", "context": "the context is full"}.get(reason or "", str(reason))
