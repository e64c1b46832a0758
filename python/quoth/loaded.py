"""A model's file in memory: weights, metadata, tokenizer. `Model` is this and makes the rest.

In: a file or the name of a model. Out: what sessions, decoders and conversations stand on. Loading repacks the weights
for this CPU; the file is not needed afterwards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

from quoth import _core
from quoth._arguments import callback, shown, whole
from quoth._metadata import Metadata
from quoth._resource import Resource
from quoth.defaults import default_sampling
from quoth.errors import ClosedError, OptionsError
from quoth.tokenizer import Tokenizer

__all__ = ["LoadedModel", "Metadata", "kernels_setting", "threads_setting", "trained_context"]

_log = logging.getLogger("quoth")

DEFAULT_CONTEXT: Final = 4096
"""Longest context where the user chose none and the model was made for more."""

# Models with fewer bytes of weights cache keys and values unrounded unless told otherwise.
_SMALL_BYTES = 32 << 20

KvType = Literal["f32", "f16", "q8_0"]

# The core's own bounds, so that numbers which it could not even hold are refused by the same name.
_MAX_CONTEXT = 1 << 24
_MAX_THREADS = 256


class LoadedModel(Resource):
    """The part of `Model` that needs no decoder."""

    _instead = "load it again in the other process, or fork the process"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        threads: int | None = None,
        kv_type: KvType | None = None,
        kernels: str | None = None,
        pre: str | None = None,
        drafter: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        from quoth.hub import resolve  # noqa: PLC0415  the hub's imports are not needed where a file is given

        if kv_type is not None and not (isinstance(kv_type, str) and kv_type in ("f32", "f16", "q8_0")):
            raise OptionsError(f"kv_type is {shown(kv_type)}, expected f32, f16 or q8_0")
        if pre is not None and not isinstance(pre, str):
            raise OptionsError(f"pre is {shown(pre)}, expected the name of a splitter")
        threads = threads_setting(threads)
        kernels = kernels_setting(kernels)
        callback("progress", progress)
        if n_ctx is not None:
            n_ctx = whole("n_ctx", n_ctx, 1, _MAX_CONTEXT)
        self.path = Path(resolve(path))
        self._file = _core.GgufFile(self.path)
        self.metadata = Metadata(self._file)
        self.default_sampling: Final = default_sampling(self.metadata)
        self._pre = pre
        if pre is not None:
            _ = self.tokenizer  # an unknown name is refused now, not at the first text
        trained = trained_context(self.metadata)
        if n_ctx is None:
            n_ctx = min(DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT)
        self._weights: _core.Model | None = _core.Model(self._file, n_ctx, threads, kernels, progress)
        self._drafters: dict[str, _core.Drafter] = {}
        several = () if drafter is None else (drafter,) if isinstance(drafter, (str, os.PathLike)) else drafter
        if not isinstance(several, Sequence) or not all(isinstance(one, (str, os.PathLike)) for one in several):
            raise OptionsError(f"drafter is {shown(drafter)}, expected a file or a list of files")
        for one in several:
            attached = _core.Drafter(self._model, _core.GgufFile(Path(resolve(one))), progress)
            kind: str = attached.description()["kind"]
            if kind in self._drafters:
                raise OptionsError(f"drafter has two files of kind {kind}, expected one of each kind")
            self._drafters[kind] = attached
        self._children: WeakKeyDictionary[Resource, None] = WeakKeyDictionary()
        self.kv_type: KvType = kv_type or ("f32" if self._model.weight_bytes < _SMALL_BYTES else "f16")
        if trained is not None and n_ctx > trained:
            _log.warning(
                "n_ctx is %d, but the model was trained for %d tokens: expect worse text beyond", n_ctx, trained
            )
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
        if self._weights is None:
            return f"Model({str(self.path)!r}, closed)"
        return f"Model({str(self.path)!r}, n_ctx={self.n_ctx}, threads={self.threads}, kernels={self.kernels!r})"

    @property
    def _model(self) -> _core.Model:
        if self._weights is None:
            raise ClosedError(f"the model `{self.path}` is closed")
        return self._weights

    def close(self) -> None:
        """Free the weights, and close every session, decoder and conversation of this model, which hold them too.

        Metadata and tokenizer can still be used.

        Raises:
            BusyError: One of them is computing. What was not closed yet is as it was.
        """
        self._shut(f"the model `{self.path}`")

    def _shut(self, what: str) -> None:
        for child in reversed(list(self._children)):  # a conversation before its decoder, which was made first
            child._shut(what)
        self._drafters = {}
        self._weights = None

    @property
    def drafters(self) -> dict[str, dict[str, Any]]:
        """The attached drafters by kind, each in numbers.

        `kind n_layer n_draft taps weight_bytes lent_embedding lent_output load_ns`: its kind, its layers, the tokens
        that it can draft, the layers of the model whose input it reads, bytes of its own weights, whether the model
        lends it the embedding and the output head, and what loading took.
        """
        return {name: dict(drafter.description()) for name, drafter in self._drafters.items()}

    def _chosen(self, names: str | Sequence[str]) -> list[_core.Drafter]:
        """The drafters that `Speculation.drafters` names."""
        for name in () if names == "auto" else names:
            if name not in self._drafters:
                known = ", ".join(self._drafters) or "none"
                raise OptionsError(f"drafters names {shown(name)}, expected some attached to the model: {known}")
        return [one for name, one in self._drafters.items() if names == "auto" or name in names]

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


def threads_setting(threads: int | None) -> int:
    """The number of threads to use."""
    if threads is not None:
        return whole("threads", threads, 1, _MAX_THREADS)
    setting = os.environ.get("QUOTH_THREADS")
    if not setting:
        return _core.default_threads()
    # No number of more digits is in range, and some have too many to be read.
    number = int(setting) if setting.strip().isdecimal() and len(setting) < 100 else setting
    return whole("QUOTH_THREADS", number, 1, _MAX_THREADS)


def kernels_setting(kernels: str | None) -> str | None:
    """The instruction set to use; None for the best."""
    source, name = "kernels", kernels
    if name is None:
        source, name = "QUOTH_KERNELS", os.environ.get("QUOTH_KERNELS") or None
    known = [*dict.fromkeys(name for name, _ in _core.kernel_sets()), "reference"]
    if name is not None and not (isinstance(name, str) and name in known):
        raise OptionsError(f"{source} is {shown(name)}, expected one of {', '.join(known)} on this machine")
    return name


def trained_context(metadata: Mapping[str, Any]) -> int | None:
    """The context that a model was trained for; None where the file does not say."""
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return length if isinstance(length, int) and length > 0 else None
