"""The bare session over a model: rows of tokens in, rows of logits out.

In: token ids. Out: float32 rows. `Model.session` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from quoth import _core
from quoth._arguments import shown, token_ids, whole
from quoth._resource import Closed, Resource
from quoth.errors import BusyError, ClosedError, OptionsError
from quoth.loaded import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Session"]

# More tokens than any context has.
_MANY = 1 << 32


class Session(Resource):
    """The bare machine: tokens in, rows of logits out, rewind at will. Made by `Model.session`.

    `len(session)` is the number of cached tokens. A session belongs to one caller at a time; a second one gets
    `BusyError`.
    """

    _instead = "make one in the other process, and forward the same tokens"

    def __init__(self, model: LoadedModel, _core_session: _core.Session | None = None) -> None:
        import numpy as np  # noqa: F401, PLC0415  before the core needs it: a process that ends in an import there aborts

        self.model = model
        self._session = _core_session if _core_session is not None else _core.Session(model._model, model.kv_type)
        model._children[self] = None

    def _shut(self, what: str) -> None:
        if not isinstance(self._session, Closed):
            len(self._session)  # a session in use is not closed
            self._session = Closed(what)  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._session)

    def __repr__(self) -> str:
        try:
            return f"Session({len(self)} of {self.model.n_ctx} tokens)"
        except BusyError:  # printing needs no turn of its own
            return f"Session(in use, {self.model.n_ctx} tokens)"
        except ClosedError:
            return "Session(closed)"

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
        self._session.truncate(min(whole("n", n, 0), _MANY))

    def fork(self, n: int | None = None) -> Session:
        """A new session that holds the first `n` tokens of this one (None: all), bit for bit."""
        first = len(self) if n is None else min(whole("n", n, 0), _MANY)
        return Session(self.model, self._session.fork(first))
