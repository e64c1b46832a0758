"""A stream of tokens as text: whole characters only.

In: token ids, one or many at a time. Out: text that never ends inside a character.

X1  The pieces, joined, are the decoding of all tokens at once, wherever the tokens were parted.
X2  A piece never ends inside a UTF-8 sequence that later tokens may complete; `finish` gives up waiting.

Cost: one lookup and one decoder call a token.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable

__all__ = ["TextStream"]


class TextStream:
    """Turns tokens into text as they arrive.

    Args:
        bytes_of: Gives the bytes of a token id; empty for tokens that do not show.
        errors: What to do with bytes that are not UTF-8: `"replace"`, `"strict"` or `"ignore"`, as `bytes.decode`
            takes them.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], errors: str = "replace") -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def push(self, tokens: int | Iterable[int]) -> str:
        """Take the next tokens.

        Args:
            tokens: One token id or several.

        Returns:
            The characters that are now whole; may be empty.

        Raises:
            TokenizerError: A token is outside the vocabulary.
            UnicodeDecodeError: The bytes are not UTF-8, and `errors` is `"strict"`.
        """
        if isinstance(tokens, Iterable):
            return self._decoder.decode(b"".join(map(self._bytes_of, tokens)))
        return self._decoder.decode(self._bytes_of(tokens))

    def finish(self) -> str:
        """End the stream.

        Returns:
            What was held back, as replacement characters; empty if the last character was whole. The stream can be
            used anew.

        Raises:
            UnicodeDecodeError: Bytes were held back, and `errors` is `"strict"`.
        """
        return self._decoder.decode(b"", final=True)
