"""Vocabularies and texts for the tokenizer's tests: nothing here uses the package under test."""

from __future__ import annotations

import json
import lzma
import os
import struct
import sysconfig
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
DATA = HERE / "data" / "vocab"
SHARED = Path(os.environ.get("QUOTH_SHARED", HERE.parent.parent / "shared")) / "fixtures"
Metadata = dict[str, Any]


def read_metadata(path: Path) -> Metadata:
    """All metadata of a GGUF file, arrays as lists; a path that ends in .xz is unpacked."""
    data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    at = 0

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        size = struct.calcsize("<" + form)
        at += size
        return struct.unpack("<" + form, data[at - size : at])

    def text() -> str:
        nonlocal at
        (length,) = struct.unpack_from("<Q", data, at)
        at += 8 + length
        return data[at - length : at].decode()

    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind: int) -> Any:
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("IQ")
            return list(take(f"{n}{forms[inner]}")) if inner in forms else [value(inner) for _ in range(n)]
        return take(forms[kind])[0]

    magic, version, _, n_entries = take("4sIQQ")
    assert magic == b"GGUF", path
    assert version in (2, 3), path
    metadata = {}
    for _ in range(n_entries):
        key = text()
        metadata[key] = value(take("I")[0])
    return metadata


@cache
def vocabulary(name: str) -> Metadata:
    """Metadata of a vocabulary in tests/data or among the shared fixtures; skips the test where that is missing."""
    if name == "qwen35":
        return {**vocabulary("qwen2"), "tokenizer.ggml.pre": "qwen35"}
    return read_metadata(_find(name, ".gguf.xz"))


def goldens(name: str) -> list[tuple[str, list[int]]]:
    """Texts with the ids that llama.cpp and the model's own tokenizer give them."""
    return read_goldens(_find(name, ".inp"), _find(name, ".out"))


def read_goldens(inputs: Path, outputs: Path) -> list[tuple[str, list[int]]]:
    """Texts of one file with their ids in another, as llama.cpp keeps them."""
    texts = inputs.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    ids = [[int(id) for id in line.split()] for line in outputs.read_text().split("\n")]
    texts += [""] * (len(ids) - len(texts))  # behind the last line end stands an empty text, not always written down
    assert len(texts) == len(ids) > 40
    assert all(bool(text) == bool(line) for text, line in zip(texts, ids, strict=True))
    return list(zip(texts, ids, strict=True))


@cache
def tiny_vocabulary(name: str) -> Metadata:
    """Metadata of a vocabulary of 512 tokens: gemma3, gemma4, llama, llama3, qwen2 or qwen35."""
    return json.loads((DATA / f"tiny-{name}.json").read_text(encoding="utf-8"))["metadata"]


def tiny_goldens(name: str) -> list[tuple[str, list[int]]]:
    """Texts with their ids in it, special tokens parsed."""
    cases = json.loads((DATA / f"tiny-{name}.json").read_text(encoding="utf-8"))["cases"]
    return [(case["text"], case["ids"]) for case in cases]


def _find(name: str, suffix: str) -> Path:
    shared = SHARED / "vocab" / f"ggml-vocab-{name}{suffix if suffix == '.gguf.xz' else '.gguf' + suffix}"
    for path in (DATA / f"{name}{suffix}", shared):
        if path.exists():
            return path
    pytest.skip(f"the large vocabularies are not here ({shared}); QUOTH_SHARED names their folder")


@cache
def mixed_text(n_bytes: int = 1_000_000) -> str:
    """Code, prose, names of characters in many scripts, emoji, odd space and line ends: about `n_bytes` of UTF-8."""
    library = Path(sysconfig.get_paths()["stdlib"])
    code = [(library / name).read_text(encoding="utf-8", errors="replace") for name in
            ("argparse.py", "typing.py", "json/decoder.py", "html/entities.py", "email/_header_value_parser.py",
             "idlelib/HISTORY.txt", "pydoc_data/topics.py", "turtle.py", "decimal.py", "unittest/mock.py")
            if (library / name).exists()]  # fmt: skip
    blocks = [(0x21, 0x250), (0x370, 0x530), (0x5D0, 0x5EB), (0x620, 0x64B), (0x905, 0x940), (0xE01, 0xE3B),
              (0x1F300, 0x1F650), (0x3041, 0x30FF), (0x4E00, 0x5200),
              (0xAC00, 0xAE00), (0x2190, 0x2400), (0x2150, 0x2180)]  # fmt: skip
    names = [
        f"{chr(point)}\t{unicodedata.name(chr(point), '?')} = {point}"
        for first, end in blocks
        for point in range(first, end)
        if unicodedata.category(chr(point)) != "Cn"
    ]
    odd = [
        "It's 3333+777 = 4110; I'LL say 1234567890 don't DON'T 'S 'tis we\u2019re\r\n\r\n\t\t  x\u00a0y\u3000z\u2028w ",
        "\U0001f44d\U0001f3fd\U0001f1fa\U0001f1f8\u2764\ufe0f \u0915\u094d\u0937\u093f e\u0301a\u0308 \ufdfa\x85 ",
        "x=1;;y -> z::<T>(){}[]!!!  \n \n  \n\n\n    return;\x0b\x0c\x1f end \u4e2d\u6587\uff0c\u6df7\u6392abc1\u3002",
    ]
    text = "\n".join(names) + "\r\n".join(odd * 40) + "".join(code)
    text = (text * (1 + n_bytes // len(text.encode())))[:n_bytes]
    while len(text.encode()) > n_bytes:
        text = text[: len(text) - max(1, (len(text.encode()) - n_bytes) // 4)]
    return text


def sentencepiece_model(metadata: Mapping[str, Any]) -> bytes:
    """A sentencepiece model file of the same vocabulary: pairs by score, byte fallback, text taken as it is."""

    def number(value: int) -> bytes:
        out = b""
        while value > 0x7F:
            out += bytes((value & 0x7F | 0x80,))
            value >>= 7
        return out + bytes((value,))

    def field(tag: int, value: bytes | int | float) -> bytes:
        if isinstance(value, bytes):
            return number(tag << 3 | 2) + number(len(value)) + value
        if isinstance(value, float):
            return number(tag << 3 | 5) + struct.pack("<f", value)
        return number(tag << 3) + number(value)

    def parts() -> Iterator[bytes]:
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        for token, score, kind in zip(tokens, metadata["tokenizer.ggml.scores"], types, strict=True):
            yield field(1, field(1, token.encode()) + field(2, float(score)) + field(3, kind))
        unknown = types.index(2)
        trainer = (
            field(3, 2) + field(35, 1) + field(40, unknown) + field(41, 1) + field(42, 2) + field(43, (1 << 64) - 1)
        )
        yield field(2, trainer + field(45, tokens[unknown].encode()))
        yield field(3, field(1, b"identity") + field(3, 0) + field(4, 0) + field(5, 1))

    return b"".join(parts())
