"""Records are what was measured, and pages are what the records say."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from program import ROOT
from quoth.bench.paired import Spread
from quoth.bench.record import command_line, to_toml, write_record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("economics", ROOT / "tools" / "economics.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["economics"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- records

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def rounded(value: Any) -> Any:
    """A value as a record keeps it."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else value
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_a_record_is_read_as_what_was_written(data: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(data)) == rounded(data)


def test_a_record_leaves_out_what_is_not_known_and_spells_spreads_out(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.toml"
    figures = {"speed": Spread(2.0, 1.0, 3.0, 5), "peak": None, "rows": [{"k": 1, "spread": None}]}
    write_record(path, "a test", "quoth bench", {"threads": 2}, figures)
    found = tomllib.loads(path.read_text())
    speed = {"median": 2.0, "low": 1.0, "high": 3.0, "n": 5}
    assert found == {
        "what": "a test",
        "command": "quoth bench",
        "run": {"threads": 2},
        "speed": speed,
        "rows": [{"k": 1}],
    }
    assert list(path.parent.iterdir()) == [path]


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    write_record(path, "old", "c", {}, {})
    with pytest.raises(ZeroDivisionError):
        write_record(path, "new", "c", {}, {"bad": BadNumber(1.0)})
    assert tomllib.loads(path.read_text())["what"] == "old"
    assert list(tmp_path.iterdir()) == [path]


class BadNumber(float):
    def __format__(self, spec: str) -> str:
        return str(1 / 0)


def test_a_command_is_told_without_places_of_this_machine(tmp_path: Path) -> None:
    model = tmp_path / "a model.gguf"
    model.touch()
    told = command_line(
        [
            "bench",
            "verify",
            str(model),
            "--json",
            "--record",
            "/x/y.toml",
            "--fact=commit=1",
            "--plot",
            "z.svg",
            "-t",
            "2",
        ]
    )
    assert told == "quoth bench verify 'a model.gguf' -t 2"


# ---- pages


def test_the_pages_are_up_to_date_with_the_records(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run `python tools/economics.py`"


def test_every_record_is_told_on_the_page(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "economics.md").read_text(encoding="utf-8")
    for name in tool.read_records(tool.RECORDS):
        assert f"({'../benches/records'}/{name}.toml)" in page


RUN = {"machine": "M", "set": "scalar", "threads": 2, "date": "2026-01-01"}


def workloads_record(ratio: float) -> dict[str, Any]:
    some = {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "n": 3}
    drafting = {"median": 1e3, "low": 1e3, "high": 1e3, "n": 3}
    group = {
        "name": "all", "n": 1, "plain_rate": 5.0, "speculative_rate": 5.0 * ratio, "speedup": some, "worst": ratio,
        "total_speedup": some, "worst_id": "w", "tokens_per_step": 1.5, "acceptance": 0.5, "drafted": 10, "trips": 0,
        "draft_ns_per_token": drafting, "sources": {"conversation": {"drafts": 2, "drafted": 10, "accepted": 5}},
    }  # fmt: skip
    one = {"id": "w", "kind": "k", "identical": True, "speedup": some, "tokens_per_step": 1.5, "acceptance": 0.5}
    one |= {"tokens": 9, "trips": 0}
    groups = {"groups": [group], "subsets": [group | {"name": "copies"}], "workloads": [one]}
    return {"what": "w", "command": "c", "run": RUN, "rounds": 3, "temperature": 0.8, **groups}


def test_a_loss_is_bold_and_a_page_that_tells_something_else_is_stale(tool: ModuleType, tmp_path: Path) -> None:
    records = tmp_path / "records"
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- records: workloads -->\nold\n<!-- end -->\nafter\n")
    for ratio, expected in ((1.5, "1.50 × (1.40-1.60)"), (0.9, "**0.90 × (0.80-1.00)**")):
        data = workloads_record(ratio)
        write_record(records / "m-workloads.toml", data.pop("what"), data.pop("command"), data.pop("run"), data)
        arguments = [str(page), "--records", str(records)]
        assert tool.main([*arguments, "--check"]) == 1
        assert tool.main(arguments) == 0
        text = page.read_text()
        assert f"| {expected} |" in text
        assert text.startswith("before\n<!-- records: workloads -->\n")
        assert text.endswith("<!-- end -->\nafter\n")
        assert "old" not in text
        assert tool.main([*arguments, "--check"]) == 0


def test_the_headline_says_the_whole_job_and_the_losses(tool: ModuleType) -> None:
    greedy, sampled = workloads_record(1.5), workloads_record(0.9)
    for record, prose in ((greedy, 1.1), (sampled, 0.8)):
        record["groups"].insert(0, record["groups"][0] | {"name": "free-form"})
        record["groups"][0]["speedup"] = {"ratio": prose, "low": 0.7, "high": 1.2, "n": 3}
    sampled["groups"][1]["total_speedup"] = {"ratio": 0.95, "low": 0.7, "high": 1.2, "n": 3}
    records = {"m-workloads": greedy, "m.sampled-workloads": sampled, "m-replay": {"ways": [
        {"options": [], "speedup": 2.0}, {"options": ["max_draft=4"], "speedup": 2.05},
    ]}}  # fmt: skip
    assert tool.headline(records).splitlines() == [
        "m, 1 workloads of 1 kinds, plain decoding = 1:",
        "",
        "|  | decoding | with the prompts | prose, decoding | worst workload, decoding |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| greedy | 1.50 × (1.40-1.60) | 1.50 × (1.40-1.60) | 1.10 × (0.70-1.20) | 1.50 × (w) |",
        "| sampled, temperature 0.8 | **0.90 × (0.80-1.00)** | **0.95 × (0.70-1.20)** | **0.80 × (0.70-1.20)** "
        "| **0.90 ×** (w) |",
    ]
    assert tool.shipped(records) == "Best of 1 other settings in replays: m: 2.5 % ahead with max_draft=4.\n"
    rows = tool.summary(records).splitlines()
    assert rows[3].startswith("| **all** | 1.50 × (1.40-1.60) | 1.50 × (1.40-1.60) | **0.90 × (0.80-1.00)** | 1.50 |")
    assert "2 of 2 answers identical" in tool.summary(records)


def test_ratios_of_older_records_are_told_for_what_they_are(tool: ModuleType) -> None:
    """Those are medians of rounds, with speeds that are medians of their own."""
    old = workloads_record(1.5)
    for group in old["groups"]:
        group["speedup"] = {"median": 1.4, "low": 1.3, "high": 1.45, "n": 3}
        group["plain_rate"] = {"median": 7.0, "low": 6.0, "high": 8.0, "n": 3}
    told = tool.workloads({"m-workloads": old})
    assert "| **all** | 1 | 7 | 8 | 1.40 × (1.30-1.45) |" in told
    assert "median round" in told
    assert "summed times" in tool.workloads({"m-workloads": workloads_record(1.5)})


def test_what_was_not_measured_is_said(tool: ModuleType) -> None:
    for name in tool.TABLES:
        page = f"<!-- records: {name} -->\n<!-- end -->"
        assert tool.renewed(page, {}, "r") == f"<!-- records: {name} -->\n*Not measured yet.*\n<!-- end -->"
    with pytest.raises(ValueError, match="no table `nothing`"):
        tool.renewed("<!-- records: nothing -->\n<!-- end -->", {}, "r")


def test_the_cost_of_four_is_told_for_every_model_and_context(tool: ModuleType) -> None:
    cost = {"median": 1.2, "low": 1.1, "high": 1.3}
    high = {"median": 2.2, "low": 2.1, "high": 2.3}

    def record(*costs: dict[str, float]) -> dict[str, Any]:
        drafts = [[{"k": 2, "cost": cost}, {"k": 4, "cost": one}] for one in costs]
        return {"contexts": [{"n_cached": 64 * 8**at, "drafts": row} for at, row in enumerate(drafts)]}

    told = tool.four({"a-verify": record(cost, high), "b-verify": record(high), "c-speed": {}}).splitlines()
    assert told == [
        "| model | few cached tokens | many |",
        "| --- | ---: | ---: |",
        "| a | 1.20 (1.10-1.30), 64 cached | 2.20 (2.10-2.30), 512 cached |",
        "| b | 2.20 (2.10-2.30), 64 cached | - |",
    ]


def test_goals_are_met_or_missed(tool: ModuleType) -> None:
    figure = {"median": 1.01, "low": 1.0, "high": 1.02}
    measured = [
        {"what": "a", "figure": figure, "unit": "×", "most": 1.02},
        {"what": "b", "figure": figure, "unit": "×", "most": 1.005},
        {"what": "c", "figure": figure, "unit": "×", "least": 1.5},
        {"what": "d", "figure": figure, "unit": "×"},
    ]
    rows = tool.goals({"m-goals": {"measured": measured}}).splitlines()[2:]
    assert [row.split("|")[5].strip() for row in rows] == ["met", "**missed**", "**missed**", ""]


def test_goals_of_the_default_model_are_looked_up_in_its_records(tool: ModuleType) -> None:
    spoken = workloads_record(1.8)
    spoken["groups"][0] |= {"worst": 0.98, "worst_id": "w"}
    cost = {"median": 1.2, "low": 1.1, "high": 1.3}
    drafts = [{"k": k, "cost": cost} for k in (2, 4, 8)]
    records = {
        "smollm2-workloads": spoken,
        "smollm2-verify": {"contexts": [{"n_cached": 64, "drafts": drafts}]},
        "qwen3-0.6b-speed": {"bandwidth_share": 0.95},
        "smollm2-replay": {"groups": [{"name": "all", "speedup": 1.8, "measured": 1.5}]},
    }
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in tool.goals(records).splitlines()[2:]]
    told = {row[0]: row[2:] for row in rows}
    assert told["verifying 4 drafted tokens, 64 cached"] == [
        "1.20 (1.10-1.30) plain steps",
        "≤ 1.15 plain steps",
        "**missed**",
    ]
    assert told["verifying 8 drafted tokens, 64 cached"][2] == "met"
    assert told["speed of memory that decoding uses"] == ["95 %", "≥ 92 %", "met"]
    assert told["speedup, all"][2] == "**missed**"
    assert told["least speedup of a workload, w"] == ["0.98 ×", "≥ 0.97 ×", "met"]
    assert told["replay's speedup, away from the measured one"] == ["20.0 %", "≤ 10 %", "**missed**"]


def test_other_engines_stand_in_a_table_of_their_own(tool: ModuleType) -> None:
    figure = {"median": 0.87, "low": 0.8, "high": 0.9}
    rows = [
        {"engine": "e 1", "model": "m", "decode": {"median": 120.0, "low": 119.0, "high": 121.0}},
        {"engine": "e 1", "model": "m", "speculation": "n-gram", "speedup": figure, "answers": {"same": 17, "of": 24}},
    ]
    rows[0]["verify_cost"] = {"4": 2.6, "8": 4.0, "16": 6.8}
    lines = tool.peers({"peers": {"rows": rows}}).splitlines()
    plain = "| e 1 | m | off | 120 (119-121) | - | 2.60 / 4.00 / 6.80 | - | - | - | - |"
    assert plain in lines
    assert "| e 1 | m | n-gram | - | - | - | **0.87 × (0.80-0.90)** | - | - | 17 of 24 |" in lines
    assert "not measured yet" in tool.peers({"peers": {"rows": rows[:1]}})
    spoken = workloads_record(1.5)
    apart = tool.peers({"peers": {"rows": rows[:1]}, "m-peers": {"rows": rows[1:]}, "m-workloads": spoken}).splitlines()
    assert apart[2:4] == lines[2:4]
    assert apart[4] == "| quoth | m | on | - | - | - | 1.50 × (1.40-1.60) | 1.50 × (1.40-1.60) | - | 1 of 1 |"
