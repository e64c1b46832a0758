"""`tools/time_second_turn.py` compares what it says, and a second turn is charged for its new tokens alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import quoth
from program import ROOT

TOOLS = ROOT / "tools"
TEXT = "the user says that the others use it again and again, as users do. " * 20


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        spec = importlib.util.spec_from_file_location("time_second_turn", TOOLS / "time_second_turn.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules["time_second_turn"] = made
        spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("first", [40, 200])
@pytest.mark.parametrize("second", [5, 60])
def test_what_is_new_does_not_depend_on_what_is_cached(
    tool: ModuleType, tiny_chat_path: Path, first: int, second: int
) -> None:
    model = quoth.Model(tiny_chat_path, n_ctx=1024, threads=1)
    point = tool.Point(model, TEXT, first, second)
    found = [point.run() for _ in range(4)]
    assert all(run["ms"] > 0 and run["whole_ms"] > 0 for run in found)
    message, marks = point.message, len(model.tokenizer.encode("\nuser\n\nassistant\n")) + 5
    assert point.counts["new_tokens"] <= len(model.tokenizer.encode(message)) + marks
    assert point.counts["cached_tokens"] >= first
    # Each run begins at the same point.
    assert len(point.chat.messages) == 2
    assert point._went_on().decoder.cached_tokens >= point.counts["cached_tokens"]
    assert point._whole().decoder.cached_tokens == 0


def test_the_slope_is_that_of_the_line(tool: ModuleType) -> None:
    assert tool.slope([(1, 5.0), (2, 7.0), (4, 11.0)]) == pytest.approx(2.0)


def test_passages_stand_one_behind_the_other(tool: ModuleType, tiny_chat_path: Path) -> None:
    model = quoth.Model(tiny_chat_path, threads=1)
    one, two = tool.passages(model, TEXT, [30, 7])
    assert TEXT.startswith(one + two)
    with pytest.raises(SystemExit, match="expected at least"):
        tool.passages(model, TEXT, [10**6])
