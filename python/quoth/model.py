"""A model in memory, and the bare session over it.

In: a file or the name of a model. Out: sessions and decoders. Loading repacks the weights for this CPU; the file is not
needed afterwards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from quoth import _core
from quoth._arguments import callback, shown, token_ids, whole
from quoth.defaults import default_sampling
from quoth.errors import BusyError, OptionsError
from quoth.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quoth.conversation import Conversation
    from quoth.decoder import Decoder
    from quoth.options import DraftSource, Sampling, Speculation

__all__ = ["Metadata", "Model", "Session"]

_log = logging.getLogger("quoth")

# Models with fewer bytes of weights cache keys and values unrounded unless told otherwise.
_SMALL_BYTES = 32 << 20

KvType = Literal["f32", "f16", "q8_0"]

# The core's own bounds, so that numbers which it could not even hold are refused by the same name.
_MAX_CONTEXT = 1 << 24
_MAX_THREADS = 256


class Metadata(Mapping[str, Any]):
    """The keys and values of a GGUF file, in its order. Arrays are lists; text that is not UTF-8 is bytes."""

    def __init__(self, file: _core.GgufFile) -> None:
        self._file = file

    def __getitem__(self, key: str) -> Any:
        return self._file[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._file)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._file


class Model:
    """A GGUF model, ready to run. Safe to use from several threads; each session or decoder belongs to one at a time.

    Args:
        path: A GGUF file (of a split model, any part), or a model name as `quoth pull` takes it: `smollm2`,
            `hf:org/repo/file.gguf`.
        n_ctx: Longest context of a session, in tokens. None: what the model was made for, at most 4096.
        threads: Threads of a forward. None: `QUOTH_THREADS`, or the physical cores that the process may use.
        kv_type: How keys and values are cached: `f16`, `q8_0` at 53 % of the memory, or `f32`, which rounds nothing, at
            twice.
        kernels: An instruction set: `scalar`, `avx2`, `avx512`, `neon`. None: `QUOTH_KERNELS`, or the best that this
            CPU has. All give the same bits. `reference` multiplies dequantized weights in plain code, for tests.
        pre: Name of the splitter of a byte-level vocabulary, for files that name none or an unknown one.
        progress: Called while loading with bytes done and bytes in all. An exception from it stops the loading.

    Attributes:
        n_ctx: Longest context of a session, in tokens.
        n_vocab: Tokens of the vocabulary, and width of a row of logits.
        metadata: Keys and values of the file.
        kv_type: How new sessions cache keys and values.
        default_sampling: What the file asks for (`general.sampling.*`), greedy where it asks for nothing. Decoders and
            conversations without options of their own sample so.

    Raises:
        FileNotFoundError, OSError: The file cannot be read.
        ModelFileError: The file is not a model that is supported; the message says why.
        OptionsError: An argument is out of range.
        TokenizerError: `pre` is unknown, or the vocabulary has no splitter.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int | None = 4096,
        threads: int | None = None,
        kv_type: KvType | None = None,
        kernels: str | None = None,
        pre: str | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        from quoth.hub import resolve  # noqa: PLC0415  the hub's imports are not needed where a file is given

        if kv_type is not None and not (isinstance(kv_type, str) and kv_type in ("f32", "f16", "q8_0")):
            raise OptionsError(f"kv_type is {shown(kv_type)}, expected f32, f16 or q8_0")
        if pre is not None and not isinstance(pre, str):
            raise OptionsError(f"pre is {shown(pre)}, expected the name of a splitter, or None")
        threads = _threads(threads)
        kernels = _kernels(kernels)
        callback("progress", progress)
        if n_ctx is not None:
            n_ctx = whole("n_ctx", n_ctx, 1, _MAX_CONTEXT, or_none=True)
        self.path = Path(resolve(path))
        self._file = _core.GgufFile(self.path)
        self.metadata = Metadata(self._file)
        self.default_sampling: Final = default_sampling(self.metadata)
        self._pre = pre
        if pre is not None:
            _ = self.tokenizer  # an unknown name is refused now, not at the first text
        if n_ctx is None:
            n_ctx = min(4096, _trained_context(self.metadata))
        self._model = _core.Model(self._file, n_ctx, threads, kernels, progress)
        self.kv_type: KvType = kv_type or ("f32" if self._model.weight_bytes < _SMALL_BYTES else "f16")
        _log.info(
            "loaded %s: %s, %d bytes of weights, kernels %s, %d threads, %.0f ms",
            self.path,
            self.metadata.get("general.architecture"),
            self._model.weight_bytes,
            self._model.kernels_detail,
            self._model.threads,
            self._model.load_ns / 1e6,
        )

    def __repr__(self) -> str:
        return f"Model({str(self.path)!r}, n_ctx={self.n_ctx}, threads={self.threads}, kernels={self.kernels!r})"

    @property
    def n_ctx(self) -> int:
        return self._model.n_ctx

    @property
    def n_vocab(self) -> int:
        return self._model.n_vocab

    @property
    def threads(self) -> int:
        """Threads of a forward."""
        return self._model.threads

    @property
    def kernels(self) -> str:
        """The instruction set in use."""
        return self._model.kernels

    @property
    def config(self) -> dict[str, Any]:
        """The model in numbers.

        `arch n_vocab n_ctx_train n_layer n_embd n_head n_head_kv head_dim n_ff n_expert n_expert_used`; where layers
        differ, of the first. `n_ff` is 0 where all is done by experts, the last two where there are none.
        """
        return dict(self._model.config())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, made from the file.

        Raises:
            TokenizerError: The file's vocabulary is damaged, or its kind or splitter unknown.
        """
        return Tokenizer.from_metadata(self.metadata, pre=self._pre)

    def session(self) -> Session:
        """A new empty session: rows of tokens in, rows of logits out."""
        return Session(self)

    def decoder(
        self, *, sampling: Sampling | None = None, speculation: Speculation | DraftSource | bool | None = True
    ) -> Decoder:
        """A new decoder: prompts to text.

        Args:
            sampling: How tokens are chosen. None: as `default_sampling`.
            speculation: How they are guessed before: options, a draft source of your own, True for the defaults, or
                None for plain decoding. It never changes which tokens are generated.

        Raises:
            OptionsError: An option is out of range.
            TokenizerError: The file's vocabulary is damaged or of an unknown kind.
        """
        from quoth.decoder import Decoder  # noqa: PLC0415  decoders import this module for their types

        return Decoder(self, sampling=sampling, speculation=speculation)

    def conversation(
        self,
        *,
        system: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling | None = None,
        speculation: Speculation | DraftSource | bool | None = True,
        max_tokens: int = 1024,
        stop: str | int | Sequence[str | int] = (),
        overflow: Literal["error", "trim"] = "error",
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Conversation:
        """A new conversation: a user's messages to answers.

        Args:
            system: The system message.
            messages: What was said before, oldest first, each with `role` and `content`; behind the system message.
            sampling: How tokens are chosen. None: as `default_sampling`. Each turn uses the same seed, with
                draws that begin anew.
            speculation: As for `decoder`. It never changes an answer.
            max_tokens: Most tokens of an answer.
            stop: Texts and token ids that end an answer, beside the model's own ends of turn.
            overflow: What happens when a turn does not fit the context. `error`: `ContextFullError`. `trim`: the oldest
                turns are dropped, never the system message, until the turn and room for its answer fit: `max_tokens`,
                at most a quarter of the context. An answer that meets the end of the context ends there in both cases.
            chat_template: Name of one of the file's templates, or a template's source. None: the file's own.
            tools: JSON schemas of functions that the model may call.
            documents: Documents for templates that take them.
            template_kwargs: More variables for the template, such as `enable_thinking`.

        Raises:
            OptionsError: An option is out of range.
            TokenizerError: The file has no chat template and none was given, or its vocabulary is damaged or of an
                unknown kind.
        """
        from quoth.conversation import Conversation  # noqa: PLC0415  conversations import this module for their types

        return Conversation(
            self,
            system=system,
            messages=messages,
            sampling=sampling,
            speculation=speculation,
            max_tokens=max_tokens,
            stop=stop,
            overflow=overflow,
            chat_template=chat_template,
            tools=tools,
            documents=documents,
            template_kwargs=template_kwargs,
        )


class Session:
    """The bare machine: tokens in, rows of logits out, rewind at will. Made by `Model.session`.

    `len(session)` is the number of cached tokens. A session belongs to one caller at a time; a second one gets
    `BusyError`.
    """

    def __init__(self, model: Model, _core_session: _core.Session | None = None) -> None:
        import numpy as np  # noqa: F401, PLC0415  before the core needs it: a process that ends in an import there aborts

        self.model = model
        self._session = _core_session if _core_session is not None else _core.Session(model._model, model.kv_type)

    def __len__(self) -> int:
        return len(self._session)

    def __repr__(self) -> str:
        try:
            return f"Session({len(self)} of {self.model.n_ctx} tokens)"
        except BusyError:  # whoever prints it only wants to look
            return f"Session(in use, {self.model.n_ctx} tokens)"

    def forward(
        self, tokens: Sequence[int] | NDArray[np.integer[Any]], rows: Literal["all", "last"] = "all"
    ) -> NDArray[np.float32]:
        """Append tokens and compute their logits.

        The interpreter is released meanwhile; Ctrl-C stops between passes of 512 tokens and leaves the session as it
        was.

        Args:
            tokens: Token ids, each 0 to `n_vocab` - 1; at least one.
            rows: `all` rows, or the `last` one alone.

        Returns:
            float32 `[len(tokens), n_vocab]`, or `[1, n_vocab]`. Row i holds the raw logits of the token after
            `tokens[i]`; the same bits however the tokens are split over calls, and whatever the threads and the
            instruction set.

        Raises:
            OptionsError: No token, or one out of range. The session is unchanged, as after every error.
            ContextFullError: The tokens do not fit `n_ctx`.
            BusyError: Another caller is using the session.
        """
        if not (isinstance(rows, str) and rows in ("all", "last")):
            raise OptionsError(f"rows is {shown(rows)}, expected all or last")
        if not hasattr(tokens, "__array__"):  # arrays go to the core as they are
            tokens = token_ids("tokens", tokens)
        return self._session.forward(tokens, rows)

    def truncate(self, n: int) -> None:
        """Forget everything after the first `n` tokens; more than are cached changes nothing.

        Raises:
            OptionsError: `n` is negative, or layers with a sliding window no longer keep what a token at `n` would see.
        """
        self._session.truncate(min(whole("n", n, 0), _MAX_CONTEXT))

    def fork(self, n: int | None = None) -> Session:
        """A new session that holds the first `n` tokens of this one (None: all), bit for bit."""
        first = len(self) if n is None else min(whole("n", n, 0, or_none=True), _MAX_CONTEXT)
        return Session(self.model, self._session.fork(first))


def _threads(threads: int | None) -> int:
    """The number of threads to use."""
    if threads is not None:
        return whole("threads", threads, 1, _MAX_THREADS, or_none=True)
    setting = os.environ.get("QUOTH_THREADS")
    if not setting:
        return _core.default_threads()
    # No number of more digits is in range, and some have too many to be read.
    number = int(setting) if setting.strip().isdecimal() and len(setting) < 100 else setting
    return whole("QUOTH_THREADS", number, 1, _MAX_THREADS)


def _kernels(kernels: str | None) -> str | None:
    """The instruction set to use; None for the best."""
    source, name = "kernels", kernels
    if name is None:
        source, name = "QUOTH_KERNELS", os.environ.get("QUOTH_KERNELS") or None
    known = [*dict.fromkeys(name for name, _ in _core.kernel_sets()), "reference"]
    if name is not None and not (isinstance(name, str) and name in known):
        raise OptionsError(f"{source} is {shown(name)}, expected one of {', '.join(known)} on this machine")
    return name


def _trained_context(metadata: Metadata) -> int:
    """The context that a model was made for; 4096 where the file does not say."""
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length", 4096)
    return length if isinstance(length, int) and length > 0 else 4096
