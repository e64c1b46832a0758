"""GGUF language models on a CPU, answering faster by quoting what they have seen, without changing a token.

The parts: `Model` loads a file and makes sessions; `Session` is the bare machine, rows of tokens in and rows of logits out; `Tokenizer` turns text into tokens.
"""

from quoth._core import __version__
from quoth.errors import (
    BusyError,
    ContextFullError,
    InternalError,
    ModelFileError,
    OptionsError,
    QuothError,
    TokenizerError,
)
from quoth.model import Model, Session
from quoth.tokenizer import Tokenizer

__all__ = [
    "BusyError",
    "ContextFullError",
    "InternalError",
    "Model",
    "ModelFileError",
    "OptionsError",
    "QuothError",
    "Session",
    "Tokenizer",
    "TokenizerError",
    "__version__",
]
