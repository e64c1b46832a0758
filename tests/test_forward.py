"""Rows of logits have the same bits whatever the batch, split, threads or instruction set; what a session survives."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

import quoth
from models import KERNELS, KV_TYPES, tiny, tiny_path

Rows = np.ndarray


def some_tokens(n: int, seed: int = 0, n_vocab: int = 97) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(n_vocab) for _ in range(n)]


def feed(session: quoth.Session, tokens: Sequence[int], sizes: Sequence[int]) -> Rows:
    """Rows of tokens fed in parts of these sizes, repeated; by their bits."""
    rows, at, i = [], 0, 0
    while at < len(tokens):
        n = sizes[i % len(sizes)]
        rows.append(session.forward(tokens[at : at + n]))
        at, i = at + n, i + 1
    return np.concatenate(rows).view(np.uint32)


def same(a: Rows, b: Rows) -> bool:
    return a.shape == b.shape and bool((a == b).all())


# ---- rows do not depend on the batch


def test_rows_are_the_same_in_every_batch_set_and_number_of_threads() -> None:
    tokens = some_tokens(70)
    plain = feed(tiny(kernels="scalar").session(), tokens, [1])
    for threads, kernels in enumerate(KERNELS, 1):
        for m in (1, 5, 17, 64):
            session = tiny(kernels=kernels, threads=threads).session()
            assert same(feed(session, tokens, [m]), plain), f"{kernels}, batches of {m}"


def test_bug_4_a_decode_over_more_than_512_positions_does_not_depend_on_the_threads() -> None:
    """With a context of 600 tokens, 64 more are the same for 1, 2, 3 and 7 threads."""
    tokens, found = some_tokens(600), []
    for threads in (1, 2, 3, 7):
        model = tiny(n_ctx=700, threads=threads)
        session = model.session()
        row, rows = session.forward(tokens, rows="last"), []
        for _ in range(64):
            rows.append(row.copy())
            row = session.forward([int(row.argmax())], rows="last")
        result = model.decoder(speculation=None).generate(tokens, max_tokens=64, stop_at_eog=False, logprobs=20)
        found.append((np.concatenate(rows).tobytes(), result.tokens, result.logprobs))
        assert result.tokens == tuple(int(r.argmax()) for r in rows)
    assert all(f == found[0] for f in found)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "F16"])
def test_bug_5_greedy_answers_are_the_same_in_every_instruction_set(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, other answers on another processor. Here one package holds all sets, and the environment chooses."""
    path, found = tiny_path(kind), []
    assert "scalar" in KERNELS
    for kernels in KERNELS:
        monkeypatch.setenv("QUOTH_KERNELS", kernels)
        model = quoth.Model(path, n_ctx=160, threads=1)
        assert model.kernels == kernels
        for speculation in (None, quoth.Speculation()):
            decoder = model.decoder(speculation=speculation)
            result = decoder.generate(some_tokens(60), max_tokens=60, stop_at_eog=False, logprobs=20)
            rows = model.session().forward(decoder.history).tobytes()
            found.append((result.tokens, result.logprobs, rows))
    assert all(f == found[0] for f in found)


def test_formats_and_caches_differ_so_that_equality_says_something() -> None:
    tokens = some_tokens(30)
    rows = [feed(tiny(kind, kv_type=kv).session(), tokens, [30]).tobytes() for kind, kv in
            (("Q8_0", "f16"), ("Q8_0", "q8_0"), ("Q8_0", "f32"), ("Q4_0", "f16"))]  # fmt: skip
    rows.append(feed(tiny(kernels="reference").session(), tokens, [30]).tobytes())
    assert len(set(rows)) == 5


# ---- sessions


def test_rows_have_the_documented_shape_and_the_last_row_is_the_last() -> None:
    model = tiny()
    tokens = some_tokens(20)
    session = model.session()
    rows = session.forward(tokens)
    assert rows.shape == (20, 97)
    assert rows.dtype == np.float32
    assert len(session) == 20
    last = model.session().forward(np.array(tokens, np.int32), rows="last")
    assert last.shape == (1, 97)
    assert same(last.view(np.uint32), rows[-1:].view(np.uint32))


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_session_that_went_back_is_a_fresh_one(kv_type: quoth.model.KvType) -> None:
    model, tokens = tiny(kv_type=kv_type), some_tokens(300)
    session = model.session()
    whole = feed(session, tokens, [300])
    for n in (299, 257, 256, 255, 130, 128, 127, 16, 1, 0):
        session.truncate(n)
        session.forward(some_tokens(20, seed=n))
        session.truncate(n)
        fresh = model.session()
        if n:
            fresh.forward(tokens[:n])
        assert len(session) == n
        assert session._session.same_prefix(fresh._session, n)
        fork = session.fork()
        assert same(feed(session, tokens[n:], [41]), whole[n:])
        assert same(feed(fork, tokens[n:], [17]), whole[n:]), "and so is its fork"
    short = session.fork(100)
    assert len(short) == 100
    assert same(feed(short, tokens[100:], [50]), whole[100:])


def test_an_error_leaves_the_session_as_it_was() -> None:
    model = tiny(n_ctx=64)
    session = model.session()
    rows = feed(session, some_tokens(40), [40])
    refused: list[tuple[object, type[Exception], str]] = [
        ([], quoth.OptionsError, "at least one token"),
        ([1, 2, 97], quoth.OptionsError, "token 97 at position 42 is out of range, expected 0 to 96"),
        ([1, -1], quoth.OptionsError, "token 1 is -1"),
        ([1.5], quoth.OptionsError, "token 0 is 1.5"),
        (np.zeros((2, 2), np.int64), quoth.OptionsError, "2 dimensions"),
        ("text", quoth.OptionsError, "tokens is text"),
        ([1] * 25, quoth.ContextFullError, "25 tokens after 40 cached ones do not fit the context of 64"),
    ]
    for tokens, kind, message in refused:
        with pytest.raises(kind) as caught:
            session.forward(tokens)  # type: ignore[arg-type]
        assert message in str(caught.value)
        assert len(session) == 40
    with pytest.raises(quoth.OptionsError, match="expected all or last"):
        session.forward([1], rows="some")  # type: ignore[arg-type]
    with pytest.raises(quoth.OptionsError, match="at least 0"):
        session.truncate(-1)
    fresh = model.session()
    assert same(feed(fresh, some_tokens(40), [3]), rows)
    assert same(feed(session, some_tokens(24, 1), [24]), feed(fresh, some_tokens(24, 1), [24]))
