"""A model: what loads a file and makes sessions, decoders and conversations.

In: a file or the name of a model. Out: the rest of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from quoth.constraints import Constraint, as_constraint
from quoth.conversation import Conversation
from quoth.decoder import Decoder
from quoth.engine import generate_many
from quoth.errors import OptionsError
from quoth.loaded import LoadedModel, Metadata
from quoth.options import DraftSource, Sampling, Speculation
from quoth.request import EngineOptions, takes
from quoth.results import Result
from quoth.session import Session
from quoth.stats import Stats

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Metadata", "Model", "Session"]


class Model(LoadedModel):
    """A GGUF model, ready to run. Safe to use from several threads; each session or decoder belongs to one at a time.

    Args:
        path: A GGUF file (of a split model, any part), or a model name as `quoth pull` takes it: `smollm2`,
            `hf:org/repo/file.gguf`.
        n_ctx: Longest context of a session, in tokens. None: what the model was trained for, at most 4096. More than it
            was trained for is warned of, in the log `quoth`.
        threads: Threads of a forward. None: `QUOTH_THREADS`, or the physical cores that the process may use.
        kv_type: How keys and values are cached: `f16`, `q8_0` at 53 % of the memory, or `f32`, which rounds nothing, at
            twice.
        kernels: An instruction set: `scalar`, `avx2`, `avx512`, `neon`. None: `QUOTH_KERNELS`, or the best that this
            CPU has. All give the same bits. `reference` multiplies dequantized weights in plain code, for tests.
        pre: Name of the splitter of a byte-level vocabulary, for files that name none or an unknown one.
        drafter: A file of a drafter with weights of its own that was made for this model, such as an EAGLE-3 head, or
            several. They share the model's embedding and output head where they have none. Decoders draft with them
            beside quoting, where that pays; no text changes. See `docs/drafters.md`.
        progress: Called while loading with bytes done and bytes in all, of each file. An exception from it stops the
            loading.

    Attributes:
        n_ctx: Longest context of a session, in tokens.
        n_vocab: Tokens of the vocabulary, and width of a row of logits.
        metadata: Keys and values of the file.
        kv_type: How new sessions cache keys and values.
        drafters: The attached drafters, by name.
        default_sampling: What the file asks for (`general.sampling.*`), greedy where it asks for nothing. Decoders and
            conversations without options of their own sample so.

    Raises:
        FileNotFoundError, OSError: The file cannot be read.
        ModelFileError: The file is not a model that is supported, or a drafter does not fit it; the message says why.
        OptionsError: An argument is out of range.
        TokenizerError: `pre` is unknown, or the vocabulary has no splitter.
    """

    def session(self) -> Session:
        """A new empty session: rows of tokens in, rows of logits out."""
        return Session(self)

    def decoder(
        self, *, sampling: Sampling | None = None, speculation: Speculation | DraftSource | bool | None = True
    ) -> Decoder:
        """A new decoder: prompts to text.

        Args:
            sampling: How tokens are chosen. None: as `default_sampling`.
            speculation: How they are guessed before: options, a draft source of your own, True for the defaults, or
                None for plain decoding. It never changes which tokens are generated.

        Raises:
            OptionsError: An option is out of range.
            TokenizerError: The file's vocabulary is damaged or of an unknown kind.
        """
        return Decoder(self, sampling=sampling, speculation=speculation)

    def compile(self, constraint: Constraint) -> None:
        """Compile a constraint now. A request does so, too, the first time; here it costs no request time, and may run
        on any thread, such as one beside an event loop.

        Raises:
            OptionsError: The grammar or schema is not sound, asks for what is not supported, or cannot be met. The
                message names the place in the schema.
        """
        found = as_constraint(constraint)
        if found is None:
            raise OptionsError("constraint is None, expected a constraint")
        self._model.compile(found)

    @takes(EngineOptions)
    def generate_many(
        self,
        prompts: Iterable[str | Sequence[int] | Mapping[str, Any]],
        *,
        max_sequences: int = 8,
        progress: bool | Callable[[int, Stats], object] = False,
        return_exceptions: bool = False,
        speculation: Speculation | bool | None = True,
        **options: Unpack[EngineOptions],
    ) -> Iterator[tuple[int, Result]]:
        """Generate after many prompts, several at a time in one forward; results come in the order of their completion.

        Each result is the one that `Decoder.generate` gives for that prompt alone. A prompt that begins as an earlier
        one, with the same system message for instance, computes only the rest.

        Args:
            prompts: Texts, token ids, or mappings with `prompt` and options of its own, which count before those below.
                They are taken as they are needed, so they may come from a generator.
            max_sequences: Prompts that run at once, 1 to 512.
            progress: True: say on standard error how far it is. Or a function, called with the number of results so far
                and the statistics of each.
            return_exceptions: Whether the exception of a prompt that failed takes the place of its result. Otherwise it
                is raised, and the prompts under way are cancelled.
            speculation: How tokens are drafted; True for the defaults, None for plain decoding.
            **options: See below.

        Yields:
            The number of the prompt, from 0, and its result.
        """
        return generate_many(
            self,
            prompts,
            max_sequences=max_sequences,
            progress=progress,
            return_exceptions=return_exceptions,
            speculation=speculation,
            options=options,
        )

    def conversation(
        self,
        *,
        system: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling | None = None,
        speculation: Speculation | DraftSource | bool | None = True,
        max_tokens: int = 1024,
        stop: str | int | Sequence[str | int] = (),
        overflow: Literal["error", "trim"] = "error",
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str = "auto",
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Conversation:
        """A new conversation: a user's messages to answers.

        Args:
            system: The system message.
            messages: What was said before, oldest first, each with `role` and `content`; behind the system message.
            sampling: How tokens are chosen. None: as `default_sampling`. With a seed, each turn uses it, with draws
                that begin anew; without, each turn draws anew.
            speculation: As for `decoder`. It never changes an answer.
            max_tokens: Most tokens of an answer.
            stop: Texts and token ids that end an answer, beside the model's own ends of turn.
            overflow: What happens when a turn does not fit the context. `error`: `ContextFullError`. `trim`: the oldest
                turns are dropped, never the system message, until the turn and room for its answer fit: `max_tokens`,
                at most a quarter of the context. An answer that meets the end of the context ends there in both cases.
            chat_template: Name of one of the file's templates, or a template's source. None: the file's own.
            tools: JSON schemas of functions that the model may call.
            tool_choice: `auto`; or `required`, or the name of a tool: then each answer is a call, which
                `result.tool_calls` has.
            documents: Documents for templates that take them.
            template_kwargs: More variables for the template, such as `enable_thinking`.

        Raises:
            OptionsError: An option is out of range.
            TokenizerError: The file has no chat template and none was given, or its vocabulary is damaged or of an
                unknown kind.
        """
        return Conversation(
            self,
            system=system,
            messages=messages,
            sampling=sampling,
            speculation=speculation,
            max_tokens=max_tokens,
            stop=stop,
            overflow=overflow,
            chat_template=chat_template,
            tools=tools,
            tool_choice=tool_choice,
            documents=documents,
            template_kwargs=template_kwargs,
        )
