"""Every family as a user sees it: rows, rewinds, memory of windows, the same text with and without speculation."""

from __future__ import annotations

import random

import numpy as np
import pytest

import quoth
from models import FAMILIES, WINDOW, tiny
from sources import Source, speculation
from test_lossless import assert_contract, assert_same_state, outcome, plain_stream

CHUNK = 128
FORGOTTEN = WINDOW + 3 * CHUNK
"""With so many tokens, windows have forgotten two chunks."""


def some_tokens(n: int, seed: int = 0) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(97) for _ in range(n)]


def feed(session: quoth.Session, tokens: list[int], size: int) -> np.ndarray:
    """Rows of tokens fed in parts, by their bits."""
    parts = [session.forward(tokens[at : at + size]) for at in range(0, len(tokens), size)]
    return np.concatenate(parts).view(np.uint32)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_session_that_went_back_over_the_edge_of_a_window_is_a_fresh_one(
    family: str, kv_type: quoth.model.KvType
) -> None:
    model, tokens = tiny(arch=family, kv_type=kv_type), some_tokens(FORGOTTEN)
    rows = feed(model.session(), tokens, 512)
    session = model.session()
    session.forward(tokens, rows="last")
    for back in (1, WINDOW - 1, WINDOW, WINDOW + 1, CHUNK - 1, CHUNK):
        n = FORGOTTEN - back
        session.truncate(n)
        session.forward(some_tokens(back, seed=back))
        session.truncate(n)
        fresh = model.session()
        fresh.forward(tokens[:n], rows="last")
        assert session._session.same_prefix(fresh._session, n)
        assert (feed(session, tokens[n:], 50) == rows[n:]).all(), f"{back} back"


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gemma4moe"])
def test_what_a_window_no_longer_keeps_cannot_be_gone_back_to_and_nothing_changes(family: str) -> None:
    model, tokens = tiny(arch=family), some_tokens(FORGOTTEN)
    rows = feed(model.session(), tokens, 512)
    session = model.session()
    session.forward(tokens[:-40], rows="last")
    for refused in (lambda: session.truncate(60), lambda: session.fork(60)):
        with pytest.raises(quoth.OptionsError, match=f"rewind to 60 tokens: layers with a window of {WINDOW} keep"):
            refused()
        assert len(session) == FORGOTTEN - 40
    assert (feed(session, tokens[-40:], 7) == rows[-40:]).all()
    session.truncate(0)
    assert (feed(session, tokens, 100) == rows).all()


def test_memory_of_windowed_layers_does_not_grow_with_the_context() -> None:
    model = tiny(arch="gemma3", n_ctx=8192)
    session = model.session()
    held = []
    for _ in range(4):
        for _ in range(15):
            session.forward(some_tokens(65), rows="last")
        held.append(session._session.memory_bytes)
    # One layer of three sees everything: 2 bytes for each number of a key and a value, in chunks that may be padded.
    grown = (held[3] - held[1]) / (2 * 15 * 65 * 2 * 2 * 32)
    assert 0.8 < grown < 1.3
    assert held[3] < 3900 * 2 * 2 * 32 + 2 * 5 * CHUNK * 2 * 2 * 32 * 1.3


@pytest.mark.parametrize("role", ["perfect", "alternating", "garbage", "cascade"])
@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_the_same_with_and_without_speculation_greedy_and_sampled(family: str, role: str) -> None:
    prompt = some_tokens(FORGOTTEN - 40, seed=5)
    for i, kv_type in enumerate(("f16", "q8_0")):
        model = tiny(arch=family, kv_type=kv_type, embed_std=3.0)
        for sampling in (quoth.Sampling(), quoth.Sampling(temperature=0.8, top_k=20, seed=3)):
            plain = model.decoder(sampling=sampling, speculation=None)
            expected = plain.generate(prompt, max_tokens=80, stop_at_eog=False, logprobs=3)
            source = Source(role, [plain_stream(model, sampling, prompt, 150)])
            how = speculation(source, (33, 64)[i]) if role != "cascade" else quoth.Speculation()
            decoder = model.decoder(sampling=sampling, speculation=how)
            found = decoder.generate(prompt, max_tokens=80, stop_at_eog=False, logprobs=3)
            assert outcome(found) == outcome(expected)
            assert_same_state(decoder, plain)
            assert role == "cascade" or found.stats.drafted > 40
            if role != "cascade":
                assert_contract(source, decoder)
            if role == "alternating":
                assert 0 < found.stats.accepted < found.stats.drafted


def test_a_mixture_that_was_never_measured_has_costs_of_its_own() -> None:
    costs = {family: tiny(arch=family).decoder().generate([5], max_tokens=2).stats.gate.costs for family in FAMILIES}
    mixtures = {family for family, said in costs.items() if "mixture of experts" in said}
    assert mixtures == {"qwen3moe", "gemma4moe"}
    assert tiny(arch="gemma4moe").config["n_expert"] == 6
    assert tiny(arch="gemma4moe").config["n_expert_used"] == 2
    assert tiny(arch="gemma4").config["n_expert"] == 0
    given = tiny(arch="qwen3moe").decoder(speculation=quoth.Speculation(costs={1: 1.5}))
    assert given.generate([5], max_tokens=2).stats.gate.costs == "given by the caller"
