"""Things that hold memory until they are closed: models, decoders, conversations, sessions.

R1  `close` frees the memory now, not when the last name of the thing is gone; closing again does nothing.
R2  Whatever needs the memory afterwards raises `ClosedError`, which says what was closed.
R3  None of them can be pickled or deep-copied; the error says what to do instead.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from quoth.errors import ClosedError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Closed", "Resource"]


class Resource:
    """Base of what can be closed, by `close` or by a `with`."""

    _instead: ClassVar[str]
    """What to do in place of pickling."""

    def close(self) -> None:
        """Free the memory."""
        self._shut(f"the {type(self).__name__.lower()}")

    def _shut(self, what: str) -> None:
        """Close, because of this."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: {self._instead}")


class Closed:
    """Stands where an object of the core was."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise ClosedError(f"{self._what} is closed")

    def __len__(self) -> int:
        raise ClosedError(f"{self._what} is closed")
