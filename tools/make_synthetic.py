#!/usr/bin/env python3
"""Write a GGUF file with random weights in the shape of a real model.

Speed depends on shapes and quantization, not on what the weights say, so such a file measures cost where the real
weights cannot be had. Blocks are made directly (random codes, chosen scales), never by quantizing floats: that is fast
and works for every type.

S1  A matrix of inner size k has values of standard deviation 1 / sqrt(k) and mean close to 0, whatever its type; so
    activations stay finite and logits have a standard deviation of order 1.
S2  A tensor's bytes depend on its name, shape, type and the seed alone: fewer layers give a prefix of the same model.
S3  The file appears under its name only when complete.

Cost: one pass of the random generator over the bytes; about a second for 400 MB. Needs `numpy` and `gguf`.

    python tools/make_synthetic.py qwen3-0.6b --type Q4_K_S --out model.gguf
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    quants,
)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator
Quant = GGMLQuantizationType


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a model, as GGUF says them."""

    arch: str
    n_vocab: int
    n_ctx: int
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    rope_base: float
    eps: float
    tied: bool = True
    n_expert: int = 0
    n_expert_used: int = 0


PRESETS: dict[str, Shape] = {
    "qwen3-0.6b": Shape("qwen3", 151936, 40960, 28, 1024, 3072, 16, 8, 128, 1e6, 1e-6),
    "smollm2-135m": Shape("llama", 49152, 8192, 30, 576, 1536, 9, 3, 64, 1e5, 1e-5),
    # Qwen3-30B-A3B has 48 such layers; four already exceed every cache. n_ff is that of one expert.
    "qwen3moe-30b-a3b": Shape("qwen3moe", 151936, 40960, 4, 2048, 768, 32, 4, 128, 1e6, 1e-6, False, 128, 8),
    "tiny-llama": Shape("llama", 512, 256, 2, 256, 256, 4, 2, 64, 1e5, 1e-5),
    "tiny-qwen2": Shape("qwen2", 512, 256, 2, 256, 256, 4, 2, 64, 1e6, 1e-6),
    "tiny-qwen3": Shape("qwen3", 512, 256, 2, 256, 256, 4, 2, 32, 1e6, 1e-6),
    "tiny-qwen3moe": Shape("qwen3moe", 512, 256, 2, 256, 32, 4, 2, 64, 1e6, 1e-6, False, 8, 2),
}

FLOATS = (Quant.F32, Quant.F16, Quant.BF16)

# What a recipe's file says about itself, and the type of its ordinary matrices.
RECIPES: dict[str, tuple[LlamaFileType, GGMLQuantizationType]] = {
    "Q4_K_S": (LlamaFileType.MOSTLY_Q4_K_S, Quant.Q4_K),
    "Q4_K_M": (LlamaFileType.MOSTLY_Q4_K_M, Quant.Q4_K),
    "Q4_0": (LlamaFileType.MOSTLY_Q4_0, Quant.Q4_0),
    "Q4_1": (LlamaFileType.MOSTLY_Q4_1, Quant.Q4_1),
    "Q5_0": (LlamaFileType.MOSTLY_Q5_0, Quant.Q5_0),
    "Q5_1": (LlamaFileType.MOSTLY_Q5_1, Quant.Q5_1),
    "Q8_0": (LlamaFileType.MOSTLY_Q8_0, Quant.Q8_0),
    "Q6_K": (LlamaFileType.MOSTLY_Q6_K, Quant.Q6_K),
    "Q5_K": (LlamaFileType.MOSTLY_Q5_K_S, Quant.Q5_K),
    "Q3_K": (LlamaFileType.MOSTLY_Q3_K_S, Quant.Q3_K),
    "Q2_K": (LlamaFileType.MOSTLY_Q2_K, Quant.Q2_K),
    "IQ4_NL": (LlamaFileType.MOSTLY_IQ4_NL, Quant.IQ4_NL),
    "IQ4_XS": (LlamaFileType.MOSTLY_IQ4_XS, Quant.IQ4_XS),
    "MXFP4": (LlamaFileType.MOSTLY_MXFP4_MOE, Quant.MXFP4),
    "NVFP4": (LlamaFileType.MOSTLY_NVFP4, Quant.NVFP4),
    "IQ2_XXS": (LlamaFileType.MOSTLY_IQ2_XXS, Quant.IQ2_XXS),
    "IQ2_XS": (LlamaFileType.MOSTLY_IQ2_XS, Quant.IQ2_XS),
    "IQ2_S": (LlamaFileType.MOSTLY_IQ2_S, Quant.IQ2_S),
    "IQ3_XXS": (LlamaFileType.MOSTLY_IQ3_XXS, Quant.IQ3_XXS),
    "IQ3_S": (LlamaFileType.MOSTLY_IQ3_S, Quant.IQ3_S),
    "IQ1_S": (LlamaFileType.MOSTLY_IQ1_S, Quant.IQ1_S),
    "IQ1_M": (LlamaFileType.MOSTLY_IQ1_M, Quant.IQ1_M),
    "TQ1_0": (LlamaFileType.MOSTLY_TQ1_0, Quant.TQ1_0),
    "TQ2_0": (LlamaFileType.MOSTLY_TQ2_0, Quant.TQ2_0),
    "F16": (LlamaFileType.MOSTLY_F16, Quant.F16),
    "BF16": (LlamaFileType.MOSTLY_BF16, Quant.BF16),
    "F32": (LlamaFileType.ALL_F32, Quant.F32),
}
EMBED_TYPES = ("Q4_K", *(t for t in RECIPES if t not in ("Q4_K_S", "Q4_K_M")))

# Rows that do not fill blocks of 256 get a 32-wide type of about the same size, as in files in the wild.
NARROW = {
    Quant.Q2_K: Quant.Q4_0,
    Quant.Q3_K: Quant.Q4_0,
    Quant.Q4_K: Quant.Q5_0,
    Quant.Q5_K: Quant.Q5_1,
    Quant.Q6_K: Quant.Q8_0,
    Quant.IQ4_XS: Quant.IQ4_NL,
    Quant.IQ2_XXS: Quant.IQ4_NL,
    Quant.IQ2_XS: Quant.IQ4_NL,
    Quant.IQ2_S: Quant.IQ4_NL,
    Quant.IQ3_XXS: Quant.IQ4_NL,
    Quant.IQ3_S: Quant.IQ4_NL,
    Quant.IQ1_S: Quant.IQ4_NL,
    Quant.IQ1_M: Quant.IQ4_NL,
    Quant.TQ1_0: Quant.Q4_0,
    Quant.TQ2_0: Quant.Q4_0,
}


# --- blocks -----------------------------------------------------------------------------------------------------------

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])  # E2M1, doubled


def mean_square(values: npt.NDArray[Any]) -> float:
    """Mean square of codes that are all equally likely."""
    return float(np.mean(values.astype(np.float64) ** 2))


def put_f16(blocks: Bytes, at: int, values: npt.NDArray[Any]) -> None:
    """Store one f16 per block at byte `at`."""
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def put_scales_and_mins(blocks: Bytes, at: int, scale: Ints, low: Ints) -> None:
    """Store eight 6-bit scales and eight 6-bit minimums in the 12 bytes at `at`, as Q4_K and Q5_K pack them."""
    blocks[:, at : at + 4] = (scale[:, :4] & 63) | ((scale[:, 4:] >> 4) << 6)
    blocks[:, at + 4 : at + 8] = (low[:, :4] & 63) | ((low[:, 4:] >> 4) << 6)
    blocks[:, at + 8 : at + 12] = (scale[:, 4:] & 15) | ((low[:, 4:] & 15) << 4)


def spread_scale(n: int, std: float, code_ms: float, rng: Rng) -> npt.NDArray[np.float64]:
    """One scale per block, uneven by a quarter, so that scale * code has standard deviation `std`.

    Args:
        n: Number of blocks.
        std: Wanted standard deviation of the values.
        code_ms: Mean square of what the scale is multiplied with.
        rng: Source of randomness.

    Returns:
        float64 `[n]`, positive.
    """
    uneven: npt.NDArray[np.float64] = rng.uniform(0.75, 1.25, n)
    return uneven * float(std / np.sqrt(code_ms * (1 + 0.25**2 / 3)))


def either_sign(scale: npt.NDArray[np.float64], rng: Rng) -> npt.NDArray[np.float64]:
    """Flip half the scales, so that code ranges that lean to one side do not add up."""
    sign: npt.NDArray[np.float64] = rng.choice((-1.0, 1.0), scale.size)
    return scale * sign


def fill_symmetric(at: int, code_ms: float) -> Callable[[Bytes, float, Rng], None]:
    """A filler for types that are scale * code (any bytes are valid codes); the scale is the f16 at byte `at`."""

    def fill(blocks: Bytes, std: float, rng: Rng) -> None:
        put_f16(blocks, at, either_sign(spread_scale(len(blocks), std, code_ms, rng), rng))

    return fill


def fill_offset(codes: int) -> Callable[[Bytes, float, Rng], None]:
    """A filler for types that are scale * code + minimum (f16 at bytes 0 and 2), codes 0 to `codes` - 1."""
    middle = (codes - 1) / 2

    def fill(blocks: Bytes, std: float, rng: Rng) -> None:
        scale = spread_scale(len(blocks), std, mean_square(np.arange(codes) - middle), rng)
        put_f16(blocks, 0, scale)
        put_f16(blocks, 2, -middle * scale)

    return fill


def fill_super(codes: int) -> Callable[[Bytes, float, Rng], None]:
    """A filler for Q4_K (16 codes) and Q5_K (32): eight sub-blocks with 6-bit scale and minimum."""
    middle = (codes - 1) / 2
    sub_scales = np.arange(20, 60)

    def fill(blocks: Bytes, std: float, rng: Rng) -> None:
        n = len(blocks)
        sub = rng.choice(sub_scales, (n, 8))
        low = sub + rng.integers(-4, 5, (n, 8))  # about centred, but not exactly: minimums must matter
        code_ms = mean_square(sub_scales) * mean_square(np.arange(codes) - middle) + middle**2 * mean_square(
            np.arange(-4, 5)
        )
        scale = spread_scale(n, std, code_ms, rng)
        put_f16(blocks, 0, scale)
        put_f16(blocks, 2, middle * scale)
        put_scales_and_mins(blocks, 4, sub, low)

    return fill


def fill_q2_k(blocks: Bytes, std: float, rng: Rng) -> None:
    """Q2_K: sixteen sub-blocks, a nibble of scale and a nibble of minimum each, codes 0 to 3."""
    sub_scales = np.arange(4, 16)
    sub = rng.choice(sub_scales, (len(blocks), 16))
    scale = spread_scale(len(blocks), std, mean_square(sub_scales) * mean_square(np.arange(4) - 1.5), rng)
    blocks[:, :16] = sub | (sub << 4)
    put_f16(blocks, 80, scale)
    put_f16(blocks, 82, 1.5 * scale)


def fill_q8_0(blocks: Bytes, std: float, rng: Rng) -> None:
    """Q8_0: signed bytes. -128 becomes 0, since writers never make it."""
    codes = blocks[:, 2:]
    codes[codes == 0x80] = 0
    put_f16(blocks, 0, spread_scale(len(blocks), std, mean_square(np.arange(-127, 128)), rng))


def fill_mxfp4(blocks: Bytes, std: float, rng: Rng) -> None:
    """MXFP4: scales are powers of two, so two of them in such shares that the mean square comes out."""
    wanted = std**2 / mean_square(FP4_VALUES)
    below = int(np.floor(np.log2(wanted) / 2))
    larger = rng.random(len(blocks)) < (wanted / 4.0**below - 1) / 3
    blocks[:, 0] = 128 + below + larger


def fill_nvfp4(blocks: Bytes, std: float, rng: Rng) -> None:
    """NVFP4: four scales, each one of two neighbours, in such shares that the mean square comes out."""
    wanted = std**2 / mean_square(FP4_VALUES)
    squares = quants.NVFP4.ue4m3_to_fp32(np.arange(0x7F, dtype=np.uint8)).astype(np.float64) ** 2
    below = int(np.searchsorted(squares, wanted, side="right")) - 1
    share = (wanted - squares[below]) / (squares[below + 1] - squares[below])
    blocks[:, :4] = below + (rng.random((len(blocks), 4)) < share)


def fill_grid(at: int, kind: Any, scales: int, unit: float, shift: float = 0) -> Callable[[Bytes, float, Rng], None]:
    """A filler for types of grids: (2 s + 1) * unit * point, `scales` equally likely s, the f16 at byte `at`."""

    def fill(blocks: Bytes, std: float, rng: Rng) -> None:
        kind.init_grid()
        point_ms = float(np.mean(kind.grid.astype(np.float64) ** 2)) + shift**2
        code_ms = mean_square(2 * np.arange(scales) + 1) * unit**2 * point_ms
        put_f16(blocks, at, either_sign(spread_scale(len(blocks), std, code_ms, rng), rng))

    return fill


def fill_iq1_m(blocks: Bytes, std: float, rng: Rng) -> None:
    """IQ1_M: as IQ1_S, but the scale's four nibbles are the upper ones of four 16-bit numbers."""
    whole = np.zeros((len(blocks), 2), np.uint8)
    fill_grid(0, quants.IQ1_S, 8, 1, 1 / 8)(whole, std, rng)
    nibbles = np.stack([whole[:, 0] & 15, whole[:, 0] >> 4, whole[:, 1] & 15, whole[:, 1] >> 4], axis=1)
    blocks[:, 49:56:2] = (blocks[:, 49:56:2] & 15) | (nibbles << 4)


def fill_ternary(at: int) -> Callable[[Bytes, float, Rng], None]:
    """A filler for TQ1_0 (any bytes) and TQ2_0, whose pairs writers keep below 3."""

    def fill(blocks: Bytes, std: float, rng: Rng) -> None:
        if at == 64:
            digits = rng.integers(0, 3, (len(blocks), 64, 4))
            blocks[:, :64] = (digits << (2 * np.arange(4))).sum(axis=2)
        put_f16(blocks, at, either_sign(spread_scale(len(blocks), std, 2 / 3, rng), rng))

    return fill


SIX_BIT = mean_square(np.arange(-32, 32))
FILLERS: dict[GGMLQuantizationType, Callable[[Bytes, float, Rng], None]] = {
    Quant.Q4_0: fill_symmetric(0, mean_square(np.arange(-8, 8))),
    Quant.Q5_0: fill_symmetric(0, mean_square(np.arange(-16, 16))),
    Quant.IQ4_NL: fill_symmetric(0, mean_square(IQ4_VALUES)),
    Quant.Q4_1: fill_offset(16),
    Quant.Q5_1: fill_offset(32),
    Quant.Q8_0: fill_q8_0,
    Quant.Q2_K: fill_q2_k,
    Quant.Q3_K: fill_symmetric(108, SIX_BIT * mean_square(np.arange(-4, 4))),
    Quant.Q4_K: fill_super(16),
    Quant.Q5_K: fill_super(32),
    Quant.Q6_K: fill_symmetric(208, mean_square(np.arange(-128, 128)) * SIX_BIT),
    Quant.IQ4_XS: fill_symmetric(0, SIX_BIT * mean_square(IQ4_VALUES)),
    Quant.MXFP4: fill_mxfp4,
    Quant.NVFP4: fill_nvfp4,
    Quant.IQ2_XXS: fill_grid(0, quants.IQ2_XXS, 16, 1 / 8),
    Quant.IQ2_XS: fill_grid(0, quants.IQ2_XS, 16, 1 / 8),
    Quant.IQ2_S: fill_grid(0, quants.IQ2_S, 16, 1 / 8),
    Quant.IQ3_XXS: fill_grid(0, quants.IQ3_XXS, 16, 1 / 4),
    Quant.IQ3_S: fill_grid(0, quants.IQ3_S, 16, 1),
    Quant.IQ1_S: fill_grid(0, quants.IQ1_S, 8, 1, 1 / 8),
    Quant.IQ1_M: fill_iq1_m,
    Quant.TQ1_0: fill_ternary(52),
    Quant.TQ2_0: fill_ternary(64),
}


def random_matrix(kind: GGMLQuantizationType, shape: Sequence[int], std: float, rng: Rng) -> npt.NDArray[Any]:
    """Random weights of a type, as they lie in a file.

    Args:
        kind: A type for which this file has a recipe.
        shape: Sizes, slowest first; the last is the inner size k and a multiple of the type's block.
        std: Standard deviation of the values.
        rng: Source of randomness.

    Returns:
        `uint8 [..., bytes per row]`; `float32` or `float16` of `shape` for F32 and F16.

    Raises:
        ValueError: k does not fill whole blocks.
    """
    if kind in FLOATS:
        values: npt.NDArray[np.float32] = rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(std)
        if kind == Quant.F32:
            return values
        if kind == Quant.F16:
            return np.asarray(values, np.float16)
        bits: npt.NDArray[np.uint32] = values.view(np.uint32)
        rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(
            "<u2"
        )  # half to even; no NaNs
        return rounded.view(np.uint8)
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % per_block:
        raise ValueError(f"inner size {shape[-1]} is not a multiple of {kind.name}'s block of {per_block}")
    n_blocks = int(np.prod(shape)) // per_block
    blocks = np.frombuffer(bytearray(rng.bytes(n_blocks * block_bytes)), np.uint8).reshape(n_blocks, block_bytes)
    FILLERS[kind](blocks, std, rng)
    return blocks.reshape(*shape[:-1], shape[-1] // per_block * block_bytes)


# --- tensors ----------------------------------------------------------------------------------------------------------


def fitting(kind: GGMLQuantizationType, k: int) -> GGMLQuantizationType:
    """The type that rows of k values get when `kind` was asked for."""
    while k % GGML_QUANT_SIZES[kind][0]:
        kind = NARROW.get(kind, Quant.F16)
    return kind


def matrix_type(recipe: str, role: str, layer: int, n_layer: int) -> GGMLQuantizationType:
    """The type of a layer's matrix: the two K mixes give some value and down matrices more bits, as usual files do."""
    base = RECIPES[recipe][1]
    early = layer < n_layer // 8
    if recipe == "Q4_K_S" and ((role == "attn_v" and layer < 4) or (role.startswith("ffn_down") and early)):
        return Quant.Q5_K
    often = early or layer >= 7 * n_layer // 8 or (layer - n_layer // 8) % 3 == 2
    if recipe == "Q4_K_M" and often and (role == "attn_v" or role.startswith("ffn_down")):
        return Quant.Q6_K
    return base


def embedding_type(recipe: str, asked: str | None) -> GGMLQuantizationType:
    """The type of the embedding and the head: as asked, else Q6_K for everything smaller than that."""
    if asked is not None:
        return GGMLQuantizationType[asked]
    base = RECIPES[recipe][1]
    return base if base in FLOATS or base == Quant.Q8_0 else Quant.Q6_K


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor to write: sizes slowest first; `std` is None for a norm weight, which lies near 1."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    std: float | None

    def data(self, seed: int) -> npt.NDArray[Any]:
        """The tensor's values as they lie in the file."""
        rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(self.name.encode())]))
        if self.std is None:
            return (1 + 0.1 * rng.standard_normal(self.shape)).astype(np.float32)
        return random_matrix(self.kind, self.shape, self.std, rng)


def tensors(s: Shape, recipe: str, embed: str | None) -> Iterator[Tensor]:
    """All tensors of a model, in file order."""

    def matrix(name: str, kind: GGMLQuantizationType, *shape: int) -> Tensor:
        return Tensor(name, shape, fitting(kind, shape[-1]), shape[-1] ** -0.5)

    def norm(name: str, n: int) -> Tensor:
        return Tensor(name, (n,), Quant.F32, None)

    outer = embedding_type(recipe, embed)
    yield matrix("token_embd.weight", outer, s.n_vocab, s.n_embd)
    if not s.tied:
        yield matrix("output.weight", outer, s.n_vocab, s.n_embd)
    yield norm("output_norm.weight", s.n_embd)
    q, kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    experts = (s.n_expert,) if s.n_expert else ()
    suffix = "_exps" if s.n_expert else ""
    roles: list[tuple[str, tuple[int, ...]]] = [
        ("attn_q", (q, s.n_embd)),
        ("attn_k", (kv, s.n_embd)),
        ("attn_v", (kv, s.n_embd)),
        ("attn_output", (s.n_embd, q)),
        ("ffn_gate" + suffix, (*experts, s.n_ff, s.n_embd)),
        ("ffn_up" + suffix, (*experts, s.n_ff, s.n_embd)),
        ("ffn_down" + suffix, (*experts, s.n_embd, s.n_ff)),
    ]
    for layer in range(s.n_layer):
        at = f"blk.{layer}."
        yield norm(at + "attn_norm.weight", s.n_embd)
        yield norm(at + "ffn_norm.weight", s.n_embd)
        if s.arch.startswith("qwen3"):
            yield norm(at + "attn_q_norm.weight", s.head_dim)
            yield norm(at + "attn_k_norm.weight", s.head_dim)
        if s.arch == "qwen2":
            for role, n in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                yield Tensor(f"{at}{role}.bias", (n,), Quant.F32, 0.1)
        if s.n_expert:
            yield Tensor(at + "ffn_gate_inp.weight", (s.n_expert, s.n_embd), Quant.F32, s.n_embd**-0.5)
        for role, shape in roles:
            yield matrix(f"{at}{role}.weight", matrix_type(recipe, role, layer, s.n_layer), *shape)


# --- metadata ---------------------------------------------------------------------------------------------------------


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies: itself if printable, else one from 256 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def add_plain_vocabulary(w: GGUFWriter, n_vocab: int) -> None:
    """256 byte tokens, an end token, one merge (readers ask for the key, writers refuse an empty list), dummies."""
    letters = byte_letters()
    space = letters[0x20]
    tokens = [*letters, "<|endoftext|>", space * 2]
    tokens += [f"<extra_{i}>" for i in range(n_vocab - len(tokens))]
    types = [int(TokenType.NORMAL)] * n_vocab
    types[256] = int(TokenType.CONTROL)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([f"{space} {space}"])
    w.add_bos_token_id(256)
    w.add_eos_token_id(256)
    w.add_add_bos_token(False)


def add_vocabulary_of(w: GGUFWriter, source: Path, n_vocab: int) -> None:
    """Copy every `tokenizer.` entry of another GGUF file and pad the vocabulary with dummies.

    Raises:
        ValueError: The file has more tokens than `n_vocab`.
    """
    fields = {k: f for k, f in GGUFReader(source).fields.items() if k.startswith("tokenizer.")}
    tokens = fields["tokenizer.ggml.tokens"].contents()
    missing = n_vocab - len(tokens)
    if missing < 0:
        raise ValueError(f"{source} has {len(tokens)} tokens, the shape has room for {n_vocab}")
    padding: dict[str, list[Any]] = {
        "tokenizer.ggml.tokens": [f"<extra_{i}>" for i in range(missing)],
        "tokenizer.ggml.token_type": [int(TokenType.NORMAL)] * missing,
        "tokenizer.ggml.scores": [-1e6] * missing,
    }
    for key, field in fields.items():
        value = field.contents()
        if field.types[0] == GGUFValueType.ARRAY:
            w.add_key_value(key, value + padding.get(key, []), GGUFValueType.ARRAY, field.types[1])
        else:
            w.add_key_value(key, value, field.types[0])


def add_metadata(w: GGUFWriter, s: Shape, name: str, recipe: str) -> None:
    """Sizes and constants under the names that GGUF gives them."""
    w.add_name(f"synthetic {name} {recipe}")
    w.add_description("random weights")
    w.add_file_type(RECIPES[recipe][0])
    w.add_quantization_version(2)
    w.add_context_length(s.n_ctx)
    w.add_embedding_length(s.n_embd)
    w.add_block_count(s.n_layer)
    w.add_feed_forward_length(s.n_ff)
    w.add_head_count(s.n_head)
    w.add_head_count_kv(s.n_head_kv)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_rope_dimension_count(s.head_dim)
    w.add_rope_freq_base(s.rope_base)
    w.add_layer_norm_rms_eps(s.eps)
    w.add_vocab_size(s.n_vocab)
    if s.n_expert:
        w.add_expert_count(s.n_expert)
        w.add_expert_used_count(s.n_expert_used)
        w.add_expert_feed_forward_length(s.n_ff)


def write(
    out: Path,
    preset: str,
    recipe: str = "Q4_K_S",
    *,
    embed: str | None = None,
    layers: int | None = None,
    vocab: int | None = None,
    seed: int = 0,
    vocab_from: Path | None = None,
) -> None:
    """Write a random model.

    Args:
        out: The file to write. Replaced if it exists.
        preset: A key of `PRESETS`.
        recipe: A key of `RECIPES`: the type of the matrices, or a mix of types.
        embed: Type of the embedding and the head, one of `EMBED_TYPES`; None: Q6_K, or the recipe's own if not smaller.
        layers: Number of layers, at least 1; None: the preset's.
        vocab: Tokens of the vocabulary, at least 258; None: the preset's. With fewer layers than the real model, fewer
            tokens keep the head's share of the work.
        seed: Any integer from 0.
        vocab_from: A GGUF file to take the vocabulary from; None: bytes and dummies.

    Raises:
        ValueError: `layers` is below 1, `vocab` below 258, or the vocabulary of `vocab_from` does not fit.
        OSError: The file cannot be written.
    """
    shape = PRESETS[preset]
    if layers is not None:
        if layers < 1:
            raise ValueError(f"layers must be at least 1, got {layers}")
        shape = dataclasses.replace(shape, n_layer=layers)
    if vocab is not None:
        if vocab < 258:
            raise ValueError(f"vocab must be at least 258, got {vocab}")
        shape = dataclasses.replace(shape, n_vocab=vocab)
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    w = GGUFWriter(part, shape.arch)
    try:
        add_metadata(w, shape, preset, recipe)
        if vocab_from is None:
            add_plain_vocabulary(w, shape.n_vocab)
        else:
            add_vocabulary_of(w, vocab_from, shape.n_vocab)
        plan = list(tensors(shape, recipe, embed))
        for t in plan:
            per_block, block_bytes = GGML_QUANT_SIZES[t.kind]
            row_bytes = t.shape[-1] // per_block * block_bytes
            as_bytes = t.kind not in (Quant.F32, Quant.F16)
            n_bytes = int(np.prod(t.shape[:-1])) * row_bytes
            sizes = (*t.shape[:-1], row_bytes) if as_bytes else t.shape
            dtype = np.uint8 if as_bytes else np.float32 if t.kind == Quant.F32 else np.float16
            w.add_tensor_info(t.name, sizes, np.dtype(dtype), n_bytes, t.kind if as_bytes else None)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        for t in plan:
            w.write_tensor_data(t.data(seed))
        w.close()
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 when the file is written, 1 when it could not be."""
    parser = argparse.ArgumentParser(description="Write a GGUF file with random weights in a real model's shape.")
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--type", default="Q4_K_S", choices=RECIPES, help="type of the matrices (default Q4_K_S)")
    parser.add_argument(
        "--embed-type", choices=EMBED_TYPES, help="type of embedding and head (default Q6_K, or --type if larger)"
    )
    parser.add_argument("--layers", type=int, help="number of layers (default: the preset's)")
    parser.add_argument("--vocab", type=int, help="tokens of the vocabulary (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab-from", type=Path, help="GGUF file to take the vocabulary from")
    a = parser.parse_args(argv)
    try:
        write(
            a.out,
            a.preset,
            a.type,
            embed=a.embed_type,
            layers=a.layers,
            vocab=a.vocab,
            seed=a.seed,
            vocab_from=a.vocab_from,
        )
    except (ValueError, OSError) as error:
        print(f"make_synthetic: {error}", file=sys.stderr)
        return 1
    print(f"{a.out}: {a.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
