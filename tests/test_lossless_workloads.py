"""Texts of real work with the default model: the same tokens with and without speculation; and what that is worth."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import quoth
from program import ROOT
from quoth.bench.replay import replay_trace
from quoth.bench.traces import Trace, Turn
from quoth.bench.workloads import Workload, read_workloads
from quoth.costs import MIXTURE

SAMPLINGS = (quoth.Sampling(), quoth.Sampling(temperature=0.8, top_k=20, seed=7))


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> quoth.Model:
    return quoth.Model(smollm2_path, n_ctx=2048)


def prompt_of(model: quoth.Model, workload: Workload) -> list[int]:
    """The prompt of a workload's first answer."""
    system = [{"role": "system", "content": workload.system}] if workload.system else []
    first = workload.turns[0]
    asked = {"role": "user", "content": first} if isinstance(first, str) else first
    return model.tokenizer.apply_chat_template([*system, *workload.history, asked])


def accepted_when_equal(model: quoth.Model, workload: Workload, max_tokens: int) -> Counter[bool]:
    """Compare answers, greedy and sampled, without references and with them; tell how many guesses were right."""
    accepted: Counter[bool] = Counter()
    prompt = prompt_of(model, workload)
    plain, fast = model.decoder(speculation=None), model.decoder()
    for sampling in SAMPLINGS:
        plain.sampling = fast.sampling = sampling
        expected = plain.generate(prompt, max_tokens=max_tokens, logprobs=2)
        for with_references in (False, True):
            fast.clear_references()
            # Where there is none, the question is one: answers often quote it.
            for text in (workload.references or (model.tokenizer.decode(prompt),)) if with_references else ():
                fast.add_reference(model.tokenizer.encode(text))
            found = fast.generate(prompt, max_tokens=max_tokens, logprobs=2)
            what = f"{workload.id}, {sampling}, references: {with_references}"
            assert (found.tokens, found.text, found.logprobs) == (
                expected.tokens,
                expected.text,
                expected.logprobs,
            ), what
            assert (found.finish_reason, found.stats.draws) == (expected.finish_reason, expected.stats.draws), what
            accepted[with_references] += found.stats.accepted
    assert fast._core.same_prefix(plain._core, plain.cached_tokens), workload.id
    return accepted


def test_answers_to_the_workloads_are_equal_greedy_and_sampled_with_references_and_without(model: quoth.Model) -> None:
    """Whole prompts, the first tokens of the answers; `quoth bench workloads` compares answers to their ends."""
    workloads = read_workloads(ROOT / "benches" / "workloads.jsonl")
    assert len({workload.kind for workload in workloads}) >= 9
    accepted: Counter[bool] = Counter()
    for workload in workloads:
        accepted += accepted_when_equal(model, workload, 12)
    assert min(accepted[False], accepted[True]) > 40, "speculation took part"


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("Repeat this sentence 50 times: This is a test." + "\nThis is a test." * 4, 1.5),
        ("The keeper of the lighthouse climbed the stairs, and in the lamp room he saw", 0.98),
        ("Rain falls when", 0.98),
    ],
    ids=["repeat", "story", "explanation"],
)
def test_bug_29_repetition_is_worth_more_than_half_and_prose_loses_less_than_a_fiftieth(
    model: quoth.Model, text: str, least: float
) -> None:
    """By the costs that a first run assumes, of dense models and of mixtures, without a clock, so that the machine's
    load is no part of it. The model of the tests does not obey the report's own prompt, so its answer is begun."""
    prompt = model.tokenizer.encode(text)
    tables = {"dense": None, "mixture": MIXTURE}
    tokens, cost = Counter[str](), dict.fromkeys(tables, 0.0)
    for sampling in SAMPLINGS:
        expected = model.decoder(sampling=sampling, speculation=None).generate(prompt, max_tokens=70)
        found = model.decoder(sampling=sampling).generate(prompt, max_tokens=70)
        assert found.tokens == expected.tokens
        assert found.stats.drafted > 0 or least < 1
        turn = Turn(np.array(prompt, np.uint32), np.array(expected.tokens, np.uint32))
        for name, costs in tables.items():
            replayed = replay_trace(Trace("bug 29", "text", (turn,), n_vocab=model.n_vocab), costs=costs)
            tokens[name] += replayed.tokens
            cost[name] += replayed.cost
    for name in tables:
        assert tokens[name] / cost[name] > least, name
