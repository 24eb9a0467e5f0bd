"""What several JSON schemas that hold at once ask of one value. Pure.

A part is a JSON schema without `$ref` and `allOf`; "parts" all hold for the same value. `admits` looks at the
value itself and not at what it contains: for that, `property_schemas` and `item_schemas` tell which schemas
hold there. Nobody has checked the parts, so any function may raise what a wrong type or key leads to.
"""

import hashlib
import math
import operator
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

import msgspec

Schema = dict[str, Any]

_MAX_EXACT_INTEGER = 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_HAS_TYPE: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and value % 1 == 0,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def _names(declared: Any) -> list[str]:
    return [declared] if isinstance(declared, str) else list(declared)


def _is_same(value: object, given: object) -> bool:
    """JSON keeps `true` apart from 1."""
    return value == given and isinstance(value, bool) is isinstance(given, bool)


def _exact(number: float) -> Fraction:
    """As it was written: 0.1 is a tenth."""
    return Fraction(str(number)) if isinstance(number, float) else Fraction(number)


_GENERAL: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda value, declared: any(_HAS_TYPE[name](value) for name in _names(declared)),
    "const": _is_same,
    "enum": lambda value, given: any(_is_same(value, each) for each in given),
}
_BY_TYPE: dict[str, dict[str, Callable[[Any, Any], bool]]] = {
    "number": {
        "minimum": operator.ge,
        "exclusiveMinimum": operator.gt,
        "maximum": operator.le,
        "exclusiveMaximum": operator.lt,
        "multipleOf": lambda value, step: _exact(value) % _exact(step) == 0,
    },
    "string": {
        "minLength": lambda value, least: len(value) >= least,
        "maxLength": lambda value, most: len(value) <= most,
    },
    "array": {
        "minItems": lambda value, least: len(value) >= least,
        "maxItems": lambda value, most: len(value) <= most,
    },
    "object": {
        "minProperties": lambda value, least: len(value) >= least,
        "maxProperties": lambda value, most: len(value) <= most,
        "required": lambda value, names: all(name in value for name in names),
    },
}
_CONTAINED = ("properties", "patternProperties", "additionalProperties", "items", "prefixItems")
_KNOWN = (
    "default",
    "format",
    "anyOf",
    "oneOf",
    *_CONTAINED,
    *_GENERAL,
    *chain.from_iterable(_BY_TYPE.values()),
)


def known_keywords(schema: Schema) -> Schema:
    """The part of `schema` that counts here. A null stands for a keyword left out, but where it is a value."""
    return {
        name: schema[name]
        for name in _KNOWN
        if name in schema and (schema[name] is not None or name in {"const", "default"})
    }


class Digest(NamedTuple):
    """What stands for a part where parts are compared."""

    sha256: bytes
    weight: int
    """What it costs to look at the part once: 1, and 1 for each KiB of it as JSON."""


def digest(part: Schema) -> Digest:
    """The part's digest; parts that have the same one are the same."""
    encoded = msgspec.json.encode(part, order="deterministic")
    return Digest(hashlib.sha256(encoded).digest(), 1 + len(encoded) // 1024)


def admits(parts: list[Schema], value: object) -> bool:
    """Whether the value itself fits all parts, whatever it contains."""
    checks = [_GENERAL, *(checks for name, checks in _BY_TYPE.items() if _HAS_TYPE[name](value))]
    return all(
        check(value, part[name])
        for part in parts
        for names in checks
        for name, check in names.items()
        if name in part
    )


def enumerated(parts: list[Schema]) -> list[object] | None:
    """The only values that may fit, if `const` or `enum` names them."""
    for part in parts:
        if "const" in part:
            return [part["const"]]
        if "enum" in part:
            if not isinstance(part["enum"], list):
                raise TypeError("enum is not a list")
            return part["enum"]
    return None


def types(parts: list[Schema]) -> list[str]:
    """The types that all parts declare, null last; or what the other keywords tell when none does."""
    declared = [_names(part["type"]) for part in parts if "type" in part]
    if not declared:
        return ["array" if any("items" in part or "prefixItems" in part for part in parts) else "object"]
    common = [
        name for name in dict.fromkeys(chain(*declared)) if all(_includes(names, name) for names in declared)
    ]
    return sorted(common, key=lambda name: name == "null")


def _includes(names: list[str], name: str) -> bool:
    return name in names or (name == "integer" and "number" in names)


def at_least(parts: list[Schema], keyword: str) -> int:
    """The largest lower bound of a size."""
    return math.ceil(max(_said(parts, keyword), default=0))


def at_most(parts: list[Schema], keyword: str) -> int:
    """The smallest upper bound of a size."""
    return math.floor(min(_said(parts, keyword), default=sys.maxsize))


def property_schemas(parts: list[Schema], name: str) -> list[object]:
    """What holds for one property. `additionalProperties` is left out beside patterns, which are not looked
    at.
    """
    return [
        part.get("properties", {}).get(
            name, True if "patternProperties" in part else part.get("additionalProperties", True)
        )
        for part in parts or [{}]
    ]


def item_schemas(parts: list[Schema], index: int) -> list[object]:
    """What holds for one item of an array."""
    return [(part.get("prefixItems", [])[index:] or [part.get("items", True)])[0] for part in parts or [{}]]


def numbers(parts: list[Schema], *steps: int) -> Iterator[float]:
    """Numbers, multiples of `steps`, one of which fits if any does: the simple ones next to zero and the
    bounds, then one between.
    """
    lowest = sorted(map(_exact, _said(parts, "minimum", "exclusiveMinimum")))[-1:]
    highest = sorted(map(_exact, _said(parts, "maximum", "exclusiveMaximum")))[:1]
    grid = [*map(_exact, _said(parts, "multipleOf")), *map(Fraction, steps)]
    step = _common_multiple(grid)
    ends = [*lowest, *highest]
    near = [(end // step + offset) * step for end in [Fraction(0), *ends] for offset in (-1, 0, 1)]
    yield from map(_plain, sorted(near if grid else near + ends, key=abs))
    if not grid and lowest and highest:
        yield _plain((lowest[0] + highest[0]) / 2)


def _said(parts: list[Schema], *keywords: str) -> list[Any]:
    return [part[keyword] for part in parts for keyword in keywords if keyword in part]


def _common_multiple(steps: list[Fraction]) -> Fraction:
    """The least one; 1 of none. One that is too large for a float is an `OverflowError`, before it grows on."""
    common = steps[0] if steps else Fraction(1)
    for step in steps[1:]:
        common = Fraction(
            math.lcm(common.numerator, step.numerator), math.gcd(common.denominator, step.denominator)
        )
        float(common)
    return common


def _plain(number: Fraction) -> float:
    """An integer where it is one, but not 300 digits of it."""
    return int(number) if number.denominator == 1 and abs(number) < _MAX_EXACT_INTEGER else float(number)
