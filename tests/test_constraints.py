"""Constraints: every answer is what its schema, expression or grammar says, with speculation and without the same."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pydantic
import pytest

import quoth
from quoth.template import ChatTemplate
from schemas import schema

PROMPT = [1, 2, 3, 4, 1, 2, 3]
QUOTE = ord('"')
HOT = quoth.Sampling(temperature=1.5, logit_bias={QUOTE: 4.0})
"""At this temperature random weights say anything; the bias lets texts without a bound end."""
FORMATS = jsonschema.FormatChecker(formats=["uuid", "ipv4", "email"])
CHARACTER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "class": {"enum": ["fighter", "wizard", "rogue"]},
        "level": {"type": "integer", "minimum": 1, "maximum": 20},
        "abilities": {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 3, "maximum": 18} for name in ("str", "dex", "con")},
            "required": ["str", "dex", "con"],
            "additionalProperties": False,
        },
        "equipment": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "class", "level", "abilities", "equipment"],
    "additionalProperties": False,
}


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    people: int = pydantic.Field(ge=0, le=10**8)
    kind: Literal["town", "village"]
    river: str | None = pydantic.Field(max_length=10)


@pytest.fixture(scope="module")
def model(tiny_model_path: Path) -> quoth.Model:
    return quoth.Model(tiny_model_path, n_ctx=4096, threads=1)


def seen(result: quoth.Result) -> tuple[object, ...]:
    return result.text, result.tokens, result.finish_reason, result.stop, result.logprobs


@pytest.mark.parametrize("part", range(10))
def test_answers_of_random_weights_to_200_schemas_parse_and_validate(model: quoth.Model, part: int) -> None:
    decoder, plain = model.decoder(), model.decoder(speculation=None)
    for number in range(20 * part, 20 * part + 20):
        asked = schema(number)
        jsonschema.Draft202012Validator.check_schema(asked)
        constraint = quoth.json_schema(asked)
        result = decoder.generate(PROMPT, constraint=constraint, sampling=HOT, seed=number, max_tokens=3500)
        assert result.finish_reason == "stop", f"schema {number}: {result.text}"
        value = json.loads(result.text)
        jsonschema.Draft202012Validator(asked, format_checker=FORMATS).validate(value)
        if number % 4 == 0:
            other = plain.generate(PROMPT, constraint=constraint, sampling=HOT, seed=number, max_tokens=3500)
            assert seen(result) == seen(other), f"schema {number}"


@pytest.mark.parametrize("sampling", [quoth.Sampling(logit_bias={QUOTE: 4.0}), HOT])
def test_bug_19_a_schema_with_speculation_and_a_half_valid_reference_gives_valid_json_and_the_same_ids(
    model: quoth.Model, sampling: quoth.Sampling
) -> None:
    constraint = quoth.json_schema(CHARACTER)
    plain = model.decoder(speculation=None)
    options = {"constraint": constraint, "sampling": sampling, "max_tokens": 2000, "seed": 5, "logprobs": 2}
    expected = plain.generate(PROMPT, **options)  # type: ignore[arg-type]
    jsonschema.validate(json.loads(expected.text), CHARACTER)
    half = '{"name": "Mira", "class": "wizard", "level": 3, "abilities": {"str": 40, dex: "x"}, "equipment": ["rope", '
    for max_draft in (1, 8, 64):
        decoder = model.decoder(speculation=quoth.Speculation(max_draft=max_draft))
        for reference in (half, expected.text):
            decoder.add_reference(reference)
            assert seen(decoder.generate(PROMPT, **options)) == seen(expected)  # type: ignore[arg-type]
    # What the schema forces took no step of its own, and what it chose from the document was verified with it.
    stats = decoder.generate(PROMPT, **options).stats  # type: ignore[arg-type]
    assert stats.forced_share > 0.2
    assert stats.steps < 0.5 * stats.committed
    assert stats.mask_ns > 0


def test_every_kind_of_constraint_gives_what_it_says(model: quoth.Model) -> None:
    decoder = model.decoder(sampling=HOT)
    options: Any = {"max_tokens": 2000, "seed": 3}
    chosen = {
        decoder.generate(PROMPT, constraint=quoth.choice(["yes", "no", "maybe é"]), max_tokens=20, seed=i).text
        for i in range(30)
    }
    assert chosen == {"yes", "no", "maybe é"}
    said = decoder.generate(PROMPT, constraint=quoth.regex(r"[0-9]{3}-(ab|cd){2,4}!"), **options)
    assert re.fullmatch(r"[0-9]{3}-(ab|cd){2,4}!", said.text)
    assert (said.finish_reason, said.stop) == ("stop", None)
    grammar = 'start: "SELECT " NAME (", " NAME)* " FROM " NAME\nNAME: /[a-z]{1,6}/'
    query = decoder.generate(PROMPT, constraint=quoth.lark(grammar), **options).text
    assert re.match(r"SELECT [a-z]{1,6}(, [a-z]{1,6})* FROM [a-z]{1,6}", query)
    assert isinstance(json.loads(decoder.generate(PROMPT, constraint=quoth.json_object(), **options).text), dict)
    city = City.model_validate_json(decoder.generate(PROMPT, constraint=quoth.json_schema(City), **options).text)
    assert city.kind in ("town", "village")
    texts = [
        decoder.generate(PROMPT, constraint=quoth.json_schema(given), **options).text
        for given in (CHARACTER, json.dumps(CHARACTER))
    ]
    assert texts[0] == texts[1]
    loose = decoder.generate(PROMPT, constraint=quoth.json_schema(CHARACTER, whitespace=True), **options).text
    jsonschema.validate(json.loads(loose), CHARACTER)


def test_a_cut_answer_says_so_and_a_stop_text_ends_it(model: quoth.Model) -> None:
    decoder = model.decoder(sampling=HOT)
    constraint = quoth.json_schema(CHARACTER)
    short = decoder.generate(PROMPT, constraint=constraint, max_tokens=9, seed=1)
    assert (short.finish_reason, len(short.tokens)) == ("length", 9)
    stopped = decoder.generate(PROMPT, constraint=constraint, max_tokens=900, seed=1, stop='"class"')
    assert (stopped.finish_reason, stopped.stop) == ("stop", '"class"')
    with quoth.Model(model.path, n_ctx=32, threads=1) as small:
        cut = small.decoder(sampling=HOT).generate(PROMPT, constraint=constraint, max_tokens=900, seed=1)
        assert cut.finish_reason == "context"
    assert short.text == cut.text[: len(short.text)]


def test_streams_engines_and_event_loops_give_the_same(model: quoth.Model) -> None:
    constraints = [quoth.json_schema(CHARACTER), quoth.choice(["left", "right"]), None, quoth.regex("[a-f]{4,9}x")]
    options: Any = {"sampling": HOT, "seed": 8, "max_tokens": 600}
    plain = model.decoder(speculation=None)
    expected = [seen(plain.generate(PROMPT, constraint=one, **options)) for one in constraints]
    decoder = model.decoder()
    for one, result in zip(constraints, expected, strict=True):
        chunks = list(decoder.stream(PROMPT, constraint=one, **options))
        assert "".join(chunk.text for chunk in chunks) == result[0]
        assert chunks[-1].finish_reason == result[2]
        assert seen(asyncio.run(decoder.agenerate(PROMPT, constraint=one, **options))) == result
    with quoth.Engine(model, max_sequences=4) as engine:
        several = [engine.submit(PROMPT, constraint=one, **options) for one in constraints * 2]
        assert [seen(one.result(60)) for one in several] == expected * 2
    many = dict(model.generate_many([{"prompt": PROMPT, "constraint": one} for one in constraints], **options))
    assert [seen(many[i]) for i in range(4)] == expected


def test_a_conversation_answers_with_json_and_goes_on(tiny_chat_path: Path) -> None:
    model = quoth.Model(tiny_chat_path, n_ctx=4096, threads=1)
    sampling = quoth.Sampling(temperature=1.5, seed=4, logit_bias={QUOTE: 4.0})

    def talk(speculation: bool | None) -> Iterator[tuple[object, ...]]:
        conversation = model.conversation(sampling=sampling, speculation=speculation)
        for said, constraint in [
            ("hello", quoth.json_schema(CHARACTER)),
            ("more", None),
            ("and?", quoth.choice(["a", "b"])),
        ]:
            yield seen(conversation.reply(said, constraint=constraint, max_tokens=900))

    first, *rest = talk(None)
    jsonschema.validate(json.loads(str(first[0])), CHARACTER)
    assert list(talk(True)) == [first, *rest]


def test_thinking_comes_first_where_the_constraint_begins_behind_it(model: quoth.Model) -> None:
    decoder, plain = model.decoder(sampling=HOT), model.decoder(speculation=None, sampling=HOT)
    # An end of generation before the text would be an answer without it.
    options: Any = {"constraint": quoth.choice(["yes", "no"], after="q"), "max_tokens": 3000, "stop_at_eog": False}
    for seed in range(5):
        result = decoder.generate(PROMPT, seed=seed, **options)
        assert result.finish_reason == "stop"
        free, answer = result.text.split("q", 1)
        assert answer.strip() in ("yes", "no"), free
        assert len(answer) <= 11
        assert seen(plain.generate(PROMPT, seed=seed, **options)) == seen(result)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: quoth.json_schema(7), "schema is 7, expected a mapping, JSON text or a pydantic model class"),  # type: ignore[arg-type]
        (lambda: quoth.json_schema({"a": {1, 2}}), "schema is {'a': {1, 2}}, expected what JSON can say"),
        (lambda: quoth.json_schema({"const": float("nan")}), "expected what JSON can say"),
        (lambda: quoth.json_schema({"const": "\ud800"}), "schema has a lone surrogate"),
        (lambda: quoth.regex(b"a"), "pattern is b'a', expected text"),  # type: ignore[arg-type]
        (lambda: quoth.lark(None), "grammar is None, expected text"),  # type: ignore[arg-type]
        (lambda: quoth.choice([]), "options is [], expected texts of at least one character"),
        (lambda: quoth.choice("yes"), "options is 'yes', expected texts"),
        (lambda: quoth.choice(["a", ""]), "options is ['a', ''], expected texts"),
        (lambda: quoth.regex("a", after=""), "after is '', expected text of at least one character"),
    ],
)
def test_what_is_no_constraint_is_refused_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(quoth.OptionsError, match=re.escape(message)):
        make()


def test_a_refused_schema_names_its_place_before_the_first_token_and_nothing_is_lost(model: quoth.Model) -> None:
    decoder = model.decoder()
    before = decoder.generate(PROMPT, max_tokens=5)
    history = decoder.history
    cases = [
        (
            quoth.json_schema({"properties": {"a": {"type": "strng"}}}),
            r"json_schema at `#/properties/a/type`: expected one of",
        ),
        (quoth.json_schema({"type": "array", "items": {"not": {}}}), r"json_schema at `#/items`: .*not"),
        (quoth.json_schema("{"), r"json_schema: expected JSON"),
        (quoth.regex("a("), r"regex: "),
        (quoth.lark("start: nothing"), r"lark: "),
    ]
    for constraint, message in cases:
        with pytest.raises(quoth.OptionsError, match=message):
            decoder.generate(PROMPT, constraint=constraint)
        with pytest.raises(quoth.OptionsError, match=message):
            model.compile(constraint)
    with pytest.raises(quoth.OptionsError, match=r"constraint is 'x', expected one of quoth\.json_schema"):
        decoder.generate(PROMPT, constraint="x")  # type: ignore[arg-type]
    assert decoder.history == history
    assert seen(decoder.generate(PROMPT, max_tokens=5)) == seen(before)


def test_log_probabilities_are_those_of_the_models_own_row(model: quoth.Model) -> None:
    constraint = quoth.choice(["zebra"])
    result = model.decoder().generate(PROMPT, constraint=constraint, logprobs=3, max_tokens=20)
    assert result.text == "zebra"
    assert result.logprobs is not None
    session = model.session()
    row = session.forward(PROMPT, rows="last")[-1].astype("float64")
    expected = (
        row[result.tokens[0]]
        - row.max()
        - float(__import__("numpy").log(__import__("numpy").exp(row - row.max()).sum()))
    )
    assert result.logprobs[0].logprob == pytest.approx(expected, abs=1e-5)


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 9},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}"
ARGUMENTS = "{{ c.name | tojson }}, %s: {{ c.arguments | tojson }}}"
CALLS = {
    "hermes": '<tool_call>\n{"name": ' + ARGUMENTS % '"arguments"' + "\n</tool_call>",
    "marked": '<|im_start|>call {"id": "a1b2c3d4e", "function": ' + ARGUMENTS % '"parameters"',
    "bare": '{"type": "function", "name": ' + ARGUMENTS % '"arguments"',
}


def template(calls: str) -> str:
    return (
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
        f"{{% for m in messages %}}{TURN}"
        f"{{% for t in m.tool_calls or [] %}}{{% set c = t.function %}}{calls}{{% endfor %}}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


@pytest.mark.parametrize("way", CALLS)
def test_calls_of_tools_are_written_as_the_template_writes_them_and_parsed(tiny_chat_path: Path, way: str) -> None:
    model = quoth.Model(tiny_chat_path, n_ctx=4096, threads=1)
    sampling = quoth.Sampling(temperature=1.5, seed=2, logit_bias={QUOTE: 4.0})
    for choice, names in [("required", {"weather", "clock"}), ("weather", {"weather"}), ("clock", {"clock"})]:
        conversation = model.conversation(
            tools=[WEATHER, CLOCK], tool_choice=choice, chat_template=template(CALLS[way]), sampling=sampling
        )
        for turn in range(3):
            result = conversation.reply(f"turn {turn}", max_tokens=400)
            (call,) = result.tool_calls
            assert call.name in names
            assert result.finish_reason == "stop"
            if call.name == "weather":
                jsonschema.validate(call.arguments, WEATHER["function"]["parameters"])  # type: ignore[index]
            else:
                assert call.arguments == {}
            if way == "hermes":
                assert re.fullmatch(r'<tool_call>\n\{"name": .*\}\n</tool_call>', result.text, re.DOTALL)
        assert conversation.fork().tool_choice == choice


def test_tools_that_cannot_be_chosen_are_refused_and_other_answers_hold_no_calls(tiny_chat_path: Path) -> None:
    model = quoth.Model(tiny_chat_path, n_ctx=2048, threads=1)
    options: Any = {"chat_template": template(CALLS["hermes"])}
    with pytest.raises(quoth.OptionsError, match="tool_choice is 'rain', expected required or one of weather, clock"):
        model.conversation(tools=[WEATHER, CLOCK], tool_choice="rain", **options)
    with pytest.raises(quoth.OptionsError, match="expected auto: there are no tools"):
        model.conversation(tool_choice="required", **options)
    with pytest.raises(quoth.OptionsError, match=r"tools\[0\] is .*, expected a function with a name"):
        model.conversation(tools=[{"type": "function"}], tool_choice="required", **options)
    with pytest.raises(quoth.TokenizerError, match="does not write calls of tools as JSON objects"):
        model.conversation(tools=[WEATHER], tool_choice="required", chat_template=template("call({{ c.name }})"))
    free = model.conversation(tools=[WEATHER], **options)
    assert free.reply("hello", max_tokens=20).tool_calls == ()
    tools = quoth.Tools(model.tokenizer, [WEATHER, CLOCK], ChatTemplate(options["chat_template"]))
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
    found = quoth.ToolCall("weather", {"city": "Oslo", "days": 2})
    assert tools.calls(call + call) == (found, found)
    assert tools.calls(f"<think>{call}</think>Hello") == ()
    for other in (
        "",
        "{",
        '{"name": "weather", "arguments": {}}',
        '<tool_call>{"name": "rain", "arguments": {}}',
        "<tool_call>{}" * 9,
    ):
        assert tools.calls(other) == ()
