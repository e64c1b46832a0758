"""What a file says about its use is honoured, said by `inspect` not to be, or refused by its key; never passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import quoth
from broken import ARRAY, BOOL, F32, I32, STRING, U32, Gguf, check_refused, load, model
from program import Run
from quoth.tokenizer import Tokenizer

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


def written(folder: Path, file: Gguf) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(file.packed())
    return path


def suppressing(ids: list[int]) -> Gguf:
    return model().set("tokenizer.ggml.suppress_tokens", ARRAY, (I32, ids))


# ---- tokens that are never chosen


@pytest.mark.parametrize(
    "sampling", [quoth.Sampling(), quoth.Sampling(temperature=1.5, seed=3)], ids=["greedy", "drawn"]
)
def test_suppressed_tokens_are_never_chosen_plainly_or_with_drafts(tmp_path: Path, sampling: quoth.Sampling) -> None:
    free = load(written(tmp_path, model())).decoder(sampling=sampling, speculation=None).generate(PROMPT, max_tokens=20)
    banned = sorted(set(free.tokens))[:6]
    suppressed = load(written(tmp_path, suppressing([*banned, -1, 512, 1 << 30])))
    assert suppressed.tokenizer.suppressed_ids == set(banned)
    plain, drafted = (
        suppressed.decoder(sampling=sampling, speculation=guess).generate(PROMPT, max_tokens=40, logprobs=20)
        for guess in (None, quoth.Speculation(min_draft=1))
    )
    assert plain.tokens == drafted.tokens
    assert plain.logprobs == drafted.logprobs
    assert not set(plain.tokens) & set(banned)
    # As bans of the caller do, and with them; log-probabilities are those of the row that the model made.
    both = load(written(tmp_path, model())).decoder(
        sampling=quoth.Sampling(temperature=sampling.temperature, seed=sampling.seed, banned=banned), speculation=None
    )
    assert both.generate(PROMPT, max_tokens=40, logprobs=20).logprobs == plain.logprobs


def test_suppressed_tokens_stay_so_after_other_options_and_in_forks(tmp_path: Path) -> None:
    found = load(written(tmp_path, suppressing(list(range(256)))))
    decoder = found.decoder(speculation=None)
    decoder.generate(PROMPT, max_tokens=4)
    decoder.sampling = quoth.Sampling(temperature=2.0, seed=1)
    assert min(decoder.generate(PROMPT, max_tokens=30).tokens) >= 256
    assert min(decoder.fork().generate(PROMPT, max_tokens=30).tokens) >= 256


# ---- sampling


def test_a_files_sampling_is_used_where_the_user_chose_none(tmp_path: Path, run_quoth: Run) -> None:
    file = model().set("general.sampling.temp", F32, 0.75).set("general.sampling.top_k", I32, 20)
    file.set("general.sampling.penalty_last_n", I32, -1).set("general.sampling.penalty_repeat", F32, 1.5)
    path = written(tmp_path, file)
    expected = quoth.Sampling(temperature=0.75, top_k=20, repeat_last_n=2**32 - 1, repeat_penalty=1.5)
    found = load(path)
    assert found.default_sampling == found.decoder().sampling == expected
    assert found.decoder(sampling=quoth.Sampling(top_p=0.5)).sampling == quoth.Sampling(top_p=0.5)
    command = ("generate", path, "--raw", "-p", "a", "-n", 2, "--seed", 1, "--json", "--stats", "--ctx", 64)
    for flags, changed in (([], {}), (["--temperature", 0, "--min-p", 0.5], {"temperature": 0.0, "min_p": 0.5})):
        ran = run_quoth(*command, *flags)
        assert ran.code == 0, ran.err
        said = json.loads(ran.out)["sampling"]
        for name in ("temperature", "top_k", "min_p", "repeat_penalty", "repeat_last_n"):
            assert said[name] == changed.get(name, getattr(expected, name))
        shown = "greedy" if flags else "temperature 0.75, top-k 20"
        assert f"{shown}, repeat penalty 1.5, of the last 4294967295 tokens" in " ".join(ran.err.split())


def test_inspect_shows_what_the_file_asks_for_and_what_is_not_used(tmp_path: Path, run_quoth: Run) -> None:
    file = suppressing([3, 5]).set("general.sampling.top_p", F32, 0.5).set("general.sampling.mirostat", I32, 2)
    file.set("tokenizer.ggml.precompiled_charsmap", STRING, "x").set("tokenizer.ggml.fim_pre_token_id", U32, 4)
    said = json.loads(run_quoth("inspect", written(tmp_path, file), "--json").out)
    assert said["sampling"] == {"top_p": 0.5}
    assert said["tokenizer"]["suppressed"] == [3, 5]
    unused = ["general.sampling.mirostat", "tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.fim_pre_token_id"]
    assert [key for key in said["unused_keys"] if key in unused] == unused
    assert not any(key.endswith((".tokens", ".merges", ".suppress_tokens", ".top_p")) for key in said["unused_keys"])
    page = run_quoth("inspect", written(tmp_path, file)).out
    assert "never chosen" in page
    assert "general.sampling.mirostat" in page


# ---- wrong types


@pytest.mark.parametrize(
    ("key", "kind", "value", "said"),
    [
        ("temp", STRING, "hot", "'hot', expected a number"),
        ("top_k", F32, 2.5, "2.5, expected a whole number"),
        ("top_p", BOOL, True, "True, expected a number"),
    ],
)
def test_sampling_of_a_wrong_type_is_refused(tmp_path: Path, key: str, kind: int, value: Any, said: str) -> None:
    path = written(tmp_path, model().set(f"general.sampling.{key}", kind, value))
    with pytest.raises(quoth.ModelFileError, match=f"^key `general.sampling.{key}` is {said}$"):
        load(path)


def test_sampling_out_of_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(quoth.ModelFileError, match=r"^key `general\.sampling\.top_p`: .*expected 0 to 1, found 1\.5$"):
        load(written(tmp_path, model().set("general.sampling.top_p", F32, 1.5)))


KEYS: list[tuple[str, int, Any]] = [
    ("tokenizer.chat_template", U32, 7),
    ("tokenizer.chat_template", ARRAY, (STRING, ["{{ messages }}"])),
    ("tokenizer.chat_template.tool_use", BOOL, True),
    ("tokenizer.ggml.pre", U32, 7),
    ("tokenizer.ggml.add_bos_token", U32, 1),
    ("tokenizer.ggml.add_eos_token", STRING, "no"),
    ("tokenizer.ggml.eos_token_id", STRING, "2"),
    ("tokenizer.ggml.eot_token_id", F32, 2.0),
    ("tokenizer.ggml.fim_pad_token_id", BOOL, True),
    ("tokenizer.ggml.padding_token_id", STRING, "0"),
    ("tokenizer.ggml.unknown_token_id", ARRAY, (U32, [0])),
    ("tokenizer.ggml.suppress_tokens", ARRAY, (STRING, ["1"])),
    ("tokenizer.ggml.suppress_tokens", U32, 1),
    ("tokenizer.ggml.token_type", ARRAY, (BOOL, [True] * 512)),
    ("tokenizer.ggml.merges", STRING, "a b"),
]


@pytest.mark.parametrize(("key", "kind", "value"), KEYS, ids=[f"{key}-{kind}" for key, kind, _ in KEYS])
def test_a_value_of_a_wrong_type_is_not_an_absent_one(
    tmp_path: Path, run_quoth: Run, key: str, kind: int, value: Any
) -> None:
    name = "qwen2-Q4_K_M" if key.endswith((".pre", ".merges")) else "llama-Q4_K_M"
    path = written(tmp_path, model(name).set(key, kind, value))
    with pytest.raises(quoth.TokenizerError, match=key.replace(".", r"\.")):
        Tokenizer.from_metadata(load(path).metadata)
    if key.endswith("chat_template"):
        ran = run_quoth("generate", path, "-p", "a", "-n", 1, "--ctx", 64)
        assert (ran.code, ran.out) == (1, "")
        assert key in ran.last_error
        said = json.loads(run_quoth("inspect", path, "--json").out)
        assert key in said["supported"]["why"]
        assert not said["supported"]["ok"]
        assert "yes" not in run_quoth("inspect", path).out


def test_a_vocabulary_larger_than_the_embedding_is_refused_by_key(tmp_path: Path) -> None:
    file = model()
    of, tokens = file.keys["tokenizer.ggml.tokens"][1]
    file.set("tokenizer.ggml.tokens", ARRAY, (of, [*tokens, "<|extra|>"]))
    said = "key `tokenizer.ggml.tokens` is 513 tokens, expected at most 512 as `token_embd.weight` has rows"
    check_refused(tmp_path, file, said)
