"""Processes that fork, spawn, end and are interrupted while a model is in use; and that go on for long.

P1  A forked child cannot use the parent's models: their threads stayed behind. It is told so at once, whatever was
    under way, never waits, and can load models of its own, with the same bits. The parent does not notice.
P2  A spawned child shares nothing; models cannot be sent to it, and say so.
P3  A process may end at any time, whatever its threads are at: with its own exit code, silently, soon.
P4  A signal's exception comes out as itself within a pass of 512 tokens, and leaves everything at its last good token.
P5  A process that opens, uses and closes models holds no more memory, threads and files after a thousand than after a
    hundred.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quoth
from models import tiny, tiny_path
from scripted import Scripted

PATIENCE = 120.0
"""Seconds after which a test calls it a hang; a hundred times what it takes."""
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="forks and signals are POSIX's")


def some_tokens(n: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(97) for _ in range(n)] if n else []


def run(script: str, *arguments: object, watched: bool = True) -> subprocess.CompletedProcess[str]:
    """A Python process of its own, with this quoth. A hang of one that is `watched` says where its threads hang."""
    # A child that was forked beside the watching thread waits for that thread when it ends.
    head = f"import faulthandler; faulthandler.dump_traceback_later({PATIENCE}, exit=True)\n" if watched else ""
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(quoth.__file__).parent.parent)])},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def quiet(done: subprocess.CompletedProcess[str], code: int = 0) -> str:
    """What a process printed that ended as it should."""
    assert (done.returncode, done.stderr) == (code, ""), done.stderr
    return done.stdout


# ---- P1


FORKS = """
    import asyncio, multiprocessing, sys, threading, warnings
    import quoth

    warnings.simplefilter("ignore")  # Python's own, about forks of processes with threads
    path, tokens = sys.argv[1], [int(t) for t in sys.argv[2].split(",")]
    model = quoth.Model(path, n_ctx=8192, threads=2)
    session, decoder, chat = model.session(), model.decoder(), model.conversation(chat_template="ABC")
    stream = decoder.stream(tokens, max_tokens=30, stop_at_eog=False)
    first = next(stream).tokens

    async def once(decoder):
        return (await decoder.agenerate([1], max_tokens=1)).tokens

    awaited = model.decoder()
    asyncio.run(once(awaited))

    def in_child(pipe):
        def outcome(use):
            try:
                use()
            except quoth.QuothError as error:
                return f"{type(error).__name__}: {error}"
            return "worked"

        uses = [
            lambda: session.forward([1]), lambda: next(stream), lambda: decoder.generate([5]), lambda: chat.reply("x"),
            lambda: asyncio.run(once(awaited)), lambda: asyncio.run(once(decoder)),
            model.session, model.decoder, session.fork, decoder.fork,
        ]
        said = [outcome(use) for use in uses]
        own = quoth.Model(path, n_ctx=256, threads=2)
        pipe.send((said, own.session().forward(tokens).tobytes(), own.decoder().generate(tokens, max_tokens=9).tokens))
"""

AFTER_FORKS = """
    def fork():
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=in_child, args=(there,))
        child.start()
        if not here.poll(100):
            child.kill()
            raise TimeoutError("the child waits")
        said, rows, answer = here.recv()
        child.join(100)
        assert child.exitcode == 0, child.exitcode
        assert rows == quoth.Model(path, n_ctx=256, threads=1).session().forward(tokens).tobytes()
        assert answer == model.decoder().generate(tokens, max_tokens=9).tokens
        return said
"""

COPIED = ["worked"] * 2  # a copy of a cache needs no threads; what computes is refused
FORKED = "InternalError: the model's threads belong to the process that loaded it, this one was forked from it"


@POSIX
def test_a_child_forked_between_calls_is_told_and_the_parent_goes_on() -> None:
    script = (
        FORKS
        + AFTER_FORKS
        + """
    for _ in range(3):
        print(*fork(), sep="\\n")
    rest = [token for chunk in stream for token in chunk.tokens]
    assert (*first, *rest) == model.decoder(speculation=None).generate(tokens, max_tokens=30, stop_at_eog=False).tokens
    assert session.forward(tokens).tobytes() == model.session().forward(tokens).tobytes()
    assert asyncio.run(once(awaited))
    """
    )
    said = quiet(run(script, tiny_path("Q4_K"), "1,2,3,4,1,2,3")).splitlines()
    assert said == ([FORKED] * 8 + COPIED) * 3


@POSIX
def test_a_child_forked_in_the_middle_of_a_call_is_told_and_the_parent_goes_on() -> None:
    script = (
        FORKS
        + AFTER_FORKS
        + """
    stop = threading.Event()
    expected = model.session().forward(tokens * 300, rows="last").tobytes()
    wrong = []

    def work():
        while not stop.is_set():
            wrong.append(session.forward(tokens * 300, rows="last").tobytes() != expected)
            session.truncate(0)

    def work_too():
        other = model.decoder()
        while not stop.is_set():
            other.generate(tokens * 300, max_tokens=3)
            other.reset()

    threads = [threading.Thread(target=work), threading.Thread(target=work_too)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        print(*fork(), sep="\\n")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong and not any(wrong)
    """
    )
    said = quiet(run(script, tiny_path("Q4_K"), "1,2,3,4,1,2,3")).splitlines()
    busy = "BusyError: the session is in use by another caller"
    assert len(said) == 60
    for i in range(0, 60, 10):
        # Whether the session was in use at the moment of the fork is chance; whether something else was is not.
        assert said[i] in (FORKED, busy)
        assert said[i + 1 : i + 8] == [FORKED] * 7
        assert said[i + 8] in (COPIED[0], busy)
        assert said[i + 9] == COPIED[1]


@POSIX
def test_a_child_may_drop_what_it_inherited() -> None:
    script = (
        FORKS
        + """
    import gc, os, signal
    del in_child
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # rather than to wait without end
        del stream, decoder, chat, awaited, session, model
        gc.collect()
        sys.exit(7)  # through the interpreter's whole end
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 7, code
    assert next(stream).tokens
    """
    )
    assert quiet(run(script, tiny_path(), "1,2,3", watched=False)) == ""


# ---- P2


def child_rows(path: Path, tokens: list[int]) -> bytes:
    """What a worker of a pool computes."""
    return quoth.Model(path, n_ctx=64, threads=2).session().forward(tokens).tobytes()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_workers_of_a_pool_load_models_of_their_own_with_the_same_bits(method: str) -> None:
    tokens = some_tokens(20)
    expected = child_rows(tiny_path("Q4_K"), tokens)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap_async(child_rows, [(tiny_path("Q4_K"), tokens)] * 4).get(PATIENCE) == [expected] * 4


# ---- P3


ENDS = """
    import sys, threading, time
    import quoth

    model = quoth.Model(sys.argv[1], n_ctx=8192, threads=2)
    prompt = [1 + i % 90 for i in range(8000)]
    begun = threading.Event()

    def told(done, total):
        begun.set()
        time.sleep(0.02)  # so that the process ends in here

    def prefill():
        while True:
            model.session().forward(prompt, rows="last")
            begun.set()

    def prefill_with_progress():
        while True:
            model.decoder().generate(prompt, max_tokens=1, progress=told)

    def answer():
        while True:
            begun.set()
            model.decoder(speculation=None).generate(prompt[:20], max_tokens=4000, stop_at_eog=False)

    class Source:
        def suggest(self, context, max_tokens):
            begun.set()
            time.sleep(0.01)
            return context[:max_tokens]

        def observe(self, committed):
            pass

    def answer_with_source():
        while True:
            model.decoder(speculation=Source()).generate(prompt[:20], max_tokens=4000, stop_at_eog=False)

    class Items(Source):
        def suggest(self, context, max_tokens):
            begun.set()
            for token in context[:max_tokens]:
                time.sleep(0.01)
                yield token

    def answer_with_generator():
        model.decoder(speculation=Items()).generate(prompt[:20], max_tokens=4000, stop_at_eog=False)

    def stream():
        while True:
            for chunk in model.decoder().stream(prompt[:20], max_tokens=4000, stop_at_eog=False):
                begun.set()

    def load():
        while True:
            quoth.Model(sys.argv[1], n_ctx=64, threads=2, progress=told)

    def start(name, daemon=True):
        threading.Thread(target=globals()[name], daemon=daemon).start()
        assert begun.wait(60)
        time.sleep(float(sys.argv[3]))
"""


@pytest.mark.parametrize("wait", [0.0, 0.013])
@pytest.mark.parametrize(
    "work",
    ["prefill", "prefill_with_progress", "answer", "answer_with_source", "answer_with_generator", "stream", "load"],
)
def test_a_process_ends_while_a_thread_of_its_own_computes(work: str, wait: float) -> None:
    done = run(ENDS + "    start(sys.argv[2])\n    sys.exit(5)\n", tiny_path("Q4_K"), work, wait)
    quiet(done, 5)


def test_a_process_ends_with_streams_left_open() -> None:
    script = (
        ENDS
        + """
    streams = [model.decoder().stream(prompt[:20], max_tokens=4000, stop_at_eog=False) for _ in range(3)]
    streams.append(model.conversation(chat_template="ABC").send("x"))
    for stream in streams:
        next(stream)
    sys.exit(5)
    """
    )
    quiet(run(script, tiny_path("Q4_K")), 5)


def test_a_process_ends_by_an_exception_in_a_stream_with_its_traceback() -> None:
    script = (
        ENDS
        + """
    for chunk in model.decoder().stream(prompt[:20], max_tokens=4000, stop_at_eog=False):
        raise ValueError("mine")
    """
    )
    done = run(script, tiny_path("Q4_K"))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: mine")


def test_a_process_waits_for_threads_that_are_no_daemons() -> None:
    script = (
        ENDS
        + """
    def once():
        begun.set()
        print(model.decoder().generate(prompt[:20], max_tokens=200, stop_at_eog=False).stats.committed)

    start("once", daemon=False)
    """
    )
    assert quiet(run(script, tiny_path("Q4_K"), "", 0.0)) == "200\n"


def test_a_process_ends_while_a_model_is_the_last_thing_in_a_module() -> None:
    """Modules are torn down in any order; what is left of a model then is freed or not, but silently."""
    script = (
        ENDS
        + """
    import builtins
    builtins.kept = [model, model.session(), model.decoder(), model.tokenizer]
    model.cycle = builtins.kept
    """
    )
    quiet(run(script, tiny_path("Q4_K")))


# ---- P4


class Alarm(Exception):
    """What a user's handler of a signal raises."""


def prefills(scripted: Scripted) -> dict[str, tuple[Callable[[list[int]], object], Callable[[], list[int]]]]:
    """Ways to compute a long prompt, and what each left behind."""
    model = scripted.model(n_ctx=4096)
    session, decoder, chat = model.session(), model.decoder(), model.conversation(max_tokens=1)
    session.forward([1, 2, 3])

    def send(prompt: list[int]) -> object:
        return next(chat.send(prompt))

    def rest_of_session() -> list[int]:
        assert len(session) in (3, 13, 4003), "all or nothing"
        session.truncate(3)
        return []

    def rest_of_chat() -> list[int]:
        assert chat.messages == [] or chat.last is not None
        chat.reset()
        return chat.decoder.history

    def rest_of_decoder() -> list[int]:
        history = decoder.history
        assert decoder.cached_tokens == max(len(history) - 1, 0)
        return history

    return {
        "forward": (lambda prompt: session.forward(prompt, rows="last"), rest_of_session),
        "generate": (lambda prompt: decoder.generate(prompt, max_tokens=1), rest_of_decoder),
        "stream": (lambda prompt: list(decoder.stream(prompt, max_tokens=1)), rest_of_decoder),
        "send": (send, rest_of_chat),
    }


@POSIX
@pytest.mark.parametrize("kind", ["SIGINT", "SIGALRM"])
@pytest.mark.parametrize("how", ["forward", "generate", "stream", "send"])
def test_a_signal_in_a_long_prefill_is_raised_soon_and_nothing_is_half_done(
    scripted: Scripted, how: str, kind: str
) -> None:
    use, rest = prefills(scripted)[how]
    number = getattr(signal, kind)

    def handler(*_: object) -> None:
        raise Alarm

    before = signal.signal(number, handler) if kind == "SIGALRM" else signal.getsignal(number)
    prompt = [1 + i * i % 90 for i in range(4000)]
    use(prompt[:10])
    rest()
    sent: list[float] = []
    waited: list[float] = []
    try:
        for round in range(12):
            rounds = random.Random(round)

            def send(delay: float = rounds.uniform(0.001, 0.06)) -> None:
                time.sleep(delay)
                sent.append(time.monotonic())
                os.kill(os.getpid(), number)

            thread = threading.Thread(target=send)
            # Another first token in each round, so that nothing of the last round's cache is of use.
            asked = [round + 1, *prompt[1:]]

            def until_raised(asked: list[int] = asked, thread: threading.Thread = thread) -> None:
                thread.start()
                while True:
                    use(asked)
                    rest()

            with pytest.raises((KeyboardInterrupt, Alarm)) as caught:
                until_raised()
            waited.append(time.monotonic() - sent[-1])
            thread.join()
            assert caught.type is (Alarm if kind == "SIGALRM" else KeyboardInterrupt)
            history = rest()
            assert history[: len(asked)] == asked[: len(history)] or history[:1] != asked[:1]
    finally:
        signal.signal(number, before)
    # A pass of 512 tokens of this model takes some 5 ms; the machine may be busy.
    assert sorted(waited)[len(waited) // 2] < 0.5, waited
    assert max(waited) < 20, waited


@POSIX
def test_after_signals_a_session_computes_what_a_fresh_one_does() -> None:
    model = tiny("Q4_K", n_ctx=8192)
    session, tokens = model.session(), some_tokens(8000)
    session.forward(tokens[:100])
    rows = model.session().forward(tokens[:300])[100:].tobytes()
    for round in range(10):

        def until_raised(delay: float = 0.005 * (1 + round)) -> None:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                session.forward(tokens[100:], rows="last")
                session.truncate(100)

        with pytest.raises(KeyboardInterrupt):
            until_raised()
        session.truncate(100)
        assert session.forward(tokens[100:300]).tobytes() == rows
        session.truncate(100)


# ---- P5


def held() -> tuple[int, int, int]:
    """Bytes of memory, threads and open files of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return (
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not say what a process holds")
def test_a_thousand_models_opened_used_and_closed_leave_nothing(tiny_chat_path: Path) -> None:
    tokens = some_tokens(50)
    reference = some_tokens(200)

    def once() -> tuple[Any, ...]:
        model = quoth.Model(tiny_path("Q4_0"), n_ctx=256, threads=2)
        decoder = model.decoder(sampling=quoth.Sampling(temperature=0.8, seed=1))
        decoder.add_reference(reference)
        result = decoder.generate(tokens, max_tokens=6, stop=["never"])
        left = next(decoder.stream(tokens[:9], max_tokens=6))
        forked = decoder.fork().generate(tokens[:5], max_tokens=3)
        return result.tokens, left.tokens, forked.tokens, model.session().forward(tokens[:30]).tobytes()

    def talk() -> tuple[Any, ...]:
        model = quoth.Model(tiny_chat_path, n_ctx=256, threads=1)
        chat = model.conversation(max_tokens=4)
        return chat.reply("the user").tokens, next(chat.send("the")).tokens

    first = once(), talk()
    for i in range(100):
        once()
        if i % 10 == 0:
            talk()
    gc.collect()
    before = held()
    for i in range(1000):
        assert once() == first[0]
        if i % 10 == 0:
            assert talk() == first[1]
    gc.collect()  # environments of templates hold themselves
    after = held()
    # A model of this size holds 200 KB and a thread; a thousand that stayed would be 200 MB.
    assert after[0] - before[0] < 4 << 20
    assert after[1:] == before[1:], "threads or files of models that are gone"
