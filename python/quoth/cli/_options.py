"""Arguments and options that several commands share.

In: nothing. Out: annotations for the commands' signatures, and what their texts mean.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from quoth.errors import OptionsError

MACHINE, SAMPLING, CONSTRAINT, SPECULATION = "Machine", "Sampling", "Constraint", "Speculation"


class KvTypes(str, enum.Enum):
    """How keys and values are cached."""

    f16 = "f16"
    q8_0 = "q8_0"
    f32 = "f32"


ModelName: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A GGUF file, or a name: smollm2, hf:org/repo/file.gguf.", show_default=False),
]
Pre: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--pre", metavar="NAME", help="Splitter of a byte-level vocabulary, for files that name none or a wrong one."
    ),
]
Template: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="NAME",
        help="A chat template: a file, or a name, such as chatml or llama3. Default: the model's own.",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

# -- measurements ------------------------------------------------------------------------------------------------------

RecordTo: TypeAlias = Annotated[
    Path | None, typer.Option("--record", metavar="FILE", help="Write the figures with their provenance, as TOML.")
]
Facts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--fact", metavar="NAME=TEXT", help="Say this of the run in the record too. Repeatable."),
]
PlotTo: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help=r"Draw the figures: .svg, .png or .pdf. Needs `pip install 'quoth\[plot]'`."
    ),
]

# -- the machine -------------------------------------------------------------------------------------------------------

Context: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--ctx",
        metavar="N",
        help="Longest context, in tokens. Default: what the model was trained for, at most 4096.",
        rich_help_panel=MACHINE,
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option("--threads", "-t", metavar="N", help="Threads. Default: the physical cores.", rich_help_panel=MACHINE),
]
Kernels: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--kernels",
        metavar="SET",
        help="Instruction set: scalar, avx2, avx512, neon. Default: the best here. All give the same bits.",
        rich_help_panel=MACHINE,
    ),
]
KvTypeName: TypeAlias = Annotated[
    KvTypes | None,
    typer.Option(
        "--kv-type",
        help="How keys and values are cached. Default: f32 for small models, else f16.",
        rich_help_panel=MACHINE,
    ),
]

# -- sampling ----------------------------------------------------------------------------------------------------------

Temperature: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="T",
        help="0: the best token each time. Default: the model's, or 0.",
        rich_help_panel=SAMPLING,
    ),
]
TopK: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        metavar="K",
        help="Keep the K best tokens; 0: all. Default: the model's, or 0.",
        rich_help_panel=SAMPLING,
    ),
]
TopP: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        metavar="P",
        help="Keep the best that add up to P; 1: all. Default: the model's, or 1.",
        rich_help_panel=SAMPLING,
    ),
]
MinP: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        metavar="P",
        help="Keep those at least P times as probable as the best. Default: the model's, or 0.",
        rich_help_panel=SAMPLING,
    ),
]
RepeatPenalty: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--repeat-penalty",
        metavar="F",
        help="Divides the logits of recent tokens; 1: off. Default: the model's, or 1.",
        rich_help_panel=SAMPLING,
    ),
]
FrequencyPenalty: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--frequency-penalty",
        metavar="F",
        help="Subtracted from a recent token's logit for each time it occurs. Default: 0.",
        rich_help_panel=SAMPLING,
    ),
]
PresencePenalty: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--presence-penalty",
        metavar="F",
        help="Subtracted once from each recent token's logit. Default: 0.",
        rich_help_panel=SAMPLING,
    ),
]
RepeatLastN: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--repeat-last-n",
        metavar="N",
        help="How many tokens are recent. Default: the model's, or 64.",
        rich_help_panel=SAMPLING,
    ),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="N", help="Same seed, same text. Default: drawn anew each time.", rich_help_panel=SAMPLING
    ),
]
LogitBias: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID=V",
        help="Added to a token's logit; -inf bans it. Repeatable.",
        rich_help_panel=SAMPLING,
    ),
]

# -- constraint --------------------------------------------------------------------------------------------------------

JsonSchema: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--json-schema", metavar="FILE", help="Answer with JSON that this schema describes.", rich_help_panel=CONSTRAINT
    ),
]
Regex: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--regex", metavar="PATTERN", help="Answer with text that this expression matches.", rich_help_panel=CONSTRAINT
    ),
]
Lark: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--lark", metavar="FILE", help="Answer with text of this grammar, in Lark's syntax.", rich_help_panel=CONSTRAINT
    ),
]
After: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--after",
        metavar="TEXT",
        help="Let the constraint begin behind this text, such as </think>. Default: with the first token.",
        rich_help_panel=CONSTRAINT,
    ),
]

# -- speculation -------------------------------------------------------------------------------------------------------

NoSpec: TypeAlias = Annotated[
    bool, typer.Option("--no-spec", help="Decode plainly. The text is the same.", rich_help_panel=SPECULATION)
]
References: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--ref",
        metavar="FILE",
        help="A text to draft from. The model does not see it. Repeatable.",
        rich_help_panel=SPECULATION,
    ),
]
Drafters: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="FILE",
        help="A drafter that was made for this model, such as an EAGLE-3 head. Repeatable. The text is the same.",
        rich_help_panel=SPECULATION,
    ),
]
MaxDraft: TypeAlias = Annotated[
    int | None,
    typer.Option("--max-draft", metavar="N", help="Longest draft, 1 to 64. Default: 16.", rich_help_panel=SPECULATION),
]
ShowDrafts: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--show-drafts", help="Colour drafted text by its source, in a terminal.", rich_help_panel=SPECULATION
    ),
]
MarkDrafts: TypeAlias = Annotated[
    bool, typer.Option("--mark-drafts", help="Put drafted text in brackets, anywhere.", rich_help_panel=SPECULATION)
]


def check_speculation(
    *, no_spec: bool, ref: Sequence[str] | None, max_draft: int | None, drafter: Sequence[str] | None
) -> None:
    """Refuse options of drafting where nothing is drafted.

    Raises:
        OptionsError: There are some.
    """
    if no_spec and (ref or drafter or max_draft is not None):
        raise OptionsError("--ref, --drafter and --max-draft do not go with --no-spec, which drafts nothing")


def sampling_options(logit_bias: Sequence[str] | None, **given: float | None) -> dict[str, Any]:
    """The fields of `quoth.Sampling` that were given; the model's file chooses the others.

    Raises:
        OptionsError: One is out of range.
    """
    from quoth.options import Sampling  # noqa: PLC0415

    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if logit_bias:
        options["logit_bias"] = biases(logit_bias)
    Sampling(**options)
    return options


def biases(entries: Sequence[str]) -> dict[int, float]:
    """`ID=V` for each token.

    Raises:
        OptionsError: An entry is something else.
    """
    found = {}
    for entry in entries:
        id, _, value = entry.partition("=")
        try:
            found[int(id)] = float(value)
        except ValueError:
            raise OptionsError(f"--logit-bias is {entry!r}, expected ID=V, as in 42=-1.5 or 42=-inf") from None
    return found
