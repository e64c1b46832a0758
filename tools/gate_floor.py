#!/usr/bin/env python3
"""What speculation costs where it cannot pay: plain and speculative decoding of text that nothing foretells.

In: a model. Out: the cost of verifying drafts, and the ratio of plain to speculative time, as TOML for a record.

F1  Prompts are random words, and tokens are sampled from a model whose next token is nearly random, so drafts seldom
    hit. What the gate lets through is then nearly all loss; the ratio says how much of it there is. A small vocabulary
    makes tokens come again, so that there is something to quote wrongly; with a large one there are hardly any drafts.
F2  Two decoders, one plain and one speculative, take their steps in turn: whichever has fewer tokens takes the next. So
    a disturbance falls on both. They must give the same tokens. The ratio of a generation is plain over speculative
    time, the prompt left out; 1 means that speculation costs nothing.
F3  A step that took more than `CLIP` plain medians was held up by other processes: it counts as so many. How many there
    were is told, for either side.
F4  Everything is measured with the assumed costs, as on a first run, and with those just measured.

    python tools/make_synthetic.py qwen3moe-30b-a3b --type Q4_K_M --layers 6 --vocab 18992 --out moe.gguf
    python tools/gate_floor.py moe.gguf
"""

from __future__ import annotations

import argparse
import random
import statistics
import string
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import quoth
from quoth.bench.paired import Spread
from quoth.bench.verify import cost_table, verify_costs

DRAFTS = (1, 2, 3, 4, 6, 8, 12, 16)
CLIP = 8.0


def random_words(n: int, seed: int) -> str:
    """Words of random letters."""
    dice = random.Random(seed)
    return " ".join("".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 9))) for _ in range(n))


@dataclass
class Side:
    """A decoder that is taken through a generation, step by step."""

    decoder: quoth.Decoder
    stream: Iterator[quoth.Chunk]
    tokens: list[int] = field(default_factory=list)
    steps_ns: list[int] = field(default_factory=list)
    done: bool = False

    def step(self, timed: bool = True) -> None:
        """Take a step."""
        start = time.perf_counter_ns()
        chunk = next(self.stream, None)
        took = time.perf_counter_ns() - start
        if chunk is None:
            self.done = True
            return
        self.tokens += chunk.tokens
        if timed:
            self.steps_ns.append(took)


@dataclass
class Floor:
    """Generations by two decoders over one model."""

    model: quoth.Model
    tokens: int
    sampling: quoth.Sampling

    def side(self, prompt: str, seed: int, speculation: quoth.Speculation | None) -> Side:
        """A decoder before its first step."""
        sampling = quoth.Sampling(temperature=self.sampling.temperature, top_k=self.sampling.top_k, seed=seed)
        decoder = self.model.decoder(sampling=sampling, speculation=speculation)
        side = Side(decoder, iter(decoder.stream(prompt, max_tokens=self.tokens, stop_at_eog=False)))
        side.step(timed=False)
        return side

    def generation(self, seed: int, speculation: quoth.Speculation) -> tuple[Side, Side]:
        """Plain and speculative, step by step in turn."""
        prompt = random_words(40, seed)
        plain, other = self.side(prompt, seed, None), self.side(prompt, seed, speculation)
        while not (plain.done and other.done):
            behind = other if plain.done or (not other.done and len(other.tokens) < len(plain.tokens)) else plain
            behind.step()
        if plain.tokens != other.tokens:
            raise SystemExit(f"gate_floor: seed {seed}: speculation gave other tokens")
        return plain, other

    def line(self, generations: int, costs: Mapping[int, float] | None) -> str:
        """The record's line for one table of costs; None: the assumed one."""
        speculation = quoth.Speculation() if costs is None else quoth.Speculation(costs=costs)
        self.generation(0, speculation)  # warm
        found = [self.generation(seed, speculation) for seed in range(1, generations + 1)]
        most = CLIP * statistics.median(ns for plain, _ in found for ns in plain.steps_ns)
        totals = [[sum(min(ns, most) for ns in side.steps_ns) for side in pair] for pair in found]
        ratio = Spread.of(plain / other for plain, other in totals)
        together = sum(plain for plain, _ in totals) / sum(other for _, other in totals)
        clipped = [sum(ns > most for pair in found for ns in pair[which].steps_ns) for which in (0, 1)]
        stats = [other.decoder.stats for _, other in found]
        drafted, accepted = (sum(getattr(s, name) for s in stats) for name in ("drafted", "accepted"))
        table = stats[0].gate.costs if costs is None else "just measured"
        return (
            f'{{ costs = "{table}", ratio = {together:.4f}, median = {ratio.median:.4f}, low = {ratio.low:.4f}, '
            f"high = {ratio.high:.4f}, steps = {sum(s.steps for s in stats)}, "
            f"verifications = {sum(s.verify_steps for s in stats)}, drafted = {drafted}, accepted = {accepted}, "
            f"trips = {sum(s.gate.trips for s in stats)}, plain_ms = {most / CLIP / 1e6:.2f}, clipped = {clipped} }},"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 when everything was measured."""
    parser = argparse.ArgumentParser(description="Measure what speculation costs where drafts seldom hit.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a generation (default 256)")
    parser.add_argument("--generations", type=int, default=10, help="generations for each table (default 10)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=20)
    parser.add_argument("--threads", type=int, help="threads (default: as quoth chooses)")
    a = parser.parse_args(argv)
    model = quoth.Model(a.model, n_ctx=2048, threads=a.threads)
    floor = Floor(model, a.tokens, quoth.Sampling(temperature=a.temperature, top_k=a.top_k))
    measured = verify_costs(model, drafts=DRAFTS)
    points = [(d.k, d.cost.median, d.cost.high - d.cost.low) for d in measured.drafts]
    print(f'set = "{model.kernels}"\nthreads = {model.threads}\nplain_ms = {measured.plain_ns.median / 1e6:.2f}')
    print("points = [")
    for k, cost, spread in points:
        print(f"    {{ k = {k}, cost = {cost:.2f}, spread = {spread:.2f} }},")
    print("]\nfloor = [", flush=True)
    for costs in (None, cost_table([measured])):
        print(f"    {floor.line(a.generations, costs)}", flush=True)
    print("]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
