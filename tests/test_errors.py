"""Files that are not GGUF, not whole, or without the right tensors: each is refused by a named exception that says what
was expected, what was found and where, and costs little.

E1  A refusal is a `ModelFileError`; of a path without a file, a `FileNotFoundError` as well.
E2  The message names the file, and the tensor or the byte.
E3  A refusal leaves neither threads nor memory behind.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import quoth
from broken import Gguf, Tensor, check_refused, load, model, model_bytes
from quoth.machine import peak_bytes

BASE = model_bytes()

Refused = Callable[[Gguf | bytes, str], None]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """Load a file and expect a `ModelFileError` that names it and says a message."""
    return partial(check_refused, tmp_path)


def test_a_file_put_together_unchanged_is_the_file_and_loads(tmp_path: Path) -> None:
    """What follows breaks one thing at a time, so the whole must be sound."""
    assert model().packed() == BASE
    (tmp_path / "model.gguf").write_bytes(BASE)
    assert load(tmp_path / "model.gguf").session().forward([1, 2, 3]).shape == (3, 512)


# ---- not a file, not GGUF


def test_a_path_without_a_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", str(tmp_path / "none.gguf")):
        with pytest.raises(FileNotFoundError) as caught:
            load(path)
        assert isinstance(caught.value, quoth.ModelFileError)
        assert f"no file `{path}`" in str(caught.value)
    with pytest.raises(quoth.OptionsError, match=r"unknown model name `nonesuch`, known are `smollm2`"):
        load("nonesuch")


def test_a_folder_a_device_and_a_pipe_are_not_files(tmp_path: Path) -> None:
    with pytest.raises(quoth.ModelFileError, match=r"is a folder, expected a GGUF file") as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in ("/dev/null", tmp_path / "pipe.gguf"):
        with pytest.raises(quoth.ModelFileError, match="expected a file, found a device or pipe"):
            load(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_a_permission_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(BASE)
    path.chmod(0)
    with pytest.raises(PermissionError) as caught:
        load(path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a GGUF header of 24 bytes, found an empty file"),
        (BASE[:10], "the header ends at byte 16, the file has 10"),
        (
            b"Dear reader,\nthis is a letter.\n",
            "expected the magic bytes `GGUF` at byte 0, found text that starts with `Dear reader,`",
        ),
        (b"GGML" + BASE[4:], "expected the magic bytes `GGUF` at byte 0, found `GGML`"),
        (b"\x00\xff\x80\x01" + BASE[4:], r"expected the magic bytes `GGUF` at byte 0, found `\x00\xff\x80\x01`"),
        (
            BASE[:4] + struct.pack(">I", 3) + BASE[8:],
            "expected a little-endian file, found version bytes 0x03000000 at byte 4, as in a big-endian file",
        ),
        (BASE[:4] + struct.pack("<I", 1) + BASE[8:], "expected GGUF version 2 or 3 at byte 4, found 1"),
        (BASE[:4] + struct.pack("<I", 4) + BASE[8:], "expected GGUF version 2 or 3 at byte 4, found 4"),
    ],
    ids=["empty", "short", "text", "GGML", "binary", "big-endian", "version 1", "version 4"],
)
def test_what_is_not_gguf_is_refused_by_its_first_bytes(refused: Refused, data: bytes, message: str) -> None:
    refused(data, message)


def test_a_file_cut_anywhere_is_refused_with_its_length(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    lengths = sorted({*range(1, 4096, 97), *range(4096, len(BASE), 4096), len(BASE) - 1})
    for n in lengths:
        path.write_bytes(BASE[:n])
        with pytest.raises(quoth.ModelFileError) as caught:
            load(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        # Where the file ends, or how much room its end leaves for what it announces.
        assert re.search(rf"the file has ({n}|room for \d+)$", message), message
        if n > 60_000:
            ends = re.search(r"tensor `[a-z0-9_.]+` ends at byte (\d+)", message)
            assert ends, message
            assert int(ends[1]) > n


def test_a_refusal_leaves_neither_threads_nor_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model().drop("blk.1.ffn_up.weight").packed())
    for _ in range(3):
        with pytest.raises(quoth.ModelFileError):
            load(path)
    threads, peak = threading.active_count(), peak_bytes()
    tasks = Path("/proc/self/task")
    before = len(list(tasks.iterdir())) if tasks.is_dir() else 0
    for _ in range(200):
        with pytest.raises(quoth.ModelFileError):
            quoth.Model(path, n_ctx=64, threads=2)
    assert threading.active_count() == threads
    if peak is not None:
        assert len(list(tasks.iterdir())) == before
        after = peak_bytes()
        assert after is not None
        assert after - peak < 20 << 20, "200 files of 0.6 MB were held"


# ---- tensors


@pytest.mark.parametrize(
    ("kind", "name", "block", "n_bytes"),
    [
        (15, "Q8_K", 256, 292),
        (24, "I8", 1, 1),
        (28, "F64", 1, 8),
    ],
)
def test_a_quantization_that_is_not_computed_with_is_refused_by_name(
    refused: Refused, kind: int, name: str, block: int, n_bytes: int
) -> None:
    file = model()
    file.tensors["blk.0.attn_q.weight"] = Tensor([256, 256], kind, bytes(256 * 256 // block * n_bytes))
    refused(file, f"tensor `blk.0.attn_q.weight` is of type {name}, which the engine cannot compute with")


def test_a_quantization_that_nobody_knows_is_refused_by_number(refused: Refused) -> None:
    file = model()
    file.tensors["blk.0.attn_q.weight"].kind = 99
    refused(file, "tensor `blk.0.attn_q.weight` has the type id 99, which is not known")


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("llama-Q4_K_M", "blk.1.ffn_up.weight", "[256, 256]"),
        ("llama-Q4_K_M", "output_norm.weight", "[256]"),
        ("llama-Q4_K_M", "blk.0.attn_k.weight", "[256, 128]"),
        ("qwen2-Q4_K_M", "blk.0.attn_q.bias", "[256]"),
        ("qwen3-Q2_K", "blk.1.attn_k_norm.weight", "[32]"),
        ("qwen3moe-Q4_K_M", "blk.0.ffn_gate_inp.weight", "[256, 8]"),
        ("qwen3moe-Q4_K_M", "blk.1.ffn_down_exps.weight", "[32, 256, 8]"),
        ("gemma3-Q4_K_M", "blk.5.post_ffw_norm.weight", "[256]"),
        ("gemma4moe-Q4_K_M", "blk.1.pre_ffw_norm_2.weight", "[256]"),
    ],
)
def test_a_missing_tensor_is_named_with_its_shape(refused: Refused, name: str, tensor: str, shape: str) -> None:
    refused(model(name).drop(tensor), f"tensor `{tensor}` is missing, expected shape {shape}")


def test_a_missing_embedding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model().drop("token_embd.weight").packed())
    with pytest.raises(quoth.ModelFileError, match=r"tensor `token_embd\.weight` is missing, expected"):
        load(path)


@pytest.mark.parametrize("tensor", ["blk.0.extra.weight", "blk.2.attn_norm.weight", "blk.0.attn_q_norm.weight", "cls"])
def test_a_tensor_that_nothing_would_read_is_refused(refused: Refused, tensor: str) -> None:
    file = model()
    file.tensors[tensor] = Tensor([64], 0, bytes(256))
    refused(file, f"tensor `{tensor}` is not part of architecture `llama`")


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        ("blk.0.ffn_up.weight", [256, 128], "has shape [256, 128], expected [256, 256]"),
        ("blk.0.attn_norm.weight", [128], "has shape [128], expected [256]"),
        ("blk.0.attn_q.weight", [256, 16, 16], "has shape [256, 16, 16], expected [256, 256]"),
        ("blk.0.attn_q.weight", [65536], "has shape [65536], expected [256, 256]"),
        ("blk.0.attn_k.weight", [128, 256], "has rows of 128 values, expected a multiple of 256 for Q4_K"),
        ("blk.0.attn_q.weight", [0, 256], "has length 0 on axis 0"),
        ("blk.0.attn_q.weight", [256, 0], "has length 0 on axis 1"),
        ("blk.0.attn_q.weight", [256, 1, 1, 1, 256], "has 5 dimensions, expected 1 to 4"),
        (
            "blk.0.attn_q.weight",
            [1 << 40, 1 << 40],
            "has the shape [1099511627776, 1099511627776], whose size does not fit 64 bits",
        ),
    ],
)
def test_a_tensor_of_another_shape_is_refused(refused: Refused, tensor: str, shape: list[int], message: str) -> None:
    file = model()
    file.tensors[tensor].shape = shape
    refused(file, f"tensor `{tensor}` {message}")


def test_a_norm_that_is_not_finite_is_refused(refused: Refused) -> None:
    for value, shown in ((float("nan"), "NaN"), (float("inf"), "inf")):
        file = model()
        file.tensors["output_norm.weight"].data = struct.pack("<256f", *[1.0] * 255, value)
        refused(file, f"tensor `output_norm.weight` holds {shown}, expected finite numbers")
