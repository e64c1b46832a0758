"""Schemas as people write them, made from a small set of parts by the numbers of a seed."""

from __future__ import annotations

import random
from typing import Any

NAMES = ["name", "age", "city", "größe", "名前", "e-mail", "is active", "tags", "created_at", "übergröße", "id", "note"]
PATTERNS = ["^[A-Z]{2}[0-9]{4}$", "^(red|green|blue)$", "^[a-z]+(-[a-z]+){0,2}$", r"^\+[0-9]{2,3} [0-9]{4,8}$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]


def schema(seed: int) -> dict[str, Any]:
    """A schema of an object; the same for the same seed."""
    dice = random.Random(seed)
    definitions: dict[str, Any] = {
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 12},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
        "tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1},
            },
            "required": ["value"],
            "additionalProperties": False,
        },
    }
    whole = _object(dice, 3)
    whole["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    whole["title"] = f"Schema {seed}"
    whole["$defs"] = definitions
    return whole


def _object(dice: random.Random, depth: int) -> dict[str, Any]:
    names = dice.sample(NAMES, dice.randint(1, 4))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(dice, depth - 1) for name in names},
        "required": [name for name in names if dice.random() < 0.7],
        "additionalProperties": False,
    }
    if dice.random() < 0.15:
        made["additionalProperties"] = {"type": "boolean"}
    elif dice.random() < 0.15:
        made["patternProperties"] = {"^x-[a-z]{1,4}$": {"type": "null"}}
    if dice.random() < 0.3:
        made["description"] = "What people write beside it."
    return made


def _value(dice: random.Random, depth: int) -> dict[str, Any]:
    leaves = [_string, _number, _enum, _pattern, _format, _boolean, _const, _reference]
    inner = [_array, _tuple, _one_of, _any_of, _nested] if depth > 0 else []
    return dice.choice([*leaves, *inner])(dice, depth)


def _string(dice: random.Random, _: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": dice.choice(["string", ["string", "null"]])}
    if dice.random() < 0.7:
        made |= {"minLength": dice.randint(0, 3), "maxLength": dice.randint(3, 20)}
    return made


def _number(dice: random.Random, _: int) -> dict[str, Any]:
    low = dice.choice([-1000, -1, 0, 1, 18])
    made: dict[str, Any] = {"type": dice.choice(["integer", "number"])}
    if dice.random() < 0.7:
        made |= {"minimum": low, dice.choice(["maximum", "exclusiveMaximum"]): low + dice.choice([1, 9, 130, 10_000])}
    return made


def _enum(dice: random.Random, _: int) -> dict[str, Any]:
    return {
        "enum": dice.sample(
            ["a", "bé", "漢字", 'with "quotes"', "back\\slash", 1, 2.5, None, True, ""], dice.randint(1, 5)
        )
    }


def _const(dice: random.Random, _: int) -> dict[str, Any]:
    return {"const": dice.choice(["fixed", 7, None, ["a", 1], {"k": "v"}])}


def _pattern(dice: random.Random, _: int) -> dict[str, Any]:
    return {"type": "string", "pattern": dice.choice(PATTERNS)}


def _format(dice: random.Random, _: int) -> dict[str, Any]:
    return {"type": "string", "format": dice.choice(FORMATS)}


def _boolean(_dice: random.Random, _: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _reference(dice: random.Random, _: int) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{dice.choice(['address', 'tree'])}"}


def _array(dice: random.Random, depth: int) -> dict[str, Any]:
    low = dice.randint(0, 2)
    return {"type": "array", "items": _value(dice, depth - 1), "minItems": low, "maxItems": low + dice.randint(0, 2)}


def _tuple(dice: random.Random, depth: int) -> dict[str, Any]:
    items = [_value(dice, depth - 1) for _ in range(dice.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _one_of(dice: random.Random, depth: int) -> dict[str, Any]:
    def option(kind: str) -> dict[str, Any]:
        made = {"type": "object", "properties": {"kind": {"const": kind}, "value": _value(dice, depth - 1)}}
        return {**made, "required": ["kind", "value"], "additionalProperties": False}

    return {"oneOf": [option("circle"), option("square")]}


def _any_of(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(dice, depth - 1), {"type": "null"}]}


def _nested(dice: random.Random, depth: int) -> dict[str, Any]:
    return _object(dice, depth)
