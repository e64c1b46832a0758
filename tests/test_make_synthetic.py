"""Random models have the shapes, types and spread they claim, byte for byte the same for one seed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is the oracle for block layouts")


def load_tool() -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "make_synthetic.py"
    spec = importlib.util.spec_from_file_location("make_synthetic", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_synthetic"] = module
    spec.loader.exec_module(module)
    return module


tool = load_tool()
BLOCK_TYPES = [kind.name for kind in [*tool.FILLERS, *tool.FLOATS]]


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_values_have_the_intended_spread_and_no_bias(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    rng = np.random.Generator(np.random.SFC64(3))
    raw = tool.random_matrix(kind, (512, 1024), 1024**-0.5, rng)
    values = gguf.quants.dequantize(raw, kind) if kind != gguf.GGMLQuantizationType.F32 else raw
    assert values.shape == (512, 1024)
    assert np.isfinite(values).all()
    assert values.std() * 32 == pytest.approx(1, abs=0.02)  # scales differ from block to block
    assert abs(values.mean()) * 32 < 0.01
    row_means = values.mean(axis=1) * 32  # independent values would give 1/32
    assert row_means.std() < 0.07


@pytest.mark.parametrize("preset", [name for name in tool.PRESETS if name.startswith("tiny")])
@pytest.mark.parametrize("recipe", tool.RECIPES)
def test_a_file_holds_the_planned_tensors(tmp_path: Path, preset: str, recipe: str) -> None:
    out = tmp_path / "model.gguf"
    tool.write(out, preset, recipe)
    planned = {t.name: t for t in tool.tensors(tool.PRESETS[preset], recipe, None)}
    found = {t.name: t for t in gguf.GGUFReader(out).tensors}
    assert found.keys() == planned.keys()
    for name, t in found.items():
        assert tuple(int(n) for n in reversed(t.shape)) == planned[name].shape
        assert t.tensor_type == planned[name].kind
    assert list(tmp_path.iterdir()) == [out]


def test_the_seed_decides_every_byte_and_layers_are_a_prefix(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "other", "short")]
    for file, seed, layers in zip(files, (5, 5, 6, 5), (2, 2, 2, 1), strict=True):
        tool.write(file, "tiny-qwen3", "Q6_K", seed=seed, layers=layers)
    a, b, other, short = (f.read_bytes() for f in files)
    assert a == b
    assert a != other
    whole = {t.name: t.data for t in gguf.GGUFReader(files[0]).tensors}
    for t in gguf.GGUFReader(files[3]).tensors:
        assert np.array_equal(t.data, whole[t.name]), t.name
    assert len(short) < len(a)


def test_a_k_mix_gives_early_value_matrices_more_bits() -> None:
    shape = tool.PRESETS["qwen3-0.6b"]
    small = {t.name: t.kind.name for t in tool.tensors(shape, "Q4_K_S", None)}
    medium = {t.name: t.kind.name for t in tool.tensors(shape, "Q4_K_M", None)}
    assert small["token_embd.weight"] == "Q6_K"
    assert [small[f"blk.{i}.attn_v.weight"] for i in (0, 3, 4, 27)] == ["Q5_K", "Q5_K", "Q4_K", "Q4_K"]
    assert [small[f"blk.{i}.ffn_down.weight"] for i in (0, 2, 3, 27)] == ["Q5_K", "Q5_K", "Q4_K", "Q4_K"]
    assert [medium[f"blk.{i}.attn_v.weight"] for i in (0, 3, 4, 5, 27)] == ["Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"]


def test_rows_that_do_not_fill_a_super_block_get_a_narrow_type() -> None:
    kinds = {t.name: t.kind.name for t in tool.tensors(tool.PRESETS["smollm2-135m"], "Q4_K_M", None)}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.3.attn_q.weight"] == "Q5_0"
    assert kinds["blk.3.ffn_down.weight"] == "Q4_K"


def test_a_borrowed_vocabulary_is_copied_and_padded(tmp_path: Path) -> None:
    donor, out = tmp_path / "donor.gguf", tmp_path / "out.gguf"
    tool.write(donor, "tiny-llama", "F16")
    tool.write(out, "smollm2-135m", "Q8_0", layers=1, vocab_from=donor)
    given = {k: f.contents() for k, f in gguf.GGUFReader(donor).fields.items() if k.startswith("tokenizer.")}
    taken = {k: f.contents() for k, f in gguf.GGUFReader(out).fields.items() if k.startswith("tokenizer.")}
    assert taken.keys() == given.keys()
    assert taken["tokenizer.ggml.tokens"][:512] == given["tokenizer.ggml.tokens"]
    assert len(taken["tokenizer.ggml.tokens"]) == len(taken["tokenizer.ggml.token_type"]) == 49152
    assert taken["tokenizer.ggml.merges"] == given["tokenizer.ggml.merges"]
    assert taken["tokenizer.ggml.eos_token_id"] == 256


def test_a_vocabulary_too_large_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    donor = tmp_path / "donor.gguf"
    tool.write(donor, "smollm2-135m", "Q8_0", layers=1)
    with pytest.raises(ValueError, match=r"49152 tokens.*room for 512"):
        tool.write(tmp_path / "out.gguf", "tiny-llama", vocab_from=donor)
    assert list(tmp_path.iterdir()) == [donor]


def test_byte_letters_are_256_different_letters() -> None:
    letters = tool.byte_letters()
    assert len(set(letters)) == 256
    assert (letters[0x20], letters[0x0A], letters[0x41]) == ("Ġ", "Ċ", "A")
