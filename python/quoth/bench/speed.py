"""How fast a model runs plainly: prompt, decoding at several depths, and how near that is to the speed of memory.

In: a model. Out: rates with their spread.

S1  A round measures everything once, so a drift of the machine falls on all figures alike, and the memory too.
S2  Decoding is a plain decoder's own steps, sampling included; the prompt stays cached between rounds.
S3  Before the clock starts the decoder's tokens are compared with the best token of each row of one forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from quoth.bench.bandwidth import DEFAULT_BYTES, reader
from quoth.bench.paired import Spread, timed
from quoth.errors import InternalError, OptionsError
from quoth.machine import peak_bytes

if TYPE_CHECKING:
    from quoth.decoder import Decoder
    from quoth.model import Model

__all__ = ["DEPTHS", "PROMPTS", "Rate", "Speed", "bytes_per_step", "measure_speed"]

PROMPTS = (32, 128, 512)
"""Prompts that are measured, in tokens."""

DEPTHS = (0, 512, 2048)
"""Cached tokens before the measured steps."""

STEPS = 32
"""Steps of one measurement."""


@dataclass(frozen=True)
class Rate:
    """A speed at one length."""

    n: int
    """Tokens of the prompt, or cached tokens."""
    tokens_per_second: Spread
    """The speed."""


@dataclass(frozen=True)
class Speed:
    """All figures of a model."""

    load_ns: int
    """From the file to panels in memory."""
    weight_bytes: int
    """Weights in memory."""
    cache_bytes: int
    """Keys and values at the last depth."""
    cache_tokens: int
    """The tokens that these are of."""
    bytes_per_step: int
    """Weights that a plain step reads."""
    prefill: tuple[Rate, ...]
    """By length of the prompt."""
    decode: tuple[Rate, ...]
    """By cached tokens."""
    peak_bytes: int | None
    """Most memory that this process has held, before the array was made that bandwidth is measured with."""
    bandwidth: Spread
    """Bytes a second that the same threads read from memory, measured in each round."""
    bandwidth_best: float
    """The best of them."""
    bandwidth_share: float
    """Bytes of weights that decoding read in a second, at the first depth, as a share of the best bandwidth."""


def measure_speed(
    model: Model,
    *,
    prompts: Sequence[int] = PROMPTS,
    depths: Sequence[int] = DEPTHS,
    rounds: int = 5,
    progress: Callable[[int, int], object] = lambda done, total: None,
    read_bytes: int = DEFAULT_BYTES,
) -> Speed:
    """Measure.

    Args:
        model: The model. Lengths that do not fit its `n_ctx` are left out.
        prompts: Lengths of prompts, each at least 1.
        depths: Cached tokens before the measured steps, each at least 0.
        rounds: How often everything is measured, at least 1.
        progress: Called with pieces of work done and in all.
        read_bytes: Bytes that a pass over memory reads, and that are allocated for it.

    Raises:
        OptionsError: A number is out of range, or nothing fits.
    """
    prompts = sorted({n for n in prompts if n <= model.n_ctx})
    depths = sorted({n for n in depths if max(n, 1) + STEPS < model.n_ctx})
    if not prompts or not depths or prompts[0] < 1 or depths[0] < 0 or rounds < 1:
        raise OptionsError(f"no length of {list(prompts)}, {list(depths)} can be measured within n_ctx {model.n_ctx}")
    tokens = [(7919 * i + 17) % model.n_vocab for i in range(max(*prompts, *depths, 1))]
    session = model.session()
    _check_tokens(model)
    decoders = {depth: model.decoder(speculation=None) for depth in depths}

    total, done = (rounds + 1) * (len(prompts) + len(depths)), 0
    prefill: dict[int, list[float]] = {n: [] for n in prompts}
    decode: dict[int, list[float]] = {n: [] for n in depths}

    def everything() -> None:
        nonlocal done
        for n in prompts:
            ns = timed(partial(session.forward, tokens[:n], rows="last"))
            session.truncate(0)
            prefill[n].append(n / ns * 1e9)
            progress(done := done + 1, total)
        for depth, decoder in decoders.items():
            decode[depth].append(_steps_per_second(decoder, tokens[: max(depth, 1)]))
            progress(done := done + 1, total)

    everything()  # warms up, and does not count
    for figures in (*prefill.values(), *decode.values()):
        figures.clear()
    peak = peak_bytes()
    read: list[float] = []
    with reader(model.threads, read_bytes) as memory:
        for _ in range(rounds):
            read.append(memory.bytes_per_second())
            everything()
    rates = tuple(Rate(n, Spread.of(figures)) for n, figures in decode.items())
    n_bytes = bytes_per_step(model)
    return Speed(
        load_ns=model._model.load_ns,
        weight_bytes=model._model.weight_bytes,
        cache_bytes=decoders[depths[-1]]._core.cache_bytes(),
        cache_tokens=decoders[depths[-1]].cached_tokens,
        bytes_per_step=n_bytes,
        prefill=tuple(Rate(n, Spread.of(figures)) for n, figures in prefill.items()),
        decode=rates,
        peak_bytes=peak,
        bandwidth=Spread.of(read),
        bandwidth_best=max(read),
        bandwidth_share=n_bytes * rates[0].tokens_per_second.median / max(read),
    )


def bytes_per_step(model: Model) -> int:
    """Bytes of weights that a plain step reads, by the file's tensors.

    All of them, but for embeddings, of which a step reads a row (unless they are also the output matrix), and for
    experts that are not chosen.
    """
    tensors = model._file.tensors()
    arch = model.metadata.get("general.architecture")
    count = model.metadata.get(f"{arch}.expert_count") or 1
    used = model.metadata.get(f"{arch}.expert_used_count") or count
    untied = any(name == "output.weight" for name, *_ in tensors)
    total = 0.0
    for name, _, _, n_bytes, _ in tensors:
        if name == "per_layer_token_embd.weight" or (name == "token_embd.weight" and untied):
            continue
        total += n_bytes * (used / count if "_exps." in name else 1)
    return round(total)


def _steps_per_second(decoder: Decoder, prompt: list[int]) -> float:
    stats = decoder.generate(prompt, max_tokens=STEPS + 1, stop_at_eog=False).stats
    return stats.steps / stats.decode_ns * 1e9


def _check_tokens(model: Model) -> None:
    """Compare a plain decoder's tokens with the best token of each row of one forward.

    Raises:
        InternalError: They differ, and the speed would be the speed of something else.
    """
    prompt = [17 % model.n_vocab]
    tokens = model.decoder(speculation=None).generate(prompt, max_tokens=STEPS, stop_at_eog=False).tokens
    rows = model.session().forward([*prompt, *tokens[:-1]])
    best = rows.argmax(axis=1).tolist()
    if best != list(tokens):
        at = next(i for i, (a, b) in enumerate(zip(tokens, best, strict=True)) if a != b)
        raise InternalError(f"token {at} of a plain decoder is {tokens[at]}, the best of its row is {best[at]}")
