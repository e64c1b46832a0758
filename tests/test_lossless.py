"""Speculation changes nothing but time: the seven obligations of `docs/lossless.md`, as a user sees them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import quoth
from models import KERNELS, KV_TYPES, tiny
from sources import OPEN, ROLES, Source, speculation

PROMPT = [40, 41, 42, 43, 40, 41, 42]
WARM = quoth.Sampling(temperature=0.8, top_k=20, seed=3)
GREEDY = quoth.Sampling()


def plain_stream(model: quoth.Model, sampling: quoth.Sampling, prompt: Sequence[int], n: int) -> list[int]:
    """Prompt and what plain decoding makes of it, without any stop: what a perfect source knows."""
    return [
        *prompt,
        *model.decoder(sampling=sampling, speculation=None).generate(prompt, max_tokens=n, stop_at_eog=False).tokens,
    ]


def outcome(result: quoth.Result) -> tuple[object, ...]:
    """All that speculation must not change. Log-probabilities are floats of single precision, compared as they are."""
    s = result.stats
    return (
        result.tokens,
        result.text,
        result.finish_reason,
        result.stop,
        result.logprobs,
        s.committed,
        s.draws,
        s.seed,
    )


def assert_same_state(a: quoth.Decoder, b: quoth.Decoder) -> None:
    assert a.history == b.history
    assert a.cached_tokens == b.cached_tokens == len(a.history) - 1
    assert a._core.same_prefix(b._core, a.cached_tokens), "other bytes in the cache"


def assert_contract(source: Source, decoder: quoth.Decoder) -> None:
    """The decoder kept its side of the contract with a source."""
    assert source.faults == []
    if not source.failed:
        assert source.seen == decoder.history


# ---- obligation 1: one draw per committed token, the plain stream whatever the source


@pytest.mark.parametrize("role", ROLES)
def test_sampled_text_is_the_same_whatever_the_source(role: str) -> None:
    model = tiny()
    accepted = 0
    for seed in range(15):
        sampling = quoth.Sampling(temperature=0.8, top_k=20, seed=seed)
        plain = model.decoder(sampling=sampling, speculation=None)
        expected = plain.generate(PROMPT, max_tokens=32, stop_at_eog=False, logprobs=0)
        assert expected.stats.draws == expected.stats.committed == 32
        source = Source(role, [plain_stream(model, sampling, PROMPT, 60)])
        decoder = model.decoder(sampling=sampling, speculation=speculation(source, (1, 3, 8, 17, 64)[seed % 5]))
        found = decoder.generate(PROMPT, max_tokens=32, stop_at_eog=False, logprobs=0)
        assert outcome(found) == outcome(expected)
        assert_same_state(decoder, plain)
        assert_contract(source, decoder)
        accepted += found.stats.accepted
        assert found.stats.steps + found.stats.accepted + 1 == found.stats.committed
    right = role in ("perfect", "alternating", "lying", "slow", "raising truncate_pending", "raising rebuild")
    assert accepted > 15 or not right


def test_the_built_in_cascade_and_references_change_nothing() -> None:
    model = tiny()
    for sampling in (GREEDY, *(quoth.Sampling(temperature=0.8, top_k=20, seed=s) for s in range(20))):
        stream = plain_stream(model, sampling, PROMPT, 80)
        plain = model.decoder(sampling=sampling, speculation=None)
        expected = plain.generate(PROMPT, max_tokens=60, stop_at_eog=False, logprobs=3)
        for options, reference in (
            ({}, None),
            ({"gate": OPEN, "costs": {1: 1.0}}, stream),
            ({"gate": OPEN, "min_match": 2}, stream),
        ):
            decoder = model.decoder(sampling=sampling, speculation=quoth.Speculation(**options))
            if reference:
                decoder.add_reference(reference)
            found = decoder.generate(PROMPT, max_tokens=60, stop_at_eog=False, logprobs=3)
            assert outcome(found) == outcome(expected)
            assert_same_state(decoder, plain)
            assert not reference or found.stats.accepted > 20


# ---- obligation 2: the same bits at every commit


def test_rows_at_every_commit_have_the_bits_of_plain_ones() -> None:
    """Log-probabilities of 20 tokens tell of each row, and keys and values in the cache of every number before it."""
    for i, (kind, arch, kv_type) in enumerate(
        zip(("Q4_K", "Q8_0", "F16"), ("llama", "qwen2", "qwen3"), KV_TYPES, strict=True)
    ):
        sampling = (GREEDY, WARM)[i % 2]
        reference = tiny(kind, arch=arch, kv_type=kv_type, kernels="scalar")
        plain = reference.decoder(sampling=sampling, speculation=None)
        expected = plain.generate(PROMPT, max_tokens=40, stop_at_eog=False, logprobs=20)
        streams = [plain_stream(reference, sampling, PROMPT, 80)]
        for k, kernels in enumerate(KERNELS):
            model = tiny(kind, arch=arch, kv_type=kv_type, kernels=kernels, threads=1 + (i + k) % 2)
            for role, max_draft in (("perfect", 1 + (7 * i + 3 * k) % 33), ("alternating", 8)):
                decoder = model.decoder(sampling=sampling, speculation=speculation(Source(role, streams), max_draft))
                found = decoder.generate(PROMPT, max_tokens=40, stop_at_eog=False, logprobs=20)
                assert outcome(found) == outcome(expected), (kind, kv_type, kernels, role, max_draft)
                assert_same_state(decoder, plain)
                assert found.stats.accepted > 0


# ---- obligation 4: nothing unverified is kept, whatever fails


@pytest.mark.parametrize("role", ROLES)
def test_a_stream_may_be_left_after_any_step_and_the_next_turn_is_plain(role: str) -> None:
    model = tiny()
    stream = plain_stream(model, WARM, PROMPT, 90)
    for steps, way in itertools.product(range(1, 7), range(3)):
        source = Source(role, [stream])
        decoder = model.decoder(sampling=WARM, speculation=speculation(source, 5))
        for _ in zip(range(steps), decoder.stream(PROMPT, max_tokens=60, stop_at_eog=False), strict=False):
            assert decoder.cached_tokens == len(decoder.history) - 1
        held = decoder.history
        assert held == stream[: len(held)]
        prompt = ([*held, 60, 61], PROMPT, [*held[: len(held) // 2], 62, 63])[way]
        fresh = model.decoder(sampling=WARM, speculation=None)
        expected = fresh.generate(prompt, max_tokens=12, stop_at_eog=False, logprobs=20)
        found = decoder.generate(prompt, max_tokens=12, stop_at_eog=False, logprobs=20)
        assert outcome(found) == outcome(expected)
        shared = next(
            (i for i, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b), min(len(held), len(prompt))
        )
        assert found.stats.cached_tokens == min(shared, len(held) - 1, len(prompt) - 1)
        assert_same_state(decoder, fresh)
        assert_contract(source, decoder)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_that_are_not_numbers_are_an_error_at_their_place_and_the_next_turn_is_plain(temperature: float) -> None:
    sampling = quoth.Sampling(temperature=temperature, top_k=20, seed=5)
    stream = plain_stream(tiny(poisoned=-1), sampling, PROMPT, 60)
    first = next(i for i in range(len(PROMPT) + 6, 60) if stream[i] not in stream[:i])
    model = tiny(poisoned=stream[first])
    for role, max_draft in (("plain", 0), ("perfect", 4), ("perfect", 30), ("alternating", 8), ("garbage", 8)):
        guess = None if role == "plain" else speculation(Source(role, [stream]), max_draft)
        decoder = model.decoder(sampling=sampling, speculation=guess)
        got: list[int] = []
        with pytest.raises(quoth.QuothError, match=rf"position {first + 1}: expected numbers, found NaN"):
            got.extend(decoder.tokens(PROMPT, max_tokens=60, stop_at_eog=False))
        assert got == stream[len(PROMPT) : first + 1], "everything before it was handed out"
        assert decoder.history == stream[: first + 1]
        with pytest.raises(quoth.QuothError):
            decoder.generate(PROMPT, max_tokens=60, stop_at_eog=False)
        prompt = [*(t for t in stream[:first]), 3]
        fresh = model.decoder(sampling=sampling, speculation=None)
        expected = fresh.generate(prompt, max_tokens=1, stop_at_eog=False, logprobs=20)
        assert outcome(decoder.generate(prompt, max_tokens=1, stop_at_eog=False, logprobs=20)) == outcome(expected)
        assert_same_state(decoder, fresh)


# ---- obligation 5: the gate


def test_text_is_the_same_while_the_gate_trips_backs_off_probes_and_opens_again() -> None:
    model = tiny()
    gate = quoth.Gate(window=4, reprobe_after=3, reprobe_max=24, probe_steps=2, max_debt=0.5, credit=2.0)
    stream = plain_stream(model, WARM, PROMPT, 200)
    plain = model.decoder(sampling=WARM, speculation=None)
    expected = plain.generate(PROMPT, max_tokens=180, stop_at_eog=False, logprobs=1)
    source = Late("late", [stream])
    costs = {1: 1.5, 4: 2.0, 8: 4.0}
    decoder = model.decoder(sampling=WARM, speculation=speculation(source, 12, gate=gate, costs=costs))
    found = decoder.generate(PROMPT, max_tokens=180, stop_at_eog=False, logprobs=1)
    assert outcome(found) == outcome(expected)
    assert_same_state(decoder, plain)
    assert_contract(source, decoder)
    assert min(found.stats.gate.trips, found.stats.gate.probes, found.stats.gate.reopened) >= 1
    assert "plain steps" in (found.stats.gate.reason or "")


class Late(Source):
    """Wrong in its first half, then right."""

    def suggest(self, context: list[int], max_tokens: int) -> object:
        right = super().suggest(context, max_tokens)
        assert isinstance(right, list)
        return right if len(context) > 90 else [(t + 1) % self.n_vocab for t in right]


# ---- obligation 6: whatever ends a generation inside a draft


@pytest.mark.parametrize("role", ["perfect", "alternating"])
def test_stops_inside_a_draft_end_it_as_plain(role: str) -> None:
    """A token, and a text that begins within one token and ends within the next."""
    model = tiny()
    stream = plain_stream(model, WARM, PROMPT, 90)
    answer = stream[len(PROMPT) :]
    spelled = [model.tokenizer.decode([token]) for token in answer[:20]]
    for i in range(2, 18):
        stop = answer[i] if i % 2 else spelled[i][-1:] + spelled[i + 1][:1]
        request = {"max_tokens": 60, "stop_at_eog": False, "logprobs": 2, "stop": stop}
        plain = model.decoder(sampling=WARM, speculation=None)
        expected = plain.generate(PROMPT, **request)  # type: ignore[arg-type]
        assert expected.finish_reason == "stop"
        source = Source(role, [stream])
        decoder = model.decoder(sampling=WARM, speculation=speculation(source, 16))
        assert outcome(decoder.generate(PROMPT, **request)) == outcome(expected)  # type: ignore[arg-type]
        assert_same_state(decoder, plain)
        following = [*plain.history, 33]
        after = plain.generate(following, max_tokens=6, stop_at_eog=False)
        assert outcome(decoder.generate(following, max_tokens=6, stop_at_eog=False)) == outcome(after)
        assert_contract(source, decoder)


# ---- bug reports of other engines, by their numbers in the collection


def drafts(model: quoth.Model, sampling: quoth.Sampling, prompt: Sequence[int], n: int) -> Iterator[quoth.Decoder]:
    """Decoders with the built-in cascade and with sources that know, or do not know, the plain answer."""
    stream = plain_stream(model, sampling, prompt, n + 64)
    for cap in (1, 2, 4, 8, 16, 64):
        yield model.decoder(sampling=sampling, speculation=quoth.Speculation(max_draft=cap, gate=OPEN, costs={1: 1.0}))
    for role in ("perfect", "garbage", "alternating"):
        yield model.decoder(sampling=sampling, speculation=speculation(Source(role, [stream], model.n_vocab), 16))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0", "F16"])
def test_bug_1_and_2_greedy_text_of_repetitive_prompts_is_the_same_in_every_format(kind: str) -> None:
    """1: a word 48 times, n-gram drafts. 2: quantised targets diverge under greedy decoding with drafts."""
    model = tiny(kind)
    for prompt in (PROMPT[:2] * 24, [*range(40, 70), *range(40, 60)]):
        expected = model.decoder(speculation=None).generate(prompt, max_tokens=64, stop_at_eog=False, logprobs=20)
        found = [
            d.generate(prompt, max_tokens=64, stop_at_eog=False, logprobs=20) for d in drafts(model, GREEDY, prompt, 64)
        ]
        assert all(outcome(f) == outcome(expected) for f in found)
        assert all(f.stats.drafted for f in found)


def test_bug_1_on_the_default_model(smollm2_path: object) -> None:
    model = quoth.Model(smollm2_path, n_ctx=512)  # type: ignore[arg-type]
    prompt = model.tokenizer.encode("serving " * 48)
    expected = model.decoder(speculation=None).generate(prompt, max_tokens=32, logprobs=20)
    for cap in (1, 2, 4, 8, 16, 64):
        decoder = model.decoder(speculation=quoth.Speculation(max_draft=cap))
        assert outcome(decoder.generate(prompt, max_tokens=32, logprobs=20)) == outcome(expected), cap


def test_bug_3_the_same_request_three_times_from_the_prompt_cache_is_the_same() -> None:
    model = tiny(n_ctx=4096)
    prompt = [random.Random(3).randrange(97) for _ in range(3000)]
    for guess in (None, quoth.Speculation()):
        decoder = model.decoder(speculation=guess)
        found = [decoder.generate(prompt, max_tokens=16, stop_at_eog=False, logprobs=20) for _ in range(3)]
        assert outcome(found[0]) == outcome(found[1]) == outcome(found[2])
        assert [f.stats.cached_tokens for f in found] == [0, 2999, 2999]
        other = model.decoder(speculation=guess)
        other.generate([*prompt[:1500], 5, 6, 7], max_tokens=3)
        assert outcome(other.generate(prompt, max_tokens=16, stop_at_eog=False, logprobs=20)) == outcome(found[0])
        assert other.stats.cached_tokens == 1500


def test_bug_6_log_probabilities_are_those_of_the_raw_row_with_speculation_too() -> None:
    """There they were 0.0 for accepted tokens."""
    model = tiny()
    sampling = quoth.Sampling(temperature=0.7, top_k=5, repeat_penalty=1.2, logit_bias={7: 2.0}, seed=1)
    expected = model.decoder(sampling=sampling, speculation=None).generate(
        PROMPT, max_tokens=40, stop_at_eog=False, logprobs=5
    )
    stream = [*PROMPT, *expected.tokens]
    decoder = model.decoder(sampling=sampling, speculation=speculation(Source("perfect", [stream])))
    found = decoder.generate(PROMPT, max_tokens=40, stop_at_eog=False, logprobs=5)
    assert found.stats.accepted > 20
    assert found.logprobs == expected.logprobs
    assert found.logprobs is not None
    rows = model.session().forward(stream).astype(np.float64)
    for i, entry in enumerate(found.logprobs):
        row = rows[len(PROMPT) - 1 + i]
        logs = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert entry.token == found.tokens[i]
        assert entry.logprob == pytest.approx(logs[entry.token], abs=1e-6)
        best = np.lexsort((np.arange(len(row)), -row))[:5]
        assert [t for t, _ in entry.top] == best.tolist()
        assert [x for _, x in entry.top] == pytest.approx(logs[best].tolist(), abs=1e-6)


def test_bug_6_on_the_default_model(smollm2_path: object) -> None:
    model = quoth.Model(smollm2_path, n_ctx=512)  # type: ignore[arg-type]
    sampling = quoth.Sampling(temperature=1.0, seed=1)
    prompt = model.tokenizer.encode("The capital of France is")
    stream = plain_stream(model, sampling, prompt, 20)
    expected = model.decoder(sampling=sampling, speculation=None).generate(prompt, max_tokens=10, logprobs=5)
    guess = speculation(Source("perfect", [stream], model.n_vocab), 4)
    assert outcome(
        model.decoder(sampling=sampling, speculation=guess).generate(prompt, max_tokens=10, logprobs=5)
    ) == outcome(expected)


def test_bug_12_a_model_without_an_end_of_generation_runs_to_its_budget() -> None:
    model = tiny(eog=False)
    prompt = [5, 6, 7, 8, 9, 10, 11, 7, 8]
    expected = model.decoder(speculation=None).generate(prompt, max_tokens=100)
    found = model.decoder(speculation=quoth.Speculation(gate=OPEN, costs={1: 1.0})).generate(prompt, max_tokens=100)
    assert outcome(found) == outcome(expected)
    assert found.finish_reason == "length"
    assert found.stats.drafted > 0


def test_bug_15_seeds_give_the_same_ids_and_a_reported_random_seed_repeats_them() -> None:
    model = tiny()
    for seed in range(100):
        sampling = quoth.Sampling(temperature=0.8, top_k=20, seed=seed)
        expected = model.decoder(sampling=sampling, speculation=None).generate(PROMPT, max_tokens=16)
        assert outcome(model.decoder(sampling=sampling).generate(PROMPT, max_tokens=16)) == outcome(expected)
    unseeded = quoth.Sampling(temperature=0.8, top_k=20)
    runs = [model.decoder(sampling=unseeded).generate(PROMPT, max_tokens=16, stop_at_eog=False) for _ in range(8)]
    assert len({run.tokens for run in runs}) > 1
    for run in runs:
        again = model.decoder(sampling=quoth.Sampling(temperature=0.8, top_k=20, seed=run.stats.seed), speculation=None)
        assert again.generate(PROMPT, max_tokens=16, stop_at_eog=False).tokens == run.tokens


@pytest.mark.parametrize("temperature", [0, 0.0, -1])
def test_bug_16_temperature_zero_drafts_like_any_other(temperature: float) -> None:
    model = tiny()
    stream = plain_stream(model, GREEDY, PROMPT, 60)
    sampling = quoth.Sampling(temperature=temperature)
    decoder = model.decoder(sampling=sampling, speculation=quoth.Speculation(gate=OPEN, costs={1: 1.0}))
    decoder.add_reference(stream)
    found = decoder.generate(PROMPT, max_tokens=50, stop_at_eog=False)
    assert list(found.tokens) == stream[len(PROMPT) :][:50]
    assert found.stats.accepted > 10
    assert found.stats.draws == 0
