"""GGUF language models on a CPU, answering faster by quoting what they have seen, without changing a token.

The parts: `Model` loads a file and makes the rest; `Decoder` turns prompts into text; `Conversation` holds the turns of
a chat; `Session` is the bare machine, rows of tokens in and rows of logits out; `Tokenizer` turns text into tokens;
`DraftIndex` is the drafting alone, for other engines.

Each is imported when it is first named: the command line has to be able to catch Ctrl-C before anything takes time.
"""

TYPE_CHECKING = False  # importing it from `typing` would take longer than all else here

if TYPE_CHECKING:
    from quoth._core import __version__
    from quoth.answer import Answer
    from quoth.constraints import Constraint, choice, json_object, json_schema, lark, regex
    from quoth.conversation import Conversation
    from quoth.decoder import Decoder
    from quoth.draft_index import DraftIndex
    from quoth.engine import Engine, Generation
    from quoth.errors import (
        BusyError,
        ClosedError,
        ContextFullError,
        InternalError,
        ModelFileError,
        OptionsError,
        QuothError,
        TokenizerError,
    )
    from quoth.model import Model
    from quoth.options import DraftSource, Gate, Sampling, Speculation
    from quoth.request import EngineOptions, GenerateOptions, StreamOptions
    from quoth.results import Chunk, Result, TokenLogprobs
    from quoth.session import Session
    from quoth.stats import GateStats, SourceStats, Stats
    from quoth.tokenizer import Tokenizer
    from quoth.tools import ToolCall, Tools

_PLACES = {
    "_core": ("__version__",),
    "answer": ("Answer",),
    "constraints": ("Constraint", "choice", "json_object", "json_schema", "lark", "regex"),
    "conversation": ("Conversation",),
    "decoder": ("Decoder",),
    "draft_index": ("DraftIndex",),
    "errors": (
        "BusyError",
        "ClosedError",
        "ContextFullError",
        "InternalError",
        "ModelFileError",
        "OptionsError",
        "QuothError",
        "TokenizerError",
    ),
    "engine": ("Engine", "Generation"),
    "model": ("Model",),
    "options": ("DraftSource", "Gate", "Sampling", "Speculation"),
    "request": ("EngineOptions", "GenerateOptions", "StreamOptions"),
    "results": ("Chunk", "Result", "TokenLogprobs"),
    "session": ("Session",),
    "stats": ("GateStats", "SourceStats", "Stats"),
    "tokenizer": ("Tokenizer",),
    "tools": ("ToolCall", "Tools"),
}

__all__ = [
    "Answer",
    "BusyError",
    "Chunk",
    "ClosedError",
    "Constraint",
    "ContextFullError",
    "Conversation",
    "Decoder",
    "DraftIndex",
    "DraftSource",
    "Engine",
    "EngineOptions",
    "Gate",
    "GateStats",
    "GenerateOptions",
    "Generation",
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
    "StreamOptions",
    "TokenLogprobs",
    "Tokenizer",
    "TokenizerError",
    "ToolCall",
    "Tools",
    "__version__",
    "choice",
    "json_object",
    "json_schema",
    "lark",
    "regex",
]

if not TYPE_CHECKING:  # a checker shall know the names, and no others

    def __getattr__(name):
        """The module of that name, or what one of the modules has under it."""
        from importlib import import_module  # noqa: PLC0415

        if name in _PLACES:
            return import_module(f"{__name__}.{name}")
        for place, names in _PLACES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(f"{__name__}.{place}"), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
