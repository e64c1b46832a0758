#!/usr/bin/env python3
"""Time from the start of a process to its first token, and the memory that it takes.

In: a model. Out: medians over fresh processes, with their spread, as lines of TOML for a record.

M1  Each run is a process of its own, and its clock starts before the process does. One run that is not counted comes
    first, so that files are in the page cache.
M2  A run begins when the cores have been idle for a moment, and is thrown away if the system put its threads aside for
    other processes more than `--most-preemptions` times: on a busy machine it would measure the neighbours. How many
    were thrown away is told.
M3  Memory is resident memory, as the system counts it; the steps name what was allocated meanwhile. `peak_bytes` holds
    everything, Python and its libraries too.
M4  `program` is the command line with a pipe behind it: from its start to the first byte of text.

    python tools/time_start.py smollm2
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[], dict[str, Any]]

QUESTION = "What is the capital of Japan?"

CHILD = r"""
import json, resource, sys, time
model, question, n_ctx, start = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
times, bytes = {"python": time.monotonic()}, {"python": rss()}
def mark(name):
    times[name], bytes[name] = time.monotonic(), rss()
import quoth; mark("import")
m = quoth.Model(model, n_ctx=n_ctx); mark("load")
decoder = m.decoder()
ids = m.tokenizer.apply_chat_template([{"role": "user", "content": question}]) if m.tokenizer.chat_templates \
    else m.tokenizer.encode(question, add_bos=None)
mark("tokens")
chunk = next(decoder.stream(ids, max_tokens=8)); mark("first token")
usage = resource.getrusage(resource.RUSAGE_SELF)
from quoth.machine import peak_bytes
print(json.dumps({"ms": {k: (t - start) * 1e3 for k, t in times.items()}, "bytes": bytes, "peak_bytes": peak_bytes(),
    "file_bytes": m.path.stat().st_size, "weight_bytes": m._model.weight_bytes,
    "cache_bytes": decoder._core.cache_bytes(),
    "preemptions": usage.ru_nivcsw, "prompt_tokens": len(ids), "kernels": m._model.kernels_detail, "threads": m.threads,
    "kv_type": m.kv_type, "cpu_ms": (usage.ru_utime + usage.ru_stime) * 1e3}))
"""


def library_run(model: str, n_ctx: int) -> dict[str, Any]:
    """One process that loads a model and generates."""
    command = [sys.executable, "-c", CHILD, model, QUESTION, str(n_ctx), str(time.monotonic())]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def program_run(model: str) -> dict[str, Any]:
    """One run of the command line, up to the first byte of text."""
    start = time.monotonic()
    command = [sys.executable, "-m", "quoth", "generate", model, "-p", QUESTION, "--max-tokens", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        first = child.stdout.read(1)
        ms = (time.monotonic() - start) * 1e3
        child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if not first or child.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {child.returncode}, first byte {first!r}")
    return {"ms": {"first byte": ms}, "preemptions": usage.ru_nivcsw}


def idle_share(seconds: float) -> float:
    """The share of all cores' time that was idle, over the next moment."""

    def times() -> list[int]:
        with open("/proc/stat", encoding="ascii") as stat:
            return [int(word) for word in stat.readline().split()[1:]]

    before = times()
    time.sleep(seconds)
    passed = [now - then for now, then in zip(times(), before, strict=True)]
    return (passed[3] + passed[4]) / max(sum(passed), 1)


def quiet_runs(run: Run, n: int, most: int, end: float) -> tuple[list[dict[str, Any]], int]:
    """`n` runs that others left alone, and how many they did not; fewer if the time is up."""
    run()
    kept: list[dict[str, Any]] = []
    thrown = 0
    while len(kept) < n and time.monotonic() < end:
        if idle_share(0.3) < 0.95:
            continue
        found = run()
        if found["preemptions"] <= most:
            kept.append(found)
        else:
            thrown += 1
    return kept, thrown


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median, least and greatest as a TOML table."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{{ median = {middle:.{digits}f}, min = {low:.{digits}f}, max = {high:.{digits}f} }}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time from the start of a process to its first token; memory.")
    parser.add_argument("model", help="a GGUF file or a model's name")
    parser.add_argument("--runs", type=int, default=7, help="runs that count (7)")
    parser.add_argument("--n-ctx", type=int, default=4096, help="the context (4096)")
    parser.add_argument("--most-preemptions", type=int, default=40, help="a run with more is thrown away (40)")
    parser.add_argument("--patience", type=float, default=600, help="seconds to wait for quiet, for each kind (600)")
    args = parser.parse_args(argv)

    def quiet(run: Run) -> tuple[list[dict[str, Any]], int]:
        return quiet_runs(run, args.runs, args.most_preemptions, time.monotonic() + args.patience)

    kept, thrown = quiet(lambda: library_run(args.model, args.n_ctx))
    program, program_thrown = quiet(lambda: program_run(args.model))
    if not kept or not program:
        print(f"no quiet run in {args.patience:.0f} s: the machine is busy", file=sys.stderr)
        return 1
    first = kept[0]
    for key in ("prompt_tokens", "threads"):
        print(f"{key} = {first[key]}")
    print(f'kernels = "{first["kernels"]}"\nkv_type = "{first["kv_type"]}"')
    print(f"runs = {len(kept)}\nruns_thrown_away = {thrown}")
    print("[ms_from_start]")
    for name in first["ms"]:
        print(f"{name.replace(' ', '_')} = {spread([r['ms'][name] for r in kept])}")
    print(f"program_first_byte = {spread([r['ms']['first byte'] for r in program])}")
    print(f"program_runs = {len(program)}\nprogram_runs_thrown_away = {program_thrown}")
    print("[ms_of_load]")
    print(f"load = {spread([r['ms']['load'] - r['ms']['import'] for r in kept])}")
    print("[bytes]")
    for key in ("file_bytes", "weight_bytes", "cache_bytes"):
        print(f"{key.removesuffix('_bytes')} = {first[key]}")
    for name in first["bytes"]:
        print(f"resident_{name.replace(' ', '_')} = {spread([r['bytes'][name] for r in kept])}")
    print(f"peak = {spread([r['peak_bytes'] for r in kept])}")
    over = [(r["bytes"]["load"] - r["bytes"]["import"]) / r["file_bytes"] - 1 for r in kept]
    print(f"loaded_over_file = {spread(over, 3)}")
    print(f"cpu_ms = {spread([r['cpu_ms'] for r in kept])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
