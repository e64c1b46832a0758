"""`quoth chat` is a conversation: what is typed or piped in gives the answers of `Conversation`, and nothing else."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pexpect
import pytest

import quoth
import scripted as scripts
from conftest import load_synthetic
from program import Run, program_env
from quoth.cli import _input
from quoth.cli._console import visible
from quoth.cli._input import Input
from quoth.cli._stream import Writer
from quoth.cli._talk import Talk
from quoth.cli.chat import _converse
from scripted import BIAS, STOP, Scripted

N = 12


def answers(model: quoth.Model, *messages: str, **options: Any) -> list[str]:
    """What a plain conversation in this process answers."""
    chat = model.conversation(speculation=None, **{"max_tokens": N, **options})
    return [chat.reply(message).text for message in messages]


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def saved(path: Path) -> list[dict[str, Any]]:
    return [entry["message"] for entry in json.loads(path.read_text(encoding="utf-8"))["entries"]]


# ---- over a pipe


@pytest.mark.parametrize("options", [[], ["--no-spec"], ["--max-draft", "3"], ["--mark-drafts", "--no-spec"]])
def test_each_line_is_a_message_and_stdout_carries_the_answers_alone(
    run_quoth: Run, tiny_chat_path: Path, options: list[str]
) -> None:
    said = ["the user", "  again, the user ", "/ is no command if it is written twice"]
    given = lines(said[0], "", "   ", "/help", said[1], "/stats", f"/{said[2]}")
    ran = run_quoth("chat", tiny_chat_path, "-n", N, "--threads", "1", *options, stdin=given)
    if "--mark-drafts" in options:
        assert (ran.code, ran.out) == (2, "")
        return
    assert ran.code == 0, ran.err
    assert ran.out == "".join(f"{answer}\n" for answer in answers(quoth.Model(tiny_chat_path), *said))
    assert "/undo" in ran.err
    assert "> " not in ran.out + ran.err, "no prompts where no user types"


def test_a_message_may_have_several_lines(run_quoth: Run, tiny_chat_path: Path, tmp_path: Path) -> None:
    given = b'first\\\r\nsecond\\\nthird\r\n"""\n/not a command\n\nends here\\\n  """  \n/save a.json\n"""\nno end'
    ran = run_quoth("chat", tiny_chat_path, "-n", "2", stdin=given)
    assert ran.code == 0, ran.err
    messages = saved(tmp_path / "a.json")
    assert [m["content"] for m in messages[::2]] == ["first\nsecond\nthird", "/not a command\n\nends here\\"]
    assert ran.out.count("\n") >= 3, "the end of the input ends a message too, and it is answered"


def test_options_reach_the_conversation(run_quoth: Run, scripted: Scripted, tmp_path: Path) -> None:
    (tmp_path / "ref.txt").write_text("all work and no play", encoding="utf-8")
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}!{{ messages[-1].content }}", encoding="utf-8")
    bias = f"{scripted.tokens['apart'][0]}={BIAS}"
    options = ["--system", "Be brief.", "--ref", "ref.txt", "--stop", " four", "--logit-bias", bias, "--seed", 5]
    more = ["--temperature", "0.1", "--top-k", 3, "--trim", "--template", "t.jinja"]
    ran = run_quoth("chat", scripted.path, *options, *more, stdin=lines("Hi", "/ref", "/system", "/save a.json"))
    assert (ran.code, ran.out) == (0, "one two ## three\n"), ran.err
    assert "system message: Be brief." in ran.err
    file = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    found = file["options"]
    assert (found["stop"], found["overflow"], found["sampling"]["seed"]) == ([" four"], "trim", 5)
    assert (found["sampling"]["temperature"], found["sampling"]["top_k"]) == (0.1, 3)
    assert found["chat_template"] == (tmp_path / "t.jinja").read_text(encoding="utf-8")
    assert len(file["references"]) == 1
    assert f"reference 1: {len(file['references'][0])} tokens" in ran.err


def test_commands_do_what_they_say(run_quoth: Run, tiny_chat_path: Path, tmp_path: Path) -> None:
    (tmp_path / "ref.txt").write_text("the user", encoding="utf-8")
    steps = [
        "one", "two", "/undo", "/save a.json", "three", "/system Be good.", "/ref ref.txt", "four", "/save b.json",
        "/reset", "five", "/load a.json", "/save", "two", "/unref", "/system -", "/save c.json", "/quit", "never",
    ]  # fmt: skip
    ran = run_quoth("chat", tiny_chat_path, "-n", N, stdin=lines(*steps))
    assert ran.code == 0, ran.err
    model = quoth.Model(tiny_chat_path)
    chat = model.conversation(speculation=None, max_tokens=N)
    one, two = chat.reply("one").text, chat.reply("two").text
    chat.undo()
    three = chat.reply("three").text
    chat.system = "Be good."
    four = chat.reply("four").text
    chat.reset()
    five = chat.reply("five").text
    assert ran.out.splitlines() == "\n".join([one, two, three, four, five, two]).splitlines()
    assert [m["content"] for m in saved(tmp_path / "a.json")] == ["one", one]
    assert [m["content"] for m in saved(tmp_path / "b.json")] == ["Be good.", "one", one, "three", three, "four", four]
    assert [m["content"] for m in saved(tmp_path / "c.json")] == ["one", one, "two", two]
    assert [len(json.loads((tmp_path / name).read_text())["references"]) for name in ("b.json", "c.json")] == [1, 0]
    assert "dropped: two" in ran.err


def test_answers_are_drawn_anew_unless_a_seed_is_set(run_quoth: Run, tiny_chat_path: Path, tmp_path: Path) -> None:
    options = ["chat", tiny_chat_path, "-n", N, "--temperature", "1.5"]
    given = lines(
        "one", "/retry", "/undo", "one", "/seed", "/seed 5", "two", "/retry", "/seed -", "/retry", "/save a.json"
    )
    runs = [run_quoth(*options, stdin=given.replace(b"a.json", name)) for name in (b"a.json", b"b.json")]
    for ran, name in zip(runs, ("a.json", "b.json"), strict=True):
        assert ran.code == 0, ran.err
        assert [m["content"] for m in saved(tmp_path / name)[::2]] == ["one", "two"]
    said = [re.findall(r"seed: drawn anew for each answer; the last answer's was (\d+)", ran.err)[0] for ran in runs]
    assert said[0] != said[1]
    assert all("seed: 5; the last answer's was" in ran.err for ran in runs)
    assert all("[the seed is 5: the answer stays the same; /seed - draws anew]" in ran.err for ran in runs)
    chat = quoth.Model(tiny_chat_path).conversation(sampling=quoth.Sampling(temperature=1.5), max_tokens=N)
    for ran, seed, name in zip(runs, said, ("a.json", "b.json"), strict=True):
        chat.reset()
        chat.reply("one", seed=int(seed))
        two = chat.reply("two", seed=5).text
        *first, again, last = [f"{answer}\n" for answer in (chat.messages[1]["content"], two, two)]
        assert f"{''.join(first)}{again}{last}" in ran.out, (
            "the seed that was told repeats the answer; so does a set one"
        )
        assert saved(tmp_path / name)[3]["content"] not in (two, ""), "without a seed a retry is another answer"
    assert runs[0].out != runs[1].out


def test_options_can_be_set_and_shown(run_quoth: Run, tiny_chat_path: Path, tmp_path: Path) -> None:
    given = lines("/set temperature 0.5", "/set top_k 7", "/set max_tokens 3", "/set", "/set top_k", "hi", "/retry",
                  "/set temperature 0", "/retry", "/save a.json")  # fmt: skip
    ran = run_quoth("chat", tiny_chat_path, "-n", N, stdin=given)
    assert ran.code == 0, ran.err
    assert "top_p: 1.0" in ran.err
    assert ran.err.count("top_k: 7") == 3
    assert "[the temperature is 0: the answer stays the same]" in ran.err
    options = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["options"]
    assert (options["sampling"]["temperature"], options["sampling"]["top_k"], options["max_tokens"]) == (0, 7, 3)


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (lines("/retry"), 2, "no answer to try again"),
        (lines("/seed x"), 2, "expected a whole number behind /seed, found x"),
        (lines("/seed -1"), 2, "seed is -1, expected a whole number of 0 to"),
        (lines("/set top_q 1"), 2, "unknown option top_q, expected temperature, top_k"),
        (lines("/set top_q"), 2, "unknown option top_q, expected temperature, top_k"),
        (lines("/set top_k x"), 2, "expected a whole number behind /set top_k, found x"),
        (lines("/set top_p 2"), 2, "/set top_p: sampling option `top_p`: expected 0 to 1, found 2"),
        (lines("/set max_tokens 0"), 2, "/set max_tokens: max_tokens is 0, expected"),
        (lines("/nonsense"), 2, "unknown command /nonsense"),
        (lines("/undo"), 2, "no turn to undo"),
        (lines("/ref none.txt"), 1, "`none.txt`: no such file"),
        (lines("/ref -"), 1, "no such file"),
        (lines("/load none.json"), 1, "`none.json`: no such file"),
        (lines("/load kept.txt"), 2, "no conversation"),
        (lines("/load"), 2, "expected a file"),
        (lines("/save"), 2, "expected a file"),
        (lines("/save kept.txt"), 2, "`kept.txt` exists"),
        (lines("x" * 5000), 1, "expected at most 64"),
        (lines("fine") + b"\xff\xfe\n", 1, "line 2 of stdin is not UTF-8: byte 0xff at 0"),
        (b"/system \xff\n", 1, "line 1 of stdin is not UTF-8: byte 0xff at 8"),
        (b"/save a\0.json\n", 2, "expected a file, found a name with the character U+0000 at 1"),
        (b"/ref \0\n", 2, "expected a file, found a name with the character U+0000 at 0"),
        (b"/load \0\n", 2, "expected a file, found a name with the character U+0000 at 0"),
        (lines("/save ~no-such-user/a.json"), 2, "there is no such user's folder"),
        (lines("/ref /dev/zero"), 2, "`/dev/zero` is a device, expected a file or a pipe"),
        (lines("/unref 1"), 2, "expected nothing behind /unref, found 1"),
        (lines("/quit now"), 2, "expected nothing behind /quit, found now"),
    ],
)
def test_over_a_pipe_the_first_error_ends_the_session(
    run_quoth: Run, tiny_chat_path: Path, tmp_path: Path, *, given: bytes, code: int, said: str
) -> None:
    (tmp_path / "kept.txt").write_text("precious", encoding="utf-8")
    ran = run_quoth("chat", tiny_chat_path, "-n", "1", "--ctx", 64, stdin=given + lines("/save after.json"))
    assert ran.code == code
    assert said in ran.last_error
    assert not (tmp_path / "after.json").exists()
    assert (tmp_path / "kept.txt").read_text(encoding="utf-8") == "precious"


def test_a_model_without_a_template_takes_the_users(run_quoth: Run, tiny_model_path: Path, tmp_path: Path) -> None:
    ran = run_quoth("chat", tiny_model_path, stdin=b"Hi\n")
    assert (ran.code, ran.out) == (1, "")
    assert "template" in ran.last_error
    (tmp_path / "t.jinja").write_text("{{ messages[-1].content }}", encoding="utf-8")
    assert run_quoth("chat", tiny_model_path, "-n", "2", "--template", "t.jinja", stdin=b"Hi\n").code == 0


def test_a_full_context_is_said_and_trimming_goes_on(run_quoth: Run, tiny_chat_path: Path) -> None:
    given = lines(*["the user asks"] * 6)
    refused = run_quoth("chat", tiny_chat_path, "-n", "20", "--ctx", "128", stdin=given)
    assert (refused.code, "expected at most 128" in refused.last_error) == (1, True)
    ran = run_quoth("chat", tiny_chat_path, "-n", "20", "--ctx", "128", "--trim", stdin=given)
    assert ran.code == 0, ran.err
    assert "the context was full: the oldest turns" in ran.err


def test_an_interrupt_ends_a_session_over_a_pipe_with_what_was_said(scripted: Scripted, tmp_path: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "quoth", "chat", scripted.path, *endless(scripted)],
        bufsize=0,  # what is read ahead here would be lost to `communicate`
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=program_env(tmp_path),
    )  # fmt: skip
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(b"Hi\n")
    seen = running.stdout.read(20)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    phrase = "all work and no play makes a dull day; "
    text = (seen + out).decode()
    assert text.endswith("\n")
    assert (phrase * (len(text) // len(phrase) + 1)).startswith(text[:-1])


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_while_a_chunk_is_written_neither_loses_nor_repeats_it(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late: bool
) -> None:
    chat = scripted.model().conversation(speculation=None)
    put = Writer._put
    written = 0

    def interrupted(writer: Writer, text: str) -> None:
        nonlocal written
        written += 1
        if written == 3 and not late:
            signal.raise_signal(signal.SIGINT)
        put(writer, text)
        if written == 3 and late:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Writer, "_put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Talk(chat, None).say("Hi")
    assert written >= 3
    assert capsys.readouterr().out == chat.messages[-1]["content"] + "\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def endless(scripted: Scripted) -> list[str]:
    """Options that make answers of 50,000 tokens."""
    bias = f"{scripted.tokens['phrase'][0]}={BIAS}"
    return ["--no-spec", "--ctx", "60000", "-n", "50000", "--threads", "1", "--logit-bias", bias]


# ---- at a terminal


class Terminal:
    """A person at a terminal."""

    def __init__(self, folder: Path, *args: object, shell: str | None = None, **env: str) -> None:
        command = [sys.executable, "-m", "quoth", "chat", *map(str, args)]
        if shell is not None:
            command = ["/bin/sh", "-c", shell, "sh", *command]
        self.child = pexpect.spawn(
            command[0], command[1:], env=program_env(folder / "cache", env), cwd=str(folder), encoding="utf-8",
            codec_errors="replace", dimensions=(50, 200), timeout=120,
        )  # fmt: skip
        self.child.delaybeforesend = None
        # At Ctrl-C a terminal drops the output that it has not shown yet, unless it is told otherwise.
        settings = termios.tcgetattr(self.child.child_fd)
        settings[3] |= termios.NOFLSH
        termios.tcsetattr(self.child.child_fd, termios.TCSANOW, settings)
        self.prompt()

    def prompt(self) -> str:
        """Wait until something can be typed, and give what was shown before."""
        self.child.expect(r"(?:^|\r\n)(?:\x1b\[\?2004h)?> ")
        return self.since("")

    def since(self, expected: str) -> str:
        """What was shown up to the last match, with it; without what the line editor tells the terminal."""
        shown: str = self.child.before + expected
        return re.sub("\x1b\\[\\?2004[hl]\r?", "", shown.replace("\r\n", "\n"))

    def type(self, keys: str) -> str:
        """Type something and the return key; give what was shown up to the next prompt."""
        self.child.send(keys + "\r")
        return self.prompt()

    def end(self) -> int:
        """Press Ctrl-D and wait for the end."""
        self.child.sendeof()
        self.child.expect(pexpect.EOF)
        self.child.close()
        code: int = self.child.exitstatus
        return code


def test_a_person_talks_and_ends_with_ctrl_d(tiny_chat_path: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, tiny_chat_path, "-n", N)
    expected = answers(quoth.Model(tiny_chat_path), "the user", "again")
    assert "".join(visible(expected[0]).split()) in "".join(terminal.type("the user").split())
    assert "".join(visible(expected[1]).split()) in "".join(terminal.type("again").split())
    assert terminal.end() == 0


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on_from_what_was_shown(
    scripted: Scripted, tmp_path: Path
) -> None:
    terminal = Terminal(tmp_path, scripted.path, *endless(scripted))
    terminal.child.send("Hi\r")
    terminal.child.expect_exact("makes a dull")
    begun = terminal.since("makes a dull").rpartition("\n")[2]
    terminal.child.sendintr()
    shown, _, note = (begun + terminal.prompt()).replace("^C", "").partition("\n")
    assert note.strip() == "[stopped]"
    terminal.type("/save a.json")
    assert saved(tmp_path / "a.json")[-1] == {"role": "assistant", "content": shown}
    # The next answer is that of a conversation which came to the same messages undisturbed.
    terminal.child.send("Go on\r")
    terminal.child.expect_exact("makes a dull")
    terminal.child.sendintr()
    terminal.prompt()
    terminal.type("/save b.json")
    loaded = quoth.Conversation.load(tmp_path / "a.json", scripted.model(n_ctx=60000), speculation=None)
    there = saved(tmp_path / "b.json")
    again = loaded.reply(
        "Go on", max_tokens=len(json.loads((tmp_path / "b.json").read_text())["entries"][-1]["tokens"])
    )
    assert there == [*saved(tmp_path / "a.json"), {"role": "user", "content": "Go on"}, there[-1]]
    assert again.text == there[-1]["content"]
    assert terminal.end() == 0


def test_ctrl_c_while_typing_drops_the_input_alone(tiny_chat_path: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, tiny_chat_path, "-n", "2")
    terminal.child.send("half a thou")
    terminal.child.expect_exact("half a thou")
    terminal.child.sendintr()
    terminal.prompt()
    terminal.child.send('"""\rin a block\r')
    terminal.child.expect_exact(". in a block")
    terminal.child.expect_exact(". ")
    terminal.child.sendintr()
    terminal.prompt()
    terminal.type("whole")
    terminal.type("/save a.json")
    assert [m["content"] for m in saved(tmp_path / "a.json")][:-1] == ["whole"]
    assert terminal.end() == 0


def test_lines_can_be_edited_recalled_completed_pasted_and_gone_on_with(tiny_chat_path: Path, tmp_path: Path) -> None:
    (tmp_path / "notes of mine.txt").write_text("the user", encoding="utf-8")
    terminal = Terminal(tmp_path, tiny_chat_path, "-n", "2", "--ctx", "1024")
    terminal.type("wrld\x1b[D\x1b[D\x1b[Do\x01hello \x05!")  # left, left, left; to the beginning; to the end
    terminal.type("\x1b[A?")  # up
    terminal.type("one\\\rtwo")
    terminal.type("\x1b[A, three")
    terminal.type("\x1b[200~def f():\r\treturn 1\r\x1b[201~")
    terminal.child.send('"""\r/help\r')
    terminal.type('"""')
    terminal.type("\x1b[A!")
    assert "reference 1: notes of mine.txt" in terminal.type("/re\t\x15/ref no\t")
    terminal.type("/sav\ta.json")
    sent = [m["content"] for m in saved(tmp_path / "a.json")[::2]]
    assert sent == [
        "hello world!", "hello world!?", "one\ntwo", "one\ntwo, three", "def f():\n\treturn 1\n", "/help", "/help!",
    ]  # fmt: skip
    assert terminal.end() == 0


def test_errors_are_said_and_the_session_goes_on(tiny_chat_path: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, tiny_chat_path, "-n", "2", "--ctx", "64")
    assert "error: unknown command /etc/hosts, expected /help" in terminal.type("/etc/hosts is what?")
    assert "error: `none`: no such file" in terminal.type("/ref none")
    assert "expected at most 64" in terminal.type("x" * 100)
    assert "no answers yet" in terminal.type("/stats")
    assert "error" not in terminal.type("hi")
    assert "tokens a step" in terminal.type("/stats")
    terminal.child.send("/quit\r")
    terminal.child.expect(pexpect.EOF)
    terminal.child.close()
    assert terminal.child.exitstatus == 0


class Broken:
    """A talk with a defect, and what comes before and after it."""

    over = False

    def __init__(self) -> None:
        self.taken: list[str] = []

    def take(self, given: Input) -> None:
        self.taken.append(given.text)
        if given.text == "/bad":
            raise TypeError("what was never\nthought of \x1b[2J")


class Typed:
    """A user types a few lines."""

    reading = False

    def __init__(self, *lines: str, typed: bool = True) -> None:
        self.lines, self.typed = list(lines), typed

    def read(self) -> Input | None:
        return Input(self.lines.pop(0)) if self.lines else None


@pytest.mark.parametrize("debug", [False, True])
def test_a_defect_does_not_end_the_talk_of_somebody_who_types(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    monkeypatch.setenv("QUOTH_DEBUG", "1" if debug else "")
    talk = Broken()
    _converse(Typed("one", "/bad", "two"), talk)  # type: ignore[arg-type]
    assert talk.taken == ["one", "/bad", "two"]
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert "error: a defect of quoth: TypeError: what was never thought of ␛[2J" in said
    assert ("Traceback" in said) is debug
    assert ("(QUOTH_DEBUG=1 shows where)" in said) is not debug


def test_a_defect_ends_a_talk_over_a_pipe() -> None:
    talk = Broken()
    with pytest.raises(TypeError):
        _converse(Typed("/bad", "two", typed=False), talk)  # type: ignore[arg-type]
    assert talk.taken == ["/bad"]


def test_a_terminal_that_is_gone_ends_the_talk() -> None:
    class Gone(Typed):
        reading = True

        def read(self) -> Input | None:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        _converse(Gone(), Broken())  # type: ignore[arg-type]


def test_bytes_that_are_no_text_are_refused_at_a_terminal_whatever_the_locale(
    tiny_chat_path: Path, tmp_path: Path
) -> None:
    terminal = Terminal(tmp_path, tiny_chat_path, "-n", "2", LC_ALL="C")
    terminal.child.send("/system ")
    os.write(terminal.child.child_fd, b"\xff\r")
    assert "error: line 1 of stdin is not UTF-8: byte 0xff at 8" in terminal.prompt()
    assert "no system message" in terminal.type("/system")
    assert "error" not in terminal.type("hi")
    assert terminal.end() == 0


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_input, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0123456789"[:9] + b"\n" + bytes(11))))
    reader = _input.Reader([])
    assert reader.read() == Input("012345678")
    with pytest.raises(quoth.QuothError, match="line 2 of stdin has more than 10 bytes, expected fewer"):
        reader.read()


def test_what_a_model_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    pieces = [b"\x1b[31mred\x07", b"\x1b]0;title\x9c", b"\xc2\x9b2J\rback\x08", b"\tend", STOP]
    scripted = scripts.write(tmp_path / "model.gguf", load_synthetic(), more={"steering": pieces})
    bias = f"{scripted.tokens['steering'][0]}={BIAS}"
    terminal = Terminal(tmp_path, scripted.path, "--logit-bias", bias)
    shown = terminal.type("Hi").rpartition("Hi\n")[2]
    text = quoth.Model(scripted.path).conversation(sampling=scripted.say("steering")).reply("Hi").text
    assert {"\x1b", "\x07", "\x9b", "\r", "\x08"} <= set(text), "else the test proves nothing"
    assert shown == visible(text) + "\n"
    assert not set(shown) & {*map(chr, range(32)), "\x7f", *map(chr, range(128, 160))} - {"\t", "\n"}
    # Nor does what a file says that is shown.
    terminal.type("/save a.json")
    assert "\x1b" not in terminal.type("/load a.json")
    assert terminal.end() == 0


def test_answers_can_go_to_a_file_while_somebody_types(scripted: Scripted, tmp_path: Path) -> None:
    bias = f"{scripted.tokens['hello'][0]}={BIAS}"
    terminal = Terminal(tmp_path, scripted.path, "--logit-bias", bias, shell='"$@" > answers.txt')
    assert "Hello" not in terminal.type("Hi")
    terminal.type("/help")
    assert terminal.end() == 0
    assert (tmp_path / "answers.txt").read_text(encoding="utf-8") == "Hello, you there!.\n"


def test_drafts_can_be_shown(scripted: Scripted, tmp_path: Path) -> None:
    bias = f"{scripted.tokens['phrase'][0]}={BIAS}"
    terminal = Terminal(tmp_path, scripted.path, "--logit-bias", bias, "-n", "60", "--show-drafts")
    shown = terminal.type("Hi")
    assert "\x1b[32m" in shown
    assert "drafted characters: " in shown
    assert os.linesep not in shown.rpartition("drafted characters")[2].strip()
    assert terminal.end() == 0
