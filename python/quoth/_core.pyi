"""The compiled core: what crosses the boundary, and in which shape. Private; `quoth` is the public face.

Every class belongs to one caller at a time and raises `BusyError` for a second one. All of them raise the exceptions of
`quoth.errors`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, final

import numpy as np
from numpy.typing import NDArray

__version__: str

_Tokens: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
_Progress: TypeAlias = Callable[[int, int], object]

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
    gate: Any
    drafters: list[Drafter]

class _Constraint(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def texts(self) -> Sequence[str]: ...
    @property
    def whitespace(self) -> bool: ...
    @property
    def after(self) -> str | None: ...

class _Request(Protocol):
    max_tokens: int
    stop_ids: list[int]
    stop_at_eog: bool
    stop_texts: list[bytes]
    logprobs: int | None
    trace: bool
    sampling: Any
    seed: int
    constraint: Any

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

class _Drafter(TypedDict):
    kind: str
    n_layer: int
    n_draft: int
    taps: list[int]
    weight_bytes: int
    lent_embedding: bool
    lent_output: bool
    load_ns: int

class _Trace(TypedDict):
    logits: NDArray[np.float32]
    states: NDArray[np.float32]
    guesses: list[int]

@final
class GgufFile:
    """An open file: metadata by key, tensors by description."""

    def __new__(cls, path: str | PathLike[str]) -> GgufFile: ...
    version: Final[int]
    alignment: Final[int]
    n_bytes: Final[int]
    paths: Final[list[Path]]
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
    def token_ids(self, tokens: _Tokens) -> list[int]: ...
    def compile(self, constraint: _Constraint) -> None: ...
    n_ctx: Final[int]
    n_vocab: Final[int]
    threads: Final[int]
    kernels: Final[str]
    kernels_detail: Final[str]
    weight_bytes: Final[int]
    load_ns: Final[int]

@final
class Tokenizer:
    """A vocabulary and its tokenizer."""

    def __new__(cls, metadata: GgufFile | Mapping[str, Any], pre: str | None) -> Tokenizer: ...
    model: Final[str]
    pre: Final[str | None]
    n_vocab: Final[int]
    add_bos: Final[bool]
    add_eos: Final[bool]
    add_space_prefix: Final[bool]
    eog_ids: Final[list[int]]
    suppressed_ids: Final[list[int]]
    roles: Final[list[tuple[str, int]]]
    control_texts: Final[list[str]]
    def token_id(self, text: str) -> int | None: ...
    def token_text(self, id: int) -> str: ...
    def token_bytes(self, id: int) -> bytes: ...
    def is_control(self, id: int) -> bool: ...
    def encode(
        self,
        text: str,
        special: bool,
        add_bos: bool | None,
        add_eos: bool | None,
        add_space_prefix: bool | None,
        lossy: bool,
    ) -> list[int]: ...
    def tokenize_bytes(self, data: bytes) -> list[int]: ...
    def split(self, text: str) -> list[str | int]: ...
    def decode(self, tokens: Iterable[int], control: bool) -> bytes: ...

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
    memory_bytes: Final[int]

@final
class Decoder:
    """A running session with a sampler and a source of drafts."""

    def __new__(
        cls,
        model: Model,
        kv_type: str,
        speculation_args: _Speculation | None,
        source: object | None,
    ) -> Decoder: ...
    def begin(self, prompt: _Tokens, request: _Request, progress: _Progress | None) -> Step: ...
    def step(self) -> Step: ...
    def run(self) -> Step: ...
    def stats(self) -> DecodeStats: ...
    def speculation_stats(self) -> SpeculationStats | None: ...
    def history(self) -> list[int]: ...
    def cached(self) -> int: ...
    def cache_bytes(self) -> int: ...
    def same_prefix(self, other: Decoder, n: int) -> bool: ...
    def reset(self) -> None: ...
    def rewind(self, n: int) -> None: ...
    def fork(self, speculation_args: _Speculation | None, source: object | None) -> Decoder: ...
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
    def stats(self) -> list[SourceStats]: ...
    def index_bytes(self) -> int: ...

@final
class Drafter:
    """A drafter with weights of its own, attached to a model."""

    def __new__(cls, model: Model, file: GgufFile, progress: _Progress | None) -> Drafter: ...
    path: Final[Path]
    def description(self) -> _Drafter: ...
    def trace(self, tokens: _Tokens, kv_type: str, hidden: NDArray[np.float32] | None, chain: int) -> _Trace: ...

@final
class Step:
    """What a step handed out."""

    tokens: Final[list[int]]
    text: Final[str]
    logprobs: Final[list[TokenLogprobs]]
    drafted: Final[int]
    accepted: Final[int]
    source: Final[str | None]
    finish: Final[Finish | None]

@final
class Finish:
    """Why a generation ended."""

    reason: Final[Literal["stop", "length", "context"]]
    stop_id: Final[int | None]
    stop_text: Final[int | None]

@final
class TokenLogprobs:
    """The log-probability of the chosen token, the best tokens with theirs."""

    logprob: Final[float]
    top: Final[list[tuple[int, float]]]

@final
class DecodeStats:
    """Counts and times of a request."""

    prefill_tokens: Final[int]
    prefill_ns: Final[int]
    cached_tokens: Final[int]
    steps: Final[int]
    verify_steps: Final[int]
    plain_steps: Final[int]
    committed: Final[int]
    draws: Final[int]
    drafted: Final[int]
    accepted: Final[int]
    bonus: Final[int]
    decode_ns: Final[int]
    draft_ns: Final[int]
    verify_ns: Final[int]
    sample_ns: Final[int]
    mask_ns: Final[int]
    forced: Final[int]
    longest_draft: Final[int]
    tokens_per_step: Final[float]
    acceptance: Final[float]

@final
class SpeculationStats:
    """What speculation did in a request."""

    gate: Final[GateStats]
    sources: Final[list[SourceStats]]

@final
class GateStats:
    """What the gate did and why."""

    state: Final[str]
    estimated_speedup: Final[float | None]
    trips: Final[int]
    probes: Final[int]
    reopened: Final[int]
    closed_steps: Final[int]
    probe_in: Final[int]
    scale: Final[float]
    plain_ns: Final[float | None]
    costs: Final[str]
    reason: Final[str | None]

@final
class SourceStats:
    """What one source of drafts did."""

    name: Final[str]
    drafts: Final[int]
    drafted: Final[int]
    accepted: Final[int]
    grafted: Final[int]
    ns: Final[int]
    tried_at: Final[list[int]]
    accepted_at: Final[list[int]]
    reason: Final[str | None]

@final
class Event:
    """A step of a scheduler's task."""

    task: Final[int]
    step: Final[Step | None]
    error: Final[BaseException | None]
    outcome: Final[Outcome | None]

@final
class Outcome:
    """What a scheduler's task did."""

    stats: Final[DecodeStats]
    speculation: Final[SpeculationStats | None]

@final
class Scheduler:
    def __new__(
        cls,
        model: Model,
        kv_type: str,
        speculation_args: _Speculation,
        max_sequences: int,
        max_kv_bytes: int | None,
        prefix_bytes: int,
    ) -> Scheduler: ...
    def submit(
        self,
        prompt: _Tokens,
        request: _Request,
        speculation_args: _Speculation | None,
        source: object,
        references: Sequence[Sequence[int]],
        priority: int,
    ) -> int: ...
    def cancel(self, task: int) -> None: ...
    def step(self) -> list[Event]: ...
    def is_idle(self) -> bool: ...
    def waiting(self) -> int: ...
    def running(self) -> int: ...
    def kv_bytes(self) -> int: ...
    def prefix_bytes(self) -> int: ...
    def clear_prefixes(self) -> None: ...
    def save_prefixes(self, path: str) -> None: ...
    def load_prefixes(self, path: str) -> int: ...

def check_sampling(args: _Sampling, n_vocab: int | None) -> None: ...
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
) -> tuple[dict[str, Any], list[SourceStats]]: ...
def kernel_sets() -> list[tuple[str, str]]: ...
def default_threads() -> int: ...
def architectures() -> list[str]: ...
def drafter_kinds() -> list[str]: ...
