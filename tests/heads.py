"""Tiny random EAGLE-3 heads for the tiny models, written as GGUF files, and the same heads plainly in numpy.

The plain computation is written from the definition: row P reads the token at P + 1 and the hidden rows of P, is
rotated by P, and sees itself and the rows before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Floats = npt.NDArray[np.float64]

HEADS, KV_HEADS, DIM, FF, BASE, EPS = 4, 2, 32, 96, 10_000.0, 1e-5


@dataclass(frozen=True)
class Head:
    """A head: its tensors as float32, by name, and what its file says."""

    tensors: dict[str, npt.NDArray[Any]]
    taps: tuple[int, ...]
    normed: bool
    n_vocab: int

    @classmethod
    def random(
        cls,
        n_embd: int,
        n_vocab: int,
        *,
        taps: tuple[int, ...] = (1, 0, 2),
        n_draft: int | None = 40,
        normed: bool = False,
    ) -> Head:
        """Random weights; `n_draft` None: the target's output head."""
        rng = np.random.Generator(np.random.SFC64(5))

        def matrix(n: int, k: int) -> npt.NDArray[Any]:
            return (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)

        def norm() -> npt.NDArray[Any]:
            return (1 + rng.standard_normal(n_embd) / 5).astype(np.float32)

        tensors = {
            "fc.weight": matrix(n_embd, len(taps) * n_embd),
            "blk.0.attn_norm.weight": norm(),
            "blk.0.attn_norm_2.weight": norm(),
            "blk.0.attn_q.weight": matrix(HEADS * DIM, 2 * n_embd),
            "blk.0.attn_k.weight": matrix(KV_HEADS * DIM, 2 * n_embd),
            "blk.0.attn_v.weight": matrix(KV_HEADS * DIM, 2 * n_embd),
            "blk.0.attn_output.weight": matrix(n_embd, HEADS * DIM),
            "blk.0.ffn_norm.weight": norm(),
            "blk.0.ffn_gate.weight": matrix(FF, n_embd),
            "blk.0.ffn_up.weight": matrix(FF, n_embd),
            "blk.0.ffn_down.weight": matrix(n_embd, FF),
            "output_norm.weight": norm(),
        }
        if n_draft is not None:
            tensors["output.weight"] = 3 * matrix(n_draft, n_embd)
            tensors["d2t"] = np.sort(rng.permutation(n_vocab)[:n_draft]).astype(np.int64)
        return cls(tensors, taps, normed, n_vocab)

    def write(self, path: Path, **other: Any) -> Path:
        """Writes the file. `other`: keys below `eagle3.` with other values than the head's."""
        gguf = pytest.importorskip("gguf", reason="random models are written with the package gguf")
        n_embd = len(self.tensors["output_norm.weight"])
        w = gguf.GGUFWriter(path, "eagle3")
        numbers = {
            "block_count": 1,
            "context_length": 8192,
            "embedding_length": n_embd,
            "feed_forward_length": FF,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": DIM,
            "attention.value_length": DIM,
            "rope.dimension_count": DIM,
            "target_hidden_size": n_embd,
            "vocab_size": self.n_vocab,
            "attention.layer_norm_rms_epsilon": EPS,
            "rope.freq_base": BASE,
            "norm_before_residual": self.normed,
            "norm_before_fc": False,
            "target_layers": list(self.taps),
        } | other
        for key, value in numbers.items():
            name = f"eagle3.{key}"
            if isinstance(value, bool):
                w.add_bool(name, value)
            elif isinstance(value, int):
                w.add_uint32(name, value)
            elif isinstance(value, float):
                w.add_float32(name, value)
            else:
                w.add_array(name, value)
        for name, values in self.tensors.items():
            w.add_tensor(name, values)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path

    def matrix(self, role: str) -> Floats:
        return self.tensors[f"{role}.weight"].astype(np.float64)

    def norm(self, x: Floats, role: str) -> Floats:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * self.matrix(role)

    def rotated(self, heads: Floats, positions: npt.NDArray[Any]) -> Floats:
        """Rotates pairs of neighbours: `[rows][heads][DIM]`."""
        angles = positions[:, None] * BASE ** (-2 * np.arange(DIM // 2) / DIM)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = heads[..., 0::2], heads[..., 1::2]
        return np.stack([first * cos - second * sin, first * sin + second * cos], axis=-1).reshape(heads.shape)

    def rows(self, states: Floats, embedded: Floats) -> Floats:
        """The layer over rows 0 ..: states and embeddings `[rows][n_embd]` to the stream before the output norm."""
        n, positions = len(states), np.arange(len(states))
        beside = self.norm(states, "blk.0.attn_norm_2")
        both = np.concatenate([self.norm(embedded, "blk.0.attn_norm"), beside], axis=1)
        q = self.rotated((both @ self.matrix("blk.0.attn_q").T).reshape(n, HEADS, DIM), positions)
        k = self.rotated((both @ self.matrix("blk.0.attn_k").T).reshape(n, KV_HEADS, DIM), positions)
        v = (both @ self.matrix("blk.0.attn_v").T).reshape(n, KV_HEADS, DIM)
        mixed = np.zeros_like(q)
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = q[:, head] @ k[:, shared].T / np.sqrt(DIM)
            scores[np.triu_indices(n, 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, shared]
        x = (beside if self.normed else states) + mixed.reshape(n, -1) @ self.matrix("blk.0.attn_output").T
        normed = self.norm(x, "blk.0.ffn_norm")
        gate = normed @ self.matrix("blk.0.ffn_gate").T
        return (
            x
            + (gate / (1 + np.exp(-gate)) * (normed @ self.matrix("blk.0.ffn_up").T)) @ self.matrix("blk.0.ffn_down").T
        )

    def trace(
        self, tokens: list[int], hidden: Floats, embedding: Floats, output: Floats, chain: int
    ) -> tuple[Floats, Floats, list[int]]:
        """Logits and streams of all rows, and the guesses, as the core's `Drafter.trace` gives them.

        Args:
            tokens: The text.
            hidden: `[taps][tokens][n_embd]`.
            embedding: The target's.
            output: The target's output matrix, where the head has none.
            chain: Guesses.
        """
        states = np.concatenate(list(hidden[:, :-1]), axis=1) @ self.matrix("fc").T
        next_tokens = list(tokens[1:])
        if "output.weight" in self.tensors:
            output = self.matrix("output")
        guesses: list[int] = []
        while True:
            streams = self.rows(states, embedding[next_tokens])
            logits = self.norm(streams, "output_norm") @ output.T
            best = int(np.argmax(logits[-1]))
            guesses.append(int(self.tensors["d2t"][best]) if "d2t" in self.tensors else best)
            if len(guesses) == chain:
                return logits, streams, guesses
            states = np.concatenate([states, streams[-1:]])
            next_tokens.append(guesses[-1])


@dataclass(frozen=True)
class BlockDrafter:
    """A DFlash block drafter of random weights: two layers, blocks of six."""

    tensors: dict[str, npt.NDArray[Any]]
    taps: tuple[int, ...] = (0, 2)
    block: int = 6
    mask: int = 5

    @classmethod
    def random(cls, n_embd: int) -> BlockDrafter:
        rng = np.random.Generator(np.random.SFC64(6))

        def matrix(n: int, k: int) -> npt.NDArray[Any]:
            return (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)

        def norm(n: int) -> npt.NDArray[Any]:
            return (1 + rng.standard_normal(n) / 5).astype(np.float32)

        tensors = {
            "fc.weight": matrix(n_embd, 2 * n_embd),
            "enc.output_norm.weight": norm(n_embd),
            "output_norm.weight": norm(n_embd),
        }
        for layer in range(2):
            tensors |= {
                f"blk.{layer}.attn_norm.weight": norm(n_embd),
                f"blk.{layer}.attn_q.weight": matrix(HEADS * DIM, n_embd),
                f"blk.{layer}.attn_k.weight": matrix(KV_HEADS * DIM, n_embd),
                f"blk.{layer}.attn_v.weight": matrix(KV_HEADS * DIM, n_embd),
                f"blk.{layer}.attn_q_norm.weight": 2 * norm(DIM),
                f"blk.{layer}.attn_k_norm.weight": 2 * norm(DIM),
                f"blk.{layer}.attn_output.weight": matrix(n_embd, HEADS * DIM),
                f"blk.{layer}.ffn_norm.weight": norm(n_embd),
                f"blk.{layer}.ffn_gate.weight": matrix(FF, n_embd),
                f"blk.{layer}.ffn_up.weight": matrix(FF, n_embd),
                f"blk.{layer}.ffn_down.weight": matrix(n_embd, FF),
            }
        return cls(tensors)

    def write(self, path: Path, **other: Any) -> Path:
        """Writes the file. `other`: keys below `dflash.` with other values than the drafter's."""
        gguf = pytest.importorskip("gguf", reason="random models are written with the package gguf")
        w = gguf.GGUFWriter(path, "dflash")
        numbers: dict[str, Any] = {
            "block_count": 2,
            "context_length": 8192,
            "embedding_length": len(self.tensors["output_norm.weight"]),
            "feed_forward_length": FF,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": DIM,
            "attention.value_length": DIM,
            "block_size": self.block,
        } | other
        for key, value in numbers.items():
            w.add_uint32(f"dflash.{key}", value)
        w.add_float32("dflash.attention.layer_norm_rms_epsilon", EPS)
        w.add_float32("dflash.rope.freq_base", BASE)
        w.add_array("dflash.target_layers", list(self.taps))
        w.add_uint32("tokenizer.ggml.mask_token_id", self.mask)
        for name, values in self.tensors.items():
            w.add_tensor(name, values)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path

    def matrix(self, role: str) -> Floats:
        return self.tensors[f"{role}.weight"].astype(np.float64)

    def norm(self, x: Floats, role: str) -> Floats:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * self.matrix(role)

    def rotated(self, heads: Floats, positions: npt.NDArray[Any]) -> Floats:
        """Rotates number i with number i + half: `[rows][heads][DIM]`."""
        angles = positions[:, None] * BASE ** (-2 * np.arange(DIM // 2) / DIM)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

    def block_logits(
        self,
        tokens: list[int],
        hidden: Floats,
        embedding: Floats,
        output: Floats,
        *,
        causal: bool = False,
        key_norm: bool = True,
        context_norm: bool = True,
    ) -> Floats:
        """Logits of the block behind a text, `[block][n_vocab]`; the flags leave a part of the definition out."""
        n, block = len(tokens) - 1, self.block
        context = np.concatenate(list(hidden[:, :n]), axis=1) @ self.matrix("fc").T
        if context_norm:
            context = self.norm(context, "enc.output_norm")
        before, inside = np.arange(n), np.arange(n, n + block)
        x = embedding[[tokens[-1], *[self.mask] * (block - 1)]]
        for layer in range(2):
            at = f"blk.{layer}."
            normed = self.norm(x, at + "attn_norm")
            both = np.concatenate([context, normed])
            q = (normed @ self.matrix(at + "attn_q").T).reshape(block, HEADS, DIM)
            k = (both @ self.matrix(at + "attn_k").T).reshape(n + block, KV_HEADS, DIM)
            v = (both @ self.matrix(at + "attn_v").T).reshape(n + block, KV_HEADS, DIM)
            q = self.rotated(self.norm(q, at + "attn_q_norm"), inside)
            k = self.rotated(self.norm(k, at + "attn_k_norm") if key_norm else k, np.concatenate([before, inside]))
            mixed = np.zeros_like(q)
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                scores = q[:, head] @ k[:, shared].T / np.sqrt(DIM)
                if causal:
                    scores[np.triu_indices(block, n + 1, n + block)] = -np.inf
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                mixed[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, shared]
            x = x + mixed.reshape(block, -1) @ self.matrix(at + "attn_output").T
            normed = self.norm(x, at + "ffn_norm")
            gate = normed @ self.matrix(at + "ffn_gate").T
            up = normed @ self.matrix(at + "ffn_up").T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.matrix(at + "ffn_down").T
        return self.norm(x, "output_norm") @ output.T
