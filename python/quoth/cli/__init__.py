"""The command line: `quoth COMMAND …`.

In: arguments. Out: results on stdout, everything else on stderr, an exit code. A file a command; files that begin with
`_` are shared by commands.

U1  Exit codes: 0 done, 1 failed, 2 called wrongly, 130 interrupted.
U2  What quoth or the system refuses is one line, `error: …`; `QUOTH_DEBUG=1` adds the traceback. Anything else is a
    defect and shows its traceback; in a conversation at a terminal it is one line, too, and the conversation goes on.
U3  stdout carries results alone, so it can be piped; colours and bars appear in terminals alone.
U4  Text that comes from a file or a model cannot steer the terminal: control characters are shown, not sent.

Cost: `quoth --help` takes about 0.2 s. Commands import what they need when they run.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        args: Arguments without the program's name. None: those of the process.

    Returns:
        The exit code.
    """
    try:  # most of the first tenth of a second goes by in these imports, and Ctrl-C may come at any time
        from quoth.cli._app import app  # noqa: PLC0415  `import quoth.cli` alone builds nothing
        from quoth.cli._run import run  # noqa: PLC0415

        return run(app, args)
    except KeyboardInterrupt:
        return 130
