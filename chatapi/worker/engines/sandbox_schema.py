"""The smallest instance of a JSON schema, the same each time: what the sandbox says for `response_format` and
tool arguments. Pure.

Covers what structured outputs and tools use: types, enum, const, default, properties, items, bounds, formats,
anyOf, oneOf, allOf and local `$ref`. It knows nothing of `pattern`, `uniqueItems` and `not`. Values are
proposed, and the first one that fits is taken; all schemas that hold for it at once are kept side by side as
"parts" (see `sandbox_constraints`).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from chatapi.worker.engines.sandbox_constraints import (
    Digest,
    Schema,
    admits,
    at_least,
    at_most,
    digest,
    enumerated,
    item_schemas,
    known_keywords,
    numbers,
    property_schemas,
    types,
)

MAX_SCHEMA_BYTES = 65_536
"""Of one schema as JSON."""
MAX_DEPTH = 32
MAX_VALUES = 1_000
"""Looks at a part of the schema, of which each value takes one at least; one for each KiB of the part
(`digest`).
"""
MAX_STRING_CHARS = 1_000
MAX_CPU_S = 0.25
"""More than any schema takes that we know of. A bound of the thread's own time, so that a busy machine
refuses nothing.
"""

_TOO_LARGE = f"the JSON schema needs more than {MAX_DEPTH} levels or {MAX_VALUES} values"
_NOTHING_FITS = "no value fits the JSON schema"

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
    """No instance was found: no value fits, the schema never ends, is too large, or is not one."""


class _DeadEndError(SchemaError):
    """No instance was found here, but an alternative may have one, or the value may be left out."""


def instance(schema: object, words: Iterator[str]) -> object:
    """A value that fits the schema, its strings taken from the endless `words`; raises `SchemaError`.

    Takes up to `MAX_CPU_S`, so call it in a thread; no step of it keeps the interpreter from other threads.
    """
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"the JSON schema has more than {MAX_SCHEMA_BYTES} bytes")
    try:
        return _Builder(schema, words).build([schema], depth=0)
    except SchemaError:
        raise
    except (TypeError, AttributeError, ArithmeticError, LookupError, ValueError, RecursionError) as error:
        # Nobody has checked the schema: `properties` may be a list, `enum` an object, `multipleOf` zero.
        raise SchemaError("the JSON schema is not valid") from error


class _Builder:
    """One walk over one schema; `_left` bounds it, as references and alternatives can multiply."""

    def __init__(self, root: object, words: Iterator[str]) -> None:
        self._root = root
        self._words = words
        self._left = MAX_VALUES
        self._ends_at = time.thread_time() + MAX_CPU_S
        self._digests: dict[int, tuple[Digest, Schema]] = {}
        """By the part's identity; the part is kept, so that no other one gets its identity."""
        self._path: list[list[bytes]] = []
        self._by_type: dict[str, Callable[[list[Schema], int], Iterable[object]]] = {
            "object": self._objects,
            "array": self._arrays,
            "string": self._strings,
            "integer": lambda parts, _depth: numbers(parts, 1),
            "number": lambda parts, _depth: numbers(parts),
            "boolean": lambda _parts, _depth: [True, False],
            "null": lambda _parts, _depth: [None],
        }

    def build(self, schemas: list[object], depth: int) -> object:
        """The smallest value for which all `schemas` hold."""
        return self._entered([part for schema in schemas for part in self._parts(schema, depth)], depth)

    def _parts(self, schema: object, depth: int) -> Iterator[Schema]:
        """What the schema itself says, and what its `allOf` and `$ref` say."""
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        if not isinstance(schema, dict):
            raise SchemaError("a JSON schema must be an object")
        part = known_keywords(schema)
        self._spend(self._digest(part).weight)
        if depth > MAX_DEPTH:
            raise _DeadEndError(_TOO_LARGE)
        yield part
        for other in [
            *(schema.get("allOf") or []),
            *([self._resolve(schema["$ref"])] if "$ref" in schema else []),
        ]:
            yield from self._parts(other, depth + 1)

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise SchemaError(_TOO_LARGE)
        if time.thread_time() > self._ends_at:
            raise SchemaError("the JSON schema takes too long")

    def _digest(self, part: Schema) -> Digest:
        if id(part) not in self._digests:
            self._digests[id(part)] = digest(part), part
        return self._digests[id(part)][0]

    def _weight(self, parts: list[Schema]) -> int:
        return sum(self._digest(part).weight for part in parts)

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

    def _entered(self, parts: list[Schema], depth: int) -> object:
        """A value inside one of the same kind can't be part of the smallest one: there must be another
        alternative further up.
        """
        distinct: dict[bytes, Schema] = {}
        for part in filter(None, parts):
            distinct.setdefault(self._digest(part).sha256, part)
        parts, digests = list(distinct.values()), list(distinct)
        if digests in self._path:
            raise _DeadEndError("the JSON schema never ends")
        self._path.append(digests)
        try:
            return _first_fitting(parts, self._proposed(parts, depth))
        finally:
            self._path.pop()

    def _proposed(self, parts: list[Schema], depth: int) -> Iterator[object]:
        """A default, though nobody compares it with alternatives beside it; then what these, the named values
        or the types lead to.
        """
        yield from (part["default"] for part in parts if "default" in part)
        alternatives = _alternatives(parts)
        values = enumerated(parts)
        if alternatives is not None:
            others, schemas = alternatives
            yield _first_made(partial(self._alternative, others, schema, depth + 1) for schema in schemas)
        elif values is not None:
            yield from self._counted(values, self._weight(parts))
        else:
            yield _first_made(partial(self._of_type, name, parts, depth) for name in types(parts))

    def _counted(self, values: list[object], cost: int) -> Iterator[object]:
        """The values; all but the first one cost something, as each is compared with everything else."""
        yield from values[:1]
        for value in values[1:]:
            self._spend(cost)
            yield value

    def _alternative(self, others: list[Schema], schema: object, depth: int) -> object:
        self._spend(self._weight(others))
        return self._entered([*others, *self._parts(schema, depth)], depth)

    def _of_type(self, name: str, parts: list[Schema], depth: int) -> object:
        return _first_fitting(parts, self._by_type[name](parts, depth))

    def _objects(self, parts: list[Schema], depth: int) -> Iterator[object]:
        """The required properties; all of them when none is required, so that a tool call shows its
        arguments.
        """
        required = dict.fromkeys(name for part in parts for name in part.get("required", []))
        made = {name: self.build(property_schemas(parts, name), depth + 1) for name in required}
        fewest = at_least(parts, "minProperties")
        wanted = fewest if required else at_most(parts, "maxProperties")
        self._add(made, (name for part in parts for name in part.get("properties", {})), wanted, parts, depth)
        self._add(made, (f"property_{index}" for index in range(1, fewest + 1)), fewest, parts, depth)
        yield made

    def _add(
        self, made: dict[str, object], names: Iterable[str], wanted: int, parts: list[Schema], depth: int
    ) -> None:
        """Optional properties, up to `wanted` in all, without those that can't have a value."""
        for name in names:
            if len(made) >= wanted:
                return
            if name not in made:
                with suppress(_DeadEndError):
                    made[name] = self.build(property_schemas(parts, name), depth + 1)

    def _arrays(self, parts: list[Schema], depth: int) -> Iterator[object]:
        """As few items as may be, but those that have a schema of their own."""
        fewest = at_least(parts, "minItems")
        own = max((len(part.get("prefixItems", [])) for part in parts), default=0)
        made = [self.build(item_schemas(parts, index), depth + 1) for index in range(fewest)]
        with suppress(_DeadEndError):
            for index in range(fewest, min(own, at_most(parts, "maxItems"))):
                made.append(self.build(item_schemas(parts, index), depth + 1))
        yield made

    def _strings(self, parts: list[Schema], _depth: int) -> Iterator[object]:
        yield from (_FORMATS[part["format"]] for part in parts if part.get("format") in _FORMATS)
        shortest = at_least(parts, "minLength")
        if shortest > MAX_STRING_CHARS:
            raise _DeadEndError(f"the JSON schema needs a string of more than {MAX_STRING_CHARS} characters")
        yield next(self._words).ljust(shortest, "-")[: at_most(parts, "maxLength")]


def _alternatives(parts: list[Schema]) -> tuple[list[Schema], list[object]] | None:
    """The first `anyOf` or `oneOf`, after all that holds beside it."""
    for index, part in enumerate(parts):
        for keyword in ("anyOf", "oneOf"):
            if keyword in part:
                rest = {name: said for name, said in part.items() if name != keyword}
                return [*parts[:index], *([rest] if rest else []), *parts[index + 1 :]], part[keyword]
    return None


def _first_fitting(parts: list[Schema], proposed: Iterable[object]) -> object:
    for value in proposed:
        if admits(parts, value):
            return value
    raise _DeadEndError(_NOTHING_FITS)


def _first_made(attempts: Iterable[Callable[[], object]]) -> object:
    """What the first attempt makes that ends; in a recursive type that is often the second one, `null`."""
    failure = _DeadEndError(_NOTHING_FITS)
    for attempt in attempts:
        try:
            return attempt()
        except _DeadEndError as error:
            failure = error
    raise failure
