"""Drafters with weights of their own: what they compute, from files and vectors that others made, and from Python.

D1  An EAGLE-3 head equals a plain computation in numpy to 1e-4 (float32 against float64), and the random fixture of the
    shared data, whose rows PyTorch computed from the target's hidden rows, to 1e-4.
D2  The trained head for SmolLM2, given PyTorch's hidden rows, equals PyTorch's: matrices rounded to f16 move logits of
    a deviation of 3.5 by 0.012, so the bound is 0.03; every row's best token and every chain is the same.
D3  A DFlash block drafter equals a plain computation and the random fixture likewise; the trained one, of 8 bits,
    gives PyTorch's drafts, all 21, and its greatest logits, of a deviation of 2.6, within 0.4.
D4  Wiring that is wrong is seen: another layer's hidden rows, layers in another order, a norm left out, a block that
    sees only what is before it.

That no text changes is proved in Rust (`proof/drafters.rs`) and tried here once more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoth
from heads import BlockDrafter, Head
from models import tiny_path
from program import Run
from quoth import _core

CLOSE = 1e-4


def attached(model: quoth.Model, name: str = "eagle3") -> _core.Drafter:
    return model._drafters[name]


def plain_tensor(path: Path, name: str) -> Any:
    gguf = pytest.importorskip("gguf", reason="random models are read with the package gguf")
    return next(t for t in gguf.GGUFReader(path).tensors if t.name == name).data.astype(np.float64)


@pytest.fixture(scope="module")
def tiny() -> Path:
    return tiny_path("F32")


@pytest.mark.parametrize("n_draft", [40, None])
@pytest.mark.parametrize("normed", [False, True])
def test_a_head_equals_a_plain_computation(tiny: Path, tmp_path: Path, n_draft: int | None, normed: bool) -> None:
    head = Head.random(64, 97, n_draft=n_draft, normed=normed)
    model = quoth.Model(tiny, drafter=head.write(tmp_path / "head.gguf"))
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 97, 40).tolist()
    hidden = rng.standard_normal((3, 40, 64)).astype(np.float32)
    found = attached(model).trace(tokens, "f32", hidden, 5)
    embedding, output = plain_tensor(tiny, "token_embd.weight"), plain_tensor(tiny, "output.weight")
    logits, streams, guesses = head.trace(tokens, hidden.astype(np.float64), embedding, output, 5)
    assert np.abs(found["logits"] - logits).max() < CLOSE
    assert np.abs(found["states"] - streams).max() < CLOSE
    assert found["guesses"] == guesses


def test_wiring_that_is_wrong_is_seen(tiny: Path, tmp_path: Path) -> None:
    head = Head.random(64, 97)
    path = head.write(tmp_path / "head.gguf")
    tokens = np.random.default_rng(3).integers(0, 97, 40).tolist()
    rows = attached(quoth.Model(tiny, drafter=path)).trace(tokens, "f32", None, 3)

    def distance(other: Head) -> float:
        wrong = other.write(tmp_path / "wrong.gguf")
        return float(
            np.abs(
                attached(quoth.Model(tiny, drafter=wrong)).trace(tokens, "f32", None, 3)["logits"] - rows["logits"]
            ).max()
        )

    assert distance(head) == 0
    for taps in [(2, 1, 2), (0, 1, 2), (1, 0, 1)]:
        assert distance(Head(head.tensors, taps, head.normed, 97)) > 0.1, taps
    for name in ["blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm"]:
        flat = head.tensors | {f"{name}.weight": np.ones(64, np.float32)}
        assert distance(Head(flat, head.taps, head.normed, 97)) > 0.1, name
    swapped = head.tensors["blk.0.attn_q.weight"]
    swapped = head.tensors | {"blk.0.attn_q.weight": np.roll(swapped, 64, axis=1)}
    assert distance(Head(swapped, head.taps, head.normed, 97)) > 0.1
    assert distance(Head(head.tensors, head.taps, True, 97)) > 0.1


@pytest.mark.slow
def test_a_head_equals_the_random_fixture(shared_dir: Path) -> None:
    fixtures = shared_dir / "fixtures"
    folder = fixtures / "qwen3-eagle3"
    model = quoth.Model(fixtures / "qwen3" / "qwen3-F16.gguf", kv_type="f32", drafter=folder / "qwen3-eagle3-F16.gguf")
    gold = np.load(folder / "qwen3-eagle3.draft.npz")
    for n in (17, 96):
        found = attached(model).trace(gold[f"tokens_{n}"], "f32", None, 1)
        assert np.abs(found["logits"] - gold[f"torch_draft_logits_{n}"]).max() < CLOSE
        assert np.abs(found["states"][-4:] - gold[f"torch_prenorm_{n}"]).max() < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_a_trained_head_equals_its_golden_rows_and_chains(shared_dir: Path, smollm2_path: Path, kind: str) -> None:
    folder = shared_dir / "drafters"
    model = quoth.Model(smollm2_path, kv_type="f32", drafter=folder / f"smollm2-135m-eagle3-{kind}.gguf")
    gold = np.load(folder / "eagle3-golden.npz")
    for i in range(3):
        hidden = np.ascontiguousarray(gold[f"features_{i}"].transpose(1, 0, 2))
        found = attached(model).trace(gold[f"tokens_{i}"], "f32", hidden, 4)
        assert found["guesses"] == gold[f"chain_tokens_{i}"].tolist()
        n = len(gold[f"tokens_{i}"]) - 1
        best = gold["d2t_absolute"][found["logits"][:n].argmax(axis=1)]
        same = np.mean(best == gold[f"argmax_rows_{i}"])
        if kind == "F16":
            assert np.abs(found["logits"][n - 8 : n] - gold[f"logits_rows_last8_{i}"]).max() < 0.03
            assert np.abs(found["logits"][n - 1 :] - gold[f"chain_logits_{i}"]).max() < 0.03
            assert same == 1
        else:
            # 8-bit weights and activations: llama.cpp keeps 95 to 98 % of the best tokens on quantized files.
            assert same > 0.9
        # With the model's own hidden rows, which its quantized activations move, the chains stay.
        assert attached(model).trace(gold[f"tokens_{i}"], "f32", None, 4)["guesses"] == found["guesses"]


def test_a_block_drafter_equals_a_plain_computation_and_wrong_wiring_is_seen(tiny: Path, tmp_path: Path) -> None:
    drafter = BlockDrafter.random(64)
    model = quoth.Model(tiny, drafter=drafter.write(tmp_path / "block.gguf"))
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 97, 40).tolist()
    hidden = rng.standard_normal((2, 40, 64)).astype(np.float32)
    found = attached(model, "dflash").trace(tokens, "f32", hidden, 5)
    plain = (
        tokens,
        hidden.astype(np.float64),
        plain_tensor(tiny, "token_embd.weight"),
        plain_tensor(tiny, "output.weight"),
    )
    expected = drafter.block_logits(*plain)
    assert np.abs(found["logits"] - expected).max() < CLOSE
    assert found["guesses"] == expected.argmax(axis=1)[1:].tolist()
    wrong = [
        drafter.block_logits(*plain, causal=True),
        drafter.block_logits(*plain, key_norm=False),
        drafter.block_logits(*plain, context_norm=False),
        drafter.block_logits(tokens, plain[1][::-1], *plain[2:]),
        drafter.block_logits(tokens, np.roll(plain[1], 1, axis=1), *plain[2:]),
    ]
    for logits in wrong:
        assert np.abs(found["logits"] - logits).max() > 0.1
    later = drafter.write(tmp_path / "later.gguf", conv_kernel_size=2)
    with pytest.raises(
        quoth.ModelFileError, match=r"key `dflash.conv_kernel_size` is not known to architecture `dflash`"
    ):
        quoth.Model(tiny, drafter=later)


@pytest.mark.slow
def test_block_drafters_equal_their_golden_rows_and_drafts(shared_dir: Path, smollm2_path: Path) -> None:
    fixtures, folder = shared_dir / "fixtures", shared_dir / "drafters"
    random = quoth.Model(
        fixtures / "qwen3" / "qwen3-F16.gguf",
        kv_type="f32",
        drafter=fixtures / "qwen3-dflash" / "qwen3-dflash-F16.gguf",
    )
    gold = np.load(fixtures / "qwen3-dflash" / "qwen3-dflash.draft.npz")
    for n in (17, 96):
        found = attached(random, "dflash").trace(gold[f"tokens_{n}"], "f32", None, 7)
        assert np.abs(found["logits"] - gold[f"torch_block_logits_{n}"]).max() < CLOSE
    trained = quoth.Model(smollm2_path, kv_type="f32", drafter=folder / "smollm2-135m-dflash-Q8_0.gguf")
    gold, features = np.load(folder / "dflash-golden.npz"), np.load(folder / "eagle3-golden.npz")
    for i in range(3):
        given = np.ascontiguousarray(features[f"features_{i}"].transpose(1, 0, 2))
        for hidden in (given, None):
            found = attached(trained, "dflash").trace(gold[f"tokens_{i}"], "f32", hidden, 7)
            assert found["guesses"] == gold[f"draft_tokens_{i}"].tolist()
            for row, ids, logits in zip(
                found["logits"], gold[f"block_top32_ids_{i}"], gold[f"block_top32_logits_{i}"], strict=True
            ):
                assert np.abs(row[ids] - logits).max() < 0.4


def test_text_is_the_same_with_a_drafter_and_its_figures_are_told(tmp_path: Path) -> None:
    path = tiny_path()
    model = quoth.Model(path, drafter=Head.random(64, 97).write(tmp_path / "head.gguf"))
    assert model.drafters["eagle3"]["taps"] == [1, 0, 2]
    assert model.drafters["eagle3"]["lent_embedding"]
    for sampling in (quoth.Sampling(), quoth.Sampling(temperature=0.8, seed=4)):
        plain = model.decoder(sampling=sampling, speculation=None)
        drafting = model.decoder(sampling=sampling)
        quoting = model.decoder(sampling=sampling, speculation=quoth.Speculation(drafters=[]))
        for prompt in ([20, 21, 22, 23], [20, 21, 22, 23, 40, 41], [60, 61]):
            expected = plain.generate(prompt, max_tokens=60)
            found = drafting.generate(prompt, max_tokens=60)
            assert found.tokens == expected.tokens == quoting.generate(prompt, max_tokens=60).tokens
            own = found.stats.sources["eagle3"]
            assert own.drafts == (own.tried_at[0] if own.tried_at else 0)
            assert "eagle3" not in quoting.stats.sources
        fork = drafting.fork()
        assert fork.generate([60, 61], max_tokens=30).tokens == plain.generate([60, 61], max_tokens=30).tokens
    with quoth.Engine(model, sampling=quoth.Sampling()) as engine:
        prompts = ([30, 31], [32, 33, 34], [35])
        running = [engine.submit(prompt, max_tokens=40) for prompt in prompts]
        alone = model.decoder(sampling=quoth.Sampling(), speculation=None)
        for prompt, generation in zip(prompts, running, strict=True):
            assert generation.result().tokens == alone.generate(prompt, max_tokens=40).tokens


def test_what_does_not_fit_is_refused_by_both_sides(tmp_path: Path) -> None:
    path = tiny_path()
    head = Head.random(64, 97)

    def refused(file: Path, **options: Any) -> str:
        with pytest.raises(quoth.ModelFileError) as caught:
            quoth.Model(path, drafter=file, **options)
        return str(caught.value)

    other = head.write(tmp_path / "vocabulary.gguf", vocab_size=32_000)
    assert refused(other) == f"{other}: a drafter with a vocabulary of 32000 does not fit the model, which has 97"
    wide = Head.random(128, 97).write(tmp_path / "wide.gguf")
    assert "a drafter with a target's hidden size of 128 does not fit the model, which has 64" in refused(wide)
    deep = Head(head.tensors, (1, 0, 33), False, 97).write(tmp_path / "deep.gguf")
    assert "a drafter with the input of layer 33 does not fit the model, which has layers 0 to 2" in refused(deep)
    more = tiny_path(n_vocab=120)
    assert refused(more) == f"{more}: a drafter with a vocabulary of 120 does not fit the model, which has 97"
    strange = head.write(tmp_path / "strange.gguf", norm_before_fc=True)
    assert "key `eagle3.norm_before_fc` is true, expected false" in refused(strange)
    with pytest.raises(quoth.OptionsError, match="drafter is 7, expected a file or a list of files"):
        quoth.Model(path, drafter=7)  # type: ignore[arg-type]
    several = [head.write(tmp_path / "a.gguf"), head.write(tmp_path / "b.gguf")]
    with pytest.raises(quoth.OptionsError, match="drafter has two files of kind eagle3, expected one of each kind"):
        quoth.Model(path, drafter=several)
    model = quoth.Model(path, drafter=several[:1])
    with pytest.raises(quoth.OptionsError, match="drafters names 'dflash', expected some attached to the model"):
        model.decoder(speculation=quoth.Speculation(drafters=["dflash"]))
    with pytest.raises(quoth.OptionsError, match="drafters is 'eagle3', expected auto or a list of names"):
        quoth.Speculation(drafters="eagle3")  # type: ignore[arg-type]


def test_inspect_says_what_a_drafter_is_made_for_and_whether_it_fits(run_quoth: Run, tmp_path: Path) -> None:
    path, head = tiny_path(), Head.random(64, 97).write(tmp_path / "head.gguf")
    shown = run_quoth("inspect", head)
    assert shown.code == 0
    page = " ".join(shown.out.split())
    assert "runs no: it is a drafter: give it to its model, with --drafter or Model(drafter=...)" in page
    assert "made for hidden size 64, 97 tokens, reads the inputs of layers 1, 0, 2" in page
    assert "from its model token_embd.weight" in page
    said = json.loads(run_quoth("inspect", head, "--json").out)["drafter"]
    assert (said["kind"], said["n_draft"], said["taps"]) == ("eagle3", 40, [1, 0, 2])
    assert json.loads(run_quoth("inspect", head, "--for", path, "--json").out)["supported"]["ok"]
    other = Head.random(128, 97).write(tmp_path / "other.gguf")
    refused = json.loads(run_quoth("inspect", other, "--for", path, "--json").out)["supported"]
    assert refused["why"] == "a drafter with a target's hidden size of 128 does not fit the model, which has 64"
    wrong = run_quoth("inspect", path, "--for", path)
    assert wrong.code == 2
    assert "--for goes with a drafter's file, found architecture llama" in wrong.err


def test_generate_takes_a_drafter_and_tells_what_it_did(run_quoth: Run, tmp_path: Path) -> None:
    path, head = tiny_path(), Head.random(64, 97).write(tmp_path / "head.gguf")
    options = ("generate", path, "--raw", "--special", "-p", "<|im_end|><|im_end|>", "-n", "40")
    plain, drafting = run_quoth(*options, "--no-spec"), run_quoth(*options, "--drafter", head, "--stats")
    assert plain.code == drafting.code == 0, drafting.err
    assert plain.out == drafting.out
    assert "eagle3" in drafting.err
    refused = run_quoth(*options, "--drafter", head, "--no-spec")
    assert refused.code == 2
    assert "--ref, --drafter and --max-draft do not go with --no-spec" in refused.err


def test_a_smaller_model_drafts_and_changes_no_token() -> None:
    path, small = tiny_path(), tiny_path("Q4_0", seed=3)
    plain = quoth.Model(path).decoder(sampling=quoth.Sampling(), speculation=None).generate([20, 21, 22], max_tokens=80)
    for drafter in (path, small):
        model = quoth.Model(path, drafter=drafter)
        assert model.drafters["model"]["n_draft"] == 97
        found = model.decoder(sampling=quoth.Sampling()).generate([20, 21, 22], max_tokens=80)
        assert found.tokens == plain.tokens
        assert "model" in found.stats.sources


def test_a_head_and_a_block_drafter_side_by_side_change_no_token(tmp_path: Path) -> None:
    path = tiny_path()
    files = [Head.random(64, 97).write(tmp_path / "head.gguf"), BlockDrafter.random(64).write(tmp_path / "block.gguf")]
    model = quoth.Model(path, drafter=files)
    assert list(model.drafters) == ["eagle3", "dflash"]
    assert model.drafters["dflash"]["lent_output"]
    for sampling in (quoth.Sampling(), quoth.Sampling(temperature=0.8, seed=4)):
        plain = model.decoder(sampling=sampling, speculation=None).generate([20, 21, 22], max_tokens=120)
        found = model.decoder(sampling=sampling).generate([20, 21, 22], max_tokens=120)
        assert found.tokens == plain.tokens
        assert {"eagle3", "dflash"} <= set(found.stats.sources)
