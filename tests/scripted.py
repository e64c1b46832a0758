"""Models that say what they are told: for tests that need an answer with its tokens cut in a certain way.

The next token depends on the last one alone: each script is a chain of tokens that no other script has. Which script an
answer begins with is chosen by a bias on its first token. Keys and values are those of random weights, so caches can be
compared; nothing of attention reaches the logits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import quoth

if TYPE_CHECKING:
    from types import ModuleType

N_EMBD = 512
"""Width, and size of the vocabulary: token t is the t-th direction."""
END, START, STOP, EOT = 256, 257, 258, 259
MARKS = {END: "<|endoftext|>", START: "<|im_start|>", STOP: "<|im_end|>", EOT: "<|eot_id|>"}
BIAS = 6.0
"""Enough to begin a script where nothing else is probable, too little to leave one."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILY = "\U0001f468‍\U0001f469‍\U0001f467"

SCRIPTS: dict[str, list[bytes | int]] = {
    "hello": [b"Hel", b"lo, ", b"you", b" there", b"!.", STOP],
    "other end": [b"The", b" end", b" is", b" near", b"!!", EOT],
    "apart": [b"one", b" two", b" #", b"# ", b"three", b" four", STOP],
    "astride": [b"red", b" green #", b"#blue", b" white", STOP],
    "nearly": [b"x #", b" #y", b" ##", b"zz", STOP],
    "both roles": [b"Sure", b" thing", STOP, START, b"user", b" said"],
}
"""Texts that end with an id are followed by that token; others begin again."""

LETTERS = {
    "family": f"{FAMILY} and {FAMILY}, ",
    "hangul": "안녕하세요 세계. ",
    "cyrillic": "Привет, мир. ",
}
"""Texts that are cut inside their characters, and repeat."""

PHRASE = "all work and no play makes a dull day; "


@dataclass(frozen=True)
class Scripted:
    """A scripted model's file, and what its tokens are."""

    path: Path
    tokens: dict[str, tuple[int, ...]]
    """The chain of each script, marks included."""

    def model(self, **options: Any) -> quoth.Model:
        """The model."""
        return quoth.Model(self.path, threads=1, **options)

    def say(self, script: str, **options: Any) -> quoth.Sampling:
        """Sampling that begins a script, and stays with it."""
        return quoth.Sampling(logit_bias={self.tokens[script][0]: BIAS}, **options)


def cut(text: bytes, taken: set[bytes]) -> list[bytes]:
    """Cut a text into pieces of two bytes or more that nothing else has."""
    pieces = []
    while text:
        size = next(n for n in range(2, len(text) + 1) if text[:n] not in taken and len(text) - n != 1)
        pieces.append(text[:size])
        taken.add(text[:size])
        text = text[size:]
    return pieces


def write(
    path: Path, tool: ModuleType, *, certain: float = 20.0, more: Mapping[str, list[bytes | int]] | None = None
) -> Scripted:
    """Write the model.

    Args:
        path: Where.
        tool: `tools/make_synthetic.py`.
        certain: Logit of the next token of a script; all others have 0.
        more: Scripts beside the usual ones.
    """
    gguf = sys.modules["gguf"]
    letters = tool.byte_letters()
    names = [*letters, *MARKS.values(), letters[0x20] * 2]  # a merge, since readers ask for one
    taken = {bytes([b]) for b in range(256)}
    scripts = {**SCRIPTS, **(more or {})}
    taken |= {piece for script in scripts.values() for piece in script if isinstance(piece, bytes)}
    for name, text in {**LETTERS, "phrase": PHRASE}.items():
        scripts[name] = list(cut(text.encode(), taken))
    follows: list[tuple[int, int]] = []
    chains: dict[str, tuple[int, ...]] = {}
    for name, script in scripts.items():
        chain = []
        for piece in script:
            if isinstance(piece, bytes):
                chain.append(len(names))
                names.append("".join(letters[b] for b in piece))
            else:
                chain.append(piece)
        follows += pairwise(chain)
        if isinstance(script[-1], bytes):
            follows.append((chain[-1], chain[0]))
        chains[name] = tuple(chain)
    n_vocab = len(names)
    assert len(set(names)) == n_vocab <= N_EMBD

    rng = np.random.default_rng(5)
    head = np.zeros((n_vocab, N_EMBD), np.float32)
    for token, following in follows:
        head[following, token] = certain / N_EMBD**0.5
    writer = gguf.GGUFWriter(path, "llama")
    shape = tool.Shape("llama", n_vocab, 4096, 1, N_EMBD, 256, 4, 2, 64, 1e5, 1e-5, tied=False)
    tool.add_metadata(writer, shape, "scripted", "F32")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_token_types([control if id in MARKS else normal for id in range(n_vocab)])
    writer.add_token_merges([f"{letters[0x20]} {letters[0x20]}"])
    writer.add_eos_token_id(STOP)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)
    zeros = {
        "attn_output": (N_EMBD, 256),
        "ffn_gate": (256, N_EMBD),
        "ffn_up": (256, N_EMBD),
        "ffn_down": (N_EMBD, 256),
    }
    writer.add_tensor("token_embd.weight", np.eye(n_vocab, N_EMBD, dtype=np.float32))
    writer.add_tensor("output.weight", head)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(N_EMBD, np.float32))
    writer.add_tensor("blk.0.ffn_norm.weight", np.ones(N_EMBD, np.float32))
    for name, n in (("attn_q", 256), ("attn_k", 128), ("attn_v", 128)):
        writer.add_tensor(f"blk.0.{name}.weight", rng.standard_normal((n, N_EMBD)).astype(np.float32))
    for name, size in zeros.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Scripted(path, chains)
