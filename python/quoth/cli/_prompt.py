"""What a user gave to generate from, as tokens.

In: text of options, files or stdin. Out: token ids.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quoth.cli._console import is_terminal, note
from quoth.cli._load import read_text
from quoth.errors import OptionsError
from quoth.templates import NAMED

if TYPE_CHECKING:
    from quoth.tokenizer import Tokenizer

__all__ = ["as_tokens", "chosen_template", "prompt_text"]


def prompt_text(text: str | None, file: str | None, raw: bool) -> str:
    """The prompt.

    A file's last line end is dropped: editors and `echo` put it there. Not so for a text that is to be gone on with
    as it is.

    Without either, what is piped in is the prompt.

    Raises:
        OptionsError: There is no prompt, or there are two.
    """
    if text is not None and file is not None:
        raise OptionsError("expected a prompt, either -p TEXT (- is stdin) or -f FILE, found both")
    if text is not None and text != "-":
        return text
    neither = OptionsError("expected a prompt, either -p TEXT (- is stdin) or -f FILE, found neither")
    if file is None and is_terminal(sys.stdin):
        if text is None:
            raise neither
        note("reading the prompt from the terminal, up to Ctrl-D")
    read = read_text(file or "-", "the prompt")
    if text is None and file is None and not read:
        raise neither
    return read if raw else read.removesuffix("\n").removesuffix("\r")


def chosen_template(template: str | None, tokenizer: Tokenizer) -> str | None:
    """What `--template` says: the text of a file, or a name.

    Raises:
        OptionsError: There is no such file and no template of that name.
    """
    if template is None or template in tokenizer.chat_templates or template in NAMED:
        return template
    if Path(template).is_file():
        return read_text(template, "the template")
    if "{" in template:
        return template
    names = ", ".join(sorted({*tokenizer.chat_templates, *NAMED}))
    raise OptionsError(f"--template is {template!r}, expected a file, a template, or one of {names}")


def as_tokens(
    tokenizer: Tokenizer, text: str, *, raw: bool, special: bool, system: str | None, template: str | None = None
) -> list[int]:
    """The prompt as the model sees it: through a chat template if there is one, else as it is.

    In a conversation, texts of control tokens are plain text, so that a document cannot end a turn or forge one.

    Raises:
        OptionsError: Options that do not go together.
        TokenizerError: The template fails, or the text cannot be spelled.
    """
    if special and not raw:
        raise OptionsError("--special needs --raw: a chat template writes the control tokens itself")
    if system is not None and raw:
        raise OptionsError("--system does not go with --raw, which completes the text as it is")
    if template is not None and raw:
        raise OptionsError("--template does not go with --raw, which completes the text as it is")
    if not raw and template is None and not tokenizer.chat_templates:
        hint = f"--template takes one: a file, or {', '.join(sorted(NAMED))}"
        if system is not None:
            raise OptionsError(f"--system needs a chat template, which this model does not have; {hint}")
        note(f"note: the model has no chat template, so the text is completed as it is; {hint}")
        raw = True
    if raw:
        return tokenizer.encode(text, special=special, add_bos=None)
    turns = [] if system is None else [{"role": "system", "content": system}]
    turns.append({"role": "user", "content": text})
    return tokenizer.apply_chat_template(turns, chat_template=template, escape_content=True)
