"""What tests share: models, the folder of shared data, and the command line as a user runs it."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

import scripted as scripts
from program import ROOT, Run, with_pipes, with_terminal


def pytest_configure(config: pytest.Config) -> None:
    """Say why tests were skipped, without being asked; and hear Ctrl-C, also in the background."""
    # A shell without job control starts what runs in the background with interrupts ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "s" not in config.option.reportchars.lower():
        config.option.reportchars += "s"


FOLLOWS = {"smollm2_path": "model", "run_quoth": "program", "in_terminal": "program"}
"""Marks that follow from a fixture."""

SLOW = (
    "test_cli_chat",
    "test_conversation_machine",
    "test_examples",
    "test_faults",
    "test_golden",
    "test_hostile_decode",
    "test_hostile_templates",
    "test_hostile_tokenizer",
    "test_hub",
    "test_make_synthetic",
    "test_measure",
    "test_processes",
    "test_template",
    "test_tokenizer_twins",
)
"""Modules whose tests are marked slow; single tests elsewhere carry the mark themselves."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test-fast` leaves out, before `-m` chooses."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if mark := FOLLOWS.get(fixture):
                item.add_marker(mark)
        if item.path.stem in SLOW:
            item.add_marker("slow")


# ---- models


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model: `QUOTH_SMOLLM2`, or what `quoth pull smollm2` keeps in the cache folder."""
    if own := os.environ.get("QUOTH_SMOLLM2"):
        return Path(own)
    from quoth.hub import resolve  # noqa: PLC0415  imported only for tests with the model

    try:
        return resolve("smollm2")
    except OSError as error:
        pytest.skip(f"the default model cannot be had (QUOTH_SMOLLM2 can name its file): {error}")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Large test data beside the repository: `QUOTH_SHARED`, or `../shared`."""
    folder = Path(os.environ.get("QUOTH_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} with shared test data (QUOTH_SHARED can name it)")
    return folder


def load_synthetic() -> ModuleType:
    """`tools/make_synthetic.py` as a module."""
    pytest.importorskip("gguf", reason="random models are written with the package gguf")
    if "make_synthetic" not in sys.modules:
        spec = importlib.util.spec_from_file_location("make_synthetic", ROOT / "tools" / "make_synthetic.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["make_synthetic"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["make_synthetic"])
    return sys.modules["make_synthetic"]


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model: 2 layers, 256 wide, 512 tokens of which the first 256 are bytes. No chat template."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    load_synthetic().write(path, "tiny-llama", "Q8_0", seed=7)
    return path


@pytest.fixture(scope="session")
def tiny_chat_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_model_path`, with marks for turns and a chat template."""
    tool = load_synthetic()
    import gguf  # noqa: PLC0415  `load_synthetic` skips where there is none

    folder = tmp_path_factory.mktemp("chat")
    letters = tool.byte_letters()
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pairs = [("t", "h"), ("th", "e"), (letters[0x20], "a"), ("u", "s"), ("us", "er")]
    merged = [a + b for a, b in pairs if len(b) == 1]
    tokens = [*letters, *marks, *merged]
    writer = gguf.GGUFWriter(folder / "vocabulary.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL if token in marks else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges([f"{a} {b}" for a, b in pairs if len(b) == 1])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    writer.add_chat_template((ROOT / "tests" / "data" / "templates" / "chatml.jinja").read_text(encoding="utf-8"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = folder / "chat.gguf"
    tool.write(path, "tiny-llama", "Q8_0", seed=8, vocab_from=folder / "vocabulary.gguf")
    return path


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> scripts.Scripted:
    """A model that says what it is told, with a chat template."""
    return scripts.write(tmp_path_factory.mktemp("scripted") / "scripted.gguf", load_synthetic())


# ---- the command line


@pytest.fixture
def run_quoth(tmp_path: Path) -> Run:
    """Run the program with pipes: `run_quoth("tokenize", path, "-", stdin=b"text")`."""
    return partial(with_pipes, tmp_path)


@pytest.fixture
def in_terminal(tmp_path: Path) -> Run:
    """Run the program in a terminal: `in_terminal("generate", …, keys=b"\\x03", after="text that was seen")`."""
    return partial(with_terminal, tmp_path)
