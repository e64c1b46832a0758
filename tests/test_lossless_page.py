"""`docs/lossless.md` names tests that exist, and all tests that prove an obligation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROOFS = ROOT / "rust" / "engine" / "tests" / "proof"
COMPLETE = ("lossless.rs", "failures.rs", "gate.rs", "ends.rs", "broken.rs", "constraint.rs")
"""Files of proofs whose every test is on the page."""


def named() -> list[tuple[str, str]]:
    """The page's tests: file, name."""
    page = (ROOT / "docs" / "lossless.md").read_text(encoding="utf-8")
    return re.findall(r"`([\w./]+\.(?:rs|py))::(\w+)`", page)


def path_of(file: str) -> Path:
    return PROOFS / file.removeprefix("proof/") if file.startswith("proof/") else ROOT / file


def names_in(path: Path) -> set[str]:
    """The names of a file's tests."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return set(re.findall(r"^def (test_\w+)\(", text, re.MULTILINE))
    return set(re.findall(r"#\[test\]\s+fn (\w+)\(", text))


def test_every_test_on_the_page_exists() -> None:
    assert len(named()) > 60
    missing = [f"{file}::{name}" for file, name in named() if name not in names_in(path_of(file))]
    assert missing == []


@pytest.mark.parametrize("file", [*(f"proof/{f}" for f in COMPLETE), "tests/test_lossless.py"])
def test_every_proof_is_on_the_page(file: str) -> None:
    tests = names_in(path_of(file))
    assert len(tests) > 1
    assert tests - {name for f, name in named() if f == file} == set()


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 12, 15, 16, 21, 29, 30])
def test_a_bug_report_of_another_engine_is_found_by_its_number(number: int) -> None:
    assert [name for _, name in named() if re.match(rf"(test_)?bug_(\d+_and_)?{number}_", name)]


@pytest.mark.parametrize("obligation", range(1, 8))
def test_every_obligation_has_tests_in_rust_and_from_python(obligation: int) -> None:
    page = (ROOT / "docs" / "lossless.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if re.match(rf"\| {obligation} \| .*::", line)]
    *_, rust, python, _ = row.split("|")
    assert "proof/" in rust
    assert "tests/test_" in python
