"""The stubs of the compiled core say what the core is: the same names, kinds and parameters."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import quoth
from quoth import _core
from quoth.options import _CoreSampling, _CoreSpeculation

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


def is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


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
    found, stub = members(getattr(_core, name)), methods(CLASSES[name])
    assert found.keys() == stub.keys() - {"__new__"}
    for member, value in found.items():
        assert inspect.isgetsetdescriptor(value) == is_property(stub[member]), member
        if not is_property(stub[member]) and member not in SPECIAL:
            assert real_parameters(value) == parameters(stub[member]), member


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_made_with_the_parameters_of_its_stub(name: str) -> None:
    cls = getattr(_core, name)
    assert list(inspect.signature(cls).parameters) == parameters(methods(CLASSES[name])["__new__"])
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Derived", (cls,), {})  # the stub says @final


def test_options_have_the_fields_that_the_stub_asks_for() -> None:
    assert vars(_CoreSampling(quoth.Sampling())).keys() == FIELDS["_Sampling"]
    assert vars(_CoreSpeculation(quoth.Speculation())).keys() == FIELDS["_Speculation"]


def test_dictionaries_have_the_keys_of_the_stub(tiny_model_path: Path) -> None:
    model = quoth.Model(tiny_model_path, threads=1)
    decoder = model.decoder()
    decoder.generate([1, 2, 3], max_tokens=8)
    speculation = decoder._core.speculation_stats()
    assert speculation is not None
    assert model._model.config().keys() == FIELDS["_Config"]
    assert decoder._core.stats().keys() == FIELDS["_Stats"]
    assert speculation[0].keys() == FIELDS["_GateStats"]


def test_tuples_have_the_parts_of_the_stub(tiny_model_path: Path) -> None:
    aliases = {
        node.target.id: node.value
        for node in STUB.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }

    def parts(name: str) -> int:
        value = aliases[name]
        assert isinstance(value, ast.Subscript)
        assert isinstance(value.slice, ast.Tuple)
        return len(value.slice.elts)

    model = quoth.Model(tiny_model_path, threads=1)
    decoder = model.decoder()
    step = decoder._core.begin([1, 2, 3], decoder._request(1, (), True, 2, trace=False), None)
    speculation = decoder._core.speculation_stats()
    assert speculation is not None
    assert len(step) == parts("_Step")
    finish = step[6] or decoder._core.run()[6]
    assert finish is not None
    assert len(finish) == parts("_Finish")
    assert len(step[2][0]) == parts("_Logprobs")
    assert {len(row) for row in speculation[1]} == {parts("_Source")}
    assert {len(row) for row in model._file.tensors()} == {parts("_Tensor")}
