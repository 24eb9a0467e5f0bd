"""Describes the JSON schemas of the OpenAPI document in words, for readers of the reference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from chatapi.docs.markdown import inline

Schema = Mapping[str, Any]

_REF = "#/components/schemas/"
_NULL = {"type": "null"}
_RANGES = (
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minProperties", "maxProperties", " members"),
    ("minimum", "maximum", ""),
    ("exclusiveMinimum", "exclusiveMaximum", " (exclusive)"),
)


@dataclass(frozen=True)
class Words:
    """A part of a type's description; `schema` is the name of the schema that it links to, if any."""

    text: str
    schema: str = ""


@dataclass(frozen=True)
class Field:
    """A row of a table: a member of an object, or a parameter of a route."""

    name: str
    type: Sequence[Words]
    is_required: bool
    description: SafeString
    place: str = ""
    default: str = ""


def fields(schema: Schema) -> list[Field]:
    """Return the members of an object, the required ones first."""
    required = set(schema.get("required", ()))
    rows = [
        Field(
            name,
            list(words(member)),
            name in required,
            inline(member.get("description", "")),
            default=_value(member["default"]) if member.get("default") is not None else "",
        )
        for name, member in schema.get("properties", {}).items()
    ]
    return sorted(rows, key=lambda row: not row.is_required)


def words(schema: Schema) -> Iterator[Words]:
    """Describe the values that fit the schema."""
    match schema:
        case {"$ref": str(target)}:
            name = target.removeprefix(_REF)
            yield Words(name, name)
        case {"const": value}:
            yield Words(_value(value))
        case {"enum": [*values]}:
            *others, last = map(_value, values)
            yield Words(f"{', '.join(others)} or {last}" if others else last)
        case {"anyOf": [*choices]} | {"oneOf": [*choices]}:
            yield from _any_of([choice for choice in choices if choice != _NULL])
            if _NULL in choices:
                yield Words(" or null")
        case {"type": "array"}:
            yield Words("array of ")
            yield from words(schema.get("items", {}))
            yield from _bounds(schema)
        case _:
            types = schema.get("type", "any value")
            yield Words(types if isinstance(types, str) else " or ".join(types))
            yield from _bounds(schema)


def _any_of(choices: Sequence[Schema]) -> Iterator[Words]:
    for number, choice in enumerate(choices):
        if number:
            yield Words(" or ")
        yield from words(choice)


def _bounds(schema: Schema) -> Iterator[Words]:
    """Describe further conditions of the values: ranges, a pattern, a format."""
    found = [
        _range(schema.get(least), schema.get(most)) + unit
        for least, most, unit in _RANGES
        if least in schema or most in schema
    ]
    found += [f"matches {schema['pattern']}"] if "pattern" in schema else []
    found += [schema["format"]] if "format" in schema else []
    if found:
        yield Words(f" ({', '.join(found)})")


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return f"at most {most:,}"
    return f"at least {least:,}" if most is None else f"{least:,} to {most:,}"


def _value(value: object) -> str:
    """Return a value as JSON writes it, but texts without quotes."""
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case _:
            return str(value)
