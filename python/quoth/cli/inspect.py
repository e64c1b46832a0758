"""`quoth inspect MODEL`: what a file holds, and whether it can be run.

In: a file. Out: a page about it, or JSON. Weights are not read: whether they can be run is found out by planning to
load them, which checks every key, name, shape and type, and stopping before the first megabyte is done.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoth.cli._console import grid, show, table, visible
from quoth.cli._load import find
from quoth.cli._options import AsJson, ModelName, Pre
from quoth.cli._units import as_json, count, size
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from pathlib import Path

    from quoth import _core
    from quoth.model import Metadata

SHOWN = 4
"""Elements of an array that are shown."""

SIZES = {
    "context_length": "n_ctx_train",
    "block_count": "n_layer",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_ff",
    "attention.head_count": "n_head",
    "attention.head_count_kv": "n_head_kv",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_count": "n_expert",
    "expert_used_count": "n_expert_used",
    "rope.freq_base": "rope_base",
}
"""Keys below the architecture's name, and what the sizes are called."""


class _Enough(Exception):
    """Loading was planned and begun: nothing speaks against it."""


@dataclass(frozen=True)
class Verdict:
    """Whether something can be used, and if not, why."""

    ok: bool
    why: str | None = None


def inspect(
    model: ModelName,
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="List all tensors.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="List all keys; long arrays are shortened.")] = False,
    target: Annotated[
        str | None,
        typer.Option("--for", metavar="MODEL", help="Of a drafter's file: load this model, and say whether it fits."),
    ] = None,
    pre: Pre = None,
    json_: AsJson = False,
) -> None:
    """Tell what a GGUF file holds: sizes, quantization, tokenizer, chat template, and whether quoth can run it."""
    from quoth import _core
    from quoth.model import Metadata

    path = find(model)
    file = _core.GgufFile(path)
    meta = Metadata(file)
    facts = _facts(file, meta)
    facts |= _vocabulary(meta, pre) | _wishes(meta)
    facts["drafter"] = _drafter(file, meta)
    if facts["drafter"] is None:
        if target is not None:
            kinds = ", ".join(_core.drafter_kinds())
            raise OptionsError(
                f"--for goes with a drafter's file, found architecture {facts['architecture']}, not {kinds}"
            )
        facts["supported"] = _runnable(file, facts["n_tensors"])
    elif target is None:
        facts["supported"] = Verdict(
            False, "it is a drafter: give it to its model, with --drafter or Model(drafter=...)"
        )
    else:
        facts["supported"] = _fits(path, target)
    # A drafter's text is its model's.
    if facts["drafter"] is None and facts["supported"].ok and not facts["tokenizer"]["ok"]:
        facts["supported"] = Verdict(False, f"text cannot be used: {facts['tokenizer']['why']}")
    if facts["supported"].ok and "why" in facts["sampling"]:
        facts["supported"] = Verdict(False, facts["sampling"]["why"])
    if json_:
        facts |= {"path": str(path)}
        facts["supported"] = {"ok": facts["supported"].ok, "why": facts["supported"].why}
        if tensors:
            facts["tensors"] = [
                dict(zip(("name", "shape", "type", "n_bytes", "offset"), t, strict=True)) for t in file.tensors()
            ]
        if metadata:
            facts["metadata"] = {key: _short(meta[key]) for key in meta}
        print(json.dumps(as_json(facts), ensure_ascii=False))
        return
    show(grid([(name, visible(text)) for name, text in _page(str(path), facts)]))
    if facts["types"]:
        types = table("type", "tensors", "weights", "bytes", "share", right=(1, 2, 3, 4))
        whole = sum(t["n_bytes"] for t in facts["types"]) or 1
        for t in facts["types"]:
            part = f"{100 * t['n_bytes'] / whole:.1f} %"
            types.add_row(t["type"], str(t["tensors"]), count(t["weights"]), size(t["n_bytes"]), part)
        show(types)
    if tensors:
        listing = table("tensor", "shape", "type", "bytes", "offset", right=(3, 4))
        for name, shape, kind, n_bytes, offset in file.tensors():
            listing.add_row(visible(name), " x ".join(map(str, shape)), kind, str(n_bytes), str(offset))
        show(listing)
    if metadata:
        show(grid([(visible(key), visible(_text(meta[key]))) for key in meta]))


def _facts(file: _core.GgufFile, meta: Metadata) -> dict[str, Any]:
    """Everything that is known without opinions."""
    arch = meta.get("general.architecture")
    kinds: dict[str, dict[str, Any]] = {}
    for _, shape, kind, n_bytes, _ in file.tensors():
        entry = kinds.setdefault(kind, {"type": kind, "tensors": 0, "weights": 0, "n_bytes": 0})
        entry["tensors"] += 1
        entry["weights"] += prod(shape)
        entry["n_bytes"] += n_bytes
    types = sorted(kinds.values(), key=lambda t: -t["n_bytes"])
    sizes = {name: value for key, name in SIZES.items() if (value := meta.get(f"{arch}.{key}")) is not None}
    tokens = meta.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        sizes["n_vocab"] = len(tokens)
    return {
        "name": meta.get("general.name"),
        "architecture": arch,
        "n_bytes": file.n_bytes,
        "files": [str(path) for path in file.paths],
        "gguf_version": file.version,
        "license": meta.get("general.license"),
        "n_tensors": sum(t["tensors"] for t in types),
        "weights": sum(t["weights"] for t in types),
        "weight_bytes": sum(t["n_bytes"] for t in types),
        "sizes": sizes,
        "types": types,
    }


def _drafter(file: _core.GgufFile, meta: Metadata) -> dict[str, Any] | None:
    """What a drafter is made for; None if the file is none."""
    from quoth import _core

    kind = meta.get("general.architecture")
    if kind not in _core.drafter_kinds():
        return None
    shapes = {name: shape for name, shape, _, _, _ in file.tensors()}
    tokens = meta.get("tokenizer.ggml.tokens")
    n_vocab = meta.get(f"{kind}.vocab_size", len(tokens) if isinstance(tokens, list) else None)
    output = shapes.get("output.weight")
    return {
        "kind": kind,
        "n_embd": meta.get(f"{kind}.target_hidden_size", meta.get(f"{kind}.embedding_length")),
        "n_vocab": n_vocab,
        "n_draft": output[1] if output is not None and len(output) == 2 else n_vocab,
        "taps": meta.get(f"{kind}.target_layers"),
        "block_size": meta.get(f"{kind}.block_size"),
        "lent": [name for name in ("token_embd.weight", "output.weight") if name not in shapes],
    }


def _fits(path: Path, target: str) -> Verdict:
    """Whether a drafter can be attached to a model, which is loaded."""
    from quoth.cli._load import load
    from quoth.errors import QuothError

    try:
        load(target, ctx=1, drafters=[str(path)]).close()
    except QuothError as error:
        return Verdict(False, str(error).removeprefix(f"{path}: "))
    return Verdict(True, f"with {target}")


def _runnable(file: _core.GgufFile, n_tensors: int) -> Verdict:
    """Whether the model can be loaded: it is, up to the first report of progress."""
    from quoth import _core
    from quoth.errors import QuothError

    def enough(done: int, total: int) -> None:
        raise _Enough

    if not n_tensors:
        return Verdict(False, "the file has no tensors; a vocabulary alone can be tokenized with")
    try:
        _core.Model(file, 1, 1, None, enough)
    except _Enough:
        pass
    except (QuothError, OSError) as error:
        where = max((str(path) for path in file.paths), key=len, default="")
        return Verdict(False, str(error).removeprefix(f"{where}: "))
    return Verdict(True)


def _vocabulary(meta: Metadata, pre: str | None) -> dict[str, Any]:
    """The tokenizer and the chat templates, as far as they can be used."""
    from quoth.errors import TokenizerError
    from quoth.tokenizer import Tokenizer

    said: dict[str, Any] = {"model": meta.get("tokenizer.ggml.model"), "pre": meta.get("tokenizer.ggml.pre")}
    try:
        tokenizer = Tokenizer.from_metadata(meta, pre=pre)
    except TokenizerError as error:
        templates = [key for key in meta if key.startswith("tokenizer.chat_template")]
        return {
            "tokenizer": said | {"ok": False, "why": str(error)},
            "chat_templates": dict.fromkeys(templates),
        }
    said |= {
        "ok": True,
        "pre": tokenizer.pre,
        "n_vocab": tokenizer.n_vocab,
        "add_bos": tokenizer.add_bos,
        "special": {
            role: {"id": tokenizer.token_id(text), "text": text} for role, text in tokenizer.special_tokens.items()
        },
        "suppressed": sorted(tokenizer.suppressed_ids),
        "eog": [{"id": id, "text": tokenizer.token_text(id)} for id in sorted(tokenizer.eog_ids)],
    }
    return {
        "tokenizer": said,
        "chat_templates": {name: _compiles(tokenizer.chat_template(name)) for name in tokenizer.chat_templates},
    }


def _wishes(meta: Metadata) -> dict[str, Any]:
    """How the file wants tokens to be chosen, and what it says that changes nothing here."""
    from quoth.defaults import default_sampling, unused_keys
    from quoth.errors import ModelFileError
    from quoth.options import Sampling

    try:
        sampling = default_sampling(meta)
    except ModelFileError as error:
        return {"sampling": {"why": str(error)}, "unused_keys": unused_keys(meta)}
    off = asdict(Sampling())
    return {
        "sampling": {name: value for name, value in asdict(sampling).items() if value != off[name]},
        "unused_keys": unused_keys(meta),
    }


def _compiles(template: Any) -> str | None:
    """Why a template cannot be used; None if it can."""
    from quoth.template import TemplateError

    try:
        template.render([{"role": "user", "content": "Hello"}])
    except TemplateError as error:
        return str(error)
    return None


def _page(path: str, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts as names and texts."""
    rows = [("file", path), ("size", f"{size(facts['n_bytes'])}, GGUF {facts['gguf_version']}")]
    if len(facts["files"]) > 1:
        rows.append(("parts", str(len(facts["files"]))))
    rows += [
        (name, str(facts[key])) for name, key in (("name", "name"), ("license", "license")) if facts[key] is not None
    ]
    verdict = facts["supported"]
    rows.append(("architecture", str(facts["architecture"])))
    rows.append(
        ("runs", "yes" if verdict.ok and verdict.why is None else f"{'yes' if verdict.ok else 'no'}: {verdict.why}")
    )
    if (drafter := facts["drafter"]) is not None:
        made_for = f"hidden size {drafter['n_embd']}, {drafter['n_vocab']} tokens"
        if drafter["taps"]:
            made_for += f", reads the inputs of layers {', '.join(map(str, drafter['taps']))}"
        rows.append(("made for", made_for))
        drafts = f"{drafter['n_draft']} of its tokens"
        rows.append(("drafts", drafts + (f", {drafter['block_size']} at once" if drafter["block_size"] else "")))
        rows.append(("from its model", ", ".join(drafter["lent"]) or "nothing"))
    if facts["weights"]:
        bits = 8 * facts["weight_bytes"] / facts["weights"]
        rows.append(("weights", f"{count(facts['weights'])}, {size(facts['weight_bytes'])}, {bits:.2f} bits each"))
    rows += [(name, _text(value)) for name, value in facts["sizes"].items()]
    rows += _tokenizer_page(facts["tokenizer"])
    templates = facts["chat_templates"]
    shown = [name if why is None else f"{name} (fails: {why})" for name, why in templates.items()]
    rows.append(("chat template", ", ".join(shown) or "none"))
    if facts["sampling"]:
        rows.append(("sampling", ", ".join(f"{name} {_text(value)}" for name, value in facts["sampling"].items())))
    if facts["unused_keys"]:
        rows.append(("not used", ", ".join(facts["unused_keys"])))
    return rows


def _tokenizer_page(said: Mapping[str, Any]) -> list[tuple[str, str]]:
    if said["model"] is None:
        return [("tokenizer", "none in the file")]
    name = str(said["model"]) + (f", splitter {said['pre']}" if said["pre"] else "")
    if not said["ok"]:
        return [("tokenizer", f"{name}; unusable: {said['why']}")]
    special = [f"{role.removesuffix('_token')} {t['id']} {t['text']}" for role, t in said["special"].items()]
    return [
        ("tokenizer", f"{name}, {said['n_vocab']} tokens" + (", prompts begin with bos" if said["add_bos"] else "")),
        ("special tokens", "; ".join(special) or "none named"),
        *([("never chosen", f"{len(said['suppressed'])} tokens")] if said["suppressed"] else []),
        ("ends", "; ".join(f"{t['id']} {t['text']}" for t in said["eog"]) or "none named"),
    ]


def _short(value: Any) -> Any:
    """A value with long arrays cut."""
    if isinstance(value, list) and len(value) > SHOWN:
        return {"length": len(value), "first": value[:SHOWN]}
    return value


def _text(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, list):
        shown = ", ".join(_text(v) for v in value[:SHOWN])
        return f"[{shown}, … {len(value)} in all]" if len(value) > SHOWN else f"[{shown}]"
    if isinstance(value, bytes):
        return f"{len(value)} bytes that are not text"
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
