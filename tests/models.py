"""Tiny random models in any weight format, written as GGUF files and kept for the whole run.

Two layers (the gemmas: three, or four) and a byte-level vocabulary with pieces of characters, an end of text and an end
of a turn. At `logit_std` 3 a temperature of 0.8 is diverse; at `embed_std` 0.5 greedy text repeats itself now and then,
so that drafts hit.
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
FAMILIES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "gemma4", "gemma4moe")
WINDOW = 24
"""Positions that windowed layers of the gemmas see."""
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
        arch: One of `FAMILIES`; `gemma4moe` is gemma4 with experts.
        n_vocab: Tokens, at least 97.
        seed: Another seed, another model.
        embed_std: The larger, the less a token depends on what is further back.
        logit_std: Standard deviation of the logits.
        poisoned: A token whose embedding holds a NaN. The embedding is then F32, as with -1, which poisons none.
        eog: Whether the file names the ends of generation.
    """
    path = _folder() / f"{len(list(_folder().iterdir()))}.gguf"
    stds = {"embed_std": embed_std, "logit_std": logit_std}
    _Writer(path, kind, arch, n_vocab=n_vocab, seed=seed, poisoned=poisoned, eog=eog, **stds).write()
    return path


class _Writer:
    """Writes one model."""

    def __init__(
        self,
        path: Path,
        kind: str,
        family: str,
        *,
        n_vocab: int,
        seed: int,
        embed_std: float,
        logit_std: float,
        poisoned: int | None,
        eog: bool,
    ) -> None:
        self.gguf = pytest.importorskip("gguf", reason="random models are written with the package gguf")
        self.arch = family.removesuffix("moe") if family.startswith("gemma4") else family
        self.gemma = family.startswith("gemma")
        self.moe = family.endswith("moe")
        self.kind, self.n_vocab, self.eog, self.poisoned = kind, n_vocab, eog, poisoned
        self.embed_std, self.logit_std = embed_std, logit_std
        wide = kind.endswith("_K") or kind == "IQ4_XS"
        self.n_embd, self.n_ff, self.heads, self.kv_heads, self.dim = (
            (256, 256, 8, 2, 32) if wide else (64, 64, 2, 1, 32)
        )
        self.width = 256 if wide else 32  # of an expert, of a per-layer embedding
        self.experts = (6, 2) if self.moe else (0, 0)
        self.n_layer = {"gemma3": 3, "gemma4": 4}.get(family, 2)
        self.shared = 2 if family == "gemma4" else 0
        self.per_layer = self.width if family == "gemma4" else 0
        self.rng = np.random.Generator(np.random.SFC64(seed))
        self.w = self.gguf.GGUFWriter(path, self.arch)

    def windowed(self, layer: int) -> bool:
        return (layer + 1) % 3 != 0 if self.arch == "gemma3" else self.gemma and layer % 2 == 0

    def head_dim(self, layer: int) -> int:
        return 2 * self.dim if self.arch == "gemma4" and not self.windowed(layer) else self.dim

    def write(self) -> None:
        self.metadata()
        self.vocabulary()
        self.outer()
        for layer in range(self.n_layer):
            self.attention(layer)
            self.feed_forward(layer)
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()

    def metadata(self) -> None:
        w = self.w
        w.add_context_length(8192)
        w.add_embedding_length(self.n_embd)
        w.add_block_count(self.n_layer)
        w.add_feed_forward_length(self.n_ff)
        w.add_head_count(self.heads)
        w.add_head_count_kv(self.kv_heads)
        full = 2 * self.dim if self.arch == "gemma4" else self.dim
        w.add_key_length(full)
        w.add_value_length(full)
        w.add_rope_dimension_count(full)
        w.add_layer_norm_rms_eps(1e-5)
        if self.moe:
            w.add_expert_count(self.experts[0])
            w.add_expert_used_count(self.experts[1])
            w.add_expert_feed_forward_length(self.width)
        if self.gemma:
            w.add_sliding_window(WINDOW)
            w.add_float32(f"{self.arch}.rope.freq_base_swa", 1000.0)
        if self.arch == "gemma3":
            w.add_uint32("gemma3.attention.sliding_window_pattern", 3)
        if self.arch == "gemma4":
            w.add_array("gemma4.attention.sliding_window_pattern", [self.windowed(i) for i in range(self.n_layer)])
            w.add_uint32("gemma4.attention.key_length_swa", self.dim)
            w.add_uint32("gemma4.attention.value_length_swa", self.dim)
            w.add_uint32("gemma4.rope.dimension_count_swa", self.dim)
            w.add_uint32("gemma4.attention.shared_kv_layers", self.shared)
            w.add_uint32("gemma4.embedding_length_per_layer_input", self.per_layer)
            w.add_final_logit_softcapping(8.0)

    def vocabulary(self) -> None:
        w = self.w
        texts, types = _vocabulary(self.n_vocab)
        if not self.eog:
            texts[:2], types[:2] = ["w0", "w1"], [1, 1]
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("default")
        w.add_token_list(texts)
        w.add_token_types(types)
        w.add_token_merges(["Ġ Ġ"])
        w.add_add_bos_token(False)
        if self.eog:
            w.add_eos_token_id(EOS)
            w.add_eot_token_id(EOT)

    def outer(self) -> None:
        """The tensors that are of no layer."""
        n_embd, n_vocab = self.n_embd, self.n_vocab
        embed = self.embed_std * (1 if self.gemma else np.sqrt(n_embd))  # the gemmas multiply it by this root
        kind = self.kind if self.poisoned is None else "F32"
        self.matrix("token_embd.weight", (n_vocab, n_embd), embed, kind)
        self.matrix("output.weight", (n_vocab, n_embd), self.logit_std)
        self.vector("output_norm.weight", n_embd)
        if self.arch == "gemma4":
            rotated = np.arange(self.dim) < self.dim // 2
            self.w.add_tensor("rope_freqs.weight", np.where(rotated, 1, 1e30).astype(np.float32))
        if self.per_layer:
            every = self.per_layer * self.n_layer
            self.matrix("per_layer_token_embd.weight", (n_vocab, every), np.sqrt(self.n_layer))
            self.matrix("per_layer_model_proj.weight", (every, n_embd), 1.0)
            self.vector("per_layer_proj_norm.weight", self.per_layer)

    def attention(self, layer: int) -> None:
        at, dim, n_embd = f"blk.{layer}.", self.head_dim(layer), self.n_embd
        q, kv = self.heads * dim, self.kv_heads * dim
        shares = layer >= self.n_layer - self.shared
        self.vector(at + "attn_norm.weight", n_embd)
        self.vector(at + "ffn_norm.weight", n_embd)
        if self.arch.startswith("qwen3") or self.gemma:
            mean = 0.5 if self.arch == "gemma4" else 1.5
            self.vector(at + "attn_q_norm.weight", dim, mean)
            if not shares:
                self.vector(at + "attn_k_norm.weight", dim, mean)
        roles = [("attn_q", q), ("attn_k", kv), ("attn_v", kv)]
        if shares:
            roles = roles[:1]
        elif self.arch == "gemma4" and self.moe and not self.windowed(layer):
            roles = roles[:2]
        for role, n in roles:
            self.matrix(f"{at}{role}.weight", (n, n_embd), 1.0 if role == "attn_v" else 1.5)
            if self.arch == "qwen2":
                self.vector(f"{at}{role}.bias", n, 0.0, 0.3)
        self.matrix(at + "attn_output.weight", (n_embd, q), 1.0)
        if self.gemma:
            self.vector(at + "post_attention_norm.weight", n_embd)

    def feed_forward(self, layer: int) -> None:
        at, n_embd, n_ff = f"blk.{layer}.", self.n_embd, self.n_ff
        if self.arch != "qwen3moe":
            self.matrix(at + "ffn_gate.weight", (n_ff, n_embd), 1.0)
            self.matrix(at + "ffn_up.weight", (n_ff, n_embd), 1.0)
            self.matrix(at + "ffn_down.weight", (n_embd, n_ff), 1.0)
        if self.gemma:
            self.vector(at + "post_ffw_norm.weight", n_embd)
        if self.moe:
            count = self.experts[0]
            router = 2.0 * (np.sqrt(n_embd) if self.gemma else 1.0)
            self.matrix(at + "ffn_gate_inp.weight", (count, n_embd), router, "F32")
            if self.gemma:
                self.vector(at + "ffn_gate_inp.scale", n_embd)
                self.vector(at + "ffn_down_exps.scale", count)
                for role in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
                    self.vector(f"{at}{role}.weight", n_embd)
                self.matrix(at + "ffn_gate_up_exps.weight", (count, 2 * self.width, n_embd), 1.0)
            else:
                self.matrix(at + "ffn_gate_exps.weight", (count, self.width, n_embd), 1.0)
                self.matrix(at + "ffn_up_exps.weight", (count, self.width, n_embd), 1.0)
            self.matrix(at + "ffn_down_exps.weight", (count, n_embd, self.width), 1.0)
        if self.per_layer:
            self.matrix(at + "inp_gate.weight", (self.per_layer, n_embd), 0.5)
            self.matrix(at + "proj.weight", (n_embd, self.per_layer), 1.0)
            self.vector(at + "post_norm.weight", n_embd)
        if self.arch == "gemma4":
            self.vector(at + "layer_output_scale.weight", 1, 0.8, 0.05)

    def matrix(self, name: str, shape: tuple[int, ...], std: float, kind: str | None = None) -> None:
        kind = kind or self.kind
        quant = self.gguf.GGMLQuantizationType[kind]
        data = load_synthetic().random_matrix(quant, shape, std / np.sqrt(shape[-1]), self.rng)
        if name == "token_embd.weight" and self.poisoned is not None and self.poisoned >= 0:
            data[self.poisoned, 1] = np.nan
        self.w.add_tensor(name, data, raw_dtype=None if kind in ("F32", "F16") else quant)

    def vector(self, name: str, n: int, mean: float = 1.0, std: float = 0.1) -> None:
        self.w.add_tensor(name, (mean + std * self.rng.standard_normal(n)).astype(np.float32))


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
