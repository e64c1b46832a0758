r"""Splitters: how a text is cut into words before byte pairs are merged, by the name in `tokenizer.ggml.pre`.

In: a name from a GGUF file or the caller. Out: the cuts as regular expressions, to `bpe`. Nothing is compiled here.

S1  A name is either in the table or refused; there is no default and no guess.
S2  Steps apply one after another, each inside the pieces of the step before. A match is a piece and so is each gap
    between matches.
S3  The expressions are the ones the models were trained with, in Oniguruma's dialect, so `(?i:'s)` also takes `'ſ`.
S4  `whole_words` means that a word which is a token stays whole even where merges would not lead to it.

The expressions are facts published with the models (their `tokenizer.json`) and collected in llama.cpp's table of
names. Where that table holds an approximation and the original is known, the original stands here.
Cost: a dictionary of about ninety entries, built at import. Splitting is linear, but for those that count digits from
the right (tiny_aya, superbpe, afmoe): there it grows with the square of the length of a number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from quoth.errors import TokenizerError

__all__ = ["EACH_NUMBER", "SPLITTERS", "Splitter", "splitter"]

EACH_NUMBER: Final = "each number"
"""A step that is no expression: every numeric character becomes a piece of its own."""


@dataclass(frozen=True)
class Splitter:
    """How one family of vocabularies cuts text.

    Attributes:
        steps: Regular expressions, or `EACH_NUMBER`, in the order in which they apply.
        whole_words: A word that is itself a token is taken as that token without merging.
        add_bos: What to assume about the beginning-of-text token where the file says nothing.
        metaspace: The vocabulary spells text in UTF-8 with `▁` for a space and `<0xNN>` for stray bytes, not in the
            byte alphabet.
        looks_far_ahead: Digits are counted from the right end of a number, however long it is.
    """

    steps: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    metaspace: bool = False
    looks_far_ahead: bool = False


_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # it's, don't, we're, I've, I'm, she'll, he'd
_SPACE = r"\s+(?!\S)|\s+"  # a run of space leaves its last character to the word behind it
_CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALLS = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CJK = "[\u4e00-\u9fa5\u3040-\u30ff]+"  # Han, Hiragana, Katakana


def _cl100k(letters: str = r"\p{L}+", numbers: str = r"\p{N}{1,3}", signs: str = r"[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    return rf"{_SHORT}|{_LEAD}{letters}|{numbers}| ?{signs}|\s*[\r\n]+|{_SPACE}"


def _cased(numbers: str, short: str = "", capitals: str = _CAPITALS, smalls: str = _SMALLS) -> str:
    words = rf"{_LEAD}{capitals}*{smalls}+{short}|{_LEAD}{capitals}+{smalls}*{short}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACE}"


_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACE}"
_QWEN2 = _cl100k(numbers=r"\p{N}")
_GPT4O = _cased(r"\p{N}{1,3}", short=f"{_SHORT}?")
_ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_MARKED = rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_MARKED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_SPACE}"
_NO_PUNCTUATION = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = (
    rf"[\p{{Han}}]+|{_LEAD}{_CAPITALS[:-1]}{_NOT_HAN}]*{_SMALLS[:-1]}{_NOT_HAN}]+{_SHORT}?"
    rf"|{_LEAD}{_CAPITALS[:-1]}{_NOT_HAN}]+{_SMALLS[:-1]}{_NOT_HAN}]*{_SHORT}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACE}"
)
_SPACE_BY_POWERS = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
# Escaped, not spelled out: editors normalize some of these characters, and the ranges with them.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_EAST_ASIA = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)

_LLAMA3 = Splitter((_cl100k(),), whole_words=True, add_bos=True)
_PLAIN_GPT2 = Splitter((_GPT2,))
_DIGITS_GPT2 = Splitter((EACH_NUMBER, _GPT2))
_PLAIN_QWEN2 = Splitter((_QWEN2,))
_DEEPSEEK_V3 = Splitter((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))
_PLAIN_GPT4O = Splitter((_GPT4O,))
_BLOOM = Splitter((_NO_PUNCTUATION,))
_BAILING = Splitter(
    (rf"'(?i:[sdmt]|ll|ve|re)|{_LEAD}+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|{_SPACE}",)
)
_TINY_AYA = Splitter((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O), looks_far_ahead=True)

_GROUPS: Final[tuple[tuple[str, Splitter], ...]] = (
    (
        "default",
        Splitter((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3),
    ("dbrx smaug-bpe chatglm-bpe", Splitter((_cl100k(),))),
    ("glm4 glm5", Splitter((_cl100k(),), whole_words=True)),
    ("minicpm5", Splitter((r"\p{N}{1,3}", _cl100k(numbers=r"\p{N}+")), whole_words=True)),
    (
        "jais-2",
        Splitter((_cl100k().removesuffix(_SPACE) + _SPACE_BY_POWERS,)),
    ),
    (
        "deepseek-llm",
        Splitter(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _DEEPSEEK_EAST,
                EACH_NUMBER,
            )
        ),
    ),
    (
        "deepseek-coder",
        Splitter((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_EAST, EACH_NUMBER)),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK_V3),
    ("spark2_5", Splitter((r"\p{N}{1,3}", _CJK, rf"{_MARKED}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACE}", EACH_NUMBER))),
    (
        "youtu",
        Splitter(
            (
                "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
                f"|[\u3105-\u312f]+|{_CJK}",
                _cased(r"\p{N}", short=f"{_SHORT}?"),
            ),
            whole_words=True,
        ),
    ),
    ("falcon", Splitter((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _DIGITS_GPT2),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert roberta-bpe "
        "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
        _PLAIN_GPT2,
    ),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", _PLAIN_QWEN2),
    ("laguna", Splitter((r"[^\n]+|[\n]+", _QWEN2))),
    ("ufakzeka", Splitter((_QWEN2.removeprefix(f"{_SHORT}|"),))),
    ("qwen35", Splitter((_cl100k(r"[\p{L}\p{M}]+", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),))),
    ("seed-coder", Splitter((_cl100k(numbers=r"\p{N}{1}", signs=r"[^\s\p{L}\p{N}\r\n]+"),))),
    ("poro-chat bloom gpt3-finnish", _BLOOM),
    ("viking", Splitter((_NO_PUNCTUATION, EACH_NUMBER))),
    ("tekken", Splitter((_cased(r"\p{N}"),), whole_words=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _PLAIN_GPT4O),
    ("granite-embed-multi-97m", replace(_PLAIN_GPT4O, whole_words=True)),
    ("tiny_aya cohere2moe", _TINY_AYA),
    ("kimi-k2", Splitter((_KIMI,))),
    ("superbpe", Splitter((r"\p{N}+", r"(?=(\d{3})+(?!\d))"), looks_far_ahead=True)),
    ("bailingmoe bailingmoe2 llada-moe", _BAILING),
    ("afmoe", Splitter((r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _EAST_ASIA, _DEEPSEEK3), looks_far_ahead=True)),
    (
        "exaone-moe",
        Splitter(
            (
                rf"{_SHORT}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACE}",
            )
        ),
    ),
    (
        "chameleon",
        Splitter(
            (
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                EACH_NUMBER,
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("gemma4 granite-embed-multi-311m sarvam-moe", Splitter((r"\n+",), metaspace=True)),
)

SPLITTERS: Final[dict[str, Splitter]] = {name: splitter for names, splitter in _GROUPS for name in names.split()}
"""Every known splitter by the name that files use."""


def splitter(name: str | None, source: str = "key tokenizer.ggml.pre") -> Splitter:
    """Find a splitter by the name that a file or the caller gives.

    Args:
        name: A value of `tokenizer.ggml.pre`; None where the file has no such key.
        source: Where the name stands, for the message.

    Returns:
        The splitter of that name.

    Raises:
        TokenizerError: There is no such name, or no name at all. The message lists the known names.
    """
    found = SPLITTERS.get(name) if isinstance(name, str) else None
    if found is not None:
        return found
    problem = (
        "the file does not name its splitter (key tokenizer.ggml.pre)"
        if name is None
        else f"the splitter `{str(name)[:80]}` ({source}) is unknown"
    )
    raise TokenizerError(f"{problem}; pre= takes one of these instead: {', '.join(sorted(SPLITTERS))}")
