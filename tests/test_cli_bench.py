"""Measurements are of the right thing: order, ratios, rows, and what is kept of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quoth
from program import Run
from quoth.bench import quiet, speed, verify
from quoth.bench.bandwidth import read_bandwidth, reader
from quoth.bench.compare import LEAST_PAIRS, MOST_CHANCE, Verdict, compare
from quoth.bench.paired import Ratio, Spread, alternate, chance, quantile
from quoth.bench.quiet import Quiet, watch
from quoth.costs import measured_costs, save_costs

FLOATS = st.floats(1e-3, 1e6)


# ---- medians and pairs


@given(st.lists(FLOATS, min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == pytest.approx(np.quantile(values, share))


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_a_rate_keeps_the_order_of_its_spread(times: list[float]) -> None:
    spread = Spread.of(times)
    rate = spread.per(1000)
    assert rate.low <= rate.median <= rate.high
    assert rate.median == pytest.approx(1000 / spread.median)
    assert rate.high == pytest.approx(1000 / spread.low)


def test_nothing_has_no_median() -> None:
    with pytest.raises(ValueError, match="found none"):
        Spread.of([])


TIMES = st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 10**12)), min_size=1, max_size=12)


@given(st.lists(TIMES, min_size=1, max_size=5))
def test_a_ratio_lies_between_its_parts_of_pairs_and_of_groups(groups: list[list[tuple[int, int]]]) -> None:
    parts = [Ratio.of(pairs) for pairs in groups]
    whole = Ratio.of([pair for pairs in groups for pair in pairs])
    for one in (*parts, whole):
        assert one.low <= one.ratio * (1 + 1e-12)
        assert one.ratio <= one.high * (1 + 1e-12)
    assert min(part.ratio for part in parts) <= whole.ratio * (1 + 1e-12)
    assert whole.ratio <= max(part.ratio for part in parts) * (1 + 1e-12)
    with pytest.raises(ValueError, match="found none"):
        Ratio.of([])


@given(TIMES, st.integers(1, 12))
def test_the_sign_test_counts_every_outcome_that_is_as_one_sided(pairs: list[tuple[int, int]], n: int) -> None:
    sides = [a > b for a, b in pairs if a != b]
    most = max(sum(sides), len(sides) - sum(sides))
    # The slow twin throws a fair coin in every way there is.
    ways = list(itertools.product((False, True), repeat=len(sides)))
    as_one_sided = [way for way in ways if max(sum(way), len(way) - sum(way)) >= most]
    assert chance(pairs) == pytest.approx(len(as_one_sided) / len(ways))
    assert (chance([(2, 1)] * n) <= MOST_CHANCE) == (n >= LEAST_PAIRS)


def test_work_alternates_and_each_is_timed_as_its_own() -> None:
    now = 0
    order = ""

    def work(name: str, takes: int) -> None:
        nonlocal now, order
        order += name
        now += takes

    pairs = alternate(lambda: work("a", 3), lambda: work("b", 5), 4, lambda: now, lambda: work(".", 100))
    assert order == "a.b.b.a.a.b.b.a."
    assert pairs == [(3, 5)] * 4


# ---- costs of verification


class Clock:
    """A clock that steps make go on: one row takes 1000 ns, each further row 100."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class TimedSession:
    """A session that only makes time pass; row i of position p is (p, token)."""

    def __init__(self, clock: Clock, lying: bool = False) -> None:
        self.clock, self.lying, self.length, self.rows = clock, lying, 0, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return self.length

    def forward(self, tokens: list[int], rows: str = "all") -> np.ndarray[Any, Any]:
        self.rows.append((self.length, len(tokens)))
        out = np.array([[self.length + i, token] for i, token in enumerate(tokens)], np.float32)
        if self.lying and len(tokens) > 2:
            out[2] += 1e-6
        self.length += len(tokens)
        self.clock.now += 900 + 100 * len(tokens)
        return out

    @property
    def _session(self) -> TimedSession:
        return self

    def best(self, tokens: list[int], k: int) -> list[list[int]]:
        assert k == (1 if len(tokens) == 1 else verify.WIDTH), "a greedy step keeps one token of its row"
        self.forward(tokens)
        return [[0] * k for _ in tokens]

    def truncate(self, n: int) -> None:
        self.length = min(self.length, n)


class TimedModel:
    n_vocab, n_ctx = 100, 64

    def __init__(self, session: TimedSession) -> None:
        self.made = session

    def session(self) -> TimedSession:
        return self.made


def test_costs_are_ratios_to_the_plain_steps_beside() -> None:
    clock = Clock()
    session = TimedSession(clock)
    found = verify.verify_costs(TimedModel(session), 20, drafts=(4, 1), rounds=3, clock=clock)  # type: ignore[arg-type]
    assert [(p.k, p.cost.median, p.ns.median) for p in found.drafts] == [(1, 1.1, 1100), (4, 1.4, 1400)]
    assert found.noise == Spread(1, 1, 1, 3)
    assert found.plain_ns.median == 1000
    assert found.plain_ns.n == 9
    timed = [row for row in session.rows if row[0] == 20]
    assert len(timed) == len(session.rows) - 1 - 4, "a step began elsewhere than at the context's end"
    assert verify.cost_table([found]) == {1: 1.1, 4: 1.4}


def test_the_best_tokens_of_rows_are_those_of_the_logits(tiny_model_path: Path) -> None:
    model = quoth.Model(tiny_model_path, n_ctx=64, threads=1)
    tokens = [5, 400, 7, 7, 31]
    rows = model.session().forward(tokens)
    session = model.session()
    assert session._session.best(tokens[:2], 3) == [[*np.argsort(-row, kind="stable")[:3]] for row in rows[:2]]
    assert session._session.best(tokens[2:], 8) == [[*np.argsort(-row, kind="stable")[:8]] for row in rows[2:]]
    for wrong, error in (([], quoth.OptionsError), ([512], quoth.OptionsError), ([1] * 60, quoth.ContextFullError)):
        with pytest.raises(error):
            session._session.best(wrong, 1)
        assert len(session) == 5


def test_the_table_is_the_mean_over_contexts() -> None:
    def measured(n_cached: int, cost: float) -> verify.VerifyCosts:
        some = Spread(cost, cost, cost, 1)
        return verify.VerifyCosts(n_cached, some, some, (verify.DraftCost(2, some, some),))

    one, two, cheap = measured(64, 1.2), measured(512, 1.4), measured(64, 0.7)
    assert verify.cost_table([one, two]) == {2: pytest.approx(1.3)}
    assert verify.cost_table([cheap]) == {2: 1.0}, "no verification is cheaper than a plain step"


def test_rows_that_differ_stop_the_measurement() -> None:
    clock = Clock()
    with pytest.raises(quoth.InternalError, match="row 2 of 5 differs"):
        verify.verify_costs(TimedModel(TimedSession(clock, lying=True)), 20, drafts=(4,), rounds=3, clock=clock)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"drafts": ()}, {"drafts": (0,)}, {"rounds": 0}, {"n_cached": -1}, {"n_cached": 60}])
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(quoth.OptionsError):
        verify.verify_costs(TimedModel(TimedSession(Clock())), **{"n_cached": 1, "drafts": (4,), **wrong})  # type: ignore[arg-type]


def test_costs_are_kept_for_the_next_decoder(run_quoth: Run, tiny_model_path: Path, tmp_path: Path) -> None:
    command = ("bench", "verify", tiny_model_path, "--ctx-lengths", "8,16", "--rounds", 3, "--json")
    assert json.loads(run_quoth(*command, "--no-save").out)["saved"] is None
    assert not (tmp_path / "cache").exists()
    ran = run_quoth(*command, "--save")
    found = json.loads(ran.out)
    assert found["saved"].startswith(str(tmp_path / "cache" / "costs"))
    assert [c["n_cached"] for c in found["contexts"]] == [8, 16]
    assert [d["k"] for d in found["contexts"][0]["drafts"]] == list(verify.DRAFTS)
    kept = measured_costs(quoth.Model(tiny_model_path), tmp_path / "cache")
    assert kept is not None
    assert dict(kept[0]) == {int(k): pytest.approx(c, abs=1e-4) for k, c in found["costs"].items()}
    later = json.loads(run_quoth("generate", tiny_model_path, "--raw", "-p", "a", "-n", 4, "--json").out)
    assert later["stats"]["gate"]["costs"].startswith("measured on this machine")
    other = json.loads(
        run_quoth(
            "generate", tiny_model_path, "--raw", "-p", "a", "-n", 4, "--json", "-t", 1, "--kernels", "scalar"
        ).out
    )
    assert "measured on this machine" not in other["stats"]["gate"]["costs"].replace("not measured", "")


def test_a_disturbed_measurement_is_not_kept(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quoth.cli import main  # noqa: PLC0415

    monkeypatch.setenv("QUOTH_CACHE", str(tmp_path))
    monkeypatch.setattr(Quiet, "disturbed", property(lambda self: True))
    command = ["bench", "verify", str(tiny_model_path), "--ctx-lengths", "0", "--rounds", "3"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "warning: other processes" in said.err
    assert "nothing is kept" in said.err
    assert "cached tokens" in said.out
    assert list(tmp_path.iterdir()) == []
    assert main([*command, "--save"]) == 0
    assert "kept in" in capsys.readouterr().err


def test_measured_costs_outside_the_gates_range_are_not_used(tiny_model_path: Path, tmp_path: Path) -> None:
    model = quoth.Model(tiny_model_path)
    save_costs(model, {1: 0.1}, "2026-01-01", tmp_path)
    assert measured_costs(model, tmp_path) is None
    save_costs(model, {1: 1.25}, "2026-01-01", tmp_path)
    assert measured_costs(model, tmp_path) == ({1: 1.25}, "measured on this machine, 2026-01-01")


@pytest.mark.parametrize(
    ("share", "preempted", "disturbed"),
    [(0.98, 60.0, False), (0.5, 7000.0, True), (0.5, 60.0, False), (0.5, None, True), (0.98, 7000.0, False)],
)
def test_a_measurement_is_disturbed_if_it_waits_and_is_put_aside(
    share: float, preempted: float | None, disturbed: bool
) -> None:
    assert Quiet(share, preempted).disturbed is disturbed


def test_watching_divides_the_time_of_the_processor_by_that_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    walls, cpus = iter([5.0, 7.0]), iter([1.0, 2.0])
    monkeypatch.setattr(quiet.time, "perf_counter", lambda: next(walls))
    monkeypatch.setattr(quiet.time, "process_time", lambda: next(cpus))
    with watch(4) as found:
        pass
    assert found.share == 1 / (2 * 4)


# ---- speed


def test_speed_measures_what_fits_and_counts_its_bytes(tiny_model_path: Path) -> None:
    model = quoth.Model(tiny_model_path, n_ctx=200)
    calls: list[tuple[int, int]] = []
    found = speed.measure_speed(
        model,
        prompts=(4, 100, 500),
        depths=(0, 64, 180),
        rounds=2,
        progress=lambda *c: calls.append(c),
        read_bytes=1 << 20,
    )
    assert [(r.n, r.tokens_per_second.n) for r in found.prefill] == [(4, 2), (100, 2)]
    assert [(r.n, r.tokens_per_second.n) for r in found.decode] == [(0, 2), (64, 2)]
    assert all(r.tokens_per_second.median > 0 for r in (*found.prefill, *found.decode))
    assert calls[-1] == (12, 12)
    assert found.cache_tokens == 64 + speed.STEPS
    assert found.weight_bytes == model._model.weight_bytes
    steps = found.decode[0].tokens_per_second.median
    assert found.bandwidth_share == pytest.approx(found.bytes_per_step * steps / found.bandwidth_best)
    with pytest.raises(quoth.OptionsError):
        speed.measure_speed(model, prompts=(500,), rounds=1)


class FileOf:
    """A model whose file has these tensors."""

    def __init__(self, metadata: dict[str, Any], *tensors: tuple[str, int]) -> None:
        self.metadata = {"general.architecture": "any", **metadata}
        self._file = self
        self._tensors = tensors

    def tensors(self) -> list[tuple[str, list[int], str, int, int]]:
        return [(name, [], "F32", n_bytes, 0) for name, n_bytes in self._tensors]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (FileOf({}, ("token_embd.weight", 100), ("blk.0.ffn_up.weight", 10)), 110),
        (FileOf({}, ("token_embd.weight", 100), ("output.weight", 100), ("blk.0.ffn_up.weight", 10)), 110),
        (FileOf({}, ("token_embd.weight", 100), ("per_layer_token_embd.weight", 1000)), 100),
        (
            FileOf(
                {"any.expert_count": 8, "any.expert_used_count": 2},
                ("blk.0.ffn_up_exps.weight", 80),
                ("blk.0.ffn_up.weight", 1),
            ),
            21,
        ),
    ],
)
def test_a_step_reads_all_weights_but_embeddings_and_idle_experts(model: Any, expected: int) -> None:
    assert speed.bytes_per_step(model) == expected


def test_speed_prints_a_page_and_json(run_quoth: Run, tiny_model_path: Path) -> None:
    command = ("bench", "speed", tiny_model_path, "--rounds", 1)
    found = json.loads(run_quoth(*command, "--json").out)
    # The model was made for 256 tokens.
    assert [r["n"] for r in found["prefill"]] == [32, 128]
    assert [r["n"] for r in found["decode"]] == [0]
    assert found["run"]["model"] == "tiny.gguf"
    page = run_quoth(*command)
    assert page.code == 0
    for word in ("prompt", "decode, cached", "weights", "memory read", "used by decoding"):
        assert word in page.out


def test_a_wrong_token_stops_the_measurement(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quoth.Model(tiny_model_path, n_ctx=64)
    honest = quoth.Session.forward
    monkeypatch.setattr(quoth.Session, "forward", lambda self, tokens, rows="all": -honest(self, tokens, rows))
    with pytest.raises(quoth.InternalError, match="token 0 of a plain decoder"):
        speed.measure_speed(model, prompts=(4,), depths=(0,), rounds=1, read_bytes=1 << 20)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_byte_is_read(threads: int) -> None:
    with reader(threads, 4 * 1001) as array:
        assert array.n_bytes == 4004
        assert sum(len(part) for part in array._parts) == 1001
        assert len(array._parts) == threads
        array._parts[-1][-1] = 2
        with pytest.raises(AssertionError):
            array.bytes_per_second()


def test_bandwidth_says_how_it_was_measured() -> None:
    found = read_bandwidth(2, 8 << 20, passes=3)
    assert found.how == "2 threads reading 8 MiB, best of 3 passes"
    assert found.best >= found.median > 0


# ---- plain against speculative

PLAIN, FAST, SLOW = 200, 100, 300


def results(
    plain: list[list[int]],
    speculative: list[list[int]],
    times: list[int] | None = None,
    drafted: int = 4,
    accepted: int = 3,
) -> Iterator[Any]:
    """Decoders that give prepared tokens in prepared times, and the order in which they were asked."""
    asked: list[str] = []
    queues = {"p": iter(plain), "s": iter(speculative)}
    clock = {"p": itertools.repeat(PLAIN), "s": iter(times or itertools.repeat(FAST))}

    def run(kind: str) -> quoth.Result:
        asked.append(kind)
        tokens = tuple(next(queues[kind]))
        guesses = {"drafted": drafted, "accepted": accepted} if kind == "s" else {}
        stats = quoth.Stats(
            committed=len(tokens), steps=1, tokens_per_step=1.0, decode_ns=next(clock[kind]), prefill_ns=100, **guesses
        )
        return quoth.Result("", tokens, "length", None, None, stats)

    yield lambda pairs: compare(lambda: "p", lambda: "s", run, pairs)  # type: ignore[arg-type,return-value]
    yield asked


def test_pairs_begin_with_either_in_turn_and_speeds_and_ratio_are_of_summed_times() -> None:
    go, asked = results([[1, 2]] * 4, [[1, 2]] * 4, [100, 100, 50, 150])
    found = go(4)
    assert asked == list("psspps" + "sp")
    assert found.difference is None
    assert found.speedup == Ratio(2, 200 / 150, 4, 4)
    assert found.total_speedup == Ratio(1.5, 1.2, 2, 4)
    assert found.plain_rate == pytest.approx(1 / 200e-9)
    assert found.speculative_rate / found.plain_rate == pytest.approx(found.speedup.ratio)


@pytest.mark.parametrize(
    ("plain", "speculative", "at", "tokens"),
    [
        ([[1, 2, 3]], [[1, 9, 3]], 1, (2, 9)),
        ([[1, 2, 3]], [[1, 2]], 2, (3, None)),
        ([[1, 2]], [[1, 2, 3]], 2, (None, 3)),
        ([[1, 2], [7, 2]], [[1, 2], [1, 2]], 0, (1, 7)),
    ],
)
def test_the_first_difference_of_any_run_is_found_and_ends_it(
    plain: list[list[int]], speculative: list[list[int]], at: int, tokens: tuple[int | None, int | None]
) -> None:
    go, asked = results(plain, speculative)
    found = go(5)
    assert len(asked) == 2 * len(plain)
    assert found.difference is not None
    assert (found.difference.at, found.difference.plain, found.difference.speculative) == (at, *tokens)


@pytest.mark.parametrize(
    ("times", "drafted", "accepted", "word", "reason"),
    [
        ([FAST] * 6, 4, 3, "faster", "3.1 % of comparisons"),
        ([SLOW] * 6, 4, 3, "slower", "3.1 % of comparisons"),
        ([SLOW] * 6, 4, 0, "slower", "3.1 % of comparisons"),
        # The machine was busy, first in plain runs, then in speculative ones.
        ([FAST] * 6, 4, 0, "no difference", "no drafted token was accepted"),
        ([FAST] * 6, 0, 0, "no difference", "nothing was drafted"),
        ([SLOW] * 6, 0, 0, "no difference", "nothing was drafted"),
        # One pair of nine may say the contrary, one of six may not.
        ([FAST] * 8 + [SLOW], 4, 3, "faster", "3.9 % of comparisons"),
        ([FAST] * 5 + [SLOW], 4, 3, "no difference", "22 % of comparisons"),
        ([FAST] * 8 + [100 * SLOW], 4, 3, "no difference", "most pairs say the contrary of their sum"),
        ([FAST] * 5, 4, 3, "no difference", "5 pairs cannot tell one from chance, 6 can"),
        ([PLAIN] * 6, 4, 3, "no difference", "100 % of comparisons"),
    ],
)
def test_a_verdict_needs_a_difference_beyond_chance_and_a_cause(
    times: list[int], drafted: int, accepted: int, word: str, reason: str
) -> None:
    n = len(times)
    go, _ = results([[1]] * n, [[1]] * n, times, drafted, accepted)
    verdict = go(n).verdict
    assert verdict.word == word
    assert reason in verdict.reason


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=1, max_size=20), st.booleans())
def test_exchanging_both_ways_turns_a_verdict_into_its_contrary(pairs: list[tuple[int, int]], drafted: bool) -> None:
    verdict = Verdict.of(pairs, 8 * drafted, 4 * drafted)
    other = Verdict.of([(b, a) for a, b in pairs], 8 * drafted, 4 * drafted)
    contrary = {"faster": "slower", "slower": "faster", "no difference": "no difference"}
    assert other.word == contrary[verdict.word]
    assert verdict.word == "no difference" or drafted
