"""The program: exit codes, one-line errors, what goes where; and the parts that commands share."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quoth
from program import ROOT, Run, program_env, without_styles
from quoth import _files
from quoth.cli import _load, _run, main
from quoth.cli._app import app
from quoth.cli._console import bar, visible
from quoth.cli._units import as_json, count, rate, seconds, share, size

COMMANDS = [
    ["generate"],
    ["tokenize"],
    ["inspect"],
    ["pull"],
    ["doctor"],
    ["bench"],
    ["bench", "verify"],
    ["bench", "speed"],
]
ESC = "\x1b"


# ---- the program as a whole


def test_the_version_is_the_librarys(run_quoth: Run) -> None:
    ran = run_quoth("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"quoth {quoth.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_on_stdout(run_quoth: Run, command: list[str]) -> None:
    ran = run_quoth(*command, "--help")
    assert ran.code == 0
    assert ran.err == ""
    assert f"quoth {' '.join(command)}" in ran.out


def test_help_shows_flags_alone_and_survives_markup(run_quoth: Run) -> None:
    ran = run_quoth("bench", "workloads", "--help")
    assert "<bool>" not in run_quoth("generate", "--help").out + run_quoth("--help").out + ran.out
    assert "pip install'quoth[plot]'" in re.sub(r"[\s│`]+", "", ran.out).replace("pipinstall", "pip install")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--ctx", "0"], "error: --ctx is 0, expected a whole number of 1 to 16777216"),
        (["--threads", "0"], "error: --threads is 0, expected a whole number of 1 to 256"),
        (["--max-tokens", "0"], "error: --max-tokens is 0, expected a whole number of 1 to 2147483647"),
        (["--top-p", "2"], "error: --top-p: expected 0 to 1, found 2"),
        (["--top-k", "-1"], "error: --top-k is -1, expected a whole number of 0 to 4294967295"),
        (["--logit-bias", "999=1"], "error: --logit-bias: expected tokens below 512, found 999"),
        (["--max-draft", "65"], "error: --max-draft is 65, expected 1 to 64"),
    ],
)
def test_errors_name_the_option_that_was_written(
    run_quoth: Run, tiny_model_path: Path, args: list[str], said: str
) -> None:
    ran = run_quoth("generate", tiny_model_path, "--raw", "-p", "a", *args)
    assert (ran.code, ran.out, ran.last_error) == (2, "", said)


def test_help_loads_nothing_that_is_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, quoth.cli\n"
        "quoth.cli.main(['--help'])\n"
        "heavy = {'numpy', 'jinja2', 'huggingface_hub', 'http.client'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=program_env(tmp_path), capture_output=True, check=True)
    assert done.stderr.decode() == "[]\n"


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["bench"],
        ["sing"],
        ["--loud"],
        ["generate"],
        ["generate", "m.gguf", "--loud"],
        ["generate", "m.gguf"],
        ["generate", "m.gguf", "-p", "a", "-f", "b"],
        ["generate", "m.gguf", "-p", "a", "-n", "many"],
        ["generate", "m.gguf", "-p", "a", "--top-p", "3"],
        ["generate", "m.gguf", "-p", "a", "--max-draft", "65"],
        ["generate", "m.gguf", "-p", "a", "--kv-type", "f8"],
        ["generate", "m.gguf", "-p", "a", "--logit-bias", "x=1"],
        ["generate", "m.gguf", "-p", "a", "--logprobs", "2"],
        ["generate", "m.gguf", "-p", "a", "--compare", "--pairs", "2"],
        ["generate", "m.gguf", "-p", "a", "--compare", "--no-spec"],
        ["generate", "m.gguf", "-p", "a", "--pairs", "3"],
        ["generate", "m.gguf", "-p", "a", "--no-spec", "--max-draft", "3"],
        ["generate", "m.gguf", "-p", "a", "--no-spec", "--ref", "a.txt"],
        ["chat", "m.gguf", "--no-spec", "--max-draft", "3"],
        ["chat", "m.gguf", "--no-spec", "--ref", "a.txt"],
        ["generate", "m.gguf", "-p", "a", "--show-drafts", "--json"],
        ["generate", "a name", "-p", "a"],
        ["tokenize", "m.gguf", "-", "--decode", "--bos"],
        ["bench", "verify", "m.gguf", "--ctx-lengths", "a"],
        ["bench", "speed", "m.gguf", "--prompts", "0"],
        ["pull", "a name"],
    ],
    ids=" ".join,
)
def test_a_wrong_call_exits_with_2_and_prints_no_result(run_quoth: Run, args: list[str]) -> None:
    ran = run_quoth(*args)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    if args not in ([], ["bench"]):  # these print help
        assert ran.out == ""
        assert ran.last_error.startswith("error: ")


@pytest.mark.parametrize(
    "command", [["generate", "-p", "a"], ["tokenize", "-"], ["inspect"], ["bench", "verify"], ["bench", "speed"]]
)
def test_what_cannot_be_read_is_one_line_and_exit_1(run_quoth: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "text.gguf").write_text("this is no model")
    for name in ("none.gguf", "text.gguf", str(tmp_path)):
        at = 2 if command[0] == "bench" else 1
        ran = run_quoth(*command[:at], name, *command[at:])
        assert ran.code == 1
        assert ran.out == ""
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
        assert name in ran.err


@pytest.mark.parametrize("option", ["--file", "--ref"])
def test_texts_have_an_end(run_quoth: Run, tmp_path: Path, option: str) -> None:
    prompt = ["-p", "a"] if option == "--ref" else []
    ran = run_quoth("generate", "m.gguf", *prompt, option, "/dev/zero")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: `/dev/zero` is a device, expected a file or a pipe\n"


def test_texts_are_bounded_wherever_they_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_files, "TEXT_BYTES", 100)
    file = tmp_path / "a.txt"
    os.mkfifo(tmp_path / "pipe")
    for content, fits in ((b"a" * 100, True), (b"\xef\xbb\xbfa", True), (b"a" * 101, False)):
        file.write_bytes(content)
        writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
        writer.start()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        for path in (str(file), str(tmp_path / "pipe"), "-"):
            if fits:
                assert _load.read_text(path, "the text") == content.decode("utf-8-sig")
            else:
                name = "stdin" if path == "-" else f"`{path}`"
                with pytest.raises(quoth.QuothError) as caught:
                    _load.read_text(path, "the text")
                assert str(caught.value) == f"{name} has 101 bytes or more, expected at most 100"
        writer.join()


# ---- interrupts while it begins


@pytest.mark.parametrize("entry", ["script", "module"])
@pytest.mark.parametrize("module", ["quoth.cli._app", "typer", "rich", "quoth.loaded", "quoth._core", "quoth.cli._run"])
def test_ctrl_c_while_the_program_begins_is_exit_130(tmp_path: Path, entry: str, module: str) -> None:
    run = {
        "script": "from quoth.cli import main; sys.exit(main())",
        "module": "import runpy; runpy.run_module('quoth', run_name='__main__', alter_sys=True)",
    }
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv[1:] = ['doctor', '--no-bandwidth']\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + run[entry]], env=program_env(tmp_path), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (130, "")


def test_nothing_that_takes_time_is_imported_before_an_interrupt_can_be_caught(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import quoth.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], env=program_env(tmp_path), capture_output=True, check=True)
    ours = [name for name in done.stdout.decode().split() if "quoth" in name]
    assert ours == ["quoth", "quoth.cli"]


def test_every_public_name_is_where_the_package_says() -> None:
    for name in quoth.__all__:
        assert getattr(quoth, name) is not None
    assert {*quoth.__all__} == {name for names in quoth._PLACES.values() for name in names}
    assert {*quoth.__all__} <= {*dir(quoth)}
    with pytest.raises(AttributeError, match="no attribute 'Modell'"):
        _ = quoth.Modell  # type: ignore[attr-defined]


def test_a_traceback_appears_when_it_is_asked_for(run_quoth: Run) -> None:
    ran = run_quoth("inspect", "none.gguf", env={"QUOTH_DEBUG": "1"})
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert ran.last_error.startswith("error: ")
    assert "Traceback" not in run_quoth("inspect", "none.gguf", env={"QUOTH_DEBUG": "0"}).err


def test_a_defect_is_not_dressed_up_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*args: object, **options: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("quoth.cli.doctor._facts", defect)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["doctor", "--no-bandwidth"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (quoth.OptionsError("expected 1"), 2, "error: expected 1\n"),
        (quoth.ContextFullError("full"), 1, "error: full\n"),
        (quoth.ModelFileError("two\nlines"), 1, "error: two lines\n"),
        (
            FileNotFoundError(2, "No such file or directory", "a\x1b[2Jb"),
            1,
            "error: `a␛[2Jb`: no such file or directory\n",
        ),
        (OSError("plain words"), 1, "error: plain words\n"),
        (MemoryError(), 1, "error: out of memory\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
    ],
)
def test_each_error_has_its_code_and_its_line(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("quoth.cli.doctor._facts", failing)
    assert main(["doctor", "--no-bandwidth"]) == code
    assert capsys.readouterr().err == said


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path, tiny_model_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text("word " * 200_000)
    for args in (["tokenize", tiny_model_path, text], ["inspect", tiny_model_path, "--metadata", "--tensors"]):
        command = [sys.executable, "-m", "quoth", *map(str, args)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=program_env(tmp_path))
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(1)
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) in (0, 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path, tiny_model_path: Path) -> None:
    (tmp_path / "short.txt").write_text("a")  # fits every buffer, so that only the last flush fails
    for args in (["tokenize", tiny_model_path, tmp_path / "short.txt"], ["inspect", tiny_model_path]):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "quoth", *map(str, args)]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=program_env(tmp_path), check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(b"error: ")
        assert done.stderr.count(b"\n") == 1


def test_closed_streams_do_not_matter(tmp_path: Path, tiny_model_path: Path) -> None:
    command = f'"{sys.executable}" -m quoth tokenize "{tiny_model_path}" - <&- >&- 2>&-'
    done = subprocess.run(command, shell=True, env=program_env(tmp_path), check=False)
    assert done.returncode == 0


def test_a_warning_of_the_library_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    _run._log()
    _run.logging.getLogger("quoth.anything").warning("costs of %s", "\x1b[1m")
    _run.logging.getLogger("quoth.anything").info("not this")
    assert capsys.readouterr().err == "warning: costs of ␛[1m\n"


def test_python_m_quoth_and_the_script_are_the_same() -> None:
    assert callable(app)
    assert 'quoth = "quoth.cli:main"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


# ---- terminals


def test_output_to_a_pipe_has_no_colours_and_no_blanks_at_line_ends(run_quoth: Run, tiny_model_path: Path) -> None:
    for args in (["inspect", tiny_model_path, "--tensors"], ["doctor", "--no-bandwidth"]):
        ran = run_quoth(*args)
        assert ran.code == 0
        assert ESC not in ran.out
        assert all(line == line.rstrip() for line in ran.out.splitlines())


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(in_terminal: Run, tiny_model_path: Path, columns: int) -> None:
    for args in (["inspect", tiny_model_path, "--metadata"], ["doctor", "--no-bandwidth"]):
        ran = in_terminal(*args, columns=columns)
        assert ran.code == 0
        assert max(map(len, without_styles(ran.out).splitlines())) <= columns


def test_a_bar_appears_in_a_terminal_and_goes_away(in_terminal: Run) -> None:
    code = (
        "import time\n"
        "from quoth.cli._console import bar\n"
        "with bar('loading', 'bytes', after_s=0.1) as update:\n"
        "    for i in range(10):\n"
        "        update(i, 10)\n"
        "        time.sleep(0.1)\n"
        "print('done')"
    )
    ran = in_terminal(command=["-c", code])
    assert "loading" in ran.out
    assert ran.out.endswith("done\n")
    assert ran.out.rindex(f"{ESC}[2K") > ran.out.rindex("loading")  # the line is erased after the last drawing


def test_what_is_quick_gets_no_bar(in_terminal: Run) -> None:
    code = "from quoth.cli._console import bar\nwith bar('loading') as update: update(1, 2)\nprint('done')"
    assert in_terminal(command=["-c", code]).out == "done\n"


def test_there_is_no_bar_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bar("loading", after_s=0) as update:
        update(1, None)
        time.sleep(0.5)
    assert capsys.readouterr().err == ""


@given(st.text())
def test_visible_text_has_no_control_characters_but_tabs_and_line_ends(text: str) -> None:
    shown = visible(text)
    assert len(shown) == len(text)
    assert not any((ord(c) < 32 and c not in "\t\n") or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert all(a == b for a, b in zip(text, shown, strict=True) if ord(a) >= 0xA0 or a.isprintable())


# ---- numbers


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(1000), "1 kB"),
        (size(98_362_432), "98.4 MB"),
        (size(999_600), "1 MB"),
        (size(638e9), "638 GB"),
        (size(5e15), "5000 TB"),
        (count(999), "999"),
        (count(134_515_008), "134.5 M"),
        (count(2e13), "20 T"),
        (seconds(900), "1 µs"),
        (seconds(2_096_768), "2.1 ms"),
        (seconds(999_600_000), "1 s"),
        (seconds(61e9), "61 s"),
        (rate(9.876), "9.88 tok/s"),
        (rate(412.3), "412 tok/s"),
        (share(0.345), "34 %"),
    ],
)
def test_numbers_read_well(shown: str, expected: str) -> None:
    assert shown == expected


def test_json_has_no_infinities() -> None:
    nan, infinity = float("nan"), float("inf")
    assert as_json({"a": [nan, -infinity, 1.5], 2: (b"\xff", "b")}) == {"a": [None, None, 1.5], "2": ["\\xff", "b"]}
