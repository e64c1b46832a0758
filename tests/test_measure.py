"""The tools that measure everything: each part gives figures, and each command can be run as it is written down."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import quoth
from program import ROOT, Run, program_env

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def goals() -> ModuleType:
    return load_tool("measure_goals")


@pytest.fixture(scope="module")
def everything() -> ModuleType:
    return load_tool("measure_all")


# ---- figures with goals


def test_every_part_gives_figures_and_they_are_kept(goals: ModuleType, tiny_model_path: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.py").write_text("for i in range(10):\n    print(i)\n" * 60)
    record = tmp_path / "m-goals.toml"
    command = [str(tiny_model_path), "--quick", "--rounds", "2", "--texts", str(texts), "--fact", "commit=abc"]
    assert goals.main([*command, "--record", str(record)]) == 0
    found = tomllib.loads(record.read_text())
    parts = {one["part"] for one in found["measured"]}
    assert parts == set(goals.PARTS) - (set() if quoth.Model(tiny_model_path).threads > 1 else {"threads"})
    assert all(one["figure"]["median"] > 0 for one in found["measured"])
    assert found["run"]["commit"] == "abc"
    assert found["command"].startswith("python tools/measure_goals.py tiny.gguf --quick")
    rows = load_tool("economics").goals({"m-goals": found}).splitlines()
    assert len(rows) == 2 + len(found["measured"])


def test_extraction_with_schemas_is_measured_and_kept(tiny_chat_path: Path, tmp_path: Path) -> None:
    record = tmp_path / "m-constraints.toml"
    arguments = [str(tiny_chat_path), "--quick", "--rounds", "2", "--record", str(record)]
    assert load_tool("measure_constraints").main(arguments) == 0
    found = tomllib.loads(record.read_text())
    assert all(one["figure"]["median"] > 0 for one in found["measured"])
    goals = {name: one[name] for one in found["measured"] for name in ("least", "most") if name in one}
    assert goals == {"least": 2.5, "most": 1.03}
    assert found["command"].startswith("python tools/measure_constraints.py chat.gguf --quick")
    rows = load_tool("economics").goals({"m-constraints": found}).splitlines()
    assert len(rows) == 2 + len(found["measured"])


def test_sources_of_the_measurements_are_never_and_always_right(goals: ModuleType, tiny_model_path: Path) -> None:
    model = quoth.Model(tiny_model_path, n_ctx=256, threads=1)
    start = goals.prompt(model, 16)
    truth = goals._answer(model, start, 60)
    for kind, share in ((goals.Wrong(16, truth, model.n_vocab), 0), (goals.Right(16, truth), 1)):
        speculation = quoth.Speculation(source=kind, gate=quoth.Gate(min_speedup=0.5, max_debt=1000.0))
        result = model.decoder(speculation=speculation).generate(start, max_tokens=60, stop_at_eog=False)
        assert result.tokens == tuple(truth)
        assert result.stats.drafted > 0
        assert result.stats.acceptance == share


def test_a_loop_in_python_takes_every_token_once(goals: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    honest = quoth.DraftIndex.observe

    def observe(index: quoth.DraftIndex, tokens: list[int]) -> None:
        seen.extend(tokens)
        honest(index, tokens)

    monkeypatch.setattr(quoth.DraftIndex, "observe", observe)
    tokens = [1, 2, 3, 4, 5] * 40
    goals._loop(9, tokens)
    assert seen == tokens


def test_other_tokens_end_the_measurement(
    goals: ModuleType, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = goals.Rig(str(tiny_model_path), threads=1, rounds=1, quick=True, texts=ROOT)
    monkeypatch.setattr(goals, "_answer", lambda model, start, n: (1,) * n)
    with pytest.raises(SystemExit, match="other tokens"):
        list(goals.garbage(rig))


# ---- another engine

SERVER = """#!{python}
import http.server, json, sys, time

def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None

way = option("--spec-type")
asked = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, data):
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply({{"status": "ok"}})

    def do_POST(self):
        global asked
        asked += 1
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open({log!r}, "a") as log:
            log.write(json.dumps([way, asked, said]) + "\\n")
        tokens = [116, 104] if way != "ngram-mod" else [116, 105]
        timings = {{"prompt_ms": 4.0, "predicted_ms": 8.0 if way is None else 2.0}}
        timings |= {{}} if way is None else {{"draft_n": 5, "draft_n_accepted": 3}}
        self.reply({{"content": "the", "tokens": tokens, "timings": timings}})

    def log_message(self, *_):
        pass

http.server.HTTPServer((option("--host"), int(option("--port"))), Handler).serve_forever()
"""


def test_another_engine_is_measured_as_quoth_is(tiny_chat_path: Path, tmp_path: Path) -> None:
    log, server, record = tmp_path / "log", tmp_path / "server", tmp_path / "m-peers.toml"
    server.write_text(SERVER.format(python=sys.executable, log=str(log)))
    server.chmod(0o755)
    file = tmp_path / "w.jsonl"
    lines = [{"id": "a", "kind": "free-form", "turns": ["the", "user"], "system": "a", "max_tokens": 9}]
    lines.append({"id": "b", "kind": "repeat", "messages": [{"role": "user", "content": "the"}], "references": ["the"]})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = [str(server), str(tiny_chat_path), str(file), "--ways", "ngram-simple,ngram-mod", "--rounds", "2"]
    assert load_tool("measure_peers").main([*arguments, "--record", str(record)]) == 0
    found = tomllib.loads(record.read_text())
    ratio = {"ratio": 4.0, "low": 4.0, "high": 4.0, "n": 2}
    whole = {"ratio": 2.0, "low": 2.0, "high": 2.0, "n": 2}
    counts = {"drafted": 2 * 3 * 5, "accepted": 2 * 3 * 3}
    head = {"engine": "llama.cpp", "model": "chat"}
    figures = {"speedup": ratio, "total_speedup": whole, "prose": ratio}
    assert found["rows"] == [
        head | {"speculation": "ngram-simple, defaults"} | figures | {"answers": {"same": 2, "of": 2}} | counts,
        head | {"speculation": "ngram-mod, defaults"} | figures | {"answers": {"same": 0, "of": 2}} | counts,
    ]
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    assert [way for way, at, said in asked if at == 1 and said["n_predict"] == 9] == [
        *(None, None, "ngram-simple", "ngram-simple", None),
        *(None, "ngram-mod", "ngram-mod", None),
    ], "each run has a server of its own, and either goes first in turn"
    tokenizer = quoth.Model(tiny_chat_path).tokenizer
    talk = [{"role": role, "content": text} for role, text in (("system", "a"), ("user", "the"))]
    later = [*talk, {"role": "assistant", "content": "the"}, {"role": "user", "content": "user"}]
    expected = [tokenizer.apply_chat_template(one) for one in (talk, later)]
    assert [said["prompt"] for way, _, said in asked if said["n_predict"] == 9] == expected * 9
    table = load_tool("economics").peers({"m-peers": found}).splitlines()
    assert table[2].startswith("| llama.cpp | chat | ngram-simple, defaults | - | - | - | 4.00 × (4.00-4.00) |")


def test_another_engine_that_does_not_start_is_told(tiny_chat_path: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no answer, exit code 1"):
        load_tool("measure_peers").main(["/bin/false", str(tiny_chat_path), "--record", str(tmp_path / "m.toml")])


# ---- everything


def test_all_commands_are_known_and_their_options_too(everything: ModuleType, tmp_path: Path) -> None:
    helps: dict[tuple[str, ...], str] = {}
    for quick in (False, True):
        arguments = ["--list", "--work", str(tmp_path), *(["--quick"] if quick else ["--records", str(tmp_path)])]
        command = [sys.executable, str(ROOT / "tools" / "measure_all.py"), *arguments, "--pictures", str(tmp_path)]
        done = subprocess.run(command, env=program_env(tmp_path), capture_output=True, text=True, check=True)
        listed = [line.split(": ", 1) for line in done.stderr.splitlines() if ": " in line]
        assert len(listed) == len({name for name, _ in listed}) > 8
        for name, line in listed:
            words = shlex.split(line)
            asked = (*words[: 5 if "quoth" in words[:3] else 2], "--help")
            if asked not in helps:
                told = subprocess.run(asked, env=program_env(tmp_path), capture_output=True, text=True, check=True)
                helps[asked] = told.stdout.replace(",", " ").replace("\n", " ")
            for word in words:
                if word.startswith("--"):
                    assert f"{word} " in helps[asked], f"{name}: {word}"


def test_the_ways_that_are_compared_are_options(everything: ModuleType, run_quoth: Run, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps([1, 2, 3] * 20))
    ways = [word for way in everything.WAYS for word in ("--against", way)]
    ran = run_quoth("bench", "replay", "t.jsonl", "--json", *ways)
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["ways"]) == 1 + len(everything.WAYS)


def test_a_step_that_fails_is_told_and_the_rest_is_done(
    everything: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = [sys.executable, "-c"]
    write = "import sys; open(sys.argv[sys.argv.index('--record') + 1], 'w').write('x')"
    steps = [
        everything.Step("one", [*python, "raise SystemExit(3)"]),
        everything.Step("two", [*python, write]),
        everything.Step("three", [*python, write], needs=tmp_path / "missing"),
    ]
    monkeypatch.setattr(everything, "steps", lambda *_: steps)
    (tmp_path / f"{everything.LARGE}.gguf").touch()
    records = tmp_path / "records"
    folders = ["--work", str(tmp_path), "--records", str(records), "--pictures", str(tmp_path / "images")]
    monkeypatch.setattr(everything, "_quick_cache", lambda work: work)
    assert everything.main(["--quick", *folders]) == 1
    assert [path.name for path in records.iterdir()] == ["two.toml"]
    said = capsys.readouterr().err
    assert "failed: one" in said
    assert "failed: three" in said
    assert "failed: two" not in said
