"""The compiled core: what crosses the boundary, and in which shape. Private; `quoth` is the public face.

Every class belongs to one caller at a time and raises `BusyError` for a second one. All of them raise the exceptions of
`quoth.errors`.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from quoth.options import DraftSource, Gate

__version__: str

_Tokens: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
_Progress: TypeAlias = Callable[[int, int], object]
_FinishReason: TypeAlias = Literal["stop", "length", "context"]

# Reason, stop id, index of the stop text.
_Finish: TypeAlias = tuple[_FinishReason, int | None, int | None]
# Log-probability of the chosen token, the best tokens with theirs.
_Logprobs: TypeAlias = tuple[float, list[tuple[int, float]]]
# Tokens, text, log-probabilities, drafted, accepted, source, finish.
_Step: TypeAlias = tuple[list[int], str, list[_Logprobs], int, int, str | None, _Finish | None]
# Name, drafts, drafted, accepted, reason.
_Source: TypeAlias = tuple[str, int, int, int, str | None]
# Name, shape (as GGUF says it, fastest axis first), type, bytes, offset in the data.
_Tensor: TypeAlias = tuple[str, list[int], str, int, int]

class _Sampling(Protocol):
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    repeat_last_n: int
    logit_bias: list[tuple[int, float]]
    banned: list[int]

class _Speculation(Protocol):
    max_draft: int
    min_draft: int | None
    min_match: int | None
    recycling: bool
    costs: list[tuple[int, float]] | None
    cost_provenance: str
    live_costs: bool
    gate: Gate

class _Request(Protocol):
    max_tokens: int
    stop_ids: list[int]
    stop_at_eog: bool
    stop_texts: list[bytes]
    logprobs: int | None
    trace: bool

class _Config(TypedDict):
    arch: str
    n_vocab: int
    n_ctx_train: int
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_expert: int
    n_expert_used: int

class _Stats(TypedDict):
    prefill_tokens: int
    prefill_ns: int
    cached_tokens: int
    steps: int
    verify_steps: int
    plain_steps: int
    committed: int
    draws: int
    drafted: int
    accepted: int
    bonus: int
    decode_ns: int
    draft_ns: int
    verify_ns: int
    sample_ns: int
    longest_draft: int
    tokens_per_step: float
    acceptance: float

class _GateStats(TypedDict):
    state: str
    estimated_speedup: float | None
    trips: int
    probes: int
    reopened: int
    closed_steps: int
    probe_in: int
    scale: float
    plain_ns: float | None
    costs: str
    reason: str | None

@final
class GgufFile:
    """An open file: metadata by key, tensors by description."""

    def __new__(cls, path: str | PathLike[str]) -> GgufFile: ...
    @property
    def version(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def paths(self) -> list[Path]: ...
    def keys(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: str, /) -> bool: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def tensors(self) -> list[_Tensor]: ...

@final
class Model:
    """Weights in memory."""

    def __new__(
        cls, file: GgufFile, n_ctx: int, threads: int, kernels: str | None, progress: _Progress | None
    ) -> Model: ...
    def config(self) -> _Config: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def kernels(self) -> str: ...
    @property
    def kernels_detail(self) -> str: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def load_ns(self) -> int: ...

@final
class Session:
    """A cache and its model."""

    def __new__(cls, model: Model, kv_type: str) -> Session: ...
    def __len__(self) -> int: ...
    def forward(self, tokens: _Tokens, rows: Literal["all", "last"]) -> NDArray[np.float32]: ...
    def best(self, tokens: _Tokens, k: int) -> list[list[int]]: ...
    def truncate(self, n: int) -> None: ...
    def fork(self, n: int) -> Session: ...
    def same_prefix(self, other: Session, n: int) -> bool: ...
    @property
    def memory_bytes(self) -> int: ...

@final
class Decoder:
    """A running session with a sampler and a source of drafts."""

    def __new__(
        cls,
        model: Model,
        kv_type: str,
        sampling: _Sampling,
        seed: int,
        speculation_args: _Speculation | None,
        source: DraftSource | None,
    ) -> Decoder: ...
    def begin(self, prompt: _Tokens, request: _Request, progress: _Progress | None) -> _Step: ...
    def step(self) -> _Step: ...
    def run(self) -> _Step: ...
    def stats(self) -> _Stats: ...
    def speculation_stats(self) -> tuple[_GateStats, list[_Source]] | None: ...
    def history(self) -> list[int]: ...
    def cached(self) -> int: ...
    def cache_bytes(self) -> int: ...
    def same_prefix(self, other: Decoder, n: int) -> bool: ...
    def reset(self) -> None: ...
    def rewind(self, n: int) -> None: ...
    def set_sampling(self, sampling: _Sampling, seed: int) -> None: ...
    def fork(self, speculation_args: _Speculation | None, source: DraftSource | None) -> Decoder: ...
    @property
    def has_cascade(self) -> bool: ...
    def references(self) -> list[int]: ...
    def add_reference(self, tokens: _Tokens) -> int: ...
    def remove_reference(self, handle: int) -> bool: ...
    def clear_references(self) -> None: ...

@final
class DraftIndex:
    """The drafting cascade without a model."""

    def __new__(cls, n_vocab: int, args: _Speculation) -> DraftIndex: ...
    def __len__(self) -> int: ...
    def observe(self, tokens: _Tokens) -> None: ...
    def suggest(self, context: _Tokens | None, max_tokens: int) -> list[int]: ...
    def observe_topk(self, rows: list[tuple[int, list[int]]]) -> None: ...
    def truncate_pending(self, n: int) -> None: ...
    def rebuild(self, history: _Tokens) -> None: ...
    def add_reference(self, tokens: _Tokens) -> int: ...
    def clear_references(self) -> None: ...
    def stats(self) -> list[_Source]: ...
    def index_bytes(self) -> int: ...

def check_sampling(args: _Sampling) -> None: ...
def check_speculation(args: _Speculation) -> None: ...
def replay_turns(
    turns: Sequence[tuple[_Tokens, _Tokens, _Tokens, int, bool]],
    stops: Sequence[int],
    n_vocab: int,
    args: _Speculation,
    plain_ns: int,
    draft_ns: int,
    true_costs: Sequence[tuple[int, float]] | None,
    references: Sequence[Sequence[int]],
    quote_conversation: bool,
) -> tuple[dict[str, Any], list[_Source]]: ...
def kernel_sets() -> list[tuple[str, str]]: ...
def default_threads() -> int: ...
def architectures() -> list[str]: ...
