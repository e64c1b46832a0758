#!/usr/bin/env python3
"""Random cases of the tests, as many as there is time for: what libFuzzer does not reach, as it is written in Python.

In: a target, seconds. Out: how many cases held, by outcome; or the first that did not, with its number, and exit code
1.

A case follows from its number alone, so `--only NUMBER` repeats it. Numbers begin behind those that the tests try;
`--first` goes on from somewhere else. A case that takes longer than a minute counts as hanging: where it hangs is
printed.

    python tools/long_run.py templates|decode [SECONDS] [--first N | --only N]
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import itertools
import logging
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("templates", "decode")
HANGS_S = 60.0


def cases(target: str) -> Callable[[int], Counter[str]]:
    """The function that tries one case, and says what became of it."""
    sys.path.insert(0, str(ROOT / "tests"))
    logging.getLogger("quoth").setLevel(logging.CRITICAL)  # sources that fail are part of the cases
    if target == "templates":
        # As the tests have it: less than users' templates may take.
        importlib.import_module("quoth._sandbox").SECONDS = 0.5  # type: ignore[attr-defined]
        warnings.simplefilter("ignore", DeprecationWarning)  # of odd escapes in random sources
        template_case = importlib.import_module("test_hostile_templates").template_case
        return lambda number: Counter({template_case(number)[0]: 1})
    attempt: Callable[[int], Counter[str]] = importlib.import_module("test_hostile_decode").decode_case
    return attempt


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Try random cases of the tests.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("seconds", nargs="?", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--first", type=int, default=1_000_000, help="number of the first case (1000000)")
    parser.add_argument("--only", type=int, metavar="N", help="try this case alone")
    args = parser.parse_args(argv)
    attempt = cases(args.target)
    counts: Counter[str] = Counter()
    first = args.first if args.only is None else args.only
    end = time.monotonic() + args.seconds
    tried = 0
    for number in itertools.count(first):
        if tried and (args.only is not None or time.monotonic() >= end):
            break
        faulthandler.dump_traceback_later(HANGS_S, exit=True, file=sys.__stderr__)
        try:
            counts += attempt(number)
        except Exception:
            traceback.print_exc()
            print(f"case {number} failed; to see it again: tools/fuzz {args.target} --only {number}", file=sys.stderr)
            return 1
        finally:
            faulthandler.cancel_dump_traceback_later()
        tried += 1
    told = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
    print(f"{args.target}: {tried} cases from {first} held: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
