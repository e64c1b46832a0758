#!/usr/bin/env python3
"""All records and pictures of a machine, one command after another.

In: an installed quoth, workloads, a quiet machine. Out: records, pictures, pages renewed.

A1  Each step is a command that can be typed by itself; this file only knows their order. What a step wrote stays when a
    later one fails, and `--only` runs some again.
A2  Costs come first: the gate and the replays of later steps decide by them. They are kept in the user's cache folder,
    as `quoth bench verify` does for everyone.
A3  The load of the machine is looked at before each step; a busy machine is waited for, and told if it stays busy.

    python tools/measure_all.py [--quick] [--only NAME,…]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUOTH = [sys.executable, "-m", "quoth"]
TOOLS = ROOT / "tools"
SMALL, LARGE = "smollm2", "qwen3-0.6b"


@dataclass(frozen=True)
class Step:
    """A command."""

    name: str
    """Also the name of its record."""
    command: list[str]
    plot: str | None = None
    """Name of its picture."""
    needs: Path | None = None
    """A file that an earlier step leaves."""


def steps(args: argparse.Namespace, large: Path, traces: Path) -> list[Step]:
    """All commands, in their order."""
    quick: bool = args.quick
    rounds = ["--rounds", "3"] if quick else []
    few = ["-n", "12", "--kinds", "translate-format,free-form"] if quick else []
    tokens = "200000" if quick else "5000000"
    texts = [sysconfig.get_path("stdlib"), *(folder for folder in DOCUMENTS if Path(folder).is_dir())]
    made = []
    for name, model in ((SMALL, SMALL), (LARGE, str(large))):
        deep = "64,512" if quick else "64,512,2048"
        lengths = ["--prompts", "32", "--depths", "0"] if quick else ["--prompts", "32,128,512,2048"]
        verify = [*QUOTH, "bench", "verify", model, "--ctx-lengths", deep, "--save", *rounds]
        made.append(Step(f"{name}-verify", verify, plot=f"costs-{name}"))
        made.append(Step(f"{name}-speed", [*QUOTH, "bench", "speed", model, *lengths, *rounds]))
    spoken = [*QUOTH, "bench", "workloads", SMALL, str(args.workloads), *few]
    five = [] if quick else ["--rounds", "5"]
    made.append(Step(f"{SMALL}-workloads", [*spoken, *five, "--traces", str(traces)], plot=f"workloads-{SMALL}"))
    sampled = [*spoken, "--temperature", "0.8", "--seed", "1", *([] if quick else ["-n", "96"])]
    made.append(Step(f"{SMALL}.sampled-workloads", sampled))
    against = [word for way in WAYS for word in ("--against", way)]
    for name, model in ((SMALL, SMALL), (LARGE, str(large))):
        replay = [*QUOTH, "bench", "replay", str(traces), "--costs", model, *against]
        made.append(Step(f"{name}-replay", replay, needs=traces))
    read = [*QUOTH, "bench", "replay", *texts, "--tokenizer", SMALL, "--tokens", tokens]
    made.append(Step("texts-replay", [*read, "--costs", SMALL, *against], plot="acceptance"))
    for name, model in ((SMALL, SMALL), (LARGE, str(large))):
        # The index is the same whatever the model.
        parts = [] if name == SMALL else ["--only", "garbage,capture,threads,busy,depth"]
        goals = ["--rounds", "3", "--quick"] if quick else ["--rounds", "7" if name == SMALL else "5"]
        made.append(Step(f"{name}-goals", [sys.executable, str(TOOLS / "measure_goals.py"), model, *parts, *goals]))
    return made


DOCUMENTS = ("/usr/share/doc",)
"""Documentation where there is some."""

WAYS = [
    "max_draft=4",
    "max_draft=8",
    "max_draft=32",
    "min_match=2",
    "min_draft=2",
    "sources=conversation,references",
    "sources=conversation",
    "sources=recycling",
    "adapt_budget=false",
]
"""Ways to draft that are compared on the same tokens. What loses stays."""


def wait_for_quiet(patience_s: float) -> None:
    """Wait until hardly anything else runs, or patience ends."""
    end = time.monotonic() + patience_s
    told = False
    while (load := _busy_share()) > 0.1 and time.monotonic() < end:
        if not told:
            print(f"  the cores are {100 * load:.0f} % busy: waiting", file=sys.stderr)
        told = True
        time.sleep(2)
    if load > 0.1 and patience_s > 0:
        print("  the machine stays busy; figures will not be the machine's", file=sys.stderr)


def _busy_share(during_s: float = 1.0) -> float:
    """How much of the cores is in use."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0

    def times() -> tuple[int, int]:
        words = [int(word) for word in stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        return sum(words), words[3] + words[4]

    before, idle = times()
    time.sleep(during_s)
    after, idle_after = times()
    return 1 - (idle_after - idle) / max(after - before, 1)


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def facts() -> list[str]:
    """What only the source tree knows: the commit and the compiler."""
    found = []
    if commit := _output("git", "rev-parse", "--short", "HEAD"):
        changed = _output("git", "status", "--porcelain", "--untracked-files=no", "--", "rust", "python")
        found += ["--fact", f"commit={commit}{'+' if changed else ''}"]
    if rustc := _output("rustc", "--version"):
        found += ["--fact", f"rustc={rustc.split()[1]}"]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure everything that pages tell of this machine.")
    parser.add_argument("--workloads", type=Path, default=ROOT / "benches" / "workloads.jsonl")
    parser.add_argument("--records", type=Path, help="folder of the records (benches/records)")
    parser.add_argument("--pictures", type=Path, help="folder of the pictures (docs/images)")
    parser.add_argument("--work", type=Path, help="folder for the random model and traces (a temporary one)")
    parser.add_argument("--only", default="", help="steps whose names contain one of these")
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for a quiet machine (120)")
    parser.add_argument("--quick", action="store_true", help="little of everything, into a folder of its own")
    parser.add_argument("--list", action="store_true", help="only print the commands")
    args = parser.parse_args(argv)
    work = args.work or Path(tempfile.gettempdir()) / "quoth-measured"
    records = args.records or (work / "records" if args.quick else ROOT / "benches" / "records")
    pictures = args.pictures or (work / "images" if args.quick else ROOT / "docs" / "images")
    for folder in (work, records, pictures):
        folder.mkdir(parents=True, exist_ok=True)
    large, traces = work / f"{LARGE}.gguf", work / "traces.jsonl"
    wanted = [part for part in args.only.split(",") if part]
    chosen = [step for step in steps(args, large, traces) if not wanted or any(part in step.name for part in wanted)]
    more, failed = facts(), []
    env = os.environ | ({"QUOTH_CACHE": str(_quick_cache(work))} if args.quick else {})
    if not large.exists() and not args.list:
        synthetic = [str(TOOLS / "make_synthetic.py"), LARGE, "--type", "Q4_K_S", "--out", str(large)]
        subprocess.run([sys.executable, *synthetic], check=True)
    begun = time.monotonic()
    for step in chosen:
        command = [*step.command, "--record", str(records / f"{step.name}.toml"), *more]
        if step.plot is not None:
            command += ["--plot", str(pictures / f"{step.plot}.svg")]
        print(f"{step.name}: {shlex.join(step.command)}", file=sys.stderr)
        if args.list:
            continue
        if step.needs is not None and not step.needs.exists():
            print(f"  left out: there is no {step.needs}", file=sys.stderr)
            failed.append(step.name)
            continue
        wait_for_quiet(0 if args.quick else args.patience)
        start = time.monotonic()
        done = subprocess.run(command, env=env, check=False, stdout=subprocess.DEVNULL if args.quick else None)
        print(f"  {time.monotonic() - start:.0f} s, exit code {done.returncode}", file=sys.stderr)
        if done.returncode != 0:
            failed.append(step.name)
    if not args.quick and not args.list:
        subprocess.run([sys.executable, str(TOOLS / "economics.py"), "--records", str(records)], check=True)
    print(f"{time.monotonic() - begun:.0f} s in all, records in {records}", file=sys.stderr)
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


def _quick_cache(work: Path) -> Path:
    """A cache folder of its own, so that hasty costs are not kept; the model in it is the user's."""
    from quoth.hub import resolve  # noqa: PLC0415

    cache = work / "cache"
    cache.mkdir(exist_ok=True)
    model = resolve(SMALL)
    link = cache / model.parent.name / model.name
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(model)
    return cache


if __name__ == "__main__":
    sys.exit(main())
