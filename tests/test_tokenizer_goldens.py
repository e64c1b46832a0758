"""Token ids equal those of llama.cpp and of the models' own tokenizers, for every kind of vocabulary."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quoth.errors import TokenizerError
from quoth.tokenizer import Tokenizer
from vocabularies import SHARED, goldens, read_goldens, read_metadata, tiny_goldens, tiny_vocabulary, vocabulary

VOCABULARIES = ["gpt-2", "llama-spm", "llama-bpe", "qwen2", "qwen35", "gemma-4"]
TINY = ["gemma3", "gemma4", "llama", "llama3", "qwen2", "qwen35"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_line_has_the_expected_ids_and_decodes_to_itself(name):
    tokenizer = Tokenizer.from_metadata(vocabulary(name))
    for text, ids in goldens(name):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", TINY)
def test_tiny_vocabularies_have_the_expected_ids_with_special_tokens_parsed(name):
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary(name))
    cases = tiny_goldens(name)
    assert len(cases) > 10
    for text, ids in cases:
        assert tokenizer.encode(text, special=True) == ids, text
        assert tokenizer.decode(ids, skip_special=False) == text


@pytest.mark.parametrize(
    "name", ["gemma3", "gemma4", "gemma4moe", "llama", "llama3", "qwen2", "qwen3", "qwen3moe", "qwen35"]
)
def test_model_files_have_the_expected_ids(name):
    path = SHARED / name / f"{name}.tokenizer.json"
    if not path.exists():
        pytest.skip(f"the shared fixtures are not here ({path})")
    tokenizer = Tokenizer.from_metadata(read_metadata(next(path.parent.glob("*-F16.gguf"))))
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        assert tokenizer.encode(case["text"], special=True) == case["hf"] == case["llamacpp"], case["text"]


def test_vocabularies_of_a_folder_have_the_expected_ids():
    """`QUOTH_VOCABULARIES` names a folder of `.gguf`, `.inp` and `.out` files: `models` of llama.cpp's source."""
    folder = os.environ.get("QUOTH_VOCABULARIES")
    if not folder:
        pytest.skip("QUOTH_VOCABULARIES names no folder of vocabularies with texts and their ids")
    agree, refused = 0, []
    for path in sorted(Path(folder).glob("*.gguf.inp")):
        try:
            tokenizer = Tokenizer.from_metadata(read_metadata(path.with_suffix("")))
        except TokenizerError as error:
            refused.append(str(error))
            continue
        agree += 1
        for text, ids in read_goldens(path, path.with_suffix(".out")):
            assert tokenizer.encode(text) == ids, (path.name, text)
    assert agree >= 14
    assert all("vocabulary `bert` is unknown" in message for message in refused)


# Faults that users met in other engines (tests name the report's number).


def test_bug_23_qwen2_keeps_an_arrow_whole_and_a_line_end_with_its_colon():
    tokenizer = Tokenizer.from_metadata(vocabulary("qwen2"))
    assert tokenizer.encode("->") == [405]
    assert tokenizer.encode("(x):\n") == [2075, 982]


@pytest.mark.parametrize("pre", ["mistral-bpe", "foo", "", "Qwen2", None])
def test_bug_24_an_unknown_or_missing_splitter_is_refused_by_name_with_the_known_ones(pre):
    metadata = {**tiny_vocabulary("qwen2"), "tokenizer.ggml.pre": pre}
    if pre is None:
        del metadata["tokenizer.ggml.pre"]
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_metadata(metadata)
    message = str(caught.value)
    assert "does not name its splitter" in message if pre is None else f"`{pre}`" in message
    assert "tokenizer.ggml.pre" in message
    assert "pre=" in message
    for known in ("qwen2", "llama-bpe", "gpt-2", "smollm", "tekken"):
        assert known in message


@pytest.mark.parametrize("pre", ["foo", None, "llama-bpe"])
def test_bug_24_the_override_gives_the_ids_of_a_file_that_names_its_splitter_rightly(pre):
    wrong = {**vocabulary("gpt-2"), "tokenizer.ggml.pre": pre}
    tokenizer = Tokenizer.from_metadata(wrong, pre="gpt-2")
    assert tokenizer.pre == "gpt-2"
    assert [tokenizer.encode(text) for text, _ in goldens("gpt-2")] == [ids for _, ids in goldens("gpt-2")]


def test_bug_24_a_known_but_wrong_splitter_does_change_ids_so_the_refusal_matters():
    wrong = Tokenizer.from_metadata(vocabulary("gpt-2"), pre="llama-bpe")
    assert [wrong.encode(text) for text, _ in goldens("gpt-2")] != [ids for _, ids in goldens("gpt-2")]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("llama-bpe", {"7": "7", "42": "42", "333": "333", "3333": "333 3", "1234567": "123 456 7"}),
        ("qwen2", {"7": "7", "42": "4 2", "333": "3 3 3", "3333": "3 3 3 3", "1234567": "1 2 3 4 5 6 7"}),
        ("smollm", {"7": "7", "42": "4 2", "3333": "3 3 3 3", "1234567": "1 2 3 4 5 6 7"}),
        ("gpt-2", {"7": "7", "42": "42", "3333": "3333", "1234567": "1234567"}),
        ("deepseek-v3", {"42": "42", "3333": "333 3", "1234567": "123 456 7"}),
        ("superbpe", {"42": "42", "3333": "3 333", "1234567": "1 234 567"}),
        ("tiny_aya", {"42": "42", "3333": "3 333", "1234567": "1 234 567"}),
        ("afmoe", {"42": "42", "3333": "3 333", "1234567": "1 234 567"}),
        ("falcon", {"42": "42", "3333": "333 3", "1234567": "123 456 7"}),
        ("tekken", {"42": "4 2", "3333": "3 3 3 3"}),
        ("gpt-4o", {"42": "42", "3333": "333 3", "1234567": "123 456 7"}),
    ],
)
def test_bug_26_digits_are_grouped_as_the_splitter_says(pre, expected):
    for digits, groups in expected.items():
        metadata = digit_vocabulary(digits)
        ids = Tokenizer.from_metadata(metadata, pre=pre).encode(digits)
        assert " ".join(metadata["tokenizer.ggml.tokens"][id] for id in ids) == groups


def digit_vocabulary(digits: str) -> dict:
    """A vocabulary that joins any digits which a splitter leaves together, so that only the splitter parts them."""
    substrings = {digits[i:j] for i in range(len(digits)) for j in range(i + 1, len(digits) + 1)}
    tokens = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"] + sorted(s for s in substrings if len(s) > 1)
    merges = [f"{s[:k]} {s[k:]}" for s in sorted(substrings, key=len) for k in range(1, len(s))]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges}


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
def test_bug_26_sums_of_numbers_have_the_reference_ids(name):
    expected = {
        "llama-bpe": ["What", "Ġis", "Ġ", "333", "3", "+", "777", "?"],
        "qwen2": ["What", "Ġis", "Ġ", "3", "3", "3", "3", "+", "7", "7", "7", "?"],
    }[name]
    tokenizer = Tokenizer.from_metadata(vocabulary(name))
    assert [tokenizer.token_text(id) for id in tokenizer.encode("What is 3333+777?")] == expected
