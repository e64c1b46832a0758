"""Traces: what a model was asked and what it answered, as token ids, to judge drafting without the model.

In: runs of workloads, a model; or files. Out: a file; or traces. A JSON object a line:

    {"id": "v-repeat-01", "kind": "repeat", "model": "some.gguf", "n_vocab": 49152, "stops": [ids],
     "references": [[ids]], "measured": 2.31,
     "turns": [{"prompt": [ids], "answer": [ids], "stopped": true, "top": [[ids], …]}]}

`prompt` is the whole prompt of a turn, `answer` what was committed after it, a stop at its end included (`stopped`).
`top` holds the most probable tokens of each row that gave a token of the answer, best first, as verification would
show them; `stops` are ends of generation, which no draft holds; `measured` is plain time over speculative time. All but
`answer` may be absent. A plain stream is one turn without a prompt. A folder or a text file is read with a tokenizer:
each file a stream of its own.

T1  The rows of `top` come from one forward of the answer: the same bits that any verification would have seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quoth._files import read_text
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from quoth.bench.workloads import WorkloadResult
    from quoth.model import Model
    from quoth.tokenizer import Tokenizer

__all__ = ["TEXTS", "WIDTH", "Trace", "Turn", "best_of_rows", "read_traces", "text_traces", "write_traces"]

Ids: TypeAlias = NDArray[np.uint32]

WIDTH = 8
"""Tokens that are kept of a row: as many as recycling learns from."""

TRACE_BYTES = 1 << 30
"""Most bytes of a file of traces."""

TEXTS = frozenset(
    f".{end}"
    for ends in ("py pyi rs c h cc cpp hpp js ts go java sql sh", "rst txt md html", "json toml yaml yml")
    for end in ends.split()
)
"""Ends of names that are read in a folder."""

_ROWS = 64
"""Rows that are computed at a time."""


@dataclass(frozen=True)
class Turn:
    """A request."""

    prompt: Ids
    """All tokens of the prompt."""
    answer: Ids
    """What was committed, a stop included."""
    stopped: bool = False
    """Whether the last token of the answer is a stop."""
    top: Ids | None = None
    """`[len(answer), WIDTH]`, or None."""


@dataclass(frozen=True)
class Trace:
    """A session."""

    id: str
    """Its name."""
    kind: str
    """What it is an example of."""
    turns: tuple[Turn, ...]
    """Its requests, first one first."""
    references: tuple[Ids, ...] = ()
    """Documents that were drafted from."""
    n_vocab: int = 0
    """Tokens of the vocabulary."""
    stops: tuple[int, ...] = ()
    """Tokens that end an answer; no draft holds them."""
    measured: float | None = None
    """The speedup that was measured."""
    model: str = ""
    """Name of the file of the model that answered."""

    @property
    def tokens(self) -> int:
        """Tokens that steps committed."""
        return sum(max(len(turn.answer) - 1, 0) for turn in self.turns)


# -- from a model ------------------------------------------------------------------------------------------------------


def write_traces(
    path: Path,
    model: Model,
    results: Sequence[WorkloadResult],
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    """Write what workloads gave, with the rows of their answers.

    Args:
        path: The file; replaced if it exists.
        model: The model that answered.
        results: Workloads; those whose runs differ are left out.
        progress: Called with workloads done and in all.

    Raises:
        OSError: It cannot be written.
    """
    with path.open("w", encoding="utf-8") as file:
        for done, result in enumerate(results, 1):
            if result.plain is not None and result.identical:
                file.write(json.dumps(_recorded(model, result), separators=(",", ":")) + "\n")
            progress(done, len(results))


def _recorded(model: Model, result: WorkloadResult) -> dict[str, Any]:
    assert result.plain is not None
    turns = []
    for prompt, answer in zip(result.plain.prompts, result.plain.results, strict=True):
        stopped = isinstance(answer.stop, int)
        ids = [*answer.tokens, *([answer.stop] if isinstance(answer.stop, int) else [])]
        top = best_of_rows(model, prompt, ids).tolist()
        turns.append({"prompt": list(prompt), "answer": ids, "stopped": stopped, "top": top})
    encode = model.tokenizer.encode
    return {
        "id": result.workload.id,
        "kind": result.workload.kind,
        "model": model.path.name,
        "n_vocab": model.n_vocab,
        "stops": sorted(model.tokenizer.eog_ids),
        "measured": round(result.speedup.ratio, 4),
        "references": [list(encode(text, errors="ignore")) for text in result.workload.references],
        "turns": turns,
    }


def best_of_rows(model: Model, prompt: Sequence[int], answer: Sequence[int], width: int = WIDTH) -> Ids:
    """The most probable tokens of each row that an answer was chosen from.

    Returns:
        uint32 `[len(answer), width]`, best first, ties to the lowest id.
    """
    session = model.session()
    parts = [session.forward(prompt, rows="last")]
    found = []
    for at in range(0, len(answer), _ROWS):
        # Row i of the answer comes from the token before it.
        if more := list(answer[max(at - 1, 0) : at + _ROWS - 1]):
            parts.append(session.forward(more))
        found += [_best(row, width) for rows in parts for row in rows]
        parts = []
    return np.array(found[: len(answer)], np.uint32).reshape(-1, width)


def _best(row: NDArray[np.float32], width: int) -> NDArray[np.intp]:
    bound = np.partition(row, -width)[-width]
    candidates = np.flatnonzero(row >= bound)
    best: NDArray[np.intp] = candidates[np.argsort(-row[candidates], kind="stable")][:width]
    return best


# -- from files --------------------------------------------------------------------------------------------------------


def read_traces(path: Path) -> list[Trace]:
    """Read a JSONL file of traces. A line may also be a bare list of ids: a stream.

    Raises:
        OSError: It cannot be read.
        OptionsError: A line is no trace.
    """
    found = []
    for at, line in enumerate(read_text("the list of traces", path, TRACE_BYTES).split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(_trace(json.loads(line), f"{path.stem}:{at}"))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise OptionsError(f"line {at} of `{path}` is no trace: {reason}") from None
    return found


def _trace(data: Any, name: str) -> Trace:
    if isinstance(data, list):
        data = {"turns": [{"prompt": [], "answer": data}]}
    if not isinstance(data, dict):
        raise ValueError(f"it is {type(data).__name__}, expected an object or a list of ids")
    turns = data.get("turns", [data])
    measured = data.get("measured")
    return Trace(
        id=str(data.get("id", name)),
        kind=str(data.get("kind", "stream")),
        turns=tuple(_turn(turn) for turn in turns),
        references=tuple(_ids(ids, "a reference") for ids in data.get("references") or ()),
        n_vocab=int(data.get("n_vocab", 0)),
        stops=tuple(_ids(data.get("stops") or [], "stops").tolist()),
        measured=None if measured is None else float(measured),
        model=str(data.get("model", "")),
    )


def _turn(data: dict[str, Any]) -> Turn:
    answer = _ids(data["answer"], "answer")
    top = data.get("top")
    rows = None if top is None else np.array(top, np.int64)
    if rows is not None and (rows.ndim != 2 or len(rows) != len(answer) or (rows < 0).any()):
        raise ValueError(f"top has the shape {list(rows.shape)}, expected {len(answer)} rows of token ids")
    return Turn(
        prompt=_ids(data.get("prompt") or [], "prompt"),
        answer=answer,
        stopped=bool(data.get("stopped", False)),
        top=None if rows is None else rows.astype(np.uint32),
    )


def _ids(values: Any, what: str) -> Ids:
    ids = np.asarray(values if len(values) else [], dtype=None if len(values) else np.uint32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (len(ids) and not 0 <= ids.min() <= ids.max() < 2**32):
        raise ValueError(f"{what} is not a list of token ids")
    return ids.astype(np.uint32)


def text_traces(path: Path, tokenizer: Tokenizer, *, join: bool = False, most: int | None = None) -> Iterator[Trace]:
    """Texts as streams of tokens: a file, or the texts in a folder and below it, in the order of their names.

    Args:
        path: A UTF-8 text, or a folder, of which names that end as in `TEXTS` are read.
        tokenizer: Encodes them, each by itself, without special tokens.
        join: Make one stream of all.
        most: Stop after the text with which there are so many tokens.

    Raises:
        OSError: A file cannot be read.
        OptionsError: A file that was named itself is not UTF-8 or too large. In a folder such files are passed over.
    """
    named = path.is_file()
    files = [path] if named else sorted(p for p in path.rglob("*") if p.suffix in TEXTS and p.is_file())
    joined: list[Ids] = []
    tokens = 0
    for file in files:
        if most is not None and tokens >= most:
            break
        try:
            text = read_text("the text", file)
        except OptionsError:
            if named:
                raise
            continue
        ids = np.array(tokenizer.encode(text, errors="ignore"), np.uint32)
        tokens += len(ids)
        if join:
            joined.append(ids)
        elif len(ids):
            yield _stream(file.name if named else str(file.relative_to(path)), file.suffix, ids, tokenizer.n_vocab)
    if joined:
        yield _stream(path.name, "joined", np.concatenate(joined), tokenizer.n_vocab)


def _stream(name: str, kind: str, ids: Ids, n_vocab: int) -> Trace:
    return Trace(name, kind.lstrip(".") or "text", (Turn(ids[:0], ids),), n_vocab=n_vocab)
