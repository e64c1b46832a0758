#!/usr/bin/env python3
"""Tables of pages, made from records, so that no figure in prose is older than what was measured.

In: records (`benches/records/*.toml`), pages with marked places. Out: the pages with their tables renewed; or with
`--check` an exit code that says whether they were.

A place is what stands between two comments, which stay:

    <!-- records: costs -->
    <!-- end -->

E1  Every figure comes from a record, with its spread where it has one. Rows that lose stay in, and are bold.
E2  What was not measured says so. What a record lacks is a dash.
E3  The same records give the same pages.

    python tools/economics.py [--check] [PAGE…]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benches" / "records"
PAGES = (ROOT / "docs" / "economics.md", ROOT / "README.md")
PLACE = re.compile(r"(?P<head><!-- records: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(?P<foot><!-- end -->)", re.DOTALL)
AGAINST = re.compile(r"(?: --against (?:'[^']*'|\S+))+")
UNMEASURED = "*Not measured yet.*\n"

GOALS: dict[str, dict[str, float]] = {
    "smollm2": {"4": 1.15, "8": 1.5, "16": 2.4},
    "qwen3-0.6b": {"4": 1.10, "8": 1.5, "16": 2.7, "share": 0.92},
}
"""Most that verifying k tokens may cost, and least share of the speed of memory that decoding should use."""

LEAST_SPEEDUP = {"copies": 2.4, "all": 2.0, "free-form": 1.0, "reference-only": 0.98}
"""Of the default model."""
LEAST_SINGLE = 0.97
"""Of each workload."""
LOSES = 0.995
"""A ratio below it is a loss; others round to 1.00 or more."""

Record: TypeAlias = dict[str, Any]
Records: TypeAlias = dict[str, Record]


def read_records(folder: Path) -> Records:
    """Records by name, in the order of their names."""
    return {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}


# -- cells -------------------------------------------------------------------------------------------------------------


def middle(figure: Mapping[str, float] | float) -> float:
    """The figure itself: a ratio of sums, a median, or a number that stands alone."""
    if isinstance(figure, int | float):
        return figure
    return figure["ratio"] if "ratio" in figure else figure["median"]


def spread(figure: Mapping[str, float] | None, digits: int = 2, unit: str = "") -> str:
    """A median with its quartiles, or a ratio of sums with its least and greatest round."""
    if figure is None:
        return "-"
    return f"{middle(figure):.{digits}f}{unit} ({figure['low']:.{digits}f}-{figure['high']:.{digits}f})"


def ratio(figure: Mapping[str, float] | None) -> str:
    """A ratio to plain decoding; bold where it loses."""
    text = spread(figure, unit=" ×")
    return f"**{text}**" if figure is not None and middle(figure) < LOSES else text


def alone(value: float) -> str:
    """A ratio without its spread; bold where it loses."""
    return f"**{value:.2f} ×**" if value < LOSES else f"{value:.2f} ×"


def share(part: float | None) -> str:
    """A share as per cent."""
    return "-" if part is None else f"{100 * part:.0f} %"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table; columns after the first, or after as many as hold words, are flush right."""
    marks = ["---:" if at >= words else "---" for at in range(len(columns))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, marks, *rows))


def named(records: Records, ending: str) -> list[tuple[str, Record]]:
    """Records of a kind: name without the ending, record."""
    return [(name.removesuffix(ending), record) for name, record in records.items() if name.endswith(ending)]


def where(record: Record, name: str) -> str:
    """Where figures come from, below a table."""
    run = record["run"]
    parts = [run.get("machine"), run.get("set"), f"{run['threads']} threads" if "threads" in run else None]
    parts += [f"cache {run['kv_type']}" if "kv_type" in run else None, str(run.get("date", ""))]
    parts += [f"commit {run['commit']}" if "commit" in run else None]
    quiet = record.get("quiet", {})
    if quiet.get("share", 1) < 0.9:
        parts.append(f"**on a busy machine: the threads ran {100 * quiet['share']:.0f} % of the time**")
    facts = ", ".join(str(part) for part in parts if part)
    command = AGAINST.sub(" …", record["command"])
    return f"\n`{command}` ({facts}; [record](RECORDS/{name}.toml))\n"


# -- tables ------------------------------------------------------------------------------------------------------------


def costs(records: Records) -> str:
    """Cost of verification by length of the draft."""
    parts = []
    for name, record in named(records, "-verify"):
        ks = [point["k"] for point in record["contexts"][0]["drafts"]]
        rows = []
        for context in record["contexts"]:
            medians = [f"{point['cost']['median']:.2f}" for point in context["drafts"]]
            width = max(point["cost"]["high"] - point["cost"]["low"] for point in context["drafts"])
            plain = f"{context['plain_ns']['median'] / 1e6:.1f} ms"
            rows.append([str(context["n_cached"]), plain, *medians, f"{width:.2f}"])
        even = [(record["costs"][str(k)] - 1) / k for k in ks]
        rows.append(["pays from", "", *(f"{100 * share:.0f} %" for share in even), ""])
        columns = ["cached tokens", "plain step", *(f"k = {k}" for k in ks), "widest spread"]
        parts.append(f"**{name}**\n\n{table(columns, rows)}{where(record, f'{name}-verify')}")
    return "\n".join(parts)


def four(records: Records) -> str:
    """Cost of verifying four drafted tokens, by model and context; each with its cached tokens, as those differ."""
    rows = []
    for name, record in named(records, "-verify"):
        costs = [
            (context["n_cached"], point["cost"])
            for context in record["contexts"]
            for point in context["drafts"]
            if point["k"] == 4
        ]
        rows.append([name, *(f"{spread(cost)}, {n} cached" for n, cost in costs)])
    width = max((len(row) for row in rows), default=1)
    columns = ["model", "few cached tokens", *([""] * (width - 3)), "many"][:width]
    return table(columns, [row + ["-"] * (width - len(row)) for row in rows]) if rows else ""


def speed(records: Records) -> str:
    """Plain speed and memory."""
    parts = []
    for name, record in named(records, "-speed"):
        rows = [
            [f"prompt of {rate['n']} tokens", spread(rate["tokens_per_second"], 0, " tok/s")]
            for rate in record["prefill"]
        ]
        rows += [
            [f"decoding, {rate['n']} tokens cached", spread(rate["tokens_per_second"], 1, " tok/s")]
            for rate in record["decode"]
        ]
        rows.append(["weights read a step", f"{record['bytes_per_step'] / 1e6:.0f} MB"])
        rows.append(["memory read", f"{record['bandwidth_best'] / 1e9:.1f} GB/s at best"])
        rows.append(["of which decoding uses", share(record["bandwidth_share"])])
        rows.append(["loading", f"{record['load_ns'] / 1e6:.0f} ms"])
        rows.append(["weights in memory", f"{record['weight_bytes'] / 1e6:.0f} MB"])
        parts.append(f"{table([name, 'figure'], rows)}{where(record, f'{name}-speed')}")
    return "\n".join(parts)


def workloads(records: Records) -> str:
    """Speedup by kind."""
    parts = []
    for name, record in named(records, "-workloads"):
        same = sum(one["identical"] for one in record["workloads"])
        head = f"**{name}**, {same} of {len(record['workloads'])} workloads identical, {record['rounds']} rounds\n\n"
        kinds, subsets = _groups("kind", record["groups"]), _groups("subset", record["subsets"])
        parts.append(f"{head}{kinds}\n{subsets}\n{how(record)}\n{where(record, f'{name}-workloads')}")
    return "\n".join(parts)


def how(record: Record) -> str:
    """What the ratios of a record of workloads are, in a sentence."""
    if "ratio" in record["groups"][0]["speedup"]:
        return "Ratios are of summed times, with the least and the greatest round."
    return "Ratios are those of the median round, with quartiles; speeds are medians of their own."


def _groups(first: str, groups: Iterable[Mapping[str, Any]]) -> str:
    columns = [first, "n", "plain tok/s", "speculative", "ratio", "worst", "with the prompts", "tokens a step"]
    return table([*columns, "accepted", "gate closed"], map(_group, groups))


def _group(group: Mapping[str, Any]) -> list[str]:
    return [
        f"**{group['name']}**" if group["name"] == "all" else group["name"],
        str(group["n"]),
        f"{middle(group['plain_rate']):.0f}",
        f"{middle(group['speculative_rate']):.0f}",
        ratio(group["speedup"]),
        alone(group["worst"]),
        ratio(group["total_speedup"]),
        f"{group['tokens_per_step']:.2f}",
        share(group["acceptance"]) if group["drafted"] else "-",
        str(group["trips"]),
    ]


def _spoken(records: Records) -> list[tuple[str, Record, Record | None]]:
    """Records of workloads: the model, what was measured greedily, what was measured sampled."""
    found = named(records, "-workloads")
    return [(name, record, records.get(f"{name}.sampled-workloads")) for name, record in found if "." not in name]


def _whole(record: Record) -> Record:
    return next(group for group in record["groups"] if group["name"] == "all")


def headline(records: Records) -> str:
    """What the records say of a whole job, greedy and sampled, losses too: for a README."""
    lines = []
    for name, greedy, sampled in _spoken(records):
        kinds = len(greedy["groups"]) - 1
        lines.append(f"{name}, {len(greedy['workloads'])} workloads of {kinds} kinds, plain decoding = 1:\n")
        rows = []
        for what, record in (("greedy", greedy), ("sampled", sampled)):
            if record is not None:
                whole = _whole(record)
                prose = [group["speedup"] for group in record["groups"] if group["name"] == "free-form"]
                if what == "sampled":
                    what = f"sampled, temperature {record['temperature']:g}"  # noqa: PLW2901
                cells = [ratio(whole["speedup"]), ratio(whole["total_speedup"]), ratio(prose[0]) if prose else "-"]
                rows.append([what, *cells, f"{alone(whole['worst'])} ({whole['worst_id']})"])
        columns = ["", "decoding", "with the prompts", "prose, decoding", "worst workload, decoding"]
        lines.append(table(columns, rows))
    return "\n".join(lines)


def summary(records: Records) -> str:
    """Speedup by kind in a few columns: for a README."""
    parts = []
    for name, greedy, sampled in _spoken(records):
        others = {group["name"]: group for group in sampled["groups"]} if sampled is not None else {}
        rows = []
        for group in greedy["groups"]:
            shown = f"**{group['name']}**" if group["name"] == "all" else group["name"]
            accepted = share(group["acceptance"]) if group["drafted"] else "-"
            other = others.get(group["name"], {})
            cells = [ratio(group["speedup"]), ratio(group["total_speedup"]), ratio(other.get("speedup"))]
            rows.append([shown, *cells, f"{group['tokens_per_step']:.2f}", accepted])
        columns = [name, "greedy, decoding", "with the prompts", "sampled, decoding", "tokens a step", "accepted"]
        runs = [(greedy, f"{name}-workloads")]
        if sampled is not None:
            runs.append((sampled, f"{name}.sampled-workloads"))
        ones = [one for record, _ in runs for one in record["workloads"]]
        same = sum(one["identical"] for one in ones)
        foot = f"\n{same} of {len(ones)} answers identical to plain decoding, token for token.\n"
        parts.append(table(columns, rows) + foot + "".join(where(record, of) for record, of in runs))
    return "\n".join(parts)


def shipped(records: Records) -> str:
    """How far the best other setting is ahead of the shipped one: for a README."""
    found = []
    for name, record in named(records, "-replay"):
        ways = record.get("ways", ())
        own = [way["speedup"] for way in ways if not way["options"]]
        if own:
            best = max(ways, key=lambda way: way["speedup"])
            ahead = 100 * (best["speedup"] / own[0] - 1)
            told = f"{ahead:.1f} % ahead with {' '.join(best['options'])}" if best["options"] else "none is ahead"
            found.append(f"{name}: {told}")
    counts = {len(record["ways"]) - 1 for _, record in named(records, "-replay") if record.get("ways")}
    tried = "-".join(str(count) for count in sorted(counts))
    return f"Best of {tried} other settings in replays: {'; '.join(found)}.\n" if found else ""


def single(records: Records) -> str:
    """Speedup of every workload."""
    parts = []
    for name, record in named(records, "-workloads"):
        rows = [
            [
                one["id"],
                one["kind"],
                ratio(one["speedup"]) if one["identical"] else "**other tokens**",
                *(
                    [f"{one['tokens_per_step']:.2f}", share(one["acceptance"]), str(one["tokens"]), str(one["trips"])]
                    if one["identical"]
                    else ["-"] * 4
                ),
            ]
            for one in record["workloads"]
        ]
        columns = [name, "kind", "ratio", "tokens a step", "accepted", "tokens", "trips"]
        parts.append(table(columns, rows, 2))
    return "\n".join(parts)


def sources(records: Records) -> str:
    """What each source of drafts brought."""
    rows = []
    for name, record in named(records, "-workloads"):
        for group in record["groups"]:
            for source, counts in group["sources"].items():
                if counts["drafted"]:
                    part = counts["accepted"] / counts["drafted"]
                    words = [str(counts["drafts"]), str(counts["drafted"]), str(counts["accepted"]), share(part)]
                    rows.append([f"{name}, {group['name']}", source, *words])
    return table(["kind", "source", "drafts", "drafted", "accepted", "share"], rows, 2) if rows else ""


def replay(records: Records) -> str:
    """What replay foretells, beside what was measured."""
    parts = []
    for name, record in named(records, "-replay"):
        measured = any("measured" in group for group in record["groups"])
        columns = [name, "traces", "tokens", "tokens a step", "accepted", "foretold"]
        columns += ["measured", "off by"] if measured else []
        columns += ["drafting a token"]
        rows = []
        for group in record["groups"]:
            row = [group["name"], str(group["traces"]), f"{group['tokens']:,}", f"{group['tokens_per_step']:.2f}"]
            row += [share(group["acceptance"]) if group["drafted"] else "-", f"{group['speedup']:.2f} ×"]
            if measured:
                found = group.get("measured")
                off = "-" if found is None else f"{100 * (group['speedup'] / found - 1):+.0f} %"
                row += ["-" if found is None else f"{found:.2f} ×", off]
            rows.append([*row, f"{group['ns_per_token']:.0f} ns"])
        parts.append(f"{table(columns, rows)}{where(record, f'{name}-replay')}")
    return "\n".join(parts)


def policies(records: Records) -> str:
    """Ways to choose drafts, replayed on the same tokens with the same costs."""
    parts = []
    for name, record in named(records, "-replay"):
        rows = []
        for way in record.get("ways", ()):
            options = " ".join(way["options"]) or "as shipped"
            kinds = [f"{kind} {found:.2f}" for kind, found in way["kinds"].items()]
            words = [f"{way['tokens_per_step']:.2f}", share(way["acceptance"]), f"{way['speedup']:.3f} ×"]
            rows.append([options, *words, ", ".join(kinds) if len(kinds) <= 10 else "-"])
        rows.sort(key=lambda row: -float(row[3].split()[0]))
        if rows:
            head = f"**{name}**, {record['ways'][0]['tokens']:,} tokens\n\n"
            columns = ["options", "tokens a step", "accepted", "foretold", "by kind"]
            parts.append(head + table(columns, rows))
    return "\n".join(parts)


def goals(records: Records) -> str:
    """Figures that have a goal."""
    rows = []
    for name, goal in GOALS.items():
        for context in records.get(f"{name}-verify", {}).get("contexts", [])[:1]:
            for point in context["drafts"]:
                if (most := goal.get(str(point["k"]))) is not None:
                    what = f"verifying {point['k']} drafted tokens, {context['n_cached']} cached"
                    rows.append(
                        _goal({"what": what, "figure": point["cost"], "unit": "plain steps", "most": most}, name)
                    )
        if (speed := records.get(f"{name}-speed")) and "share" in goal:
            one = {"what": "speed of memory that decoding uses", "unit": "%", "least": 100 * goal["share"], "digits": 0}
            rows.append(_goal({**one, "figure": _exact(100 * speed["bandwidth_share"])}, name))
    if spoken := records.get("smollm2-workloads"):
        for group in (*spoken["groups"], *spoken["subsets"]):
            if (least := LEAST_SPEEDUP.get(group["name"])) is not None:
                one = {"what": f"speedup, {group['name']}", "figure": group["speedup"], "unit": "×", "least": least}
                rows.append(_goal(one, "smollm2"))
            if group["name"] == "all":
                one = {"what": f"least speedup of a workload, {group['worst_id']}", "unit": "×", "least": LEAST_SINGLE}
                rows.append(_goal({**one, "figure": _exact(group["worst"])}, "smollm2"))
    for name, record in named(records, "-workloads"):
        for group in record["groups"]:
            if group["name"] == "all":
                work = {key: group["draft_ns_per_token"][key] / 1e3 for key in ("median", "low", "high")}
                what = "asking and telling the sources, for a committed token"
                rows.append(_goal({"what": what, "figure": work, "unit": "µs", "most": 5.0}, name))
    for name, record in named(records, "-replay"):
        for group in record["groups"]:
            if group["name"] == "all" and "measured" in group:
                off = _exact(100 * abs(group["speedup"] / group["measured"] - 1))
                what = "replay's speedup, away from the measured one"
                rows.append(_goal({"what": what, "figure": off, "unit": "%", "most": 10.0, "digits": 1}, name))
    for name, record in (*named(records, "-goals"), *named(records, "-constraints")):
        rows += [_goal(one, name) for one in record["measured"]]
    return table(["what", "of", "figure", "goal", ""], rows, 2) if rows else ""


def _exact(value: float) -> dict[str, float]:
    """A figure without a spread."""
    return {"median": value, "low": value, "high": value}


def _goal(one: Mapping[str, Any], name: str) -> list[str]:
    figure, unit = one["figure"], one["unit"]
    digits = one.get("digits", 2)
    found = middle(figure)
    goal, met = "-", ""
    if "most" in one:
        goal, met = f"≤ {one['most']:g} {unit}", "met" if found <= one["most"] else "**missed**"
    if "least" in one:
        goal, met = f"≥ {one['least']:g} {unit}", "met" if found >= one["least"] else "**missed**"
    exact = figure["low"] == figure["high"]
    text = f"{found:.{digits}f} {unit}" if exact else f"{spread(figure, digits)} {unit}"
    return [one["what"], name, text, goal, met]


def peers(records: Records) -> str:
    """Other engines on the same machine and file, then drafting without a draft model in each."""
    measured = [row for name, record in records.items() if name.endswith("peers") for row in record.get("rows", ())]
    rows = [_peer(row) for row in measured]
    for name, record, _ in _spoken(records):
        groups = {group["name"]: group for group in record["groups"]}
        own = {"engine": "quoth", "model": name, "speculation": "on"}
        own |= {"speedup": groups["all"]["speedup"], "total_speedup": groups["all"]["total_speedup"]}
        own |= {"prose": groups.get("free-form", {}).get("speedup")}
        same = sum(one["identical"] for one in record["workloads"])
        rows.append(_peer(own | {"answers": {"same": same, "of": len(record["workloads"])}}))
    if not measured:
        return ""
    columns = ["engine", "model", "speculation", "decode tok/s", "prompt tok/s", "cost of 4 / 8 / 16"]
    columns += ["all kinds", "with the prompts", "prose", "same answers"]
    told = any("speculation" in row for row in measured)
    missing = "\nThe other engines' own speculation is *not measured yet* (`python tools/measure_peers.py`).\n"
    return table(columns, rows, 3) + ("" if told else missing)


def _peer(row: Mapping[str, Any]) -> list[str]:
    cost, answers = row.get("verify_cost", {}), row.get("answers")
    return [
        row["engine"],
        row["model"],
        row.get("speculation", "off"),
        spread(row.get("decode"), 0),
        spread(row.get("prefill"), 0),
        " / ".join(f"{cost[k]:.2f}" for k in ("4", "8", "16") if k in cost) or "-",
        ratio(row.get("speedup")),
        ratio(row.get("total_speedup")),
        ratio(row.get("prose")),
        "-" if answers is None else f"{answers['same']} of {answers['of']}",
    ]


def together(records: Records) -> str:
    """Tokens a second of many sequences, beside the peer's."""
    parts = []
    for name, record in named(records, "-throughput"):
        rows = []
        for row in record["decode"]:
            cells = [str(row["sequences"])]
            for part in ("", "whole_"):
                figures = [row.get(f"{part}tokens_per_second"), row.get(f"peer_{part}tokens_per_second")]
                cells += [*(spread(one, 0) for one in figures), spread(row.get(f"{part}ratio"))]
            rows.append(cells)
        columns = ["sequences", "decoding, tokens/s", "llama.cpp", "ratio"]
        columns += ["prompts and answers, tokens/s", "llama.cpp", "ratio"]
        parts.append(f"**{name}**\n\n{table(columns, rows, 0)}{where(record, f'{name}-throughput')}")
    return "\n".join(parts)


def company(records: Records) -> str:
    """Drafting against plain decoding in the same batch."""
    parts = []
    for name, record in named(records, "-company"):
        sampled = {row["kind"]: row for row in record["drafts_sampled"]}
        pairs = [(row, sampled[row["kind"]]) for row in record["drafts_greedy"]]
        rows = [
            [a["kind"], *(ratio(one[part]) for one in (a, b) for part in ("decoding", "speedup"))] for a, b in pairs
        ]
        columns = [name, "greedy, decoding", "with the prompts", "sampled, decoding", "with the prompts"]
        parts.append(f"{table(columns, rows)}{where(record, f'{name}-company')}")
    return "\n".join(parts)


def builds(records: Records) -> str:
    """What one sequence costs, beside the build before many sequences."""
    rows = [
        [name, *(spread(record[way], 3) for way in ("plain", "drafts"))] for name, record in named(records, "-builds")
    ]
    return table(["time of decoding, that of the build before = 1", "plain", "with drafts"], rows) if rows else ""


def waiting(records: Records) -> str:
    """How long requests wait that come at random moments."""
    parts = []
    for name, record in named(records, "-arrivals"):
        rows = []
        for row in record["arrivals"]:
            waits = [row[part][q] for part in ("first_token_ms", "between_chunks_ms") for q in ("p50", "p95", "p99")]
            rows.append(["drafting" if row["drafting"] else "plain", *(f"{ms:.1f}" for ms in waits)])
        if rows:
            gap = record["arrivals"][0]["mean_gap_ms"]
            columns = [name, *(f"first token, {q}" for q in ("p50", "p95", "p99"))]
            columns += [f"between chunks, {q}" for q in ("p50", "p95", "p99")]
            parts.append(f"{table(columns, rows)}\nMilliseconds; a request every {gap:.0f} ms in the mean.\n")
    return "\n".join(parts)


def provenance(records: Records) -> str:
    """Where the records come from."""
    rows = []
    for name, record in records.items():
        run = record.get("run", {})
        command = f"`{AGAINST.sub(' …', record['command'])}`" if "command" in record else "-"
        facts = [run.get("machine", "-"), str(run.get("date", "-")), str(run.get("commit", "-"))]
        rows.append([f"[{name}](RECORDS/{name}.toml)", command, *facts])
    return table(["record", "command", "machine", "date", "commit"], rows, 5) if rows else ""


TABLES: dict[str, Callable[[Records], str]] = {
    "costs": costs,
    "four": four,
    "speed": speed,
    "workloads": workloads,
    "headline": headline,
    "summary": summary,
    "shipped": shipped,
    "single": single,
    "sources": sources,
    "replay": replay,
    "policies": policies,
    "goals": goals,
    "peers": peers,
    "together": together,
    "company": company,
    "builds": builds,
    "waiting": waiting,
    "provenance": provenance,
}


def renewed(page: str, records: Records, to_records: str) -> str:
    """A page with its tables renewed.

    Args:
        page: Its text.
        records: The records.
        to_records: The folder of the records as the page links to it.

    Raises:
        ValueError: A place has an unknown name.
    """

    def fill(place: re.Match[str]) -> str:
        name = place["name"]
        if name not in TABLES:
            raise ValueError(f"there is no table `{name}`, expected one of {', '.join(TABLES)}")
        body = TABLES[name](records) or UNMEASURED
        return f"{place['head']}{body.replace('RECORDS/', f'{to_records}/')}{place['foot']}"

    return PLACE.sub(fill, page)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Renew the tables of pages from records.")
    parser.add_argument("pages", nargs="*", type=Path, help="pages (docs/economics.md and README.md)")
    parser.add_argument("--records", type=Path, default=RECORDS, help="the folder of the records")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something would change")
    args = parser.parse_args(argv)
    try:
        records = read_records(args.records)
        stale = 0
        for page in args.pages or PAGES:
            to_records = _relative(args.records.resolve(), page.resolve().parent)
            old = page.read_text(encoding="utf-8")
            new = renewed(old, records, to_records)
            if new != old:
                stale += 1
                print(f"{page}: {'stale' if args.check else 'renewed'}", file=sys.stderr)
                if not args.check:
                    page.write_text(new, encoding="utf-8")
    except (OSError, ValueError, KeyError) as error:
        print(f"economics: {error!r}", file=sys.stderr)
        return 1
    return 1 if args.check and stale else 0


def _relative(path: Path, start: Path) -> str:
    """The way from a folder to a path, as links have it."""
    common = 0
    while common < min(len(path.parts), len(start.parts)) and path.parts[common] == start.parts[common]:
        common += 1
    return "/".join([".."] * (len(start.parts) - common) + list(path.parts[common:]))


if __name__ == "__main__":
    sys.exit(main())
