"""Many requests at once: the same results as alone, from threads and event loops, and nothing lost at the end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

import quoth

PROMPTS = [[1 + i, 2, 3 + i, 4, 1 + i, 2, 3] for i in range(6)]
WARM = quoth.Sampling(temperature=0.9, top_k=20, seed=5)


@pytest.fixture(scope="module")
def model(tiny_model_path: Path) -> quoth.Model:
    return quoth.Model(tiny_model_path, n_ctx=512, threads=1)


@pytest.fixture
def engine(model: quoth.Model) -> Iterator[quoth.Engine]:
    with quoth.Engine(model, max_sequences=3, prefix_bytes=1 << 20) as engine:
        yield engine


def alone(model: quoth.Model, prompt: list[int], **options: object) -> quoth.Result:
    return model.decoder(speculation=None).generate(prompt, stop_at_eog=False, **options)  # type: ignore[arg-type]


def seen(result: quoth.Result) -> tuple[object, ...]:
    return result.text, result.tokens, result.finish_reason, result.stop, result.logprobs


@pytest.mark.parametrize("sampling", [quoth.Sampling(), WARM])
@pytest.mark.parametrize("speculation", [None, True])
def test_results_are_those_of_a_decoder_alone(
    model: quoth.Model, engine: quoth.Engine, sampling: quoth.Sampling, speculation: bool | None
) -> None:
    expected = [seen(alone(model, prompt, max_tokens=20, sampling=sampling, logprobs=2)) for prompt in PROMPTS]
    options = {"max_tokens": 20, "sampling": sampling, "logprobs": 2, "stop_at_eog": False}
    generations = [engine.submit(prompt, speculation=speculation, **options) for prompt in PROMPTS]
    assert [seen(generation.result(60)) for generation in generations] == expected

    async def gather() -> list[quoth.Result]:
        return list(await asyncio.gather(*(engine.submit(prompt, **options) for prompt in PROMPTS)))

    assert [seen(result) for result in asyncio.run(gather())] == expected
    many = dict(
        model.generate_many([*PROMPTS[:5], {"prompt": PROMPTS[5], "max_tokens": 7}], max_sequences=2, **options)  # type: ignore[arg-type]
    )
    assert [seen(many[i]) for i in range(5)] == expected[:5]
    assert many[5].tokens == expected[5][1][:7]  # type: ignore[index]


def test_chunks_join_to_the_result_for_threads_and_event_loops(engine: quoth.Engine) -> None:
    options = {"max_tokens": 12, "stop_at_eog": False, "logprobs": 0}
    generation = engine.submit(PROMPTS[0], **options)  # type: ignore[arg-type]
    chunks = list(generation)
    result = generation.result()
    assert "".join(chunk.text for chunk in chunks) == result.text
    assert tuple(token for chunk in chunks for token in chunk.tokens) == result.tokens == generation.tokens
    assert [chunk.step for chunk in chunks] == list(range(len(chunks)))
    assert chunks[-1].finish_reason == "length"
    assert list(generation) == []

    async def read() -> list[quoth.Chunk]:
        return [chunk async for chunk in engine.submit(PROMPTS[0], **options)]  # type: ignore[arg-type]

    assert [chunk.tokens for chunk in asyncio.run(read())] == [chunk.tokens for chunk in chunks]


def test_a_seed_is_told_and_gives_the_same_text_again(engine: quoth.Engine) -> None:
    warm = quoth.Sampling(temperature=1.0)
    first = engine.generate(PROMPTS[0], max_tokens=12, sampling=warm, stop_at_eog=False)
    again = engine.generate(PROMPTS[0], max_tokens=12, sampling=warm, stop_at_eog=False, seed=first.stats.seed)
    assert again.tokens == first.tokens
    assert engine.generate(PROMPTS[0], max_tokens=2).stats.seed is None, "greedy"


def test_what_makes_no_sense_is_refused_where_it_is_submitted(model: quoth.Model, engine: quoth.Engine) -> None:
    for prompt, options, error in (
        ([], {}, quoth.OptionsError),
        ([model.n_vocab], {}, quoth.OptionsError),
        ([True], {}, quoth.OptionsError),
        ([1] * 513, {}, quoth.ContextFullError),
        ([1], {"max_tokens": 0}, quoth.OptionsError),
        ([1], {"speed": 9}, TypeError),
        ([1], {"progress": print}, TypeError),
    ):
        with pytest.raises(error):
            engine.submit(prompt, **options)
    for options in ({"max_sequences": 0}, {"max_sequences": 513}, {"prefix_bytes": -1}, {"max_kv_bytes": 0}):
        with pytest.raises(quoth.OptionsError, match=next(iter(options))):
            quoth.Engine(model, **options)  # type: ignore[arg-type]
    with quoth.Engine(model, max_kv_bytes=1) as tight, pytest.raises(quoth.OptionsError, match="max_kv_bytes is 1,"):
        tight.submit([1])
    assert engine.generate([1, 2], max_tokens=2).tokens, "it goes on"


def test_a_cancelled_generation_ends_and_the_others_go_on(model: quoth.Model, engine: quoth.Engine) -> None:
    endless = {"max_tokens": 400, "stop_at_eog": False}
    cancelled, other = engine.submit(PROMPTS[0], **endless), engine.submit(PROMPTS[1], **endless)  # type: ignore[arg-type]
    first = next(cancelled)
    cancelled.cancel()
    cancelled.cancel()
    assert cancelled.done
    assert cancelled.cancelled
    assert first.tokens == cancelled.tokens[: len(first.tokens)]
    with pytest.raises(CancelledError):
        cancelled.result()
    assert other.result(60).tokens == alone(model, PROMPTS[1], max_tokens=400).tokens


def test_a_source_that_raises_is_asked_no_more(model: quoth.Model, engine: quoth.Engine) -> None:
    class Raising:
        def suggest(self, context: list[int], max_tokens: int) -> list[int]:
            raise ValueError("no idea")

        def observe(self, committed: list[int]) -> None: ...

    result = engine.submit(PROMPTS[0], speculation=Raising(), max_tokens=8, stop_at_eog=False).result(60)
    assert result.tokens == alone(model, PROMPTS[0], max_tokens=8).tokens
    assert "no idea" in (result.stats.gate.reason or "")


def test_references_are_quoted(model: quoth.Model, engine: quoth.Engine) -> None:
    answer = alone(model, PROMPTS[0], max_tokens=60).tokens
    options = quoth.Speculation(costs={1: 1.0, 16: 1.0})
    generation = engine.submit(
        PROMPTS[0], speculation=options, references=[[*PROMPTS[0], *answer]], max_tokens=60, stop_at_eog=False
    )
    result = generation.result(60)
    assert result.tokens == answer
    assert result.stats.sources["reference-1"].accepted > 20


def test_closing_cancels_what_runs_and_frees_the_cache(model: quoth.Model) -> None:
    engine = quoth.Engine(model, max_sequences=1)
    running, waiting = (engine.submit(PROMPTS[0], max_tokens=500, stop_at_eog=False) for _ in range(2))
    next(running)
    assert engine.running == 1
    assert engine.waiting == 1
    assert engine.kv_bytes > 0
    engine.close()
    engine.close()
    assert running.cancelled
    assert waiting.cancelled
    with pytest.raises(quoth.ClosedError, match="the engine is closed"):
        engine.submit([1])
    with quoth.Engine(model) as other:
        assert other.kv_bytes == 0


def test_prefixes_are_used_again_also_from_a_file(model: quoth.Model, engine: quoth.Engine, tmp_path: Path) -> None:
    prompt = [1 + i % 200 for i in range(300)]
    first = engine.generate(prompt, max_tokens=2)
    assert (first.stats.cached_tokens, first.stats.prefill_tokens) == (0, 300)
    again = engine.generate(prompt, max_tokens=2)
    assert again.tokens == first.tokens
    assert (again.stats.cached_tokens, again.stats.prefill_tokens) == (256, 44)
    file = tmp_path / "prefixes"
    engine.save_prefixes(file)
    with quoth.Engine(model, prefix_bytes=1 << 20) as other:
        assert other.load_prefixes(file) == 2
        assert other.generate(prompt, max_tokens=2).stats.cached_tokens == 256
        other.clear_prefixes()
        assert other.prefix_bytes == 0
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(quoth.QuothError, match="prefixes"):
            other.load_prefixes(file)


def test_a_failed_prompt_is_raised_or_takes_the_place_of_its_result(model: quoth.Model) -> None:
    prompts = [PROMPTS[0], [1] * 600, PROMPTS[1]]
    found = dict(model.generate_many(prompts, max_tokens=3, return_exceptions=True))
    assert isinstance(found[1], quoth.ContextFullError)
    assert found[0].tokens == alone(model, PROMPTS[0], max_tokens=3).tokens
    with pytest.raises(quoth.ContextFullError):
        list(model.generate_many(prompts, max_tokens=3))


def test_prompts_are_taken_as_they_are_needed(model: quoth.Model) -> None:
    taken = 0

    def endless() -> Iterator[list[int]]:
        nonlocal taken
        while True:
            taken += 1
            yield [1, 2, taken % 50]

    results = model.generate_many(endless(), max_tokens=1, max_sequences=2)
    for _ in range(5):
        next(results)
    results.close()  # type: ignore[attr-defined]
    assert taken <= 10
    assert not any(thread.name == "quoth-engine" for thread in threading.enumerate())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_an_engine_refuses_to_work_in_a_forked_process(engine: quoth.Engine) -> None:
    engine.generate([1], max_tokens=1)
    child = os.fork()
    if child == 0:
        try:
            engine.submit([1])
        except quoth.OptionsError as error:
            os._exit(0 if "forked" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
