"""What a model, and what is made from it, promise beside numbers: contexts, ends, copies, how they print."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import logging
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import quoth
from models import tiny, tiny_path
from scripted import Scripted

# ---- contexts


def test_the_default_context_is_what_the_model_was_trained_for_and_at_most_4096(
    tiny_model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path, trained in ((tiny_model_path, 256), (tiny_path(), 8192)):
        with caplog.at_level(logging.WARNING, "quoth"):
            model = quoth.Model(path, threads=1)
            assert (model.config["n_ctx_train"], model.n_ctx) == (trained, min(trained, 4096))
            assert quoth.Model(path, n_ctx=trained, threads=1).n_ctx == trained
            assert not caplog.records
            beyond = quoth.Model(path, n_ctx=trained + 1, threads=1)
            beyond.decoder().generate([1, 2], max_tokens=2)
        said = f"n_ctx is {trained + 1}, but the model was trained for {trained} tokens: expect worse text beyond"
        assert [record.getMessage() for record in caplog.records] == [said], "once"
        caplog.clear()


# ---- closing


def made_from(model: quoth.Model) -> dict[str, Callable[[], object]]:
    """A use of each thing that a model makes, by its name."""
    decoder, chat, session = model.decoder(), model.conversation(), model.session()
    decoder.generate([1, 2], max_tokens=3)
    chat.reply("a", max_tokens=3)
    session.forward([1, 2])
    stream = decoder.stream([1, 2, 3], max_tokens=9)
    next(stream)
    return {
        "generate": lambda: decoder.generate([1]),
        "stream": lambda: next(stream),
        "agenerate": lambda: asyncio.run(decoder.agenerate([1])),
        "history": lambda: decoder.history,
        "stats": lambda: decoder.stats,
        "add_reference": lambda: decoder.add_reference([1]),
        "rewind": lambda: decoder.rewind(1),
        "decoder fork": decoder.fork,
        "reply": lambda: chat.reply("b"),
        "retry": lambda: list(chat.retry()),
        "chat fork": chat.fork,
        "chat reference": lambda: chat.add_reference("x"),
        "len": lambda: len(session),
        "forward": lambda: session.forward([1]),
        "session fork": session.fork,
        "truncate": lambda: session.truncate(1),
    }


def test_a_closed_model_closes_what_it_made_and_every_use_says_so(scripted: Scripted) -> None:
    with scripted.model(n_ctx=128) as model:
        uses = made_from(model)
    uses |= {
        "n_ctx": lambda: model.n_ctx, "config": lambda: model.config, "decoder": model.decoder,
        "session": model.session, "conversation": model.conversation,
    }  # fmt: skip
    for name, use in uses.items():
        with pytest.raises(quoth.ClosedError) as caught:
            use()
        assert str(caught.value) == f"the model `{scripted.path}` is closed", name
    model.close()
    assert repr(model) == f"Model({str(scripted.path)!r}, closed)"
    assert model.tokenizer.encode("a"), "what needs no weights works on"
    assert scripted.model().decoder().generate("a", max_tokens=2).tokens


def test_decoders_sessions_and_conversations_can_be_closed_alone(scripted: Scripted, tmp_path: Path) -> None:
    model = scripted.model(n_ctx=128)
    with model.decoder() as decoder, model.session() as session, model.conversation() as chat:
        next(decoder.stream([1, 2]))
        stream = chat.send("Hi", sampling=scripted.say("phrase"))
        said = [next(stream).text, next(stream).text]
    for thing, use in ((decoder, lambda: decoder.generate([1])), (session, lambda: session.forward([1]))):
        with pytest.raises(quoth.ClosedError, match=f"^the {type(thing).__name__.lower()} is closed$"):
            use()
        assert repr(thing) == f"{type(thing).__name__}(closed)"
        thing.close()
    for ask in (lambda: chat.reply("b"), lambda: next(stream)):
        with pytest.raises((quoth.ClosedError, quoth.BusyError)):
            ask()
    assert chat.messages[-1]["content"] == "".join(said), "what was handed out stays readable"
    chat.save(tmp_path / "chat.json")
    assert quoth.Conversation.load(tmp_path / "chat.json", model).messages == chat.messages
    assert repr(chat) == "Conversation(2 messages, Decoder(closed))"
    chat.close()
    assert model.decoder().generate([1], max_tokens=1).tokens


def test_what_computes_is_not_closed(scripted: Scripted) -> None:
    model = scripted.model(n_ctx=1024)
    decoder, other = model.decoder(), model.decoder()
    inside, go_on = threading.Event(), threading.Event()

    def wait(done: int, total: int) -> None:
        inside.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=lambda: decoder.generate([1] * 700, max_tokens=1, progress=wait))
    thread.start()
    assert inside.wait(60)
    for close in (decoder.close, model.close):
        with pytest.raises(quoth.BusyError, match="in use by another caller"):
            close()
    go_on.set()
    thread.join()
    assert len(decoder.history) == 701
    model.close()
    with pytest.raises(quoth.ClosedError):
        other.generate([1])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell what is resident")
def test_closing_frees_the_memory_while_names_are_still_there() -> None:
    path = tiny_path("F32", n_vocab=50_000)
    held = []

    def load_and_close() -> int:
        model = quoth.Model(path, threads=1, n_ctx=4096)
        n_bytes = model._model.weight_bytes
        decoder, session = model.decoder(), model.session()
        decoder.generate([5] * 600, max_tokens=2)
        session.forward([5] * 600, rows="last")
        model.close()
        held.append((model, decoder, session))
        return n_bytes

    for _ in range(2):
        n_bytes = load_and_close()
    assert n_bytes > 20 << 20
    before = resident_bytes()
    for _ in range(5):
        load_and_close()
    assert resident_bytes() - before < 2 * n_bytes, "five models' weights were freed, but for what is metadata"


# ---- copies and prints


def test_pickling_says_what_to_do_instead(scripted: Scripted) -> None:
    model = scripted.model()
    for thing, instead in (
        (model, "load it again in the other process"),
        (model.decoder(), "make one in the other process; in this one, `fork` copies it"),
        (model.conversation(), "`save` writes it to a file"),
        (model.session(), "forward the same tokens"),
    ):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied: ") as caught:
                way(thing)
            assert instead in str(caught.value)
    result = model.decoder().generate("a", max_tokens=3, logprobs=1)
    assert pickle.loads(pickle.dumps(result)) == result, "results are values"
    assert pickle.loads(pickle.dumps(quoth.Sampling(seed=3))) == quoth.Sampling(seed=3)


def test_results_print_short_and_say_what_their_fields_are() -> None:
    decoder = tiny().decoder(sampling=quoth.Sampling(temperature=1.0))
    decoder.add_reference([5] * 50)
    result = decoder.generate([1, 2, 3], max_tokens=300, logprobs=20, stop_at_eog=False)
    chunk = quoth.Chunk("x" * 9000, tuple(range(64)), 7, drafted=60, accepted=63, finish_reason="length")
    for value in (result, result.stats, chunk, dataclasses.replace(result, stop="s" * 5000, text="\n" * 5000)):
        assert len(repr(value)) <= 240
        assert "\n" not in repr(value)
    assert "300 tokens" in repr(result)
    assert "finish_reason='length'" in repr(result)
    for kind in (quoth.Result, quoth.Chunk, quoth.Stats, quoth.TokenLogprobs, quoth.GateStats, quoth.SourceStats):
        for field in dataclasses.fields(kind):
            assert f"\n        {field.name}: " in (kind.__doc__ or ""), (kind, field.name)


def test_help_shows_every_keyword_with_its_meaning() -> None:
    for method in ("generate", "agenerate", "stream", "astream", "tokens"):
        told = getattr(quoth.Decoder, method)
        assert "max_tokens: Most tokens" in told.__doc__
        assert "max_tokens: 'int' = 256" in str(inspect.signature(told))
        assert ("trace: Chunks" in told.__doc__) is ("stream" in method)
    for method in ("send", "asend", "reply", "areply", "edit", "retry"):
        assert "progress: Called" in getattr(quoth.Conversation, method).__doc__
    for name in quoth.StreamOptions.__annotations__:
        assert f"\n    {name}: " in (quoth.Decoder.stream.__doc__ or "")


@pytest.mark.parametrize("way", ["generate", "agenerate", "stream", "astream", "tokens"])
def test_an_unknown_keyword_is_refused_by_name(way: str) -> None:
    decoder = tiny().decoder()
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_token', expected some of max_tokens, stop"):
        asyncio.run(getattr(decoder, way)([1], max_token=3))
    chat = tiny().conversation(chat_template="{{ 'x' }}")
    for ask in (chat.send, chat.reply, chat.asend, chat.edit):
        with pytest.raises(TypeError, match="unexpected keyword argument 'max_token'"):
            ask("a", max_token=3)
    if way in ("generate", "agenerate", "tokens"):  # there are no chunks that could name a source
        with pytest.raises(TypeError, match="unexpected keyword argument 'trace'"):
            asyncio.run(getattr(decoder, way)([1], trace=True))
