"""`quoth generate` prints the decoder's text: with speculation and without, piped and in a terminal, marked and not."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quoth
from program import Run, program_env, without_styles
from quoth.cli import main
from quoth.cli._console import visible
from quoth.cli._prompt import as_tokens, prompt_text
from quoth.cli._stream import Attribution
from quoth.results import Chunk

PROMPT = "one two one two one two "
TURN = [{"role": "user", "content": PROMPT}]
N = 40


def spoken(path: Path, tokens: list[int] | str, sampling: quoth.Sampling | None = None, **options: Any) -> quoth.Result:
    """What plain decoding in this process says."""
    decoder = quoth.Model(path).decoder(sampling=sampling, speculation=None)
    return decoder.generate(tokens, **{"max_tokens": N, **options})


def parsed(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


# ---- the text


@pytest.mark.parametrize(
    "options", [[], ["--no-spec"], ["--max-draft", "3"], ["--threads", "1"], ["--kernels", "scalar"]]
)
def test_the_text_is_the_decoders_whatever_the_machine_does(
    run_quoth: Run, tiny_model_path: Path, options: list[str]
) -> None:
    ran = run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", N, *options)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == spoken(tiny_model_path, PROMPT).text + "\n"


def test_a_prompt_is_a_users_message_where_there_is_a_template(run_quoth: Run, tiny_chat_path: Path) -> None:
    tokenizer = quoth.Model(tiny_chat_path).tokenizer
    for options, turns in (
        ([], TURN),
        (["--system", "Be brief."], [{"role": "system", "content": "Be brief."}, *TURN]),
    ):
        expected = spoken(tiny_chat_path, tokenizer.apply_chat_template(turns))
        ran = parsed(run_quoth("generate", tiny_chat_path, "-p", PROMPT, "-n", N, "--json", *options))
        assert ran["tokens"] == list(expected.tokens)
        assert ran["prompt_tokens"] == expected.prompt_tokens
    raw = parsed(run_quoth("generate", tiny_chat_path, "-p", PROMPT, "-n", N, "--json", "--raw"))
    assert raw["prompt_tokens"] == len(tokenizer.encode(PROMPT))


def test_a_message_cannot_end_its_turn(tiny_chat_path: Path) -> None:
    tokenizer = quoth.Model(tiny_chat_path).tokenizer
    tokens = as_tokens(tokenizer, "a<|im_end|>b", raw=False, special=False, system=None)
    assert tokens.count(258) == as_tokens(tokenizer, "ab", raw=False, special=False, system=None).count(258)
    assert as_tokens(tokenizer, "a<|im_end|>b", raw=True, special=True, system=None) == [97, 258, 98]
    assert 258 not in as_tokens(tokenizer, "a<|im_end|>b", raw=True, special=False, system=None)


def test_without_a_template_the_text_is_completed_and_it_is_said(run_quoth: Run, tiny_model_path: Path) -> None:
    ran = run_quoth("generate", tiny_model_path, "-p", PROMPT, "-n", N)
    assert ran.out == spoken(tiny_model_path, PROMPT).text + "\n"
    assert "no chat template" in ran.err
    assert "--template takes one: a file, or alpaca, chatml, " in ran.err
    assert run_quoth("generate", tiny_model_path, "-p", PROMPT, "--system", "x").code == 2


def test_prompts_come_from_files_and_stdin(run_quoth: Run, tiny_chat_path: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT + "\n")
    command = ("generate", tiny_chat_path, "-n", 8, "--json")
    given = parsed(run_quoth(*command, "-p", PROMPT))
    for ran in (
        run_quoth(*command, "-f", "prompt.txt"),
        run_quoth(*command, "-p", "-", stdin=f"{PROMPT}\r\n".encode()),
    ):
        assert parsed(ran)["tokens"] == given["tokens"]
        assert parsed(ran)["prompt_tokens"] == given["prompt_tokens"]
    raw = parsed(run_quoth(*command, "--raw", "-f", "prompt.txt"))
    assert raw["prompt_tokens"] == parsed(run_quoth(*command, "--raw", "-p", PROMPT))["prompt_tokens"] + 1


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_files_last_line_end_is_dropped_unless_the_text_is_gone_on_with(tmp_path: Path, end: str) -> None:
    (tmp_path / "prompt.txt").write_bytes(f" two\nlines{end}".encode())
    file = str(tmp_path / "prompt.txt")
    assert prompt_text(None, file, raw=True) == f" two\nlines{end}"
    assert prompt_text(None, file, raw=False) == " two\nlines" + ("\n" if end == "\n\n" else "")
    assert prompt_text(f"typed{end}", None, raw=False) == f"typed{end}"


def test_there_is_one_prompt(run_quoth: Run, tiny_model_path: Path) -> None:
    with pytest.raises(quoth.OptionsError, match="expected a prompt"):
        prompt_text("a", "b", raw=False)
    command = ("generate", tiny_model_path, "--raw", "-n", 4)
    ran = run_quoth(*command, stdin=b"")
    assert (ran.code, ran.out) == (2, "")
    assert "expected a prompt, either -p TEXT (- is stdin) or -f FILE, found neither" in ran.last_error
    assert run_quoth(*command, stdin=PROMPT.encode()).out == run_quoth(*command, "-p", PROMPT).out


def test_a_byte_order_mark_is_no_part_of_any_file(run_quoth: Run, tiny_model_path: Path, tmp_path: Path) -> None:
    mark = "\ufeff"
    for name, text in (("prompt.txt", PROMPT), ("t.jinja", "{{ messages[0].content }}"), ("ref.txt", PROMPT)):
        (tmp_path / name).write_text(mark + text, encoding="utf-8")
    ran = parsed(run_quoth("generate", tiny_model_path, "-f", "prompt.txt", "--template", "t.jinja", "-n", 4, "--json"))
    assert ran["prompt_tokens"] == len(PROMPT)
    chat = quoth.Model(tiny_model_path).conversation(chat_template="chatml")
    handle = chat.add_reference(tmp_path / "ref.txt")
    assert chat.references[handle] == len(PROMPT)
    for message in (PROMPT, mark + PROMPT):
        (tmp_path / "chat.json").unlink(missing_ok=True)
        lines = f"{message}\n/save chat.json\n".encode()
        assert run_quoth("chat", tiny_model_path, "--template", "chatml", "-n", 1, stdin=lines).code == 0
        assert (
            quoth.Conversation.load(tmp_path / "chat.json", quoth.Model(tiny_model_path)).messages[0]["content"]
            == PROMPT
        )


def test_a_template_is_chosen_by_name_or_file(run_quoth: Run, tiny_model_path: Path) -> None:
    tokenizer = quoth.Model(tiny_model_path).tokenizer
    ran = parsed(run_quoth("generate", tiny_model_path, "-p", PROMPT, "-n", 4, "--json", "--template", "llama3"))
    assert ran["prompt_tokens"] == len(tokenizer.apply_chat_template(TURN, chat_template="llama3"))
    ran = run_quoth("generate", tiny_model_path, "-p", PROMPT, "--template", "chatlm")
    assert ran.code == 2
    assert "--template is 'chatlm', expected a file, a template, or one of alpaca, chatml, " in ran.last_error
    assert run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "--template", "chatml").code == 2
    ran = run_quoth("generate", tiny_model_path, "-p", PROMPT, "--pre", "unheard-of")
    assert "`unheard-of` (argument pre) is unknown" in ran.last_error


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--temperature", "0.9", "--seed", "5"], {"temperature": 0.9, "seed": 5}),
        (["--temperature", "1.5", "--seed", "5", "--top-k", "9"], {"temperature": 1.5, "seed": 5, "top_k": 9}),
        (["--temperature", "1.5", "--seed", "5", "--top-p", "0.5"], {"temperature": 1.5, "seed": 5, "top_p": 0.5}),
        (["--temperature", "1.5", "--seed", "5", "--min-p", "0.2"], {"temperature": 1.5, "seed": 5, "min_p": 0.2}),
        (["--repeat-penalty", "2"], {"repeat_penalty": 2.0}),
        (["--repeat-penalty", "2", "--repeat-last-n", "3"], {"repeat_penalty": 2.0, "repeat_last_n": 3}),
        (["--frequency-penalty", "1"], {"frequency_penalty": 1.0}),
        (["--presence-penalty", "3"], {"presence_penalty": 3.0}),
        (["--logit-bias", "300=9.5", "--logit-bias", "464=-inf"], {"logit_bias": {300: 9.5, 464: -math.inf}}),
        (["--logit-bias", "65=1e9"], {"logit_bias": {65: 1e9}}),
    ],
)
def test_sampling_flags_are_the_librarys_options(
    tiny_model_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], options: dict[str, Any]
) -> None:
    expected = spoken(tiny_model_path, PROMPT, quoth.Sampling(**options))
    assert main(["generate", str(tiny_model_path), "--raw", "-p", PROMPT, "-n", str(N), "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == list(expected.tokens)
    assert expected.tokens != spoken(tiny_model_path, PROMPT).tokens, "the option makes no difference here"


def test_stops_end_the_text_and_are_named(run_quoth: Run, tiny_model_path: Path) -> None:
    whole = spoken(tiny_model_path, PROMPT).text
    stop = whole[len(whole) // 2 :][:3]
    ran = run_quoth(
        "generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", N, "--stop", "never seen", "--stop", stop, "--stats"
    )
    assert ran.out == whole[: whole.index(stop)] + "\n"
    assert f"at the text {stop!r}" in ran.err
    found = parsed(run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", N, "--stop", stop, "--json"))
    assert (found["finish_reason"], found["stop"]) == ("stop", stop)


def test_logprobs_are_those_of_the_library(run_quoth: Run, tiny_model_path: Path) -> None:
    expected = spoken(tiny_model_path, PROMPT, max_tokens=6, logprobs=3).logprobs
    assert expected is not None
    found = parsed(run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", 6, "--json", "--logprobs", 3))[
        "logprobs"
    ]
    assert [(e["token"], e["logprob"]) for e in found] == [(e.token, e.logprob) for e in expected]
    assert [[(t["token"], t["logprob"]) for t in e["top"]] for e in found] == [list(e.top) for e in expected]


def test_stats_go_to_stderr_and_references_are_sources(run_quoth: Run, tiny_model_path: Path, tmp_path: Path) -> None:
    text = spoken(tiny_model_path, PROMPT).text
    (tmp_path / "ref.txt").write_text(text, encoding="utf-8")
    ran = run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", N, "--ref", "ref.txt", "--stats")
    assert ran.out == text + "\n"
    for word in ("prompt", "decode", "gate", "conversation", "reference-", "recycling"):
        assert word in ran.err
    found = parsed(run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", N, "--ref", "ref.txt", "--json"))
    sources = found["stats"]["sources"]
    assert sum(source["accepted"] for source in sources.values()) == found["stats"]["accepted"]
    assert sum(name.startswith("reference-") for name in sources) == 1
    plain = parsed(run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", N, "--json", "--no-spec"))
    assert plain["tokens"] == found["tokens"]
    assert plain["stats"]["gate"]["state"] == "off"
    assert run_quoth("generate", tiny_model_path, "-p", "a", "--ref", "none.txt").code == 1


def test_a_context_that_is_full_ends_the_text(run_quoth: Run, tiny_model_path: Path) -> None:
    found = parsed(run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "--ctx", 32, "--json"))
    assert found["finish_reason"] == "context"
    ran = run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, "--ctx", 8)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1


# ---- marks


def chunks_of(path: Path, **options: Any) -> list[Chunk]:
    decoder = quoth.Model(path).decoder()
    decoder.add_reference(spoken(path, PROMPT, max_tokens=100).text)
    return list(decoder.stream(PROMPT, max_tokens=100, trace=True, **options))


@pytest.mark.parametrize("stop", ["", "<extra_151"])
def test_marked_pieces_join_to_the_text_and_are_the_drafted_tokens(tiny_model_path: Path, stop: str) -> None:
    tokenizer = quoth.Model(tiny_model_path).tokenizer
    attribution = Attribution(tokenizer)
    marked, whole, expected = "", "", ""
    for chunk in chunks_of(tiny_model_path, stop=stop or ()):
        parts = attribution.split(chunk)
        assert "".join(text for text, _ in parts) == chunk.text
        whole += chunk.text
        marked += "".join(text for text, source in parts if source is not None)
        expected += "".join(tokenizer.token_bytes(t).decode("latin-1") for t in chunk.tokens[: chunk.accepted])
    assert whole == spoken(tiny_model_path, PROMPT, max_tokens=100, stop=stop or ()).text
    assert "\ufffd" not in whole, "the model wrote half characters, which cannot be compared byte by byte"
    assert marked
    assert marked == expected or (stop and expected.startswith(marked))


class Letters:
    """A tokenizer in which token n is n letters long, and 0 shows nothing."""

    def stream(self) -> Letters:
        return self

    def push(self, token: int) -> str:
        return "x" * token


@given(st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=5), st.integers(0, 5), st.integers(0, 8)), max_size=12))
def test_text_that_lags_behind_its_tokens_keeps_its_source(steps: list[tuple[list[int], int, int]]) -> None:
    attribution = Attribution(Letters())  # type: ignore[arg-type]
    owners: list[str | None] = []
    shown = 0
    found: list[str | None] = []
    for number, (tokens, accepted, lag) in enumerate(steps):
        source = f"source-{number}"
        for i, token in enumerate(tokens):
            owners += [source if i < accepted else None] * token
        length = max(len(owners) - lag - shown, 0)
        shown += length
        chunk = Chunk("x" * length, tuple(tokens), number, len(tokens), min(accepted, len(tokens)), source)
        found += [owner for text, owner in attribution.split(chunk) for _ in text]
    assert found == owners[:shown]


def test_marks_change_nothing_but_themselves(run_quoth: Run, in_terminal: Run, tiny_model_path: Path) -> None:
    command = ("generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", 100)
    command += ("--temperature", "0.7", "--seed", "3", "--top-k", "2")
    plain = run_quoth(*command, "--no-spec").out
    piped = run_quoth(*command, "--show-drafts")
    assert piped.out == plain
    shown = in_terminal(*command, "--show-drafts")
    text, _, legend = shown.out.rpartition("drafted characters: ")
    assert without_styles(text) == visible(plain)
    assert "\x1b[3" in text, "nothing was marked"
    assert legend
    colourless = in_terminal(*command, "--show-drafts", env={"NO_COLOR": "1"})
    assert "\x1b[3m" in colourless.out or "\x1b[4m" in colourless.out
    assert not any(f"\x1b[{code}m" in colourless.out for code in range(30, 38))
    brackets = run_quoth(*command, "--mark-drafts")
    assert brackets.out != plain
    assert brackets.out.replace("[", "").replace("]", "") == plain.replace("[", "").replace("]", "")
    assert in_terminal(*command, "--show-drafts", env={"TERM": "dumb"}).out == visible(plain)


def test_what_a_model_writes_does_not_steer_a_terminal(in_terminal: Run, run_quoth: Run, tiny_model_path: Path) -> None:
    command = ("generate", tiny_model_path, "--raw", "-p", "a", "-n", 3, "--logit-bias", "27=1e9")
    assert run_quoth(*command).out == "\x1b\x1b\x1b\n"
    assert in_terminal(*command).out == "␛␛␛\n"


# ---- comparing


def test_comparing_finds_equal_tokens_and_both_speeds(run_quoth: Run, tiny_model_path: Path) -> None:
    command = ("generate", tiny_model_path, "--raw", "-p", PROMPT, "-n", N, "--compare", "--temperature", "0.8")
    found = parsed(run_quoth(*command, "--seed", 4, "--json"))
    expected = spoken(tiny_model_path, PROMPT, quoth.Sampling(temperature=0.8, seed=4))
    assert found["identical"] is True
    assert found["difference"] is None
    assert found["tokens"] == list(expected.tokens)
    assert found["speedup"]["n"] == 6
    assert found["speedup"]["low"] <= found["speedup"]["ratio"] <= found["speedup"]["high"]
    assert found["verdict"] in ("faster", "slower", "no difference")
    assert found["reason"]
    assert found["plain"]["gate"]["state"] == "off"
    page = run_quoth(*command, "--pairs", 3)
    assert page.code == 0
    assert page.err.startswith("seed ")
    assert re.search(r"\d tokens, identical in 6 runs", page.out)
    assert re.search(r"speculative decoding: no difference \(.+\)", page.out)


def test_comparing_names_the_first_token_that_differs(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quoth.cli import generate  # noqa: PLC0415

    honest = generate._decoder

    def other(model: quoth.Model, sampling: quoth.Sampling, speculation: Any, references: Any) -> quoth.Decoder:
        if speculation is not None:
            sampling = quoth.Sampling(logit_bias={expected.tokens[5]: -math.inf})
        return honest(model, sampling, speculation, references)

    expected = spoken(tiny_model_path, PROMPT)
    first = expected.tokens.index(expected.tokens[5])
    monkeypatch.setattr(generate, "_decoder", other)
    command = ["generate", str(tiny_model_path), "--raw", "-p", PROMPT, "-n", str(N), "--compare"]
    assert main(command) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"error: token {first} differs: plain {expected.tokens[5]} " in said.err
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["difference"]["at"] == first


# ---- interruptions

BEYOND = "warning: --ctx is {}, but the model was trained for 256 tokens: expect worse text beyond\n"
"""What is said, once, of a context that is longer than the random models were made for."""


def test_ctrl_c_ends_the_line_and_exits_with_130(in_terminal: Run, tiny_model_path: Path) -> None:
    # Token 65 is the letter A: an endless text that can be recognized.
    endless = ("generate", tiny_model_path, "--raw", "-p", "a", "-n", 10**6, "--ctx", 10**6, "--logit-bias", "65=1e9")
    ran = in_terminal(*endless, "--stats", keys=b"\x03", after="AAAA")
    assert ran.code == 130
    text, _, rest = ran.out.partition("^C")
    assert text.replace("\r\n", "\n").removeprefix(BEYOND.format(10**6)).strip("A") == ""
    # The terminal shows ^C at once; what was being written then comes behind it.
    assert rest.lstrip("A").startswith("\n")
    assert "interrupted" in rest
    assert "Traceback" not in ran.out


def test_an_interrupt_in_a_pipe_leaves_the_text_so_far(tmp_path: Path, tiny_model_path: Path) -> None:
    command = [sys.executable, "-m", "quoth", "generate", str(tiny_model_path), "--raw", "-p", "a", "-n", "1000000"]
    command += ["--ctx", "1000000", "--logit-bias", "65=1e9"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=program_env(tmp_path))
    assert child.stdout is not None
    assert child.stdout.read(4) == b"AAAA"
    os.kill(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out.lstrip(b"A") == b"\n"
    assert err.decode() == BEYOND.format(10**6)


def test_a_long_prompt_shows_a_bar_in_a_terminal_alone(in_terminal: Run, run_quoth: Run, tiny_model_path: Path) -> None:
    args = ["generate", str(tiny_model_path), "--raw", "-p", "word " * 220, "-n", "2", "--ctx", "4000"]
    args += ["--kernels", "scalar", "-t", "1"]
    code = f"from quoth.cli import _console, main; _console.PATIENCE_S = 0; main({args})"
    shown, piped = in_terminal(command=["-c", code]), run_quoth(*args)
    assert piped.err == BEYOND.format(4000)
    assert "/1100" in shown.out
    assert shown.out.endswith(visible(piped.out))


# ---- the real model


def test_a_real_model_quotes_and_says_the_same(run_quoth: Run, smollm2_path: Path) -> None:
    prompt = "Repeat this exactly, twice: the quick brown fox jumps over the lazy dog."
    fast = parsed(run_quoth("generate", smollm2_path, "-p", prompt, "-n", 60, "--json"))
    plain = parsed(run_quoth("generate", smollm2_path, "-p", prompt, "-n", 60, "--json", "--no-spec"))
    assert fast["text"] == plain["text"]
    assert fast["tokens"] == plain["tokens"]
    assert "quick brown fox" in fast["text"]
    assert fast["stats"]["accepted"] > 0
    assert fast["stats"]["steps"] < plain["stats"]["steps"]


# ---- constraints


def test_schemas_expressions_and_grammars_hold_on_the_command_line(
    run_quoth: Run, tiny_model_path: Path, tmp_path: Path
) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"type": "object", "properties": {"a": {"enum": [1, "é"]}}, "required": ["a"]}\n', "utf-8")
    grammar.write_text('start: ("ab" | "cd") "!"\n', "utf-8")
    command = ["generate", tiny_model_path, "--raw", "-p", PROMPT, "--temperature", "1.5", "--seed", "3", "-n", "300"]
    for options, constraint in [
        (["--json-schema", schema], quoth.json_schema(schema.read_text("utf-8"))),
        (["--regex", "[0-9]{4}"], quoth.regex("[0-9]{4}")),
        (["--lark", grammar], quoth.lark(grammar.read_text("utf-8"))),
        (["--regex", "[0-9]{4}", "--after", "e"], quoth.regex("[0-9]{4}", after="e")),
    ]:
        hot = quoth.Sampling(temperature=1.5, seed=3)
        expected = spoken(tiny_model_path, PROMPT, hot, constraint=constraint, max_tokens=300)
        ran = run_quoth(*command, *options)
        assert (ran.code, ran.err, ran.out) == (0, "", expected.text + "\n")
        found = parsed(run_quoth(*command, *options, "--json"))
        assert found["text"] == expected.text
    assert "ended     the constraint is complete\n" in run_quoth(*command, "--regex", "[0-9]{4}", "--stats").err
    same = run_quoth(*command, "--regex", "[0-9]{4}", "--compare", "--pairs", "3")
    assert same.code == 0, same.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--regex", "a", "--lark", "x"], "--json-schema, --regex and --lark do not go together"),
        (["--after", "x"], "--after needs --json-schema, --regex or --lark"),
        (["--regex", "a("], "regex: "),
        (["--json-schema", "-"], "json_schema at `#/type`"),
    ],
)
def test_constraints_that_make_no_sense_are_refused_on_the_command_line(
    run_quoth: Run, tiny_model_path: Path, options: list[str], message: str
) -> None:
    ran = run_quoth("generate", tiny_model_path, "--raw", "-p", PROMPT, *options, stdin=b'{"type": "strng"}')
    assert ran.code == 2
    assert message in " ".join(ran.err.split())
    assert ran.out == ""
