#!/usr/bin/env python3
"""Two builds of quoth beside each other: what a change costs one sequence.

In: the Python of an environment that holds the other build, a model. Out: a record: the time of this build over that of
the other, for plain decoding and with drafts, on the same prompts.

B1  Each build has a process of its own, which stays. They answer the same prompt in turn, and which goes first changes
    from prompt to prompt, so a spell of a slower machine meets both.
B2  Tokens of both builds and ways are compared: a build with other bits is no measure of this one's cost.
B3  Only what both builds know is used: `Model`, `decoder`, `generate`, `stats.decode_ns`.

    python tools/measure_builds.py ../before/.venv/bin/python smollm2 --record benches/records/smollm2-builds.toml
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import quoth
from quoth.bench.paired import Spread
from quoth.bench.record import command_line, run_facts, write_record

ANSWER = 64
CHILD = f"""
import json, sys
import quoth
model = quoth.Model(sys.argv[1], n_ctx=2048)
decoders = {{way: model.decoder(speculation=True if way == "drafts" else None) for way in ("plain", "drafts")}}
print(json.dumps(model.threads), flush=True)
for line in sys.stdin:
    way, prompt = json.loads(line)
    decoders[way].reset()
    result = decoders[way].generate(prompt, max_tokens={ANSWER}, stop_at_eog=False)
    print(json.dumps([result.stats.decode_ns, list(result.tokens)]), flush=True)
"""


class Build:
    """A process with one build."""

    def __init__(self, python: str, model: Path) -> None:
        self._python = python
        self._run = subprocess.Popen(
            [python, "-c", CHILD, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def _read(self) -> Any:
        assert self._run.stdout is not None
        line = self._run.stdout.readline()
        if not line:
            raise SystemExit(f"the build of {self._python} ended")
        return json.loads(line)

    def answer(self, way: str, prompt: Sequence[int]) -> tuple[int, list[int]]:
        """Nanoseconds of decoding, and the tokens."""
        assert self._run.stdin is not None
        self._run.stdin.write(json.dumps([way, prompt]) + "\n")
        self._run.stdin.flush()
        took, tokens = self._read()
        return took, tokens

    def close(self) -> None:
        """End the process."""
        self._run.communicate()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description="Measure two builds beside each other.")
    parser.add_argument("other", help="the Python of an environment that holds the other build")
    parser.add_argument("model", help="a GGUF file or a model's name")
    parser.add_argument("--prompts", type=int, default=60, help="prompts of each way (60)")
    parser.add_argument("--record", type=Path, help="write a record")
    parser.add_argument("--fact", action="append", default=[], help="NAME=TEXT for the record")
    args = parser.parse_args(arguments)
    model = quoth.Model(args.model, n_ctx=2048)
    other, own = Build(args.other, model.path), Build(sys.executable, model.path)
    figures: dict[str, Any] = {"prompts": args.prompts, "answer": ANSWER}
    for way in ("plain", "drafts"):
        ratios = []
        for number in range(-2, args.prompts):
            dice = random.Random(number)
            part = [dice.randrange(10, min(model.n_vocab, 20_000)) for _ in range(60)]
            # Every other prompt repeats itself, so that there is something to draft.
            prompt = part * 2 if number % 2 else part
            if number % 4 < 2:
                (other_ns, expected), (own_ns, found) = other.answer(way, prompt), own.answer(way, prompt)
            else:
                (own_ns, found), (other_ns, expected) = own.answer(way, prompt), other.answer(way, prompt)
            if found != expected:
                raise SystemExit(f"prompt {number}: the builds answer differently")
            if number >= 0:
                ratios.append(own_ns / other_ns)
        figures[way] = asdict(Spread.of(ratios))
        print(way, json.dumps(figures[way]))
    for build in (other, own):
        build.close()
    if args.record:
        command = "python tools/" + command_line(arguments, "measure_builds.py")
        facts = run_facts(model, dict(entry.split("=", 1) for entry in args.fact))
        write_record(args.record, "The time of this build over that of another", command, facts, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
