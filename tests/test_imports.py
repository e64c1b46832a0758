"""The package's modules import each other in one direction."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import quoth

ROOT = Path(quoth.__file__).parent
FILES = {
    ".".join(("quoth", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in [*ROOT.rglob("*.py"), *ROOT.rglob("*.pyi")]
}


def imported(name: str, tree: ast.Module) -> set[str]:
    """The package's modules that a module imports anywhere: at the top, in functions, for type checkers alone."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name if FILES[name].stem == "__init__" else name.rpartition(".")[0]
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*above, *(node.module or "").split(".")]).rstrip(".")
            # What is no module is a name of the package.
            found |= {inner if (inner := f"{module}.{alias.name}") in FILES else module for alias in node.names}
    return {other for other in found if other in FILES} - {name}


def graph(files: dict[str, Path]) -> dict[str, set[str]]:
    return {name: imported(name, ast.parse(path.read_text(encoding="utf-8"))) for name, path in files.items()}


def test_no_module_imports_itself_by_way_of_others() -> None:
    edges = graph(FILES)
    assert edges["quoth.model"] >= {"quoth.decoder", "quoth.conversation"}, "else the test sees nothing"
    assert "quoth.hub" in edges["quoth.loaded"], "imports in functions count"
    assert "quoth.errors" in edges["quoth.hub"], "relative imports count"
    list(TopologicalSorter(edges).static_order())


def test_a_cycle_would_be_seen() -> None:
    edges = graph(FILES)
    edges["quoth.loaded"] |= {"quoth.model"}  # as an import for its types would
    with pytest.raises(CycleError):
        list(TopologicalSorter(edges).static_order())
