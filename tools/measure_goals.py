#!/usr/bin/env python3
"""Figures that have a goal and no command of their own.

In: a model; for the index, texts. Out: a record.

| part | measures |
| --- | --- |
| `garbage` | decoding with a source whose drafts are always wrong, against plain decoding |
| `capture` | what the most probable tokens of each verified row cost, as a share of the steps |
| `index` | the suffix index on real text: bytes and time a token; a replay; the same from Python, a token at a time |
| `threads` | a prompt on all threads against one |
| `busy` | decoding beside a process that keeps one core busy, against decoding alone |
| `depth` | a plain step far into a context against the time that reading weights and cache takes; verifying 8 there |

M1  Both sides of a ratio run in turn, in one process, and their tokens are compared first.
M2  Memory is read at full speed in the same run, by the same number of threads.
M3  A figure without a goal is a figure all the same.

    python tools/measure_goals.py smollm2 [--only PART,…] [--record FILE]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import quoth
from quoth.bench.bandwidth import reader
from quoth.bench.paired import Spread, alternate, timed
from quoth.bench.quiet import watch
from quoth.bench.record import command_line, run_facts, write_record
from quoth.bench.replay import replay_trace
from quoth.bench.speed import bytes_per_step
from quoth.bench.traces import Trace, Turn, text_traces
from quoth.bench.verify import WIDTH

Figure = dict[str, Any]

KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}


class Rig:
    """A model, and how much is measured."""

    def __init__(self, name: str, *, threads: int | None, rounds: int, quick: bool, texts: Path) -> None:
        self.name, self.threads, self.rounds, self.quick, self.texts = name, threads, rounds, quick, texts
        self.models: dict[tuple[int | None, int], quoth.Model] = {}

    def model(self, n_ctx: int = 2048, threads: int | None = None) -> quoth.Model:
        """The model, loaded once a thread count and a context."""
        key = (threads or self.threads, n_ctx)
        if key not in self.models:
            self.models[key] = quoth.Model(self.name, n_ctx=n_ctx, threads=key[0])
        return self.models[key]


def prompt(model: quoth.Model, n: int) -> list[int]:
    """Some tokens, the same each time, spread over the vocabulary."""
    return [(7919 * i + 17) % model.n_vocab for i in range(n)]


def figure(what: str, spread: Spread | float, unit: str, **goal: float) -> Figure:
    """A figure, and the goal if there is one: `most` or `least`."""
    if not isinstance(spread, Spread):
        spread = Spread(spread, spread, spread, 1)
    middle = {"median": spread.median, "low": spread.low, "high": spread.high, "n": spread.n}
    digits = 3 if unit == "×" else 2
    return {"what": what, "figure": middle, "unit": unit, "digits": digits, **goal}


# -- garbage, capture --------------------------------------------------------------------------------------------------


class Wrong:
    """Drafts what is certainly not next."""

    def __init__(self, start: int, truth: Sequence[int], n_vocab: int) -> None:
        self.start, self.n_vocab = start, n_vocab
        self.truth = list(truth)

    def suggest(self, context: list[int], max_tokens: int) -> list[int]:
        at = len(context) - self.start
        right = self.truth[at] if at < len(self.truth) else 0
        return [(right + 1) % self.n_vocab] * max_tokens

    def observe(self, committed: list[int]) -> None:
        pass


class Right:
    """Drafts what is next, eight tokens at a time."""

    def __init__(self, start: int, truth: Sequence[int]) -> None:
        self.start = start
        self.truth = list(truth)

    def suggest(self, context: list[int], max_tokens: int) -> list[int]:
        at = len(context) - self.start
        return self.truth[at : at + min(max_tokens, 8)]

    def observe(self, committed: list[int]) -> None:
        pass


class Capturing(Right):
    """As `Right`, and wants to see rows."""

    def observe_topk(self, rows: object) -> None:
        pass


def _paired_runs(
    rig: Rig, sources: tuple[Any, Any], start: list[int], truth: Sequence[int]
) -> list[tuple[quoth.Stats, quoth.Stats]]:
    """Runs of two ways of drafting (None: plain) in turn; all must say the truth."""
    model, pairs = rig.model(), []
    for i in range(rig.rounds + 1):
        found: dict[int, quoth.Stats] = {}
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            make = sources[which]
            result = model.decoder(speculation=None if make is None else make()).generate(
                start, max_tokens=len(truth), stop_at_eog=False
            )
            if result.tokens != tuple(truth):
                raise SystemExit("measure_goals: other tokens came out, so there is nothing to compare")
            found[which] = result.stats
        pairs.append((found[0], found[1]))
    return pairs[1:]  # the first warms up


def _answer(model: quoth.Model, start: list[int], n: int) -> tuple[int, ...]:
    return model.decoder(speculation=None).generate(start, max_tokens=n, stop_at_eog=False).tokens


def garbage(rig: Rig) -> Iterator[Figure]:
    """A source that is always wrong."""
    model = rig.model()
    start = prompt(model, 64)
    truth = _answer(model, start, 64 if rig.quick else 512)

    def source() -> quoth.Speculation:
        return quoth.Speculation(source=Wrong(len(start), truth, model.n_vocab))

    runs = _paired_runs(rig, (None, source), start, truth)
    ratio = Spread.of(b.decode_ns / a.decode_ns for a, b in runs)
    what = f"time with drafts that are always wrong, {len(truth)} tokens, plain = 1"
    yield figure(what, ratio, "×", most=1.02)


def capture(rig: Rig) -> Iterator[Figure]:
    """The most probable tokens of verified rows."""
    model = rig.model()
    start = prompt(model, 64)
    truth = _answer(model, start, 64 if rig.quick else 256)

    def source(kind: Callable[..., Any]) -> Callable[[], quoth.Speculation]:
        return lambda: quoth.Speculation(source=kind(len(start), truth))

    runs = _paired_runs(rig, (source(Right), source(Capturing)), start, truth)
    # Telling the source is the sources' time, and in Python here.
    ratio = Spread.of((b.decode_ns - b.draft_ns) / (a.decode_ns - a.draft_ns) for a, b in runs)
    yield figure("steps that keep the 8 most probable tokens of each verified row, without = 1", ratio, "×", most=1.02)


# -- index -------------------------------------------------------------------------------------------------------------


def index(rig: Rig) -> Iterator[Figure]:
    """The suffix index and the cascade, on real text."""
    model = rig.model()
    wanted = 100_000 if rig.quick else 1_000_000
    (joined,) = text_traces(rig.texts, model.tokenizer, join=True, most=wanted)
    ids = joined.turns[0].answer[:wanted].astype(np.int64)
    size = len(ids) / 1e6
    times, n_bytes = [], 0.0
    for _ in range(rig.rounds):
        made = quoth.DraftIndex(model.n_vocab, recycling=False)
        times.append(timed(lambda made=made: made.observe(ids)))  # type: ignore[misc]
        n_bytes = made.n_bytes / len(ids)
    yield figure(f"suffix index of {size:g} M tokens of text and code, a token", n_bytes, "B", most=64)
    yield figure("building it", Spread.of(times).per(1e3 * len(ids)), "M tokens/s", least=5)
    turn = joined.turns[0]
    trace = Trace(joined.id, "text", (Turn(turn.prompt, turn.answer[:wanted]),), n_vocab=model.n_vocab)
    replays = Spread.of(replay_trace(trace).elapsed_ns / 1e9 / size for _ in range(rig.rounds))
    yield figure("replaying 1 M tokens: suggest, compare, observe", replays, "s", most=2)
    loops = Spread.of(_loop(model.n_vocab, ids.tolist()) / size for _ in range(min(rig.rounds, 3)))
    yield figure("the same from Python, a step at a time with `DraftIndex`", loops, "s", most=2)


def _loop(n_vocab: int, tokens: list[int]) -> float:
    """Suggest, compare, observe, as another engine would."""
    made, at, n = quoth.DraftIndex(n_vocab), 1, len(tokens)
    made.observe(tokens[:1])
    start = time.perf_counter()
    while at < n:
        accepted = 0
        for token in made.suggest(None, min(16, n - at - 1)):
            if token != tokens[at + accepted]:
                break
            accepted += 1
        made.observe(tokens[at : at + accepted + 1])
        at += accepted + 1
    return time.perf_counter() - start


# -- threads, busy cores -----------------------------------------------------------------------------------------------


def threads(rig: Rig) -> Iterator[Figure]:
    """A prompt on all threads, and on one."""
    n = 64 if rig.quick else 512
    sessions = [rig.model(threads=1).session(), rig.model().session()]
    if rig.model().threads == 1:
        return
    tokens = prompt(rig.model(), n)
    one, many = (lambda session=session: session.forward(tokens, rows="last") for session in sessions)

    def rewind() -> None:
        for session in sessions:
            session.truncate(0)

    if one().tobytes() != many().tobytes():
        raise SystemExit("measure_goals: threads change the logits")
    rewind()
    pairs = alternate(one, many, rig.rounds, reset=rewind)
    name = f"a prompt of {n} tokens on {rig.model().threads} threads, against one"
    yield figure(name, Spread.of(a / b for a, b in pairs), "×")


@contextmanager
def _busy_core() -> Iterator[None]:
    """A process that keeps the first core busy."""
    code = "while True: pass"
    core = min(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-c", code])
    try:
        os.sched_setaffinity(busy.pid, {core})
        time.sleep(0.2)
        yield
    finally:
        busy.kill()
        busy.wait()


def busy(rig: Rig) -> Iterator[Figure]:
    """Decoding beside a process that keeps a core busy."""
    if not hasattr(os, "sched_setaffinity"):
        return
    model, n = rig.model(), 16 if rig.quick else 64
    start = prompt(model, 64)
    ratios: dict[str, list[float]] = {"plain": [], "speculative": []}
    for _ in range(rig.rounds):
        alone = _rates(model, start, n)
        with _busy_core():
            beside = _rates(model, start, n)
        for name, found in ratios.items():
            found.append(beside[name] / alone[name])
    for name, found in ratios.items():
        yield figure(f"{name} decoding beside a process on one core, alone = 1", Spread.of(found), "×")


def _rates(model: quoth.Model, start: list[int], n: int) -> dict[str, float]:
    found = {}
    for name, speculation in (("plain", None), ("speculative", True)):
        stats = model.decoder(speculation=speculation).generate(start, max_tokens=n, stop_at_eog=False).stats
        found[name] = stats.tokens_per_second
    return found


# -- depth -------------------------------------------------------------------------------------------------------------


def depth(rig: Rig) -> Iterator[Figure]:
    """Steps far into a context."""
    n = 512 if rig.quick else 8192
    drafted = 8
    model = rig.model(n_ctx=n + drafted + 1)
    tokens = prompt(model, n + drafted + 1)
    session = model.session()
    session.forward(tokens[:n], rows="last")
    config = model.config
    row_bytes = 2 * config["n_layer"] * config["n_head_kv"] * config["head_dim"] * KV_BYTES[model.kv_type]
    bytes_read = bytes_per_step(model) + n * row_bytes
    steps: list[tuple[int, int]] = []
    rates: list[float] = []
    with reader(model.threads) as memory:
        for _ in range(rig.rounds):
            rates.append(memory.bytes_per_second())
            steps += alternate(
                lambda: session._session.best(tokens[n : n + 1], 1),
                lambda: session._session.best(tokens[n:], WIDTH),
                2,
                reset=lambda: session.truncate(n),
            )
    plain, cost = Spread.of(a for a, _ in steps), Spread.of(b / a for a, b in steps)
    reading = bytes_read / max(rates) * 1e9
    where = f"{n:,} tokens cached"
    yield figure("memory read at best, in the same run", max(rates) / 1e9, "GB/s")
    yield figure(f"a plain step, {where}", plain.scaled(1e-6), "ms")
    yield figure(f"the same, reading weights and cache ({bytes_read / 1e6:.0f} MB) = 1", plain.scaled(1 / reading), "×")
    yield figure(f"verifying {drafted} drafted tokens, {where}, plain = 1", cost, "×")


PARTS: dict[str, Callable[[Rig], Iterator[Figure]]] = {
    "garbage": garbage,
    "capture": capture,
    "index": index,
    "threads": threads,
    "busy": busy,
    "depth": depth,
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description="Measure what has a goal and no command of its own.")
    parser.add_argument("model", help="a GGUF file or a model's name")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs (7)")
    parser.add_argument("--threads", type=int, help="threads of a forward")
    parser.add_argument("--texts", type=Path, default=Path(sysconfig.get_path("stdlib")), help="folder of texts")
    parser.add_argument("--quick", action="store_true", help="less of everything, to see that it works")
    parser.add_argument("--record", type=Path, help="write a record")
    parser.add_argument("--fact", action="append", default=[], help="NAME=TEXT for the record")
    args = parser.parse_args(arguments)
    parts = [part.strip() for part in args.only.split(",") if part.strip()]
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}, expected some of {', '.join(PARTS)}")
    rig = Rig(args.model, threads=args.threads, rounds=args.rounds, quick=args.quick, texts=args.texts)
    measured: list[Figure] = []
    shares: dict[str, float] = {}
    try:
        facts = run_facts(rig.model(), dict(entry.split("=", 1) for entry in args.fact))
        for part in parts:
            with watch(rig.model().threads) as quiet:
                for one in PARTS[part](rig):
                    measured.append({"part": part, **one})
                    print(_line(one), flush=True)
            shares[part] = quiet.share
    except (quoth.QuothError, OSError) as error:
        print(f"measure_goals: {error}", file=sys.stderr)
        return 1
    if args.record:
        command = "python tools/" + command_line(arguments, "measure_goals.py")
        figures = {"rounds": args.rounds, "measured": measured, "share_of_cores": shares}
        write_record(args.record, "Figures that have a goal", command, facts, figures)
    return 0


def _line(one: Figure) -> str:
    found, digits = one["figure"], one["digits"]
    text = f"{one['what']}: {found['median']:.{digits}f} {one['unit']}"
    if found["low"] != found["high"]:
        text += f" ({found['low']:.{digits}f} - {found['high']:.{digits}f})"
    for name, sign in (("most", "<="), ("least", ">=")):
        if name in one:
            text += f", goal {sign} {one[name]:g}"
    return text


if __name__ == "__main__":
    sys.exit(main())
