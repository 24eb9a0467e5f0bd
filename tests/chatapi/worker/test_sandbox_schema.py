"""The smallest instance of a JSON schema: it fits, it is always the same, and no schema takes long."""

import json
import time
from itertools import cycle
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapi.worker.engines.sandbox.schema import FORMATS, MAX_SCHEMA_BYTES, SchemaError, instance

MAX_CPU_S = 0.1


def made(schema: Any) -> Any:
    return instance(schema, cycle(["river"]), "schema")


def refusal(schema: Any) -> SchemaError:
    with pytest.raises(SchemaError) as raised:
        made(schema)
    return raised.value


NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "number"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
}
STRUCTURED: list[dict[str, Any]] = [
    {},
    {"title": "Anything", "description": "at all", "default": 1, "examples": [2]},
    {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
    {"type": "array", "items": {"pattern": "never looked at"}},
    {"type": ["null", "string"], "format": "date-time"},
    {"enum": [{"x": [1]}, 2]},
    {"type": "string", "enum": [1, "a"]},
    {"const": "a", "enum": ["b", "a"], "type": "string"},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"anyOf": [{"type": "integer", "minimum": 2, "maximum": 1}, {"type": "string"}]},
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}, "description": "A list."},
    {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}},
    {"type": ["integer", "string"], "minimum": 2, "maximum": 1},
    {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"enum": []}, "c": {"type": "null"}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}}}, "required": ["a"]},
]
NUMBERS: list[dict[str, Any]] = [
    {"type": "integer", "exclusiveMinimum": 4.5, "multipleOf": 4},
    {"type": "number", "maximum": -3},
    {"type": "integer", "minimum": 1, "exclusiveMaximum": 2},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.2},
    {"type": "number", "exclusiveMinimum": 1e307, "exclusiveMaximum": 1.1e307},
    {"type": "integer", "maximum": -0.5},
    {"type": "integer", "minimum": 1e308},
    {"type": "integer", "minimum": 1, "multipleOf": 1.5},
]


@pytest.mark.parametrize("schema", [*STRUCTURED, *NUMBERS])
def test_an_instance_fits_its_schema(schema: dict[str, Any]) -> None:
    jsonschema.validate(made(schema), schema)
    assert made(schema) == made(schema)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_an_example(name: str) -> None:
    schema = {"type": "string", "format": name}
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(made(schema))


@pytest.mark.parametrize(
    ("bounds", "smallest"),
    [
        ({}, 0),
        ({"minimum": 0.2}, 0.2),
        ({"minimum": -9, "exclusiveMaximum": -3}, -4),
        ({"exclusiveMinimum": 0}, 1),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"exclusiveMinimum": 0.2, "multipleOf": 0.1}, 0.3),
    ],
)
def test_a_number_is_the_simplest_one_next_to_zero(bounds: dict[str, float], smallest: float) -> None:
    assert made({"type": "number", **bounds}) == smallest


def test_strings_are_taken_from_the_words_in_turn() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    assert instance(schema, cycle(["stone", "road"]), "schema") == {"a": "stone", "b": "road"}


def test_properties_come_in_the_order_of_the_schema() -> None:
    properties = {"b": {"type": "null"}, "a": {"type": "null"}, "c": {"type": "null"}}
    assert list(made({"properties": properties, "required": ["a", "b"]})) == ["b", "a"]


def test_a_recursive_type_ends_where_it_may() -> None:
    assert made({"$ref": "#/$defs/node", "$defs": {"node": NODE}}) == {"value": 0, "next": None}


# ---- refused: what does not belong to the subset, and what has no instance


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "string", "pattern": "^a$"}, "'pattern'"),
        ({"type": "string", "minLength": 3}, "'minLength'"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"oneOf": [{"type": "null"}]}, "'oneOf'"),
        ({"allOf": [{"type": "null"}]}, "'allOf'"),
        ({"not": {}}, "'not'"),
        ({"type": "string", "format": "color"}, "'format' can be date-time"),
        ({"type": "object", "anyOf": [{"type": "object"}]}, "'type' beside 'anyOf'"),
        ({"$ref": "#/$defs/any", "minimum": 1}, "'minimum' beside '$ref'"),
        ({"enum": [1, 2], "minimum": 2}, "'minimum' beside 'enum'"),
        ({"type": "object", "required": ["b"]}, "the required 'b'"),
        ({"$ref": "#/nowhere"}, "'#/nowhere'"),
        ({"$ref": "#any"}, "'#any'"),
        ({"$ref": "other.json#/a"}, "'other.json#/a'"),
        ({"type": "float"}, "'float'"),
        (True, "must be an object"),
    ],
)
def test_what_is_not_supported_is_named_with_its_path(part: Any, named: str) -> None:
    error = refusal(
        {"properties": {"a": {"type": "array", "minItems": 1, "items": part}}, "$defs": {"any": {}}}
    )
    assert (error.path, named in str(error)) == ("schema.properties.a.items", True)


def test_the_path_follows_references_and_alternatives() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"enum": []}, {"type": "string", "not": {}}]}}}
    assert refusal(schema).path == "schema.$defs.a.anyOf[1]"


NOTHING: list[Any] = [
    {"enum": []},
    {"anyOf": []},
    {"type": []},
    {"const": "a", "type": "integer"},
    {"const": True, "enum": [1]},
    {"type": "integer", "minimum": 2, "maximum": 1},
    {"type": "number", "minimum": 1e308, "maximum": -1},
    {"type": "number", "exclusiveMinimum": 1, "maximum": 1},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 4},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]},
]


@pytest.mark.parametrize("schema", NOTHING)
def test_a_schema_that_no_value_fits_is_refused(schema: Any) -> None:
    refusal(schema)
    assert made({"anyOf": [schema, {"type": "null"}]}) is None


def test_a_schema_is_weighed_by_its_bytes() -> None:
    assert made({"const": "x" * (MAX_SCHEMA_BYTES - 100)})
    assert f"more than {MAX_SCHEMA_BYTES} bytes" in str(refusal({"const": "x" * MAX_SCHEMA_BYTES}))


DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"type": "array", "items": DEEP, "minItems": 1}
ENDLESS: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 100}}, "$ref": "#/$defs/x"},
    {"anyOf": [{"$ref": "#"}] * 1_000},
    DEEP,
]
JUNK: list[dict[str, Any]] = [
    {"type": "object", "properties": [1]},
    {"anyOf": 5},
    {"type": "integer", "multipleOf": 0},
    {"enum": {"a": 1}},
    {"type": "array", "minItems": "1"},
    {"type": 5},
    {"$ref": 5},
    {"properties": {"a": 5}},
    {"type": "integer", "minimum": "1"},
    {"type": "number", "minimum": "1e99999"},
    {"type": "integer", "multipleOf": "1e-99999"},
]


@pytest.mark.parametrize("schema", [*ENDLESS, *JUNK])
def test_a_schema_without_an_end_or_sense_is_refused(schema: dict[str, Any]) -> None:
    refusal(schema)


# ---- no schema takes long


def doubling() -> dict[str, Any]:
    """Return schemas each of which refers to the next one twice, and the last one to nothing."""
    defs: dict[str, Any] = {
        f"a{place}": {"anyOf": [{"$ref": f"#/$defs/a{place + 1}"}] * 2} for place in range(12)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**defs, "a12": {"enum": []}}}


KIB = 1_024
HOSTILE: dict[str, dict[str, Any]] = {
    "a bound that is a text": {"type": "number", "minimum": "1e20000000"},
    "equal constants": {"allOf": [{"const": [1] * 70}] * 400},
    "an enum of arrays": {"enum": [["x" * 10, number] for number in range(3_000)], "type": "object"},
    "enums again and again": {
        "type": "array",
        "minItems": 900,
        "items": {"enum": [*[0] * (30 * KIB), None], "type": "null"},
    },
    "a constant in a large enum": {
        "type": "array",
        "minItems": 900,
        "items": {"enum": [*range(10_000), "x"], "const": "x"},
    },
    "properties": {
        "type": "object",
        "properties": {f"p{number}": {"type": "string"} for number in range(1_800)},
    },
    "required": {"type": "object", "required": [f"p{number}" for number in range(6_000)]},
    "all required": {
        "properties": {f"p{number}": {} for number in range(2_500)},
        "required": [f"p{number}" for number in range(2_500)],
    },
    "required again and again": {
        "type": "array",
        "minItems": 900,
        "items": {"properties": {"a": {}}, "required": ["a"] * 9_999},
    },
    "a large constant again and again": {
        "type": "array",
        "minItems": 900,
        "items": {"const": "x" * (32 * KIB)},
    },
    "alternatives that double": doubling(),
    "alternatives by the thousand": {"anyOf": [{"$ref": "#"}] * 4_000},
    "alternatives behind a long name": {
        "properties": {"x" * (30 * KIB): {"anyOf": [{"enum": []}] * 2_000}},
        "required": ["x" * (30 * KIB)],
    },
    "a long reference": {"$ref": "#/" + "a/" * (30 * KIB)},
    "many items": {"type": "array", "minItems": 10**9},
    "many items in many": {
        "type": "array",
        "minItems": 30,
        "items": {"type": "array", "minItems": 30, "items": {"type": "array", "minItems": 30}},
    },
    "a pattern": {"type": "string", "pattern": "(a+)+$"},
    "large numbers": {"type": "integer", "minimum": 10**300, "multipleOf": 7.3e-300},
    "large numbers again and again": {
        "type": "array",
        "minItems": 900,
        "items": {"type": "number", "minimum": 10**306, "maximum": 10**306 + 1, "multipleOf": 1.7e-307},
    },
    "an integer of many digits": {"type": "integer", "minimum": 10**4_000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_schema_takes_long_or_leads_to_a_long_answer(name: str) -> None:
    started = time.thread_time()
    try:
        answer = made(HOSTILE[name])
    except SchemaError:
        answer = None
    assert time.thread_time() - started < MAX_CPU_S
    assert len(json.dumps(answer)) <= 1 << 20


SMALL = st.integers(-4, 4)
BOUNDS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": SMALL,
        "exclusiveMinimum": SMALL,
        "maximum": SMALL,
        "exclusiveMaximum": SMALL,
        "multipleOf": st.sampled_from([0.5, 1, 2, 3]),
    },
)


@settings(max_examples=150)
@given(BOUNDS)
def test_bounds_have_an_instance_exactly_when_a_number_fits(schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    try:
        number = made(schema)
    except SchemaError:
        # Quarters lie between any two of these bounds, and six is the largest multiple.
        assert not any(validator.is_valid(quarter / 4) for quarter in range(-28, 29))
    else:
        assert validator.is_valid(number)
