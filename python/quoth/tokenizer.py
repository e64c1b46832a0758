"""The tokenizer: text to token ids and back, from a GGUF file's metadata alone.

In: metadata, text, messages. Out: token ids to the decoder, text to the user. The core has its own copy of each
token's bytes, for stops and streaming, by the same rules.

K1  Equal metadata and text give equal ids: those of the model's own HF tokenizer without its normalizer, and of
    llama.cpp.
K2  For a vocabulary in the byte alphabet `decode(encode(text)) == text` for every text; where a byte has no token,
    `encode` refuses the text, by name, unless told to leave things out.
K3  Control tokens are made from text only where the caller asks; user-defined tokens always, as both references do.
K4  Nothing is guessed: an unknown vocabulary or splitter is refused by name when the tokenizer is made.
K5  What encoding needs is built on the first `encode`, once, under a lock; decoding never needs it. One tokenizer
    serves many threads.

GGUF says nothing about normalizers, so text is not normalized (Qwen's own tokenizer composes to NFC first), and no
space is cleaned up when decoding: either would break K2.
Cost: see `quoth.vocabulary.bpe` and `.scores`; making a tokenizer reads the metadata and builds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, overload

from quoth._arguments import shown
from quoth.errors import TokenizerError
from quoth.vocabulary.special import SpecialFinder
from quoth.vocabulary.splitters import Splitter, splitter
from quoth.vocabulary.stream import TextStream
from quoth.vocabulary.tokens import Kind, TokenTable

if TYPE_CHECKING:
    from quoth.template import ChatTemplate

__all__ = ["TextStream", "Tokenizer"]

_MODELS: Final = ("gemma4", "gpt2", "llama")
_TEMPLATE: Final = "tokenizer.chat_template"
_LIST: Final = "nothing: the ids of one conversation are given as a list"
_TRANSFORMERS: Final = {
    **dict.fromkeys(("padding", "truncation", "max_length", "return_tensors", "return_dict"), _LIST),
    "return_assistant_tokens_mask": "nothing: the ids alone are given",
    "tokenizer_kwargs": "the arguments of `encode` to be given to it",
    "sanitize_control_tokens": "`escape_content=True` in its place",
}
"""Arguments that transformers knows and this package does not take, and what is expected in their place."""


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def unspelled(self, text: str) -> set[str]: ...


class Tokenizer:
    """Turns text into the token ids of one vocabulary, and back. Made by `from_metadata`.

    Attributes:
        model: The kind of vocabulary, as `tokenizer.ggml.model` says it: `gpt2`, `llama` or `gemma4`.
        pre: Name of the splitter in use; None for kinds that have none.
        add_bos: Whether prompts of this model begin with the beginning-of-text token.
        add_eos: Whether prompts of this model end with the end-of-text token.
        add_space_prefix: Whether a text gets a space in front before it is encoded.
        chat_templates: Sources of the file's chat templates by name; the unnamed one is `default`.
    """

    def __init__(self, metadata: Mapping[str, Any], pre: str | None, token_bytes: Sequence[bytes] | None) -> None:
        """Use `from_metadata`."""
        self._metadata = metadata
        self.model: Final = _model(_text(metadata, "tokenizer.ggml.model"))
        self._cuts: Splitter | None = None
        self.pre: Final = (
            (_text(metadata, "tokenizer.ggml.pre") if pre is None else pre) if self.model == "gpt2" else None
        )
        if self.model == "gpt2":
            self._cuts = splitter(self.pre) if pre is None else splitter(pre, "argument pre")
        elif pre is not None:
            raise TokenizerError(f"expected no pre= for a vocabulary of the kind `{self.model}`, found {pre!r}")
        elif self.model == "gemma4":
            self._cuts = splitter("gemma4")
        self._table = TokenTable(metadata, byte_alphabet=self._cuts is not None and not self._cuts.metaspace)
        if self._cuts is not None and not _is_list(metadata.get("tokenizer.ggml.merges")):
            raise TokenizerError("expected a list of merges in tokenizer.ggml.merges, found none")
        if self._cuts is None and self._table.scores is None:
            raise TokenizerError("expected a score for each token in tokenizer.ggml.scores, found none")
        if token_bytes is not None and len(token_bytes) != self.n_vocab:
            raise TokenizerError(f"expected the bytes of {self.n_vocab} tokens, found {len(token_bytes)}")
        self._token_bytes = token_bytes
        by_score = self.model == "llama"
        wants_bos = by_score or self.model == "gemma4" or (self._cuts is not None and self._cuts.add_bos)
        # Files of this kind that deny the token are wrong: without it the models write nonsense.
        self.add_bos: Final = self.model == "gemma4" or _flag(metadata, "tokenizer.ggml.add_bos_token", wants_bos)
        self.add_eos: Final = _flag(metadata, "tokenizer.ggml.add_eos_token", False)
        self.add_space_prefix: Final = by_score and _flag(metadata, "tokenizer.ggml.add_space_prefix", True)
        self.chat_templates: Final = _chat_templates(metadata)
        self._lock = Lock()
        self._encoder: _Encoder | None = None

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], *, pre: str | None = None, token_bytes: Sequence[bytes] | None = None
    ) -> Tokenizer:
        """Make a tokenizer from the metadata of a GGUF file.

        Args:
            metadata: Keys as in the file, `tokenizer.ggml.*` and `tokenizer.chat_template*`, with lists for arrays.
                Kept, never changed.
            pre: Name of a splitter, in place of the one that the file names. For files that name none or a wrong one.
            token_bytes: The bytes of each token by id, if the caller has them already. Must equal what the file says.

        Returns:
            A tokenizer. Nothing is built yet.

        Raises:
            TokenizerError: The vocabulary or its splitter is unknown or missing (the message lists the known ones),
                a key is of a wrong type, an array is missing or too short, or `pre` is given for a kind of vocabulary
                that has no splitter.
        """
        return cls(metadata, pre, token_bytes)

    # ---- what the vocabulary holds

    @property
    def n_vocab(self) -> int:
        """Number of tokens; ids are 0 to `n_vocab` - 1."""
        return self._table.n_vocab

    def __len__(self) -> int:
        return self._table.n_vocab

    def __repr__(self) -> str:
        cut = f", pre={self.pre!r}" if self.pre else ""
        return f"<Tokenizer model={self.model!r}{cut}, n_vocab={self.n_vocab}>"

    @property
    def bos_id(self) -> int | None:
        """Id of the beginning-of-text token, if the file names one."""
        return self._table.role_ids.get("bos_token", 1 if self.model == "llama" and self.n_vocab > 1 else None)

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-text token, if the file names one."""
        return self._table.role_ids.get("eos_token", 2 if self.model == "llama" and self.n_vocab > 2 else None)

    @property
    def eog_ids(self) -> frozenset[int]:
        """Ids that end a generation: end of text, of a turn, of a message, by the file's keys and well-known names."""
        eos = self.eos_id
        return self._table.eog_ids if eos is None else self._table.eog_ids | {eos}

    @property
    def suppressed_ids(self) -> frozenset[int]:
        """Ids that the file says are never to be chosen; no decoder chooses them."""
        return self._table.suppressed_ids

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts of the named special tokens, as chat templates see them: `bos_token`, `eos_token` and so on."""
        ids = {**self._table.role_ids, "bos_token": self.bos_id, "eos_token": self.eos_id}
        return MappingProxyType({role: self._table.texts[id] for role, id in ids.items() if id is not None})

    def token_id(self, text: str) -> int | None:
        """Find a token by its text as the file spells it.

        Args:
            text: For example `"<|im_end|>"` or `"Ġthe"`.

        Returns:
            Its id, or None if there is no such token.
        """
        return self._table.ids.get(text)

    def token_text(self, id: int) -> str:
        """Give a token's text as the file spells it.

        Args:
            id: A token id.

        Returns:
            The text, in the vocabulary's own spelling; `token_bytes` gives what it stands for.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        self._check(id)
        return self._table.texts[id]

    def token_bytes(self, id: int) -> bytes:
        """Give the bytes that a token stands for.

        Args:
            id: A token id.

        Returns:
            The bytes; a token may begin or end inside a character. Control tokens give their text.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        if id is True or id is False:
            self._check(id)
        if self._token_bytes is None:
            return self._table.bytes_of(id)
        self._check(id)
        return self._token_bytes[id]

    def is_control(self, id: int) -> bool:
        """Say whether a token is a mark that does not show in text: a control token or the unknown token.

        Args:
            id: A token id.

        Returns:
            True for control tokens and the unknown token.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        self._check(id)
        return self._table.special.get(id) in (Kind.CONTROL, Kind.UNKNOWN)

    # ---- text to tokens

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        add_bos: bool | None = False,
        add_eos: bool | None = False,
        add_space_prefix: bool | None = None,
        errors: Literal["strict", "ignore"] = "strict",
    ) -> list[int]:
        """Encode text.

        Args:
            text: Any text. The empty text gives no tokens of its own.
            special: Turn the texts of control tokens into those tokens. Wanted for text that a template wrote, never
                for text from a user. User-defined tokens are found in either case.
            add_bos: Put the beginning-of-text token in front, unless the text already begins with it; None does as
                the file says.
            add_eos: Put the end-of-text token behind, unless the text already ends with it; None does as the file says.
            add_space_prefix: Put a space in front of text at the beginning and behind special tokens (vocabularies
                with merges: only at the beginning, and only if there is none). None does as the file says; False
                suits text that goes on from other text.
            errors: What to do with a character that the vocabulary cannot spell: `"strict"` refuses the text,
                `"ignore"` leaves out the bytes that have no token, as other engines do.

        Returns:
            Token ids.

        Raises:
            TokenizerError: The text holds a lone surrogate or, with `errors="strict"`, a character that cannot be
                spelled; the vocabulary is damaged; or a token to be added is not named by the file.
        """
        _check_text(text)
        prefix = self.add_space_prefix if add_space_prefix is None else add_space_prefix
        encoder = self._built()
        ids: list[int] = []
        by_score = self.model == "llama"
        behind_special = True
        for part in (self._with_control if special else self._user_defined).split(text):
            if isinstance(part, int):
                ids.append(part)
                behind_special = True
                continue
            if errors == "strict" and (lost := encoder.unspelled(part)):
                at = min(map(text.index, lost))
                raise TokenizerError(f"the vocabulary has no token for U+{ord(text[at]):04X}, found at character {at}")
            if prefix and behind_special and (by_score or not (ids or part.startswith(" "))):
                ids += encoder.encode(" " + part)
            else:
                ids += encoder.encode(part)
            behind_special = False
        if self.add_bos if add_bos is None else add_bos:
            bos = self._named("bos", self.bos_id)
            if ids[:1] != [bos]:
                ids.insert(0, bos)
        if self.add_eos if add_eos is None else add_eos:
            eos = self._named("eos", self.eos_id)
            if ids[-1:] != [eos]:
                ids.append(eos)
        return ids

    def _named(self, name: str, id: int | None) -> int:
        if id is None:
            raise TokenizerError(f"expected tokenizer.ggml.{name}_token_id in the file, found none")
        return id

    def _built(self) -> _Encoder:
        if self._encoder is None:
            with self._lock:
                if self._encoder is None:
                    self._encoder = self._build()
        return self._encoder

    def _build(self) -> _Encoder:
        if self._cuts is None:
            from quoth.vocabulary.scores import ScoreEncoder  # noqa: PLC0415 - only when needed

            return ScoreEncoder(self._table)
        from quoth.vocabulary.bpe import MergeEncoder  # noqa: PLC0415 - only when needed

        return MergeEncoder(self._table, self._metadata["tokenizer.ggml.merges"], self._cuts)

    @cached_property
    def _with_control(self) -> SpecialFinder:
        return self._finder((Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED))

    @cached_property
    def _user_defined(self) -> SpecialFinder:
        return self._finder((Kind.USER_DEFINED,))

    def _finder(self, kinds: Sequence[Kind]) -> SpecialFinder:
        texts = self._table.texts
        found = {id for id, kind in self._table.special.items() if kind in kinds}
        swallowing: set[int] = set()
        name = str(self._metadata.get("general.name")).lower()
        if "phi-3" in name or "phi3" in name:
            # These vocabularies drop white space behind their marks, which the format cannot say.
            swallowing = {id for id in found if texts[id] not in ("<unk>", "<s>", "<|endoftext|>")}
        return SpecialFinder(((texts[id], id) for id in found), swallowing)

    # ---- tokens to text

    def decode(
        self,
        tokens: Iterable[int],
        *,
        skip_special: bool = True,
        errors: str = "replace",
        strip_prefix: bool | None = None,
    ) -> str:
        """Decode tokens.

        Args:
            tokens: Token ids.
            skip_special: Leave out control tokens; otherwise their text shows.
            errors: What to do with bytes that are not UTF-8: `"replace"`, `"strict"` or `"ignore"`.
            strip_prefix: Drop the space that `encode` put in front; None does so where the file asks for that space.
                False suits tokens that go on from other tokens.

        Returns:
            The text.

        Raises:
            TokenizerError: A token is outside the vocabulary, or these are no token ids.
            UnicodeDecodeError: The bytes are not UTF-8, and `errors` is `"strict"`.
        """
        if isinstance(tokens, str | bytes) or not hasattr(tokens, "__iter__"):
            raise TokenizerError(f"expected token ids, found {type(tokens).__name__}")
        shown = self._shown(skip_special)
        data = b"".join(map(shown, tokens))
        if (self.add_space_prefix if strip_prefix is None else strip_prefix) and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors)

    def stream(self, *, skip_special: bool = True, errors: str = "replace") -> TextStream:
        """Open a stream that turns tokens into text as they arrive, whole characters only.

        Args:
            skip_special: Leave out control tokens; otherwise their text shows.
            errors: What to do with bytes that are not UTF-8, as for `decode`.

        Returns:
            A stream. Its pieces, joined, are `decode(tokens, strip_prefix=False)`.
        """
        return TextStream(self._shown(skip_special), errors)

    def _shown(self, skip_special: bool) -> Callable[[int], bytes]:
        if not skip_special:
            return self.token_bytes
        hidden = self._hidden

        def shown(id: int) -> bytes:
            try:
                return b"" if id in hidden and id is not True and id is not False else self.token_bytes(id)
            except TypeError:  # what cannot be looked up
                self._check(id)
                raise

        return shown

    @cached_property
    def _hidden(self) -> frozenset[int]:
        return frozenset(id for id, kind in self._table.special.items() if kind is not Kind.USER_DEFINED)

    def _check(self, id: int) -> None:
        self._table.check(id)

    # ---- chat

    def chat_template(self, name_or_source: str | None = None, *, tools: bool = False) -> ChatTemplate:
        """Choose a chat template.

        Args:
            name_or_source: Name of one of `chat_templates`, of a common format (`chatml`, `llama3`, …; see
                `quoth.templates`), or the source of another template. None takes `tool_use` if `tools` is true and
                the file has it, else `default`.
            tools: Whether the conversation has tools.

        Returns:
            The template, kept for the next call.

        Raises:
            TokenizerError: The file has no template that fits, and none was given.
        """
        from quoth.templates import NAMED  # noqa: PLC0415 - only when needed

        source = name_or_source
        if source is not None and not isinstance(source, str):
            raise TokenizerError(f"expected a chat template as text, found {type(source).__name__}")
        if name_or_source is None:
            name = "tool_use" if tools and "tool_use" in self.chat_templates else "default"
            source = self.chat_templates.get(name)
        else:
            source = self.chat_templates.get(name_or_source, NAMED.get(name_or_source, name_or_source))
        if source is None:
            names = ", ".join(sorted(self.chat_templates)) or "none at all"
            raise TokenizerError(
                f"expected a chat template {_TEMPLATE} in the file, found {names}; "
                f"one may be chosen by name: {', '.join(sorted(NAMED))}"
            )
        from quoth.template import ChatTemplate  # noqa: PLC0415 - only when needed

        template = self._templates.get(source)
        if template is None:
            template = self._templates[source] = ChatTemplate(source, self.special_tokens)
        return template

    @cached_property
    def _templates(self) -> dict[str, ChatTemplate]:
        return {}

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool | None = None,
        tokenize: Literal[True] = True,
        *,
        continue_final_message: bool | str = False,
        add_special_tokens: bool = True,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        escape_content: bool = False,
        **kwargs: Any,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool | None = None,
        *,
        tokenize: Literal[False],
        continue_final_message: bool | str = False,
        add_special_tokens: bool = True,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        escape_content: bool = False,
        **kwargs: Any,
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool | None = None,
        tokenize: bool = True,
        *,
        continue_final_message: bool | str = False,
        add_special_tokens: bool = True,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        escape_content: bool = False,
        **kwargs: Any,
    ) -> list[int] | str:
        """Write a conversation as the model expects it.

        Args:
            messages: The conversation, oldest first; each a mapping, a dataclass or a pydantic model with `role` and,
                mostly, `content`: text, or a list of parts for templates that take them. At least one.
            add_generation_prompt: End with the mark that opens the model's turn, if the template knows one. None: yes,
                unless the last message is continued.
            tokenize: Give token ids, the template's marks parsed; otherwise text.
            continue_final_message: End inside the last message, so that the model goes on with it: True for its
                `content`, or the name of another entry.
            add_special_tokens: Begin token ids with the beginning-of-text token where the file asks for it and the
                template has not written it.
            chat_template: Name of one of the file's templates, or a template's source.
            tools: JSON schemas of functions that the model may call.
            documents: Documents for templates that take them.
            escape_content: Keep control tokens that messages, tools or documents spell out as plain text, so that
                they cannot end a turn or forge one. Needs `tokenize`.
            **kwargs: Passed to the template, such as `enable_thinking`. Arguments of transformers that ask for another
                form than a list of ids are refused by name.

        Returns:
            Token ids, or text with `tokenize=False`.

        Raises:
            TokenizerError: There is no template, a message is malformed, or the template fails; the message names
                the template's line.
        """
        for name, instead in _TRANSFORMERS.items():
            if (value := kwargs.pop(name, None)) is not None and value is not False:
                raise TokenizerError(f"{name} is {shown(value)}, expected {instead}")
        template = self.chat_template(chat_template, tools=tools is not None)
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        elif add_generation_prompt and continue_final_message:
            raise TokenizerError("add_generation_prompt and continue_final_message exclude each other, found both")
        if escape_content and not tokenize:
            raise TokenizerError("escape_content=True needs tokenize=True: text cannot show which marks are escaped")
        mark, cut = None, None
        if escape_content:
            from quoth.template import escaped  # noqa: PLC0415 - only when needed

            mark, messages, tools, documents = escaped(self._control_texts, messages, tools, documents)
        if continue_final_message:
            from quoth.template import open_ended  # noqa: PLC0415 - only when needed

            field = continue_final_message if isinstance(continue_final_message, str) else "content"
            messages, cut = open_ended(messages, field)
        text = template.render(messages, add_generation_prompt, tools=tools, documents=documents, **kwargs)
        text = text if cut is None else cut(text)
        if not tokenize:
            return text
        ids = self.encode(text, special=True) if mark is None else self._encode_marked(text, mark)
        return self._begun(ids) if add_special_tokens else ids

    def _begun(self, ids: list[int]) -> list[int]:
        """Chat text with the beginning-of-text token that the file asks for: one, whether or not the template wrote
        it."""
        wanted = self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]
        return [self.bos_id, *ids] if wanted else ids  # type: ignore[list-item]

    @cached_property
    def _control_texts(self) -> tuple[str, ...]:
        return tuple(self._table.texts[id] for id in self._hidden if self._table.texts[id])

    def _encode_marked(self, text: str, mark: str, *, continues: bool = False) -> list[int]:
        """Encode what a template wrote around content that `escaped` treated; `continues` says that it goes on from
        tokens, so that nothing is put in front."""
        _check_text(text)
        ids: list[int] = []
        for at, part in enumerate(self._with_control.split(text)):
            if isinstance(part, int):
                ids.append(part)
            else:
                prefix = False if continues and at == 0 else None
                ids += self.encode(part.replace(mark, ""), add_space_prefix=prefix)
        return ids


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise TokenizerError(f"expected text, found {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X}"
        raise TokenizerError(
            f"expected Unicode text, found the lone surrogate {found} at character {error.start}"
        ) from None


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise TokenizerError(f"expected text in {key}, found {type(value).__name__}")


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(key)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise TokenizerError(f"expected a flag in {key}, found {type(value).__name__}")


def _chat_templates(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """The templates by name.

    Raises:
        TokenizerError: One is not text.
    """
    keys = {key.removeprefix(_TEMPLATE + "."): key for key in metadata if key.startswith(_TEMPLATE + ".")}
    if _TEMPLATE in metadata:
        keys["default"] = _TEMPLATE
    sources = {name: _text(metadata, key) for name, key in keys.items()}
    return MappingProxyType({name: source for name, source in sources.items() if source is not None})


def _model(name: str | None) -> str:
    if name is not None and name in _MODELS:
        return name
    problem = "the file names no vocabulary" if name is None else f"the vocabulary `{name[:80]}` is unknown"
    raise TokenizerError(f"{problem} (key tokenizer.ggml.model); known: {', '.join(_MODELS)}")
