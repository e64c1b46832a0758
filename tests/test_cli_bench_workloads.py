"""Workloads run both ways in turn, and a single other token is a failure."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quoth
from program import Run
from quoth.bench import workloads
from quoth.bench.paired import Ratio
from quoth.bench.workloads import Workload, groups, measure_workloads, read_workloads, subsets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINES: list[dict[str, Any]] = [
    {
        "id": "r1",
        "kind": "repeat",
        "messages": [{"role": "user", "content": "the the user user the"}],
        "max_tokens": 40,
    },
    {
        "id": "m1",
        "kind": "multi-turn",
        "system": "the user",
        "turns": ["the user", "the", "user user"],
        "references": ["the user the user"],
        "max_tokens": 24,
    },
    {
        "id": "g1",
        "kind": "rag",
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "the"},
            {"role": "user", "content": "é\r\nthe"},
        ],
        "references": ["the user", ""],
        "max_tokens": 30,
    },
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps(line) + "\n\n" for line in LINES))
    return path


# ---- reading


def test_a_file_is_read_as_it_is(file: Path) -> None:
    repeat, multi, rag = read_workloads(file)
    assert (repeat.id, repeat.kind, repeat.system, repeat.max_tokens) == ("r1", "repeat", None, 40)
    assert multi.turns == ("the user", "the", "user user")
    assert [message["content"] for message in rag.history] == ["a", "the"]
    assert rag.turns == ({"role": "user", "content": "é\r\nthe"},)
    assert rag.references == ("the user", "")
    assert [w.copies for w in (repeat, multi, rag)] == [True, False, False]
    assert [w.id for w in read_workloads(file, ["rag", "repeat"])] == ["r1", "g1"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1 of `.*` is no workload"),
        ("[]", "it is list, expected an object"),
        ('{"id": 1, "kind": "k"}', "expected either messages or turns"),
        ('{"id": 1, "kind": "k", "messages": [{"role": "user"}], "turns": ["a"]}', "expected either messages or turns"),
        ('{"kind": "k", "turns": ["a"]}', "id is missing"),
        ('{"id": 1, "turns": ["a"]}', "kind is missing"),
        ('{"id": 1, "kind": "k", "turns": [1]}', "turns are not all texts"),
        ('{"id": 1, "kind": "k", "messages": ["a"]}', "messages are not all objects with a role"),
        ('{"id": 1, "kind": "k", "turns": ["a"], "references": [1]}', "references are not all texts"),
        ('{"id": 1, "kind": "k", "turns": ["a"], "max_tokens": 0}', "max_tokens is 0"),
        ('{"id": 1, "kind": "k", "turns": ["a"]}\n{"id": 1, "kind": "k", "turns": ["a"]}', "line 2 .* occurs twice"),
        ("", "has no workloads"),
    ],
)
def test_what_is_no_workload_is_refused_with_its_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(quoth.OptionsError, match=reason):
        read_workloads(path)


def test_an_unknown_kind_is_refused_with_those_that_there_are(file: Path) -> None:
    with pytest.raises(quoth.OptionsError, match=r"kind 'prose' is not in .* expected some of multi-turn, rag, repeat"):
        read_workloads(file, ["repeat", "prose"])


# ---- running


class Script:
    """Stands in for the model: both ways give the same tokens, in prepared times."""

    def __init__(self, tokens: Callable[[str, bool, int], tuple[int, ...]] | None = None) -> None:
        self.order: list[tuple[str, bool]] = []
        self.limits: set[int | None] = set()
        self.tokens = tokens or (lambda id, speculative, run: (1, 2, 3, 4, 5))
        self.times: Callable[[str, bool, int], int] = lambda id, speculative, run: (
            {"a": 100, "b": 500}[id] * (run + 1) // (2 if speculative else 1)
        )

    def __call__(
        self, model: Any, workload: Workload, *, sampling: Any, speculation: Any, max_tokens: int | None = None
    ) -> workloads.Run:
        speculative = speculation is not None
        if max_tokens == 16:  # warming up
            return None  # type: ignore[return-value]
        run = sum(1 for id, _ in self.order if id == workload.id) // 2
        self.order.append((workload.id, speculative))
        ns = self.times(workload.id, speculative, run)
        tokens = self.tokens(workload.id, speculative, run)
        sources = {"reference-1": quoth.SourceStats(2, 6, 3)}
        sources |= {"reference-2": quoth.SourceStats(1, 4, 0)}
        stats = quoth.Stats(
            committed=len(tokens),
            steps=2 if speculative else 4,
            tokens_per_step=2.0 if speculative else 1.0,
            decode_ns=ns,
            prefill_ns=100,
            draft_ns=10,
            drafted=10,
            accepted=3,
            gate=quoth.GateStats("open", trips=1),
            sources=sources,
        )
        result = quoth.Result("", tokens, "length", None, None, stats)
        return workloads.Run((result,), ((7,),), stats)


TWO = [Workload(id, kind, None, (), ("x",), (), 8) for id, kind in (("a", "repeat"), ("b", "free-form"))]


def measured(monkeypatch: pytest.MonkeyPatch, script: Script, rounds: int = 3) -> list[workloads.WorkloadResult]:
    monkeypatch.setattr(workloads, "run_workload", script)
    return measure_workloads(None, TWO, rounds=rounds)  # type: ignore[arg-type]


def test_each_workload_runs_both_ways_in_each_round_and_either_goes_first_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script()
    measured(monkeypatch, script)
    plain, spec = False, True
    once = [("a", plain), ("a", spec), ("b", spec), ("b", plain)]
    other = [("a", spec), ("a", plain), ("b", plain), ("b", spec)]
    assert script.order == once + other + once


def test_ratios_are_of_summed_times_and_of_prompts_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    results = measured(monkeypatch, Script())
    made = {group.name: group for group in groups(results)}
    assert list(made) == ["repeat", "free-form", "all"]
    whole = made["all"]
    assert whole.speedup == Ratio(2, 2, 2, 3)
    # 600, 1200, 1800 ns plain; half of it speculative; 200 ns of prompts on both sides.
    assert whole.total_speedup == Ratio(4200 / 2400, 800 / 500, 2000 / 1100, 3)
    assert whole.plain_rate == pytest.approx(3 * 8 / 3600e-9)
    assert whole.speculative_rate == pytest.approx(3 * 8 / 1800e-9)
    assert whole.draft_ns_per_token.median == pytest.approx(20 / 8)
    assert (whole.n, whole.trips, whole.worst, whole.geometric_mean) == (2, 2, 2, pytest.approx(2))
    assert list(whole.sources) == ["references"]
    assert (whole.sources["references"].drafted, whole.sources["references"].accepted) == (20, 6)


def test_what_kinds_have_in_common_is_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    (copies,) = subsets(measured(monkeypatch, Script()))
    assert (copies.name, copies.n, copies.speedup.ratio) == ("copies", 1, 2)


BUSY = [(100, 90), (100, 300), (1000, 400), (30, 60), (100, 40)]
"""Times of rounds on a machine that other processes use: (plain, speculative)."""


@pytest.mark.parametrize("rounds", [1, 3, 4, 5])
def test_columns_do_not_contradict_each_other_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Medians of each column once made 68 and 60 tokens a second a ratio of 1.01, and the worst above its group."""
    script = Script()
    script.times = lambda id, speculative, run: BUSY[run if id == "a" else -1 - run][speculative]
    results = measured(monkeypatch, script, rounds)
    own = {result.workload.id: result.speedup.ratio for result in results}
    for group in (*groups(results), *subsets(results)):
        assert group.speculative_rate / group.plain_rate == pytest.approx(group.speedup.ratio)
        assert group.speedup.low <= group.speedup.ratio <= group.speedup.high
        assert group.worst <= group.speedup.ratio <= max(own.values())
        assert group.worst == own[group.worst_id]
    whole = groups(results)[-1]
    assert whole.speedup.ratio == pytest.approx(
        sum(BUSY[run][0] + BUSY[-1 - run][0] for run in range(rounds))
        / sum(BUSY[run][1] + BUSY[-1 - run][1] for run in range(rounds))
    )


def test_a_workload_with_another_token_has_no_speed_and_is_run_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(lambda id, speculative, run: (1, 2, 9) if (id, speculative, run) == ("b", True, 1) else (1, 2, 3))
    results = measured(monkeypatch, script)
    assert [result.identical for result in results] == [True, False]
    assert results[1].difference is not None
    at, difference = results[1].difference
    assert (at, difference.at, difference.plain, difference.speculative) == (0, 2, 3, 9)
    assert [group.name for group in groups(results)] == ["repeat", "all"]
    assert sum(id == "b" for id, _ in script.order) == 4


def test_a_later_round_that_says_something_else_is_a_difference_too(monkeypatch: pytest.MonkeyPatch) -> None:
    results = measured(monkeypatch, Script(lambda id, speculative, run: (1, 2, 3 + run)))
    assert not any(result.identical for result in results)
    assert groups(results) == []


def test_sampled_runs_need_a_seed(file: Path) -> None:
    with pytest.raises(quoth.OptionsError, match="seed is None"):
        measure_workloads(None, read_workloads(file), sampling=quoth.Sampling(temperature=1.0))  # type: ignore[arg-type]
    with pytest.raises(quoth.OptionsError, match="0 rounds"):
        measure_workloads(None, read_workloads(file), rounds=0)  # type: ignore[arg-type]


# ---- the command


@pytest.mark.parametrize("more", [(), ("--temperature", "0.8", "--seed", "3", "--max-draft", "4")])
def test_real_runs_are_identical_and_all_that_was_asked_for_is_written(
    run_quoth: Run, tiny_chat_path: Path, file: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    asked = ("--record", "r.toml", "--fact", "commit=abc", "--traces", "t.jsonl", "--json")
    ran = run_quoth("bench", "workloads", tiny_chat_path, file, "-n", 20, *asked, *more)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["identical"] is True
    assert [one["id"] for one in found["workloads"]] == ["r1", "m1", "g1"]
    assert [one["tokens"] <= limit for one, limit in zip(found["workloads"], (20, 60, 20), strict=True)] == [True] * 3
    assert [group["name"] for group in found["groups"]] == ["repeat", "multi-turn", "rag", "all"]
    assert [group["name"] for group in found["subsets"]] == ["copies", "reference-only"]
    for group in (*found["groups"], *found["subsets"]):
        assert group["plain_rate"] > 0, "plain decoding always runs"
        assert group["speedup"]["n"] == 3
        assert group["speedup"]["low"] <= group["speedup"]["ratio"] <= group["speedup"]["high"]
    record = tomllib.loads((tmp_path / "r.toml").read_text())
    assert record["run"]["commit"] == "abc"
    assert record["run"]["model"] == "chat.gguf"
    assert record["command"].startswith("quoth bench workloads chat.gguf some.jsonl -n 20")
    assert "abc" not in record["command"]
    assert record["groups"][-1]["steps"] == found["groups"][-1]["steps"]
    traces = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [len(trace["turns"]) for trace in traces] == [1, 3, 1]
    page = run_quoth("bench", "workloads", tiny_chat_path, file, "-n", 4, "--kinds", "repeat,rag")
    assert page.code == 0
    assert "2 of 2 workloads identical" in page.out
    assert "multi-turn" not in page.out


def test_another_token_is_exit_code_1_and_is_named(
    tiny_chat_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quoth.cli import main  # noqa: PLC0415

    honest = workloads.run_workload

    def lying(model: Any, workload: Workload, *, speculation: Any, **rest: Any) -> workloads.Run:
        run = honest(model, workload, speculation=speculation, **rest)
        if workload.id == "m1" and speculation is not None:
            last = run.results[-1]
            changed = (*last.tokens[:-1], last.tokens[-1] + 1)
            object.__setattr__(last, "tokens", changed)
        return run

    monkeypatch.setattr(workloads, "run_workload", lying)
    assert main(["bench", "workloads", str(tiny_chat_path), str(file), "-n", "5"]) == 1
    said = capsys.readouterr()
    assert "error: m1: token 4 of answer 3 differs" in said.err
    assert "2 of 3 workloads identical" in said.out


def test_wrong_arguments_are_refused_before_anything_runs(run_quoth: Run, tiny_chat_path: Path, file: Path) -> None:
    command = ("bench", "workloads", tiny_chat_path, file)
    for more, code, reason in (
        (("--rounds", 2), 2, "--rounds"),
        (("--fact", "novalue"), 2, "--fact is 'novalue'"),
        (("--kinds", "nothing"), 2, "kind 'nothing' is not in"),
        (("--plot", "picture.gif"), 2, "expected a name that ends in one of .svg, .png, .pdf"),
    ):
        ran = run_quoth(*command, *more)
        assert ran.code == code
        assert reason in ran.err
    assert run_quoth("bench", "workloads", tiny_chat_path, "missing.jsonl").code == 1


def test_a_model_without_a_chat_template_says_so(run_quoth: Run, tiny_model_path: Path, file: Path) -> None:
    ran = run_quoth("bench", "workloads", tiny_model_path, file)
    assert ran.code == 1
    assert "chat template" in ran.last_error
