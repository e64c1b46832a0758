"""GGUF language models on a CPU, answering faster by quoting what they have seen, without changing a token.

The parts: `Model` loads a file and makes the rest; `Decoder` turns prompts into text; `Conversation` holds the turns of
a chat; `Session` is the bare machine, rows of tokens in and rows of logits out; `Tokenizer` turns text into tokens;
`DraftIndex` is the drafting alone, for other engines.
"""

from quoth._core import __version__
from quoth.answer import Answer
from quoth.conversation import Conversation
from quoth.decoder import Chunk, Decoder, Result, TokenLogprobs
from quoth.draft_index import DraftIndex
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
from quoth.options import DraftSource, Gate, Sampling, Speculation
from quoth.stats import GateStats, SourceStats, Stats
from quoth.tokenizer import Tokenizer

__all__ = [
    "Answer",
    "BusyError",
    "Chunk",
    "ContextFullError",
    "Conversation",
    "Decoder",
    "DraftIndex",
    "DraftSource",
    "Gate",
    "GateStats",
    "InternalError",
    "Model",
    "ModelFileError",
    "OptionsError",
    "QuothError",
    "Result",
    "Sampling",
    "Session",
    "SourceStats",
    "Speculation",
    "Stats",
    "TokenLogprobs",
    "Tokenizer",
    "TokenizerError",
    "__version__",
]
