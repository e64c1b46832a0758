"""Tiny random models in any weight format, written as GGUF files and kept for the whole run.

Two layers and a byte-level vocabulary with pieces of characters, an end of text and an end of a turn. At `logit_std` 3
a temperature of 0.8 is diverse; at `embed_std` 0.5 greedy text repeats itself now and then, so that drafts hit.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import quoth
from conftest import load_synthetic

EOS, EOT = 0, 1
FORMATS = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS",
)  # fmt: skip
KERNELS = tuple(dict.fromkeys(name for name, _ in quoth._core.kernel_sets()))
KV_TYPES = ("f16", "q8_0", "f32")


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="quoth-models-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _vocabulary(n_vocab: int) -> tuple[list[str], list[int]]:
    """Texts and types: two ends, pieces of characters, words, single bytes."""
    letters = load_synthetic().byte_letters()
    pieces = ["é".encode(), b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", b"\xc3", b"\xa9", "€".encode()]
    pieces += [b" the", b"the", b"\n\n", b"##", b"end", b"  "]
    plain = [*range(0x20, 0x7F), 0x0A, *range(0x20), *range(0x7F, 0x100)]
    spelled = [*pieces, *(bytes([b]) for b in plain if bytes([b]) not in pieces)]
    texts = ["<|endoftext|>", "<|im_end|>", *("".join(letters[b] for b in piece) for piece in spelled)]
    texts += [f"w{i}" for i in range(len(texts), n_vocab)]
    return texts[:n_vocab], [3, 3, *[1] * (n_vocab - 2)]


@cache
def tiny_path(
    kind: str = "Q8_0",
    arch: str = "llama",
    *,
    n_vocab: int = 97,
    seed: int = 1,
    embed_std: float = 0.5,
    logit_std: float = 3.0,
    poisoned: int | None = None,
    eog: bool = True,
) -> Path:
    """The file of a tiny model.

    Args:
        kind: Format of all matrices. Formats with blocks of 256 make a model 256 wide, others one 64 wide.
        arch: `llama`, `qwen2` or `qwen3`.
        n_vocab: Tokens, at least 97.
        seed: Another seed, another model.
        embed_std: The larger, the less a token depends on what is further back.
        logit_std: Standard deviation of the logits.
        poisoned: A token whose embedding holds a NaN. The embedding is then F32, as with -1, which poisons none.
        eog: Whether the file names the ends of generation.
    """
    tool = load_synthetic()
    gguf = pytest.importorskip("gguf", reason="random models are written with the package gguf")
    path = _folder() / f"{len(list(_folder().iterdir()))}.gguf"
    wide = kind.endswith("_K") or kind == "IQ4_XS"
    n_embd, n_ff, heads, kv_heads, dim = (256, 256, 8, 2, 32) if wide else (64, 64, 2, 1, 32)
    rng = np.random.Generator(np.random.SFC64(seed))
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(8192)
    w.add_embedding_length(n_embd)
    w.add_block_count(2)
    w.add_feed_forward_length(n_ff)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_rope_dimension_count(dim)
    w.add_layer_norm_rms_eps(1e-5)
    texts, types = _vocabulary(n_vocab)
    if not eog:
        texts[:2], types[:2] = ["w0", "w1"], [1, 1]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(texts)
    w.add_token_types(types)
    w.add_token_merges(["Ġ Ġ"])
    w.add_add_bos_token(False)
    if eog:
        w.add_eos_token_id(EOS)
        w.add_eot_token_id(EOT)

    def matrix(name: str, n: int, k: int, std: float, kind: str = kind) -> None:
        quant = gguf.GGMLQuantizationType[kind]
        data = tool.random_matrix(quant, (n, k), std / np.sqrt(k), rng)
        if name == "token_embd.weight" and poisoned is not None and poisoned >= 0:
            data[poisoned, 1] = np.nan
        w.add_tensor(name, data, raw_dtype=None if kind in ("F32", "F16") else quant)

    def vector(name: str, n: int, mean: float = 1.0, std: float = 0.1) -> None:
        w.add_tensor(name, (mean + std * rng.standard_normal(n)).astype(np.float32))

    matrix("token_embd.weight", n_vocab, n_embd, embed_std * np.sqrt(n_embd), kind if poisoned is None else "F32")
    matrix("output.weight", n_vocab, n_embd, logit_std)
    vector("output_norm.weight", n_embd)
    for i in range(2):
        vector(f"blk.{i}.attn_norm.weight", n_embd)
        vector(f"blk.{i}.ffn_norm.weight", n_embd)
        if arch == "qwen3":
            vector(f"blk.{i}.attn_q_norm.weight", dim, 1.5)
            vector(f"blk.{i}.attn_k_norm.weight", dim, 1.5)
        for role, n, k in (
            ("attn_q", heads * dim, n_embd),
            ("attn_k", kv_heads * dim, n_embd),
            ("attn_v", kv_heads * dim, n_embd),
            ("attn_output", n_embd, heads * dim),
            ("ffn_gate", n_ff, n_embd),
            ("ffn_up", n_ff, n_embd),
            ("ffn_down", n_embd, n_ff),
        ):
            matrix(f"blk.{i}.{role}.weight", n, k, 1.5 if role in ("attn_q", "attn_k") else 1.0)
            if arch == "qwen2" and role in ("attn_q", "attn_k", "attn_v"):
                vector(f"blk.{i}.{role}.bias", n, 0.0, 0.3)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@cache
def tiny(
    kind: str = "Q8_0",
    *,
    n_ctx: int = 512,
    threads: int = 1,
    kv_type: quoth.model.KvType = "f16",
    kernels: str | None = None,
    **what: object,
) -> quoth.Model:
    """A tiny model, loaded once for each way to load it."""
    return quoth.Model(tiny_path(kind, **what), n_ctx=n_ctx, threads=threads, kv_type=kv_type, kernels=kernels)  # type: ignore[arg-type]
