"""Conversations refuse what makes no sense, by name, where it comes in; what they save they can load."""

from __future__ import annotations

import array
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import quoth
from scripted import CHATML, Scripted

SURROGATE = "a\ud800"


@pytest.fixture(scope="module")
def model(scripted: Scripted) -> quoth.Model:
    return scripted.model(n_ctx=512)


def refused(call: Callable[[], object], message: str, kind: type[Exception] = quoth.OptionsError) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def names(cases: list[tuple[Any, str]]) -> Any:
    """Parameters that are called by their messages: some have no text."""
    return pytest.mark.parametrize(("value", "message"), cases, ids=[message for _, message in cases])


STOPS = [
    (b"END", "stop is bytes, expected texts and token ids"),
    (bytearray(b"END"), "stop is bytearray, expected texts and token ids"),
    (None, "stop is None, expected texts and token ids"),
    (3.5, "stop is 3.5, expected texts and token ids"),
    (True, "stop is True, expected texts and token ids"),
    ([1, True], "stop is [1, True], expected texts and token ids"),
    ([None], "stop is [None], expected texts and token ids"),
    ({"a"}, "stop is {'a'}, expected texts and token ids"),
    ("", "stop is '', expected texts of at least one character"),
    ([SURROGATE], "stop has a lone surrogate at character 1, expected text"),
    (10**6, "stop is 1000000, expected token ids of 0 to"),
]


@names(STOPS)
def test_stops_are_texts_and_ids_wherever_they_are_given(model: quoth.Model, value: Any, message: str) -> None:
    refused(lambda: model.conversation(stop=value), message)
    chat = model.conversation(stop="END")
    chat.reply("a", max_tokens=1)
    for use in (chat.send, chat.reply, chat.edit):
        refused(lambda use=use: use("x", stop=value), message)
    with pytest.raises(quoth.OptionsError) as caught:
        chat.stop = value
    assert message in str(caught.value)
    assert chat.stop == ("END",)


def test_a_stop_that_is_set_is_one_text(model: quoth.Model, scripted: Scripted) -> None:
    chat = model.conversation(sampling=scripted.say("hello"))
    for value, stops in (("there", ("there",)), (5, (5,)), (["there", 5], ("there", 5)), (("x",), ("x",)), ((), ())):
        chat.stop = value  # type: ignore[assignment]
        assert chat.stop == stops
    chat.stop = "there"  # type: ignore[assignment]
    assert chat.reply("Hi").text == "Hello, you ", "it did not stop at its first letter"


OPTIONS: list[tuple[str, Any, str]] = [
    *(("overflow", value, "expected error or trim") for value in ("Error", "TRIM", "", None, 1, [], b"trim")),
    *(
        ("max_tokens", value, f"max_tokens is {value!r}, expected a whole number of 1 to 2147483647")
        for value in (0, -1, 1.5, None, True, "8", 2**31)
    ),
    ("sampling", 3, "sampling is 3, expected quoth.Sampling"),
]


@pytest.mark.parametrize(("name", "value", "message"), OPTIONS, ids=ascii)
def test_options_are_checked_when_they_are_given_and_when_they_are_set(
    model: quoth.Model, name: str, value: Any, message: str
) -> None:
    refused(lambda: model.conversation(**{name: value}), message)
    chat = model.conversation(max_tokens=7)
    before = getattr(chat, name)
    refused(lambda: setattr(chat, name, value), message)
    assert getattr(chat, name) is before


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "1"], ids=ascii)
def test_a_seed_that_is_set_is_one(model: quoth.Model, seed: Any) -> None:
    chat = model.conversation(sampling=quoth.Sampling(seed=4))
    refused(lambda: setattr(chat, "seed", seed), f"seed is {seed!r}, expected a whole number of 0 to 2^64 - 1")
    assert chat.seed == chat.sampling.seed == 4
    refused(lambda: chat.send("a", seed=seed), "seed is")
    for name, value in (("logprobs", 21), ("sampling", 1), ("stop", [None]), ("max_tokens", 0), ("stop_at_eog", 2)):
        refused(lambda n=name, v=value: chat.send("a", **{n: v}), f"{name} is {value!r}, expected")
    refused(lambda: chat.send("a", progress=5), "progress is 5, expected something to call")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        chat.trimmed = 3  # type: ignore[misc]


def test_options_that_are_set_take_effect_and_numpy_numbers_count(model: quoth.Model, scripted: Scripted) -> None:
    chat = model.conversation(max_tokens=7)
    chat.sampling = scripted.say("hello")
    chat.max_tokens, chat.seed, chat.overflow = np.int64(3), np.uint64(9), "trim"  # type: ignore[assignment]
    assert (chat.max_tokens, chat.seed, type(chat.max_tokens), type(chat.seed)) == (3, 9, int, int)
    assert chat.reply("Hi").tokens == scripted.tokens["hello"][:3]


MESSAGES = [
    (b"hello", "the message is bytes, expected text, token ids or messages"),
    (bytearray(b"hello"), "the message is bytearray, expected text, token ids or messages"),
    (memoryview(b"hello"), "the message is memoryview, expected text, token ids or messages"),
    (None, "the message is None, expected text, token ids or messages"),
    (3, "the message is 3, expected text, token ids or messages"),
    ({1, 2}, "the message is {1, 2}, expected text, token ids or messages"),
    ([True], "token 0 is True, expected a whole number of 0 to"),
    ([1, np.True_], "token 1 is np.True_, expected a whole number"),
    ([1, 2.0], "token 1 is 2.0, expected a whole number"),
    ([1, "x"], "token 1 is 'x', expected a whole number"),
    (nested(5000), "token 0 is <list>, expected a whole number"),
    ([[1]], "token 0 is [1], expected a whole number"),
    ([10**6], "token 0 is 1000000, expected a whole number of 0 to"),
    ([1, {"role": "user"}], "token 1 is {'role': 'user'}"),
    (SURROGATE, "the message has a lone surrogate at character 1, expected text"),
    ({"role": "user", "content": SURROGATE}, "messages[0]['content'] has a lone surrogate at character 1"),
    ([{"role": "user", "content": [{"text": SURROGATE}]}], "messages[0]['content'][0]['text'] has a lone surrogate"),
    ({"role": "user", "content": "", SURROGATE: 1}, "a key of messages[0] has a lone surrogate at character 1"),
    ({"role": SURROGATE, "content": ""}, "messages[0]['role'] has a lone surrogate at character 1"),
    ({"role": "user", "content": nested(5000)}, "messages[0] has more than 64 levels, expected at most that"),
    ({"role": "user", "content": nested(70)}, "messages[0] has more than 64 levels, expected at most that"),
    ({"role": "user", "content": threading.Lock()}, "messages[0]['content'] cannot be copied: TypeError"),
    ({"role": 3, "content": ""}, "expected a mapping with a role"),
]


@names(MESSAGES)
def test_what_is_no_message_is_refused_and_nothing_happens(model: quoth.Model, value: Any, message: str) -> None:
    chat = model.conversation(max_tokens=2)
    chat.reply("a")
    before = chat.messages, chat.tokens
    for use in (chat.send, chat.reply, chat.edit):
        refused(lambda use=use: use(value), message)
    if isinstance(value, dict):
        refused(lambda: model.conversation(messages=[value]), message)
        refused(lambda: chat.rewrite([value]), message)
    assert (chat.messages, chat.tokens) == before


def test_a_cycle_is_refused(model: quoth.Model) -> None:
    circle: dict[str, Any] = {"role": "user"}
    circle["content"] = [circle]
    refused(lambda: model.conversation().send(circle), "messages[0] has more than 64 levels")


@pytest.mark.parametrize(
    "kind",
    [list, tuple, np.array, lambda ids: array.array("i", ids), iter],
    ids=["list", "tuple", "numpy", "array", "iter"],
)
def test_ids_come_in_whatever_holds_numbers(model: quoth.Model, scripted: Scripted, kind: Any) -> None:
    ids = list(scripted.tokens["phrase"][:4])
    chat = model.conversation(max_tokens=1)
    chat.reply(kind(ids))
    assert chat.messages[0]["content"] == model.tokenizer.decode(ids)
    handle = chat.add_reference(kind(ids))
    assert chat.references == {handle: 4}


def test_messages_may_be_mappings_of_any_kind_and_are_copies(model: quoth.Model) -> None:
    parts = [MappingProxyType({"type": "text", "text": "a"})]
    message = MappingProxyType({"role": "user", "content": parts, "tags": ("x", 1.5, None)})
    chat = model.conversation(messages=[message])
    parts.clear()
    assert chat.messages == [{"role": "user", "content": [{"type": "text", "text": "a"}], "tags": ("x", 1.5, None)}]


@pytest.mark.parametrize("value", [SURROGATE, 3, b"x", ["a"]], ids=ascii)
def test_a_system_message_is_text(model: quoth.Model, value: Any) -> None:
    chat = model.conversation(system="s")
    refused(lambda: model.conversation(system=value), "system ")
    refused(lambda: setattr(chat, "system", value), "system ")
    assert chat.system == "s"


@names(
    [
        (b"abc", "reference is bytes, expected text, token ids or a path"),
        (None, "reference is None, expected text, token ids or a path"),
        (3, "reference is 3, expected text, token ids or a path"),
        ({1, 2}, "reference is {1, 2}, expected text, token ids or a path"),
        ([True], "token 0 is True, expected a whole number"),
        ([1, -1], "token 1 is -1, expected a whole number"),
    ]
)
@pytest.mark.parametrize("speculation", [True, None])
def test_what_is_no_reference_is_refused(model: quoth.Model, speculation: Any, value: Any, message: str) -> None:
    chat = model.conversation(speculation=speculation)
    refused(lambda: chat.add_reference(value), message)
    assert chat.references == {}
    for wrong in ([], None, "1", 1.5, True, -1):
        refused(lambda wrong=wrong: chat.remove_reference(wrong), "handle is")  # type: ignore[misc]
    assert not chat.remove_reference(10**30)


TEMPLATES: list[tuple[dict[str, Any], str]] = [
    *(({"chat_template": value}, "chat_template is") for value in (5, b"x", [], ["a"])),
    ({"chat_template": CHATML + SURROGATE}, "chat_template has a lone surrogate"),
    *(({"template_kwargs": value}, "template_kwargs is") for value in (5, "x", [1], [("a", 1)])),
    ({"template_kwargs": {5: 6}}, "template_kwargs has the name 5, expected text"),
    *(
        ({"template_kwargs": {name: 1}}, f"template_kwargs has the name {name!r}, expected none of those")
        for name in ("messages", "tools", "documents", "add_generation_prompt")
    ),
    ({"template_kwargs": {"a": SURROGATE}}, "template_kwargs['a'] has a lone surrogate"),
    ({"template_kwargs": {SURROGATE: 1}}, "a name of template_kwargs has a lone surrogate"),
    ({"template_kwargs": {"a": nested(5000)}}, "template_kwargs['a'] has more than 64 levels"),
    *(
        ({name: value}, f"{name} is {value!r}, expected a list of mappings")
        for name in ("tools", "documents")
        for value in (5, "x", {"a": 1})
    ),
    ({"tools": [{}, 3]}, "tools[1] is 3, expected a mapping"),
    ({"messages": "x"}, "messages is 'x', expected a list of messages"),
    ({"messages": [{}]}, "messages[0] is {}, expected a mapping with a role"),
    ({"speculation": "x"}, "speculation is 'x', expected quoth.Speculation"),
    ({"tools": [{"name": nested(5000)}]}, "tools has more than 64 levels"),
    ({"documents": [{"text": SURROGATE}]}, "documents[0]['text'] has a lone surrogate at character 1"),
]


@pytest.mark.parametrize(("options", "message"), TEMPLATES, ids=[message for _, message in TEMPLATES])
def test_what_goes_to_a_template_is_checked(model: quoth.Model, options: dict[str, Any], message: str) -> None:
    refused(lambda: model.conversation(**options), message)


def test_any_other_name_may_be_a_variable_of_a_template(model: quoth.Model) -> None:
    names = {"self": 1, "name": 2, "tokenize": 3, "source": 4, "/": 5, "variables": 6}
    template = "{{ name }}{{ tokenize }}{{ source }}{{ variables }}" + CHATML
    chat = model.conversation(chat_template=template, template_kwargs=names, max_tokens=1)
    chat.reply("a")
    assert model.tokenizer.decode(chat.tokens, skip_special=False).startswith("2346<|im_start|>")


def test_errors_of_templates_name_the_argument(model: quoth.Model) -> None:
    """Also where control tokens are escaped, which looks at messages, tools and documents alike."""
    hi = [{"role": "user", "content": "Hi"}]
    apply = model.tokenizer.apply_chat_template
    for escape in (True, False):
        cases: list[tuple[dict[str, Any], str]] = [
            ({"messages": hi, "tools": [{"a": object()}]}, "tools[0]['a']"),
            ({"messages": hi, "tools": [3]}, "tools[0]"),
            ({"messages": hi, "documents": [{"a": nested(5000)}]}, "documents[0]['a']"),
            ({"messages": [{"role": "user", "content": nested(5000)}]}, "messages[0]['content']"),
            ({"messages": 5}, "expected a list of messages, found int"),
        ]
        for arguments, message in cases:
            refused(lambda a=arguments: apply(**a, escape_content=escape), message, quoth.TokenizerError)  # type: ignore[misc]  # noqa: B023


# ---- files


def test_what_options_allow_can_be_saved_and_loaded(model: quoth.Model, tmp_path: Path) -> None:
    chat = model.conversation(
        system="é\ud7ff\U0001f468",
        sampling=quoth.Sampling(temperature=0.5, logit_bias={3: float("-inf"), 4: -2}, banned=[5]),
        stop=["END", 7],
        template_kwargs={"a": (1, [None, {"b": 2.5}])},
        tools=[{"name": "f"}],
        documents=[{"text": "t"}],
        max_tokens=2,
    )
    chat.max_tokens, chat.seed, chat.overflow, chat.stop = np.int32(3), np.uint64(2**64 - 1), "trim", np.array([8])  # type: ignore[assignment]
    chat.reply("a")
    chat.add_reference(np.array([1, 2]))
    chat.save(tmp_path / "chat.json")
    again = quoth.Conversation.load(tmp_path / "chat.json", model)
    for name in ("messages", "tokens", "sampling", "stop", "max_tokens", "seed", "overflow", "trimmed"):
        assert getattr(again, name) == getattr(chat, name), name
    assert list(again.references.values()) == [2]
    assert again.reply("b").tokens == chat.reply("b").tokens


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "a list as a token of a bias": ("sampling.logit_bias", [[[], 1.0]], "expected a token and its bias in"),
    "a text as a token of a bias": ("sampling.logit_bias", [["1", 1.0]], "expected a token and its bias in"),
    "a list as a bias": ("sampling.logit_bias", [[1, []]], "logit_bias is [], expected a number"),
    "a bias that no float holds": ("sampling.logit_bias", [[1, 10**400]], "expected a number that a float can hold"),
    "no number as a temperature": ("sampling.temperature", [], "temperature is [], expected a number"),
    "a large number as a temperature": ("sampling.temperature", 10**400, "expected a number that a float can hold"),
    "a list as a seed": ("sampling.seed", [], "seed is [], expected a whole number"),
    "a mapping as a ban": ("sampling.banned", [{}], "a token of banned is {}, expected a whole number"),
    "a stop that is empty": ("stop", [""], "expected texts of at least one character"),
    "a stop with a surrogate": ("stop", [SURROGATE], "stop has a lone surrogate"),
    "a template with a surrogate": ("chat_template", SURROGATE, "chat_template has a lone surrogate"),
    "tools that are none": ("tools", [1], "tools[0] is 1, expected a mapping"),
    "tools too deep": ("tools", [{"a": nested(500)}], "tools has more than 64 levels"),
    "a reserved name": ("template_kwargs", {"messages": []}, "has the name 'messages'"),
    "budget 0": ("max_tokens", 0, "max_tokens is 0"),
}


def spoiled(model: quoth.Model, path: Path, spoil: Callable[[Any], object]) -> str:
    """The refusal of a file that was changed."""
    chat = model.conversation(system="s", max_tokens=2)
    chat.reply("a")
    chat.save(path)
    data = json.loads(path.read_bytes())
    spoil(data)
    path.write_text(json.dumps(data))
    with pytest.raises(quoth.OptionsError) as caught:
        quoth.Conversation.load(path, model)
    return str(caught.value)


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_an_option_of_a_file_that_makes_no_sense_is_refused_with_file_and_name(
    model: quoth.Model, tmp_path: Path, damage: str
) -> None:
    where, value, message = DAMAGE[damage]

    def spoil(data: Any) -> None:
        *groups, name = where.split(".")
        part = data["options"]
        for group in groups:
            part = part[group]
        part[name] = value

    text = spoiled(model, tmp_path / "chat.json", spoil)
    assert message in text
    assert "chat.json`, options" in text


def test_entries_of_a_file_that_make_no_sense_are_refused(model: quoth.Model, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    cases: list[tuple[Callable[[Any], object], str]] = [
        (lambda d: d["entries"][1]["message"].update(content=SURROGATE), "entries[1], message['content'] has a lone"),
        (lambda d: d["entries"][1]["message"].update(content=nested(300)), "entries[1], message has more than 64"),
        (lambda d: d["entries"][2]["lead"].update(text=SURROGATE), "entries[2], lead, text has a lone surrogate"),
        (lambda d: d["entries"][1]["message"].update(more=float("nan")), "found NaN, expected a number"),
    ]
    for spoil, message in cases:
        assert message in spoiled(model, path, spoil)
