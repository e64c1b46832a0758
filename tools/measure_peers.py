#!/usr/bin/env python3
"""What llama.cpp's own speculation without a draft model brings, on the workloads that quoth is measured on.

In: `llama-server`, a model, workloads. Out: a record with a row for each way of drafting, for the table of other
engines.

N1  Prompts are token ids, made by the model's chat template, so the server and quoth answer the same. Decoding is
    greedy. References are left out: the server takes none.
N2  Each run of a workload has a server of its own: `ngram-mod` keeps what it saw in earlier requests, and would know
    the answer of a round before.
N3  Plain and speculative runs alternate, and which goes first alternates from round to round. In a workload of several
    turns the history holds the answers of the first plain run, for both ways.
N4  Times are the server's own. Ratios are of times summed over workloads and rounds, as in `quoth bench workloads`.
    `answers` counts the workloads whose tokens are those of the first plain run in every run of that way.

    python tools/measure_peers.py path/to/llama-server smollm2 --record benches/records/smollm2-peers.toml
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import quoth
from quoth.bench.paired import Ratio
from quoth.bench.record import command_line, run_facts, write_record
from quoth.bench.workloads import Workload, read_workloads

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
"""Ways of the server to draft without a draft model, with its own defaults."""
PROSE = "free-form"


@dataclass(frozen=True)
class Answer:
    """What the server said to one prompt."""

    tokens: tuple[int, ...]
    text: str
    prompt_ns: int
    decode_ns: int
    drafted: int
    accepted: int


@dataclass
class Measured:
    """One workload, one way of drafting."""

    kind: str
    same: bool = True
    """Whether all runs gave the tokens of the first plain one."""
    decode: list[tuple[int, int]] = field(default_factory=list)
    """Decoding time of (plain, speculative), for each round."""
    whole: list[tuple[int, int]] = field(default_factory=list)
    """As `decode`, the prompts included."""
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Server:
    """How the server is started."""

    program: Path
    model: Path
    threads: int
    n_ctx: int
    patience_s: float = 60.0

    @contextlib.contextmanager
    def running(self, way: str | None) -> Iterator[str]:
        """A server of its own; its address.

        Raises:
            SystemExit: It ends before it answers, or does not answer in time.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [str(self.program), "--model", str(self.model), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--threads", str(self.threads), "--ctx-size", str(self.n_ctx), "--parallel", "1"]
        command += ["--spec-type", way] if way is not None else []
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        address = f"http://127.0.0.1:{port}"
        try:
            end = time.monotonic() + self.patience_s
            while not _ready(address):
                if child.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{' '.join(command)}: no answer, exit code {child.poll()}")
                time.sleep(0.02)
            yield address
        finally:
            child.terminate()
            child.wait()


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def ask(address: str, prompt: Sequence[int], max_tokens: int) -> Answer:
    """Complete a prompt."""
    asked = {"prompt": list(prompt), "n_predict": max_tokens, "temperature": 0, "return_tokens": True}
    body = json.dumps(asked | {"cache_prompt": False}).encode()
    request = urllib.request.Request(f"{address}/completion", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        said = json.load(reply)
    times = said["timings"]
    return Answer(
        tokens=tuple(said["tokens"]),
        text=said["content"],
        prompt_ns=max(round(1e6 * times["prompt_ms"]), 1),
        decode_ns=max(round(1e6 * times["predicted_ms"]), 1),
        drafted=times.get("draft_n", 0),
        accepted=times.get("draft_n_accepted", 0),
    )


def prompts_and_answers(server: Server, model: quoth.Model, workload: Workload) -> tuple[list[list[int]], list[Answer]]:
    """The prompts of all turns and their plain answers, which are the history of later turns (N3)."""
    talk: list[dict[str, Any]] = [{"role": "system", "content": workload.system}] if workload.system else []
    talk += workload.history
    prompts, answers = [], []
    with server.running(None) as address:
        for turn in workload.turns:
            talk.append({"role": "user", "content": turn} if isinstance(turn, str) else turn)
            prompts.append(model.tokenizer.apply_chat_template(talk, escape_content=True, enable_thinking=False))
            answers.append(ask(address, prompts[-1], workload.max_tokens))
            talk.append({"role": "assistant", "content": answers[-1].text})
    return prompts, answers


def measure(
    server: Server, model: quoth.Model, workloads: Sequence[Workload], ways: Sequence[str], rounds: int
) -> dict[str, list[Measured]]:
    """All workloads in all ways."""
    found: dict[str, list[Measured]] = {way: [] for way in ways}
    for workload in workloads:
        prompts, expected = prompts_and_answers(server, model, workload)
        for way in ways:
            one = Measured(workload.kind)
            for i in range(rounds):
                pair: dict[str | None, list[Answer]] = {}
                for which in (None, way) if i % 2 == 0 else (way, None):
                    with server.running(which) as address:
                        pair[which] = [ask(address, prompt, workload.max_tokens) for prompt in prompts]
                plain, fast = pair[None], pair[way]
                one.same &= all(a.tokens == b.tokens == c.tokens for a, b, c in zip(expected, plain, fast, strict=True))
                one.decode.append((sum(a.decode_ns for a in plain), sum(a.decode_ns for a in fast)))
                prompt_ns = sum(a.prompt_ns for a in plain), sum(a.prompt_ns for a in fast)
                one.whole.append((one.decode[-1][0] + prompt_ns[0], one.decode[-1][1] + prompt_ns[1]))
                one.drafted += sum(a.drafted for a in fast)
                one.accepted += sum(a.accepted for a in fast)
            found[way].append(one)
            print(f"{workload.id}, {way}: {Ratio.of(one.decode).ratio:.2f} x, same: {one.same}", file=sys.stderr)
    return found


def row(engine: str, model: str, way: str, measured: Sequence[Measured]) -> dict[str, Any]:
    """A row of the table of other engines."""
    prose = [one for one in measured if one.kind == PROSE]
    return {
        "engine": engine,
        "model": model,
        "speculation": f"{way}, defaults",
        "speedup": _rounds([one.decode for one in measured]),
        "total_speedup": _rounds([one.whole for one in measured]),
        "prose": _rounds([one.decode for one in prose]) if prose else None,
        "answers": {"same": sum(one.same for one in measured), "of": len(measured)},
        "drafted": sum(one.drafted for one in measured),
        "accepted": sum(one.accepted for one in measured),
    }


def _rounds(times: Sequence[Sequence[tuple[int, int]]]) -> Ratio:
    """The ratio of summed times; a pair is a round of all workloads."""
    return Ratio.of([(sum(a for a, _ in round), sum(b for _, b in round)) for round in zip(*times, strict=True)])


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure llama.cpp's own speculation on workloads.")
    parser.add_argument("server", type=Path, help="llama-server")
    parser.add_argument("model", help="a model of quoth: a file, or a name")
    parser.add_argument("workloads", nargs="?", type=Path, default=ROOT / "benches" / "workloads.jsonl")
    parser.add_argument("--engine", default="llama.cpp", help="name and version, for the table (llama.cpp)")
    parser.add_argument("--label", help="model and format, for the table (the file's name)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"ways to draft ({','.join(WAYS)})")
    parser.add_argument("--kinds", default="", help="only workloads of these kinds")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--threads", type=int, help="threads of the server (as quoth)")
    parser.add_argument("--ctx", type=int, default=4096, help="context of the server (4096)")
    parser.add_argument("--record", type=Path, required=True, help="where to write the record: NAME-peers.toml")
    parser.add_argument("--fact", action="append", default=[], metavar="KEY=VALUE", help="what else to write down")
    args = parser.parse_args(argv)
    workloads = read_workloads(args.workloads, [kind for kind in args.kinds.split(",") if kind])
    model = quoth.Model(args.model, threads=args.threads)
    server = Server(args.server, model.path, model.threads, args.ctx)
    ways = args.ways.split(",")
    measured = measure(server, model, workloads, ways, args.rounds)
    label = args.label or model.path.stem
    figures = {
        "workloads_file": args.workloads.name,
        "rounds": args.rounds,
        "rows": [row(args.engine, label, way, measured[way]) for way in ways],
    }
    command = "python tools/" + command_line(sys.argv[1:] if argv is None else argv, "measure_peers.py")
    what = "speculation without a draft model in another engine, on the workloads of quoth"
    more = {"threads": model.threads} | dict(entry.split("=", 1) for entry in args.fact)
    write_record(args.record, what, command, run_facts(None, more), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
