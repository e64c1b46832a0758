"""GGUF files taken apart and put together with one thing changed: what tests of errors load.

A reader and a writer of their own, so that a file may say what no proper writer would write.
"""

from __future__ import annotations

import lzma
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import quoth

DATA = Path(__file__).parent / "data" / "models"

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
ALIGNMENT = 32


@dataclass
class Tensor:
    """One tensor: its shape fastest axis first, its type by ggml's number, its bytes."""

    shape: list[int]
    kind: int
    data: bytes


@dataclass
class Gguf:
    """A GGUF file in parts: values with their types; an array's value is its items' type and the items."""

    keys: dict[str, tuple[int, Any]] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    version: int = 3

    def set(self, key: str, kind: int, value: Any) -> Gguf:
        """Give a key a value."""
        self.keys[key] = (kind, value)
        return self

    def drop(self, *names: str) -> Gguf:
        """Take keys or tensors away."""
        for name in names:
            (self.keys if name in self.keys else self.tensors).pop(name)
        return self

    def packed(self) -> bytes:
        """The file."""
        out = [b"GGUF", struct.pack("<IQQ", self.version, len(self.tensors), len(self.keys))]
        for key, (kind, value) in self.keys.items():
            out += [_text(key), struct.pack("<I", kind), _value(kind, value)]
        offset = 0
        for name, tensor in self.tensors.items():
            out += [_text(name), struct.pack("<I", len(tensor.shape)), *(struct.pack("<Q", d) for d in tensor.shape)]
            out.append(struct.pack("<IQ", tensor.kind, offset))
            offset += -(-len(tensor.data) // ALIGNMENT) * ALIGNMENT
        head = b"".join(out)
        parts = [head, bytes(-len(head) % ALIGNMENT)]
        for tensor in self.tensors.values():
            parts += [tensor.data, bytes(-len(tensor.data) % ALIGNMENT)]
        return b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == ARRAY:
        of, items = value
        return struct.pack("<IQ", of, len(items)) + b"".join(_value(of, item) for item in items)
    return struct.pack(f"<{_PACK[kind]}", value)


def model(name: str = "llama-Q4_K_M") -> Gguf:
    """A model of `tests/data/models` in parts."""
    return taken_apart(model_bytes(name))


def model_bytes(name: str = "llama-Q4_K_M") -> bytes:
    """A model of `tests/data/models`."""
    return lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes())


def taken_apart(data: bytes) -> Gguf:
    """The parts of a proper file."""
    at = 8

    def number(code: str) -> Any:
        nonlocal at
        (found,) = struct.unpack_from(f"<{code}", data, at)
        at += struct.calcsize(f"<{code}")
        return found

    def text() -> str:
        nonlocal at
        n = number("Q")
        at += n
        return data[at - n : at].decode()

    def value(kind: int) -> Any:
        if kind == STRING:
            return text()
        if kind == ARRAY:
            of, n = number("I"), number("Q")
            return of, [value(of) for _ in range(n)]
        return number(_PACK[kind])

    file = Gguf(version=struct.unpack_from("<I", data, 4)[0])
    n_tensors, n_keys = number("Q"), number("Q")
    for _ in range(n_keys):
        key, kind = text(), number("I")
        file.keys[key] = (kind, value(kind))
    found = []
    for _ in range(n_tensors):
        name = text()
        shape = [number("Q") for _ in range(number("I"))]
        found.append((name, shape, number("I"), number("Q")))
    start = -(-at // ALIGNMENT) * ALIGNMENT
    ends = [*sorted(offset for *_, offset in found)[1:], len(data) - start]
    following = dict(zip(sorted(offset for *_, offset in found), ends, strict=True))
    for name, shape, kind, offset in found:
        file.tensors[name] = Tensor(shape, kind, data[start + offset : start + following[offset]])
    return file


def load(path: Path | str, **options: Any) -> quoth.Model:
    """A model of little cost."""
    return quoth.Model(path, n_ctx=64, threads=1, **options)


def check_refused(folder: Path, file: Gguf | bytes, message: str) -> None:
    """Load a file and expect a `ModelFileError` that names it and says `message`."""
    path = folder / "model.gguf"
    path.write_bytes(file.packed() if isinstance(file, Gguf) else file)
    with pytest.raises(quoth.ModelFileError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {message}"
