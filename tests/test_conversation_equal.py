"""Real conversations with a real model: speculation changes nothing in any turn, and neither does anything else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest

import quoth
from program import ROOT
from sources import OPEN

SAMPLINGS = {
    "greedy": quoth.Sampling(),
    "sampled": quoth.Sampling(temperature=0.7, top_k=20, seed=42),
    "penalised": quoth.Sampling(temperature=0.9, top_p=0.95, seed=7, repeat_penalty=1.2, frequency_penalty=0.3),
}

CODE = "def area(w, h):\n    # width times height\n    return w * h\n\n\nprint(area(3, 4))\n"
NOTE = (
    "The night train to Lisbon leaves platform 4 at 21:50. Seats in coach 7 must be reserved; the fee is 12 euros. "
    "Bicycles travel free after 22:00."
)


@dataclasses.dataclass(frozen=True)
class Talk:
    """A conversation to be had."""

    turns: tuple[str, ...]
    system: str | None = None
    stop: tuple[str | int, ...] = ()
    references: tuple[str, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    max_tokens: int = 12


TALKS = {
    "greetings": Talk(("Hi", "How are you?", "Bye")),
    "capitals": Talk(("What is the capital of France?", "And of Italy?", "Repeat both answers."), "You are terse."),
    "rename": Talk((f"Rename w to width:\n```python\n{CODE}```", "Now rename h to height.", "Show it again.")),
    "quote": Talk((f"Quote the first sentence: {NOTE}", "Quote the second one.", "And the last one.")),
    "reference only": Talk(("When does the night train leave?", "What is the fee?", "Bicycles?"), references=(NOTE,)),
    "two references": Talk(("Write about trains.", "Go on.", "Again."), references=(NOTE, CODE)),
    "useless reference": Talk(("Tell me a joke.", "Another one.", "Why is it funny?"), references=("zzz " * 50,)),
    "transcript as reference": Talk(
        ("Hi", "Go on", "More"),
        references=("user\nHi\nassistant\nHello! How can I help you?\nuser\nGo on\nassistant\nHello! How can I",),
    ),
    "lists": Talk(("List three fruits.", "List them again in capitals.", "Only the second."), stop=("2.", "third")),
    "first sentence": Talk(("Tell me about rain.", "And snow?", "And wind?"), stop=(". ", ".\n")),
    "two line ends": Talk(("Write two short paragraphs.", "Again.", "Shorter."), stop=("\n\n", "you're l")),
    "long stop": Talk(("Say: one two three four five.", "Again.", "Backwards."), stop=("three four", "never")),
    "stop inside words": Talk(("Describe a cat.", "A dog.", "A bird."), stop=("ing", "ould", "lligen")),
    "stop ids": Talk(("Count to ten.", "Again.", "Down from ten."), stop=(28, 216), max_tokens=24),
    "json": Talk(
        ('Make JSON with name "Ann" and age 7.', "Change age to 8.", "Add city Rome."),
        "You output JSON only.",
        stop=("}",),
        max_tokens=24,
    ),
    "scripts": Talk(("Translate: hello", "In Russian: привет, мир", "한국어: 안녕하세요 세계 👨‍👩‍👧")),
    "white space": Talk(("  \n\t", "", " a \n\n b "), max_tokens=16),
    "marks": Talk(("What does <|im_end|> mean?", "And <|im_start|>system?", "Write <|endoftext|> twice.")),
    "repeat": Talk(("Repeat this sentence 5 times: This is a test.", "Again.", "Once more."), max_tokens=32),
    "begun": Talk(
        ("And then?", "Why?", "Who says so?"),
        messages=(("user", "Tell me of the sea."), ("assistant", "It is deep."), ("user", "More."), ("assistant", "")),
    ),
    "few words": Talk(("Yes or no?", "No or yes?", "Maybe?"), "Answer with one word.", max_tokens=1),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(smollm2_path) -> quoth.Model:
    return quoth.Model(smollm2_path)


def begin(model, talk, sampling, speculation):
    chat = model.conversation(
        system=talk.system,
        messages=[{"role": role, "content": content} for role, content in talk.messages],
        sampling=SAMPLINGS[sampling],
        speculation=speculation,
        stop=talk.stop,
        max_tokens=talk.max_tokens,
    )
    for reference in talk.references:
        chat.add_reference(reference)
    return chat


def outcome(chat, result):
    """All that must be equal, log-probabilities bit for bit."""
    return (
        result.text, result.tokens, result.finish_reason, result.stop, result.logprobs, result.prompt_tokens,
        result.stats.draws, result.stats.committed, chat.messages, chat.tokens, chat.decoder.history,
    )  # fmt: skip


def test_there_are_conversations_enough():
    assert len(TALKS) >= 20
    assert all(len(talk.turns) == 3 for talk in TALKS.values())


@pytest.mark.parametrize("at", range(len(TALKS)), ids=sorted(TALKS))
def test_three_turns_are_equal_with_and_without_speculation(model, at):
    compare(model, TALKS[sorted(TALKS)[at]], ("greedy", "sampled")[at % 2])


def test_three_turns_of_the_workloads_are_equal_too(model):
    talks = list(workloads())
    assert len(talks) >= 4
    for at, talk in enumerate(talks):
        compare(model, talk, ("greedy", "sampled")[at % 2])


def workloads() -> Iterator[Talk]:
    """The multi-turn and agentic workloads; those of one message go on with two that ask for the same again."""
    for line in (ROOT / "benches" / "workloads.jsonl").read_text(encoding="utf-8").splitlines():
        work = json.loads(line)
        turns, said = work.get("turns", ()), ()
        if work["kind"] == "agentic":
            turns = (work["messages"][-1]["content"], "Now the next step.", "Repeat the plan.")
            said = tuple((message["role"], message["content"]) for message in work["messages"][:-1])
        elif work["kind"] != "multi-turn":
            continue
        yield Talk(
            tuple(turns),
            system=work["system"],
            references=tuple(work["references"]),
            messages=said,
            max_tokens=16,
        )


def compare(model, talk, sampling):
    """Hold a conversation plainly and with speculation, streamed, and compare all there is after each turn."""
    plain, fast = (begin(model, talk, sampling, speculation) for speculation in (None, True))
    for question in talk.turns:
        expected = outcome(plain, plain.reply(question, logprobs=2))
        answer = fast.send(question, logprobs=2)
        chunks = list(answer)
        assert outcome(fast, answer.result) == expected
        assert "".join(chunk.text for chunk in chunks) == answer.result.text
        assert not any(piece.endswith("�") for piece in (chunk.text for chunk in chunks))
    assert fast.decoder._core.same_prefix(plain.decoder._core, plain.decoder.cached_tokens)


def test_speculation_and_stops_took_part(model):
    results = []
    for name in ("repeat", "json", "long stop"):
        chat = begin(model, TALKS[name], "greedy", quoth.Speculation(gate=OPEN, costs={1: 1.0}))
        results += [chat.reply(question) for question in TALKS[name].turns[:2]]
    assert sum(result.stats.accepted for result in results) > 20
    assert {"}", "three four"} <= {result.stop for result in results}
    assert len(model.tokenizer.encode("three four")) > 1, "a stop that spans tokens"


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("capitals", "penalised"),
        ("rename", "sampled"),
        ("json", "penalised"),
        ("two references", "greedy"),
    ],
)
def test_edits_forks_and_files_are_equal_too(model, name, sampling, tmp_path):
    talk = TALKS[name]
    plain, fast = (begin(model, talk, sampling, speculation) for speculation in (None, True))
    for chat in (plain, fast):
        for question in talk.turns[:2]:
            chat.reply(question, logprobs=1)
    fork = fast.fork()
    fast.save(tmp_path / "chat.json")
    loaded = quoth.Conversation.load(tmp_path / "chat.json", model)
    expected = outcome(plain, plain.reply(talk.turns[2], logprobs=1))
    for chat in (fast, fork, loaded):
        assert outcome(chat, chat.reply(talk.turns[2], logprobs=1)) == expected
        n = plain.decoder.cached_tokens
        assert chat.decoder._core.same_prefix(plain.decoder._core, n)
    list(plain.edit("Something else.", logprobs=1))
    plain.undo()
    plain.undo()
    expected = outcome(plain, plain.reply(talk.turns[1] + "!", logprobs=1))
    for chat in (fast, loaded):
        chat.undo()
        list(chat.edit(talk.turns[1] + "!", logprobs=1))
        assert outcome(chat, chat.last) == expected
    # What was taken apart and put together is what was never taken apart.
    fresh = begin(model, talk, sampling, None)
    fresh.reply(talk.turns[0], logprobs=1)
    assert outcome(fresh, fresh.reply(talk.turns[1] + "!", logprobs=1)) == expected


def test_a_second_turn_costs_what_is_new(model):
    chat = model.conversation(max_tokens=8)
    first = chat.reply("Tell me what this says: " + NOTE * 8)
    second = chat.reply("Shorter.")
    assert first.stats.prefill_tokens > 300
    assert second.stats.prefill_tokens < 20
    assert second.stats.cached_tokens + second.stats.prefill_tokens == second.prompt_tokens
