"""Token ids and logits are the same on every machine: the table of digests, in every instruction set.

`digests` says what the table holds, `tools/update_digests.py` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import digests
import quoth

KERNELS = tuple(dict.fromkeys(name for name, _ in quoth._core.kernel_sets()))
TABLE = digests.read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digests")


@pytest.mark.parametrize("speculation", [False, True], ids=["plain", "speculative"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", digests.FIXTURES)
def test_a_model_of_each_family_says_what_the_table_says(
    folder: Path, name: str, kernels: str, speculation: bool
) -> None:
    path = digests.unpack(name, folder)
    found = digests.whole_entry(path, name, kernels, TABLE[name]["prompt"], speculation=speculation)
    assert found == TABLE[name]


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_default_model_says_what_the_table_says(smollm2_path: Path, kernels: str) -> None:
    """Plain code, which is slow, gives the rows alone; that the sets equal it is proved product by product."""
    expected = TABLE[digests.DEFAULT]
    prompt = expected["prompt"]
    if kernels == "scalar":
        rows = quoth.Model(smollm2_path, n_ctx=256, kernels=kernels).session().forward(prompt)
        assert digests.digest(rows) == expected["f16"]
    else:
        found = digests.whole_entry(smollm2_path, digests.DEFAULT, kernels, prompt, speculation=True)
        assert found == expected


def test_the_table_is_complete_and_its_entries_differ() -> None:
    assert list(TABLE) == [*digests.FIXTURES, digests.DEFAULT]
    families = set(quoth._core.architectures())
    # gemma4 is there in its form with experts, which has everything that the dense one has.
    assert {"gemma4" if name.startswith("gemma4moe") else name.split("-")[0] for name in digests.FIXTURES} == families
    said = [str(value) for entry in TABLE.values() for key, value in entry.items() if key != "prompt"]
    assert len(said) == len(set(said)) == 6 * len(TABLE)


def test_a_digest_sees_every_bit_and_every_place() -> None:
    rows = np.linspace(-3, 3, 600, dtype=np.float32).reshape(3, 200)
    whole = digests.digest(rows)
    slow = 0xCBF29CE484222325
    for word in rows.view(np.uint32).reshape(-1):
        slow = (slow * 0x100000001B3 + int(word)) % 2**64
    assert whole == f"{slow:016x}"
    for at in ((0, 0), (1, 77), (2, 199)):
        for bit in (0, 13, 31):
            other = rows.copy()
            other.view(np.uint32)[at] ^= np.uint32(1 << bit)
            assert digests.digest(other) != whole
    swapped = rows.copy()
    swapped[0, :2] = rows[0, 1::-1][:2]
    assert digests.digest(swapped) != whole


def test_a_changed_entry_is_written_only_with_its_line_in_the_changelog(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "tools"))
    import update_digests  # noqa: PLC0415  a tool, found where the line above says

    table, changelog = tmp_path / "digests.toml", tmp_path / "CHANGELOG.md"
    monkeypatch.setattr(digests, "TABLE", table)
    monkeypatch.setattr(update_digests, "ROOT", tmp_path)
    monkeypatch.setattr(update_digests, "compute", lambda known: TABLE)
    assert update_digests.main(["--write"]) == 0, "a first table tells of no change"
    assert digests.read() == TABLE
    assert update_digests.main([]) == 0

    right = table.read_text()
    wrong = re.sub('f16 = "(.)', lambda m: f'f16 = "{"0" if m[1] != "0" else "1"}', right, count=1)
    table.write_text(wrong)
    changelog.write_text("# Changelog\n\n- Logits of llama move.\n")
    for arguments in ([], ["--write"], ["--write", "--changelog", "Logits"], ["--write", "--changelog", ""]):
        assert update_digests.main(arguments) == 1
        assert table.read_text() == wrong
    assert "llama-Q4_K_M.f16: " in capsys.readouterr().out
    assert update_digests.main(["--write", "--changelog", "- Logits of llama move."]) == 0
    assert table.read_text() == right
