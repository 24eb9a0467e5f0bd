"""The smallest instance of a JSON schema: it fits, it is always the same, and no schema takes long."""

import time
from itertools import cycle
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from chatapi.worker.engines.sandbox_schema import SchemaError, instance

NODE = {"type": "object", "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"], "additionalProperties": False},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3},
    {"type": "array", "prefixItems": [{"const": 7}, {"type": "null"}]},
    {"type": ["null", "string"], "minLength": 12, "maxLength": 14},
    {"type": "string", "format": "date-time"},
    {"type": "integer", "exclusiveMinimum": 4.5, "multipleOf": 4},
    {"type": "number", "maximum": -3},
    {"type": "integer", "minimum": 1, "exclusiveMaximum": 2},
    {"enum": [{"x": [1]}, 2]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"required": ["b"], "properties": {"b": {}}}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"$ref": "#/$defs/node", "$defs": {"node": {**NODE, "required": ["value", "next"]}}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_instance_fits_its_schema(schema: dict[str, Any]) -> None:
    made = instance(schema, cycle(["river"]))
    jsonschema.validate(made, schema)
    assert made == instance(schema, cycle(["river"]))


def test_strings_are_taken_from_the_words_in_turn() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    assert instance(schema, cycle(["stone", "road"])) == {"a": "stone", "b": "road"}


def test_a_recursive_type_ends_where_it_may() -> None:
    assert instance(SCHEMAS[-1], cycle(["river"])) == {"value": 0, "next": None}


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
BOMB: dict[str, Any] = {"$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 100}}, "$ref": "#/$defs/x"}
FAN = {"anyOf": [{"$ref": "#"}] * 1_000}
JUNK = [{"type": "object", "properties": [1]}, {"anyOf": 5}, {"type": "integer", "multipleOf": 0}, {"$ref": "#/nowhere"}, {"allOf": [1]}]
ODD = [{"enum": {"a": 1}}, {"allOf": {"a": 1}}]


@pytest.mark.parametrize("schema", [ENDLESS, BOMB, FAN, *JUNK, *ODD])
def test_a_schema_without_an_end_or_sense_is_refused_at_once(schema: dict[str, Any]) -> None:
    started = time.thread_time()
    with pytest.raises(SchemaError):
        instance(schema, cycle(["river"]))
    assert time.thread_time() - started < 0.5
