"""Each mechanism of speculation left out on purpose: a loop in plain Python, and the comparison that notices it.

With nothing left out the loop is a second decoder, sampler and random numbers included, written from the definitions.
It gives what quoth gives. So what is noticed is what was left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import pytest

import quoth
from models import tiny
from test_lossless import PROMPT, penalised, plain_stream

N = 50
WARM = quoth.Sampling(temperature=0.8, top_k=20, seed=3)
PENALISED = quoth.Sampling(temperature=0.8, top_k=20, seed=3, frequency_penalty=1.5, presence_penalty=5.0)
GREEDY = quoth.Sampling()


def uniform(seed: int, number: int) -> float:
    """The draw of a committed token: the first 53 bits of Philox4x32-10's lower half."""
    word = 2**32 - 1
    c, k = [number & word, number >> 32, 0, 0], [seed & word, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & word, a >> 32 ^ c[3] ^ k[1], a & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return ((c[1] << 32 | c[0]) >> 11) / 2**53


def chances(row: np.ndarray, sampling: quoth.Sampling) -> np.ndarray:
    """The weights of all tokens after temperature and top-k; of the greatest, 1."""
    order = np.lexsort((np.arange(len(row)), -row))[: sampling.top_k]
    weights = np.zeros(len(row))
    weights[order] = np.exp((row[order].astype(np.float64) - row.max()) / np.float64(np.float32(sampling.temperature)))
    return weights


def pick(row: np.ndarray, history: Sequence[int], sampling: quoth.Sampling, number: int) -> int:
    """Penalties, then the greatest, or one draw walked by ascending id."""
    row = penalised(row, history, sampling)
    if sampling.temperature <= 0:
        return int(row.argmax())
    mass = np.cumsum(chances(row, sampling))
    assert sampling.seed is not None
    return int(np.searchsorted(mass, uniform(sampling.seed, number) * mass[-1], side="right"))


@dataclass
class Outcome:
    """What the proofs compare."""

    tokens: list[int] = field(default_factory=list)
    draws: int = 0
    rows: list[bytes] = field(default_factory=list)
    """The row of each committed token."""
    cached: int = 0
    next_row: bytes = b""

    def other_than(self, other: Outcome) -> list[str]:
        """The names of what differs."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]


def plain(model: quoth.Model, sampling: quoth.Sampling, stop: int | None) -> Outcome:
    """The outcome of the package's own plain decoding; rows from a session that saw one token after another."""
    decoder = model.decoder(sampling=sampling, speculation=None)
    result = decoder.generate(PROMPT, max_tokens=N, stop_at_eog=False, stop=() if stop is None else stop)
    session = model.session()
    rows = [session.forward([token])[0].tobytes() for token in decoder.history]
    first = len(PROMPT) - 1
    return Outcome(
        list(result.tokens),
        result.stats.draws,
        rows[first : first + result.stats.committed],
        decoder.cached_tokens,
        rows[-1],
    )


def closed(step: int) -> bool:
    """Whether the gate refuses this step a draft."""
    return step % 9 > 6


def speculative(
    model: quoth.Model, sampling: quoth.Sampling, stream: list[int], stop: int | None, broken: str | None
) -> Outcome:
    """The same, with guesses that are right up to a place that wanders."""
    session, history, found = model.session(), list(PROMPT), Outcome()
    carried, draft, number, step, ended = list(PROMPT), [], 0, 0, False
    while not ended:
        rows = session.forward([*carried, *draft])[len(carried) - 1 :]
        start, before = len(history), number
        for i, raw in enumerate(rows):
            row = raw.copy()
            if broken == "bits" and i > 0:
                row[5] = np.nextafter(row[5], np.float32(np.inf))
            guess = draft[i] if i < len(draft) else None
            token = pick(row, history[:start] if broken == "history" else history, sampling, number)
            if broken == "acceptance" and guess is not None and chances(row, sampling)[guess] > 0:
                token = guess
            number += 1
            found.draws += sampling.temperature > 0
            found.rows.append(row.tobytes())
            ended = ended or token == stop
            if token == stop and broken != "stops":
                break
            history.append(token)
            found.tokens.append(token)
            ended = ended or len(found.tokens) == N
            if token != guess or (ended and broken != "stops"):
                break
        if broken == "draw numbers":
            number = before + 1 + len(draft)
        if broken == "gate" and closed(step):
            number = before
        if broken != "truncation":
            session.truncate(len(history) - 1)
        step += 1
        right = stream[len(history) :][: min(6, N - len(found.tokens) - 1)]
        draft = [] if closed(step) else [(t + 1) % 97 if i == step % 7 else t for i, t in enumerate(right)]
        carried = history[-1:]
    found.cached = len(session)
    found.next_row = session.forward(carried)[0].tobytes()
    return found


CASES = [
    ("draw numbers", WARM, "tokens"),
    ("bits", WARM, "rows"),
    ("bits", GREEDY, "rows"),
    ("history", PENALISED, "tokens"),
    ("truncation", WARM, "rows"),
    ("truncation", GREEDY, "cached"),
    ("gate", WARM, "tokens"),
    ("stops", WARM, "tokens"),
    ("stops", GREEDY, "tokens"),
    ("acceptance", WARM, "tokens"),
]


@pytest.mark.parametrize(
    ("broken", "sampling", "differs"),
    CASES,
    ids=[f"{broken}, {'sampled' if sampling.temperature else 'greedy'}" for broken, sampling, _ in CASES],
)
def test_a_mechanism_left_out_is_noticed_and_with_all_of_them_the_loop_is_plain(
    broken: str, sampling: quoth.Sampling, differs: str
) -> None:
    model, noticed = tiny(), []
    # A guess that is wrong and yet probable is rare, and so is a stop inside a draft: more runs than one.
    for seed in range(8) if broken == "acceptance" else (3,):
        seeded = dataclasses.replace(sampling, seed=seed)
        stream = plain_stream(model, seeded, PROMPT, N + 20)
        news = [t for i, t in enumerate(stream) if i > len(PROMPT) + 10 and t not in stream[:i]][:4]
        for stop in news if broken == "stops" else [None]:
            expected = plain(model, seeded, stop)
            assert speculative(model, seeded, stream, stop, None).other_than(expected) == []
            noticed += speculative(model, seeded, stream, stop, broken).other_than(expected)
    assert differs in noticed


def test_bits_differ_before_tokens_do() -> None:
    """Why rows are compared, not tokens alone: the last bit of a logit changes no token here."""
    model = tiny()
    stream = plain_stream(model, GREEDY, PROMPT, N + 20)
    assert speculative(model, GREEDY, stream, None, "bits").other_than(plain(model, GREEDY, None)) == ["rows"]


@pytest.mark.parametrize("sampling", [WARM, PENALISED], ids=["sampled", "penalised"])
def test_a_decoder_written_from_the_definitions_gives_the_same_for_20_seeds(sampling: quoth.Sampling) -> None:
    model = tiny()
    for seed in (*range(18), 2**63 + 5, 2**64 - 1):
        seeded = dataclasses.replace(sampling, seed=seed)
        stream = plain_stream(model, seeded, PROMPT, N + 20)
        assert speculative(model, seeded, stream, None, None).other_than(plain(model, seeded, None)) == []
