"""`tools/perplexity.py` counts as it says, and the default model foretells English as well as it does elsewhere."""

from __future__ import annotations

import importlib.util
import json
import lzma
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import quoth
from broken import DATA
from program import ROOT, program_env

PROSE = ROOT / "tests" / "data" / "prose.txt"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("perplexity", ROOT / "tools" / "perplexity.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["perplexity"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unpacked(name: str, folder: Path) -> Path:
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes()))
    return path


def slowly(model: quoth.Model, tokens: list[int], window: int, begin: int | None) -> list[float]:
    """The negative log-probabilities of a text, a token at a time."""
    found = []
    for start in range(0, len(tokens) - window + 1, window):
        chunk = tokens[start : start + window]
        if begin is not None:
            chunk = [begin, *chunk[1:]]
        session = model.session()
        for i, token in enumerate(chunk[:-1]):
            row = [float(x) for x in session.forward([token])[0]]
            if i >= window // 2:
                total = math.fsum(math.exp(x) for x in row)
                found.append(-math.log(math.exp(row[chunk[i + 1]]) / total))
    return found


@pytest.mark.parametrize("name", ["llama-Q4_K_M", "gemma3-Q4_K_M"])
@pytest.mark.parametrize(("n", "window"), [(32, 32), (50, 16), (47, 9), (8, 4)])
def test_perplexity_equals_that_of_a_loop(tool: ModuleType, tmp_path: Path, name: str, n: int, window: int) -> None:
    model = quoth.Model(unpacked(name, tmp_path), n_ctx=64, threads=1)
    tokens = np.random.default_rng(n).integers(0, 500, n).tolist()
    assert model.tokenizer.add_bos == (name.startswith("gemma"))
    begin = model.tokenizer.bos_id if model.tokenizer.add_bos else None
    each = slowly(model, tokens, window, begin)
    found = tool.perplexity(model, tokens, window)
    assert found.perplexity == pytest.approx(math.exp(sum(each) / len(each)), rel=1e-9)
    assert (found.tokens, found.windows, found.scored) == (n, n // window, len(each))
    assert found.scored == found.windows * (window - window // 2 - 1)
    assert found.running[-1] == pytest.approx(found.perplexity, rel=1e-12)
    spread = float(np.std(each)) / math.sqrt(max(len(each) - 1, 1))
    assert found.error == pytest.approx(spread * found.perplexity, rel=1e-6, abs=1e-12)


def test_a_window_that_does_not_fit_is_refused(tool: ModuleType, tmp_path: Path) -> None:
    model = quoth.Model(unpacked("llama-Q4_K_M", tmp_path), n_ctx=64, threads=1)
    for n, window in ((100, 65), (20, 21), (20, 3)):
        with pytest.raises(ValueError, match=rf"window is {window}, expected 4 to"):
            tool.perplexity(model, [1] * n, window)


def test_the_default_model_foretells_english_as_well_as_under_llama_cpp(tool: ModuleType, smollm2_path: Path) -> None:
    """The first two windows; `benches/records/perplexity.toml` has all, and how llama.cpp was asked."""
    model = quoth.Model(smollm2_path, n_ctx=512)
    tokens = tool.encode(model, tool.read_text(PROSE))
    assert len(tokens) == 4173, "as many as llama.cpp makes of it"
    assert tool.perplexity(model, tokens[:1024]).perplexity == pytest.approx(25.7751, rel=0.01)


def test_the_tool_prints_what_it_found(tool: ModuleType, tmp_path: Path) -> None:
    path, text = unpacked("llama-Q4_K_M", tmp_path), tmp_path / "text.txt"
    text.write_text("Hello there, how are you? " * 20 + "\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "tools" / "perplexity.py"), str(path), str(text), "--window", "32"]
    env = program_env(tmp_path)
    ids = tmp_path / "ids.txt"
    done = subprocess.run([*command, "--json", "--ids", str(ids)], capture_output=True, text=True, env=env, check=True)
    found = json.loads(done.stdout)
    model = quoth.Model(path, n_ctx=32)
    tokens = tool.encode(model, "Hello there, how are you? " * 20)
    assert [int(line) for line in ids.read_text().split()] == tokens
    wanted = tool.perplexity(model, tokens, 32)
    assert (found["perplexity"], found["tokens"]) == (wanted.perplexity, len(tokens))
    done = subprocess.run([*command, "--tokens", "8"], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "window is 32, expected 4 to 8" in done.stderr
