"""Metadata that no model can have, or whose effect is not computed: refused by a named exception that says what was
expected, what was found and where.

E4  What would change the arithmetic is never passed over in silence.
E5  What is wrong with the vocabulary is a `TokenizerError` when text is used; the bare machine and token ids work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quoth
from broken import ARRAY, BOOL, F32, STRING, U32, U64, Gguf, check_refused, load, model, model_bytes
from quoth import _core

NAN, INF = float("nan"), float("inf")
BASE = model_bytes()

Refused = Callable[[Gguf | bytes, str], None]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """Load a file and expect a `ModelFileError` that names it and says a message."""
    return partial(check_refused, tmp_path)


# ---- what the architecture says


@pytest.mark.parametrize("arch", ["gpt2", "phi3", "clip", "LLAMA", ""])
def test_an_unknown_architecture_is_refused_with_the_list(refused: Refused, arch: str) -> None:
    known = ", ".join(_core.architectures())
    assert "llama" in known
    refused(
        model().set("general.architecture", STRING, arch),
        f"architecture `{arch}` is not supported, expected one of {known}",
    )


@pytest.mark.parametrize("arch", ["qwen35", "mamba", "rwkv7", "lfm2", "falcon-h1"])
def test_a_recurrent_architecture_is_refused_with_the_reason(refused: Refused, arch: str) -> None:
    """Bug report 30: a mode that does nothing where it cannot work. Here such a model is not loaded at all."""
    refused(
        model().set("general.architecture", STRING, arch),
        f"architecture `{arch}` is not supported: it keeps a recurrent state, which cannot be rewound to an earlier "
        "token as verification needs",
    )


def test_a_file_without_an_architecture_is_refused(refused: Refused) -> None:
    refused(model().drop("general.architecture"), "key `general.architecture` is missing, expected string")
    refused(model().set("general.architecture", U32, 3), "key `general.architecture` is u32, expected string")


def test_a_vocabulary_is_not_a_model(refused: Refused) -> None:
    file = model()
    file.tensors.clear()
    refused(file, "expected a model, found a file without tensors")


# ---- keys that would change the arithmetic

LLAMA = [
    ("rope.scaling.type", STRING, "dynamic", "`dynamic`, expected none, linear or yarn"),
    ("rope.scaling.type", STRING, "longrope", "`longrope`, expected none, linear or yarn"),
    ("rope.scaling.type", U32, 1, "u32, expected string"),
    ("rope.scaling.factor", F32, NAN, "NaN, expected a finite number above 0"),
    ("rope.scaling.factor", F32, -2.0, "-2, expected a finite number above 0"),
    ("rope.scale_linear", F32, INF, "inf, expected a finite number above 0"),
    ("rope.freq_base", F32, 0.0, "0, expected a finite number above 1"),
    ("rope.freq_base", F32, NAN, "NaN, expected a finite number above 1"),
    ("rope.dimension_count", U32, 63, "63, expected an even number up to the head's 64"),
    ("rope.dimension_count", U32, 128, "128, expected an even number up to the head's 64"),
    ("attn_logit_softcapping", F32, 50.0, "50, expected 0"),
    ("final_logit_softcapping", F32, 30.0, "30, expected 0: this family is supported without it"),
    ("attention.clamp_kqv", F32, 8.0, "8, expected 0"),
    ("attention.max_alibi_bias", F32, 8.0, "8, expected 0"),
    ("attention.causal", BOOL, False, "0, expected 1"),
    ("attention.scale", F32, NAN, "NaN, expected a finite number"),
    ("attention.layer_norm_rms_epsilon", F32, NAN, "NaN, expected 0 to below 1"),
    ("attention.layer_norm_rms_epsilon", F32, -1.0, "-1, expected 0 to below 1"),
    ("attention.head_count", U32, 0, "0, expected 1 to 1024"),
    ("attention.head_count_kv", U32, 3, "3, expected a divisor of 4 heads in layer 0"),
    ("attention.value_length", U32, 32, "32, expected 64 as the keys have"),
    ("logit_scale", F32, 0.5, "0.5, expected 1"),
    ("residual_scale", F32, 2.0, "2, expected 1"),
    ("embedding_scale", F32, 3.0, "3, expected 1"),
    ("use_parallel_residual", BOOL, True, "1, expected 0"),
    ("nextn_predict_layers", U32, 1, "1, expected 0"),
    ("expert_count", U32, 8, "8, expected 0: this family is supported without experts"),
    ("expert_shared_count", U32, 1, "1, expected 0"),
    ("block_count", U32, 0, "0, expected 1 to 1024"),
    ("block_count", U32, 2**32 - 1, "4294967295, expected 1 to 1024"),
    ("block_count", STRING, "two", "string, expected u32"),
    ("embedding_length", U32, 2**32 - 1, "4294967295, expected 1 to 262144"),
    ("context_length", U32, 0, "0, expected 1 to 16777216"),
    ("feed_forward_length", U32, 0, "0, expected 1 to 262144"),
]
OTHERS = [
    ("qwen3moe-Q4_K_M", "expert_used_count", U32, 0, "0, expected 1 to 8"),
    ("qwen3moe-Q4_K_M", "expert_used_count", U32, 9, "9, expected 1 to 8"),
    ("qwen3moe-Q4_K_M", "expert_gating_func", U32, 2, "2, expected 1"),
    ("qwen3moe-Q4_K_M", "expert_weights_scale", F32, 2.5, "2.5, expected 1"),
    ("qwen3moe-Q4_K_M", "expert_weights_norm", BOOL, False, "0, expected 1"),
    ("qwen3moe-Q4_K_M", "leading_dense_block_count", U32, 1, "1, expected 0"),
    ("gemma3-Q4_K_M", "final_logit_softcapping", F32, -1.0, "-1, expected a finite number above 0"),
    ("gemma3-Q4_K_M", "attn_logit_softcapping", F32, 50.0, "50, expected 0"),
    ("gemma3-Q4_K_M", "attention.sliding_window", U32, 0, "0, expected 1 to 16777216"),
    ("gemma3-Q4_K_M", "attention.sliding_window_pattern", U32, 0, "0, expected 1 to 6"),
    (
        "gemma3-Q4_K_M",
        "attention.sliding_window_pattern",
        ARRAY,
        (BOOL, [True] * 5),
        "5 values, expected one for each of 6 layers",
    ),
    ("gemma3-Q4_K_M", "expert_count", U32, 4, "4, expected 0: this family is supported without experts"),
]


@pytest.mark.parametrize(
    "case",
    [*(("llama-Q4_K_M", *case) for case in LLAMA), *OTHERS],
    ids=lambda case: f"{case[0].partition('-')[0]}.{case[1]}={case[3]}",
)
def test_a_value_that_is_not_honoured_is_refused(refused: Refused, case: tuple[str, str, int, Any, str]) -> None:
    name, key, kind, value, found = case
    file = model(name)
    key = f"{file.keys['general.architecture'][1]}.{key}"
    refused(file.set(key, kind, value), f"key `{key}` is {found}")


def test_values_that_change_nothing_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """The other side of the refusals: neutral values, and a key for each layer, load and give the same logits."""
    path = tmp_path / "model.gguf"
    path.write_bytes(BASE)
    plain = load(path).session().forward([1, 2, 3]).tobytes()
    file = model()
    for key, kind, value in (
        ("rope.scaling.type", STRING, "none"),
        ("rope.scaling.factor", F32, 1.0),
        ("attn_logit_softcapping", F32, 0.0),
        ("final_logit_softcapping", F32, 0.0),
        ("attention.clamp_kqv", F32, 0.0),
        ("attention.causal", BOOL, True),
        ("logit_scale", F32, 1.0),
        ("use_parallel_residual", BOOL, False),
        ("expert_count", U32, 0),
        ("feed_forward_length", ARRAY, (U32, [256, 256])),
    ):
        file.set(f"llama.{key}", kind, value)
    path.write_bytes(file.packed())
    assert load(path).session().forward([1, 2, 3]).tobytes() == plain


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("block_count", "u32"),
        ("context_length", "u32"),
        ("embedding_length", "u32"),
        ("feed_forward_length", "u32 or array of u32"),
        ("attention.head_count", "u32 or array of u32"),
        ("attention.layer_norm_rms_epsilon", "f32"),
    ],
)
def test_a_missing_key_is_named(refused: Refused, key: str, expected: str) -> None:
    refused(model().drop(f"llama.{key}"), f"key `llama.{key}` is missing, expected {expected}")


def test_a_number_that_does_not_fit_its_place_is_refused(refused: Refused) -> None:
    refused(
        model().set("llama.context_length", U64, 1 << 63),
        "key `llama.context_length` holds 9223372036854775808, out of range for u32",
    )
    refused(
        model().set("llama.feed_forward_length", ARRAY, (U32, [256])),
        "key `llama.feed_forward_length` has 1 elements, expected 2",
    )
    refused(
        model().set("general.alignment", U32, 3),
        "key `general.alignment` is 3, expected a power of two from 8 to 4096",
    )


def test_sizes_that_do_not_agree_are_refused_at_the_first_tensor(refused: Refused) -> None:
    for key, value, message in (
        ("embedding_length", 128, "tensor `token_embd.weight` has shape [256, 512], expected [128, 512]"),
        ("feed_forward_length", 128, "tensor `blk.0.ffn_gate.weight` has shape [256, 256], expected [256, 128]"),
        ("block_count", 3, "tensor `blk.2.attn_k.weight` is missing, expected shape [256, 128]"),
        ("block_count", 1, "tensor `blk.1.attn_k.weight` is not part of architecture `llama`"),
    ):
        refused(model().set(f"llama.{key}", U32, value), message)
    refused(
        model("qwen3moe-Q4_K_M").set("qwen3moe.expert_count", U32, 4),
        "tensor `blk.0.ffn_gate_exps.weight` has shape [256, 32, 8], expected [256, 32, 4]",
    )


# ---- what the vocabulary says

PRE = "tokenizer.ggml.pre"


@pytest.mark.parametrize("pre", ["mistral-bpe", "foo", "", None])
def test_bug_24_an_unknown_splitter_is_refused_by_name_and_can_be_overridden(tmp_path: Path, pre: str | None) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes((model().drop(PRE) if pre is None else model().set(PRE, STRING, pre)).packed())
    found = load(path)
    problem = (
        "the file does not name its splitter (key tokenizer.ggml.pre)"
        if pre is None
        else f"the splitter `{pre}` (key tokenizer.ggml.pre) is unknown"
    )
    decoder = found.decoder()
    for use in (lambda: found.tokenizer, lambda: decoder.generate("Hello"), lambda: decoder.add_reference("Hello")):
        with pytest.raises(quoth.TokenizerError) as caught:
            use()
        message = str(caught.value)
        assert message.startswith(f"{problem}; pre= takes one of these instead: ")
        assert {"llama-bpe", "qwen2", "smollm"} <= set(message.rpartition(": ")[2].split(", "))
    # Token ids need no splitter, and the decoder is none the worse.
    ids = decoder.generate([1, 2, 3], max_tokens=8).tokens
    assert ids
    given = load(path, pre="smollm")
    assert given.tokenizer.pre == "smollm"
    assert given.tokenizer.encode("Hello 123") == load(write(tmp_path / "whole.gguf")).tokenizer.encode("Hello 123")
    assert given.decoder().generate([1, 2, 3], max_tokens=8).tokens == ids


def write(path: Path) -> Path:
    path.write_bytes(BASE)
    return path


@pytest.mark.parametrize("pre", ["foo", ""])
def test_an_unknown_splitter_as_an_argument_is_refused_at_once(tmp_path: Path, pre: str) -> None:
    with pytest.raises(quoth.TokenizerError) as caught:
        load(write(tmp_path / "model.gguf"), pre=pre)
    assert str(caught.value).startswith(f"the splitter `{pre}` (argument pre) is unknown; pre= takes one of these")


def test_a_vocabulary_without_splitters_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model_bytes("gemma3-Q4_K_M"))
    with pytest.raises(
        quoth.TokenizerError, match=r"expected no pre= for a vocabulary of the kind `llama`, found `llama-bpe`"
    ):
        load(path, pre="llama-bpe")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.set("tokenizer.ggml.model", STRING, "foo"), "the vocabulary `foo` is unknown"),
        (lambda f: f.drop("tokenizer.ggml.model"), "the file names no vocabulary (key tokenizer.ggml.model)"),
        (lambda f: f.drop("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens"),
        (lambda f: f.drop("tokenizer.ggml.merges"), "tokenizer.ggml.merges"),
        (
            lambda f: f.set("tokenizer.ggml.eos_token_id", U32, 9999),
            "key `tokenizer.ggml.eos_token_id` is 9999, expected a token id below 512",
        ),
        (
            lambda f: f.set("tokenizer.ggml.bos_token_id", STRING, "1"),
            "key `tokenizer.ggml.bos_token_id` is the text `1`, expected a token id",
        ),
        (lambda f: f.set(PRE, U32, 1), "key `tokenizer.ggml.pre` is the whole number 1, expected text"),
    ],
)
def test_a_damaged_vocabulary_is_refused_and_the_bare_machine_still_runs(
    tmp_path: Path, change: Callable[[Gguf], Gguf], message: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(change(model()).packed())
    found = load(path)
    with pytest.raises(quoth.TokenizerError) as caught:
        found.tokenizer.encode("Hello")
    assert message in str(caught.value)
    assert found.session().forward([1, 2, 3]).shape == (3, 512)
