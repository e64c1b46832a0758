"""Logits against two engines that share no code with this one or with each other.

In: tiny random models of every family, with logits by HF transformers (float weights, or the dequantized weights of a
quantized file) and by llama.cpp. Six of them lie in `tests/data/models`; all of them in the shared data.

G1  Float weights: within 1e-4 of HF, whatever the instruction set. All sets give the same bits.
G2  Quantized weights, plain kernels: within 1e-4 of HF on the dequantized weights. This pins layout, dequantization and
    the forward pass.
G3  Quantized weights, fast kernels: activations are rounded to 8 bits, as llama.cpp rounds them. The error against G2's
    logits, rms over deviation, is at most 1.25 times llama.cpp's own on the same file and rows, plus 2e-3: rows stored
    as f16 alone cost 3e-4 to 6e-4, measured on the float files.
G4  Greedy decoding of float weights gives HF's tokens as long as HF's best logit leads by more than G1's bound allows.

Mixtures are judged in G3 by the median row, not by all rows together. The choice of experts is a step: where the last
chosen and the first left-out expert all but tie (in qwen3moe by 1 % of the router's deviation, less than what rounded
activations move it), an engine takes one or the other by the luck of its rounding, the row then differs by a tenth of
the deviation or more, and so do the rows that attend to it.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import quoth
from quoth import _core

Array = npt.NDArray[Any]

DATA = Path(__file__).parent / "data" / "models"

CLOSE = 1e-4
LENGTHS = (1, 17, 96)

FLOAT = [
    "gemma3-F16",
    "gemma4-F16",
    "gemma4moe-F16",
    "llama-F16",
    "llama3-F16",
    "qwen2-F16",
    "qwen3-BF16",
    "qwen3-F16",
    "qwen3-F32",
    "qwen3moe-F16",
]
KINDS = ["IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K_M", "Q4_0", "Q4_1", "Q4_K_M", "Q5_0", "Q5_1", "Q5_K_M", "Q6_K", "Q8_0"]
QUANTIZED = [
    *(f"{name}-Q4_K_M" for name in ("gemma3", "gemma4", "gemma4moe", "llama", "qwen2", "qwen3moe")),
    *(f"{name}-Q8_0" for name in ("gemma3", "gemma4", "gemma4moe", "llama", "qwen2", "qwen3moe")),
    *(f"qwen3-{kind}" for kind in KINDS),
]
REFUSED = {
    "qwen3-dflash-F16": "architecture `dflash` is not supported, expected one of",
    "qwen3-eagle3-F16": "architecture `eagle3` is not supported, expected one of",
    "qwen35-F16": "architecture `qwen35` is not supported: it keeps a recurrent state",
    "qwen35-Q4_K_M": "architecture `qwen35` is not supported: it keeps a recurrent state",
    "qwen35-Q8_0": "architecture `qwen35` is not supported: it keeps a recurrent state",
}
PACKED = ["gemma3-Q4_K_M", "gemma4moe-Q4_K_M", "llama-Q4_K_M", "qwen2-Q4_K_M", "qwen3-Q2_K", "qwen3moe-Q4_K_M"]
MIXTURES = ("gemma4moe", "qwen3moe")


@dataclass(frozen=True)
class Rows:
    """What a model should say after one sequence."""

    tokens: Array
    """Token ids `[n]`."""
    pos: Array
    """Positions of the rows `[r]`."""
    logits: Array
    """Expected logits, float32 `[r, n_vocab]`."""
    peer: Array | None
    """llama.cpp's error: root mean square of each row `[r]`."""

    def errors(self, session: quoth.Session) -> Array:
        """The error of each number, float64 `[r, n_vocab]`."""
        got = session.forward(self.tokens)[self.pos]
        return got.astype(np.float64) - self.logits


def row_rms(errors: Array) -> Array:
    return np.sqrt(np.mean(np.square(errors.astype(np.float64)), axis=1))


def family(name: str) -> str:
    return name.rpartition("-")[0]


def shared_file(shared: Path, name: str) -> Path:
    return shared / "fixtures" / family(name) / f"{name}.gguf"


def shared_rows(shared: Path, name: str) -> list[Rows]:
    """Rows by HF, or of a quantized file by HF on its dequantized weights, at positions that llama.cpp has too."""
    stem = shared_file(shared, name).with_suffix("")
    own = stem.parent / f"{name}.deq.npz"
    gold = np.load(own if own.exists() else stem.parent / f"{family(name)}.hf.npz")
    peer = np.load(stem.parent / f"{name}.llamacpp.npz")
    found = []
    for n in LENGTHS:
        assert np.array_equal(gold[f"tokens_{n}"], peer[f"tokens_{n}"])
        at = {int(pos): i for i, pos in enumerate(gold[f"pos_{n}"])}
        logits = gold[f"logits_{n}"][[at[int(pos)] for pos in peer[f"pos_{n}"]]]
        found.append(Rows(gold[f"tokens_{n}"], peer[f"pos_{n}"], logits, row_rms(peer[f"logits_{n}"] - logits)))
    return found


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of `tests/data/models`, ready to load."""
    folder = tmp_path_factory.mktemp("models")
    for packed in DATA.glob("*.gguf.xz"):
        (folder / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


def packed_rows(name: str) -> list[Rows]:
    gold = np.load(DATA / f"{name}.npz")
    return [Rows(gold[f"tokens_{n}"], gold[f"pos_{n}"], gold[f"logits_{n}"], gold[f"peer_{n}"]) for n in LENGTHS[1:]]


def load(path: Path, kernels: str | None = None, kv_type: Any = "f32") -> quoth.Model:
    return quoth.Model(path, n_ctx=256, kernels=kernels, kv_type=kv_type)


def check_close(model: quoth.Model, rows: list[Rows]) -> None:
    """G1, G2."""
    for row in rows:
        assert np.abs(row.errors(model.session())).max() <= CLOSE, f"{len(row.tokens)} tokens, {model.kernels}"


def check_beside_peer(model: quoth.Model, rows: list[Rows], mixture: bool) -> None:
    """G3."""
    for row in rows:
        assert row.peer is not None
        ours, deviation = row_rms(row.errors(model.session())), row.logits.std()
        if mixture:
            mine, theirs = np.median(ours) / deviation, np.median(row.peer) / deviation
        else:
            mine, theirs = (np.sqrt(np.mean(np.square(rms))) / deviation for rms in (ours, row.peer))
        assert mine <= 1.25 * theirs + 2e-3, f"{len(row.tokens)} tokens: {mine:.4f}, llama.cpp has {theirs:.4f}"


# ---- models that lie beside the tests


def test_every_packed_model_is_listed() -> None:
    assert sorted(path.name.removesuffix(".gguf.xz") for path in DATA.glob("*.gguf.xz")) == PACKED


@pytest.mark.parametrize("name", PACKED)
def test_plain_kernels_give_the_logits_of_the_dequantized_weights(unpacked: Path, name: str) -> None:
    check_close(load(unpacked / f"{name}.gguf", "reference"), packed_rows(name))


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("name", PACKED)
def test_fast_kernels_are_as_exact_as_llama_cpp(unpacked: Path, name: str, kv_type: str) -> None:
    model = load(unpacked / f"{name}.gguf", kv_type=kv_type)
    check_beside_peer(model, packed_rows(name), family(name) in MIXTURES)


# ---- the whole set


def test_every_shared_model_is_listed(shared_dir: Path) -> None:
    found = sorted(path.stem for path in (shared_dir / "fixtures").glob("*/*.gguf") if path.parent.name != "vocab")
    assert found == sorted([*FLOAT, *QUANTIZED, *REFUSED])


@pytest.mark.parametrize("name", FLOAT)
def test_float_weights_give_the_logits_of_transformers(shared_dir: Path, name: str) -> None:
    path, rows = shared_file(shared_dir, name), shared_rows(shared_dir, name)
    sets = [name for name, _ in _core.kernel_sets()]
    assert "scalar" in sets
    check_close(load(path, "reference"), rows)
    bits = set()
    for kernels in sets:
        model = load(path, kernels)
        check_close(model, rows)
        bits.add(model.session().forward(rows[-1].tokens).tobytes())
    assert len(bits) == 1, f"{sets} give {len(bits)} different results"


@pytest.mark.parametrize("name", [name for name in FLOAT if name != "qwen3-BF16"])
def test_greedy_tokens_of_float_weights_are_those_of_transformers(shared_dir: Path, name: str) -> None:
    gold = np.load(shared_dir / "fixtures" / family(name) / f"{family(name)}.hf.npz")
    sure = gold["greedy_lead"] > 2 * CLOSE
    n = len(sure) if sure.all() else int(np.argmin(sure))
    assert n >= 8, "the golden leads are too small to say anything"
    model = load(shared_file(shared_dir, name))
    for speculation in (None, True):
        decoder = model.decoder(speculation=speculation)
        result = decoder.generate(gold["greedy_prompt"].tolist(), max_tokens=n, stop_at_eog=False)
        assert list(result.tokens) == gold["greedy_tokens"][:n].tolist()


@pytest.mark.parametrize("name", QUANTIZED)
def test_plain_kernels_give_the_shared_logits_of_the_dequantized_weights(shared_dir: Path, name: str) -> None:
    check_close(load(shared_file(shared_dir, name), "reference"), shared_rows(shared_dir, name))


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_fast_kernels_are_as_exact_as_llama_cpp_on_shared_models(shared_dir: Path, name: str, kv_type: str) -> None:
    model = load(shared_file(shared_dir, name), kv_type=kv_type)
    check_beside_peer(model, shared_rows(shared_dir, name), family(name) in MIXTURES)


@pytest.mark.parametrize("name", REFUSED)
def test_families_to_come_are_refused_by_name(shared_dir: Path, name: str) -> None:
    path = shared_file(shared_dir, name)
    with pytest.raises(quoth.ModelFileError) as caught:
        load(path)
    assert REFUSED[name] in str(caught.value)
    assert str(path) in str(caught.value)
