"""The tokenizer: text to token ids and back, from a GGUF file's metadata alone.

In: metadata, text, messages. Out: token ids to the decoder, text to the user. The core knows the vocabulary; this is
its face in Python, and what chat templates need.

K1  Equal metadata and text give equal ids: those of the model's own HF tokenizer without its normalizer, and of
    llama.cpp.
K2  For a vocabulary in the byte alphabet `decode(encode(text)) == text` for every text; where a byte has no token,
    `encode` refuses the text, by name, unless told to leave things out.
K3  Control tokens are made from text only where the caller asks; user-defined tokens always, as both references do.
K4  Nothing is guessed: an unknown vocabulary or splitter is refused by name when the tokenizer is made.
K5  What encoding needs is built on the first `encode`, once; decoding never needs it. One tokenizer serves many
    threads.

GGUF says nothing about normalizers, so text is not normalized (Qwen's own tokenizer composes to NFC first), and no
space is cleaned up when decoding: either would break K2.
Cost: see the crate `vocab`; making a tokenizer reads the metadata and builds nothing.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from quoth import _core
from quoth._arguments import shown
from quoth._metadata import Metadata
from quoth.errors import TokenizerError

if TYPE_CHECKING:
    from quoth.template import ChatTemplate

__all__ = ["TextStream", "Tokenizer"]

_TEMPLATE: Final = "tokenizer.chat_template"
_LIST: Final = "nothing: the ids of one conversation are given as a list"
_TRANSFORMERS: Final = {
    **dict.fromkeys(("padding", "truncation", "max_length", "return_tensors", "return_dict"), _LIST),
    "return_assistant_tokens_mask": "nothing: the ids alone are given",
    "tokenizer_kwargs": "the arguments of `encode` to be given to it",
    "sanitize_control_tokens": "`escape_content=True` in its place",
}
"""Arguments that transformers knows and this package does not take, and what is expected in their place."""


class TextStream:
    """Turns tokens into text as they arrive.

    Args:
        bytes_of: Gives the bytes of token ids, joined; without those that do not show.
        errors: What to do with bytes that are not UTF-8: `"replace"`, `"strict"` or `"ignore"`, as `bytes.decode`
            takes them.
    """

    def __init__(self, bytes_of: Callable[[Iterable[int]], bytes], errors: str = "replace") -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def push(self, tokens: int | Iterable[int]) -> str:
        """Take the next tokens.

        Args:
            tokens: One token id or several.

        Returns:
            The characters that are now whole; may be empty.

        Raises:
            TokenizerError: A token is outside the vocabulary.
            UnicodeDecodeError: The bytes are not UTF-8, and `errors` is `"strict"`.
        """
        if isinstance(tokens, Iterable):
            return self._decoder.decode(self._bytes_of(tokens))
        return self._decoder.decode(self._bytes_of([tokens]))

    def finish(self) -> str:
        """End the stream.

        Returns:
            What was held back, as replacement characters; empty if the last character was whole. The stream can be
            used anew.

        Raises:
            UnicodeDecodeError: Bytes were held back, and `errors` is `"strict"`.
        """
        return self._decoder.decode(b"", final=True)


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

    def __init__(self, metadata: Mapping[str, Any], pre: str | None) -> None:
        """Use `from_metadata`."""
        self._core = _core.Tokenizer(metadata.file if isinstance(metadata, Metadata) else metadata, pre)
        self.model: Final = self._core.model
        self.pre: Final = self._core.pre
        self.add_bos: Final = self._core.add_bos
        self.add_eos: Final = self._core.add_eos
        self.add_space_prefix: Final = self._core.add_space_prefix
        self.chat_templates: Final = _chat_templates(metadata)

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], *, pre: str | None = None, token_bytes: Sequence[bytes] | None = None
    ) -> Tokenizer:
        """Make a tokenizer from the metadata of a GGUF file.

        Args:
            metadata: Keys as in the file, `tokenizer.ggml.*` and `tokenizer.chat_template*`, with lists for arrays.
                Kept, never changed.
            pre: Name of a splitter, in place of the one that the file names. For files that name none or a wrong one.
            token_bytes: The bytes of each token by id, to be compared with what the file says.

        Returns:
            A tokenizer. Nothing is built yet.

        Raises:
            TokenizerError: The vocabulary or its splitter is unknown or missing (the message lists the known ones),
                a key is of a wrong type, an array is missing or too short, or `pre` is given for a kind of vocabulary
                that has no splitter.
        """
        made = cls(metadata, pre)
        if token_bytes is not None and len(token_bytes) != made.n_vocab:
            raise TokenizerError(f"expected the bytes of {made.n_vocab} tokens, found {len(token_bytes)}")
        for id, given in enumerate(token_bytes or ()):
            if given != (own := made.token_bytes(id)):
                raise TokenizerError(f"expected {shown(own)} as the bytes of token {id}, found {shown(given)}")
        return made

    # ---- what the vocabulary holds

    @property
    def n_vocab(self) -> int:
        """Number of tokens; ids are 0 to `n_vocab` - 1."""
        return self._core.n_vocab

    def __len__(self) -> int:
        return self._core.n_vocab

    def __repr__(self) -> str:
        cut = f", pre={self.pre!r}" if self.pre else ""
        return f"<Tokenizer model={self.model!r}{cut}, n_vocab={self.n_vocab}>"

    @cached_property
    def _roles(self) -> dict[str, int]:
        return dict(self._core.roles)

    @property
    def bos_id(self) -> int | None:
        """Id of the beginning-of-text token, if the file names one."""
        return self._roles.get("bos_token")

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-text token, if the file names one."""
        return self._roles.get("eos_token")

    @property
    def eog_ids(self) -> frozenset[int]:
        """Ids that end a generation: end of text, of a turn, of a message, by the file's keys and well-known names."""
        return frozenset(self._core.eog_ids)

    @property
    def suppressed_ids(self) -> frozenset[int]:
        """Ids that the file says are never to be chosen; no decoder chooses them."""
        return frozenset(self._core.suppressed_ids)

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts of the named special tokens, as chat templates see them: `bos_token`, `eos_token` and so on."""
        return MappingProxyType({role: self._core.token_text(id) for role, id in self._roles.items()})

    def token_id(self, text: str) -> int | None:
        """Find a token by its text as the file spells it.

        Args:
            text: For example `"<|im_end|>"` or `"Ġthe"`.

        Returns:
            Its id, or None if there is no such token.
        """
        return self._core.token_id(text)

    def token_text(self, id: int) -> str:
        """Give a token's text as the file spells it.

        Args:
            id: A token id.

        Returns:
            The text, in the vocabulary's own spelling; `token_bytes` gives what it stands for.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        return self._core.token_text(id)

    def token_bytes(self, id: int) -> bytes:
        """Give the bytes that a token stands for.

        Args:
            id: A token id.

        Returns:
            The bytes; a token may begin or end inside a character. Control tokens give their text.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        return self._core.token_bytes(id)

    def is_control(self, id: int) -> bool:
        """Say whether a token is a mark that does not show in text: a control token or the unknown token.

        Args:
            id: A token id.

        Returns:
            True for control tokens and the unknown token.

        Raises:
            TokenizerError: The id is outside the vocabulary.
        """
        return self._core.is_control(id)

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
        return self._core.encode(text, special, add_bos, add_eos, add_space_prefix, errors == "ignore")

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
        data = self._shown(tokens, skip_special)
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
        return TextStream(lambda tokens: self._shown(tokens, skip_special), errors)

    def _shown(self, tokens: Iterable[int], skip_special: bool = True) -> bytes:
        return self._core.decode(tokens, not skip_special)

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
        return tuple(self._core.control_texts)

    def _encode_marked(self, text: str, mark: str, *, continues: bool = False) -> list[int]:
        """Encode what a template wrote around content that `escaped` treated; `continues` says that it goes on from
        tokens, so that nothing is put in front."""
        _check_text(text)
        ids: list[int] = []
        for at, part in enumerate(self._core.split(text)):
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


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise TokenizerError(f"expected text in {key}, found {type(value).__name__}")


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
