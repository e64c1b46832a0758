"""The stubs of the compiled core say what the core is: the same names, kinds and parameters."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import quoth
from heads import Head
from quoth import _core
from quoth.options import CoreSampling, CoreSpeculation
from quoth.request import GenerateOptions, Request

STUB = ast.parse((Path(quoth.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
FIELDS = {
    node.name: {entry.target.id for entry in node.body if isinstance(entry, ast.AnnAssign)}  # type: ignore[union-attr]
    for node in STUB.body
    if isinstance(node, ast.ClassDef) and node.name.startswith("_")
}
SPECIAL = {"__len__", "__contains__", "__getitem__"}


def members(cls: type) -> dict[str, Any]:
    """What a class of the core has of its own."""
    return {name: value for name, value in vars(cls).items() if not name.startswith("__") or name in SPECIAL}


def methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {entry.name: entry for entry in node.body if isinstance(entry, ast.FunctionDef)}


def fields(node: ast.ClassDef) -> dict[str, str]:
    """What a class only tells, with its type: `Final` in the stub, a getter in the core."""
    found = {}
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign):
            stated = ast.unparse(entry.annotation)
            assert stated.startswith("Final["), f"{stated} can be set in the stub"
            found[ast.unparse(entry.target)] = stated
    return found


def parameters(node: ast.FunctionDef) -> list[str]:
    assert node.args.vararg is None
    assert node.args.kwarg is None
    assert not node.args.kwonlyargs
    return [arg.arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg not in ("self", "cls")]


def real_parameters(value: Any) -> list[str]:
    return [name for name in inspect.signature(value).parameters if name not in ("self", "type")]


def test_the_module_has_exactly_the_names_of_the_stub() -> None:
    found = {name for name in dir(_core) if not name.startswith("__")}
    assert found == CLASSES.keys() | FUNCTIONS.keys()
    assert isinstance(_core.__version__, str)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_the_parameters_of_its_stub(name: str) -> None:
    assert real_parameters(getattr(_core, name)) == parameters(FUNCTIONS[name])


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_exactly_the_members_of_its_stub(name: str) -> None:
    found, stub, told = members(getattr(_core, name)), methods(CLASSES[name]), fields(CLASSES[name])
    assert found.keys() == (stub.keys() | told.keys()) - {"__new__"}
    for member, value in found.items():
        assert inspect.isgetsetdescriptor(value) == (member in told), member
        if member in stub and member not in SPECIAL:
            assert real_parameters(value) == parameters(stub[member]), member


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_made_with_the_parameters_of_its_stub(name: str) -> None:
    cls, made = getattr(_core, name), methods(CLASSES[name]).get("__new__")
    if made is None:  # a result, which the core alone makes
        with pytest.raises(TypeError, match="cannot create"):
            cls()
    else:
        assert list(inspect.signature(cls).parameters) == parameters(made)
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Derived", (cls,), {})  # the stub says @final


def test_options_have_the_fields_that_the_stub_asks_for() -> None:
    assert vars(CoreSampling(quoth.Sampling())).keys() == FIELDS["_Sampling"]
    assert vars(CoreSpeculation(quoth.Speculation())).keys() == FIELDS["_Speculation"]
    request = Request.of({}, GenerateOptions, quoth.Sampling(), 10)
    assert vars(request).keys() == FIELDS["_Request"] | {"stops", "progress"}, "the core reads all but these"


def check(found: Any) -> set[str]:
    """Compare a result with its stub, and what is in it; give the names of all classes."""
    name = type(found).__name__
    seen = {name}
    for field, stated in fields(CLASSES[name]).items():
        value = getattr(found, field)
        with pytest.raises(AttributeError):  # frozen
            setattr(found, field, value)
        assert type(value).__name__ in stated.replace("Literal", "str").replace("None", "NoneType"), (name, field)
        for one in value if isinstance(value, list) else [value]:
            seen |= check(one) if type(one).__name__ in CLASSES else set()
    return seen


def test_results_have_the_fields_of_their_stubs(tiny_model_path: Path) -> None:
    decoder = quoth.Model(tiny_model_path, threads=1).decoder()
    request = Request.of({"max_tokens": 8, "logprobs": 2}, GenerateOptions, quoth.Sampling(), decoder.model.n_vocab)
    seen = check(decoder._core.begin([1, 2, 3], request, None)) | check(decoder._core.run())
    seen |= check(decoder._core.stats()) | check(decoder._core.speculation_stats())
    options = CoreSpeculation(quoth.Speculation())
    scheduler = _core.Scheduler(decoder.model._model, "f32", options, 1, None, 0)
    scheduler.submit([1, 2, 3], request, options, None, [], 0)
    while not scheduler.is_idle():
        for event in scheduler.step():
            seen |= check(event)
    assert seen == {name for name, node in CLASSES.items() if "__new__" not in methods(node)}


def test_dictionaries_and_tuples_have_the_parts_of_the_stub(tiny_model_path: Path, tmp_path: Path) -> None:
    model = quoth.Model(tiny_model_path, threads=1)
    assert model._model.config().keys() == FIELDS["_Config"]
    n_embd, n_vocab = model.config["n_embd"], model.n_vocab
    head = Head.random(n_embd, n_vocab).write(tmp_path / "head.gguf")
    drafter = quoth.Model(tiny_model_path, threads=1, drafter=head)._drafters["eagle3"]
    assert drafter.description().keys() == FIELDS["_Drafter"]
    assert drafter.trace([1, 2, 3], "f32", None, 1).keys() == FIELDS["_Trace"]
    alias = next(
        node.value
        for node in STUB.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "_Tensor"
    )
    assert isinstance(alias, ast.Subscript)
    assert isinstance(alias.slice, ast.Tuple)
    assert {len(row) for row in model._file.tensors()} == {len(alias.slice.elts)}
