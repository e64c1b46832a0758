"""The program: its commands and what it says about itself.

In: the commands' functions. Out: the program, to `_run`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

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


def _without_types(params: list[Any]) -> list[Any]:
    """Parameters whose flags are shown as `--flag` alone: they take no value that could have a type."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


app = typer.Typer(
    name="quoth",
    cls=_Group,
    help="Run GGUF language models on a CPU, faster by quoting, without changing a token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(cls=_Group, help="Measure speed on this machine.", no_args_is_help=True)


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


app.command("generate", cls=_Command)(generate.generate)
app.command("chat", cls=_Command)(chat.chat)
app.command("tokenize", cls=_Command)(tokenize.tokenize)
app.command("inspect", cls=_Command)(inspect.inspect)
app.command("pull", cls=_Command)(pull.pull)
app.command("doctor", cls=_Command)(doctor.doctor)
app.add_typer(bench, name="bench")
bench.command("verify", cls=_Command)(bench_verify.verify)
bench.command("speed", cls=_Command)(bench_speed.speed)
bench.command("replay", cls=_Command)(bench_replay.replay)
bench.command("workloads", cls=_Command)(bench_workloads.workloads)
