"""A second decoder, sampler and random numbers included, written in plain Python from the definitions.

It gives what quoth gives. `rust/engine/tests/proof/broken.rs` leaves its mechanisms out, one at a time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import quoth
from models import tiny
from test_lossless import PROMPT, plain_stream

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
    """What is compared."""

    tokens: tuple[int, ...]
    draws: int
    rows: list[bytes]
    """The row of each committed token."""
    cached: int
    next_row: bytes


def penalised(row: np.ndarray, window: Sequence[int], sampling: quoth.Sampling) -> np.ndarray:
    """Penalties as the sampler defines them, in its own precision."""
    row = row.copy()
    for token, count in Counter(window[max(len(window) - sampling.repeat_last_n, 0) :]).items():
        x = row[token]
        x = x / np.float32(sampling.repeat_penalty) if x > 0 else x * np.float32(sampling.repeat_penalty)
        row[token] = x - (
            np.float32(count) * np.float32(sampling.frequency_penalty) + np.float32(sampling.presence_penalty)
        )
    return row


def plain(model: quoth.Model, sampling: quoth.Sampling) -> Outcome:
    """The outcome of the package's own plain decoding; rows from a session that saw one token after another."""
    decoder = model.decoder(sampling=sampling, speculation=None)
    result = decoder.generate(PROMPT, max_tokens=N, stop_at_eog=False)
    session = model.session()
    rows = [session.forward([token])[0].tobytes() for token in decoder.history]
    first = len(PROMPT) - 1
    return Outcome(result.tokens, result.stats.draws, rows[first : first + N], decoder.cached_tokens, rows[-1])


def speculative(model: quoth.Model, sampling: quoth.Sampling, stream: list[int]) -> Outcome:
    """The same, with guesses that are right up to a place that wanders, and none in some steps."""
    session, history, committed_rows = model.session(), list(PROMPT), []
    carried, draft, step, end = list(PROMPT), list[int](), 0, len(PROMPT) + N
    while len(history) < end:
        rows = session.forward([*carried, *draft])[len(carried) - 1 :]
        for i, row in enumerate(rows):
            token = pick(row, history, sampling, len(history) - len(PROMPT))
            committed_rows.append(row.tobytes())
            history.append(token)
            if len(history) == end or i == len(draft) or token != draft[i]:
                break
        session.truncate(len(history) - 1)
        step += 1
        right = stream[len(history) :][: min(6, end - len(history) - 1)]
        draft = [] if step % 9 > 6 else [(t + 1) % 97 if i == step % 7 else t for i, t in enumerate(right)]
        carried = history[-1:]
    draws = N if sampling.temperature > 0 else 0
    cached = len(session)
    return Outcome(tuple(history[len(PROMPT) :]), draws, committed_rows, cached, session.forward(carried)[0].tobytes())


@pytest.mark.parametrize("sampling", [GREEDY, WARM, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_a_decoder_written_from_the_definitions_gives_the_same_for_20_seeds(sampling: quoth.Sampling) -> None:
    model = tiny()
    for seed in (*range(18), 2**63 + 5, 2**64 - 1):
        seeded = dataclasses.replace(sampling, seed=seed)
        stream = plain_stream(model, seeded, PROMPT, N + 20)
        assert speculative(model, seeded, stream) == plain(model, seeded)
