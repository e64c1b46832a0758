"""`quoth tokenize MODEL FILE`: text to token ids, one a line, and back.

In: a file with a vocabulary (weights are not needed and not read), text or ids. Out: ids or text.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from quoth.cli._console import is_terminal, visible
from quoth.cli._load import find, read_text
from quoth.cli._options import ModelName, Pre

if TYPE_CHECKING:
    from quoth.tokenizer import Tokenizer

_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that JSON leaves as they are, and terminals do not."""


def tokenize(
    model: ModelName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A text file; - is stdin.", show_default=False)],
    *,
    special: Annotated[
        bool,
        typer.Option("--special", help="Turn texts of control tokens into those tokens; with --decode, show them."),
    ] = False,
    bos: Annotated[bool, typer.Option("--bos", help="Put the beginning-of-text token in front.")] = False,
    pre: Pre = None,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Print the text of each token too, in JSON's quotes.")
    ] = False,
    decode: Annotated[
        bool, typer.Option("--decode", help="The other way: FILE holds ids, the text is printed, byte for byte.")
    ] = False,
) -> None:
    """Print the token ids of a text, one a line.

    The text is taken as it is, with its last line end; nothing is added. Works on files that hold a vocabulary alone.
    """
    from quoth import _core
    from quoth.model import Metadata
    from quoth.tokenizer import Tokenizer

    if decode and (bos or pieces):
        raise typer.BadParameter("--bos and --pieces do not go with --decode")
    tokenizer = Tokenizer.from_metadata(Metadata(_core.GgufFile(find(model))), pre=pre)
    text = read_text(file, "the text" if not decode else "the list of ids")
    if decode:
        shown = tokenizer.decode(_ids(text), skip_special=not special, errors="surrogateescape")
        data = shown.encode("utf-8", "surrogateescape")
        if is_terminal(sys.stdout):
            sys.stdout.write(visible(data.decode("utf-8", "replace")))
        else:
            sys.stdout.buffer.write(data)
        return
    ids = tokenizer.encode(text, special=special, add_bos=bos)
    lines = (_with_piece(tokenizer, id) for id in ids) if pieces else map(str, ids)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _ids(text: str) -> list[int]:
    from quoth.errors import TokenizerError

    words = text.replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        at, word = next((i, word) for i, word in enumerate(words) if not word.removeprefix("-").isdecimal())
        raise TokenizerError(f"word {at} of the list of ids is {word!r}, expected a whole number") from None


def _with_piece(tokenizer: Tokenizer, id: int) -> str:
    piece = json.dumps(tokenizer.token_bytes(id).decode("utf-8", "backslashreplace"), ensure_ascii=False)
    return f"{id}\t{piece.translate(_ESCAPES)}"
