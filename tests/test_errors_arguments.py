"""Arguments that make no sense: each is an `OptionsError` that names the argument, what was found and what was
expected, and whatever was asked goes on as before.

E6  A refusal comes before anything has changed: session, decoder and options are as they were.
E7  Options are refused when they are built, not when they are used.
E8  A setting in the environment is refused by its own name.
"""

from __future__ import annotations

import lzma
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoth
from broken import DATA

NAN, INF = float("nan"), float("inf")
IDS = "token ids"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arguments") / "model.gguf"
    path.write_bytes(lzma.decompress((DATA / "llama-Q4_K_M.gguf.xz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> quoth.Model:
    return quoth.Model(path, n_ctx=64, threads=1)


class Source:
    """A draft source that never drafts."""

    def suggest(self, context: list[int], max_tokens: int) -> list[int]:
        return []

    def observe(self, committed: list[int]) -> None:
        pass


def refused(call: Callable[[], object], message: str, kind: type[Exception] = quoth.OptionsError) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)
    if kind is quoth.OptionsError:
        assert isinstance(caught.value, ValueError)
        assert re.search(r"expected|the limit is", str(caught.value))


def _name(case: object) -> str:
    try:
        return re.sub(r" at 0x\w+", "", str(case))[:40]
    except ValueError:  # a number of too many digits
        return "huge"


def named(cases: list[tuple[dict[str, Any], str]]) -> Any:
    """Cases of keyword arguments and a message, with readable names."""
    return pytest.mark.parametrize(("arguments", "message"), cases, ids=_name)


# ---- models


@named(
    [
        *(
            ({"n_ctx": n}, f"n_ctx is {n!r}, expected a whole number of 1 to 16777216")
            for n in (0, -1, 2**24 + 1, 2**64)
        ),
        *(({"n_ctx": n}, f"n_ctx is {n!r}, expected a whole number") for n in (2.5, "8", True, [8])),
        *(({"threads": n}, f"threads is {n!r}, expected a whole number of 1 to 256") for n in (0, -3, 257, 10**20)),
        *(({"threads": n}, f"threads is {n!r}, expected a whole number") for n in (1.5, "2", True)),
        *(({"kv_type": kv}, f"kv_type is {kv!r}, expected f32, f16 or q8_0") for kv in ("f8", "F16", 16, "")),
        *(({"kernels": k}, f"kernels is {k!r}, expected one of scalar, ") for k in ("sse9", "", 7, "AVX2")),
        ({"progress": 5}, "progress is 5, expected something to call"),
        ({"threads": 10**5000}, "threads is <int of 16610 bits>, expected a whole number of 1 to 256"),
        *(({"kv_type": kv}, "expected f32, f16 or q8_0") for kv in (np.array([1, 2]), ["f16"], np.array(["f16"]))),
        *(({"kernels": k}, "expected one of scalar, ") for k in (np.array([1, 2]), ["scalar"])),
        *(({"pre": p}, "expected the name of a splitter") for p in (np.array([1, 2]), ["default"], 3)),
    ]
)
def test_a_model_refuses_nonsense_before_it_loads(path: Path, arguments: dict[str, Any], message: str) -> None:
    begun: list[int] = []
    refused(lambda: quoth.Model(path, **{"n_ctx": 64, "progress": lambda *now: begun.append(1), **arguments}), message)
    assert not begun


def test_an_unknown_argument_is_a_type_error(path: Path, model: quoth.Model) -> None:
    """Bug report 30: a parameter that is accepted and does nothing."""
    for call in (
        lambda: quoth.Model(path, n_batch=5),  # type: ignore[call-arg]
        lambda: model.decoder(draft_max=5),  # type: ignore[call-arg]
        lambda: model.decoder().generate([1], temperature=1.0),  # type: ignore[call-arg]
        lambda: quoth.Sampling(top_q=1),  # type: ignore[call-arg]
        lambda: quoth.Speculation(draft_max=4),  # type: ignore[call-arg]
        lambda: quoth.Gate(size=4),  # type: ignore[call-arg]
    ):
        refused(call, "unexpected keyword argument", TypeError)


def test_a_set_argument_is_visible(path: Path) -> None:
    """Bug report 30: what was set can be read back, and numpy's numbers are numbers."""
    for n in (1, 2):
        model = quoth.Model(path, n_ctx=np.int64(48), threads=np.int32(n), kv_type="q8_0", kernels="scalar")  # type: ignore[arg-type]
        assert (model.n_ctx, model.threads, model.kv_type, model.kernels) == (48, n, "q8_0", "scalar")
        stats = model.decoder().generate([1, 2, 3], max_tokens=2, seed=5).stats
        assert (stats.kernels, stats.threads) == ("scalar", n)
    sampling = quoth.Sampling(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**63))  # type: ignore[arg-type]
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.5, 3, 2**63)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(("QUOTH_THREADS", v, f"QUOTH_THREADS is {v!r}, expected") for v in ("many", "1.5", "-2")),
        *(("QUOTH_THREADS", v, f"QUOTH_THREADS is {v}, expected") for v in ("0", "257", "9" * 30)),
        *(("QUOTH_KERNELS", v, f"QUOTH_KERNELS is {v!r}, expected one of scalar, ") for v in ("fast", "AVX2", "neon9")),
    ],
)
def test_a_setting_in_the_environment_is_refused_by_its_name(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    refused(lambda: quoth.Model(path, n_ctx=64), message)
    # An argument goes before it.
    model = quoth.Model(path, n_ctx=64, threads=1, kernels="scalar")
    assert (model.threads, model.kernels) == (1, "scalar")


def test_a_setting_in_the_environment_takes_effect(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUOTH_THREADS", "3")
    monkeypatch.setenv("QUOTH_KERNELS", "scalar")
    model = quoth.Model(path, n_ctx=64)
    assert (model.threads, model.kernels) == (3, "scalar")
    monkeypatch.setenv("QUOTH_THREADS", "")
    monkeypatch.setenv("QUOTH_KERNELS", "")
    assert quoth.Model(path, n_ctx=64).threads == quoth._core.default_threads()


# ---- sessions

TOKENS: list[tuple[Any, str]] = [
    ([], "expected at least one token"),
    ([1, -1], "token 1 is -1, expected a whole number of 0 to"),
    ([True], "token 0 is True, expected a whole number of 0 to"),
    (np.array([True]), "expected a whole number of 0 to"),
    ([1, 512], "token 512 at position 8 is out of range, expected 0 to 511"),
    ([2**32], "token 0 is 4294967296, expected a whole number of 0 to"),
    ([2**70], "token 0 is 1180591620717411303424, expected"),
    ([1.5], "token 0 is 1.5, expected a whole number"),
    (["a"], "token 0 is 'a', expected a whole number"),
    ([None], "token 0 is None, expected a whole number"),
    ([[1]], "token 0 is [1], expected a whole number"),
    ("text", "is text, expected"),
    (b"bytes", "is bytes, expected"),
    (None, "is None, expected"),
    (5, "is 5, expected"),
    ({1, 2}, "is {1, 2}, expected"),
    ({1: 2}, "is {1: 2}, expected"),
    (np.zeros((2, 2), np.int64), "expected"),
    (np.array(3), "expected"),
    (np.array([1.0, 2.0]), "expected a whole number"),
    (np.array([512]), "token 512 at position"),
]


@pytest.mark.parametrize(("tokens", "message"), TOKENS, ids=lambda case: repr(case)[:30])
def test_a_session_refuses_what_is_not_token_ids_and_stays_as_it_was(
    model: quoth.Model, tokens: Any, message: str
) -> None:
    session = model.session()
    session.forward([1, 2, 3, 4, 5, 6, 7])
    refused(lambda: session.forward(tokens), message)
    assert len(session) == 7
    fresh = model.session()
    fresh.forward([1, 2, 3, 4, 5, 6, 7])
    assert session.forward([8, 9]).tobytes() == fresh.forward([8, 9]).tobytes()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_arrays_of_whole_numbers_are_token_ids(model: quoth.Model, dtype: Any) -> None:
    plain = model.session().forward([1, 2, 3]).tobytes()
    for tokens in (np.array([1, 2, 3], dtype), np.array([1, 9, 2, 9, 3], dtype)[::2], (1, 2, 3), range(1, 4)):
        assert model.session().forward(tokens).tobytes() == plain
        assert model.decoder().generate(tokens, max_tokens=1).prompt_tokens == 3


def test_numbers_of_tokens_are_whole_and_not_negative(model: quoth.Model) -> None:
    session, decoder = model.session(), model.decoder()
    session.forward([1, 2, 3])
    decoder.generate([1, 2, 3], max_tokens=2, stop_at_eog=False)
    for n in (-1, 1.5, "1", None, True, [1]):
        for call in (session.truncate, decoder.rewind, *([session.fork] if n is not None else [])):
            refused(lambda call=call, n=n: call(n), f"n is {n!r}, expected a whole number of at least 0")
    assert (len(session), len(decoder.history)) == (3, 5)
    for n in (2**40, 2**70):  # more than there are change nothing
        session.truncate(n)
        decoder.rewind(n)
        assert len(session.fork(n)) == 3
    assert (len(session), len(decoder.history)) == (3, 5)
    for rows in ("none", None, 0, True, ["all"]):
        refused(lambda rows=rows: session.forward([1], rows), f"rows is {rows!r}, expected all or last")
    assert len(session) == 3


def test_a_full_context_is_refused_with_numbers_and_what_fits_still_fits(model: quoth.Model) -> None:
    """Bug report 10, for the bare machine; decoders have their own case."""
    session = model.session()
    session.forward([1] * 60)
    for n in (5, 64, 10**6):
        refused(
            lambda n=n: session.forward(np.ones(n, np.int64)),
            f"{n} tokens after 60 cached ones do not fit the context of 64",
            quoth.ContextFullError,
        )
        assert len(session) == 60
    session.forward([1] * 4)
    refused(lambda: session.forward([1]), "1 tokens after 64 cached ones", quoth.ContextFullError)
    session.truncate(63)
    assert session.forward([1]).shape == (1, 512)


# ---- sampling


@named(
    [
        *(({"temperature": v}, "temperature") for v in (NAN, INF, "hot", None, True, [1])),
        *(({"temperature": 10**n}, "expected a number that a float can hold") for n in (400, 5000)),
        ({"top_k": 10**5000}, "top_k is <int of 16610 bits>, expected a whole number"),
        ({"logit_bias": {1: -(10**400)}}, "expected a number that a float can hold"),
        *(({"top_k": v}, f"top_k is {v!r}, expected a whole number") for v in (-1, 1.5, 2**32, "5", None)),
        *(({"top_p": v}, "top_p") for v in (-0.1, 1.5, NAN, "x")),
        *(({"min_p": v}, "min_p") for v in (-0.1, 1.1, NAN, None)),
        *(({"repeat_penalty": v}, "repeat_penalty") for v in (0, -1, INF, NAN)),
        *(({"frequency_penalty": v}, "frequency_penalty") for v in (1e9, NAN)),
        *(({"presence_penalty": v}, "presence_penalty") for v in (-1e9, NAN)),
        *(({"repeat_last_n": v}, f"repeat_last_n is {v!r}, expected a whole number") for v in (-1, 1.5, None)),
        *(
            ({"seed": v}, f"seed is {v!r}, expected a whole number of 0 to 2^64 - 1")
            for v in (-1, 2**64, "a", True, 1.5)
        ),
        ({"logit_bias": {-1: 1.0}}, "a token of logit_bias is -1"),
        ({"logit_bias": {"a": 1.0}}, "a token of logit_bias is 'a'"),
        ({"logit_bias": {1: NAN}}, "logit_bias"),
        ({"logit_bias": {1: INF}}, "logit_bias"),
        ({"logit_bias": {1: "x"}}, "logit_bias is 'x', expected a number"),
        *(({"logit_bias": v}, f"logit_bias is {v!r}, expected numbers by token id") for v in (5, [1], None)),
        *(({"banned": v}, f"a token of banned is {v[0]!r}, expected a whole number") for v in ([-1], ["a"], [1.5])),
        *(({"banned": v}, f"banned is {v!r}, expected token ids") for v in (5, None)),
        ({"banned": "ab"}, "banned is text, expected token ids"),
    ]
)
def test_sampling_refuses_nonsense_when_it_is_built(arguments: dict[str, Any], message: str) -> None:
    refused(lambda: quoth.Sampling(**arguments), message)


def test_sampling_that_does_not_fit_the_model_is_refused_by_the_decoder(model: quoth.Model) -> None:
    decoder = model.decoder(sampling=quoth.Sampling(temperature=0.5, seed=3))
    before = decoder.generate([1, 2, 3], max_tokens=8, stop_at_eog=False).tokens
    for sampling, message in (
        (quoth.Sampling(banned=[512]), "`banned`: expected tokens below 512, found 512"),
        (quoth.Sampling(logit_bias={600: 1.0}), "`logit_bias`: expected tokens below 512, found 600"),
        (quoth.Sampling(banned=range(512)), "`banned`: expected at least one of 512 tokens to be left, found none"),
        (quoth.Sampling(banned=range(511), logit_bias={511: -INF}), "`banned`: expected at least one of 512 tokens"),
        (5, "sampling is 5, expected quoth.Sampling"),
        ({"top_k": 1}, "sampling is {'top_k': 1}, expected quoth.Sampling"),
    ):
        refused(lambda sampling=sampling: model.decoder(sampling=sampling), message)
        refused(lambda sampling=sampling: setattr(decoder, "sampling", sampling), message)
        refused(lambda sampling=sampling: decoder.generate([1], sampling=sampling), message)
    assert decoder.sampling == quoth.Sampling(temperature=0.5, seed=3)
    assert decoder.generate([1, 2, 3], max_tokens=8, stop_at_eog=False).tokens == before


# ---- speculation


@named(
    [
        *(({"max_draft": v}, f"max_draft is {v}, expected 1 to 64") for v in (0, 65)),
        *(({"max_draft": v}, f"max_draft is {v!r}, expected a whole number") for v in (-1, 1.5, "8", True, None)),
        ({"min_draft": 0}, "min_draft"),
        ({"min_draft": 17}, "min_draft is 17, expected at most max_draft, which is 16"),
        ({"min_draft": 1.5}, "min_draft is 1.5, expected a whole number"),
        *(({"min_match": v}, "min_match") for v in (0, 10**6, "x")),
        *(({"recycling": v}, f"recycling is {v!r}, expected True or False") for v in (1, None, "yes")),
        *(({"costs": v}, f"costs is {v!r}, expected costs by draft length") for v in (5, [1], "x")),
        ({"costs": {}}, "expected at least one point"),
        ({"costs": {0: 1.0}}, "expected 1 to 4096, found 0"),
        ({"costs": {1: 0.0}}, "expected 0.5 to 10000, found 0"),
        ({"costs": {1: NAN}}, "found NaN"),
        ({"costs": {"a": 1.0}}, "a draft length of costs is 'a', expected a whole number"),
        ({"costs": {1: "a"}}, "a cost is 'a', expected a number"),
        *(({"gate": v}, f"gate is {v!r}, expected a quoth.Gate") for v in (5, None, {})),
        *(({"source": v}, "expected an object with suggest and observe") for v in (5, "x", object(), Source)),
    ]
)
def test_speculation_refuses_nonsense_when_it_is_built(arguments: dict[str, Any], message: str) -> None:
    refused(lambda: quoth.Speculation(**arguments), message)


@named(
    [
        *(({"window": v}, "window") for v in (1, 5000, 1.5, None)),
        *(({"min_speedup": v}, "min_speedup") for v in (0.1, 11, NAN, "x")),
        *(({"probe_margin": v}, "probe_margin") for v in (-1, NAN)),
        *(({"reprobe_after": v}, "reprobe_after") for v in (0, -1)),
        ({"reprobe_after": 100, "reprobe_max": 50}, "`reprobe_max`: expected 100 to"),
        *(({"probe_steps": v}, "probe_steps") for v in (0, 17)),
        *(({"adapt_budget": v}, f"adapt_budget is {v!r}, expected True or False") for v in (1, None)),
        *(({"first_risk": v}, "first_risk") for v in (-1, INF)),
        *(({"max_debt": v}, "max_debt") for v in (-1, NAN)),
        *(({"credit": v}, "credit") for v in (-1, NAN)),
    ]
)
def test_a_gate_refuses_nonsense_when_it_is_built(arguments: dict[str, Any], message: str) -> None:
    refused(lambda: quoth.Gate(**arguments), message)


@pytest.mark.parametrize("speculation", [5, "on", Source, object(), 0, []], ids=lambda value: type(value).__name__)
def test_a_decoder_refuses_what_is_neither_options_nor_a_source(model: quoth.Model, speculation: Any) -> None:
    refused(lambda: model.decoder(speculation=speculation), "expected quoth.Speculation, a draft source, True, False")


@named(
    [
        *(
            ({"n_vocab": v}, f"n_vocab is {v!r}, expected a whole number of 1 to 4194304")
            for v in (0, -1, "a", 1.5, True)
        ),
        ({"n_vocab": 2**33}, "n_vocab"),
        ({"n_vocab": 10, "min_draft": 0}, "min_draft"),
    ]
)
def test_a_draft_index_refuses_nonsense(arguments: dict[str, Any], message: str) -> None:
    refused(lambda: quoth.DraftIndex(**arguments), message)


# ---- requests


@named(
    [
        *(
            ({"prompt": tokens}, message.replace("position 8", "position 1"))
            for tokens, message in TOKENS
            if not isinstance(tokens, str)
        ),
        ({"prompt": ""}, "expected at least one token"),
        ({"prompt": [1] * 65}, "65 tokens after 0 cached ones do not fit the context of 64"),
        *(
            ({"max_tokens": v}, f"max_tokens is {v!r}, expected a whole number of 1 to 2147483647")
            for v in (0, -1, 1.5, None, True, 2**31, "8")
        ),
        *(({"stop": v}, "expected texts of at least one character") for v in ("", ["a", ""])),
        *(({"stop": v}, "expected texts and token ids") for v in ([1.5], [None], None, b"x", 5.5, True, {"a"})),
        *(({"stop": v}, "expected token ids of 0 to 511") for v in (600, [1, 600], [-1], [2**40])),
        ({"stop": ["\ud800"]}, "stop has a lone surrogate at character 0, expected text"),
        ({"stop": ["x" * 70_000]}, "70000 bytes together, the limit is 65536"),
        *(
            ({"logprobs": v}, f"logprobs is {v!r}, expected a whole number of 0 to 20")
            for v in (-1, 21, True, "a", 1.5)
        ),
        *(({"seed": v}, f"seed is {v!r}, expected a whole number of 0 to 2^64 - 1") for v in (-1, 2**64, 1.5, "a")),
        *(({"stop_at_eog": v}, f"stop_at_eog is {v!r}, expected True or False") for v in (3, None)),
        ({"progress": 5}, "progress is 5, expected something to call"),
    ]
)
@pytest.mark.parametrize("how", ["generate", "stream"])
def test_a_request_that_makes_no_sense_is_refused_and_changes_nothing(
    model: quoth.Model, how: str, arguments: dict[str, Any], message: str
) -> None:
    decoder = model.decoder(sampling=quoth.Sampling(temperature=0.7, seed=9))
    decoder.generate([1, 2, 3], max_tokens=4, stop_at_eog=False)
    history = decoder.history
    request = {"prompt": [1, 2, 3], "max_tokens": 4, **arguments}
    kind = quoth.ContextFullError if "do not fit" in message else quoth.OptionsError
    if how == "generate":
        refused(lambda: decoder.generate(**request), message, kind)
    else:
        refused(lambda: list(decoder.stream(**request)), message, kind)
    assert (decoder.history, decoder.cached_tokens) == (history, len(history) - 1)
    fresh = model.decoder(sampling=quoth.Sampling(temperature=0.7, seed=9))
    wanted = fresh.generate([1, 2, 3, 4], max_tokens=6, stop_at_eog=False).tokens
    assert decoder.generate([1, 2, 3, 4], max_tokens=6, stop_at_eog=False).tokens == wanted


def test_text_that_is_not_unicode_is_refused(model: quoth.Model) -> None:
    decoder = model.decoder()
    for call in (decoder.generate, decoder.add_reference):
        refused(
            lambda call=call: call("a\ud800"), "found the lone surrogate U+D800 at character 1", quoth.TokenizerError
        )
    assert decoder.history == []


def test_a_flag_is_no_token_id_wherever_ids_are_taken(model: quoth.Model, tmp_path: Path) -> None:
    decoder, index, chat = model.decoder(), quoth.DraftIndex(100), model.conversation(chat_template="{{ messages }}")
    calls: list[Callable[[Any], object]] = [
        decoder.generate, lambda ids: list(decoder.stream(ids)), lambda ids: list(decoder.tokens(ids)),
        decoder.add_reference, model.decoder(speculation=None).add_reference,
        lambda ids: decoder.generate([1], stop=ids), lambda ids: quoth.Sampling(banned=ids),
        lambda ids: quoth.Sampling(logit_bias=dict.fromkeys(ids, 1.0)), model.session().forward,
        chat.send, chat.add_reference, index.observe, index.suggest, index.rebuild, index.add_reference,
        lambda ids: index.observe_topk([(ids[0], [1])]), lambda ids: index.observe_topk([(1, ids)]),
    ]  # fmt: skip
    for call in calls:
        for ids in ([True], (False,), [np.True_]):
            refused(lambda call=call, ids=ids: call(ids), "True" if ids[0] else "False")


def test_references_that_make_no_sense_are_refused(model: quoth.Model) -> None:
    decoder = model.decoder()
    for speculating in (decoder, model.decoder(speculation=None), model.decoder(speculation=Source())):
        for reference in (5, None, b"x", {1, 2}):
            refused(lambda d=speculating, r=reference: d.add_reference(r), "expected text, token ids or a path")
        for token in (512, -1, 1.5, True):
            message = f"token 0 is {token}, expected a whole number of 0 to 511"
            refused(lambda d=speculating, t=token: d.add_reference([t]), message)
    handle = decoder.add_reference([1, 2, 3])
    for wrong in (-1, "a", None, 1.5):
        refused(lambda w=wrong: decoder.remove_reference(w), f"handle is {wrong!r}, expected a whole number")
    assert not decoder.remove_reference(handle + 1)
    assert not decoder.remove_reference(2**70)
    assert decoder.remove_reference(handle)
    refused(lambda: model.decoder(speculation=Source()).add_reference([1]), "reference", quoth.OptionsError)


# ---- two callers


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except quoth.BusyError as error:
        return str(error)
    return "done"


BUSY = "the session is in use by another caller"


@pytest.mark.slow
def test_a_session_in_use_is_busy_for_everyone_else_and_no_caller_waits(path: Path) -> None:
    session = quoth.Model(path, n_ctx=8192, threads=1).session()
    tokens = np.tile(np.arange(500), 16)
    own: list[str] = []

    def work() -> None:
        # Callers that ask meanwhile hold the session for a moment too.
        while not own or own[-1] == BUSY:
            own.append(outcome(lambda: session.forward(tokens, rows="last")))

    calls = (lambda: len(session), lambda: session.truncate(10**6), lambda: session.fork(0))
    others: list[str] = []
    printed: set[str] = set()
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        others += map(outcome, calls)
        printed.add(repr(session))
    thread.join()
    assert own[-1] == "done"
    assert len(session) == 8000
    assert set(others) <= {BUSY, "done"}
    assert others.count(BUSY) >= 4
    assert "Session(in use, 8192 tokens)" in printed
    assert [outcome(call) for call in calls] == ["done"] * 3


@pytest.mark.parametrize("name", ["observe", "rebuild", "suggest", "add_reference"])
def test_a_draft_index_refuses_what_is_not_token_ids_and_stays_as_it_was(name: str) -> None:
    index = quoth.DraftIndex(100)
    index.observe([1, 2, 3, 1, 2])
    before = index.suggest()
    assert before
    for tokens in (None, 5, object(), "text", b"bytes", [None], ["a"], [1.5], [-1], {1, 2}, {1: 2}, np.array([1.5])):
        if not (name == "suggest" and tokens is None):
            refused(lambda tokens=tokens: getattr(index, name)(tokens), "expected")
    assert (len(index), index.suggest()) == (5, before)


def test_a_draft_index_refuses_rows_and_numbers_that_are_none() -> None:
    index = quoth.DraftIndex(100)
    index.observe([1, 2, 3, 1, 2])
    before = index.suggest()
    for rows, message in (
        (None, "rows is None, expected pairs"),
        ([5], "row 0 is 5, expected a token and its successors"),
        ([(1, [2]), (1,)], "row 1 is (1,), expected a token and its successors"),
        ([(1, None)], "successors of row 0 is None, expected token ids"),
        ([(-1, [2])], "token of row 0 is -1, expected a whole number"),
        ([(1, [2, "a"])], "successor in row 0 is 'a', expected a whole number"),
        ([(1, [10**30])], "successor in row 0 is 1"),
    ):
        refused(lambda rows=rows: index.observe_topk(rows), message)
    for n in (-1, 1.5, None, "a"):
        refused(lambda n=n: index.truncate_pending(n), f"n is {n!r}, expected a whole number of at least 0")
        refused(lambda n=n: index.suggest([1, 2], n), f"max_tokens is {n!r}, expected a whole number of at least 0")
    assert index.suggest(None, 10**30)[: len(before)] == before
    index.truncate_pending(10**30)
    assert index.suggest() == before
    refused(lambda: quoth.DraftIndex(10**30), "n_vocab is 1")


# ---- tokenizers


def test_a_tokenizer_refuses_what_is_not_token_ids(model: quoth.Model) -> None:
    tokenizer = model.tokenizer

    def wrong(call: Callable[[], object], message: str) -> None:
        refused(call, message, quoth.TokenizerError)

    for tokens in (None, 5, "text", b"bytes"):
        wrong(lambda tokens=tokens: tokenizer.decode(tokens), f"expected token ids, found {type(tokens).__name__}")
    for token in (None, "a", 1.5, [1], -1, 10**5000, np.array([1, 2])):
        for call in (
            lambda token=token: tokenizer.decode([65, token]),
            lambda token=token: tokenizer.decode([65, token], skip_special=False),
            lambda token=token: tokenizer.stream().push([65, token]),
            lambda token=token: tokenizer.token_bytes(token),
            lambda token=token: tokenizer.token_text(token),
            lambda token=token: tokenizer.is_control(token),
        ):
            wrong(call, "expected a token id in 0 to 511, found ")
    assert tokenizer.decode(np.array([65, 66], np.uint32)) == tokenizer.decode([65, 66])
    assert tokenizer.decode(iter([65, 66])) == tokenizer.decode((65, 66))
