"""What a decoder promises its caller: reasons, stops, texts, statistics, refusals; it survives what fails around it."""

from __future__ import annotations

import _thread
import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import quoth
from models import EOS, tiny, tiny_path
from sources import OPEN, ROLES, Source, speculation

PROMPT = [40, 41, 42, 43, 40, 41, 42]
WARM = quoth.Sampling(temperature=0.8, top_k=20, seed=3)


def plain(model: quoth.Model, prompt: list[int], n: int, sampling: quoth.Sampling = WARM) -> tuple[int, ...]:
    return model.decoder(sampling=sampling, speculation=None).generate(prompt, max_tokens=n, stop_at_eog=False).tokens


def known(model: quoth.Model, n: int = 90, sampling: quoth.Sampling = WARM) -> list[int]:
    return [*PROMPT, *plain(model, PROMPT, n, sampling)]


# ---- results


def test_a_result_says_what_was_generated_why_it_ended_and_what_it_took() -> None:
    model = tiny()
    decoder = model.decoder(sampling=WARM, speculation=speculation(Source("perfect", [known(model)]), 6))
    result = decoder.generate(PROMPT, max_tokens=40, stop_at_eog=False, logprobs=2)
    assert (result.finish_reason, result.stop, result.prompt_tokens) == ("length", None, len(PROMPT))
    assert result.text == model.tokenizer.decode(result.tokens)
    assert result.logprobs is not None
    assert [entry.token for entry in result.logprobs] == list(result.tokens)
    s = result.stats
    assert (s.prefill_tokens, s.cached_tokens, s.committed, s.draws, s.seed) == (len(PROMPT), 0, 40, 40, 3)
    assert s.steps == s.verify_steps + s.plain_steps
    assert s.committed == 1 + s.steps + s.accepted
    assert s.tokens_per_step == pytest.approx(39 / s.steps)
    assert s.acceptance == s.accepted / s.drafted == 1.0
    assert s.bonus == s.verify_steps
    assert s.longest_draft == 6
    assert 0 < s.draft_ns + s.verify_ns + s.sample_ns <= s.decode_ns
    assert s.prefill_ns > 0
    assert (s.kernels, s.threads, s.gate.state, s.gate.costs) == (model.kernels, 1, "open", "given by the caller")
    assert s.sources["source"].drafted == s.drafted
    assert s.sources["source"].accepted == s.accepted
    assert s.sources["source"].acceptance == 1.0
    assert decoder.stats == s
    assert decoder.history == [*PROMPT, *result.tokens]
    assert decoder.cached_tokens == len(decoder.history) - 1


def test_costs_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quoth.options._LIVE_COSTS", True)
    model = tiny()
    decoder = model.decoder(sampling=WARM, speculation=speculation(Source("alternating", [known(model)]), 4))
    gate = decoder.generate(PROMPT, max_tokens=60, stop_at_eog=False).stats.gate
    assert gate.plain_ns is not None
    assert gate.plain_ns > 0
    assert gate.scale != 1.0


def test_chunks_name_their_step_their_draft_and_its_source() -> None:
    model = tiny()
    decoder = model.decoder(sampling=WARM, speculation=quoth.Speculation(gate=OPEN, costs={1: 1.0}, recycling=False))
    decoder.add_reference(known(model))
    chunks = list(decoder.stream(PROMPT, max_tokens=60, stop_at_eog=False, trace=True))
    assert [c.step for c in chunks] == list(range(len(chunks)))
    assert all(len(c.tokens) == c.accepted + 1 for c in chunks), "accepted tokens, then the correction or the bonus"
    assert {c.source for c in chunks if c.drafted} <= {"conversation", "reference-1"}
    assert all((c.source is None) == (c.drafted == 0) for c in chunks)
    quoted = sum(c.accepted for c in chunks if c.source == "reference-1")
    assert quoted == decoder.stats.sources["reference-1"].accepted > 20
    assert sum(c.drafted for c in chunks) == decoder.stats.drafted
    untraced = model.decoder(sampling=WARM).stream(PROMPT, max_tokens=10)
    assert all(c.source is None for c in untraced)


def test_text_comes_in_whole_characters_and_nothing_of_a_stop() -> None:
    model = tiny()
    cut = 0
    for seed in range(40):
        sampling = quoth.Sampling(temperature=1.5, seed=seed)
        decoder = model.decoder(sampling=sampling)
        chunks = list(decoder.stream(PROMPT, max_tokens=60, stop=["the end", "€", "#a"]))
        tokens = tuple(t for c in chunks for t in c.tokens)
        text = "".join(c.text for c in chunks)
        assert not any(stop in text for stop in ("the end", "€", "#a"))
        whole = b"".join(model.tokenizer.token_bytes(t) for t in tokens if t > 1)
        assert whole.decode(errors="replace").startswith(text.rstrip("\ufffd")) or text in whole.decode(
            errors="replace"
        )
        cut += chunks[-1].finish_reason == "stop" and isinstance(decoder.stop, str)
    assert cut > 0


def test_a_second_prompt_reuses_what_it_shares_with_the_first() -> None:
    model = tiny()
    decoder = model.decoder(sampling=WARM)
    first = decoder.generate(PROMPT, max_tokens=10, stop_at_eog=False)
    following = [*PROMPT, *first.tokens, 5, 6]
    second = decoder.generate(following, max_tokens=10, stop_at_eog=False)
    assert (second.stats.cached_tokens, second.stats.prefill_tokens) == (len(PROMPT) + 9, 3)
    assert second.tokens == plain(model, following, 10)
    decoder.rewind(len(PROMPT))
    assert (decoder.history, decoder.cached_tokens) == (PROMPT, len(PROMPT) - 1)
    assert decoder.generate(PROMPT, max_tokens=10, stop_at_eog=False).tokens == first.tokens
    decoder.reset()
    assert (decoder.history, decoder.cached_tokens) == ([], 0)
    assert decoder.generate(PROMPT, max_tokens=10, stop_at_eog=False).stats.cached_tokens == 0


def test_a_fork_goes_its_own_way_with_the_references_of_its_origin() -> None:
    model = tiny()
    decoder = model.decoder(sampling=WARM, speculation=quoth.Speculation(gate=OPEN, costs={1: 1.0}))
    decoder.add_reference(known(model))
    stream = decoder.stream(PROMPT, max_tokens=40, stop_at_eog=False)
    got = [*next(stream).tokens, *next(stream).tokens]
    fork = decoder.fork()
    assert fork.history == decoder.history
    other = fork.generate([*fork.history, 9], max_tokens=20, stop_at_eog=False)
    assert other.tokens == plain(model, [*PROMPT, *got, 9], 20)
    assert "reference-1" in other.stats.sources
    got += [t for chunk in stream for t in chunk.tokens]
    assert tuple(got) == plain(model, PROMPT, 40)


def test_options_set_during_a_generation_count_from_the_next_one_on() -> None:
    model = tiny()
    decoder = model.decoder(sampling=WARM)
    stream = decoder.tokens(PROMPT, max_tokens=30, stop_at_eog=False)
    got = [next(stream) for _ in range(3)]
    decoder.sampling = quoth.Sampling(temperature=2.0, seed=1)
    assert (*got, *stream) == plain(model, PROMPT, 30)
    again = decoder.generate(PROMPT, max_tokens=30, stop_at_eog=False).tokens
    assert again == plain(model, PROMPT, 30, quoth.Sampling(temperature=2.0, seed=1))


# ---- refusals


REFUSED: list[tuple[object, type[Exception]]] = [
    ([], quoth.OptionsError),
    ([1, 97], quoth.OptionsError),
    ([1] * 513, quoth.ContextFullError),
    (None, quoth.OptionsError),
]


@pytest.mark.parametrize(("prompt", "kind"), REFUSED, ids=["empty", "out of range", "too long", "none"])
@pytest.mark.parametrize("how", ["generate", "stream", "agenerate", "astream"])
def test_a_refused_request_leaves_the_seed_the_stop_and_the_open_stream(
    prompt: object, kind: type[Exception], how: str
) -> None:
    model = tiny()
    decoder = model.decoder(sampling=WARM)
    expected = plain(model, PROMPT, 30)
    decoder.generate(PROMPT, max_tokens=30, stop=expected[4], stop_at_eog=False)
    assert decoder.stop == expected[4]

    async def awaited() -> None:
        if how == "agenerate":
            await decoder.agenerate(prompt, seed=99)  # type: ignore[arg-type]
        else:
            [_ async for _ in decoder.astream(prompt, seed=99)]  # type: ignore[arg-type]

    def use() -> None:
        if how == "generate":
            decoder.generate(prompt, seed=99)  # type: ignore[arg-type]
        elif how == "stream":
            list(decoder.stream(prompt, seed=99))  # type: ignore[arg-type]
        else:
            asyncio.run(awaited())

    with pytest.raises(kind):
        use()
    assert (decoder.stats.seed, decoder.stop) == (3, expected[4])
    assert decoder.generate(PROMPT, max_tokens=30, stop_at_eog=False).tokens == expected
    stream = decoder.stream(PROMPT, max_tokens=30, stop_at_eog=False)
    got = [*next(stream).tokens]
    with pytest.raises(kind):
        use()
    got += [token for chunk in stream for token in chunk.tokens]
    assert tuple(got) == expected, "the open stream goes on"
    assert decoder.fork().generate(PROMPT, max_tokens=30, stop_at_eog=False).tokens == expected


@pytest.mark.parametrize("how", ["stream", "astream"])
def test_a_request_owns_its_sampling_and_its_seed(how: str) -> None:
    model = tiny()
    decoder = model.decoder(sampling=WARM)
    hot = quoth.Sampling(temperature=2.0)
    expected = [plain(model, PROMPT, 20, s) for s in (WARM, replace(WARM, seed=77), replace(hot, seed=78))]
    assert len(set(expected)) == 3

    async def first_of(steps: AsyncIterator[quoth.Chunk]) -> None:
        await anext(steps)

    make = getattr(decoder, how)
    one = make(PROMPT, max_tokens=20, stop_at_eog=False, seed=77)
    two = make(PROMPT, max_tokens=20, stop_at_eog=False, sampling=hot, seed=78)
    for steps, seed in ((two, 78), (one, 77)):
        if how == "stream":
            next(steps)
        else:
            asyncio.run(first_of(steps))
        assert decoder.stats.seed == seed
        # No other request hears of it.
        assert decoder.generate(PROMPT, max_tokens=20, stop_at_eog=False).tokens == expected[0]
        assert (decoder.stats.seed, decoder.sampling) == (3, WARM)
    for options, wanted in (({"seed": 77}, expected[1]), ({"sampling": hot, "seed": 78}, expected[2])):
        assert decoder.generate(PROMPT, max_tokens=20, stop_at_eog=False, **options).tokens == wanted
    with pytest.raises(quoth.OptionsError, match="seed is -1"):
        make(PROMPT, seed=-1)


LONG: Any = {"max_tokens": 20, "stop_at_eog": False}


@pytest.mark.parametrize("how", ["generate", "stream", "agenerate", "astream", "tokens"])
def test_without_a_seed_each_generation_draws_anew_and_its_seed_repeats_it(how: str) -> None:
    decoder = tiny().decoder(sampling=replace(WARM, seed=None, temperature=1.0))

    async def collected(**options: int) -> list[int]:
        return [t async for chunk in decoder.astream(PROMPT, **LONG, **options) for t in chunk.tokens]

    def tokens(**options: int) -> tuple[int, ...]:
        if how == "generate":
            return decoder.generate(PROMPT, **LONG, **options).tokens
        if how == "agenerate":
            return asyncio.run(decoder.agenerate(PROMPT, **LONG, **options)).tokens
        if how == "astream":
            return tuple(asyncio.run(collected(**options)))
        if how == "tokens":
            return tuple(decoder.tokens(PROMPT, **LONG, **options))
        return tuple(t for chunk in decoder.stream(PROMPT, **LONG, **options) for t in chunk.tokens)

    seen = [(tokens(), decoder.stats.seed) for _ in range(5)]
    assert len({found for found, _ in seen}) == len({seed for _, seed in seen}) == 5
    for found, seed in seen:
        assert seed is not None
        assert tokens(seed=seed) == tokens(seed=seed) == found
    assert decoder.fork().generate(PROMPT, max_tokens=20).stats.seed not in {seed for _, seed in seen}


def test_a_prompt_that_was_stopped_on_its_way_ends_open_streams_and_leaves_the_seed() -> None:
    model = tiny(n_ctx=2048)
    decoder = model.decoder(sampling=WARM)
    stream = decoder.stream(PROMPT, max_tokens=30, stop_at_eog=False)
    next(stream)

    def stop(done: int, total: int) -> None:
        raise quoth.OptionsError("a callback may raise what the core raises")

    with pytest.raises(quoth.OptionsError, match="a callback"):
        decoder.generate([5] * 1500, seed=99, progress=stop)
    assert decoder.stats.seed == 3
    with pytest.raises(quoth.BusyError, match="something else"):
        next(stream)
    assert decoder.generate(PROMPT, max_tokens=30, stop_at_eog=False).tokens == plain(model, PROMPT, 30)


class Between:
    """A core behind each call of which, before its caller goes on, another caller comes by."""

    def __init__(self, core: object, other: Callable[[], None]) -> None:
        self._core, self._other, self._met = core, other, False

    def __getattr__(self, name: str) -> object:
        real = getattr(self._core, name)

        def call(*arguments: object) -> object:
            result = real(*arguments)
            if not self._met:
                self._met = True
                self._other()
                self._met = False
            return result

        return call if name in ("begin", "step", "run") else real


@pytest.mark.parametrize("how", ["generate", "stream"])
def test_who_comes_between_the_calls_of_a_request_is_refused(how: str) -> None:
    model = tiny()
    decoder = model.decoder(sampling=WARM)
    expected = plain(model, PROMPT, 12, replace(WARM, seed=99))
    uses: list[Callable[[], object]] = [
        lambda: decoder.generate([1, 2, 3], max_tokens=2, seed=5),
        lambda: list(decoder.stream([1, 2, 3], max_tokens=2)),
        lambda: decoder.rewind(1),
        decoder.reset,
    ]
    met: list[str] = []

    def other() -> None:
        for use in uses:
            with pytest.raises(quoth.BusyError, match="in use by another caller") as caught:
                pool.submit(use).result(60)
            met.append(str(caught.value))

    with ThreadPoolExecutor(1) as pool:
        decoder._core = Between(decoder._core, other)  # type: ignore[assignment]
        if how == "generate":
            found = decoder.generate(PROMPT, max_tokens=12, stop_at_eog=False, seed=99).tokens
        else:
            chunks = decoder.stream(PROMPT, max_tokens=12, stop_at_eog=False, seed=99)
            found = tuple(token for chunk in chunks for token in chunk.tokens)
    assert found == expected
    assert len(met) >= 2 * len(uses), "between the prompt and the rest at least"


# ---- looking at what is in use


def test_what_is_in_use_can_be_printed() -> None:
    model = tiny(n_ctx=2048)
    decoder, session = model.decoder(speculation=None), model.session()
    seen: list[str] = []
    decoder.generate([5] * 1500, max_tokens=1, progress=lambda done, total: seen.append(f"{decoder}"))
    assert set(seen) == {"Decoder(plain, in use)"}
    assert repr(decoder) == "Decoder(plain, 1501 tokens)"

    class InUse:
        def __len__(self) -> int:
            raise quoth.BusyError("the session is in use by another caller")

    assert repr(session) == "Session(0 of 2048 tokens)"
    session._session = InUse()  # type: ignore[assignment]
    assert repr(session) == "Session(in use, 2048 tokens)"


def test_bug_11_odd_prompts_give_an_error_or_an_answer_and_the_decoder_lives() -> None:
    model = tiny()
    decoder = model.decoder()
    for empty in ("", []):
        with pytest.raises(quoth.OptionsError, match="empty prompt"):
            decoder.generate(empty)
    for prompt in ("   ", " ", [EOS], [0] * 512, range(5), (1, 2)):
        assert decoder.generate(prompt, max_tokens=3).finish_reason in ("stop", "length", "context")
    assert decoder.generate(PROMPT, max_tokens=20, stop_at_eog=False).tokens == plain(
        model, PROMPT, 20, quoth.Sampling()
    )


def test_bug_10_a_full_context_ends_the_generation_and_a_prompt_that_does_not_fit_is_refused() -> None:
    model = tiny(n_ctx=200)
    prompt = [random.Random(1).randrange(97) for _ in range(150)]
    for guess in (None, quoth.Speculation(gate=OPEN, costs={1: 1.0}), speculation(Source("garbage"), 64)):
        decoder = model.decoder(sampling=WARM, speculation=guess)
        result = decoder.generate(prompt, max_tokens=1024, stop_at_eog=False)
        assert (result.finish_reason, len(result.tokens)) == ("context", 51)
        assert result.tokens == plain(tiny(n_ctx=512), prompt, 51)
        history = decoder.history
        assert (len(history), decoder.cached_tokens) == (201, 200)
        for n in (201, 202, 2**70):
            decoder.rewind(n)
            assert decoder.history == history, "the last token is carried, and belongs to a full context too"
        full = decoder.generate(history[:200], max_tokens=1024, stop_at_eog=False)
        assert (full.finish_reason, len(full.tokens)) == ("context", 1)
        with pytest.raises(
            quoth.ContextFullError, match="201 tokens after 0 cached ones do not fit the context of 200"
        ):
            decoder.generate(decoder.history, max_tokens=1)
    # Longer than one pass of 512 rows, with speculation on.
    long = [random.Random(2).randrange(97) for _ in range(700)]
    model = tiny(n_ctx=1024)
    assert (
        model.decoder(sampling=WARM).generate(long, max_tokens=8).tokens
        == model.decoder(sampling=WARM, speculation=None).generate(long, max_tokens=8).tokens
    )


def test_bug_30_every_option_of_speculation_takes_effect_or_is_refused() -> None:
    model = tiny()
    stream = known(model)
    for cap in (1, 2, 7, 16, 64):
        decoder = model.decoder(sampling=WARM, speculation=speculation(Source("perfect", [stream]), cap))
        assert decoder.generate(PROMPT, max_tokens=80, stop_at_eog=False).stats.longest_draft == cap
        source = Source("perfect", [stream])
        model.decoder(sampling=WARM, speculation=speculation(source, cap)).generate(PROMPT, max_tokens=80)
        assert max(source.asked) == cap
    # One token at most: also with measured costs under which two would be the shortest draft that pays.
    decoder = model.decoder(sampling=WARM, speculation=quoth.Speculation(max_draft=1, costs={1: 1.2}, gate=OPEN))
    decoder.add_reference(stream)
    assert decoder.generate(PROMPT, max_tokens=80, stop_at_eog=False).stats.longest_draft == 1
    for least in (2, 9, 16):
        decoder = model.decoder(
            sampling=WARM, speculation=speculation(Source("perfect", [stream]), 16, min_draft=least)
        )
        steps = [c.drafted for c in decoder.stream(PROMPT, max_tokens=60, stop_at_eog=False)]
        assert all(n == 0 or n >= least for n in steps)
        assert any(steps)
        quoth.Speculation(min_draft=least)  # the cascade takes it as well
    for wrong, message in (
        ({"max_draft": 0}, "max_draft is 0, expected 1 to 64"),
        ({"max_draft": 65}, "max_draft is 65"),
        ({"max_draft": 4, "min_draft": 5}, "min_draft is 5, expected at most max_draft"),
        ({"costs": {}}, "`costs`"),
        ({"costs": {2: float("nan")}}, "`costs.cost`"),
        ({"gate": 3}, "gate is 3"),
    ):
        with pytest.raises(quoth.OptionsError) as caught:
            quoth.Speculation(**wrong)  # type: ignore[arg-type]
        assert message in str(caught.value)
    with pytest.raises(TypeError, match="draft_max"):
        quoth.Speculation(draft_max=4)  # type: ignore[call-arg]
    with pytest.raises(quoth.OptionsError, match="speculation is"):
        model.decoder(speculation="on")  # type: ignore[arg-type]


# ---- sources that fail


@pytest.mark.parametrize("role", [r for r in ROLES if r.startswith("raising")])
def test_a_source_that_raises_is_asked_no_more_and_the_reason_is_told(
    role: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny()
    source = Source(role, [known(model)])
    decoder = model.decoder(sampling=WARM, speculation=speculation(source, 4))
    with caplog.at_level(logging.WARNING, "quoth"):
        result = decoder.generate(PROMPT, max_tokens=60, stop_at_eog=False)
        assert result.tokens == plain(model, PROMPT, 60)
        # A prompt that goes another way rebuilds the source.
        other = decoder.generate([1, 2, 3], max_tokens=30, stop_at_eog=False)
    assert other.tokens == plain(model, [1, 2, 3], 30)
    method = role.split()[1]
    reason = f"the draft source failed: RuntimeError: {method} does not work"
    assert (other.stats.gate.state, other.stats.gate.reason) == ("disabled", reason)
    assert other.stats.verify_steps == 0
    assert other.stats.sources["source"].reason == reason
    assert source.faults == []
    assert caplog.text.count(reason) == 1, "said once"


@pytest.mark.parametrize(
    "answer",
    [object(), 7, "text", [None], [1.5], [[1]], [2**80], {"a": 1}, iter(()), [True], b"abc", range(10**9), [-5], [97]],
    ids=lambda answer: type(answer).__name__,
)
def test_whatever_a_source_answers_the_text_is_plain(answer: object) -> None:
    class Odd(Source):
        def suggest(self, context: list[int], max_tokens: int) -> object:
            context.append(12345)  # the list is for reading; this one writes
            return answer

    model = tiny()
    decoder = model.decoder(sampling=WARM, speculation=speculation(Odd("odd")))
    assert decoder.generate(PROMPT, max_tokens=30, stop_at_eog=False).tokens == plain(model, PROMPT, 30)


def test_a_source_must_have_its_two_methods() -> None:
    class Half:
        def suggest(self, context: list[int], max_tokens: int) -> list[int]:
            return []

    with pytest.raises(quoth.OptionsError, match="suggest and observe"):
        tiny().decoder(speculation=quoth.Speculation(source=Half()))  # type: ignore[arg-type]


def test_a_source_without_observe_topk_costs_no_top_k_and_one_with_it_gets_the_best_first() -> None:
    class Least:
        def suggest(self, context: list[int], max_tokens: int) -> list[int]:
            return [1]

        def observe(self, committed: list[int]) -> None:
            pass

    class Ranked(Least):
        topk = 3

        def __init__(self) -> None:
            self.rows: list[tuple[int, list[int]]] = []

        def observe_topk(self, rows: list[tuple[int, list[int]]]) -> None:
            self.rows += rows

    model, source = tiny(), Ranked()
    result = model.decoder(speculation=speculation(source)).generate(PROMPT, max_tokens=20, stop_at_eog=False)
    assert (
        model.decoder(speculation=speculation(Least())).generate(PROMPT, max_tokens=20, stop_at_eog=False).tokens
        == result.tokens
    )
    rows = model.session().forward([*PROMPT, *result.tokens])
    best = [sorted(range(97), key=lambda t, row=row: (-row[t], t))[:3] for row in rows[len(PROMPT) :]]  # type: ignore[misc]
    inputs = iter(zip(result.tokens, best, strict=True))
    # Each row that was verified, in order; a step without a draft (which the gate takes now and then) tells nothing.
    assert all(told in inputs for told in source.rows)
    assert len(source.rows) > 10


def test_a_source_that_uses_its_own_decoder_is_refused_and_nothing_waits() -> None:
    model = tiny()

    class Curious(Source):
        def suggest(self, context: list[int], max_tokens: int) -> object:
            return decoder.generate([1], max_tokens=1)

    decoder = model.decoder(sampling=WARM, speculation=speculation(Curious("curious")))
    result = decoder.generate(PROMPT, max_tokens=20, stop_at_eog=False)
    assert result.tokens == plain(model, PROMPT, 20)
    assert "BusyError: the decoder is in use by another caller" in (result.stats.gate.reason or "")


# ---- interrupts, exceptions, threads


@pytest.mark.parametrize("method", ["suggest", "observe", "observe_topk", "truncate_pending"])
@pytest.mark.parametrize("how", ["generate", "stream"])
def test_an_interrupt_inside_a_source_reaches_the_caller_and_the_decoder_lives(method: str, how: str) -> None:
    model = tiny()
    stream = known(model)

    class Interrupted(Source):
        def _enter(self, called: str, after: int = 3) -> None:
            super()._enter(called, after)
            if called == method and self.calls[called] == 2:
                raise KeyboardInterrupt

    source = Interrupted("raising nothing", [stream])
    if method == "truncate_pending":
        source.role = "raising truncate_pending"  # answers too long, which is cut; and fails later on
    decoder = model.decoder(sampling=WARM, speculation=speculation(source, 4))
    got: list[int] = []

    def consume() -> None:
        if how == "generate":
            decoder.generate(PROMPT, max_tokens=60, stop_at_eog=False)
        else:
            for chunk in decoder.stream(PROMPT, max_tokens=60, stop_at_eog=False):
                got.extend(chunk.tokens)

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert got == stream[len(PROMPT) :][: len(got)]
    assert decoder.history == stream[: len(decoder.history)]
    assert len(decoder.history) < len(PROMPT) + 30, "it did not wait for the end"
    result = decoder.generate(PROMPT, max_tokens=30, stop_at_eog=False)
    assert list(result.tokens) == stream[len(PROMPT) :][:30]
    if method in ("suggest", "observe_topk"):
        assert result.stats.gate.state == "open", "an interrupt is no failure of a source that missed nothing"


def test_an_interrupt_in_the_last_step_is_raised_too() -> None:
    model = tiny()

    class Last(Source):
        def observe(self, committed: list[int]) -> None:
            super().observe(committed)
            if len(self.seen) == len(PROMPT) + 8:
                raise KeyboardInterrupt

    decoder = model.decoder(sampling=WARM, speculation=speculation(Last("silent")))
    with pytest.raises(KeyboardInterrupt):
        list(decoder.stream(PROMPT, max_tokens=8, stop_at_eog=False))
    assert decoder.history == known(model)[: len(PROMPT) + 8]
    assert decoder.generate([3, 4], max_tokens=5, stop_at_eog=False).tokens == plain(model, [3, 4], 5)


def test_an_exception_of_the_progress_callback_stops_a_prompt_between_passes() -> None:
    class Enough(Exception):
        pass

    model = tiny(n_ctx=2048)
    prompt = [random.Random(5).randrange(97) for _ in range(1500)]
    expected = model.decoder(sampling=WARM, speculation=None).generate(prompt, max_tokens=5, logprobs=20)
    decoder = model.decoder(sampling=WARM)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if len(seen) == 2:
            raise Enough

    with pytest.raises(Enough):
        decoder.generate(prompt, max_tokens=5, progress=progress)
    assert seen == [(512, 1500), (1024, 1500)]
    assert (decoder.cached_tokens, decoder.history) == (1024, prompt[:1025])
    result = decoder.generate(prompt, max_tokens=5, logprobs=20)
    assert (result.tokens, result.logprobs, result.stats.cached_tokens) == (expected.tokens, expected.logprobs, 1024)


def test_a_second_caller_is_refused_while_a_generation_runs() -> None:
    model = tiny()
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(Source):
        def suggest(self, context: list[int], max_tokens: int) -> object:
            inside.set()
            assert go_on.wait(30)
            return super().suggest(context, max_tokens)

    decoder = model.decoder(sampling=WARM, speculation=speculation(Waiting("perfect", [known(model)])))
    results: list[quoth.Result] = []
    thread = threading.Thread(target=lambda: results.append(decoder.generate(PROMPT, max_tokens=60, stop_at_eog=False)))
    thread.start()
    assert inside.wait(30)
    uses: list[Callable[[], object]] = [
        lambda: decoder.generate([1], max_tokens=1),
        lambda: next(decoder.stream([1])),
        lambda: decoder.history,
        lambda: decoder.stats,
        lambda: decoder.rewind(1),
        decoder.reset,
        decoder.fork,
    ]
    for use in uses:
        with pytest.raises(quoth.BusyError, match="in use by another caller"):
            use()
    go_on.set()
    thread.join()
    assert results[0].tokens == plain(model, PROMPT, 60)


def test_the_interpreter_is_free_while_a_generation_runs() -> None:
    model = tiny("Q4_K", n_ctx=2048)
    decoder = model.decoder(sampling=WARM)
    thread = threading.Thread(target=lambda: decoder.generate(PROMPT, max_tokens=1500, stop_at_eog=False))
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns > 10, "this thread had its turns"


def test_a_decoder_may_move_between_threads_and_outlive_its_model_object() -> None:
    model = quoth.Model(tiny_path(), n_ctx=128, threads=2)
    expected = plain(model, PROMPT, 20)
    stream = model.decoder(sampling=WARM).tokens(PROMPT, max_tokens=20, stop_at_eog=False)
    del model
    got = [next(stream)]
    done = threading.Event()

    def rest() -> None:
        got.extend(stream)
        done.set()

    _thread.start_new_thread(rest, ())
    assert done.wait(30)
    assert tuple(got) == expected
