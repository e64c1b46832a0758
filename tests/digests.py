"""The promise across machines, in numbers: what fixed models say to fixed prompts. Read by `test_digests`.

In: a model. Out: an entry of `data/digests.toml`, which holds a model's name, its prompt, and

D1  a digest of the bits of all rows of logits after the prompt, for each way to cache keys and values;
D2  the tokens of a greedy continuation, and of one for each seed, with every filter and penalty of sampling in use.

Every instruction set must give every number, with and without speculation; so must an engine on another architecture,
which `rust/engine/tests/digests.rs` checks with the same table.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import quoth

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).parent / "data"
TABLE = DATA / "digests.toml"

FIXTURES = ("llama-Q4_K_M", "qwen2-Q4_K_M", "qwen3-Q2_K", "qwen3moe-Q4_K_M", "gemma3-Q4_K_M", "gemma4moe-Q4_K_M")
"""One model of each family, in `data/models`."""
DEFAULT = "smollm2-Q4_1"
KV_TYPES: tuple[quoth.model.KvType, ...] = ("f32", "f16", "q8_0")
SEEDS = (1, 2)
PROMPT_TOKENS, NEW_TOKENS = 40, 32
DEFAULT_PROMPT = "The sea was calm, the sea was"
DEFAULT_NEW_TOKENS = 12

Entry = dict[str, Any]


def sampling(seed: int) -> quoth.Sampling:
    """The sampling of the table: everything that there is."""
    return quoth.Sampling(
        temperature=0.8,
        top_k=40,
        top_p=0.95,
        min_p=0.02,
        repeat_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        repeat_last_n=64,
        seed=seed,
    )


def digest(rows: npt.NDArray[np.float32]) -> str:
    """The digest of the bits of some numbers: a polynomial over their words modulo 2^64, first word first."""
    words = rows.view(np.uint32).reshape(-1).astype(np.uint64)
    factors = np.full(len(words) + 1, 0x100_0000_01B3, np.uint64)
    factors[0] = 1
    powers = np.multiply.accumulate(factors)[::-1]
    whole = np.concatenate([np.array([0xCBF2_9CE4_8422_2325], np.uint64), words])
    return f"{int((whole * powers).sum(dtype=np.uint64)):016x}"


def prompt_of(name: str, model: quoth.Model) -> list[int]:
    """The prompt that a new entry gets. Entries keep theirs."""
    if name == DEFAULT:
        return model.tokenizer.encode(DEFAULT_PROMPT)
    # Half of it repeats, so that something can be drafted; no random generator whose stream might change.
    first = [(7 * i * i + 13 * i + 5) % model.n_vocab for i in range(PROMPT_TOKENS // 2)]
    return first + first


def new_tokens(name: str) -> int:
    """Tokens of a continuation."""
    return DEFAULT_NEW_TOKENS if name == DEFAULT else NEW_TOKENS


def entry(model: quoth.Model, name: str, prompt: list[int], *, speculation: bool) -> Entry:
    """What a model says: its entry, with the logits of the model's own cache kind alone."""
    found: Entry = {"prompt": prompt, model.kv_type: digest(model.session().forward(prompt))}
    for key, options in {"greedy": quoth.Sampling(), **{f"seed-{s}": sampling(s) for s in SEEDS}}.items():
        decoder = model.decoder(sampling=options, speculation=speculation or None)
        found[key] = list(decoder.generate(prompt, max_tokens=new_tokens(name), stop_at_eog=False).tokens)
    return found


def whole_entry(path: Path, name: str, kernels: str, prompt: list[int] | None, *, speculation: bool) -> Entry:
    """What the model of a file says with an instruction set: a whole entry. Texts come from the f16 cache."""
    found: Entry = {}
    for kv_type in KV_TYPES:
        model = quoth.Model(path, n_ctx=256, kernels=kernels, kv_type=kv_type)
        prompt = prompt_of(name, model) if prompt is None else prompt
        if kv_type == "f16":
            found |= entry(model, name, prompt, speculation=speculation)
        else:
            found[kv_type] = digest(model.session().forward(prompt))
    return found


def read() -> dict[str, Entry]:
    """The table."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def unpack(name: str, folder: Path) -> Path:
    """The file of a fixture, unpacked."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        path.write_bytes(lzma.decompress((DATA / "models" / f"{name}.gguf.xz").read_bytes()))
    return path
