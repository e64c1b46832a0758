"""`quoth chat MODEL`: a conversation in a terminal or over a pipe.

In: a model, options, what is typed. Out: answers as they are decided.

At a terminal, errors are shown, defects too, and the conversation goes on; Ctrl-C stops an answer alone. Where a
program pipes its lines in, the first error ends it with its exit code, so that a script notices.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from quoth.cli._console import note
from quoth.cli._load import load, read_text
from quoth.cli._options import (
    Context,
    Drafters,
    FrequencyPenalty,
    Kernels,
    KvTypeName,
    LogitBias,
    MarkDrafts,
    MaxDraft,
    MinP,
    ModelName,
    NoSpec,
    Pre,
    PresencePenalty,
    References,
    RepeatLastN,
    RepeatPenalty,
    Seed,
    ShowDrafts,
    Temperature,
    Template,
    Threads,
    TopK,
    TopP,
    check_speculation,
    sampling_options,
)
from quoth.cli._prompt import chosen_template
from quoth.errors import OptionsError, QuothError

if TYPE_CHECKING:
    from quoth.cli._input import Reader
    from quoth.cli._talk import Talk

TALK = "Conversation"


def chat(
    model: ModelName,
    *,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="The system message.", rich_help_panel=TALK)
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", metavar="N", help="Most tokens of an answer.", rich_help_panel=TALK)
    ] = 1024,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End answers before this text. Repeatable.", rich_help_panel=TALK),
    ] = None,
    trim: Annotated[
        bool,
        typer.Option("--trim", help="Drop the oldest turns when the context is full.", rich_help_panel=TALK),
    ] = False,
    template: Template = None,
    no_spec: NoSpec = False,
    ref: References = None,
    max_draft: MaxDraft = None,
    drafter: Drafters = None,
    show_drafts: ShowDrafts = False,
    mark_drafts: MarkDrafts = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repeat_penalty: RepeatPenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    presence_penalty: PresencePenalty = None,
    repeat_last_n: RepeatLastN = None,
    seed: Seed = None,
    logit_bias: LogitBias = None,
    ctx: Context = None,
    pre: Pre = None,
    threads: Threads = None,
    kernels: Kernels = None,
    kv_type: KvTypeName = None,
) -> None:
    """Talk with a model. /help lists what can be done beside talking.

    Drafting is on; it changes when text appears, never which. Without a terminal, each line of stdin is a message or a
    command.
    """
    if (show_drafts or mark_drafts) and no_spec:
        raise OptionsError("--show-drafts and --mark-drafts do not go with --no-spec")
    check_speculation(no_spec=no_spec, ref=ref, max_draft=max_draft, drafter=drafter)
    from quoth.cli._input import Reader
    from quoth.cli._talk import COMMANDS, Talk
    from quoth.options import Speculation

    options = sampling_options(
        logit_bias,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        repeat_last_n=repeat_last_n,
        seed=seed,
    )
    speculation = None if no_spec else Speculation() if max_draft is None else Speculation(max_draft=max_draft)
    references = [read_text(path, "the reference") for path in ref or ()]
    loaded = load(model, ctx=ctx, threads=threads, kernels=kernels, kv_type=kv_type, pre=pre, drafters=drafter)
    sampling = dataclasses.replace(loaded.default_sampling, **options)
    conversation = loaded.conversation(
        system=system,
        sampling=sampling,
        speculation=speculation,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        overflow="trim" if trim else "error",
        chat_template=chosen_template(template, loaded.tokenizer),
    )
    for reference in references:
        conversation.add_reference(reference)
    reader = Reader(list(COMMANDS))
    talk = Talk(conversation, speculation, show_drafts=show_drafts, mark_drafts=mark_drafts)
    if reader.typed:
        note(f"{model}, {loaded.n_ctx} tokens of context. /help says what can be done, Ctrl-D ends.\n")
    _converse(reader, talk)


def _converse(reader: Reader, talk: Talk) -> None:
    """Take inputs until there are no more."""
    from quoth.cli._run import said

    while not talk.over:
        try:
            given = reader.read()
            if given is None:
                return
            talk.take(given)
        except KeyboardInterrupt:
            if not reader.typed:
                raise
            if reader.reading:
                print(file=sys.stderr)
                continue
        except Exception as error:
            if not reader.typed or isinstance(error, BrokenPipeError):
                raise
            if reader.reading and not isinstance(error, QuothError):
                raise  # there is nothing to read from any more
            said(error, raises=False)
        if reader.typed and not talk.over:
            print(file=sys.stderr)
