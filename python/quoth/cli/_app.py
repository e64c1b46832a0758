"""The program: its commands and what it says about itself.

In: the commands' functions. Out: the program, to `_run`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from quoth.cli import (
    bench_replay,
    bench_speed,
    bench_verify,
    bench_workloads,
    chat,
    doctor,
    generate,
    inspect,
    pull,
    tokenize,
)

__all__ = ["app"]

app = typer.Typer(
    name="quoth",
    help="Run GGUF language models on a CPU, faster by quoting, without changing a token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)


def _version(wanted: bool) -> None:
    if wanted:
        from quoth import __version__  # noqa: PLC0415

        print(f"quoth {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Run GGUF language models on a CPU, faster by quoting, without changing a token."""


app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("tokenize")(tokenize.tokenize)
app.command("inspect")(inspect.inspect)
app.command("pull")(pull.pull)
app.command("doctor")(doctor.doctor)
app.add_typer(bench, name="bench")
bench.command("verify")(bench_verify.verify)
bench.command("speed")(bench_speed.speed)
bench.command("replay")(bench_replay.replay)
bench.command("workloads")(bench_workloads.workloads)
