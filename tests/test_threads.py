"""Many threads, one model: results are those of one thread, objects may change hands, and a second caller is refused.

H1  What a thread computes does not depend on what others compute with the same model.
H2  Sessions, decoders, conversations and streams may go from thread to thread between calls.
H3  Of callers at the same time one gets through and the others `BusyError`, at once; nothing is half done.
H4  An exception of a callback reaches the caller as itself, and leaves its object at the last good token.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import numpy as np
import pytest

import quoth
from models import tiny, tiny_path
from scripted import Scripted
from sources import Source, speculation

WARM = quoth.Sampling(temperature=0.8, top_k=20, seed=3)
PATIENCE = 120.0
"""Seconds after which a test calls it a hang; thousands of times what it takes."""


def some_tokens(n: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(97) for _ in range(n)] if n else []


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Threads take turns a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(jobs: list[Callable[[], Any]]) -> list[Any]:
    """Results of jobs that begin together, each on a thread."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        start.wait(PATIENCE)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(run, job) for job in jobs]]


def hand_over(n: int, steps: list[Callable[[], Any]]) -> list[Any]:
    """Results of steps that run one after the other, each on the next of `n` threads."""
    results: list[Any] = []
    queues: list[Queue[int]] = [Queue() for _ in range(n)]

    def work(me: int) -> None:
        while (step := queues[me].get(timeout=PATIENCE)) >= 0:
            try:
                results.append(steps[step]())
            finally:
                for queue in queues if step + 1 == len(steps) else [queues[(step + 1) % n]]:
                    queue.put(step + 1 if step + 1 < len(steps) else -1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    queues[0].put(0)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results


# ---- H1


def test_threads_with_all_kinds_of_work_over_one_model_compute_what_they_compute_alone(scripted: Scripted) -> None:
    model = scripted.model(n_ctx=512)
    busy = quoth.Model(scripted.path, n_ctx=512, threads=3)

    def forward(model: quoth.Model, seed: int) -> bytes:
        session, tokens = model.session(), some_tokens(90, seed)
        rows = [session.forward(tokens[i : i + 1 + seed % 7]) for i in range(0, 90, 1 + seed % 7)]
        session.truncate(40)
        return np.concatenate([*rows, session.fork(20).forward([seed])]).tobytes()

    def generate(model: quoth.Model, seed: int) -> object:
        decoder = model.decoder(sampling=quoth.Sampling(temperature=1.5, seed=seed), speculation=seed % 2 == 0)
        decoder.add_reference(some_tokens(50, seed))
        result = decoder.generate(some_tokens(30, seed), max_tokens=40, stop_at_eog=False, logprobs=3)
        return result.tokens, result.text, result.logprobs

    def converse(model: quoth.Model, seed: int) -> object:
        chat = model.conversation(system="x" * seed, sampling=quoth.Sampling(temperature=1.5, seed=seed))
        # How many chunks a text comes in is the gate's choice, which looks at the clock; the text is not.
        texts = ["".join(chunk.text for chunk in chat.send(f"turn {turn}", max_tokens=15)) for turn in range(3)]
        return texts, [result.tokens for result in chat.results], chat.tokens

    def reload(_: quoth.Model, seed: int) -> bytes:
        """Models come and go meanwhile."""
        return forward(quoth.Model(scripted.path, n_ctx=512, threads=2), seed)

    kinds = [forward, generate, converse, reload]
    alone = [kinds[i % 4](model, i) for i in range(12)]
    together = in_threads([lambda i=i: [kinds[i % 4](busy, i) for _ in range(2)] for i in range(12)])  # type: ignore[misc]
    assert together == [[one, one] for one in alone]


def test_one_tokenizer_serves_many_threads(scripted: Scripted) -> None:
    tokenizer = quoth.Model(scripted.path, threads=1).tokenizer
    texts = [f"Привет {i} <|im_end|> hello  the user é {i * i}" for i in range(40)]
    alone = [tokenizer.encode(text, special=True) for text in texts]

    def work(turn: int) -> bool:
        order = random.Random(turn).sample(range(40), 40)
        stream = tokenizer.stream()
        said = "".join(stream.push([token]) for i in order for token in tokenizer.encode(texts[i]))
        return (
            all(tokenizer.encode(texts[i], special=True) == alone[i] for i in order)
            and all(tokenizer.decode(alone[i], skip_special=False) == texts[i] for i in order)
            and said + stream.finish() == "".join(texts[i] for i in order)
        )

    assert all(in_threads([lambda turn=turn: work(turn) for turn in range(8)]))  # type: ignore[misc]


# ---- H2


def test_a_session_that_goes_from_thread_to_thread_is_one_that_stayed() -> None:
    model, tokens = tiny(threads=2), some_tokens(60)
    expected = model.session().forward(tokens)
    session = model.session()
    rows = hand_over(5, [lambda i=i: session.forward(tokens[i : i + 4]) for i in range(0, 60, 4)])  # type: ignore[misc]
    assert np.array_equal(np.concatenate(rows).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("speculation", [None, True])
def test_a_stream_and_its_decoder_go_from_thread_to_thread(speculation: bool | None) -> None:
    model, prompt = tiny(), some_tokens(20)
    expected = model.decoder(sampling=WARM, speculation=None).generate(prompt, max_tokens=24, stop_at_eog=False)
    decoder = model.decoder(sampling=WARM, speculation=speculation)
    for _ in range(2):
        stream = decoder.stream(prompt, max_tokens=24, stop_at_eog=False)
        chunks = hand_over(4, [lambda: next(stream, None)] * 25)  # noqa: B023  used up in the same round
        assert tuple(token for chunk in chunks if chunk for token in chunk.tokens) == expected.tokens
        assert decoder.history == [*prompt, *expected.tokens]
        assert hand_over(3, [lambda: decoder.rewind(9), lambda: decoder.cached_tokens, decoder.fork])[1] == 8


def test_a_conversation_goes_from_thread_to_thread(scripted: Scripted) -> None:
    model = scripted.model(n_ctx=1024)
    scripts = ("hello", "apart", "astride", "nearly") * 2

    def turns() -> tuple[quoth.Conversation, list[Callable[[], quoth.Result]]]:
        chat = model.conversation(system="s")
        return chat, [lambda s=s: chat.reply("go on", sampling=scripted.say(s)) for s in scripts]  # type: ignore[misc]

    chat, steps = turns()
    expected = [step().tokens for step in steps]
    moved, steps = turns()
    assert [result.tokens for result in hand_over(3, steps)] == expected
    assert (moved.tokens, moved.messages) == (chat.tokens, chat.messages)


# ---- H3


def contend(threads: int, until: Callable[[list[Any]], bool], use: Callable[[], Any]) -> tuple[list[Any], int]:
    """Results of all calls that got through when many threads use one object, and how many were refused."""
    done: list[Any] = []
    refused: list[str] = []
    end = time.monotonic() + PATIENCE

    def work() -> None:
        while not until(done) and time.monotonic() < end:
            try:
                done.append(use())
            except quoth.BusyError as error:  # noqa: PERF203  each call stands for itself
                refused.append(str(error))
                time.sleep(0)

    in_threads([work] * threads)
    assert until(done), "the callers keep each other out without end"
    assert all("in use by another caller" in text for text in refused), set(refused)
    return done, len(refused)


def test_of_many_callers_of_a_session_each_appends_all_or_nothing() -> None:
    model, block = tiny("Q4_K", n_ctx=4096), some_tokens(40, 5)
    session = model.session()
    done, refused = contend(6, lambda done: len(done) >= 60, lambda: session.forward(block))
    assert refused > 0, "they never met"
    assert len(session) == 40 * len(done)
    expected = model.session().forward(block * len(done)).view(np.uint32)
    # The order of the callers is not known; every block's rows are those of some place.
    places = {expected[i : i + 40].tobytes() for i in range(0, len(expected), 40)}
    assert {rows.view(np.uint32).tobytes() for rows in done} == places
    assert len(places) == len(done)


def test_of_many_callers_of_a_decoder_each_gets_a_whole_answer_or_none() -> None:
    model = tiny("Q4_K", n_ctx=4096)
    expected = model.decoder(sampling=WARM, speculation=None).generate([1, 2, 3], max_tokens=60, stop_at_eog=False)
    decoder = model.decoder(sampling=WARM)
    done, refused = contend(
        6, lambda done: len(done) >= 20, lambda: decoder.generate([1, 2, 3], max_tokens=60, stop_at_eog=False)
    )
    assert refused > 0, "they never met"
    assert {result.tokens for result in done if len(result.tokens) == 60} == {expected.tokens}
    assert decoder.generate([1, 2, 3], max_tokens=60, stop_at_eog=False).tokens == expected.tokens


def test_of_many_readers_of_an_answer_each_chunk_goes_to_one(scripted: Scripted) -> None:
    chat = scripted.model().conversation()
    expected = scripted.model().conversation().reply("x", sampling=scripted.say("phrase"), max_tokens=300)
    answer = chat.send("x", sampling=scripted.say("phrase"), max_tokens=300)
    done, _ = contend(4, lambda done: None in done, lambda: next(answer, None))
    chunks = sorted((chunk for chunk in done if chunk is not None), key=lambda chunk: chunk.step)
    assert [chunk.step for chunk in chunks] == list(range(len(chunks)))
    assert tuple(token for chunk in chunks for token in chunk.tokens) == expected.tokens
    assert chat.last is not None
    assert chat.last.tokens == expected.tokens


def test_of_many_callers_of_an_index_each_learns_all_or_nothing() -> None:
    index, block = quoth.DraftIndex(1000), list(range(500))
    done, _ = contend(6, lambda done: len(done) >= 200, lambda: index.observe(block))
    assert len(index) == 500 * len(done)
    contend(6, lambda done: len(done) >= 100, lambda: index.add_reference(block))
    assert index.suggest(max_tokens=8) == block[:8]


# ---- H4


class Own(Exception):
    """An exception that no other code raises."""


class OwnBase(BaseException):
    """One that is no `Exception`."""


@pytest.mark.parametrize("kind", [Own, OwnBase, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
@pytest.mark.parametrize("how", ["load", "generate", "stream", "send", "reply"])
def test_an_exception_of_a_progress_callback_comes_out_as_itself(
    scripted: Scripted, how: str, kind: type[BaseException]
) -> None:
    model = scripted.model(n_ctx=2048)
    prompt = some_tokens(1200)
    mine = kind("mine")

    def progress(done: int, total: int) -> None:
        raise mine

    decoder, chat = model.decoder(), model.conversation(max_tokens=4)
    uses: dict[str, Callable[[], object]] = {
        "load": lambda: quoth.Model(scripted.path, progress=progress),
        "generate": lambda: decoder.generate(prompt, progress=progress),
        "stream": lambda: next(decoder.stream(prompt, progress=progress)),
        "send": lambda: next(chat.send("x" * 1200, progress=progress)),
        "reply": lambda: chat.reply("x" * 1200, progress=progress),
    }
    # A generator cannot end in a StopIteration; Python makes it a RuntimeError that names it.
    wrapped = kind is StopIteration and how in ("stream", "send", "reply")
    with pytest.raises(RuntimeError if wrapped else kind) as caught:
        uses[how]()
    assert (caught.value.__cause__ if wrapped else caught.value) is mine
    assert decoder.history == prompt[: len(decoder.history)]
    assert chat.messages == []
    fresh = model.decoder(speculation=None).generate(prompt[:700], max_tokens=5, logprobs=20)
    again = decoder.generate(prompt[:700], max_tokens=5, logprobs=20)
    assert (again.tokens, again.logprobs) == (fresh.tokens, fresh.logprobs)
    assert chat.reply("x").tokens == model.conversation(max_tokens=4).reply("x").tokens


@pytest.mark.parametrize("kind", [OwnBase, SystemExit, GeneratorExit])
@pytest.mark.parametrize("method", ["suggest", "observe", "observe_topk"])
def test_what_is_no_error_of_a_source_comes_out_as_itself(method: str, kind: type[BaseException]) -> None:
    model, prompt, mine = tiny(), [40, 41, 42, 43, 40, 41, 42], kind("mine")
    plain = model.decoder(sampling=WARM, speculation=None).generate(prompt, max_tokens=50, stop_at_eog=False).tokens

    class Leaving(Source):
        def _enter(self, called: str, after: int = 3) -> None:
            super()._enter(called, after)
            if called == method and self.calls[called] == 3:
                raise mine

    source = Leaving("perfect", [[*prompt, *plain]])
    decoder = model.decoder(sampling=WARM, speculation=speculation(source, 4))
    with pytest.raises(kind) as caught:
        decoder.generate(prompt, max_tokens=50, stop_at_eog=False)
    assert caught.value is mine
    assert decoder.history == [*prompt, *plain][: len(decoder.history)]
    assert decoder.generate(prompt, max_tokens=50, stop_at_eog=False).tokens == plain


def test_an_error_of_a_source_is_told_with_its_name_and_changes_no_token() -> None:
    model, prompt = tiny(), [40, 41, 42, 43, 40, 41, 42]
    plain = model.decoder(sampling=WARM, speculation=None).generate(prompt, max_tokens=50, stop_at_eog=False).tokens

    class Failing(Source):
        def suggest(self, context: list[int], max_tokens: int) -> object:
            raise Own("not today")

    decoder = model.decoder(sampling=WARM, speculation=speculation(Failing("perfect")))
    result = decoder.generate(prompt, max_tokens=50, stop_at_eog=False)
    assert result.tokens == plain
    assert "Own: not today" in (result.stats.gate.reason or "")


def test_models_are_loaded_by_many_threads_at_once() -> None:
    path, tokens = tiny_path("Q4_K"), some_tokens(30)
    expected = quoth.Model(path, n_ctx=64, threads=1).session().forward(tokens).tobytes()

    def load() -> bytes:
        return quoth.Model(path, n_ctx=64, threads=2).session().forward(tokens).tobytes()

    assert in_threads([load] * 8) == [expected] * 8
