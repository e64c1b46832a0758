"""`quoth tokenize` prints what the tokenizer gives, byte for byte, also from files without weights."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from program import ROOT, Run
from quoth import _core
from quoth.model import Metadata
from quoth.tokenizer import Tokenizer

VOCAB = ROOT / "tests" / "data" / "vocab"


@pytest.fixture(scope="module", params=["gpt-2", "llama-spm"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds a vocabulary alone."""
    path = tmp_path_factory.mktemp("vocab") / f"{request.param}.gguf"
    path.write_bytes(lzma.decompress((VOCAB / f"{request.param}.gguf.xz").read_bytes()))
    return path


def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_metadata(Metadata(_core.GgufFile(path)))


def test_ids_are_those_of_the_reference(run_quoth: Run, vocabulary: Path) -> None:
    texts = (VOCAB / f"{vocabulary.stem}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (VOCAB / f"{vocabulary.stem}.out").read_text(encoding="utf-8").splitlines()
    longest = max(range(len(lines)), key=lambda i: len(texts[i]))
    ran = run_quoth("tokenize", vocabulary, "-", stdin=texts[longest].encode())
    assert ran.code == 0
    assert ran.out.split() == lines[longest].split()
    assert ran.out.count("\n") == len(ran.out.split())


def test_line_ends_and_odd_characters_come_through(run_quoth: Run, vocabulary: Path, tmp_path: Path) -> None:
    text = "a\r\nb\rc\n\n d\u2028\x00\x1b[2J ẅ 🙂\n"
    (tmp_path / "text").write_bytes(text.encode())
    from_file = run_quoth("tokenize", vocabulary, tmp_path / "text")
    from_stdin = run_quoth("tokenize", vocabulary, "-", stdin=text.encode())
    expected = tokenizer(vocabulary).encode(text)
    assert [int(line) for line in from_file.out.splitlines()] == expected
    assert from_stdin.out == from_file.out
    back = run_quoth("tokenize", vocabulary, "-", "--decode", stdin=from_file.out.encode())
    assert back.out == text


def test_decoding_gives_the_bytes_also_where_they_are_no_text(tiny_model_path: Path, run_quoth: Run) -> None:
    # The first 256 tokens of this vocabulary are the bytes.
    ran = run_quoth("tokenize", tiny_model_path, "-", "--decode", stdin=b"195, 188\n65\n")
    assert ran.out == "üA"
    assert run_quoth("tokenize", tiny_model_path, "-", "--decode", stdin=b"").out == ""


def test_half_a_character_is_decoded_to_its_byte(tiny_model_path: Path, tmp_path: Path) -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    from program import program_env  # noqa: PLC0415

    command = [sys.executable, "-m", "quoth", "tokenize", str(tiny_model_path), "-", "--decode"]
    done = subprocess.run(command, input=b"255 65", capture_output=True, env=program_env(tmp_path), check=True)
    assert done.stdout == b"\xffA"


def test_control_tokens_are_made_and_shown_only_on_request(run_quoth: Run, tiny_model_path: Path) -> None:
    text = b"a<|endoftext|>"
    assert run_quoth("tokenize", tiny_model_path, "-", "--special", stdin=text).out.split() == ["97", "256"]
    assert "256" not in run_quoth("tokenize", tiny_model_path, "-", stdin=text).out.split()
    assert run_quoth("tokenize", tiny_model_path, "-", "--decode", stdin=b"97 256").out == "a"
    assert run_quoth("tokenize", tiny_model_path, "-", "--decode", "--special", stdin=b"97 256").out == text.decode()


def test_bos_goes_in_front(run_quoth: Run, tiny_model_path: Path) -> None:
    assert run_quoth("tokenize", tiny_model_path, "-", "--bos", stdin=b"a").out.split() == ["256", "97"]


def test_pieces_are_json_and_join_to_the_text(run_quoth: Run, tiny_model_path: Path) -> None:
    text = 'tab\t "quoted" \x1b\x7f\n'
    ran = run_quoth("tokenize", tiny_model_path, "-", "--pieces", stdin=text.encode())
    rows = [line.split("\t", 1) for line in ran.out.splitlines()]
    assert "".join(json.loads(piece) for _, piece in rows) == text
    assert [int(id) for id, _ in rows] == tokenizer(tiny_model_path).encode(text)
    assert "\x7f" not in ran.out


def test_the_splitter_can_be_named(run_quoth: Run, tiny_model_path: Path) -> None:
    assert run_quoth("tokenize", tiny_model_path, "-", "--pre", "gpt-2", stdin=b"a").out == "97\n"
    ran = run_quoth("tokenize", tiny_model_path, "-", "--pre", "no such", stdin=b"a")
    assert ran.code == 1
    assert "no such" in ran.last_error


@pytest.mark.parametrize(
    ("args", "stdin", "said"),
    [
        (["--decode"], b"1 2 three", "word 2 of the list of ids is 'three', expected a whole number"),
        (["--decode"], b"1 512", "expected a token id in 0 to 511, found 512"),
        (["--decode"], b"-1", "expected a token id in 0 to 511, found -1"),
    ],
)
def test_what_cannot_be_tokenized_is_named(
    run_quoth: Run, tiny_model_path: Path, args: list[str], stdin: bytes, said: str
) -> None:
    ran = run_quoth("tokenize", tiny_model_path, "-", *args, stdin=stdin)
    assert (ran.code, ran.out, ran.err) == (1, "", f"error: {said}\n")


def test_decoded_text_does_not_steer_a_terminal(in_terminal: Run, tiny_model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("27 91 50 74 65")
    assert in_terminal("tokenize", tiny_model_path, tmp_path / "ids", "--decode").out == "␛[2JA"


def test_a_text_that_is_not_utf8_is_refused_and_a_byte_order_mark_is_no_text(
    run_quoth: Run, tiny_model_path: Path
) -> None:
    ran = run_quoth("tokenize", tiny_model_path, "-", stdin=b"a\xffb")
    assert (ran.code, ran.err) == (2, "error: the text in stdin is not UTF-8: byte 0xff at 1\n")
    assert run_quoth("tokenize", tiny_model_path, "-", stdin=b"\xef\xbb\xbfa").out == "97\n"
