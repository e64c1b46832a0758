"""What surrounds a vocabulary's ids, for each kind: tokens that are added, the space in front, bytes, special tokens.

And the engine's own idea of what tokens say.
"""

from __future__ import annotations

import codecs
import lzma
from pathlib import Path
from typing import Any

import pytest

import quoth
from quoth.tokenizer import Tokenizer
from vocabularies import goldens, vocabulary

KEY = "tokenizer.ggml."
DATA = Path(__file__).parent / "data" / "models"
CONTROL, USER_DEFINED = 3, 4
ADDED = {
    # What these files add when asked to do as they say: ids in front and behind.
    "gpt-2": ([], []),
    "llama-spm": ([1], []),
    "llama-bpe": ([128000], []),
    "qwen2": ([], []),
    "gemma-4": ([2], []),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ADDED)
def test_every_golden_line_gets_what_the_file_adds_and_nothing_else(name: str) -> None:
    front, behind = ADDED[name]
    tokenizer = Tokenizer.from_metadata(vocabulary(name))
    for text, ids in goldens(name):
        assert tokenizer.encode(text, add_bos=None, add_eos=None) == [*front, *ids, *behind], text
        assert tokenizer.encode(text) == ids, "nothing is added unasked"


TEXTS = [
    "Hello",
    " Hello",
    "  Hello",
    "   ",
    "",
    "a b",
    "a  b ",
    "\nHello",
    "\t x",
    "\u2581x",
    "<s>a",
    "x<s> y",
    "né 🙂",
]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_the_space_in_front_is_put_there_and_taken_away_again(text: str, prefix: bool) -> None:
    metadata = {**vocabulary("llama-spm"), KEY + "add_space_prefix": prefix}
    tokenizer = Tokenizer.from_metadata(metadata)
    spaced = text.replace("\u2581", " ")  # the vocabulary's own sign for a space
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == spaced
    said = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert said == (" " if prefix and text else "") + spaced
    # A caller that says what is wanted gets it.
    for asked in (True, False):
        assert tokenizer.encode(text, add_space_prefix=asked) == Tokenizer.from_metadata(
            {**metadata, KEY + "add_space_prefix": asked}
        ).encode(text)


@pytest.mark.parametrize("name", ["llama-spm", "gemma-4", "qwen2"])
def test_control_and_added_tokens_are_found_by_their_whole_text_where_they_may_be(name: str) -> None:
    metadata = vocabulary(name)
    tokens, types = metadata[KEY + "tokens"], metadata[KEY + "token_type"]
    tokenizer = Tokenizer.from_metadata(metadata)
    of_kind = {kind: [id for id, found in enumerate(types) if found == kind and tokens[id]] for kind in (3, 4)}
    assert of_kind[CONTROL]
    for id in of_kind[CONTROL][:150]:
        text = f"a{tokens[id]}b"
        assert id in tokenizer.encode(text, special=True), tokens[id]
        assert id not in tokenizer.encode(text), tokens[id]
        assert tokenizer.is_control(id)
    for id in of_kind[USER_DEFINED][:150]:
        # A longer one may hold it; alone it is itself.
        assert tokenizer.encode(tokens[id], add_space_prefix=False) == [id], tokens[id]
        assert tokenizer.decode([id], strip_prefix=False) == tokens[id]
        assert not tokenizer.is_control(id)


@pytest.mark.parametrize("packed", sorted(DATA.glob("*.gguf.xz")), ids=lambda path: path.name.partition("-")[0])
def test_the_engine_says_what_the_tokenizer_decodes(packed: Path, tmp_path: Path) -> None:
    """The core has the bytes of tokens by itself: byte tokens, marks for spaces, control tokens."""
    path = tmp_path / "model.gguf"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    model = quoth.Model(path, n_ctx=256, threads=1)
    kinds: set[Any] = set()
    for seed in range(6):
        # So hot that all tokens come.
        decoder = model.decoder(sampling=quoth.Sampling(temperature=50.0, seed=seed))
        prompt = model.tokenizer.encode("Hello")
        result = decoder.generate(prompt, max_tokens=200, stop_at_eog=False)
        tokenizer = model.tokenizer
        shown = [tokenizer.token_bytes(id) for id in result.tokens if not tokenizer.is_control(id)]
        # A text that was cut off ends with its last whole character.
        assert result.text == codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(shown))
        kinds |= {len(model.tokenizer.token_bytes(id)) == 1 for id in result.tokens}
        kinds |= {"control" for id in result.tokens if model.tokenizer.is_control(id)}
    assert kinds == {True, False, "control"}
