"""What a tokenizer promises beyond equal ids: special tokens, prefixes, refusals, laziness, threads."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from quoth.errors import QuothError, TokenizerError
from quoth.tokenizer import Tokenizer
from quoth.vocabulary.bpe import _pairs
from quoth.vocabulary.special import SpecialFinder
from quoth.vocabulary.splitters import SPLITTERS
from quoth.vocabulary.tokens import BYTE_OF, CHARACTER_OF
from vocabularies import tiny_vocabulary, vocabulary

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


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


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


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "gemma4"])
def test_user_defined_tokens_are_found_whether_or_not_special_tokens_are_parsed_and_show_in_text(name):
    tokenizer = Tokenizer.from_metadata(with_tokens(("<tool_call>", USER_DEFINED), ("  \n", USER_DEFINED), name=name))
    first, second = tokenizer.n_vocab - 2, tokenizer.n_vocab - 1
    for special in (False, True):
        ids = tokenizer.encode("a<tool_call>b  \nc", special=special)
        assert ids == [*tokenizer.encode("a"), first, *tokenizer.encode("b"), second, *tokenizer.encode("c")]
        assert tokenizer.decode(ids) == "a<tool_call>b  \nc"


def test_a_control_token_is_not_made_from_text_even_where_words_are_taken_whole():
    metadata = with_tokens(("[INST", CONTROL), ("whole", NORMAL), name="llama3")  # llama3 takes words whole
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("whole") == [tokenizer.token_id("whole")]
    assert tokenizer.token_id("whole") not in Tokenizer.from_metadata(metadata, pre="qwen2").encode("whole")
    assert tokenizer.token_id("[INST") not in tokenizer.encode("[INST")
    assert tokenizer.encode("[INST", special=True) == [tokenizer.token_id("[INST")]


def test_a_control_token_is_not_joined_from_text_by_score():
    tokens = ["<unk>", "<", "s", ">", "<s", "<s>", "<0", "x4", "1>", "<0x4"] + [
        f"<0x{byte:02X}>" for byte in range(256)
    ]
    metadata = {
        KEY + "model": "llama",
        KEY + "tokens": tokens,
        KEY + "scores": [0.0, -3, -3, -3, -1, 0.0, -1, -1, -1, -1] + [0.0] * 256,
        KEY + "token_type": [UNKNOWN, NORMAL, NORMAL, NORMAL, NORMAL, CONTROL, *[NORMAL] * 4] + [BYTE] * 256,
        KEY + "add_space_prefix": False,
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("<s>") == [4, 3]
    assert tokenizer.encode("<s>", special=True) == [5]
    assert tokenizer.encode("<0x41>") == [9, 8]
    assert tokenizer.decode(tokenizer.encode("<0x41>\u00e9")) == "<0x41>\u00e9"


def test_a_turn_end_that_the_file_types_as_text_counts_as_control():
    metadata = with_tokens(("<|eot_id|>", NORMAL))
    tokenizer = Tokenizer.from_metadata(metadata)
    id = tokenizer.n_vocab - 1
    assert tokenizer.encode("<|eot_id|>", special=True) == [id]
    assert id not in tokenizer.encode("<|eot_id|>")
    assert tokenizer.decode([id]) == ""
    assert id in tokenizer.eog_ids


def test_generation_ends_at_named_ids_and_at_well_known_names_but_not_at_ordinary_text():
    metadata = with_tokens(("<end_of_turn>", CONTROL), ("</s>", NORMAL), ("<|fim_pad|>", CONTROL), ("bye", NORMAL))
    n = len(metadata[KEY + "tokens"])
    tokenizer = Tokenizer.from_metadata({**metadata, KEY + "eot_token_id": n - 1})
    assert tokenizer.eos_id in tokenizer.eog_ids
    assert {n - 4, n - 2, n - 1} <= tokenizer.eog_ids
    assert n - 3 not in tokenizer.eog_ids  # `</s>` may be text; here the file says that it is
    for kind, ends in ((CONTROL, True), (UNKNOWN, True), (USER_DEFINED, False)):
        tokenizer = Tokenizer.from_metadata(with_tokens(("</s>", kind)))
        assert (tokenizer.n_vocab - 1 in tokenizer.eog_ids) == ends, kind
    harmony = with_tokens(("<|return|>", CONTROL), ("<|call|>", CONTROL), ("<|end|>", CONTROL))
    tokenizer = Tokenizer.from_metadata(harmony)
    ends = [tokenizer.token_id(text) in tokenizer.eog_ids for text in ("<|return|>", "<|call|>", "<|end|>")]
    assert ends == [True, True, False]


def test_the_leftmost_token_wins_and_of_several_at_one_place_the_longest():
    finder = SpecialFinder([("ab", 1), ("abc", 2), ("bcd", 3), ("x", 4), ("<|a|>", 5)])
    assert finder.split("abcd") == [2, "d"]
    assert finder.split("zbcdab") == ["z", 3, 1]
    assert finder.split("<|b|><|a|>x<|") == ["<|b|>", 5, 4, "<|"]
    assert finder.split("") == []
    assert SpecialFinder([]).split("ab") == ["ab"]
    assert SpecialFinder([("", 7)]).split("ab") == ["ab"]


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


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("qwen2", {}, False),  # the file says so
        ("gemma3", {}, True),
        ("gemma4", {"add_bos_token": False}, True),  # files that deny it are known to be wrong
        ("qwen2", {"add_bos_token": None}, False),
        ("llama3", {"add_bos_token": None}, True),
        ("gemma3", {"add_bos_token": None}, True),
    ],
)
def test_whether_a_text_begins_with_a_token_comes_from_the_file_or_else_from_the_family(name, keys, expected):
    assert Tokenizer.from_metadata(with_keys(name, **keys)).add_bos is expected


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
    lost = CHARACTER_OF[4] if name == "qwen2" else "<0x04>"
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


def test_the_byte_alphabet_pairs_each_byte_with_one_character():
    assert len(BYTE_OF) == 256
    assert [BYTE_OF[character] for character in CHARACTER_OF] == list(range(256))
    assert (CHARACTER_OF[0x20], CHARACTER_OF[0x0A], CHARACTER_OF[0], CHARACTER_OF[0xAD]) == ("Ġ", "Ċ", "Ā", "\u0143")


def test_the_bytes_of_tokens_of_each_kind():
    added = (("\u2581x y", NORMAL), ("\u2581<b>", USER_DEFINED), ("<0xFF>", BYTE), ("<0xZZ>", BYTE), ("éé", UNUSED))
    names = {"gemma4": [b" x y", "\u2581<b>".encode(), b"\xff", b"<0xZZ>", "éé".encode()]}
    names["qwen2"] = ["\u2581x y".encode(), "\u2581<b>".encode(), b"\xff", b"<0xZZ>", b"\xe9\xe9"]
    for name, expected in names.items():
        base = tiny_vocabulary(name)
        tokens = [f"was {token}" if token == "<0xFF>" else token for token in base[KEY + "tokens"]]
        metadata = with_tokens(*added, name=name)
        metadata[KEY + "tokens"] = tokens + [text for text, _ in added]
        tokenizer = Tokenizer.from_metadata(metadata)
        assert [tokenizer.token_bytes(tokenizer.n_vocab - 5 + at) for at in range(5)] == expected
        assert tokenizer.token_bytes(tokenizer.eos_id) == tokenizer.special_tokens["eos_token"].encode()


def test_bytes_given_by_the_caller_are_used():
    n = len(tiny_vocabulary("qwen2")[KEY + "tokens"])
    given = [b"<%d>" % id for id in range(n)]
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary("qwen2"), token_bytes=given)
    assert tokenizer.decode([3, 4]) == "<3><4>"
    assert tokenizer.stream().push([3, 4]) == "<3><4>"
    with pytest.raises(TokenizerError, match=f"{n} tokens, found 1"):
        Tokenizer.from_metadata(tiny_vocabulary("qwen2"), token_bytes=[b""])


# ---- refusals


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "rwkv"}, "`rwkv`.*gemma4, gpt2, llama"),
        ({"model": None}, "names no vocabulary"),
        ({"model": 7}, "expected text in tokenizer.ggml.model"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"token_type": [1]}, "512 entries in tokenizer.ggml.token_type, found 1 entries"),
        ({"token_type": 3}, "512 entries in tokenizer.ggml.token_type, found int"),
        ({"eos_token_id": 512}, "below 512 in tokenizer.ggml.eos_token_id, found 512"),
        ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id"),
        ({"add_bos_token": 1}, "flag in tokenizer.ggml.add_bos_token"),
        ({"pre": 3}, "expected text in tokenizer.ggml.pre"),
    ],
)
def test_a_damaged_vocabulary_is_refused_when_the_tokenizer_is_made(keys, said):
    with pytest.raises(TokenizerError, match=said):
        Tokenizer.from_metadata(with_keys("qwen2", **keys))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"merges": ["ab"]}, "two parts in merge 0"),
        ({"merges": ["a", "b c"]}, "two parts in merge 0"),
        ({"merges": ["a b", "never seen"]}, "do not fit the vocabulary"),
        (
            {"tokens": ["a", "b", "a"], "token_type": [1, 1, 1], "eos_token_id": 0, "padding_token_id": 0},
            "'a' with the ids 0 and 2",
        ),
    ],
)
def test_a_damaged_vocabulary_is_refused_when_it_is_first_used(keys, said):
    with pytest.raises(TokenizerError, match=said):
        Tokenizer.from_metadata(with_keys("qwen2", **keys)).encode("ab")


def test_a_part_of_a_merge_may_begin_with_a_space():
    assert _pairs(["a b", " c d", "  e"]) == [("a", "b"), (" c", "d"), (" ", "e")]


def test_scores_are_needed_where_there_are_no_merges_and_a_splitter_is_refused_there():
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.scores"):
        Tokenizer.from_metadata(with_keys("gemma3", scores=None))
    with pytest.raises(TokenizerError, match="kind `llama`, found 'qwen2'"):
        Tokenizer.from_metadata(tiny_vocabulary("gemma3"), pre="qwen2")


def test_padding_ids_outside_the_vocabulary_are_ignored_as_files_have_them():
    tokenizer = Tokenizer.from_metadata(with_keys("qwen2", padding_token_id=512))
    assert "pad_token" not in tokenizer.special_tokens


def test_tokens_without_text_are_possible_and_never_made():
    tokenizer = Tokenizer.from_metadata(with_tokens(("", NORMAL), ("", UNUSED), ("", CONTROL)))
    assert tokenizer.decode(tokenizer.encode("some text", special=True)) == "some text"
    assert tokenizer.token_bytes(tokenizer.n_vocab - 1) == b""


def test_a_file_without_token_types_still_knows_bytes_and_named_tokens():
    for name in ("qwen2", "gemma3", "gemma4"):
        metadata = {key: value for key, value in tiny_vocabulary(name).items() if key != KEY + "token_type"}
        tokenizer = Tokenizer.from_metadata(metadata)
        assert tokenizer.decode(tokenizer.encode("a\u00e9\u4e2d\U0001f44d b")) == "a\u00e9\u4e2d\U0001f44d b"
        assert tokenizer.decode([tokenizer.eos_id]) == ""


# ---- laziness and threads


def test_decoding_builds_nothing(monkeypatch):
    tokenizer = Tokenizer.from_metadata(vocabulary("gpt-2"))

    def build(self):
        raise AssertionError("built")

    monkeypatch.setattr(Tokenizer, "_build", build)
    assert tokenizer.decode([15496, 995]) == "Hello world"
    assert tokenizer.stream().push(15496) == "Hello"
    assert tokenizer.eog_ids == {50256}
    with pytest.raises(AssertionError):
        tokenizer.encode("Hello")


def test_importing_and_making_a_tokenizer_loads_neither_tokenizers_nor_jinja2():
    program = (
        "import sys; from quoth.tokenizer import Tokenizer; import quoth.template; "
        "assert not {'tokenizers', 'jinja2'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_many_threads_build_once_and_get_the_same_ids(monkeypatch):
    built = []
    build = Tokenizer._build
    monkeypatch.setattr(Tokenizer, "_build", lambda self: built.append(1) or build(self))
    tokenizer = Tokenizer.from_metadata(vocabulary("gpt-2"))
    texts = [f"thread {n} says {n * 37} times: hello" for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(tokenizer.encode, texts))
    assert len(built) == 1
    assert [tokenizer.decode(ids) for ids in found] == texts


def test_errors_are_the_packages_own():
    assert issubclass(TokenizerError, QuothError)
    assert len(SPLITTERS) > 80
    tokenizer = Tokenizer.from_metadata(tiny_vocabulary("qwen2"))
    assert repr(tokenizer) == "<Tokenizer model='gpt2', pre='qwen2', n_vocab=512>"
    assert len(tokenizer) == tokenizer.n_vocab == 512
