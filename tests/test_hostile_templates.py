"""A chat template is a program by a stranger: it reaches nothing, ends soon, and makes little, or fails by name."""

# ruff: noqa: E501, SIM905  templates are one line each, and lists of words are easier to read as words
from __future__ import annotations

import json
import random
import re
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quoth import _sandbox
from quoth.template import ChatTemplate, TemplateError

CHAT = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi " * 30}]
MOST_BYTES = 100_000_000


@pytest.fixture(autouse=True)
def half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less time than users' templates have, so that many bombs can be tried."""
    monkeypatch.setattr(_sandbox, "SECONDS", 0.5)


def rendered(source: str, messages: list[dict[str, Any]] | None = None) -> str | TemplateError:
    """A rendering or its error."""
    try:
        return ChatTemplate(source, {"eos_token": "</s>"}).render(messages or CHAT)
    except TemplateError as error:
        return error


def cost(source: str) -> tuple[str | TemplateError, float, int]:
    """A rendering or its error, the seconds that it computed, and the bytes that another run held at its worst."""
    start = time.thread_time()
    result = rendered(source)
    seconds = time.thread_time() - start
    tracemalloc.start()
    rendered(source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, seconds, peak


def growing(body: str) -> str:
    """A loop that could make something of 2 ** 90."""
    return "{% set n = namespace(x='x', l=[]) %}{% for i in range(90) %}" + body + "{% endfor %}"


BOMBS = {
    # rounds
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested loops that write": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "a loop that calls itself": "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "a loop that calls itself often": "{% for i in [1] recursive %}" + "{{ loop([1]) }}" * 9 + "{% endfor %}",
    "a macro that calls itself": "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "macros like a tree": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "blocks like a tree": (
        "{% macro m(n) %}{% if n %}{% call m(n - 1) %}{% endcall %}{% call m(n - 1) %}{% endcall %}{% endif %}"
        "{% endmacro %}{{ m(60) }}"
    ),
    "filters over ranges": "{% for i in range(99999) %}{% set x = range(99999) | sum %}{% endfor %}",
    "membership": "{% set r = range(99999) | list %}{% for i in range(99999) %}{% if 'a' in r %}{% endif %}{% endfor %}",
    "loops over texts": "{% set x = 'ab' * 99999 %}{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}",
    # text
    "a text times a number": "{{ 'x' * 10 ** 10 }}",
    "a number times a text": "{{ 10 ** 10 * 'x' }}",
    "a list times a number": "{{ ([0] * 10 ** 10) | length }}",
    "texts that double": growing("{% set n.x = n.x + n.x %}"),
    "texts that double with a tilde": growing("{% set n.x = n.x ~ n.x %}"),
    "texts that double in a block": growing("{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}"),
    "texts that double by joining": growing("{% set n.x = [n.x, n.x] | join %}"),
    "texts that double by a method": growing("{% set n.x = ''.join([n.x, n.x]) %}"),
    "texts that double by replacing": growing("{% set n.x = n.x | replace('x', 'xx') %}"),
    "texts that double by a format": growing("{% set n.x = '%s%s' % (n.x, n.x) %}"),
    "texts that double by another": growing("{% set n.x = '{0}{0}'.format(n.x) %}"),
    "texts that double by a filter": growing("{% set n.x = '%s%s' | format(n.x, n.x) %}"),
    "texts that grow by escapes": growing("{% set n.x = n.x | tojson | tojson %}"),
    "replacing by a method": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "replacing by a filter": "{{ ('x' * 99999) | replace('x', 'y' * 99999) }}",
    "replacing nothing": "{{ ('x' * 99999).replace('', 'y' * 99999) }}",
    "joining by a method": "{{ ('x' * 99999).join(range(99999) | map('string')) }}",
    "joining by a filter": "{{ range(99999) | join('x' * 99999) }}",
    "translating": "{{ ('x' * 99999).translate({120: 'y' * 99999}) }}",
    "padding to the left": "{{ 'x'.ljust(10 ** 10) }}",
    "padding to the right": "{{ 'x'.rjust(10 ** 10) }}",
    "padding on both sides": "{{ 'x'.center(10 ** 10) }}",
    "padding with zeros": "{{ '1'.zfill(10 ** 10) }}",
    "padding by a filter": "{{ 'x' | center(10 ** 10) }}",
    "padding by a constant": "{{ 'x' | center(9999999999) }}",
    "wide tabulators": "{{ ('\\t' * 99999).expandtabs(9999) }}",
    "indenting": "{{ ('x\\n' * 99999) | indent(99999) }}",
    "indenting by a text": "{{ ('x\\n' * 9999) | indent('y' * 99999) }}",
    "a format that pads": "{{ '%9999999999d' % 1 }}",
    "a format that pads as told": "{{ '%*d' % (9999999999, 1) }}",
    "a format with many digits": "{{ '%.9999999999f' % 1.5 }}",
    "a format of a name that pads": "{{ '%(a)9999999999d' % {'a': 1} }}",
    "a format filter that pads": "{{ '%9999999999d' | format(1) }}",
    "a format method that pads": "{{ '{:9999999999}'.format(1) }}",
    "a format method that pads as told": "{{ '{:{}}'.format(1, 9999999999) }}",
    "a format map that pads": "{{ '{a:>9999999999}'.format_map({'a': 1}) }}",
    "json that is indented": "{{ [[[1]]] | tojson(indent=9999999999) }}",
    "json with wide separators": "{{ (range(99999) | list) | tojson(separators=('x' * 99999, ':')) }}",
    "wrapping with a long break": "{{ ('x ' * 20000) | wordwrap(1, wrapstring='y' * 99999) }}",
    "splitting": "{{ ('x' * 9999999).split('x') | length }}",
    "lorem ipsum": "{{ lipsum(n=99999) }}",
    # numbers
    "powers": "{{ 9 ** (9 ** 9) }}",
    "powers of a variable": "{% set n = namespace(x=9) %}{% for i in range(90) %}{% set n.x = n.x ** n.x %}{% endfor %}",
    "products": "{% set n = namespace(x=9) %}{% for i in range(90) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "bytes of a number": "{{ (1).to_bytes(9999999999, 'big') }}",
    "rounding": "{{ 1.5 | round(999999999, 'ceil') }}",
    # values in values
    "lists that hold a list twice": growing("{% set n.l = [n.l, n.l] %}") + "{{ n.l }}",
    "tuples that hold a tuple twice": growing("{% set n.l = (n.l, n.l) %}") + "{{ n.l == n.l }}",
    "mappings that hold one twice": growing("{% set n.l = {'a': n.l, 'b': n.l} %}") + "{{ n.l | tojson }}",
    "mappings made by a call": growing("{% set n.l = dict(a=n.l, b=n.l) %}") + "{{ n.l | string }}",
    "arguments that hold them twice": (
        "{% macro m() %}{% set k.l = varargs %}{% endmacro %}{% set k = namespace(l=[1]) %}"
        "{% for i in range(90) %}{{ m(k.l, k.l) }}{% endfor %}{{ k.l }}"
    ),
    "lists that add up to one": growing("{% set n.l = [n.l] + [n.l] %}") + "{% for x in n.l | map('string') %}{% endfor %}",
    "lists that are batched": growing("{% set n.l = [n.l, n.l] | batch(2) | list %}") + "{{ n.l | pprint }}",
    "keys that hold a key twice": growing("{% set n.l = (n.l, n.l) %}{% set y = {n.l | string: 1} %}"),
    "slices kept": "{% set n = namespace(l=[], x='x' * 999999) %}{% for i in range(99999) %}{% set n.l = n.l + [n.x[1:]] %}{% endfor %}",
    "copies kept": "{% set n = namespace(l=[], x='x' * 999999) %}{% for i in range(99999) %}{% set n.l = n.l + [n.x | upper] %}{% endfor %}",
    "prefixes kept": "{% set n = namespace(l=[], x='') %}{% for i in range(99999) %}{% set n.x = n.x ~ i %}{% set n.l = n.l + [n.x] %}{% endfor %}",
    "lists in the source kept": (
        "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l, [" + "1," * 5000 + "]] %}{% endfor %}"
    ),
    "text in the source": "{% for i in range(99999) %}" + "text " * 5000 + "{% endfor %}",
    "a list of lists summed": "{{ (range(99999) | map('string') | map('list') | list) | sum(start=[]) }}",
    "batches filled up": "{{ [1] | batch(999999999, 'x') | list }}",
    "slices without end": "{{ [1] | slice(999999999) | list | length }}",
    "generators in generators": "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = n.x | map('string') %}{% endfor %}{{ n.x | list }}",
    "blocks that are kept": (
        "{% set x = 'x' * 700000 %}" + "".join("{% set a" + str(i) + " %}{{ x }}y{% endset %}" for i in range(4000))
    ),
    "blocks written again": "{% block a %}{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}{% endblock %}{{ self.a() }}",
    "macros that hold what they wrote": (
        "{% set x = 'x' * 700000 %}{% macro m(n) %}{{ x ~ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(180) }}"
    ),
    "concatenating one text often": "{% set x = 'x' * 99999 %}{{ x" + " ~ x" * 9999 + " }}",
    "marked text": "{{ (('<!-- x -->' * 50000) | safe).striptags() }}",
    "varied text": "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = n.l + [i ~ '-' * 60] %}{% endfor %}",
    # the source
    "a long source": "x" * (1 << 17) + "y",
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nots": "{{ " + "not " * 30_000 + "1 }}",
    "sums": "{{ " + "1+" * 20_000 + "1 }}",
    "conditions": "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "comments": "{# " * 40_000,
    "stripping comments": "{{ ('<!-- x -->' * 50000) | striptags }}",
    "addresses": "{{ ('((((' * 50000) | urlize }}",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_bomb_fails_by_name_soon_and_at_little_cost(name: str) -> None:
    result, seconds, peak = cost(BOMBS[name])
    assert isinstance(result, TemplateError), str(result)[:100]
    assert 0 < len(str(result)) < 1000
    assert peak < MOST_BYTES
    assert seconds < 1.5  # half a second, and the slowest single operation on top


def test_the_limit_of_time_is_named_with_the_templates_line() -> None:
    result, seconds, _ = cost("a\n{% for i in range(99999) %}{% for j in range(99999) %}\n{% endfor %}{% endfor %}")
    assert str(result) == "chat template, line 2: expected at most 0.5 seconds of rendering, found more"
    assert 0.4 < seconds < 1.5


def test_a_large_conversation_may_make_more_than_a_small_one() -> None:
    adding_up = (
        "{% set n = namespace(x='') %}{% for m in messages %}{% set n.x = n.x ~ m.content %}{% endfor %}{{ n.x }}"
    )
    messages = [{"role": "user", "content": "x" * 1000}] * 2000
    assert rendered(adding_up, messages) == "x" * 2_000_000
    looping = (
        "{% set n = namespace(x='') %}{% for m in range(2000) %}{% set n.x = n.x ~ 'x' * 1000 %}{% endfor %}{{ n.x }}"
    )
    assert "expected values of at most" in str(rendered(looping))


def test_what_is_no_longer_held_costs_nothing() -> None:
    source = "{% set n = namespace(x='') %}{% for i in range(9999) %}{% set n.x = ('x' * 99999)[i:] %}{% endfor %}{{ n.x | length }}"
    result, _, peak = cost(source)
    assert result == "90001"  # a gigabyte was made in all
    assert peak < MOST_BYTES


def test_what_counts_changes_nothing_of_what_templates_write() -> None:
    source = (
        "{% set l = [1, 'a', (2,), {'k': [3]}] %}{{ l }}{{ l[1:] }}{{ l[::-1] }}{{ 'abc'[1:] }}{{ 1 ~ none ~ l }}"
        "{% for a, b in [(1, 2), (3, 4)] %}{{ loop.index }}/{{ loop.length }}:{{ a + b * 2 ** 2 }} {% endfor %}"
        "{{ 'x%sy' % 3 }}{{ '{}-{a}'.format(1, a=2) }}{{ l | tojson }}{{ {'b': 1}.items() | list }}{{ undefined_one }}"
        "{{ (1, 2) + (3,) }}{{ [1] * 3 }}{{ 7 % 4 }}{{ 2.5 * 2 }}{{ 'a' < 'b' }}"
        "{% macro m(a, b=2) %}[{{ a }}{{ b }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, z=4) }}"
        "{{ 'a,b'.split(',') | join('-') }}{{ ' x '.strip() }}{{ [3, 1, 2] | sort | first }}{{ 1.0 | round(1) }}"
    )
    assert ChatTemplate(source).render(CHAT) == (
        "[1, 'a', (2,), {'k': [3]}]['a', (2,), {'k': [3]}][{'k': [3]}, (2,), 'a', 1]bc1None[1, 'a', (2,), {'k': [3]}]"
        "1/2:9 2/2:19 "
        "x3y1-2[1, \"a\", [2], {\"k\": [3]}][('b', 1)]"
        "(1, 2, 3)[1, 1, 1]35.0True"
        "[12(){}][12(3,){'z': 4}]"
        "a-bx11.0"
    )  # fmt: skip


ESCAPES = [
    "''.__class__", "''.__class__.__mro__[1].__subclasses__()", "[].__init__.__globals__", "(1).__class__",
    "messages.__class__", "messages.append(1)", "messages[0].update(role=1)", "messages[0].pop('role')", "m.__globals__",
    "m.__code__", "cycler.__init__.__globals__", "cycler.__init__", "namespace.__init__", "joiner.__class__",
    "self.__class__", "self._TemplateReference__context", "self.__init__", "loop.__class__", "caller.__code__",
    "'{0.__class__}'.format(1)", "'{0.__class__.__mro__}'.format('')", "'{a.__init__.__globals__}'.format(a=cycler)",
    "'{x.__class__}'.format_map({'x': 1})", "''|attr('__class__')", "['']|map(attribute='__class__')|list",
    "[cycler]|map(attribute='__init__.__globals__')|list", "[m]|groupby('__globals__')", "[m]|sum(attribute='__code__')",
    "[m]|selectattr('__globals__')|list|first|attr('__globals__')", "('a'|attr('format')).__self__.__class__",
    "''.format.__wrapped__", "''.format.__func__", "range.__wrapped__", "dict.__class__", "dict.fromkeys.__self__",
    "strftime_now.__globals__", "raise_exception.__globals__", "tojson", "(m.name).__class__", "m.catch_kwargs.__class__",
    "environment", "context", "self.environment", "''.join.__self__.__class__", "().__class__.__base__", "{}.__class__",
    "namespace(__class__=1)", "dict(**{'a': m}).a.__globals__", "config", "request", "messages.__getitem__",
    "(messages|map('attr', '__class__')|list)", "'%(a)s' % {'a': m.__code__}", "lipsum.__globals__", "x.__class__",
]  # fmt: skip


SHOWN = ("", "[Undefined]", "[Undefined, Undefined]", "[(Undefined, [<Macro 'm'>])]")


def test_no_way_out_of_the_sandbox_shows_anything_of_python(tmp_path: Path) -> None:
    macro = "{% macro m() %}{% endmacro %}"
    for way in ESCAPES:
        result = rendered(macro + "{{ " + way + " }}")
        if isinstance(result, str):
            assert result in SHOWN or result.startswith("<function str.format"), way  # the sandbox's own `format`
    assert not list(tmp_path.iterdir())


# ---- at random

ATOMS = (
    "1 0 -1 99999 10**9 2.5 'x' '' 'xy'*999 'a\\nb' none true [] [1,2] (1,) {'a':1} messages messages[0] messages[0].content "
    "eos_token tools namespace(a=1) range(9) range(99999) undefined_one n n.x n.l loop m varargs '%s%9d' '{:9}{}' cycler(1,2)"
).split()  # fmt: skip
FILTERS = [name for name in sorted(_sandbox.LimitedEnvironment().filters) if name not in ("random",)]
METHODS = (
    "format replace join split ljust center zfill upper strip items keys get values expandtabs translate encode startswith "
    "partition splitlines to_bytes from_bytes __class__ append update format_map __init__ casefold count isdigit x"
).split()
OPERATORS = "+ - * / // % ** ~ == < in and or".split()
TESTS = "defined string mapping iterable number none sameas(1) in([1]) divisibleby(0) lower".split()


class Author:
    """Writes templates at random."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def expression(self, depth: int = 0) -> str:
        d, more = self.draw, lambda: self.expression(depth + 1)
        if depth > 2 or d.random() < 0.5:
            return d.choice(ATOMS)
        kind = d.randrange(9)
        if kind == 0:
            return f"({more()} {d.choice(OPERATORS)} {more()})"
        if kind == 1:
            args = ", ".join(more() for _ in range(d.randrange(3)))
            return f"({more()})|{d.choice(FILTERS)}" + (f"({args})" if d.random() < 0.6 else "")
        if kind == 2:
            args = ", ".join(more() for _ in range(d.randrange(4)))
            return f"({more()}).{d.choice(METHODS)}({args})"
        if kind == 3:
            return f"({more()})[{d.choice(['0', '1:', '::-1', ':' + d.choice(ATOMS), more()])}]"
        if kind == 4:
            return f"[{more()}, {more()}]"
        if kind == 5:
            return f"({more()} if {more()} else {more()})"
        if kind == 6:
            return f"(({more()}) is {d.choice(TESTS)})"
        if kind == 7:
            return "{" + f"{more()}: {more()}" + "}"
        return d.choice([f"m({more()}, {more()})", f"dict(a={more()})", f"namespace(x={more()}).x", f"not {more()}"])

    def block(self, depth: int = 0) -> str:
        d = self.draw
        inner = "".join(self.block(depth + 1) for _ in range(d.randrange(3))) if depth < 3 else "t"
        e = self.expression()
        return d.choice(
            [
                "text \u00e9 {{ x }}",
                f"{{{{ {e} }}}}",
                f"{{% set n.x = {e} %}}",
                f"{{% set n.l = [n.l, {e}] %}}",
                f"{{% set n.x = n.x ~ n.x ~ ({e}) %}}",
                f"{{% for i in {e} %}}{inner}{{% endfor %}}",
                f"{{% for i in range({d.choice([3, 30, 99999])}) %}}{inner}{{% else %}}e{{% endfor %}}",
                f"{{% for i in {e} recursive %}}{{{{ loop({e}) }}}}{{% endfor %}}",
                f"{{% if {e} %}}{inner}{{% else %}}{self.expression()}{{% endif %}}",
                f"{{% set x %}}{inner}{{{{ n.x }}}}{{% endset %}}",
                f"{{% macro m(a, b=1) %}}{inner}{{% endmacro %}}",
                f"{{% filter {d.choice(FILTERS)} %}}{inner}{{% endfilter %}}",
                f"{{% call m({e}) %}}{inner}{{% endcall %}}",
                f"{{% generation %}}{inner}{{% endgeneration %}}",
                f"{{% with n = {e} %}}{inner}{{% endwith %}}",
                f"{{% include {e} %}}",
            ]
        )

    def template(self) -> str:
        head = "{% macro m(a=1, b=2) %}{{ a }}{{ varargs }}{% endmacro %}{% set n = namespace(x='x', l=[]) %}"
        source = head + "".join(self.block() for _ in range(1 + self.draw.randrange(5)))
        if self.draw.random() < 0.1:  # damage
            at = self.draw.randrange(len(source))
            source = source[:at] + self.draw.choice(["", "{%", "}}", "'", "\0", "(" * 30]) + source[at + 1 :]
        return source


def real_templates() -> Iterator[str]:
    yield from (
        p.read_text(encoding="utf-8") for p in sorted((Path(__file__).parent / "data" / "templates").glob("*.jinja"))
    )


def damaged(source: str, draw: random.Random) -> str:
    """A template in use with some of it changed: words for others, tags twice or not at all, now and then a letter."""
    for _ in range(draw.randrange(1, 4)):
        kind = draw.randrange(8)
        spots = list(re.finditer(r"\w+" if kind < 4 else r"\{\{.*?\}\}" if kind < 7 else r".", source, re.DOTALL))
        if not spots:
            continue
        spot = draw.choice(spots)
        piece = (
            draw.choice([draw.choice(spots)[0], draw.choice(ATOMS)]) if kind < 4
            else draw.choice(["", spot[0] * 3, "{{ " + draw.choice(ATOMS) + " }}"]) if kind < 7
            else draw.choice(["", "}", "'", "-"])
        )  # fmt: skip
        source = source[: spot.start()] + piece + source[spot.end() :]
    return source


def template_case(number: int) -> tuple[str, float, int]:
    """A template that was written at random or damaged; the case follows from its number alone.

    Returns:
        What became of it, the seconds that it computed, and the bytes that it held at its worst.
    """
    draw = random.Random(number // 2)
    source = damaged(draw.choice(list(real_templates())), draw) if number % 2 else Author(number // 2).template()
    result, seconds, peak = cost(source)
    assert peak < MOST_BYTES, (number, peak, source)
    assert seconds < 1.5, (number, seconds, source)
    if isinstance(result, str):
        return "rendered", seconds, peak
    json.dumps(str(result))
    return "limited" if "expected" in str(result) else "failed", seconds, peak


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning", "ignore::SyntaxWarning")
@pytest.mark.parametrize("kind", ["written", "damaged"])
def test_random_templates_render_or_fail_by_name_at_little_cost(kind: str) -> None:
    counts: Counter[str] = Counter()
    slowest, largest = 0.0, 0
    for number in range(kind == "damaged", 500, 2):
        how, seconds, peak = template_case(number)
        slowest, largest = max(slowest, seconds), max(largest, peak)
        counts[how] += 1
    print(f"{kind}: {dict(counts)}, slowest {slowest:.2f} s, largest {largest >> 20} MB")
    assert counts["rendered"] > 40
    assert counts["failed"] + counts["limited"] > 100
