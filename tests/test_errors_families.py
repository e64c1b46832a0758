"""For each family: tensors that are missing, too many or of another shape, and keys that the family does not read.
Nothing of it is ever computed with in silence.

What a file cannot tell: an untied model without its output matrix reads as a tied one, a llama model without
`rope_freqs.weight` as one without divisors, a gemma4 whose full layers all lack values as one whose keys are its
values. Other engines read them so too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quoth
from broken import ARRAY, BOOL, F32, STRING, U32, Gguf, Tensor, check_refused, load, taken_apart
from models import FAMILIES, tiny_path

Refused = Callable[[Gguf | bytes, str], None]
NAN = float("nan")


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """Load a file and expect a `ModelFileError` that names it and says a message."""
    return partial(check_refused, tmp_path)


def parts(family: str) -> Gguf:
    """A tiny model of a family in parts."""
    return taken_apart(tiny_path("F32", family).read_bytes())


def arch(family: str) -> str:
    return "gemma4" if family == "gemma4moe" else family


# ---- tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_is_needed(tmp_path: Path, family: str) -> None:
    path = tmp_path / "model.gguf"
    names = list(parts(family).tensors)
    assert len(names) > 20
    said_otherwise = {"output.weight"} | ({"blk.1.attn_v.weight"} if family == "gemma4" else set())
    for name in names:
        file = parts(family)
        path.write_bytes(file.drop(name).packed())
        if name in said_otherwise:
            load(path)
            continue
        with pytest.raises(quoth.ModelFileError) as caught:
            load(path)
        # Joined experts may also stand apart; then that is what is missing.
        named = name.replace("ffn_gate_up_exps", "ffn_gate_exps")
        assert str(caught.value).startswith(f"{path}: tensor `{named}` is missing, expected shape ["), name


@pytest.mark.parametrize("family", FAMILIES)
def test_no_tensor_may_be_added(refused: Refused, family: str) -> None:
    extra = [
        "blk.0.attn_rel_b.weight",
        "blk.9.attn_q.weight",
        "output.bias",
        "blk.0.ffn_gate.bias",
        "position_embd.weight",
    ]
    extra += ["blk.0.ffn_gate_shexp.weight", "blk.0.attn_sinks.weight", "blk.0.attn_qkv.weight", "token_embd.bias"]
    if family not in ("llama", "gemma4", "gemma4moe"):
        extra.append("rope_freqs.weight")
    if family not in ("llama", "qwen2"):
        extra.append("blk.0.attn_q.bias")
    if not family.startswith("gemma4"):
        extra.append("blk.0.layer_output_scale.weight")
    if not family.endswith("moe"):
        extra.append("blk.0.ffn_gate_inp.weight")
    for name in extra:
        file = parts(family)
        file.tensors[name] = Tensor([8], 0, bytes(32))
        refused(file, f"tensor `{name}` is not part of architecture `{arch(family)}`")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_has_one_shape(tmp_path: Path, family: str) -> None:
    """One row fewer, one column fewer, or turned around."""
    path = tmp_path / "model.gguf"
    for name, tensor in parts(family).tensors.items():
        shapes = [[*tensor.shape[:i], n - 1, *tensor.shape[i + 1 :]] for i, n in enumerate(tensor.shape) if n > 1]
        shapes += [tensor.shape[::-1]] if tensor.shape[::-1] != tensor.shape else []
        shapes += [[2]] if tensor.shape == [1] else []
        for shape in shapes:
            file = parts(family)
            file.tensors[name] = Tensor(shape, 0, tensor.data * 2)
            if name == "token_embd.weight":
                file.drop("output.weight").set(f"{arch(family)}.vocab_size", U32, 97)
            path.write_bytes(file.packed())
            with pytest.raises(quoth.ModelFileError) as caught:
                load(path)
            said = f"{path}: tensor `{name}` has shape {shape}, expected {tensor.shape}"
            rows = (
                f"{path}: key `{arch(family)}.vocab_size` is 97, expected {shape[-1]} as `token_embd.weight` has rows"
            )
            assert str(caught.value) == said or (name == "token_embd.weight" and str(caught.value) == rows)


def test_optional_tensors_are_in_all_layers_or_in_none(refused: Refused, tmp_path: Path) -> None:
    biases = {"attn_q.bias": 64, "attn_k.bias": 32, "attn_v.bias": 32, "attn_output.bias": 64}

    def with_biases() -> Gguf:
        file = parts("llama")
        for layer in range(2):
            for role, n in biases.items():
                file.tensors[f"blk.{layer}.{role}"] = Tensor([n], 0, bytes(4 * n))
        return file

    path = tmp_path / "whole.gguf"
    path.write_bytes(with_biases().packed())
    load(path)
    for role, n in biases.items():
        for layer in (0, 1):
            name = f"blk.{layer}.{role}"
            refused(with_biases().drop(name), f"tensor `{name}` is missing, expected shape [{n}]")
    # Query, key and value together.
    file = with_biases().drop("blk.0.attn_k.bias", "blk.1.attn_k.bias")
    refused(file, "tensor `blk.0.attn_k.bias` is missing, expected shape [32]")
    for family in ("gemma4", "gemma4moe"):
        file = parts(family).drop("blk.1.layer_output_scale.weight")
        refused(file, "tensor `blk.1.layer_output_scale.weight` is missing, expected shape [1]")
    # Windowed layers always have values of their own.
    refused(
        parts("gemma4moe").drop("blk.0.attn_v.weight"),
        "tensor `blk.0.attn_v.weight` is missing, expected shape [64, 32]",
    )


def test_keys_and_values_of_layers_that_share_anothers_are_left_alone(tmp_path: Path) -> None:
    """Some writers keep what the model was trained with and nothing uses."""
    path = tmp_path / "model.gguf"
    file = parts("gemma4")
    path.write_bytes(file.packed())
    plain = load(path).session().forward([1, 2, 3]).tobytes()
    for role, shape in (("attn_k", [64, 32]), ("attn_v", [64, 32]), ("attn_k_norm", [32])):
        n = shape[0] * shape[-1] if len(shape) == 2 else shape[0]
        file.tensors[f"blk.2.{role}.weight"] = Tensor(shape, 0, bytes(4 * n))
    path.write_bytes(file.packed())
    assert load(path).session().forward([1, 2, 3]).tobytes() == plain
    file.tensors["blk.2.attn_k.weight"] = Tensor([64, 31], 0, bytes(4 * 64 * 31))
    check_refused(tmp_path, file, "tensor `blk.2.attn_k.weight` has shape [64, 31], expected [64, 32]")


# ---- keys

EVERY = [
    ("hidden_activation", STRING, "relu2", "is `relu2`, expected {activation}"),
    ("hidden_activation", U32, 1, "is u32, expected string"),
    ("hidden_act", STRING, "relu", None),
    ("activation_sparsity_scale", ARRAY, (F32, [1.5]), None),
    ("swiglu_clamp_exp", ARRAY, (F32, [7.0]), None),
    ("pooling_type", U32, 3, "is 3, expected 0"),
    ("rope.scaling.type", STRING, "dynamic", "is `dynamic`, expected none, linear or yarn"),
    ("rope.scaling.type", STRING, "llama3", "is `llama3`, expected none, linear or yarn"),
    ("rope.scaling.type", STRING, "", "is ``, expected none, linear or yarn"),
    ("rope.scaling.attn_factor", F32, 1.25, "is 1.25, expected 1"),
    ("rope.scaling.alpha", F32, 1000.0, "is 1000, expected 0"),
    ("rope.scaling.yarn_beta_fast", F32, 16.0, "is 16, expected 32"),
    ("rope.dimension_sections", ARRAY, (U32, [16, 24, 24, 0]), None),
    ("attn_logit_softcapping", F32, 50.0, "is 50, expected 0"),
    ("final_logit_softcapping", F32, -3.0, "is -3, expected {cap}"),
    ("final_logit_softcapping", F32, NAN, "is NaN, expected {cap}"),
    ("router_logit_softcapping", F32, 30.0, "is 30, expected 0"),
    ("attention.causal", BOOL, False, "is 0, expected 1"),
    ("attention.clamp_kqv", F32, 8.0, "is 8, expected 0"),
    ("attention.temperature_scale", F32, 0.125, "is 0.125, expected 0"),
    ("attention.temperature_length", U32, 8192, None),
    ("attention.output_scale", F32, 0.5, "is 0.5, expected 1"),
    ("attention.q_lora_rank", U32, 16, None),
    ("attention.indexer.top_k", U32, 16, None),
    ("attention.something_new", U32, 0, None),
    ("expert_shared_count", U32, 1, "is 1, expected 0"),
    ("expert_gating_func", U32, 2, "is 2, expected 1"),
    ("nextn_predict_layers", U32, 1, "is 1, expected 0"),
    ("logit_scale", F32, 0.25, "is 0.25, expected 1"),
    ("embedding_scale", F32, 12.0, "is 12, expected 1"),
    ("residual_scale", F32, 0.25, "is 0.25, expected 1"),
    ("ssm.conv_kernel", U32, 4, None),
    ("classifier.output_labels", ARRAY, (STRING, ["yes", "no"]), None),
    ("dense_2_feat_in", U32, 64, None),
]
ELSEWHERE = [
    (("llama", "qwen2", "qwen3", "qwen3moe", "gemma3"), "attention.key_length_swa", U32, 16, None),
    (("llama", "qwen2", "qwen3", "qwen3moe", "gemma3"), "attention.shared_kv_layers", U32, 1, "is 1, expected 0"),
    (("llama", "qwen2", "qwen3", "qwen3moe"), "attention.sliding_window_pattern", U32, 2, None),
    (("llama", "qwen2", "qwen3", "qwen3moe"), "rope.freq_base_swa", F32, 1e4, None),
    (("qwen2", "qwen3", "qwen3moe"), "attention.sliding_window", U32, 16, "is 16, expected 0"),
    (("llama", "qwen2", "qwen3", "qwen3moe", "gemma3"), "embedding_length_per_layer_input", U32, 8, "is 8, expected 0"),
    (("llama", "qwen2", "qwen3", "gemma3"), "expert_used_count", U32, 2, "is 2, expected 0"),
    (("gemma4", "gemma4moe"), "attention.scale", F32, 0.25, "is 0.25, expected 1: scores are not scaled"),
    (
        ("gemma4",),
        "attention.shared_kv_layers",
        U32,
        3,
        "is 3, expected an earlier layer of each kind with keys of its own",
    ),
    (("gemma4",), "attention.shared_kv_layers", U32, 4, "is 4, expected fewer than 4 layers"),
    (("gemma4", "gemma4moe"), "attention.value_length_swa", U32, 16, "is 16, expected 32 as the keys have"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_whose_effect_is_not_computed_are_refused_by_name(refused: Refused, family: str) -> None:
    activation = "gelu_pytorch_tanh" if family.startswith("gemma") else "silu"
    cap = "a finite number above 0" if family.startswith("gemma") else "0: this family is supported without it"
    own = [case for families, *case in ELSEWHERE if family in families]
    for key, kind, value, message in [*EVERY, *own]:
        name = f"{arch(family)}.{key}"
        said = message or f"is not known to architecture `{arch(family)}`"
        file = parts(family).set(name, kind, value)
        refused(file, f"key `{name}` {said.format(activation=activation, cap=cap)}")


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_that_say_what_is_so_are_accepted(tmp_path: Path, family: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(parts(family).packed())
    plain = load(path).session().forward([1, 2, 3]).tobytes()
    file = parts(family)
    activation = "gelu_pytorch_tanh" if family.startswith("gemma") else "silu"
    for key, kind, value in (
        ("hidden_activation", STRING, activation),
        ("vocab_size", U32, 97),
        ("pooling_type", U32, 0),
        ("attn_logit_softcapping", F32, 0.0),
        ("rope.scaling.type", STRING, "none"),
        ("rope.scaling.attn_factor", F32, 1.0),
        ("rope.scaling.finetuned", BOOL, False),
        ("rope.scaling.original_context_length", U32, 4096),
        ("attention.causal", BOOL, True),
        ("tensor_data_layout", STRING, "Meta AI original pth"),
        ("nextn_predict_layers", U32, 0),
    ):
        file.set(f"{arch(family)}.{key}", kind, value)
    # What belongs to another architecture, or to none, is not this one's.
    file.set("phi3.attention.sliding_window", U32, 7).set("quantize.imatrix.file", STRING, "x").set(
        "general.type", STRING, "model"
    )
    path.write_bytes(file.packed())
    assert load(path).session().forward([1, 2, 3]).tobytes() == plain


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_a_part_of_a_model_is_refused_as_such(refused: Refused, kind: str) -> None:
    refused(parts("llama").set("general.type", STRING, kind), f"key `general.type` is `{kind}`, expected model")


def test_a_key_of_a_wrong_type_is_not_taken_for_absent(refused: Refused) -> None:
    cases: list[tuple[str, str, int, Any, str]] = [
        ("gemma3", "attention.sliding_window", STRING, "16", "is string, expected u32"),
        ("gemma4", "attention.sliding_window_pattern", U32, 2, "is u32, expected array of bool"),
        ("qwen3moe", "expert_used_count", F32, 2.0, "is f32, expected u32"),
        ("gemma3", "final_logit_softcapping", STRING, "30", "is string, expected f32"),
    ]
    for family, key, kind, value, message in cases:
        refused(parts(family).set(f"{arch(family)}.{key}", kind, value), f"key `{arch(family)}.{key}` {message}")
