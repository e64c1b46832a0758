"""`quoth bench replay TRACE…`: what drafting would bring on recorded tokens, without a model.

In: traces or texts, a table of costs, options of drafting. Out: tokens a step, acceptance, the speedup that the table
foretells.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoth.cli._bench import facts, keep_record
from quoth.cli._console import bar, show, table
from quoth.cli._load import find, load
from quoth.cli._options import AsJson, Facts, PlotTo, RecordTo
from quoth.cli._units import as_json, count, seconds, share
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from quoth.bench.replay import Tally
    from quoth.bench.traces import Trace
    from quoth.options import Speculation

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
            help="A field of quoth.Speculation or quoth.Gate, as in max_draft=8, policy=fixed, min_match=2, "
            "window=32. Repeatable.",
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="How long drafts are: best-rate or fixed.")
    ] = None,
    max_draft: Annotated[int | None, typer.Option("--max-draft", metavar="N", help="Longest draft.")] = None,
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
    from quoth.bench.replay import SOURCES, Replayed, replay_trace, replay_traces

    if plot is not None:
        from quoth.bench.plot import check_plot

        check_plot(plot)
    more = facts(fact)
    asked = [name.strip() for name in sources.split(",") if name.strip()]
    if unknown := [name for name in asked if name not in SOURCES]:
        raise OptionsError(f"--sources has {unknown[0]!r}, expected some of {', '.join(SOURCES)}")
    given = list(options or ())
    given += [] if policy is None else [f"policy={policy}"]
    given += [] if max_draft is None else [f"max_draft={max_draft}"]
    speculation = _speculation(given)
    found, known_ns, source = _costs(costs)
    plain_ns = round(1e6 * plain_ms) if plain_ms is not None else known_ns or 10_000_000
    one = partial(
        replay_trace,
        speculation=speculation,
        costs=found,
        plain_ns=plain_ns,
        without=set(SOURCES) - set(asked),
    )
    tokens = 0
    with bar("tokens") as update:

        def progress(trace: Replayed) -> None:
            nonlocal tokens
            tokens += trace.tokens
            update(tokens, most)

        every, tallies = replay_traces(_traces(paths, tokenizer, join, most), one, progress)
    if not every:
        raise OptionsError(f"there is no token in {', '.join(f'`{path}`' for path in paths)}")
    figures: dict[str, Any] = {
        "costs": source,
        "plain_ns": plain_ns,
        "sources": asked,
        "options": given,
        "groups": [tally.data() for tally in tallies],
    }
    run = run_facts(None, more)
    if json_:
        single = [
            {
                "id": r.id,
                "kind": r.kind,
                "tokens": r.tokens,
                "steps": r.steps,
                "speedup": r.speedup,
                "measured": r.measured,
            }
            for r in every
        ]
        print(json.dumps(as_json({"what": WHAT, "run": run, **figures, "traces": single}), ensure_ascii=False))
    else:
        _print(tallies, source)
    keep_record(record, context, WHAT, run, figures)
    if plot is not None:
        from quoth.bench.plot import plot_acceptance

        plot_acceptance(plot, tallies[-1].data()["by_match"], title=f"{count(tallies[-1].tokens)} tokens")


def _traces(paths: Sequence[Path], tokenizer: str | None, join: bool, most: int | None) -> Iterator[Trace]:
    """All traces, read as they are needed."""
    from quoth.bench.traces import read_traces, text_traces

    reader = None
    left = most
    for path in paths:
        if path.is_file() and path.suffix == ".jsonl":
            yield from read_traces(path)
            continue
        if not path.exists():
            raise FileNotFoundError(2, "no such file or folder", str(path))
        if tokenizer is None:
            raise OptionsError(f"`{path}` is no JSONL file; to read it as text, name a model's vocabulary: --tokenizer")
        if reader is None:
            from quoth import _core
            from quoth.model import Metadata
            from quoth.tokenizer import Tokenizer

            reader = Tokenizer.from_metadata(Metadata(_core.GgufFile(find(tokenizer))))
        for trace in text_traces(path, reader, join=join, most=left):
            yield trace
            if left is not None:
                left -= trace.tokens
        if left is not None and left <= 0:
            return


def _costs(name: str) -> tuple[Mapping[int, float] | None, int | None, str]:
    """A table, its plain step in ns, and where it comes from."""
    if name == "shipped":
        return None, None, "shipped"
    path = Path(name)
    if path.suffix in (".json", ".toml"):
        data = _read_table(path)
        try:
            table = {int(k): float(cost) for k, cost in data["costs"].items()}
            contexts = data.get("contexts") or [{}]
            plain = contexts[0].get("plain_ns", {}).get("median")
        except (KeyError, ValueError, TypeError, AttributeError):
            raise OptionsError(f"`{path}` has no table of costs, expected `costs`: cost by drafted tokens") from None
        return table, None if plain is None else round(plain), path.name
    from quoth.costs import measured_costs

    loaded = load(name)
    measured = measured_costs(loaded)
    if measured is None:
        raise OptionsError(f"the costs of {name} were never measured here: quoth bench verify {name}")
    return measured[0], None, measured[1]


def _read_table(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".json":
            return json.loads(text)
        import importlib

        return importlib.import_module("tomllib").loads(text)
    except ModuleNotFoundError:
        raise OptionsError(f"`{path}` needs Python 3.11 to be read, expected JSON") from None
    except ValueError as error:
        raise OptionsError(f"`{path}` is damaged: {error}") from None


def _speculation(given: Sequence[str]) -> Speculation:
    """Options by name.

    Raises:
        OptionsError: A name is unknown, or a value makes no sense.
    """
    from quoth.options import Gate, Speculation

    fields = {
        cls: {field.name: field for field in dataclasses.fields(cls) if field.name not in ("gate", "source", "costs")}
        for cls in (Speculation, Gate)
    }
    values: dict[type[Any], dict[str, Any]] = {Speculation: {}, Gate: {}}
    for entry in given:
        name, _, text = entry.partition("=")
        cls = next((cls for cls, known in fields.items() if name in known), None)
        if cls is None:
            every = ", ".join(name for known in fields.values() for name in known)
            raise OptionsError(f"there is no option {name!r}, expected one of {every}")
        values[cls][name] = _value(text)
    return Speculation(gate=Gate(**values[Gate]), **values[Speculation])


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower().replace("none", "null"))
    except ValueError:
        return text


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
