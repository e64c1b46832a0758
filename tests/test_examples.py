"""The examples run as they are, with the default model, and show what they promise."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import quoth
from program import ROOT, program_env

EXAMPLES = ROOT / "examples"


def run(name: str, model: Path, folder: Path, *args: object) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--model", model, *map(str, args)],
        env=program_env(folder), cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern, text)
    assert found is not None, text
    return [int(group) for group in found.groups()]


def test_every_example_has_a_test_here_and_says_how_to_call_it() -> None:
    own = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.stem}"' in own
        assert f"python examples/{path.name}" in path.read_text(encoding="utf-8")


def test_answers_about_documents_quote_them(smollm2_path: Path, tmp_path: Path) -> None:
    out = run("rag_with_references", smollm2_path, tmp_path)
    assert "Northpoint to Gull Rock" in out
    tokens, steps = numbers(r"(\d+) tokens in (\d+) steps", out)
    assert steps < tokens / 2
    assert "reference-2: " in out


def test_an_edit_is_shown_as_a_difference_and_the_file_stays(smollm2_path: Path, tmp_path: Path) -> None:
    code = 'def double(number):\n    """Two times."""\n    return number * 2\n\n\nprint(double(4))\n'
    (tmp_path / "a.py").write_text(code, encoding="utf-8")
    out = run("edit_code", smollm2_path, tmp_path, "Remove the docstrings.", "a.py", "--max-tokens", 60)
    assert out.startswith("--- before\n+++ after\n")
    assert '-    """Two times."""' in out
    tokens, steps = numbers(r"(\d+) tokens in (\d+) steps", out)
    assert steps < tokens
    assert (tmp_path / "a.py").read_text(encoding="utf-8") == code


def test_a_source_of_ones_own_saves_steps_and_changes_nothing(smollm2_path: Path, tmp_path: Path) -> None:
    out = run("custom_source", smollm2_path, tmp_path, "--max-tokens", 40)
    accepted, drafted, steps = numbers(r"right about (\d+) of (\d+) tokens: (\d+) steps", out)
    assert 0 < accepted <= drafted
    assert numbers(r"plain decoding took (\d+); the same tokens: True", out)[0] == 39 > steps


def test_conversations_stream_side_by_side_and_a_time_limit_ends_one(smollm2_path: Path, tmp_path: Path) -> None:
    out = run("async_stream", smollm2_path, tmp_path, "--max-tokens", 12)
    assert [line for line in out.splitlines() if line.startswith("[")] == [
        "[short] 12 tokens, ended by length",
        "[long] 12 tokens, ended by length",
    ]
    out = run("async_stream", smollm2_path, tmp_path, "--max-tokens", 12, "--limit", 0)
    assert "[short] 12 tokens, ended by length\n[long] nothing\n" in out


def test_a_cancelled_stream_keeps_what_it_printed(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = module("async_stream")
    chat = quoth.Model(smollm2_path).conversation()

    async def talk() -> None:
        task = asyncio.ensure_future(example.tell("x", chat, example.QUESTIONS["long"]))
        while not (chat.messages and chat.messages[-1]["content"] and chat.messages[-1]["role"] == "assistant"):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(talk())
    printed = "\n".join(line.removeprefix("x: ") for line in capsys.readouterr().out.splitlines())
    assert printed
    assert chat.messages[-1]["content"].startswith(printed)


def test_the_chat_that_the_pages_show_can_be_had_again(smollm2_path: Path, tmp_path: Path) -> None:
    """Answers and counts of tokens; times and what drafts were worth differ from machine to machine."""
    inputs = [
        "/ref examples/lights.txt",
        "Repeat this sentence 3 times: The lamp was lit by hand until 1931.",
        "What does this do?\ndef area(w, h):\n    return w * h",
        "/system Answer in one short sentence.",
        "What is the capital of France?",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "quoth", "chat", str(smollm2_path)],
        input="".join(text.replace("\n", "\\\n") + "\n" for text in inputs), env=program_env(tmp_path), cwd=ROOT,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    noted = done.stderr.splitlines()
    assert noted[-1] == "system message: Answer in one short sentence."
    shown = (ROOT / "docs" / "chat-transcript.txt").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for text, answer in zip((inputs[1], inputs[2], inputs[4]), done.stdout.splitlines(), strict=True):
        assert f"> {text}\n{answer}\n" in shown
    assert f"> {inputs[0]}\n{noted[0]}\n" in shown
    assert f"> {inputs[0]}\n{noted[0]}\n\n> {inputs[1]}\n{done.stdout.splitlines()[0]}\n" in readme


def test_the_cascade_saves_passes_of_another_engine_and_changes_nothing(smollm2_path: Path, tmp_path: Path) -> None:
    out = run("cascade_elsewhere", smollm2_path, tmp_path)
    tokens, passes, plainly = numbers(r"(\d+) tokens in (\d+) passes, plainly in (\d+); the same tokens: True", out)
    assert passes < tokens == plainly


def test_the_cascade_elsewhere_keeps_the_engines_text_in_all_cases(tiny_chat_path: Path) -> None:
    example = module("cascade_elsewhere")
    model = quoth.Model(tiny_chat_path, threads=1)
    saved = 0
    for start in range(97, 117):
        for max_tokens in (1, 2, 17, 60):
            prompt = [*range(start, start + 5)] * 2
            engines = [example.Engine(model) for _ in range(2)]
            quoting = example.quoting(engines[0], prompt, max_tokens, frozenset([258]), model.n_vocab)
            assert quoting == example.plainly(engines[1], prompt, max_tokens, frozenset([258]))
            saved += engines[1].passes - engines[0].passes
    assert saved > 0
