"""`quoth generate MODEL -p TEXT`: text from a prompt.

In: a model, a prompt, options. Out: the text as it is decided, or one JSON object.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from quoth.cli._console import bar, note
from quoth.cli._load import chosen_constraint, load, read_text
from quoth.cli._options import (
    SPECULATION,
    After,
    Context,
    Drafters,
    FrequencyPenalty,
    JsonSchema,
    Kernels,
    KvTypeName,
    Lark,
    LogitBias,
    MarkDrafts,
    MaxDraft,
    MinP,
    ModelName,
    NoSpec,
    Pre,
    PresencePenalty,
    References,
    Regex,
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
from quoth.cli._prompt import as_tokens, chosen_template, prompt_text
from quoth.cli._report import ended, print_stats, result_data
from quoth.cli._stream import Writer
from quoth.cli._units import as_json
from quoth.errors import OptionsError

if TYPE_CHECKING:
    from quoth.constraints import Constraint
    from quoth.decoder import Decoder
    from quoth.model import Model
    from quoth.options import Sampling, Speculation
    from quoth.results import Result

PROMPT, OUTPUT = "Prompt", "Output"


def generate(
    model: ModelName,
    *,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help="The prompt; - is stdin, as without this and -f in a pipe.",
            rich_help_panel=PROMPT,
        ),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="A file with the prompt.", rich_help_panel=PROMPT)
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="The system message.", rich_help_panel=PROMPT)
    ] = None,
    template: Template = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Complete the text as it is. Else it is a user's message, written with the model's chat template.",
            rich_help_panel=PROMPT,
        ),
    ] = False,
    special: Annotated[
        bool,
        typer.Option(
            "--special", help="With --raw: turn texts of control tokens into those tokens.", rich_help_panel=PROMPT
        ),
    ] = False,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", metavar="N", help="Most tokens.", rich_help_panel=OUTPUT)
    ] = 256,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End before this text. Repeatable.", rich_help_panel=OUTPUT),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print counts and times to stderr.", rich_help_panel=OUTPUT)
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs", metavar="N", help="With --json: log-probabilities, of the N best too.", rich_help_panel=OUTPUT
        ),
    ] = None,
    no_spec: NoSpec = False,
    ref: References = None,
    max_draft: MaxDraft = None,
    drafter: Drafters = None,
    show_drafts: ShowDrafts = False,
    mark_drafts: MarkDrafts = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Run plainly and speculatively in turn, check that the tokens are identical, print both speeds.",
            rich_help_panel=SPECULATION,
        ),
    ] = False,
    pairs: Annotated[
        int | None,
        typer.Option(
            "--pairs",
            metavar="N",
            min=3,
            help="With --compare: pairs of runs. Default: 6, the fewest that allow a verdict.",
            rich_help_panel=SPECULATION,
        ),
    ] = None,
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
    json_schema: JsonSchema = None,
    regex: Regex = None,
    lark: Lark = None,
    after: After = None,
    ctx: Context = None,
    pre: Pre = None,
    threads: Threads = None,
    kernels: Kernels = None,
    kv_type: KvTypeName = None,
) -> None:
    """Generate text after a prompt, and print it as it comes.

    Drafting is on; it changes when text appears, never which.
    """
    if logprobs is not None and not json_:
        raise OptionsError("--logprobs needs --json, the only place where they are printed")
    if (show_drafts or mark_drafts) and (json_ or compare or no_spec):
        raise OptionsError("--show-drafts and --mark-drafts do not go with --json, --compare or --no-spec")
    if compare and (no_spec or logprobs is not None or stats):
        raise OptionsError("--compare does not go with --no-spec, --logprobs or --stats")
    if pairs is not None and not compare:
        raise OptionsError("--pairs needs --compare, the only place where runs are paired")
    check_speculation(no_spec=no_spec, ref=ref, max_draft=max_draft, drafter=drafter)
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
    constraint = chosen_constraint(json_schema, regex, lark, after)
    speculation = Speculation() if max_draft is None else Speculation(max_draft=max_draft)
    text = prompt_text(prompt, file, raw)
    references = [read_text(path, "the reference") for path in ref or ()]
    loaded = load(model, ctx=ctx, threads=threads, kernels=kernels, kv_type=kv_type, pre=pre, drafters=drafter)
    sampling = dataclasses.replace(loaded.default_sampling, **options)
    template = chosen_template(template, loaded.tokenizer)
    tokens = as_tokens(loaded.tokenizer, text, raw=raw, special=special, system=system, template=template)
    if constraint is not None:
        loaded.compile(constraint)
    limits = _Limits(tokens, max_tokens, tuple(stop or ()), logprobs, constraint)
    if compare:
        _compare(loaded, sampling, speculation, references, limits, pairs=pairs, json_=json_)
        return
    decoder = _decoder(loaded, sampling, None if no_spec else speculation, references)
    if json_:
        result = limits.run(decoder)
        data = result_data(result, loaded.tokenizer) | {"sampling": dataclasses.asdict(sampling)}
        print(json.dumps(as_json(data), ensure_ascii=False))
        if stats:
            print_stats(result.stats, ended(result.finish_reason, result.stop, loaded.tokenizer), sampling)
        return
    writer = Writer(loaded.tokenizer, show=show_drafts, mark=mark_drafts)
    _stream(decoder, limits, writer, stats=stats)


@dataclasses.dataclass(frozen=True)
class _Limits:
    """A prompt, and where the generation ends."""

    prompt: list[int]
    max_tokens: int
    stop: tuple[str, ...]
    logprobs: int | None
    constraint: Constraint | None

    def run(self, decoder: Decoder, label: str = "prompt") -> Result:
        """Generate at once."""
        with bar(label) as update:
            return decoder.generate(
                self.prompt,
                max_tokens=self.max_tokens,
                stop=self.stop,
                logprobs=self.logprobs,
                constraint=self.constraint,
                progress=update,
            )


def _stream(decoder: Decoder, limits: _Limits, writer: Writer, *, stats: bool) -> None:
    """Print chunks as they come, then what was asked for beside the text."""
    how = "interrupted"
    interrupted = False
    try:
        with bar("prompt") as update:
            chunks = decoder.stream(
                limits.prompt,
                max_tokens=limits.max_tokens,
                stop=limits.stop,
                constraint=limits.constraint,
                progress=update,
                trace=writer.marks != "none",
            )
            first = next(chunks)
        writer.write(first)
        reason = first.finish_reason
        for chunk in chunks:
            writer.write(chunk)
            reason = chunk.finish_reason
        how = ended(reason, decoder.stop, decoder.model.tokenizer)
    except KeyboardInterrupt:
        interrupted = True
    writer.end()
    if legend := writer.legend():
        print(legend, file=sys.stderr)
    if stats:
        print_stats(decoder.stats, how, decoder.sampling)
    if interrupted:
        raise KeyboardInterrupt


def _compare(
    model: Model,
    sampling: Sampling,
    speculation: Speculation,
    references: Sequence[str],
    limits: _Limits,
    *,
    pairs: int | None,
    json_: bool,
) -> None:
    """Run both ways in turn."""
    import secrets

    from quoth.bench.compare import LEAST_PAIRS
    from quoth.cli._compare import run_comparison

    if sampling.temperature > 0 and sampling.seed is None:
        sampling = dataclasses.replace(sampling, seed=secrets.randbits(64))
        note(f"seed {sampling.seed}")
    same = run_comparison(
        model.tokenizer,
        lambda: _decoder(model, sampling, None, ()),
        lambda: _decoder(model, sampling, speculation, references),
        lambda decoder: decoder.generate(
            limits.prompt, max_tokens=limits.max_tokens, stop=limits.stop, constraint=limits.constraint
        ),
        pairs=pairs or LEAST_PAIRS,
        threads=model.threads,
        json_=json_,
    )
    if not same:
        raise typer.Exit(1)


def _decoder(model: Model, sampling: Sampling, speculation: Speculation | None, references: Sequence[str]) -> Decoder:
    decoder = model.decoder(sampling=sampling, speculation=speculation)
    for reference in references:
        decoder.add_reference(reference)
    return decoder
