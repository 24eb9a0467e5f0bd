"""The smallest instance of a JSON schema: it fits, it is always the same, and no schema takes long."""

import json
import time
from itertools import cycle
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapi.worker.engines import sandbox_schema
from chatapi.worker.engines.sandbox_schema import MAX_CPU_S, MAX_SCHEMA_BYTES, SchemaError, instance

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "number"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
}
ANCESTOR = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 3}}, "required": ["id"]}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3},
    {"type": "array", "prefixItems": [{"const": 7}, {"type": "null"}]},
    {"type": ["null", "string"], "minLength": 12, "maxLength": 14},
    {"type": "string", "format": "date-time"},
    {"type": "integer", "exclusiveMinimum": 4.5, "multipleOf": 4},
    {"type": "number", "maximum": -3},
    {"type": "integer", "minimum": 1, "exclusiveMaximum": 2},
    {"enum": [{"x": [1]}, 2]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
            {"required": ["b"], "properties": {"b": {}}},
        ]
    },
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"$ref": "#/$defs/node", "$defs": {"node": {**NODE, "required": ["value", "next"]}}},
]
BOUNDED: list[dict[str, Any]] = [
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.2},
    {"type": "number", "exclusiveMinimum": 1e307, "exclusiveMaximum": 1.1e307},
    {"type": "integer", "maximum": -0.5},
    {"type": "integer", "minimum": 1e308},
    {"type": "integer", "minimum": 1, "multipleOf": 1.5},
    {"type": "string", "format": "email", "maxLength": 5},
    {"type": "array", "prefixItems": [{}, {}], "maxItems": 1},
    {"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1},
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"], "minProperties": 4},
    {"type": "string", "enum": [1, "a", "abc"], "minLength": 2},
    {"type": "string", "default": None},
    {"type": ["integer", "string"], "minimum": 2, "maximum": 1},
]
TOGETHER: list[dict[str, Any]] = [
    {"allOf": [{"type": "integer", "minimum": 5}, {"minimum": 1}]},
    {"allOf": [{"minimum": 1}, {"type": "integer", "exclusiveMinimum": 5}], "minimum": 3},
    {"allOf": [{"type": "integer", "maximum": -5}, {"exclusiveMaximum": -5}, {"maximum": -1}]},
    {"allOf": [{"type": "integer", "multipleOf": 4}, {"multipleOf": 6, "minimum": 1}]},
    {"allOf": [{"type": "string", "minLength": 9, "maxLength": 20}, {"minLength": 2, "maxLength": 10}]},
    {
        "allOf": [
            {"type": "array", "minItems": 2, "items": {"type": "integer"}},
            {"minItems": 1, "items": {"minimum": 2}},
        ]
    },
    {
        "allOf": [
            {"type": "array", "prefixItems": [{"minimum": 2}]},
            {"items": {"type": "integer"}, "minItems": 2},
        ]
    },
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"minimum": 2}}},
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        ]
    },
    {"allOf": [{"type": ["string", "null", "number"]}, {"type": ["integer", "null"]}]},
    {"allOf": [{"enum": [1, 2, 3]}, {"enum": [3, 2]}, {"maximum": 2}]},
    {"allOf": [{"const": 2}, {"enum": [1, 2]}]},
    {
        "allOf": [
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 4}]},
        ]
    },
    {"type": "integer", "minimum": 5, "anyOf": [{"maximum": 4}, {"multipleOf": 4}]},
    {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    {"$ref": "#/$defs/a", "maximum": -2, "$defs": {"a": {"type": "integer"}}},
    {"$ref": "#/$defs/a", "minItems": 1, "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
    {
        "allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/c"}],
        "$defs": {
            "a": ANCESTOR,
            "b": {"allOf": [{"$ref": "#/$defs/a"}]},
            "c": {"allOf": [{"$ref": "#/$defs/a"}]},
        },
    },
]
OPTIONAL: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"$ref": "#"}, "b": False, "c": {"type": "null"}}},
    {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}]},
    {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
]


@pytest.mark.parametrize("schema", [*SCHEMAS, *BOUNDED, *TOGETHER, *OPTIONAL])
def test_an_instance_fits_its_schema(schema: dict[str, Any]) -> None:
    made = instance(schema, cycle(["river"]))
    jsonschema.validate(made, schema)
    assert made == instance(schema, cycle(["river"]))


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
    assert instance({"type": "number", **bounds}, cycle(["river"])) == smallest


def test_strings_are_taken_from_the_words_in_turn() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    assert instance(schema, cycle(["stone", "road"])) == {"a": "stone", "b": "road"}


def test_a_recursive_type_ends_where_it_may() -> None:
    assert instance(SCHEMAS[-1], cycle(["river"])) == {"value": 0, "next": None}


def test_a_default_counts_where_it_fits() -> None:
    schema = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert instance(schema, cycle(["river"])) is None
    assert instance({"type": "integer", "minimum": 3, "default": 2}, cycle(["river"])) == 3


NOTHING: list[Any] = [
    False,
    {"enum": []},
    {"anyOf": []},
    {"oneOf": []},
    {"type": []},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"allOf": [{"const": 1}, {"const": 2}]},
    {"allOf": [{"const": True}, {"enum": [1]}]},
    {"allOf": [{"enum": [1, 2]}, {"enum": [3]}]},
    {"const": "a", "type": "integer"},
    {"type": "integer", "minimum": 2, "maximum": 1},
    {"type": "number", "minimum": 1e308, "maximum": -1},
    {"type": "number", "exclusiveMinimum": 1, "maximum": 1},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 4},
    {"allOf": [{"type": "integer", "minimum": 2}], "maximum": 1},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "array", "prefixItems": [{}], "items": False, "minItems": 2},
    {"type": "object", "minProperties": 2, "maxProperties": 1},
    {"type": "object", "required": ["a", "b"], "maxProperties": 1},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "object", "minProperties": 1, "additionalProperties": False},
    {
        "allOf": [
            {"type": "object", "additionalProperties": False},
            {"properties": {"a": {}}, "required": ["a"]},
        ]
    },
]


@pytest.mark.parametrize("schema", NOTHING)
def test_a_schema_that_no_value_fits_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError):
        instance(schema, cycle(["river"]))
    assert instance({"anyOf": [schema, {"type": "null"}]}, cycle(["river"])) is None


def doubling(kind: str) -> dict[str, Any]:
    """Each schema leads to the next one twice."""
    defs: dict[str, Any] = {
        f"a{place}": {kind: [{"$ref": f"#/$defs/a{place + 1}"}] * 2} for place in range(25)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**defs, "a25": {"type": "string", "minLength": 5_000}}}


KIB = 1_024
HOSTILE: dict[str, dict[str, Any]] = {
    "constants that differ at their end": {"allOf": [{"const": [1] * 200 + [last]} for last in range(140)]},
    "equal constants": {"allOf": [{"const": [1] * 70}] * 400},
    "constants of strings": {"allOf": [{"const": "x" * 50 + str(last)} for last in range(900)]},
    "enums": {"allOf": [{"enum": list(range(5_000))}, {"enum": list(range(-5_000, 0))}]},
    "an enum of arrays": {"enum": [["x" * 10, number] for number in range(3_000)], "type": "object"},
    "properties": {
        "type": "object",
        "properties": {f"p{number}": {"type": "string"} for number in range(1_800)},
    },
    "required": {"type": "object", "required": [f"p{number}" for number in range(6_000)]},
    "required again": {"type": "object", "allOf": [{"required": ["a"] * 999}] * 12},
    "a large constant again and again": {
        "type": "array",
        "minItems": 900,
        "items": {"const": "x" * (32 * KIB)},
    },
    "references that double": doubling("allOf"),
    "alternatives that double": doubling("anyOf"),
    "defaults": {"allOf": [{"default": "x" * 50 + str(last), "minLength": 10**8} for last in range(700)]},
    "a long reference": {"$ref": "#/" + "a/" * (30 * KIB)},
    "a cycle": {"$ref": "#"},
    "a long string": {"type": "string", "minLength": 10**9},
    "many items": {"type": "array", "minItems": 10**9},
    "many items in many": {
        "type": "array",
        "minItems": 30,
        "items": {"type": "array", "minItems": 30, "items": {"minItems": 30}},
    },
    "many properties": {"type": "object", "minProperties": 10**9},
    "a pattern": {"type": "string", "pattern": "(a+)+$", "minLength": 50},
    "steps": {"type": "number", "allOf": [{"multipleOf": 0.001 * place + 1e-9} for place in range(1, 400)]},
    "large numbers": {"type": "integer", "minimum": 10**300, "multipleOf": 7.3e-300},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_schema_takes_long_or_leads_to_a_long_answer(name: str) -> None:
    started = time.thread_time()
    try:
        made = instance(HOSTILE[name], cycle(["river"]))
    except SchemaError:
        made = None
    assert time.thread_time() - started < MAX_CPU_S + 0.1
    assert len(json.dumps(made)) < 1 << 20


def test_a_schema_is_weighed_by_its_bytes() -> None:
    assert instance({"const": "x" * (MAX_SCHEMA_BYTES - 100)}, cycle(["river"]))
    with pytest.raises(SchemaError, match=f"more than {MAX_SCHEMA_BYTES} bytes"):
        instance({"const": "x" * MAX_SCHEMA_BYTES}, cycle(["river"]))


def test_a_schema_that_takes_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_schema, "MAX_CPU_S", 0)
    with pytest.raises(SchemaError, match="takes too long"):
        instance({"type": "array", "minItems": 900}, cycle(["river"]))


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
BOMB: dict[str, Any] = {
    "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 100}},
    "$ref": "#/$defs/x",
}
FAN = {"anyOf": [{"$ref": "#"}] * 1_000}
CIRCLE = {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
CROWD = {"allOf": [{"anyOf": [{"enum": [n]}, {"enum": [-n]}], "title": str(n)} for n in range(1, 500)]}
WIDE = {"type": "object", "minProperties": 1e9}
DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"type": "array", "items": DEEP, "minItems": 1}
JUNK = [
    {"type": "object", "properties": [1]},
    {"anyOf": 5},
    {"type": "integer", "multipleOf": 0},
    {"$ref": "#/nowhere"},
    {"allOf": [1]},
]
ODD = [{"enum": {"a": 1}}, {"allOf": {"a": 1}}, {"type": "float"}, {"type": "string", "minLength": "1"}]
OPTIONAL_JUNK = [{"properties": {"a": {"$ref": "#/nowhere"}}}, {"properties": {"a": 5}}]
LONG: list[dict[str, Any]] = [
    {"allOf": [{"enum": [*range(500_000)]}, {"enum": [-1]}]},
    {"type": "array", "minItems": 900, "items": {"default": -1, "enum": [*range(500_000)]}},
    {"type": "number", "allOf": [{"multipleOf": 10**300 + n} for n in range(900)]},
]


@pytest.mark.parametrize(
    "schema", [ENDLESS, BOMB, FAN, CIRCLE, CROWD, WIDE, DEEP, *JUNK, *ODD, *OPTIONAL_JUNK, *LONG]
)
def test_a_schema_without_an_end_or_sense_is_refused_at_once(schema: dict[str, Any]) -> None:
    started = time.thread_time()
    with pytest.raises(SchemaError):
        instance(schema, cycle(["river"]))
    assert time.thread_time() - started < 0.5


SMALL = st.integers(-4, 4)
NUMBER_BOUNDS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": SMALL,
        "exclusiveMinimum": SMALL,
        "maximum": SMALL,
        "exclusiveMaximum": SMALL,
        "multipleOf": st.sampled_from([0.5, 1, 2, 3]),
    },
)
SIZE = st.integers(0, 3)
STRING_BOUNDS = st.fixed_dictionaries(
    {"type": st.just("string")}, optional={"minLength": SIZE, "maxLength": SIZE}
)
ARRAY_BOUNDS = st.fixed_dictionaries(
    {"type": st.just("array")}, optional={"minItems": SIZE, "maxItems": SIZE}
)
OBJECT_BOUNDS = st.fixed_dictionaries(
    {"type": st.just("object")}, optional={"minProperties": SIZE, "maxProperties": SIZE}
)
BOUNDS = st.one_of(
    *(
        st.lists(kind, min_size=1, max_size=2)
        for kind in (NUMBER_BOUNDS, STRING_BOUNDS, ARRAY_BOUNDS, OBJECT_BOUNDS)
    )
)
# Whatever these bounds allow, they allow one of these: quarters lie between any two of them, six is the
# largest common multiple.
PROBES: list[Any] = [
    *(quarter / 4 for quarter in range(-28, 29)),
    *("x" * size for size in range(4)),
    *([0] * size for size in range(4)),
    *({str(index): 0 for index in range(size)} for size in range(4)),
]


@settings(max_examples=150, deadline=None)
@given(BOUNDS)
def test_bounds_have_an_instance_exactly_when_a_value_fits(parts: list[dict[str, Any]]) -> None:
    validator = jsonschema.Draft202012Validator({"allOf": parts})
    try:
        made = instance(validator.schema, cycle(["river"]))
    except SchemaError:
        assert not any(validator.is_valid(value) for value in PROBES)
    else:
        assert validator.is_valid(made)
