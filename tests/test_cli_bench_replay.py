"""A replay takes the steps that the decoder took, and pictures can be read on white and on black."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoth
from program import Run
from quoth.bench.replay import SOURCES, Replayed, replay_trace, replay_traces
from quoth.bench.traces import Trace, Turn, best_of_rows, read_traces, text_traces, write_traces
from quoth.bench.workloads import Workload, WorkloadResult, run_workload
from quoth.options import CoreSpeculation
from scripted import Scripted

COSTS = {1: 1.02, 4: 1.1, 8: 1.5, 16: 2.7}

ALWAYS = quoth.Gate(
    min_speedup=0.5, probe_margin=0.0, max_debt=1000.0, credit=1000.0, adapt_budget=False, first_risk=1000.0
)
"""A gate that does not look at the clock."""


def ids(*tokens: int) -> Any:
    return np.array(tokens, np.uint32)


def stream(*tokens: int, **more: Any) -> Trace:
    return Trace("s", "k", (Turn(ids(), ids(*tokens)),), **more)


# ---- the decoder's twin


@pytest.mark.parametrize(("min_draft", "recycling"), [(1, True), (2, True), (1, False)])
def test_a_replay_takes_the_steps_of_the_decoder(
    tiny_chat_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, min_draft: int, recycling: bool
) -> None:
    monkeypatch.setattr(CoreSpeculation, "live_costs", False)
    model = quoth.Model(tiny_chat_path, n_ctx=1024, threads=1)
    speculation = quoth.Speculation(costs=COSTS, gate=ALWAYS, min_draft=min_draft, recycling=recycling, max_draft=8)
    sampling = quoth.Sampling(temperature=0.3, top_k=4, seed=5)
    turns: tuple[Any, ...] = ("the user the user", "user the", "the the user")
    results = []
    for at, references in enumerate(((), ("the user the user the user", "us"))):
        workload = Workload(f"w{at}", "k", "the", (), turns, references, 60)
        result = WorkloadResult(workload)
        plain = run_workload(model, workload, sampling=sampling, speculation=None)
        result.add(plain, run_workload(model, workload, sampling=sampling, speculation=speculation))
        results.append(result)
    found = replayed(model, results, tmp_path, speculation)
    assert sum(one.accepted for one in found) > (30 if recycling else 8), "drafts hit"


def test_a_replay_takes_the_steps_of_answers_that_stop(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoreSpeculation, "live_costs", False)
    model = scripted.model(n_ctx=1024)
    speculation = quoth.Speculation(costs=COSTS, gate=ALWAYS, max_draft=8)
    workload = Workload("w", "k", None, (), ("a", "b", "c", "d"), (), 60)
    result = WorkloadResult(workload)
    sampling = scripted.say("hello")
    plain = run_workload(model, workload, sampling=sampling, speculation=None)
    result.add(plain, run_workload(model, workload, sampling=sampling, speculation=speculation))
    assert all(isinstance(answer.stop, int) for answer in plain.results)
    (found,) = replayed(model, [result], tmp_path, speculation)
    assert found.accepted > 5
    (trace,) = read_traces(tmp_path / "t.jsonl")
    for turn, answer in zip(trace.turns, plain.results, strict=True):
        assert turn.stopped
        assert turn.answer.tolist() == [*answer.tokens, answer.stop]
        assert answer.stop in trace.stops


def replayed(
    model: quoth.Model, results: list[WorkloadResult], folder: Path, speculation: quoth.Speculation
) -> list[Replayed]:
    """Write traces and replay them; each must take the decoder's steps."""
    write_traces(folder / "t.jsonl", model, results)
    traces = read_traces(folder / "t.jsonl")
    every = []
    for trace, result in zip(traces, results, strict=True):
        assert result.speculative is not None
        assert result.identical
        stats = result.speculative.stats
        found = replay_trace(trace, speculation, costs=COSTS)
        decoded = (stats.steps, stats.verify_steps, stats.drafted, stats.accepted)
        assert (found.steps, found.verify_steps, found.drafted, found.accepted) == decoded
        assert found.tokens == sum(len(turn.answer) - 1 for turn in trace.turns)
        for name in ("conversation", "recycling"):
            if name in stats.sources:
                own = stats.sources[name]
                assert found.sources[name] == (own.drafts, own.drafted, own.accepted)
        references = [s for name, s in stats.sources.items() if name.startswith("reference-")]
        assert found.sources.get("references", (0, 0, 0))[1] == sum(s.drafted for s in references)
        every.append(found)
    return every


def test_rows_of_a_trace_are_those_of_the_answer(tiny_model_path: Path) -> None:
    model = quoth.Model(tiny_model_path, n_ctx=256, threads=1)
    prompt, answer = [1, 2, 3], [(7 * i) % 500 for i in range(150)]
    top = best_of_rows(model, prompt, answer)
    session = model.session()
    row = session.forward(prompt, rows="last")[0]
    for i, token in enumerate(answer):
        best = sorted(range(model.n_vocab), key=lambda t: (-row[t], t))[:8]
        assert top[i].tolist() == best, i
        row = session.forward([token])[0]
    assert best_of_rows(model, prompt, []).shape == (0, 8)


# ---- figures


def test_speedup_is_tokens_over_cost_and_costs_are_the_tables() -> None:
    # A period of four: nothing to quote at first, then drafts of what the policy allows.
    trace = stream(*([1, 2, 3, 4] * 40))
    plain = replay_trace(trace, costs=COSTS, without=SOURCES, draft_ns=0)
    assert (plain.steps, plain.drafted, plain.cost, plain.speedup) == (159, 0, 159.0, 1.0)
    found = replay_trace(trace, quoth.Speculation(gate=ALWAYS), costs=COSTS, draft_ns=0)
    assert found.tokens == 159
    assert found.tokens == found.steps + found.accepted
    assert found.speedup > 3
    flat = replay_trace(trace, quoth.Speculation(gate=ALWAYS), costs=dict.fromkeys(range(1, 17), 1.0), draft_ns=0)
    assert flat.cost == flat.steps
    half = replay_trace(trace, costs=COSTS, without=SOURCES, draft_ns=5_000_000, plain_ns=10_000_000)
    assert half.cost == pytest.approx(159 * 1.5, rel=0.9)
    assert half.cost > 159


def test_each_source_can_be_switched_off() -> None:
    document = list(range(50, 90))
    trace = Trace("s", "k", (Turn(ids(1, 2, 1, 2, 1), ids(*document, *document)),), (ids(*document),), 100)
    used = quoth.Speculation(gate=ALWAYS)

    def drafting(*without: str) -> set[str]:
        found = replay_trace(trace, used, costs=COSTS, without=without)
        return {name for name, (_, drafted, _) in found.sources.items() if drafted}

    assert "references" in drafting()
    assert drafting("references") == {"conversation", "recycling"}
    assert drafting("references", "conversation") == {"recycling"}
    assert drafting("references", "recycling") == {"conversation"}
    assert drafting("conversation", "recycling") == {"references"}
    assert drafting(*SOURCES) == set()
    with pytest.raises(quoth.OptionsError, match="no source 'index'"):
        replay_trace(trace, without=["index"])


def test_opinions_are_counted_by_match_length() -> None:
    found = replay_trace(stream(*([1, 2, 3, 4] * 40)), costs=COSTS)
    rates = {start: (asked, right) for start, asked, right in found.by_match["conversation"]}
    assert rates[0] == (0, 0)
    assert rates[33][0] == rates[33][1] > 100
    assert sum(asked for asked, _ in rates.values()) <= 159


def test_tallies_add_up_and_compare_with_what_was_measured() -> None:
    traces = [
        Trace("a", "x", (Turn(ids(), ids(*([1, 2] * 30))),), n_vocab=9, measured=2.0),
        Trace("b", "x", (Turn(ids(), ids(*([3, 4] * 60))),), n_vocab=9, measured=4.0),
        Trace("c", "y", (Turn(ids(), ids(1, 2, 3)),), n_vocab=9),
    ]
    seen = []
    every, tallies = replay_traces(traces, lambda t: replay_trace(t, costs=COSTS), seen.append)
    assert seen == every
    assert [(tally.name, tally.n, tally.tokens) for tally in tallies] == [("x", 2, 178), ("y", 1, 2), ("all", 3, 180)]
    x, _, whole = tallies
    assert x.cost == pytest.approx(every[0].cost + every[1].cost)
    assert x.speedup == pytest.approx(178 / x.cost)
    assert x.measured == pytest.approx(178 / (59 / 2 + 119 / 4))
    assert whole.measured is None, "one trace has no measurement"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1 of"),
        ("3", "expected an object or a list of ids"),
        ('{"prompt": [1]}', "answer is missing"),
        ("[1, -2]", "answer is not a list of token ids"),
        ("[1, 2.5]", "answer is not a list of token ids"),
        ("[[1]]", "answer is not a list of token ids"),
        ('{"answer": [1, 2], "top": [[1]]}', "expected 2 rows"),
        ('{"answer": [1], "references": [["a"]]}', "a reference is not a list"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "t.jsonl").write_text(line)
    with pytest.raises(quoth.OptionsError, match=reason):
        read_traces(tmp_path / "t.jsonl")


def test_a_bare_list_is_a_stream_and_tokens_must_fit_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('[1, 2, 3]\n\n{"answer": [4], "prompt": [5], "n_vocab": 3}\n[]\n')
    first, second, empty = read_traces(tmp_path / "t.jsonl")
    assert (first.id, first.tokens, replay_trace(first).tokens) == ("t:1", 2, 2)
    assert replay_trace(empty).tokens == 0
    with pytest.raises(quoth.OptionsError, match="a token of the trace is 5, expected 0 to 2"):
        replay_trace(second)


def test_texts_are_streams_of_their_own_or_one(tiny_model_path: Path, tmp_path: Path) -> None:
    tokenizer = quoth.Model(tiny_model_path).tokenizer
    folder = tmp_path / "texts"
    (folder / "in").mkdir(parents=True)
    (folder / "b.py").write_text("b = 1\n")
    (folder / "in" / "a.txt").write_text("one two\n")
    (folder / "skipped.bin").write_bytes(b"x")
    (folder / "bad.md").write_bytes(b"\xff\xfe")
    (folder / "empty.py").touch()
    traces = list(text_traces(folder, tokenizer))
    assert [(t.id, t.kind, t.n_vocab) for t in traces] == [("b.py", "py", 512), (str(Path("in/a.txt")), "txt", 512)]
    assert tokenizer.decode(traces[0].turns[0].answer.tolist()) == "b = 1\n"
    (joined,) = text_traces(folder, tokenizer, join=True)
    assert joined.turns[0].answer.tolist() == [t for trace in traces for t in trace.turns[0].answer.tolist()]
    assert len(list(text_traces(folder, tokenizer, most=1))) == 1
    with pytest.raises(quoth.OptionsError, match="not UTF-8: byte 0xff"):
        list(text_traces(folder / "bad.md", tokenizer))


# ---- the command


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    lines = [
        {"id": "a", "kind": "x", "n_vocab": 9, "measured": 2.5, "turns": [{"prompt": [1], "answer": [1, 2] * 50}]},
        {"id": "b", "kind": "y", "n_vocab": 9, "measured": 1.0, "turns": [{"prompt": [1], "answer": [5, 3, 4, 7]}]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_command_judges_options_and_tables(run_quoth: Run, traces: Path, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"costs": {"1": 1.0, "16": 1.0}}))

    def replayed(*more: object) -> dict[str, Any]:
        ran = run_quoth("bench", "replay", traces, "--json", *more)
        assert ran.code == 0, ran.err
        found: dict[str, Any] = json.loads(ran.out)
        return found

    def whole(found: Mapping[str, Any]) -> dict[str, Any]:
        group: dict[str, Any] = found["groups"][-1]
        assert group["name"] == "all"
        return group

    shipped = replayed()
    assert shipped["costs"] == "shipped"
    assert whole(shipped)["measured"] == pytest.approx(102 / (99 / 2.5 + 3))
    free = replayed("--costs", "c.json")
    assert free["costs"] == "c.json"
    assert whole(free)["speedup"] > whole(shipped)["speedup"] > 1
    of_another = {"costs": {"1": 1.0}, "run": {"model": "x.gguf"}, "contexts": [{"plain_ns": {"median": 7e6}}]}
    (tmp_path / "x.json").write_text(json.dumps(of_another))
    other = replayed("--costs", "x.json")
    assert other["plain_ns"] == 7_000_000
    assert whole(other)["measured"] is None, "what another model measured is not compared"
    short = replayed("--max-draft", 2, "--option", "window=4", "--option", "recycling=false")
    assert 1 < whole(short)["tokens_per_step"] <= 3
    assert "recycling" not in whole(short)["sources"]
    assert short["options"] == ["window=4", "recycling=false", "max_draft=2"]
    none = replayed("--sources", "references", "--plain-ms", "2.5")
    assert whole(none)["drafted"] == 0
    assert none["plain_ns"] == 2_500_000
    ways = ("--against", "min_match=2 max_draft=2", "--against", "sources=recycling")
    compared = replayed("--max-draft", 2, "--option", "min_match=2", *ways)["ways"]
    assert [way["options"] for way in compared[1:]] == [["min_match=2", "max_draft=2"], ["sources=recycling"]]
    same = ("tokens_per_step", "acceptance", "speedup", "kinds")
    assert [compared[0][name] for name in same] == [compared[1][name] for name in same]
    assert compared[2]["speedup"] == pytest.approx(whole(replayed("--sources", "recycling"))["speedup"])
    page = run_quoth("bench", "replay", traces, "--record", "r.toml")
    assert "measured" in page.out
    assert "drafting took" in page.out
    assert "conversation: " in page.out
    assert (tmp_path / "r.toml").read_text().splitlines()[1] == 'command = "quoth bench replay t.jsonl"'


def test_the_command_reads_texts_and_costs_of_this_machine(
    run_quoth: Run, tiny_model_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one two three one two three one two three\n" * 4)
    command = ("bench", "replay", "a.txt", "--tokenizer", tiny_model_path, "--json")
    found = json.loads(run_quoth(*command).out)
    assert [group["name"] for group in found["groups"]] == ["txt", "all"]
    assert found["groups"][0]["accepted"] > 0
    unmeasured = run_quoth(*command, "--costs", tiny_model_path)
    assert (unmeasured.code, "never measured here" in unmeasured.last_error) == (2, True)
    assert run_quoth("bench", "verify", tiny_model_path, "--ctx-lengths", 8, "--rounds", 3, "--save").code == 0
    assert json.loads(run_quoth(*command, "--costs", tiny_model_path).out)["costs"].startswith("measured on this")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("missing.jsonl",), 1, "no such file or folder"),
        (("t.jsonl", "--sources", "x"), 2, "sources has 'x'"),
        (("t.jsonl", "--option", "speed=9"), 2, "there is no option 'speed', expected one of max_draft"),
        (("t.jsonl", "--option", "max_draft=99"), 2, "options: max_draft is 99"),
        (("t.jsonl", "--costs", "t.json"), 1, "t.json"),
        (("t.txt",), 2, "--tokenizer"),
    ],
)
def test_wrong_arguments_are_told(  # noqa: PLR0917
    traces: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    reason: str,
) -> None:
    from quoth.cli import main  # noqa: PLC0415

    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("a")
    assert main(["bench", "replay", *arguments]) == code
    assert reason in capsys.readouterr().err


# ---- pictures


def luminance(colour: str) -> float:
    """Relative luminance as the guidelines for accessible pages define it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#0d1117"])
def test_colours_are_seen_on_white_and_on_black(page: str) -> None:
    from quoth.bench import plot  # noqa: PLC0415

    for colour, least in ((plot.TEXT, 3.5), *((colour, 2.2) for colour in plot.COLOURS)):
        light, dark = sorted((luminance(colour), luminance(page)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= least, colour


def test_pictures_are_drawn_without_a_background_and_the_same_each_time(
    run_quoth: Run, traces: Path, tiny_model_path: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="pictures are drawn with matplotlib")
    from matplotlib.image import imread  # noqa: PLC0415

    from quoth.bench import plot  # noqa: PLC0415

    assert run_quoth("bench", "replay", traces, "--plot", "a.png").code == 0
    ran = run_quoth("bench", "verify", tiny_model_path, "--ctx-lengths", "8,16", "--rounds", 3, "--plot", "v.png")
    assert ran.code == 0, ran.err
    ratio = {"ratio": 1.5, "low": 1.2, "high": 1.7}
    groups = [{"name": name, "speedup": ratio} for name in ("repeat", "free-form", "all")]
    plot.plot_workloads(tmp_path / "w.png", groups, "title")
    for name in ("a.png", "v.png", "w.png"):
        pixels = imread(tmp_path / name)
        assert pixels.shape[2] == 4
        assert (pixels[..., 3] == 0).mean() > 0.5, "the background is transparent"
        assert (pixels[..., 3] > 0.9).any()
    for name in ("1.svg", "2.svg"):
        plot.plot_workloads(tmp_path / name, groups, "title")
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "2.svg").read_bytes()


def test_without_matplotlib_it_is_said_before_anything_is_measured(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quoth.cli import main  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "replay", str(traces), "--plot", str(tmp_path / "a.svg")]) == 1
    said = capsys.readouterr()
    assert said.err.strip() == "error: pictures need matplotlib, which is not installed: pip install 'quoth[plot]'"
    assert said.out == ""
