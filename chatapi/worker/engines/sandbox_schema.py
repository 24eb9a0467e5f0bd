"""The smallest instance of a JSON schema, the same each time: what the sandbox says for `response_format` and tool arguments. Pure.

Covers what structured outputs and tools use: types, enum, const, default, properties, items, bounds, formats, anyOf, oneOf,
allOf and local `$ref`. It knows nothing of `pattern` and `not`. Where several values would do, the first one is taken.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH = 32
MAX_VALUES = 1_000
MAX_STRING_CHARS = 1_000

Schema = dict[str, Any]

_FORMATS = {
    "date-time": "2024-01-01T00:00:00Z",
    "date": "2024-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "sandbox@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class SchemaError(ValueError):
    """No instance was found: the schema never ends, is too large, or is not one."""


def instance(schema: object, words: Iterator[str]) -> object:
    """A value that fits the schema, its strings taken from the endless `words`; raises `SchemaError`."""
    try:
        return _Builder(schema, words).build(schema, depth=0)
    except SchemaError:
        raise
    except (TypeError, AttributeError, ArithmeticError, LookupError, ValueError) as error:
        # Nobody has checked the schema: `properties` may be a list, `enum` an object, `multipleOf` zero.
        raise SchemaError("the JSON schema is not valid") from error


class _Builder:
    """One walk over one schema; `_left` bounds it, as references and alternatives can multiply."""

    def __init__(self, root: object, words: Iterator[str]) -> None:
        self._root = root
        self._words = words
        self._left = MAX_VALUES
        self._path: list[object] = []
        self._by_type: dict[str, Callable[[Schema, int], object]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda _schema, _depth: True,
            "null": lambda _schema, _depth: None,
        }

    def build(self, schema: object, depth: int) -> object:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise SchemaError(f"the JSON schema needs more than {MAX_DEPTH} levels or {MAX_VALUES} values")
        if schema is True or schema == {}:
            return {}
        if not isinstance(schema, dict):
            raise SchemaError("a JSON schema must be an object")
        for given in ("const", "default"):
            if given in schema:
                return schema[given]
        if schema.get("enum"):
            return schema["enum"][0]
        return self._composed(schema, depth)

    def _composed(self, schema: Schema, depth: int) -> object:
        if "$ref" in schema:
            return self._referenced(schema["$ref"], depth)
        for alternatives in ("anyOf", "oneOf"):
            if schema.get(alternatives):
                return self._first_of(schema[alternatives], depth + 1)
        if schema.get("allOf"):
            return self.build(self._merged(schema), depth + 1)
        return self._by_type.get(_type_of(schema), self._object)(schema, depth)

    def _referenced(self, reference: object, depth: int) -> object:
        """A type inside itself can't be part of the smallest instance: there must be another alternative further up."""
        if reference in self._path:
            raise SchemaError("the JSON schema never ends")
        self._path.append(reference)
        try:
            return self.build(self._resolve(reference), depth + 1)
        finally:
            self._path.pop()

    def _first_of(self, schemas: list[object], depth: int) -> object:
        """The first alternative that ends; in a recursive type that is often the second one, `null`."""
        for schema in schemas[:-1]:
            try:
                return self.build(schema, depth)
            except SchemaError:
                if self._left < 0:
                    raise
        return self.build(schemas[-1], depth)

    def _merged(self, schema: Schema) -> Schema:
        """All parts of an `allOf` as one schema: properties and required add up, of other keywords the last one counts."""
        merged: Schema = {}
        properties: Schema = {}
        required: list[str] = []
        for part in [*schema["allOf"], {name: value for name, value in schema.items() if name != "allOf"}]:
            resolved = self._resolve(part["$ref"]) if "$ref" in part else part
            merged.update(resolved)
            properties.update(resolved.get("properties", {}))
            required.extend(resolved.get("required", []))
        return {**merged, "properties": properties, "required": required}

    def _resolve(self, reference: object) -> Any:
        """What a JSON pointer into the same document points at (RFC 6901)."""
        found = self._root
        path = str(reference).removeprefix("#").removeprefix("/")
        for step in path.split("/") if path else []:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise SchemaError(f"the JSON schema has no {str(reference)[:80]!r}")
            found = found[key]
        return found

    def _object(self, schema: Schema, depth: int) -> object:
        """The required properties; all of them when none is required, so that a tool call shows its arguments."""
        properties = schema.get("properties", {})
        names = schema.get("required") or properties
        return {name: self.build(properties.get(name, {}), depth + 1) for name in names}

    def _array(self, schema: Schema, depth: int) -> object:
        items = list(schema.get("prefixItems", []))
        # One more than the limit is enough to run into it.
        missing = min(schema.get("minItems", 0) - len(items), MAX_VALUES + 1)
        return [self.build(item, depth + 1) for item in [*items, *[schema.get("items", {})] * missing]]

    def _string(self, schema: Schema, _depth: int) -> object:
        known = _FORMATS.get(schema.get("format", ""))
        if known is not None:
            return known
        shortest = schema.get("minLength", 0)
        if shortest > MAX_STRING_CHARS:
            raise SchemaError(f"the JSON schema needs a string of more than {MAX_STRING_CHARS} characters")
        return next(self._words).ljust(shortest, "-")[: schema.get("maxLength")]

    def _integer(self, schema: Schema, depth: int) -> object:
        return math.ceil(self._number(schema, depth))

    def _number(self, schema: Schema, _depth: int) -> float:
        """The bound next to zero, and zero where it is allowed."""
        step = schema.get("multipleOf", 1)
        lowest = schema.get("minimum", -math.inf)
        if "exclusiveMinimum" in schema:
            lowest = max(lowest, schema["exclusiveMinimum"] + step)
        highest = schema.get("maximum", math.inf)
        if "exclusiveMaximum" in schema:
            highest = min(highest, schema["exclusiveMaximum"] - step)
        nearest: float = min(max(0, lowest), highest)
        return nearest if "multipleOf" not in schema else math.ceil(nearest / step) * step


def _type_of(schema: Schema) -> str:
    """The declared type, the first one that is not null of several, or what the other keywords tell."""
    declared = schema.get("type")
    if isinstance(declared, list):
        return next((str(name) for name in declared if name != "null"), "null")
    if isinstance(declared, str):
        return declared
    return "array" if "items" in schema or "prefixItems" in schema else "object"
