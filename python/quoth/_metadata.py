"""The metadata of a GGUF file as a mapping.

In: an open file. Out: keys and values to everything that reads them one by one; the file itself to the core, which
reads whole vocabularies without a detour through Python's lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from quoth import _core

__all__ = ["Metadata"]


class Metadata(Mapping[str, Any]):
    """The keys and values of a GGUF file, in its order. Arrays are lists; text that is not UTF-8 is bytes."""

    def __init__(self, file: _core.GgufFile) -> None:
        self.file: Final = file

    def __getitem__(self, key: str) -> Any:
        return self.file[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.keys())

    def __len__(self) -> int:
        return len(self.file)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self.file
