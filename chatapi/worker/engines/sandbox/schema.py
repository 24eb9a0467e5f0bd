"""The smallest instance of a JSON schema, the same each time, for `response_format` and tool arguments. Pure.

Covers what OpenAI documents for strict structured outputs ("Supported schemas" in its guide), without
`pattern`. Any other keyword is refused and not ignored, so that an instance always fits its schema.
"""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any, Final

import msgspec

MAX_SCHEMA_BYTES = 65_536
# The most nested schemas, counting references and alternatives.
MAX_DEPTH = 32
# The most values of an instance; each KiB of a value's schema counts as one more.
MAX_VALUES = 1_000

FORMATS: Final = {
    "date-time": "2024-01-01T00:00:00Z",
    "date": "2024-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "sandbox@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
KEYWORDS: Final = (
    *("type", "enum", "const", "anyOf", "$ref", "properties", "required", "additionalProperties"),
    *("items", "minItems", "maxItems", "format"),
    *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"),
)
# These make no value invalid.
_ANNOTATIONS = {
    *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description"),
    *("default", "examples", "deprecated", "readOnly", "writeOnly"),
}
# What may stand beside these keywords: the rest would have to hold for the same value.
_ALLOWED_BESIDE = {
    "$ref": {"$ref"},
    "anyOf": {"anyOf"},
    "enum": {"enum", "const", "type"},
    "const": {"enum", "const", "type"},
}

_TYPES = {
    dict: {"object"},
    list: {"array"},
    str: {"string"},
    bool: {"boolean"},
    type(None): {"null"},
    int: {"integer", "number"},
    float: {"number"},
}

_NOTHING_FITS = "no value fits the JSON schema"

Schema = dict[str, Any]


class SchemaError(ValueError):
    """A schema without an instance that the sandbox can make; `path` leads to the part that is at fault."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class _DeadEndError(SchemaError):
    """This part has no instance, but an alternative may have one, or the property may be left out."""


def instance(schema: object, words: Iterator[str], path: str) -> object:
    """Return a value that fits the schema, its strings taken from the endless `words`.

    `path` is where the request has the schema; raises `SchemaError` with the path from there on. Takes some
    10 ms at most, without keeping the interpreter from other threads.
    """
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"the JSON schema has more than {MAX_SCHEMA_BYTES} bytes", path)
    return _Builder(schema, words, path).build(schema, path)


class _Builder:
    """One walk over one schema; `_left` bounds it, as references and alternatives can multiply."""

    def __init__(self, root: Any, words: Iterator[str], root_path: str) -> None:
        self._root = root
        self._root_path = root_path
        self._words = words
        self._left = MAX_VALUES
        # The identities of the schemas that the current one is part of, outermost first.
        self._open: list[int] = []

    def build(self, schema: Any, path: str) -> object:
        """Return the smallest instance of the schema, which is at `path`."""
        self._left -= 1 + len(msgspec.json.encode(schema)) // 1024
        if self._left < 0:
            raise SchemaError(f"the JSON schema needs more than {MAX_VALUES} values", path)
        if len(self._open) >= MAX_DEPTH:
            raise _DeadEndError(f"the JSON schema needs more than {MAX_DEPTH} levels", path)
        if id(schema) in self._open:
            # The smallest instance of a schema contains no other instance of the same schema.
            raise _DeadEndError("the JSON schema never ends", path)
        self._open.append(id(schema))
        try:
            _check_keywords(schema, path)
            return self._value(schema, path)
        except SchemaError:
            raise
        except (TypeError, AttributeError, ArithmeticError, LookupError, ValueError) as error:
            # Nobody has checked the schema: `properties` may be a list, `enum` an object, `multipleOf` zero.
            raise SchemaError("the JSON schema is not valid", path) from error
        finally:
            self._open.pop()

    def _value(self, schema: Schema, path: str) -> object:
        if "$ref" in schema:
            return self.build(*self._resolve(schema["$ref"], path))
        if "enum" in schema or "const" in schema:
            return _named_value(schema, path)
        if "anyOf" in schema:
            alternatives = enumerate(schema["anyOf"])
            attempts = (partial(self.build, each, f"{path}.anyOf[{index}]") for index, each in alternatives)
            return _first_made(attempts, path)
        types = sorted(_types(schema), key=lambda name: name == "null")
        return _first_made((partial(self._of_type, name, schema, path) for name in types), path)

    def _of_type(self, name: str, schema: Schema, path: str) -> object:
        match name:
            case "object":
                return self._object(schema, path)
            case "array":
                return self._array(schema, path)
            case "string":
                return self._string(schema, path)
            case "integer" | "number":
                return _number(schema, path, is_integer=name == "integer")
            case "boolean":
                return True
            case "null":
                return None
        raise SchemaError(f"{str(name)[:80]!r} is not a type", path)

    def _resolve(self, reference: str, path: str) -> tuple[Any, str]:
        """Return what a JSON pointer into this schema points at (RFC 6901), and its path."""
        found, path_found = self._root, self._root_path
        pointer, *steps = reference.split("/")
        try:
            if pointer != "#":
                raise LookupError
            for key in [step.replace("~1", "/").replace("~0", "~") for step in steps]:
                found, path_found = found[key], f"{path_found}.{key}"
        except (LookupError, TypeError):
            raise SchemaError(f"the JSON schema has no {reference[:80]!r}", path) from None
        return found, path_found

    def _object(self, schema: Schema, path: str) -> object:
        """Return the required properties; all of them if none is required, so that a tool call has some."""
        properties, required = schema.get("properties", {}), dict.fromkeys(schema.get("required", []))
        if undeclared := [name for name in required if name not in properties]:
            raise SchemaError(f"'properties' does not have the required {str(undeclared[0])[:80]!r}", path)
        made = {}
        for name in [name for name in properties if name in required] or properties:
            try:
                made[name] = self.build(properties[name], f"{path}.properties.{name}")
            except _DeadEndError:
                if required:
                    raise
        return made

    def _array(self, schema: Schema, path: str) -> object:
        size = schema.get("minItems", 0)
        if size > schema.get("maxItems", size):
            raise _DeadEndError(_NOTHING_FITS, path)
        return [self.build(schema.get("items", {}), f"{path}.items") for _ in range(size)]

    def _string(self, schema: Schema, path: str) -> object:
        if "format" not in schema:
            return next(self._words)
        if schema["format"] not in FORMATS:
            raise SchemaError(f"a 'format' can be {', '.join(FORMATS)}", path)
        return FORMATS[schema["format"]]


def _check_keywords(schema: Schema, path: str) -> None:
    """Raise `SchemaError` for the first keyword that is not supported, or not beside another one."""
    if not isinstance(schema, dict):
        raise SchemaError("a JSON schema must be an object", path)
    keywords = [name for name in schema if name not in _ANNOTATIONS]
    for name in keywords:
        if name not in KEYWORDS:
            allowed = ", ".join(KEYWORDS)
            raise SchemaError(f"it does not support {name[:80]!r} in a JSON schema, only {allowed}", path)
    for keyword, allowed_beside in _ALLOWED_BESIDE.items():
        if keyword in schema and (others := [name for name in keywords if name not in allowed_beside]):
            raise SchemaError(f"it does not support {others[0]!r} beside {keyword!r} in a JSON schema", path)


def _types(schema: Schema) -> list[str]:
    declared = schema.get("type", "object")
    return [declared] if isinstance(declared, str) else list(declared)


def _named_value(schema: Schema, path: str) -> object:
    """Return the first value of `enum` or `const` that fits both and the type."""
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(values, list):
        raise TypeError("enum is not a list")
    if "const" in schema:
        const = msgspec.json.encode(schema["const"])
        values = [value for value in values if msgspec.json.encode(value) == const]
    if "type" in schema:
        allowed = set(_types(schema))
        values = [value for value in values if _TYPES[type(value)] & allowed]
    if not values:
        raise _DeadEndError(_NOTHING_FITS, path)
    return values[0]


def _first_made(attempts: Iterable[Callable[[], object]], path: str) -> object:
    """Return the value of the first attempt that succeeds: for recursive types often the second, `null`."""
    failure = _DeadEndError(_NOTHING_FITS, path)
    for attempt in attempts:
        try:
            return attempt()
        except _DeadEndError as error:
            failure = error
    raise failure


def _number(schema: Schema, path: str, *, is_integer: bool) -> float:
    """Return the simplest number that fits: next to zero, next to a bound, or between the bounds."""
    lowest = [_exact(schema[name]) for name in ("minimum", "exclusiveMinimum") if name in schema]
    highest = [_exact(schema[name]) for name in ("maximum", "exclusiveMaximum") if name in schema]
    step = _exact(schema.get("multipleOf", 1))
    if is_integer:
        step = Fraction(step.numerator)  # the smallest integer that is a multiple
    ends = [*lowest, *highest]
    candidates = [(end // step + offset) * step for end in [Fraction(0), *ends] for offset in (-1, 0, 1)]
    if not is_integer and "multipleOf" not in schema:
        candidates += ends
        candidates += [(low + high) / 2 for low in lowest for high in highest]
    for number in map(_plain, sorted(candidates, key=abs)):
        if (
            ("minimum" not in schema or number >= schema["minimum"])
            and ("maximum" not in schema or number <= schema["maximum"])
            and ("exclusiveMinimum" not in schema or number > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or number < schema["exclusiveMaximum"])
        ):
            return number
    raise _DeadEndError(_NOTHING_FITS, path)


def _exact(number: object) -> Fraction:
    """Return the number as it was written: 0.1 is a tenth. Raises `TypeError` if it is no number."""
    if not isinstance(number, int | float):  # the text "1e999999999" would take hours
        raise TypeError("no number")
    return Fraction(str(number))


def _plain(number: Fraction) -> float:
    """Return an `int` for a whole number of less than 64 bits, otherwise a `float`."""
    return int(number) if number.denominator == 1 and abs(number) < 2**63 else float(number)
