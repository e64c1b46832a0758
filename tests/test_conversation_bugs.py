"""Kinds of faults that users of other engines met, as cases for this one. The numbers are those of the reports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import quoth
from program import program_env
from scripted import STOP, Scripted
from scripted import write as write_scripted
from sources import OPEN

EAGER = quoth.Speculation(gate=OPEN, costs={1: 1.0})


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> quoth.Model:
    return quoth.Model(smollm2_path)


def both(model, run):
    """Run something with speculation and without; give what came with."""
    fast, plain = (run(model, speculation) for speculation in (True, None))
    assert fast == plain
    return fast


# ---- 6: log-probabilities of 0.0, or others, with speculation


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_6_log_probabilities_are_those_of_plain_decoding(smollm2, temperature):
    sampling = quoth.Sampling(temperature=temperature, seed=1)

    def raw(model, speculation):
        decoder = model.decoder(sampling=sampling, speculation=speculation)
        result = decoder.generate("The capital of France is", max_tokens=10, logprobs=5)
        return result.tokens, result.logprobs

    def chat(model, speculation):
        talk = model.conversation(sampling=sampling, speculation=speculation, max_tokens=10)
        return [talk.reply("The capital of France is", logprobs=5).logprobs for _ in range(3)]

    tokens, rows = both(smollm2, raw)
    for found in (rows, *both(smollm2, chat)):
        assert all(row.logprob < 0 and len(row.top) == 5 for row in found)
        assert all(row.top == tuple(sorted(row.top, key=lambda entry: (-entry[1], entry[0]))) for row in found)
        assert all(dict(row.top).get(row.token, row.logprob) == row.logprob for row in found)
    assert [row.token for row in rows] == list(tokens)


# ---- 8: a shifted context and n-gram drafts abort


@pytest.mark.parametrize("max_tokens", [60, 400])
def test_8_a_conversation_longer_than_its_context_goes_on_with_its_oldest_turns_dropped(scripted, max_tokens):
    def run(model, speculation):
        chat = model.conversation(overflow="trim", speculation=speculation, max_tokens=max_tokens)
        seen = []
        for turn in range(8):
            result = chat.reply(f"Turn {turn}", sampling=scripted.say("phrase"))
            seen.append((result.tokens, result.finish_reason, chat.trimmed, chat.messages, chat.tokens))
            assert chat.decoder.history == chat.tokens
        return seen

    seen = both(scripted.model(n_ctx=256), run)
    reasons = {reason for _, reason, *_ in seen}
    assert reasons == ({"length"} if max_tokens == 60 else {"context"})
    assert seen[-1][2] > 0
    assert sum(len(tokens) for tokens, *_ in seen) > 400


def test_8_without_the_policy_the_end_of_the_context_is_a_clean_error(scripted):
    chat = scripted.model(n_ctx=256).conversation(max_tokens=400)
    assert chat.reply("Hi", sampling=scripted.say("phrase")).finish_reason == "context"
    with pytest.raises(quoth.ContextFullError, match="expected at most 256"):
        chat.reply("Hi")


# ---- 10: index errors at the end of the context or of a batch


def test_10_generation_stops_cleanly_at_the_end_of_the_context(smollm2_path):
    def run(model, speculation):
        chat = model.conversation(speculation=speculation, max_tokens=1024)
        decoder = model.decoder(speculation=speculation)
        one = chat.reply("Repeat forever: " + "la " * 120)
        two = decoder.generate("la " * 150, max_tokens=1024, stop_at_eog=False)
        return [(r.tokens, r.text, r.finish_reason) for r in (one, two)], two.prompt_tokens

    (_, raw), prompt = both(quoth.Model(smollm2_path, n_ctx=200), run)
    assert raw[2] == "context"
    assert prompt + len(raw[0]) == 201, "the last token needs no place"


def test_10_prompts_around_the_size_of_a_pass_are_all_the_same(scripted):
    model = scripted.model(n_ctx=1200)

    def run(model, speculation):
        found = []
        for n in (510, 511, 512, 513, 700, 1023, 1024, 1025, 1199, 1200):
            decoder = model.decoder(sampling=scripted.say("phrase"), speculation=speculation)
            result = decoder.generate([97] * (n - 1) + [10], max_tokens=8)
            found.append((result.tokens, result.finish_reason, result.prompt_tokens))
        return found

    found = both(model, run)
    assert {tokens for tokens, *_ in found[:-2]} == {scripted.tokens["phrase"][:8]}
    assert [(len(tokens), reason) for tokens, reason, _ in found[-2:]] == [(2, "context"), (1, "context")]


@pytest.mark.parametrize("speculation", [True, None])
def test_10_a_prompt_that_does_not_fit_is_an_error_with_numbers(scripted, speculation):
    model = scripted.model(n_ctx=200)
    chat, decoder = model.conversation(speculation=speculation), model.decoder(speculation=speculation)
    with pytest.raises(quoth.ContextFullError, match=r"201.*200|200.*201"):
        decoder.generate([97] * 201)
    with pytest.raises(quoth.ContextFullError, match=r"expected at most 200"):
        chat.reply("a" * 200)
    assert decoder.generate([97] * 200, max_tokens=5).finish_reason == "context"
    assert chat.reply("a", max_tokens=5).finish_reason == "length"


# ---- 11: an empty prompt kills the engine


def test_11_empty_prompts_are_refused_or_answered(smollm2, scripted):
    for model in (smollm2, scripted.model()):
        decoder = model.decoder()
        for empty in ("", []):
            with pytest.raises(ValueError, match=r"empty|at least"):
                decoder.generate(empty)
            with pytest.raises(ValueError, match=r"empty|at least"):
                list(decoder.stream(empty))
        assert decoder.generate("   ", max_tokens=2).tokens
        bos = model.tokenizer.bos_id
        assert decoder.generate([0 if bos is None else bos], max_tokens=2, stop_at_eog=False).tokens
        chat = model.conversation(max_tokens=2)
        for empty in ("", [], "   ", {"role": "user", "content": ""}):
            result = chat.reply(empty)
            assert result.prompt_tokens > 0, "the template's marks are a prompt"
            assert result.finish_reason in ("length", "stop")
        with pytest.raises(quoth.TokenizerError, match=r"expected content in messages\[0\]"):
            model.conversation().reply([{"role": "user"}])
        with pytest.raises(quoth.TokenizerError, match="at least one message"):
            model.tokenizer.apply_chat_template([])


def test_11_the_program_lives_on(scripted, tmp_path):
    code = (
        "import sys, quoth\n"
        "decoder = quoth.Model(sys.argv[1], threads=1).decoder()\n"
        "for empty in ('', []):\n"
        "    try: decoder.generate(empty)\n"
        "    except ValueError: print('refused')\n"
        "print(len(decoder.generate('a', max_tokens=3).tokens))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(scripted.path)],
        env=program_env(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout.split()) == (0, ["refused", "refused", "3"])


# ---- 18: runs past the end of its turn and plays both roles


def test_18_an_answer_ends_at_the_end_of_its_turn_also_inside_a_draft(scripted: Scripted):
    """The model would go on with the user's next words, and the reference says how: drafts reach over the end."""
    both_roles = scripted.tokens["both roles"]
    end = both_roles.index(STOP)
    reference = [10, *both_roles] * 3

    def run(model, speculation):
        chat = model.conversation(speculation=speculation)
        chat.add_reference(reference)
        seen = []
        for _ in range(3):
            result = chat.reply("Hi", sampling=scripted.say("both roles"))
            seen.append((result.text, result.tokens, result.finish_reason, result.stop, chat.tokens))
        return seen

    for text, tokens, reason, stop, _ in both(scripted.model(), run):
        assert (text, tokens, reason, stop) == ("Sure thing", both_roles[:end], "stop", STOP)
    # The model does go on if nothing stops it.
    decoder = scripted.model().decoder(sampling=scripted.say("both roles"))
    assert decoder.generate("Hi\n", max_tokens=6, stop_at_eog=False).tokens == both_roles


def test_18_with_an_old_transcript_as_reference(smollm2):
    old = (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello! How can I help you today?<|im_end|>\n"
        "<|im_start|>user\nTell me a story<|im_end|>\n<|im_start|>assistant\nOnce upon a time<|im_end|>\n"
    )

    def run(model, speculation):
        chat = model.conversation(speculation=speculation, max_tokens=60)
        chat.add_reference(old)
        chat.add_reference(model.tokenizer.encode(old, special=True))
        results = [chat.reply(question) for question in ("Hi", "Thanks")]
        return [(r.text, r.tokens, r.finish_reason, r.stop) for r in results]

    for text, tokens, reason, stop in both(smollm2, run):
        assert (reason, stop) == ("stop", 2)
        assert not set(tokens) & smollm2.tokenizer.eog_ids
        assert "user\n" not in text
        assert "assistant" not in text.split("\n")[-1]


# ---- 19: a JSON schema and speculation: crashes, or invalid JSON. There are no grammars here, so what could do harm
# is a reference that is JSON up to some place and then not

SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "class": {"enum": ["wizard", "rogue"]}, '
    '"level": {"type": "integer"}}, "required": ["name", "class", "level"]}'
)
SHEET = '{"name": "Mira", "class": "rogue", "level": 7, "gear": ["rope", {"torch": 3}]}'
HALF = [
    SHEET[:-1],  # never closed
    SHEET.replace('"rogue",', '"rogue"'),
    SHEET.replace("{", "{{").replace("}", "}}"),
    SHEET.replace('"level": 7', '"level": seven'),
    SHEET.replace("]", "}"),
]


def test_19_json_stays_valid_beside_references_that_are_half_of_it(tmp_path):
    from conftest import load_synthetic  # noqa: PLC0415  skips where there is no writer of models

    pieces = [SHEET[at : at + 8].encode() for at in range(0, len(SHEET), 8)]
    assert len(set(pieces)) == len(pieces)
    made = write_scripted(tmp_path / "sheet.gguf", load_synthetic(), more={"sheet": [*pieces, STOP]})
    model, script = made.model(), made.tokens["sheet"][:-1]
    drafted = accepted = 0

    def run(model, speculation):
        nonlocal drafted, accepted
        chat = model.conversation(system=SCHEMA, speculation=EAGER if speculation else None)
        for n in (1, len(script) // 2, len(script) - 1):  # as the model spells it, up to some place and then not
            chat.add_reference([*script[:n], *script[:3]])
        for text in HALF:
            chat.add_reference(text)
        results = [chat.reply("A character sheet.", sampling=made.say("sheet"), logprobs=1) for _ in range(2)]
        drafted, accepted = drafted + chat.stats.drafted, accepted + chat.stats.accepted
        return [(r.text, r.tokens, r.logprobs, r.finish_reason, r.stop) for r in results], chat.messages, chat.tokens

    for text, tokens, *_ in both(model, run)[0]:
        assert json.loads(text) == json.loads(SHEET)
        assert tokens == script
    assert 0 < accepted < drafted, "the references were quoted, and their wrong halves were refused"


def test_19_with_a_schema_on_the_default_model(smollm2):
    def run(model, speculation):
        chat = model.conversation(
            system=f"Answer in JSON that fits this schema: {SCHEMA}", speculation=EAGER if speculation else None
        )
        for text in HALF:
            chat.add_reference(text)
        results = [chat.reply(q, max_tokens=40) for q in (f"Repeat this exactly: {SHEET}", "Another one.")]
        return [(r.text, r.tokens, r.finish_reason, r.stop) for r in results], chat.tokens

    assert "Mira" in both(smollm2, run)[0][0][0]
