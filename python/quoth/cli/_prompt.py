"""What a user gave to generate from, as tokens.

In: text of options, files or stdin. Out: token ids.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from quoth.cli._console import is_terminal, note
from quoth.cli._load import read_text
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from quoth.tokenizer import Tokenizer

__all__ = ["as_tokens", "prompt_text"]


def prompt_text(text: str | None, file: str | None, raw: bool) -> str:
    """The prompt.

    A file's last line end is dropped: editors and `echo` put it there. Not so for a text that is to be gone on with
    as it is.

    Raises:
        OptionsError: There is no prompt, or there are two.
    """
    if (text is None) == (file is None):
        found = "neither" if text is None else "both"
        raise OptionsError(f"expected a prompt, either -p TEXT (- is stdin) or -f FILE, found {found}")
    if text is not None and text != "-":
        return text
    if file is None and is_terminal(sys.stdin):
        note("reading the prompt from the terminal, up to Ctrl-D")
    read = read_text(file or "-", "the prompt")
    return read if raw else read.removesuffix("\n").removesuffix("\r")


def as_tokens(tokenizer: Tokenizer, text: str, *, raw: bool, special: bool, system: str | None) -> list[int]:
    """The prompt as the model sees it: through its chat template if it has one, else as it is.

    In a conversation, texts of control tokens are plain text, so that a document cannot end a turn or forge one.

    Raises:
        OptionsError: Options that do not go together.
        TokenizerError: The template fails, or the text cannot be spelled.
    """
    if special and not raw:
        raise OptionsError("--special needs --raw: a chat template writes the control tokens itself")
    if system is not None and raw:
        raise OptionsError("--system does not go with --raw, which completes the text as it is")
    if not raw and not tokenizer.chat_templates:
        if system is not None:
            raise OptionsError("--system needs a chat template, which this model does not have")
        note("note: the model has no chat template, so the text is completed as it is")
        raw = True
    if raw:
        return tokenizer.encode(text, special=special, add_bos=None)
    turns = [] if system is None else [{"role": "system", "content": system}]
    return tokenizer.apply_chat_template([*turns, {"role": "user", "content": text}], escape_content=True)
