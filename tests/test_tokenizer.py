"""What a tokenizer promises beyond equal ids: special tokens, prefixes, refusals, laziness, threads."""

from __future__ import annotations

import lzma
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quoth import _core
from quoth._metadata import Metadata
from quoth.errors import QuothError, TokenizerError
from quoth.tokenizer import Tokenizer
from vocabularies import DATA, tiny_vocabulary, vocabulary

KEY = "tokenizer.ggml."


def with_keys(name: str = "qwen2", **keys: object) -> dict:
    return {**tiny_vocabulary(name), **{KEY + key: value for key, value in keys.items()}}


def with_tokens(*added: tuple[str, int], name: str = "qwen2") -> dict:
    """A tiny vocabulary with more tokens behind its own: text and type of each."""
    base = tiny_vocabulary(name)
    metadata = {
        **base,
        KEY + "tokens": base[KEY + "tokens"] + [text for text, _ in added],
        KEY + "token_type": base[KEY + "token_type"] + [kind for _, kind in added],
    }
    if KEY + "scores" in base:
        metadata[KEY + "scores"] = base[KEY + "scores"] + [-1000.0] * len(added)
    return metadata


CONTROL = 3


# ---- special tokens


def test_control_tokens_in_text_stay_text_unless_the_caller_asks():
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary("qwen2"))
    end = tokenizer.token_id("<|im_end|>")
    text = "a<|im_end|>b"
    assert end not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    parsed = tokenizer.encode(text, special=True)
    assert parsed == [*tokenizer.encode("a"), end, *tokenizer.encode("b")]
    assert tokenizer.decode(parsed) == "ab"
    assert tokenizer.decode(parsed, skip_special=False) == text
    assert tokenizer.is_control(end)
    assert not tokenizer.is_control(parsed[0])


def test_phi_3_marks_swallow_the_space_behind_them():
    metadata = with_tokens(("<|user|>", CONTROL), name="llama")
    plain, phi = (Tokenizer.from_metadata({**metadata, "general.name": name}) for name in ("Other", "Phi-3 Mini"))
    mark = plain.n_vocab - 1
    assert phi.encode("<|user|>\n \tHi", special=True) == [mark, *phi.encode("Hi")]
    assert plain.encode("<|user|>\n \tHi", special=True) == [mark, *plain.encode("\n \tHi")]


# ---- what is added


def test_nothing_is_added_unless_asked_and_then_only_once():
    tokenizer = Tokenizer.from_metadata(with_keys("llama3", add_bos_token=True, add_eos_token=True))
    bos, eos, hello = tokenizer.bos_id, tokenizer.eos_id, tokenizer.encode("Hello")
    assert bos not in hello
    assert tokenizer.encode("Hello", add_bos=True) == [bos, *hello]
    assert tokenizer.encode("Hello", add_bos=None, add_eos=None) == [bos, *hello, eos]
    assert tokenizer.encode("", add_bos=None, add_eos=None) == [bos, eos]
    begun = tokenizer.special_tokens["bos_token"] + "Hello" + tokenizer.special_tokens["eos_token"]
    assert tokenizer.encode(begun, special=True, add_bos=True, add_eos=True) == [bos, *hello, eos]


def test_adding_a_token_that_the_file_does_not_name_is_refused():
    metadata = {key: value for key, value in tiny_vocabulary("qwen2").items() if key != KEY + "bos_token_id"}
    with pytest.raises(TokenizerError, match="bos_token_id"):
        Tokenizer.from_metadata(metadata).encode("a", add_bos=True)


def test_the_space_in_front_follows_the_file_the_parameter_and_special_tokens():
    tokenizer = Tokenizer.from_metadata(vocabulary("llama-spm"))
    assert tokenizer.add_space_prefix
    texts = [tokenizer.token_text(id) for id in tokenizer.encode("Hello world")]
    assert texts == ["\u2581Hello", "\u2581world"]
    assert tokenizer.token_text(tokenizer.encode("Hello", add_space_prefix=False)[0]) == "Hello"
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
    assert tokenizer.decode(tokenizer.encode(" Hello")) == " Hello"
    assert tokenizer.decode(tokenizer.encode("Hello"), strip_prefix=False) == " Hello"
    assert tokenizer.decode([tokenizer.bos_id, *tokenizer.encode("Hello")]) == "Hello"
    inner = tokenizer.encode("Hello</s>Hello</s>", special=True)
    assert [tokenizer.token_text(id) for id in inner] == ["\u2581Hello", "</s>", "\u2581Hello", "</s>"]
    without = Tokenizer.from_metadata({**vocabulary("llama-spm"), KEY + "add_space_prefix": False})
    assert without.encode("Hello") == tokenizer.encode("Hello", add_space_prefix=False)
    assert without.decode(without.encode(" Hello")) == " Hello"


def test_vocabularies_with_merges_take_a_space_in_front_only_when_asked():
    tokenizer = Tokenizer.from_metadata(with_keys("qwen2", add_space_prefix=True))
    assert tokenizer.encode("Hello") == Tokenizer.from_metadata(tiny_vocabulary("qwen2")).encode("Hello")
    assert tokenizer.encode("Hello", add_space_prefix=True) == tokenizer.encode(" Hello")
    assert tokenizer.encode(" Hello", add_space_prefix=True) == tokenizer.encode(" Hello")


# ---- odd text


def test_empty_text_has_no_tokens():
    for name in ("qwen2", "gemma3", "gemma4"):
        tokenizer = Tokenizer.from_metadata(tiny_vocabulary(name))
        assert tokenizer.encode("") == []
        assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("text", ["\ud800", "ab\udfffc", "\udcff", "\ud83d \udc4d"])  # noqa: PT014 - all differ
def test_a_lone_surrogate_is_refused_with_its_place(text):
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary("qwen2"))
    at = next(at for at, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    with pytest.raises(TokenizerError, match=f"U\\+{ord(text[at]):04X} at character {at}"):
        tokenizer.encode(text)


def test_what_is_not_text_is_refused():
    with pytest.raises(TokenizerError, match="bytes"):
        Tokenizer.from_metadata(tiny_vocabulary("qwen2")).encode(b"abc")


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "gemma4"])
def test_a_character_without_tokens_is_refused_by_name_or_left_out_when_asked(name):
    base = tiny_vocabulary(name)
    lost = "\u0104" if name == "qwen2" else "<0x04>"
    tokens = ["gone" if token == lost else token for token in base[KEY + "tokens"]]
    tokenizer = Tokenizer.from_metadata({**base, KEY + "tokens": tokens})
    with pytest.raises(TokenizerError, match=r"U\+0004, found at character 2"):
        tokenizer.encode("ab\x04c")
    assert tokenizer.decode(tokenizer.encode("ab\x04c", errors="ignore")) == "abc"
    assert tokenizer.decode(tokenizer.encode("ab\x05c")) == "ab\x05c"


@pytest.mark.parametrize("id", [-1, 512, 1 << 40, True, False])
def test_an_id_outside_the_vocabulary_is_refused(id):
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary("qwen2"))
    for ask in (
        tokenizer.token_bytes,
        tokenizer.token_text,
        tokenizer.is_control,
        lambda id: tokenizer.decode([0, id]),
        lambda id: tokenizer.decode([0, id], skip_special=False),
        lambda id: tokenizer.stream().push([id]),
    ):
        with pytest.raises(TokenizerError, match=f"0 to 511, found {id}"):
            ask(id)


def test_bytes_that_are_no_text_are_replaced_refused_or_ignored_as_asked():
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary("qwen2"))
    ids = tokenizer.encode("a\u00e9")[:-1]
    assert tokenizer.decode(ids) == "a\ufffd"
    assert tokenizer.decode(ids, errors="ignore") == "a"
    with pytest.raises(UnicodeDecodeError):
        tokenizer.decode(ids, errors="strict")
    stream = tokenizer.stream(errors="strict")
    assert stream.push(ids) == "a"
    with pytest.raises(UnicodeDecodeError):
        stream.finish()


# ---- bytes


def test_bytes_given_by_the_caller_are_compared():
    own = [Tokenizer.from_metadata(tiny_vocabulary("qwen2")).token_bytes(id) for id in range(512)]
    assert Tokenizer.from_metadata(tiny_vocabulary("qwen2"), token_bytes=own).n_vocab == 512
    with pytest.raises(TokenizerError, match="512 tokens, found 1"):
        Tokenizer.from_metadata(tiny_vocabulary("qwen2"), token_bytes=[b""])
    with pytest.raises(TokenizerError, match="as the bytes of token 3, found b'no'"):
        Tokenizer.from_metadata(tiny_vocabulary("qwen2"), token_bytes=[*own[:3], b"no", *own[4:]])


# ---- refusals


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "rwkv"}, "`rwkv`.*gemma4`, `gpt2`, `llama"),
        ({"model": None}, "names no vocabulary"),
        ({"model": 7}, "tokenizer.ggml.model` is the whole number 7, expected text"),
        ({"tokens": None}, "tokenizer.ggml.tokens` is missing"),
        ({"tokens": []}, "tokenizer.ggml.tokens` has 0 elements"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens` is the text `abc`"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens` is an array of whole numbers, expected an array of text"),
        ({"tokens": ["a", None]}, "tokenizer.ggml.tokens` is an array with an entry 1 of the type NoneType"),
        ({"tokens": ["a", "\ud800"]}, "tokenizer.ggml.tokens` is an array with an entry 1 of the type str"),
        ({"tokens": {"a": 1}}, "tokenizer.ggml.tokens` is of the type dict"),
        ({"merges": None}, "tokenizer.ggml.merges` is missing"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type` has 1 elements, expected one for each of 512 tokens"),
        ({"token_type": [True] * 512}, "an entry 0 of the type bool, expected an array of whole numbers"),
        ({"eos_token_id": 512}, "tokenizer.ggml.eos_token_id` is 512, expected a token id below 512"),
        ({"eos_token_id": 1 << 200}, "tokenizer.ggml.eos_token_id` is a whole number beyond 128 bits"),
        ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id` is the text `x`, expected a token id"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token` is the whole number 1, expected a flag"),
        ({"pre": 3}, "tokenizer.ggml.pre` is the whole number 3, expected text"),
        ({"pre": 3.5}, "tokenizer.ggml.pre` is the number 3.5, expected text"),
    ],
)
def test_a_damaged_vocabulary_is_refused_when_the_tokenizer_is_made(keys, said):
    with pytest.raises(TokenizerError, match=said):
        Tokenizer.from_metadata(with_keys("qwen2", **keys))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"merges": ["c"]}, "merge 0 of key `tokenizer.ggml.merges` is `c`, expected two parts"),
        ({"merges": ["never seen"]}, "does not fit the vocabulary: it has no token `never`"),
        ({"tokens": ["a", b"\xff"] * 256}, "token 1 of key `tokenizer.ggml.tokens`"),
        (
            {"tokens": ["a", "b", "a"], "token_type": [1, 1, 1], "eos_token_id": 0, "padding_token_id": 0},
            "`a` with the ids 0 and 2",
        ),
    ],
)
def test_a_damaged_vocabulary_is_refused_when_it_is_first_used(keys, said):
    with pytest.raises(TokenizerError, match=said):
        Tokenizer.from_metadata(with_keys("qwen2", **keys)).encode("ab")


def test_scores_are_needed_where_there_are_no_merges_and_a_splitter_is_refused_there():
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.scores"):
        Tokenizer.from_metadata(with_keys("gemma3", scores=None))
    with pytest.raises(TokenizerError, match="kind `llama`, found `qwen2`"):
        Tokenizer.from_metadata(tiny_vocabulary("gemma3"), pre="qwen2")


# ---- the mapping, threads


def test_a_mapping_is_read_like_the_file_it_came_from(tmp_path):
    path = tmp_path / "v.gguf"
    path.write_bytes(lzma.decompress((DATA / "llama-spm.gguf.xz").read_bytes()))
    file = Metadata(_core.GgufFile(path))
    plain = dict(file)
    arrays = {key: np.array(value) if key.endswith(("scores", "token_type")) else value for key, value in plain.items()}
    text = "Hello <s> w\u00f6rld\n\t 1234"
    made = [Tokenizer.from_metadata(metadata) for metadata in (file, plain, arrays)]
    assert len({tuple(tokenizer.encode(text, special=True, add_bos=None)) for tokenizer in made}) == 1
    assert len({tokenizer.eog_ids for tokenizer in made}) == 1


def test_what_a_mapping_raises_comes_through():
    class Broken(dict):
        def get(self, key, default=None):
            raise ZeroDivisionError(key)

    with pytest.raises(ZeroDivisionError):
        Tokenizer.from_metadata(Broken())


def test_importing_a_tokenizer_loads_no_jinja2():
    program = "import sys, quoth.tokenizer, quoth.template; assert 'jinja2' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_many_threads_get_the_same_ids():
    tokenizer = Tokenizer.from_metadata(vocabulary("gpt-2"))
    texts = [f"thread {n} says {n * 37} times: hello" for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(tokenizer.encode, texts))
    assert [tokenizer.decode(ids) for ids in found] == texts


def test_bytes_that_may_stand_anywhere_in_a_text_have_ids_that_spell_them():
    for name in ("qwen2", "gemma3", "gemma4"):
        tokenizer = Tokenizer.from_metadata(tiny_vocabulary(name))
        data = b"a \xff\xe2\x96\x81 \xc3"
        assert b"".join(map(tokenizer.token_bytes, tokenizer._core.tokenize_bytes(data))) == data


def test_errors_are_the_packages_own():
    assert issubclass(TokenizerError, QuothError)
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary("qwen2"))
    assert repr(tokenizer) == "<Tokenizer model='gpt2', pre='qwen2', n_vocab=512>"
    assert len(tokenizer) == tokenizer.n_vocab == 512
