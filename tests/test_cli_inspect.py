"""`quoth inspect` tells the truth about a file, and `quoth pull` and `quoth doctor` about this machine."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from program import ROOT, Run
from quoth.cli import main
from quoth.cli.doctor import _advice, _ranges

gguf = pytest.importorskip("gguf", reason="the package gguf is the oracle for files")


def facts(run_quoth: Run, *args: object) -> dict[str, Any]:
    ran = run_quoth("inspect", *args, "--json")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    found: dict[str, Any] = json.loads(ran.out)
    return found


def edited(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of a file with other metadata; `None` leaves a key out."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(
        target, changes.get("general.architecture", reader.fields["general.architecture"].contents())
    )
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", *changes):
            continue
        kind = field.types[0]
        sub = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub)
    for key, value in changes.items():
        if value is not None and key != "general.architecture":
            writer.add_string(key, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


# ---- inspect


def test_counts_and_sizes_are_those_of_the_reference_reader(run_quoth: Run, tiny_model_path: Path) -> None:
    found = facts(run_quoth, tiny_model_path, "--tensors", "--metadata")
    reader = gguf.GGUFReader(tiny_model_path)
    assert found["n_tensors"] == len(reader.tensors)
    assert found["weights"] == sum(prod(int(n) for n in t.shape) for t in reader.tensors)
    assert found["weight_bytes"] == sum(int(t.n_bytes) for t in reader.tensors)
    assert found["n_bytes"] == tiny_model_path.stat().st_size
    assert {t["type"] for t in found["types"]} == {t.tensor_type.name for t in reader.tensors}
    assert sum(t["n_bytes"] for t in found["types"]) == found["weight_bytes"]
    assert [t["name"] for t in found["tensors"]] == [t.name for t in reader.tensors]
    assert [t["shape"] for t in found["tensors"]] == [[int(n) for n in t.shape] for t in reader.tensors]
    keys = [key for key in reader.fields if not key.startswith("GGUF.")]
    assert list(found["metadata"]) == keys
    assert found["metadata"]["tokenizer.ggml.tokens"] == {"length": 512, "first": ["Ā", "ā", "Ă", "ă"]}
    assert found["sizes"]["n_embd"] == 256
    assert found["sizes"]["n_vocab"] == 512


def test_a_model_that_loads_is_said_to_run(run_quoth: Run, tiny_model_path: Path, tiny_chat_path: Path) -> None:
    plain, chat = facts(run_quoth, tiny_model_path), facts(run_quoth, tiny_chat_path)
    assert plain["supported"] == {"ok": True, "why": None}
    assert plain["chat_templates"] == {}
    assert chat["chat_templates"] == {"default": None}
    assert chat["tokenizer"]["special"]["eos_token"] == {"id": 258, "text": "<|im_end|>"}
    assert {t["id"] for t in chat["tokenizer"]["eog"]} >= {258}


def test_a_model_that_does_not_load_is_said_not_to_and_why(
    run_quoth: Run, tiny_model_path: Path, tmp_path: Path
) -> None:
    other = facts(run_quoth, edited(tiny_model_path, tmp_path / "other.gguf", **{"general.architecture": "mamba"}))
    assert other["supported"]["ok"] is False
    assert "`mamba`" in other["supported"]["why"]
    whole = tiny_model_path.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) * 2 // 3])
    ran = run_quoth("inspect", tmp_path / "cut.gguf")
    assert ran.code == 1
    assert ran.err.startswith("error: ")


def test_a_missing_tensor_is_named(run_quoth: Run, tiny_model_path: Path, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(tiny_model_path)
    writer = gguf.GGUFWriter(tmp_path / "less.gguf", "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub)
    for tensor in reader.tensors:
        if tensor.name != "blk.1.ffn_up.weight":
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = facts(run_quoth, tmp_path / "less.gguf")
    assert found["supported"]["ok"] is False
    assert "blk.1.ffn_up.weight" in found["supported"]["why"]


def test_an_unknown_splitter_and_a_broken_template_are_said(
    run_quoth: Run, tiny_chat_path: Path, tmp_path: Path
) -> None:
    path = edited(tiny_chat_path, tmp_path / "odd.gguf", **{"tokenizer.ggml.pre": "unheard-of"})
    assert facts(run_quoth, path)["tokenizer"]["ok"] is False
    assert "unheard-of" in facts(run_quoth, path)["tokenizer"]["why"]
    assert facts(run_quoth, path, "--pre", "gpt-2")["tokenizer"]["ok"] is True
    path = edited(tiny_chat_path, tmp_path / "broken.gguf", **{"tokenizer.chat_template": "{% if %}"})
    assert "line 1" in facts(run_quoth, path)["chat_templates"]["default"]


def test_a_vocabulary_alone_is_no_model_but_can_be_inspected(run_quoth: Run, tmp_path: Path) -> None:
    import lzma  # noqa: PLC0415

    data = ROOT / "tests" / "data" / "vocab" / "gpt-2.gguf.xz"
    (tmp_path / "v.gguf").write_bytes(lzma.decompress(data.read_bytes()))
    found = facts(run_quoth, tmp_path / "v.gguf")
    assert found["supported"]["ok"] is False
    assert found["tokenizer"]["ok"] is True
    assert found["types"] == []
    assert run_quoth("inspect", tmp_path / "v.gguf").code == 0


def test_names_in_a_file_do_not_steer_the_terminal(in_terminal: Run, tiny_model_path: Path, tmp_path: Path) -> None:
    path = edited(tiny_model_path, tmp_path / "loud.gguf", **{"general.name": "[red]a\x1b[2J\x9b2Jb"})
    ran = in_terminal("inspect", path, "--metadata", env={"NO_COLOR": "1", "TERM": "dumb"})
    assert ran.code == 0
    assert "[red]a␛[2J\ufffd2Jb" in ran.out
    assert "\x1b[2J" not in ran.out
    assert "\x9b" not in ran.out


def test_the_page_says_what_the_json_says(run_quoth: Run, tiny_chat_path: Path) -> None:
    page = dict(line.split("  ", 1) for line in run_quoth("inspect", tiny_chat_path).out.splitlines() if "  " in line)
    assert page["architecture"].strip() == "llama"
    assert page["runs"].strip() == "yes"
    assert page["n_layer"].strip() == "2"
    assert page["chat template"].strip() == "default"
    assert "258 <|im_end|>" in page["ends"]


# ---- pull


def test_pull_prints_the_path_alone_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x" * 1000)

    def downloads(name: str, progress: Any) -> Path:
        progress(0, 1000)
        progress(1000, 1000)
        return file

    monkeypatch.setattr("quoth.hub.pull", downloads)
    assert main(["pull", "smollm2"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{file}\n"
    assert "downloading smollm2, 1 kB" in said.err
    assert "fetched: 1 kB, sha256 b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 verified" in said.err

    monkeypatch.setattr("quoth.hub.pull", lambda name, progress: file)
    assert main(["pull", "hf:org/repo/m.gguf"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{file}\n"
    assert said.err == "already here: 1 kB\n"  # the hub's client compares its own checksums


# ---- doctor


def test_doctor_says_what_is_in_force(run_quoth: Run) -> None:
    ran = run_quoth("doctor", "--json", "--no-bandwidth", env={"QUOTH_THREADS": "1", "QUOTH_KERNELS": "scalar"})
    found = json.loads(ran.out)
    assert found["threads"]["default"] == 1
    assert found["kernels"]["in_use"] == "scalar"
    assert found["environment"].keys() >= {"QUOTH_THREADS", "QUOTH_KERNELS", "QUOTH_CACHE"}
    assert found["bandwidth"] is None
    assert found["cache"]["files"] == []


@pytest.mark.parametrize(
    ("name", "loads"), [("scalar", True), ("reference", True), ("foo", False), ("f" * 5000, False)]
)
def test_doctor_and_loading_agree_about_instruction_sets(
    run_quoth: Run, tiny_model_path: Path, name: str, loads: bool
) -> None:
    env = {"QUOTH_KERNELS": name}
    ran = run_quoth("doctor", "--no-bandwidth", env=env)
    assert ran.code == 0
    assert ("models cannot be loaded" in ran.out) is not loads
    used = f"in use {name} (from QUOTH_KERNELS)" if loads else "in use none (from QUOTH_KERNELS)"
    assert used in " ".join(ran.out.split())
    generated = run_quoth("generate", tiny_model_path, "--raw", "-p", "a", "-n", "1", env=env)
    assert (generated.code == 0) is loads
    assert "Traceback" not in generated.err


@pytest.mark.parametrize("threads", ["9" * 5000, "0", "x", "1e3"])
def test_doctor_and_loading_agree_about_threads(run_quoth: Run, tiny_model_path: Path, threads: str) -> None:
    env = {"QUOTH_THREADS": threads}
    ran = run_quoth("doctor", "--no-bandwidth", env=env)
    assert ran.code == 0, ran.err
    assert "expected a whole number of 1 to 256" in " ".join(ran.out.split())
    generated = run_quoth("generate", tiny_model_path, "--raw", "-p", "a", env=env)
    assert (generated.code, generated.out) == (2, "")
    assert generated.err.startswith("error: QUOTH_THREADS is ")
    assert "expected a whole number of 1 to 256" in generated.last_error


def test_doctor_measures_how_fast_memory_is_read(run_quoth: Run) -> None:
    measured = json.loads(run_quoth("doctor", "--json").out)["bandwidth"]
    assert measured["bytes_per_second"] >= measured["median_bytes_per_second"] > 0
    assert "MiB, best of" in measured["how"]


HEALTHY: dict[str, Any] = {
    "kernels": {
        "available": [{"name": "scalar", "detail": "scalar"}, {"name": "avx2", "detail": "avx2"}],
        "in_use": "avx2",
        "forced": False,
        "error": None,
    },
    "cores": {"logical": 4, "usable": [0, 1, 2, 3], "quota": None},
    "threads": {"physical": 4, "default": 4, "error": None},
    "huge_pages": "madvise",
    "governor": "performance",
    "load": 0.1,
    "cache": {"path": "/c", "files": [{"path": "costs/a.json", "n_bytes": 1}]},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"kernels": {**HEALTHY["kernels"], "in_use": "scalar", "forced": True}}, "without it quoth takes avx2"),
        (
            {"kernels": {**HEALTHY["kernels"], "in_use": None, "forced": True, "error": "QUOTH_KERNELS is 'avx9'"}},
            "QUOTH_KERNELS is 'avx9': models cannot be loaded",
        ),
        ({"kernels": {**HEALTHY["kernels"], "in_use": "reference", "forced": True}}, "plain code for tests"),
        ({"kernels": {**HEALTHY["kernels"], "available": HEALTHY["kernels"]["available"][:1]}}, "plain code"),
        ({"threads": {"physical": 4, "default": 2, "error": None}}, "4 physical cores"),
        ({"threads": {"physical": 4, "default": 8, "error": None}}, "more than the 4 cores"),
        ({"threads": {"physical": 4, "default": 4, "error": "QUOTH_THREADS is 'x'"}}, "QUOTH_THREADS is 'x'"),
        ({"cores": {"logical": 8, "usable": [0, 1, 2, 3], "quota": None}}, "4 of 8 cores"),
        ({"cores": {"logical": 4, "usable": [0, 1, 2, 3], "quota": 1.5}}, "QUOTH_THREADS=1"),
        ({"huge_pages": "never"}, "Large pages are off"),
        ({"governor": "powersave"}, "powersave"),
        ({"load": 2.0}, "About 2.0 other processes"),
        ({"cache": {"path": "/c", "files": []}}, "quoth bench verify MODEL"),
    ],
)
def test_doctor_finds_what_is_wrong_and_nothing_else(change: dict[str, Any], said: str | None) -> None:
    advice = list(_advice({**HEALTHY, **change}))
    assert len(advice) == (said is not None)
    if said is not None:
        assert said in advice[0]


def test_ranges_are_short() -> None:
    assert _ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert _ranges([]) == ""
