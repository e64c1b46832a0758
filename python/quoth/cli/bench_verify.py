"""`quoth bench verify MODEL`: what verifying a draft costs here, for the gate.

In: a model. Out: a table of costs, kept in the cache folder for later runs.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoth.cli._bench import facts, keep_record, numbers, warn
from quoth.cli._console import bar, note, show, table
from quoth.cli._load import load
from quoth.cli._options import AsJson, Facts, Kernels, KvTypeName, ModelName, PlotTo, RecordTo, Threads
from quoth.cli._units import as_json, seconds, spread

if TYPE_CHECKING:
    from quoth.bench.verify import VerifyCosts


WHAT = "cost of verifying k drafted tokens, in plain steps"


def verify(
    context: typer.Context,
    model: ModelName,
    *,
    lengths: Annotated[
        str, typer.Option("--ctx-lengths", metavar="N,N,…", help="Cached tokens before the measured steps.")
    ] = "64,256,1024",
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="Pairs of runs for each length of draft.")] = 15,
    save: Annotated[
        bool | None,
        typer.Option(
            "--save/--no-save",
            help="Keep the costs for later runs on this machine. Default: unless other processes disturbed.",
        ),
    ] = None,
    threads: Threads = None,
    kernels: Kernels = None,
    kv_type: KvTypeName = None,
    json_: AsJson = False,
    record: RecordTo = None,
    fact: Facts = None,
    plot: PlotTo = None,
) -> None:
    """Measure the cost of verifying k drafted tokens, in plain steps.

    A draft of which a tokens are right commits a + 1 tokens and pays if its cost is less than that.
    """
    from quoth.bench.quiet import watch
    from quoth.bench.record import run_facts
    from quoth.bench.verify import DRAFTS, cost_table, verify_costs
    from quoth.costs import save_costs

    if plot is not None:
        from quoth.bench.plot import check_plot

        check_plot(plot)
    more = facts(fact)
    depths = sorted(set(numbers(lengths, "--ctx-lengths", least=0)))
    loaded = load(model, ctx=max(depths) + max(DRAFTS) + 1, threads=threads, kernels=kernels, kv_type=kv_type)
    measured = []
    with watch(loaded.threads) as quiet:
        for depth in depths:
            with bar(f"{depth} cached tokens") as update:
                measured.append(verify_costs(loaded, depth, rounds=rounds, progress=update))
    costs = cost_table(measured)
    run = run_facts(loaded, more)
    kept = save_costs(loaded, costs, run["date"]) if save or (save is None and not quiet.disturbed) else None
    figures: dict[str, Any] = {
        "rounds": rounds,
        "contexts": [dataclasses.asdict(costs_at) for costs_at in measured],
        "costs": {str(k): cost for k, cost in costs.items()},
        "quiet": dataclasses.asdict(quiet),
    }
    if json_:
        saved = None if kept is None else str(kept)
        print(json.dumps(as_json({"what": WHAT, "run": run, **figures, "saved": saved})))
    else:
        for costs_at in measured:
            show(_heading(costs_at, loaded.kernels, loaded.threads))
            made = table("drafted", "cost", "25 % - 75 %", "time", "a token", right=(0, 1, 2, 3, 4))
            for point in costs_at.drafts:
                made.add_row(
                    str(point.k),
                    f"{point.cost.median:.2f}",
                    f"{point.cost.low:.2f} - {point.cost.high:.2f}",
                    seconds(point.ns.median),
                    f"{point.cost.median / (point.k + 1):.2f}",
                )
            show(made)
    keep_record(record, context, WHAT, run, figures)
    if plot is not None:
        from quoth.bench.plot import plot_costs

        plot_costs(plot, figures["contexts"], title=f"{loaded.path.stem}, {loaded.kernels}, {loaded.threads} threads")
    warn(quiet)
    if kept is not None:
        note(f"kept in {kept}")
    elif save is None:
        note("nothing is kept; --save does so all the same")


def _heading(costs: VerifyCosts, kernels: str, threads: int) -> str:
    return (
        f"{costs.n_cached} cached tokens, {kernels}, {threads} threads: plain step {seconds(costs.plain_ns.median)}, "
        f"two plain steps differ by {spread(costs.noise)}"
    )
