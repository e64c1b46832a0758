"""`quoth bench speed MODEL`: how fast a model runs here, plainly.

In: a model. Out: speeds of prompt and decoding, memory, and the share of the memory's speed that decoding reaches.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from quoth.cli._bench import facts, keep_record, numbers, warn
from quoth.cli._console import bar, grid, show, table
from quoth.cli._load import load
from quoth.cli._options import AsJson, Facts, Kernels, KvTypeName, ModelName, RecordTo, Threads
from quoth.cli._units import as_json, seconds, share, size

WHAT = "speed and memory without drafting"


def speed(
    context: typer.Context,
    model: ModelName,
    *,
    prompts: Annotated[str, typer.Option("--prompts", metavar="N,N,…", help="Lengths of prompts.")] = "32,128,512",
    depths: Annotated[
        str, typer.Option("--depths", metavar="N,N,…", help="Cached tokens before the measured steps.")
    ] = "0,512,2048",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often everything is measured.")] = 5,
    threads: Threads = None,
    kernels: Kernels = None,
    kv_type: KvTypeName = None,
    json_: AsJson = False,
    record: RecordTo = None,
    fact: Facts = None,
) -> None:
    """Measure prompt and decoding speed without drafting, medians of alternating rounds.

    Lengths beyond the model's own context are left out.
    """
    from quoth.bench.quiet import watch
    from quoth.bench.record import run_facts
    from quoth.bench.speed import STEPS, measure_speed
    from quoth.loaded import trained_context

    more = facts(fact)
    asked = numbers(prompts, "--prompts", least=1), numbers(depths, "--depths", least=0)
    loaded = load(
        model, ctx=max(*asked[0], max(asked[1]) + STEPS + 2), threads=threads, kernels=kernels, kv_type=kv_type
    )
    trained = trained_context(loaded.metadata) or loaded.n_ctx
    fitting = [n for n in asked[0] if n <= trained], [n for n in asked[1] if n + STEPS < trained]
    with bar("measuring") as update, watch(loaded.threads) as quiet:
        measured = measure_speed(loaded, prompts=fitting[0], depths=fitting[1], rounds=rounds, progress=update)
    run = run_facts(loaded, more)
    figures = {"rounds": rounds, **dataclasses.asdict(measured), "quiet": dataclasses.asdict(quiet)}
    keep_record(record, context, WHAT, run, figures)
    if json_:
        print(json.dumps(as_json({"what": WHAT, "run": run, **figures})))
        warn(quiet)
        return
    made = table("", "tokens", "tok/s", "25 % - 75 %", right=(1, 2, 3))
    for name, rates in (("prompt", measured.prefill), ("decode, cached", measured.decode)):
        for one in rates:
            figure = one.tokens_per_second
            made.add_row(name, str(one.n), f"{figure.median:.1f}", f"{figure.low:.1f} - {figure.high:.1f}")
            name = ""  # noqa: PLW2901  said once
    show(f"{loaded.path.name}, {loaded.kernels}, {loaded.threads} threads, {rounds} rounds")
    show(made)
    per_token = measured.cache_bytes / measured.cache_tokens
    rows = [
        ("loading", seconds(measured.load_ns)),
        ("weights", size(measured.weight_bytes)),
        ("cache", f"{size(measured.cache_bytes)} for {measured.cache_tokens} tokens, {size(per_token)} a token"),
    ]
    if measured.peak_bytes is not None:
        rows.append(("peak memory", f"{size(measured.peak_bytes)}, with a context for each depth"))
    rows += [
        (
            "memory read",
            f"{size(measured.bandwidth_best)}/s at best, {size(measured.bandwidth.median)}/s in the median",
        ),
        (
            "used by decoding",
            f"{share(measured.bandwidth_share)}: {size(measured.bytes_per_step)} of weights a step, "
            f"{measured.decode[0].tokens_per_second.median:.1f} steps a second",
        ),
    ]
    show(grid(rows))
    warn(quiet)
