"""`quoth bench replay TRACE…`: what drafting would bring on recorded tokens, without a model.

In: traces or texts, a table of costs, options of drafting. Out: tokens a step, acceptance, the speedup that the table
foretells.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoth.cli._bench import facts, keep_record
from quoth.cli._console import bar, show, table
from quoth.cli._options import AsJson, Facts, PlotTo, RecordTo
from quoth.cli._replay import Way, all_traces, as_way, read_costs
from quoth.cli._units import as_json, count, seconds, share
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from quoth.bench.replay import Replayed, Tally
    from quoth.bench.traces import Trace

WHAT = "drafting replayed on recorded tokens, with a table of costs"


def replay(
    context: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE…", help="JSONL files of traces, or texts and folders of them."),
    ],
    *,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="MODEL", help="Reads texts with this model's vocabulary.")
    ] = None,
    join: Annotated[bool, typer.Option("--join", help="Make one stream of all texts of a folder.")] = False,
    most: Annotated[
        int | None, typer.Option("--tokens", metavar="N", min=1, help="Stop reading texts after about N tokens.")
    ] = None,
    costs: Annotated[
        str,
        typer.Option(
            "--costs",
            metavar="TABLE",
            help="shipped; a JSON or TOML file of `bench verify`; or a model, for what was measured of it here.",
        ),
    ] = "shipped",
    plain_ms: Annotated[
        float | None,
        typer.Option("--plain-ms", metavar="MS", min=0.001, help="A plain step. Default: the table's, else 10."),
    ] = None,
    sources: Annotated[
        str, typer.Option("--sources", metavar="NAME,…", help="Which draft: conversation, references, recycling.")
    ] = "conversation,references,recycling",
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="A field of quoth.Speculation or quoth.Gate, as in max_draft=8, min_match=2, window=32. Repeatable.",
        ),
    ] = None,
    max_draft: Annotated[int | None, typer.Option("--max-draft", metavar="N", help="Longest draft.")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="'NAME=VALUE …'",
            help="Replay the same tokens with these options too, and compare; sources=NAME,… is one. Repeatable.",
        ),
    ] = None,
    json_: AsJson = False,
    record: RecordTo = None,
    fact: Facts = None,
    plot: PlotTo = None,
) -> None:
    """Feed recorded tokens to cascade and gate as if a model had produced them.

    Each trace starts with nothing learned. Where a trace says how fast its answer really was, that stands beside what
    the table foretells.
    """
    from quoth.bench.record import run_facts
    from quoth.bench.replay import SOURCES, replay_trace, replay_traces

    if plot is not None:
        from quoth.bench.plot import check_plot

        check_plot(plot)
    more = facts(fact)
    asked = [name.strip() for name in sources.split(",") if name.strip()]
    given = list(options or ())
    given += [] if max_draft is None else [f"max_draft={max_draft}"]
    way = as_way(given, asked)
    others = [as_way(text.split(), asked) for text in against or ()]
    assumed = read_costs(costs)
    plain_ns = round(1e6 * plain_ms) if plain_ms is not None else assumed.plain_ns or 10_000_000

    def drafting(way: Way) -> Callable[[Trace], Replayed]:
        off = set(SOURCES) - set(way.sources)
        return partial(replay_trace, speculation=way.speculation, costs=assumed.table, plain_ns=plain_ns, without=off)

    tokens = 0
    with bar("tokens") as update:

        def progress(trace: Replayed) -> None:
            nonlocal tokens
            tokens += trace.tokens
            update(tokens, most)

        traces: Iterable[Trace] = (
            trace if assumed.fits(trace) else replace(trace, measured=None)
            for trace in all_traces(paths, tokenizer, join=join, most=most)
        )
        if others:
            traces = list(traces)
        every, tallies = replay_traces(traces, drafting(way), progress)
    if not every:
        raise OptionsError(f"there is no token in {', '.join(f'`{path}`' for path in paths)}")
    ways = [(way, tallies)]
    with bar("ways") as update:
        for done, other in enumerate(others, 1):
            ways.append((other, replay_traces(traces, drafting(other))[1]))
            update(done, len(others))
    figures: dict[str, Any] = {
        "costs": assumed.source,
        "plain_ns": plain_ns,
        "sources": asked,
        "options": given,
        "groups": [tally.data() for tally in tallies],
        "ways": [_way_data(other, results) for other, results in ways] if others else None,
    }
    run = run_facts(None, more)
    if json_:
        names = ("id", "kind", "tokens", "steps", "drafted", "accepted", "speedup", "measured")
        single = [{name: getattr(one, name) for name in names} for one in every]
        print(json.dumps(as_json({"what": WHAT, "run": run, **figures, "traces": single}), ensure_ascii=False))
    else:
        _print(tallies, assumed.source)
        if others:
            _print_ways(ways)
    keep_record(record, context, WHAT, run, figures)
    if plot is not None:
        from quoth.bench.plot import plot_acceptance

        plot_acceptance(plot, _lines(tallies), title=f"{count(tallies[-1].tokens)} tokens")


def _way_data(way: Way, tallies: Sequence[Tally]) -> dict[str, Any]:
    whole = tallies[-1]
    return {
        "options": list(way.options),
        "sources": list(way.sources),
        "tokens": whole.tokens,
        "tokens_per_step": whole.tokens_per_step,
        "acceptance": whole.acceptance,
        "speedup": whole.speedup,
        "ns_per_token": whole.ns_per_token,
        "kinds": {tally.name: tally.speedup for tally in tallies[:-1]},
    }


def _lines(tallies: Sequence[Tally]) -> dict[str, Any]:
    """What is drawn: the conversation's matches in the largest kinds."""
    *kinds, whole = tallies
    kinds.sort(key=lambda tally: -tally.tokens)
    drawn = kinds[:4] if len(kinds) > 1 else [whole]
    return {tally.name: tally.data()["by_match"].get("conversation", []) for tally in drawn}


def _print_ways(ways: Sequence[tuple[Way, Sequence[Tally]]]) -> None:
    made = table("options", "tok/step", "accepted", "ratio", "drafting", right=(1, 2, 3, 4))
    for way, tallies in ways:
        whole = tallies[-1]
        part = share(whole.acceptance) if whole.drafted else "-"
        named = " ".join(way.options) or "as above"
        made.add_row(
            named, f"{whole.tokens_per_step:.3f}", part, f"{whole.speedup:.3f}x", f"{whole.ns_per_token:.0f} ns"
        )
    show(made)


def _print(tallies: Sequence[Tally], source: str) -> None:
    measured = any(tally.measured is not None for tally in tallies)
    columns = ["kind", "traces", "tokens", "tok/step", "accepted", "ratio", *(["measured"] if measured else [])]
    columns += ["closed", "drafting"]
    made = table(*columns, right=tuple(range(1, len(columns))))
    for tally in tallies:
        if tally.name == "all":
            made.add_section()
        closed = share(tally.closed_steps / tally.steps) if tally.steps else "-"
        row = [
            tally.name,
            str(tally.n),
            count(tally.tokens),
            f"{tally.tokens_per_step:.2f}",
            share(tally.acceptance) if tally.drafted else "-",
            f"{tally.speedup:.2f}x",
        ]
        if measured:
            row.append("-" if tally.measured is None else f"{tally.measured:.2f}x")
        made.add_row(*row, closed, f"{tally.ns_per_token:.0f} ns")
    show(f"costs: {source}")
    show(made)
    whole = tallies[-1]
    for name, (drafts, drafted, accepted) in whole.sources.items():
        if drafted:
            part = share(accepted / drafted)
            show(f"{name}: {accepted} of {drafted} drafted tokens accepted ({part}), {drafts} drafts")
    show(f"drafting took {seconds(whole.elapsed_ns)} for {count(whole.tokens)} tokens, model and verification left out")
