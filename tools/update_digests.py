#!/usr/bin/env python3
"""Compute the table of digests (`tests/data/digests.toml`), compare it with the one in the tree, and write it.

Token ids and logits are part of the interface. To change one is a decision: this tool writes a changed entry only
together with the line of CHANGELOG.md that tells users of it. New entries need no line.

U1  Nothing is written unless every instruction set of this machine, with and without speculation, says the same.
U2  An entry that differs is written only with `--changelog LINE`, where LINE stands in CHANGELOG.md.

    python tools/update_digests.py
    python tools/update_digests.py --write --changelog "Rows of logits of gemma4 models change: …"
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import digests  # noqa: E402  it lies with the tests
import quoth  # noqa: E402
from quoth.hub import resolve  # noqa: E402

HEADER = """\
# What fixed models say to fixed prompts: the same bits on every machine. tests/digests.py says what the numbers are.
# Written by tools/update_digests.py. Changing one is a decision, with a line in CHANGELOG.md.
"""


def compute(known: dict[str, digests.Entry]) -> dict[str, digests.Entry]:
    """The table as this code has it; ends the program where the instruction sets do not agree."""
    table: dict[str, digests.Entry] = {}
    kernels = list(dict.fromkeys(name for name, _ in quoth._core.kernel_sets()))
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: digests.unpack(name, Path(folder)) for name in digests.FIXTURES}
        paths[digests.DEFAULT] = Path(resolve("smollm2"))
        for name, path in paths.items():
            prompt = known.get(name, {}).get("prompt")
            for set_name in kernels:
                for speculation in (False, True):
                    found = digests.whole_entry(path, name, set_name, prompt, speculation=speculation)
                    if table.setdefault(name, found) != found:
                        sys.exit(f"{name}: {set_name}, speculation {speculation}, differs from {kernels[0]}")
            print(f"{name}: {', '.join(kernels)} agree", file=sys.stderr)
    return table


def differences(old: dict[str, digests.Entry], new: dict[str, digests.Entry]) -> list[str]:
    """What changed or went away, a line each."""
    return [
        f"{name}.{key}: {value} became {new.get(name, {}).get(key)}"
        for name, entry in old.items()
        for key, value in entry.items()
        if new.get(name, {}).get(key) != value
    ]


def text_of(table: dict[str, digests.Entry]) -> str:
    """The table as TOML, a line for each key."""
    lines = [HEADER]
    for name, entry in table.items():
        lines.append(f"[{name}]")
        keys = ["prompt", *digests.KV_TYPES, "greedy", *(f"seed-{seed}" for seed in digests.SEEDS)]
        lines += [f"{key} = {json.dumps(entry[key])}" for key in keys]
        lines.append("")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 if the table in the tree is right or was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--changelog", metavar="LINE", help="the line of CHANGELOG.md that tells of the change")
    args = parser.parse_args(argv)
    old = digests.read() if digests.TABLE.exists() else {}
    new = compute(old)
    changed = differences(old, new)
    for line in changed:
        print(line)
    text = text_of(new)
    if digests.TABLE.exists() and digests.TABLE.read_text(encoding="utf-8") == text:
        print("the table in the tree is right", file=sys.stderr)
        return 0
    if not args.write:
        print("the table in the tree is another one; --write replaces it", file=sys.stderr)
        return 1
    if changed and (
        not args.changelog or args.changelog not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    ):
        print("entries change, so --changelog must give a whole line of CHANGELOG.md that says so", file=sys.stderr)
        return 1
    digests.TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
