"""What quoth raises. Messages say expected, found and where; `OSError` is kept for files, disks and networks."""

from __future__ import annotations


class QuothError(Exception):
    """Base of everything that quoth raises on its own account."""


class ModelFileError(QuothError):
    """A model file is damaged, not what it claims to be, or not supported."""


class TokenizerError(QuothError):
    """A vocabulary is damaged or not supported."""


class OptionsError(QuothError, ValueError):
    """An argument is outside its range."""


class ContextFullError(QuothError):
    """There is no room for another token."""


class BusyError(QuothError):
    """The session is in use by another caller."""


class ClosedError(QuothError):
    """What is used was closed."""


class InternalError(QuothError):
    """A defect of quoth."""
