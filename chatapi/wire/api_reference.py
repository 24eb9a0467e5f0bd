"""Building blocks for the API's reference (OpenAPI), for modules that describe routes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Schema = dict[str, Any]

REF: Final = "#/components/schemas/{name}"
TEXT: Final[Schema] = {"type": "string"}
TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
NUMBER: Final[Schema] = {"type": "integer"}
NULL: Final[Schema] = {"type": "null"}
REQUEST_ID: Final[Schema] = {"X-Request-Id": {"schema": TEXT}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The reference's text about a route that is no `Operation`, which answers a protocol's requests."""

    method: str
    """In lower case."""
    path: str
    tag: str
    operation_id: str
    summary: str
    description: str
    answers: Mapping[int, Schema]
    errors: Sequence[int] = ()
    """The statuses of errors beside those that every route has."""
    parameters: Sequence[Schema] = ()
    body: Schema | None = None
    chooses_dialect: bool = False
    """Whether a header of the request chooses the answer's dialect."""
    needs_key: bool = True


def ref(name: str) -> Schema:
    return {"$ref": REF.format(name=name)}


def new_object(description: str, required: str, **properties: Schema) -> Schema:
    """Return the schema of an object; `required` has the names of members, separated by spaces."""
    names = required.split()
    return {"type": "object", "description": description, "required": names, "properties": properties}


def new_array(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


def given(member: str, schema: Schema | None = None) -> Schema:
    """Return a schema for objects whose `member` matches the schema, by default any value but null."""
    return {"required": [member], "properties": {member: schema or {"not": NULL}}}


def new_parameter(
    place: str, name: str, schema: Schema, description: str, *, required: bool = False
) -> Schema:
    """Return a parameter; one in a path is always required."""
    required = required or place == "path"
    return {"name": name, "in": place, "required": required, "schema": schema, "description": description}


def new_body(schema: str, example: Mapping[str, Any], media_type: str = "application/json") -> Schema:
    content = {"schema": ref(schema), "example": {"model": "sandbox", **example}}
    return {"required": True, "content": {media_type: content}}


def new_answer(description: str, schema: str, headers: Schema | None = None) -> Schema:
    """Return a JSON answer with the schema of that name."""
    answer = {"description": description, "content": {"application/json": {"schema": ref(schema)}}}
    return answer if headers is None else answer | {"headers": headers}


def new_stream(chunk: str) -> Schema:
    """Return a streamed answer: the data of its events has the schema of that name."""
    return {"description": "The stream.", "headers": REQUEST_ID, "content": events(chunk)}


def events(chunk: str) -> Schema:
    """Return the content of a streamed answer, by media type."""
    # OpenAPI 3.1 has no word for streams; tools apply the schema to each event.
    error = {"type": "object", "required": ["error"], "description": "Why the stream breaks off."}
    content = {"anyOf": [ref(chunk), error]}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    event = {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}},
        "description": "A server-sent event; in most dialects the last one is `[DONE]`.",
    }
    return {"text/event-stream": {"schema": event}}


PAGE: Final[Sequence[Schema]] = (
    new_parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": 100}, "20 if absent."),
    new_parameter("query", "after", TEXT, "The id of the last item of the page before."),
)
TOKEN_IDS: Final = new_array({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, minItems=1)
