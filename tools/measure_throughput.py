#!/usr/bin/env python3
"""Many sequences at once: tokens a second by their number, with and without drafts, and how long requests wait.

In: a model; for the peer, its batched bench; for drafts, workloads. Out: a record.

| part | measures |
| --- | --- |
| `decode` | tokens a second of 1 to 32 sequences that decode together; beside it llama.cpp on the same file |
| `drafts` | workloads of one kind in groups of 4, drafting against plain, both in the same kind of engine |
| `arrivals` | requests at random moments: time to the first token and between tokens, drafting and plain |

T1  The sides of a ratio run in turn, in one process but for the peer: of `drafts` step by step, so that a spell of a
    slower machine meets both. Their tokens are compared.
T2  Decoding is timed while all sequences decode: over the steps in which each of them has a token and none ends.
T3  Moments of arrival and lengths are the same for both ways: they are drawn from a seed.

    python tools/measure_throughput.py smollm2 --workloads benches/workloads.jsonl [--peer BENCH] [--record FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import quoth
import quoth._core
from quoth.bench.paired import Ratio, Spread
from quoth.bench.record import command_line, run_facts, write_record
from quoth.bench.workloads import COPIES, Workload, read_workloads
from quoth.costs import expected_costs
from quoth.options import CoreSpeculation
from quoth.request import EngineOptions, Request

COUNTS = (1, 2, 4, 8, 16, 32)
PROMPT, ANSWER = 128, 64
COMPANY = 4
PLAIN = CoreSpeculation(quoth.Speculation())
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass
class Measured:
    """What one generation did, by the clock of its reader."""

    submitted: float
    arrivals: list[float]
    """When each chunk came."""
    counts: list[int]
    """Tokens of each chunk."""
    tokens: tuple[int, ...]


def read(generation: quoth.Generation, submitted: float) -> Measured:
    """Read a generation to its end."""
    arrivals, counts = [], []
    for chunk in generation:
        arrivals.append(time.perf_counter())
        counts.append(len(chunk.tokens))
    return Measured(submitted, arrivals, counts, generation.result().tokens)


def run(
    engine: quoth.Engine, requests: Sequence[dict[str, Any]], delays: Sequence[float] | None = None
) -> list[Measured]:
    """Give requests, all at once or each at its moment, and read each in a thread of its own."""
    found: dict[int, Measured] = {}
    threads = []
    begun = time.perf_counter()
    for number, request in enumerate(requests):
        if delays is not None:
            time.sleep(max(0.0, begun + delays[number] - time.perf_counter()))
        now = time.perf_counter()
        generation = engine.submit(**request)

        def take(number: int = number, generation: quoth.Generation = generation, now: float = now) -> None:
            found[number] = read(generation, now)

        threads.append(threading.Thread(target=take))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(requests))]


def ids(n: int, seed: int, n_vocab: int) -> list[int]:
    """Tokens of a prompt that no other prompt shares."""
    dice = random.Random(seed)
    return [dice.randrange(10, min(n_vocab, 20_000)) for _ in range(n)]


@dataclass
class Rates:
    """Tokens a second of some sequences that begin together."""

    decode: float
    """Of answers, while all decode (T2)."""
    whole: float
    """Of prompts and answers, from the first step to the last."""


def peer_rates(program: Path, model: quoth.Model, count: int) -> Rates:
    """Those of the peer's batched bench, which reads all prompts first."""
    context = count * (PROMPT + ANSWER)
    command = [str(program), "-m", str(model.path), "-c", str(context), "-npp", str(PROMPT), "-ntg", str(ANSWER)]
    command += ["-npl", str(count), "-t", str(model.threads), "--output-format", "jsonl"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    last = [json.loads(line) for line in out.splitlines() if line.startswith("{")][-1]
    return Rates(float(last["speed_tg"]), float(last["speed"]))


def own_rates(model: quoth.Model, count: int) -> Rates:
    """Those of the scheduler's own steps, without readers."""
    scheduler = quoth._core.Scheduler(model._model, model.kv_type, PLAIN, count, None, 0)
    asked: dict[str, Any] = {"max_tokens": ANSWER, "stop_at_eog": False}
    for i in range(count):
        request = Request.of(asked, EngineOptions, quoth.Sampling(), model.n_vocab)
        scheduler.submit(ids(PROMPT, i, model.n_vocab), request, None, None, [], 0)
    tokens, decoding, whole = 0, 0.0, 0.0
    begun_tasks: set[int] = set()
    while not scheduler.is_idle():
        begun = time.perf_counter()
        events = scheduler.step()
        took = time.perf_counter() - begun
        whole += took
        steps = [event.step for event in events if event.step is not None]
        # A step that gave a first token read a prompt, too.
        all_decode = len(begun_tasks) == count
        begun_tasks |= {event.task for event in events}
        if all_decode and len(steps) == count and all(step.finish is None for step in steps):
            tokens += sum(len(step.tokens) for step in steps)
            decoding += took
    return Rates(tokens / decoding, count * (PROMPT + ANSWER) / whole)


def decode(model: quoth.Model, rounds: int, peer: Path | None) -> list[dict[str, Any]]:
    """The part of that name."""
    own: dict[int, list[Rates]] = {count: [] for count in COUNTS}
    peers: dict[int, list[Rates]] = {count: [] for count in COUNTS}
    own_rates(model, 2)
    for round_ in range(rounds):
        for count in COUNTS:
            own[count].append(own_rates(model, count))
            if peer is not None:
                peers[count].append(peer_rates(peer, model, count))
        print(f"decode, round {round_ + 1} of {rounds}", file=sys.stderr)
    rows = []
    for count in COUNTS:
        row: dict[str, Any] = {"sequences": count}
        for prefix, rate in (("", lambda rates: rates.decode), ("whole_", lambda rates: rates.whole)):
            mine, others = [rate(r) for r in own[count]], [rate(r) for r in peers[count]]
            row[f"{prefix}tokens_per_second"] = asdict(Spread.of(mine))
            if peer is not None:
                row[f"peer_{prefix}tokens_per_second"] = asdict(Spread.of(others))
                row[f"{prefix}ratio"] = asdict(Spread.of([a / b for a, b in zip(mine, others, strict=True)]))
        rows.append(row)
    return rows


@dataclass
class Side:
    """One way of answering a group of workloads."""

    scheduler: quoth._core.Scheduler
    waiting: set[int]
    """Tasks without a token yet."""
    answers: dict[int, list[int]]
    whole_ns: int = 0
    decode_ns: int = 0
    """Of the steps in which no prompt is read."""

    @classmethod
    def of(
        cls, model: quoth.Model, group: Sequence[Workload], sampling: quoth.Sampling, core: CoreSpeculation | None
    ) -> Side:
        """The first turns of a group, all at once."""
        scheduler = quoth._core.Scheduler(model._model, model.kv_type, core or PLAIN, COMPANY, None, 0)
        answers: dict[int, list[int]] = {}
        for workload in group:
            messages = [] if workload.system is None else [{"role": "system", "content": workload.system}]
            turn = workload.turns[0]
            messages += [*workload.history, {"role": "user", "content": turn} if isinstance(turn, str) else turn]
            prompt = model.tokenizer.apply_chat_template(messages)
            asked: dict[str, Any] = {"max_tokens": min(workload.max_tokens, 192)}
            request = Request.of(asked, EngineOptions, sampling, model.n_vocab)
            quoted = [model.tokenizer.encode(reference) for reference in workload.references]
            answers[scheduler.submit(prompt, request, core, None, quoted, 0)] = []
        return cls(scheduler, set(answers), answers)

    def step(self) -> None:
        """One step, if there is one to do."""
        if self.scheduler.is_idle():
            return
        decodes = not self.waiting
        begun = time.perf_counter_ns()
        events = self.scheduler.step()
        took = time.perf_counter_ns() - begun
        self.whole_ns += took
        self.decode_ns += took * decodes
        for event in events:
            if event.step is not None and event.step.tokens:
                self.waiting.discard(event.task)
                self.answers[event.task] += event.step.tokens


def drafts(
    model: quoth.Model, rounds: int, workloads: Sequence[Workload], sampling: quoth.Sampling
) -> list[dict[str, Any]]:
    """The part of that name, with one way of choosing tokens."""
    kinds = {kind: [w for w in workloads if w.kind == kind] for kind in dict.fromkeys(w.kind for w in workloads)}
    rows, names = [], ("copies", "all")
    whole = {name: list[tuple[int, int]]() for name in names}
    decoding = {name: list[tuple[int, int]]() for name in names}
    drafting = CoreSpeculation(quoth.Speculation(), expected_costs(model))
    for kind, own in kinds.items():
        # A kind with fewer workloads than a group has some of them twice.
        group = [own[i % len(own)] for i in range(COMPANY)]
        pairs, steps = [], []
        for round_ in range(rounds):
            plain, speculative = (Side.of(model, group, sampling, core) for core in (None, drafting))
            sides = (plain, speculative) if round_ % 2 == 0 else (speculative, plain)
            while not all(side.scheduler.is_idle() for side in sides):
                for side in sides:
                    side.step()
            if [*plain.answers.values()] != [*speculative.answers.values()]:
                raise SystemExit(f"{kind}: drafting changed an answer")
            pairs.append((plain.whole_ns, speculative.whole_ns))
            steps.append((plain.decode_ns, speculative.decode_ns))
        for name in ("all", *(["copies"] if kind in COPIES else [])):
            whole[name] += pairs
            decoding[name] += steps
        rows.append({"kind": kind, "speedup": asdict(Ratio.of(pairs)), "decoding": asdict(Ratio.of(steps))})
    for name in names:
        if whole[name]:
            ratios = {"speedup": asdict(Ratio.of(whole[name])), "decoding": asdict(Ratio.of(decoding[name]))}
            rows.append({"kind": name, **ratios})
    return rows


def arrivals(model: quoth.Model, rounds: int, requests: int) -> list[dict[str, Any]]:
    """The part of that name."""
    rows = []
    with quoth.Engine(model, max_sequences=8, prefix_bytes=0, speculation=None) as engine:
        whole = run(engine, [{"prompt": ids(96, 7, model.n_vocab), "max_tokens": 64, "stop_at_eog": False}])[0]
        alone = whole.arrivals[-1] - whole.submitted
    # One request comes in the time that one alone takes: more than one sequence could serve, and less than eight can.
    for way in (None, True):
        first, between = [], []
        for seed in range(rounds):
            dice = random.Random(seed)
            moments, now = [], 0.0
            for _ in range(requests):
                now += dice.expovariate(1.0 / alone)
                moments.append(now)
            asked = [
                {
                    "prompt": ids(dice.randrange(16, 400), 1000 * seed + i, model.n_vocab),
                    "max_tokens": dice.randrange(16, 96),
                    "stop_at_eog": False,
                    "speculation": way,
                }
                for i in range(requests)
            ]
            with quoth.Engine(model, max_sequences=8, prefix_bytes=0) as engine:
                for one in run(engine, asked, moments):
                    first.append(1e3 * (one.arrivals[0] - one.submitted))
                    between += [1e3 * (b - a) for a, b in zip(one.arrivals, one.arrivals[1:], strict=False)]
        rows.append(
            {
                "drafting": way is True,
                "requests": rounds * requests,
                "mean_gap_ms": 1e3 * alone,
                "first_token_ms": quantiles(first),
                "between_chunks_ms": quantiles(between),
            }
        )
    return rows


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Quantiles by rank."""
    ranked = sorted(values)
    return {name: ranked[min(len(ranked) - 1, int(q * len(ranked)))] for name, q in QUANTILES.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description="Measure many sequences at once.")
    parser.add_argument("model", help="a GGUF file or a model's name")
    parser.add_argument("--only", default="decode,drafts,arrivals", help="parts")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    parser.add_argument("--requests", type=int, default=40, help="requests of a round of `arrivals` (40)")
    parser.add_argument("--peer", type=Path, help="llama.cpp's llama-batched-bench")
    parser.add_argument("--workloads", type=Path, help="workloads for `drafts`")
    parser.add_argument("--threads", type=int, help="threads of a forward")
    parser.add_argument("--record", type=Path, help="write a record")
    parser.add_argument("--fact", action="append", default=[], help="NAME=TEXT for the record")
    args = parser.parse_args(arguments)
    parts = args.only.split(",")
    model = quoth.Model(args.model, n_ctx=4096, threads=args.threads)
    figures: dict[str, Any] = {"rounds": args.rounds}
    if "decode" in parts:
        figures["decode"] = decode(model, args.rounds, args.peer)
    if "drafts" in parts and args.workloads:
        workloads = read_workloads(args.workloads)
        figures["drafts_greedy"] = drafts(model, args.rounds, workloads, quoth.Sampling())
        figures["drafts_sampled"] = drafts(
            model, args.rounds, workloads, quoth.Sampling(temperature=0.8, top_k=20, seed=7)
        )
    if "arrivals" in parts:
        figures["arrivals"] = arrivals(model, args.rounds, args.requests)
    for name, rows in figures.items():
        for row in rows if isinstance(rows, list) else []:
            print(name, json.dumps(row))
    if args.record:
        command = "python tools/" + command_line(arguments, "measure_throughput.py")
        facts = run_facts(model, dict(entry.split("=", 1) for entry in args.fact))
        write_record(args.record, "Many sequences at once", command, facts, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
