"""`quoth bench workloads MODEL FILE`: plain against speculative decoding, kind by kind.

In: a model, a file of workloads. Out: ratios with their spread; exit code 1 if a single token differs.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoth.cli._bench import facts, keep_record, warn
from quoth.cli._console import bar, note, show, table
from quoth.cli._load import load
from quoth.cli._options import (
    AsJson,
    Context,
    Drafters,
    Facts,
    Kernels,
    KvTypeName,
    MaxDraft,
    ModelName,
    PlotTo,
    RecordTo,
    Temperature,
    Threads,
)
from quoth.cli._units import as_json, share, times

if TYPE_CHECKING:
    from rich.table import Table

    from quoth.bench.workloads import Group, WorkloadResult

WHAT = "speed of speculative over plain decoding, by kind of workload"


def workloads(
    context: typer.Context,
    model: ModelName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSONL file of workloads.", show_default=False)],
    *,
    kinds: Annotated[
        str, typer.Option("--kinds", metavar="KIND,KIND,…", help="Only these kinds.", show_default=False)
    ] = "",
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="How often each workload runs, each way.")] = 3,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", metavar="N", min=2, help="A limit below the workloads' own.")
    ] = None,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the draws, if there are any.")] = 0,
    max_draft: MaxDraft = None,
    drafter: Drafters = None,
    traces: Annotated[
        Path | None,
        typer.Option("--traces", metavar="FILE", help="Write prompts and answers as token ids, for `bench replay`."),
    ] = None,
    ctx: Context = None,
    threads: Threads = None,
    kernels: Kernels = None,
    kv_type: KvTypeName = None,
    json_: AsJson = False,
    record: RecordTo = None,
    fact: Facts = None,
    plot: PlotTo = None,
) -> None:
    """Run workloads plainly and speculatively in turn, and compare tokens and speed.

    A line of FILE is an object with id, kind, messages or turns, and optionally system, references, max_tokens. Exits
    with 1 if any run gives another token than the others.
    """
    from quoth.bench.quiet import watch
    from quoth.bench.record import run_facts
    from quoth.bench.workloads import groups, measure_workloads, read_workloads, subsets
    from quoth.options import Sampling, Speculation

    if plot is not None:
        from quoth.bench.plot import check_plot

        check_plot(plot)
    more = facts(fact)
    chosen = read_workloads(file, [kind.strip() for kind in kinds.split(",") if kind.strip()])
    sampling = Sampling(temperature=temperature or 0.0, seed=seed)
    speculation = Speculation() if max_draft is None else Speculation(max_draft=max_draft)
    loaded = load(model, ctx=ctx, threads=threads, kernels=kernels, kv_type=kv_type, drafters=drafter)
    with bar("runs", after_s=0.2) as update, watch(loaded.threads) as quiet:
        results = measure_workloads(
            loaded,
            chosen,
            rounds=rounds,
            sampling=sampling,
            speculation=speculation,
            max_tokens=max_tokens,
            progress=update,
        )
    made, parts = groups(results), subsets(results)
    figures: dict[str, Any] = {
        "workloads_file": file.name,
        "rounds": rounds,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "costs": next((r.speculative.stats.gate.costs for r in results if r.speculative is not None), None),
        "identical": all(result.identical for result in results),
        "groups": [_group_data(group) for group in made],
        "subsets": [_group_data(group) for group in parts],
        "workloads": [_workload_data(result) for result in results],
        "quiet": dataclasses.asdict(quiet),
    }
    run = run_facts(loaded, more)
    if json_:
        print(json.dumps(as_json({"what": WHAT, "run": run, **figures}), ensure_ascii=False))
    else:
        show(f"{loaded.path.name}, {loaded.kernels}, {loaded.threads} threads, {rounds} rounds")
        _print(results, made, parts)
    keep_record(record, context, WHAT, run, figures)
    if traces is not None:
        from quoth.bench.traces import write_traces

        with bar("traces") as update:
            write_traces(traces, loaded, results, update)
        note(f"traces are in {traces}")
    if plot is not None:
        from quoth.bench.plot import plot_workloads

        plot_workloads(plot, figures["groups"], title=f"{loaded.path.stem}, {loaded.threads} threads")
    warn(quiet)
    for result in results:
        if result.difference is not None:
            at, difference = result.difference
            note(
                f"error: {result.workload.id}: token {difference.at} of answer {at + 1} differs: "
                f"plain {difference.plain}, speculative {difference.speculative}"
            )
    if not figures["identical"]:
        raise typer.Exit(1)


def _print(results: Sequence[WorkloadResult], made: Sequence[Group], parts: Sequence[Group]) -> None:
    show(_table("kind", made))
    if parts:
        show("of these:", _table("subset", parts))
    if not made:
        return
    whole = made[-1]
    for name, source in whole.sources.items():
        if source.drafted:
            show(
                f"{name}: {source.accepted} of {source.drafted} drafted tokens accepted ({share(source.acceptance)}), "
                f"{source.drafts} drafts"
            )
    same = sum(result.identical for result in results)
    show(f"{same} of {len(results)} workloads identical")
    show(
        f"with the prompts {times(whole.total_speedup)}; of single workloads: geometric mean "
        f"{whole.geometric_mean:.2f}x, worst {whole.worst:.2f}x ({whole.worst_id})"
    )


def _table(head: str, made: Sequence[Group]) -> Table:
    columns = (head, "runs", "plain", "speculative", "ratio", "worst", "tok/step", "accepted", "trips", "drafting")
    shown = table(*columns, right=(1, 2, 3, 4, 5, 6, 7, 8, 9))
    for group in made:
        if group.name == "all":
            shown.add_section()
        stats = group.stats
        shown.add_row(
            group.name,
            str(group.n),
            f"{group.plain_rate:.0f}",
            f"{group.speculative_rate:.0f}",
            times(group.speedup),
            f"{group.worst:.2f}x",
            f"{stats.tokens_per_step:.2f}",
            share(stats.acceptance) if stats.drafted else "-",
            str(group.trips),
            f"{group.draft_ns_per_token.median / 1e3:.1f} µs",
        )
    return shown


def _group_data(group: Group) -> dict[str, Any]:
    stats = group.stats
    return {
        "name": group.name,
        "n": group.n,
        "plain_rate": group.plain_rate,
        "speculative_rate": group.speculative_rate,
        "speedup": dataclasses.asdict(group.speedup),
        "total_speedup": dataclasses.asdict(group.total_speedup),
        "geometric_mean": group.geometric_mean,
        "worst": group.worst,
        "worst_id": group.worst_id,
        "tokens_per_step": stats.tokens_per_step,
        "acceptance": stats.acceptance,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "steps": stats.steps,
        "trips": group.trips,
        "draft_ns_per_token": dataclasses.asdict(group.draft_ns_per_token),
        "sources": {
            name: {"drafts": s.drafts, "drafted": s.drafted, "accepted": s.accepted}
            for name, s in group.sources.items()
        },
    }


def _workload_data(result: WorkloadResult) -> dict[str, Any]:
    data: dict[str, Any] = {"id": result.workload.id, "kind": result.workload.kind, "identical": result.identical}
    if result.speculative is None or not result.identical:
        return data
    stats = result.speculative.stats
    return data | {
        "tokens": sum(len(tokens) for tokens in result.speculative.tokens),
        "speedup": dataclasses.asdict(result.speedup),
        "tokens_per_step": stats.tokens_per_step,
        "acceptance": stats.acceptance,
        "trips": result.speculative.results[-1].stats.gate.trips,
        "closed_steps": sum(r.stats.gate.closed_steps for r in result.speculative.results[-1:]),
        "gate": stats.gate.state,
    }
