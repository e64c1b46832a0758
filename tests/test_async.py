"""The async twins give what their twins give, never hold up the event loop, and survive cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
import time

import pytest

import quoth
from quoth.asynchronous import AsyncSteps
from scripted import PHRASE, STOP, Scripted

PROMPT = "all work and no play, the user said; "
SAMPLING = quoth.Sampling(temperature=0.9, top_k=30, seed=6)


@pytest.fixture(scope="module")
def model(tiny_chat_path) -> quoth.Model:
    return quoth.Model(tiny_chat_path, n_ctx=2048, threads=1)


@pytest.fixture(scope="module")
def told(scripted: Scripted) -> quoth.Model:
    return scripted.model(n_ctx=4096)


def same(a, b):
    fields = ("text", "tokens", "finish_reason", "stop", "logprobs", "prompt_tokens")
    assert [getattr(a, name) for name in fields] == [getattr(b, name) for name in fields]
    assert (a.stats.committed, a.stats.draws) == (b.stats.committed, b.stats.draws)


async def collect(steps):
    return [chunk async for chunk in steps]


def joined(chunks):
    """What chunks say together. How many there are is the gate's choice, which looks at the clock."""
    chunks = list(chunks)
    assert [chunk.step for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    return (
        "".join(chunk.text for chunk in chunks),
        [token for chunk in chunks for token in chunk.tokens],
        [row for chunk in chunks for row in chunk.logprobs],
        chunks[-1].finish_reason,
    )


# ---- equal


def test_agenerate_gives_what_generate_gives(model):
    for options in ({"max_tokens": 30}, {"stop": ["a"], "logprobs": 3}, {"seed": 9, "max_tokens": 1}):
        expected = model.decoder(sampling=SAMPLING).generate(PROMPT, **options)
        same(asyncio.run(model.decoder(sampling=SAMPLING).agenerate(PROMPT, **options)), expected)


def test_astream_gives_what_stream_gives(model):
    expected = list(model.decoder(sampling=SAMPLING).stream(PROMPT, max_tokens=40, logprobs=2))
    chunks = asyncio.run(collect(model.decoder(sampling=SAMPLING).astream(PROMPT, max_tokens=40, logprobs=2)))
    assert joined(chunks) == joined(expected)


def test_asend_and_areply_give_what_send_and_reply_give(model):
    chat, twin = (model.conversation(sampling=SAMPLING, max_tokens=25) for _ in range(2))

    async def talk():
        chunks = await collect(chat.asend("a", logprobs=1))
        return chunks, await chat.areply("b", logprobs=1), await collect(chat.asend("c", stop="a"))

    first, second, third = asyncio.run(talk())
    assert joined(first) == joined(twin.send("a", logprobs=1))
    same(second, twin.reply("b", logprobs=1))
    assert joined(third) == joined(twin.send("c", stop="a"))
    assert (chat.messages, chat.tokens) == (twin.messages, twin.tokens)


def test_errors_arrive_where_they_are_awaited(model):
    chat = model.conversation()

    async def fail():
        with pytest.raises(quoth.OptionsError):
            await model.decoder().agenerate([])
        with pytest.raises(quoth.ContextFullError):
            await collect(model.decoder().astream("x" * 3000))
        with pytest.raises(quoth.ContextFullError):
            await chat.areply("x" * 3000)
        steps = chat.asend("x" * 3000)
        with pytest.raises(quoth.ContextFullError):
            await anext(steps)
        with pytest.raises(StopAsyncIteration):
            await anext(steps)

    asyncio.run(fail())
    with pytest.raises(quoth.OptionsError):
        model.decoder().astream("a", max_tokens=0)
    assert chat.messages == []


# ---- the event loop goes on


class Slow:
    """A draft source that holds up every step, and counts them; the first one is the prompt."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.threads: set[int] = set()
        self.steps = 0

    def suggest(self, context, max_tokens):
        return []

    def observe(self, committed):
        self.threads.add(threading.get_ident())
        self.steps += 1
        time.sleep(self.seconds)


class Held:
    """A draft source that holds up every step from a certain one on until it is let go; the first one is the prompt."""

    def __init__(self, first: float = 1) -> None:
        self.first = first
        self.free = threading.Event()
        self.steps = 0

    def suggest(self, context, max_tokens):
        return []

    def observe(self, committed):
        self.steps += 1
        assert self.steps < self.first or self.free.wait(60)


class Watch:
    """A draft source whose steps last until the event loop has turned: without end, if it waited for them."""

    def __init__(self) -> None:
        self.turns = 0
        self.threads: set[int] = set()
        self.steps = 0
        self.stuck = False

    def suggest(self, context, max_tokens):
        return []

    def observe(self, committed):
        self.threads.add(threading.get_ident())
        self.steps += 1
        wanted, end = self.turns + 3, time.monotonic() + 10
        while self.turns < wanted and not self.stuck:
            time.sleep(0.001)
            self.stuck = time.monotonic() > end

    async def turn(self):
        while True:
            self.turns += 1
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("way", ["agenerate", "astream", "asend", "areply"])
def test_the_loop_never_waits_for_a_step(told, scripted, way):
    source = Watch()
    speculation = quoth.Speculation(source=source)
    say = scripted.say("phrase")

    async def work():
        if way in ("agenerate", "astream"):
            decoder = told.decoder(sampling=say, speculation=speculation)
            made = getattr(decoder, way)("Hi\n", max_tokens=5)
        else:
            made = getattr(told.conversation(speculation=speculation), way)("Hi", sampling=say, max_tokens=5)
        turning = asyncio.create_task(source.turn())
        await (collect(made) if isinstance(made, AsyncSteps) else made)
        turning.cancel()

    asyncio.run(work())
    assert not source.stuck
    assert source.steps == 6, "the prompt and five tokens"
    assert len(source.threads) == 1
    assert threading.get_ident() not in source.threads


def test_conversations_of_one_model_run_side_by_side(model):
    async def both():
        chats = [model.conversation(sampling=SAMPLING, max_tokens=20) for _ in range(4)]
        return await asyncio.gather(*(chat.areply(f"question {at}") for at, chat in enumerate(chats)))

    for at, result in enumerate(asyncio.run(both())):
        same(result, model.conversation(sampling=SAMPLING, max_tokens=20).reply(f"question {at}"))


def test_a_decoder_serves_one_caller_at_a_time(told, scripted):
    source = Held()
    decoder = told.decoder(sampling=scripted.say("phrase"), speculation=quoth.Speculation(source=source))

    async def clash():
        first = asyncio.create_task(decoder.agenerate("Hi\n", max_tokens=4))
        await asyncio.sleep(0)
        with pytest.raises(quoth.BusyError):
            await decoder.agenerate("Hi\n")
        source.free.set()
        return await first

    assert asyncio.run(clash()).text.startswith("all")


def test_a_stream_that_was_overtaken_is_over(told, scripted):
    decoder = told.decoder(sampling=scripted.say("phrase"))

    async def overtake():
        steps = decoder.astream("Hi\n", max_tokens=30)
        await anext(steps)
        await decoder.agenerate("Hi\n", max_tokens=3)
        with pytest.raises(quoth.BusyError, match="something else"):
            await anext(steps)

    asyncio.run(overtake())


@pytest.mark.parametrize("way", ["astream", "asend"])
def test_of_two_tasks_that_want_the_next_chunk_the_first_gets_it(told, scripted, way):
    source = Held()
    speculation = quoth.Speculation(source=source)
    say = scripted.say("hello")
    decoder = told.decoder(sampling=say, speculation=speculation)
    chat = told.conversation(sampling=say, speculation=speculation)

    async def run():
        steps = decoder.astream("Hi\n", stop=STOP) if way == "astream" else chat.asend("Hi")
        chunks = []
        for _ in range(3):
            source.free.clear()
            first = asyncio.create_task(anext(steps))
            await asyncio.sleep(0)
            for _ in range(2):
                with pytest.raises(quoth.BusyError, match="another task waits for the next step"):
                    await anext(steps)
            source.free.set()
            chunks.append(await first)
        chunks += await collect(steps)
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        return chunks

    assert joined(asyncio.run(run()))[0] == "Hello, you there!."
    if way == "asend":
        assert chat.messages[-1]["content"] == "Hello, you there!."


# ---- cancellation


async def turns(n=5):
    """Let the event loop turn, so that what was asked of it has happened."""
    for _ in range(n):
        await asyncio.sleep(0)


async def cancelled_after(coroutine, ready, free=None):
    """Cancel a task once something has happened, then let go what was held, and wait for its end."""
    task = asyncio.create_task(coroutine)
    while not ready():
        await asyncio.sleep(0.001)
    task.cancel()
    if free is not None:
        await turns()  # the cancellation arrives first
        free.set()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("way", ["agenerate", "astream"])
def test_a_cancelled_decoder_stops_after_the_step_under_way(told, scripted, way):
    source = Held(3)
    decoder = told.decoder(sampling=scripted.say("phrase"), speculation=quoth.Speculation(source=source))

    async def work():
        if way == "agenerate":
            await decoder.agenerate("Hi\n", max_tokens=1000)
        else:
            await collect(decoder.astream("Hi\n", max_tokens=1000))

    async def run():
        await cancelled_after(work(), lambda: source.steps == 3, source.free)
        history = decoder.history
        await asyncio.sleep(0.1)
        assert source.steps == 3, "nothing computes after the cancellation arrived"
        assert decoder.history == history

    asyncio.run(run())
    expected = told.decoder(sampling=scripted.say("phrase"), speculation=None).generate("Hi\n", max_tokens=40)
    same(decoder.generate("Hi\n", max_tokens=40), expected)


@pytest.mark.parametrize("handed_out", [0, 1, 3])
def test_a_cancelled_answer_ends_with_the_last_chunk_that_was_handed_out(told, scripted, handed_out):
    source = Held(math.inf)
    chat = told.conversation(speculation=quoth.Speculation(source=source))
    chat.reply("a", sampling=scripted.say("hello"))
    before = chat.messages
    source.steps, source.first = 0, handed_out + 2
    got = []

    async def read():
        async for chunk in chat.asend("b", sampling=scripted.say("phrase")):
            got.append(chunk)
            if len(got) > handed_out:
                await asyncio.sleep(10)  # the reader is cancelled, between two steps

    async def read_on():
        async for chunk in chat.asend("b", sampling=scripted.say("phrase")):
            got.append(chunk)  # noqa: PERF401  what came before the cancellation must be seen

    async def run():
        # Once while a step is under way, so that its tokens are committed and handed to no reader.
        await cancelled_after(read_on(), lambda: source.steps == handed_out + 2, source.free)
        during = [token for chunk in got for token in chunk.tokens]
        assert len(got) == handed_out
        if handed_out:
            assert chat.messages[-1]["content"] == told.tokenizer.decode(during)
            assert chat.last.tokens == tuple(during)
        else:
            assert chat.messages == before
        twin = told.conversation(speculation=None)
        twin._turns.entries = list(chat._turns.entries)
        same(await chat.areply("c", sampling=scripted.say("hello")), twin.reply("c", sampling=scripted.say("hello")))
        # And once between two steps.
        got.clear()
        await cancelled_after(read(), lambda: len(got) > handed_out)
        assert chat.messages[-1]["content"] == "".join(chunk.text for chunk in got)

    asyncio.run(run())


def test_a_cancelled_reply_has_not_happened(told, scripted):
    source = Slow(0.05)
    chat = told.conversation(speculation=quoth.Speculation(source=source))
    chat.reply("a", sampling=scripted.say("hello"))
    before = chat.messages, chat.tokens
    source.steps = 0
    asyncio.run(cancelled_after(chat.areply("b", sampling=scripted.say("phrase")), lambda: source.steps >= 2))
    assert (chat.messages, chat.tokens) == before
    twin = told.conversation(speculation=None)
    twin._turns.entries = list(chat._turns.entries)
    same(chat.reply("c", max_tokens=9), twin.reply("c", max_tokens=9))


def test_a_cancelled_prompt_stops_after_the_pass_under_way(told):
    passes = []
    free = threading.Event()
    chat = told.conversation()
    long = "x" * 3900

    def count(done, total):
        passes.append(done)
        assert free.wait(60)

    asyncio.run(cancelled_after(collect(chat.asend(long, progress=count)), lambda: passes, free))
    assert len(passes) == 1
    assert passes[-1] <= 1024
    assert chat.messages == []
    twin = told.conversation(speculation=None)
    same(chat.reply(long, max_tokens=3), twin.reply(long, max_tokens=3))


def test_a_task_that_is_cancelled_twice_still_waits_for_its_step(told, scripted):
    source = Held()
    decoder = told.decoder(sampling=scripted.say("phrase"), speculation=quoth.Speculation(source=source))

    async def run():
        task = asyncio.create_task(decoder.agenerate("Hi\n", max_tokens=100))
        while not source.steps:
            await asyncio.sleep(0.001)
        task.cancel()
        await turns()
        task.cancel()
        await turns()
        assert not task.done()
        source.free.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert decoder.history, "it would be busy if the step were still under way"

    asyncio.run(run())


def test_a_timeout_is_a_cancellation(told, scripted):
    chat = told.conversation(speculation=quoth.Speculation(source=Slow(0.05)))

    async def run():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(chat.areply("a", sampling=scripted.say("phrase")), 0.2)
        return await chat.areply("a", sampling=scripted.say("hello"))

    assert asyncio.run(run()).text == "Hello, you there!."
    assert len(chat.messages) == 2


# ---- leaving


def test_leaving_an_async_for_early_needs_nothing_else(told, scripted):
    chat = told.conversation()

    async def run():
        async for chunk in chat.asend("a", sampling=scripted.say("phrase")):
            assert chunk.text
            break
        kept = chat.messages[-1]["content"]
        async with chat.asend("b", sampling=scripted.say("phrase")) as steps:
            await anext(steps)
            await anext(steps)
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        assert chat.last.finish_reason is None
        return kept, await chat.areply("c", sampling=scripted.say("hello"))

    kept, result = asyncio.run(run())
    assert PHRASE.startswith(kept)
    assert result.text == "Hello, you there!."
    assert len(chat.messages) == 6


@pytest.mark.parametrize("step", [1, 2, 4])
def test_closing_while_a_step_is_under_way_ends_with_that_step(told, scripted, step):
    source = Held(step)
    chat = told.conversation(speculation=quoth.Speculation(source=source))

    async def run():
        steps = chat.asend("a", sampling=scripted.say("phrase"))
        reader = asyncio.create_task(collect(steps))
        while source.steps < step:
            await asyncio.sleep(0.001)
        await steps.aclose()
        source.free.set()
        chunks = await reader
        assert len(chunks) == max(step - 1, 1), "the prompt and its first token are one step"
        assert "".join(chunk.text for chunk in chunks) == "".join(m["content"] for m in chat.messages[1:])

    asyncio.run(run())
    assert chat.reply("b", sampling=scripted.say("hello")).text == "Hello, you there!."


def test_threads_end_with_their_decoders(model):
    def threads_are(n):
        end = time.monotonic() + 10
        while time.monotonic() < end:
            gc.collect()
            if sum(thread.name.startswith("quoth") for thread in threading.enumerate()) == n:
                return True
            time.sleep(0.01)
        return False

    assert threads_are(0), "those of the tests before"
    decoder = model.decoder()
    asyncio.run(decoder.agenerate("a", max_tokens=2))
    asyncio.run(decoder.agenerate("a", max_tokens=2))  # another event loop is fine
    model.decoder().generate("a", max_tokens=2)
    assert threads_are(1), "a call that is not awaited has no thread"
    del decoder
    assert threads_are(0)


def test_an_interrupt_of_the_program_reaches_the_caller(told, scripted):
    source = Slow(0.05)
    chat = told.conversation(speculation=quoth.Speculation(source=source))

    class Interrupting(Slow):
        def observe(self, committed):
            super().observe(committed)
            if self.steps == 3:
                raise KeyboardInterrupt

    stopped = told.conversation(speculation=quoth.Speculation(source=Interrupting(0)))

    async def run(chat):
        return await collect(chat.asend("a", sampling=scripted.say("hello")))

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(stopped))
        pytest.fail("nothing was raised")
    assert asyncio.run(run(chat))
