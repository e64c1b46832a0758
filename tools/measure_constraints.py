#!/usr/bin/env python3
"""Extraction to JSON: what a schema costs, and what it gains as a drafter.

In: a model with a chat template. Out: a record.

Four texts are turned into JSON of four schemas, in three ways: plainly without a constraint, plainly with the schema,
and with the schema and speculation, the text as a reference.

M1  The three ways run in turn, in an order that turns round, in one process; the two with the schema must give the
    same tokens, and JSON.
M2  A way's figure is the time of decoding a token, the prompt left out. Without a constraint as many tokens are decoded
    as with it, from the same prompt, so contexts are as long.
M3  The quotient is of times summed over the texts, one a round.

    python tools/measure_constraints.py smollm2 [--rounds N] [--record FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import quoth
from quoth.bench.paired import Spread
from quoth.bench.quiet import watch
from quoth.bench.record import command_line, run_facts, write_record

WAYS = ("unconstrained plain", "constrained plain", "constrained speculative")
MOST_TOKENS = 400


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _list(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


TEXT = {"type": "string", "maxLength": 60}
COUNT = {"type": "integer", "minimum": 0, "maximum": 10_000_000}


@dataclass(frozen=True)
class Task:
    """A text, and what is to be found in it."""

    what: str
    text: str
    schema: dict[str, Any]


TASKS = (
    Task(
        "people",
        "Maria Lopez, 34, lives in Madrid. She works as an architect and speaks Spanish, English and French. Her "
        "colleague Jan Novak, 41, from Prague, is an engineer; he speaks Czech and German.",
        _object(people=_list(_object(name=TEXT, age=COUNT, city=TEXT, profession=TEXT, languages=_list(TEXT, 4)), 3)),
    ),
    Task(
        "orders",
        "Order 4711 was placed on 2024-03-05 by Green Garden Ltd. It has two positions: 12 spades at 19.90 each, and 3 "
        "wheelbarrows at 89.50 each. It is to be delivered to 14 Mill Lane, Norwich, and is not paid yet.",
        _object(
            order=COUNT,
            date={"type": "string", "format": "date"},
            customer=TEXT,
            positions=_list(_object(article=TEXT, quantity=COUNT, price={"type": "number", "minimum": 0}), 4),
            address=_object(street=TEXT, city=TEXT),
            paid={"type": "boolean"},
        ),
    ),
    Task(
        "bugs",
        "The import dialog crashes when a file name has an umlaut. This happens in version 2.3.1 on Windows and macOS, "
        "not on Linux. Steps: open the dialog, choose a file, press import. It is urgent, and Tom Baker looks into it.",
        _object(
            title=TEXT,
            component=TEXT,
            version=TEXT,
            systems=_list({"enum": ["Windows", "macOS", "Linux"]}, 3),
            steps=_list(TEXT, 4),
            severity={"enum": ["low", "medium", "high", "urgent"]},
            assignee=TEXT,
        ),
    ),
    Task(
        "towns",
        "Three towns lie on the river. Ashford has 12,400 people and was founded in 1212. Kelby, founded in 1874, has "
        "31,050. Port Merrow, the oldest, was founded in 1066 and has 8,900 people.",
        _object(river_towns=_list(_object(name=TEXT, people=COUNT, founded=COUNT), 4)),
    ),
)


@dataclass(frozen=True)
class Run:
    """A text, done in one way."""

    tokens: tuple[int, ...]
    text: str
    ns_per_token: float
    stats: quoth.Stats


def prompt(model: quoth.Model, task: Task) -> list[int]:
    """The question, as the model's chat template has it."""
    names = ", ".join(task.schema["properties"])
    asked = f"Extract {names} from this text as JSON.\n\n{task.text}"
    return model.tokenizer.apply_chat_template([{"role": "user", "content": asked}])


def run(model: quoth.Model, task: Task, way: str, tokens: int) -> Run:
    """Do a text in one way. `tokens`: how many, where nothing else ends it."""
    decoder = model.decoder(sampling=quoth.Sampling(), speculation=True if way == WAYS[2] else None)
    if way == WAYS[2]:
        decoder.add_reference(task.text)
    constraint = None if way == WAYS[0] else quoth.json_schema(task.schema)
    result = decoder.generate(
        prompt(model, task), constraint=constraint, max_tokens=tokens, stop_at_eog=constraint is not None
    )
    stats = result.stats
    return Run(result.tokens, result.text, stats.decode_ns / max(stats.committed - 1, 1), stats)


def measure(model: quoth.Model, tasks: Sequence[Task], rounds: int) -> list[dict[str, Any]]:
    """All ways in turn; the figures.

    Raises:
        SystemExit: Speculation gave other tokens, or an answer does not end.
        ValueError: An answer is no JSON.
    """
    expected = {task.what: run(model, task, WAYS[1], MOST_TOKENS) for task in tasks}  # warms up, compiles
    for what, one in expected.items():
        if one.stats.committed == MOST_TOKENS:
            raise SystemExit(f"measure_constraints: the answer for {what} does not end")
        json.loads(one.text)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    last: dict[tuple[str, str], Run] = {}
    for number in range(rounds):
        sums = dict.fromkeys(WAYS, 0.0)
        for at, task in enumerate(tasks):
            turn = (number + at) % len(WAYS)
            for way in (*WAYS[turn:], *WAYS[:turn]):
                length = len(expected[task.what].tokens)
                found = run(model, task, way, length if way == WAYS[0] else MOST_TOKENS)
                if way != WAYS[0] and found.tokens != expected[task.what].tokens:
                    raise SystemExit(f"measure_constraints: {way} gave other tokens for {task.what}")
                sums[way] += found.ns_per_token * length
                last[way, task.what] = found
        for way in WAYS:
            times[way].append(sums[way])
    plain, held, guessed = (times[way] for way in WAYS)
    committed = sum(len(one.tokens) for one in expected.values())
    spoken = [last[WAYS[2], task.what].stats for task in tasks]
    forced = sum(stats.forced for stats in spoken)
    masks = [stats.mask_ns / max(stats.committed, 1) for stats in spoken]
    return [
        *(_figure(f"decoding, {way}", [committed / ns * 1e9 for ns in times[way]], "tok/s") for way in WAYS),
        _figure(
            "speed with the schema and speculation, unconstrained plain = 1",
            [a / b for a, b in zip(plain, guessed, strict=True)],
            "×",
            least=2.5,
        ),
        _figure(
            "time of plain decoding with the schema, without = 1",
            [b / a for a, b in zip(plain, held, strict=True)],
            "×",
            most=1.03,
        ),
        _figure("tokens that the schemas forced", [100 * forced / committed], "%"),
        _figure(
            "tokens a step, with the schema and speculation",
            [sum(stats.committed for stats in spoken) / sum(stats.steps + 1 for stats in spoken)],
            "tokens",
        ),
        _figure("computing masks, for a committed token", [sum(masks) / len(masks) / 1e3], "µs"),
    ]


def _figure(what: str, values: Sequence[float], unit: str, **goal: float) -> dict[str, Any]:
    found = Spread.of(values)
    middle = {"median": found.median, "low": found.low, "high": found.high, "n": found.n}
    return {
        "part": "constraints",
        "what": what,
        "figure": middle,
        "unit": unit,
        "digits": 3 if unit == "×" else 2,
        **goal,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description="Measure extraction to JSON with schemas.")
    parser.add_argument("model", help="a GGUF file or a model's name, with a chat template")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each way (7)")
    parser.add_argument("--threads", type=int, help="threads of a forward")
    parser.add_argument("--quick", action="store_true", help="one text alone, to see that it works")
    parser.add_argument("--record", type=Path, help="write a record")
    parser.add_argument("--fact", action="append", default=[], help="NAME=TEXT for the record")
    args = parser.parse_args(arguments)
    try:
        with quoth.Model(args.model, n_ctx=2048, threads=args.threads) as model:
            facts = run_facts(model, dict(entry.split("=", 1) for entry in args.fact))
            with watch(model.threads) as quiet:
                measured = measure(model, TASKS[:1] if args.quick else TASKS, args.rounds)
    except (quoth.QuothError, OSError) as error:
        print(f"measure_constraints: {error}", file=sys.stderr)
        return 1
    for one in measured:
        found = one["figure"]
        goals = [f", goal {sign} {one[name]:g}" for name, sign in (("most", "<="), ("least", ">=")) if name in one]
        middle, low, high = (f"{found[name]:.{one['digits']}f}" for name in ("median", "low", "high"))
        print(f"{one['what']}: {middle} ({low} - {high}) {one['unit']}{''.join(goals)}")
    if args.record:
        command = "python tools/" + command_line(arguments, "measure_constraints.py")
        figures = {"rounds": args.rounds, "measured": measured, "share_of_cores": {"constraints": quiet.share}}
        write_record(args.record, "Extraction to JSON with schemas", command, facts, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
