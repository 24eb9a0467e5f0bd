"""The API's reference: the operations and schemas of the OpenAPI document, ready for templates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.utils.safestring import SafeString

from chatapi.api.openapi import content
from chatapi.docs.markdown import blocks, inline
from chatapi.docs.schemas import Field, Schema, Words, fields, words
from chatapi.wire.protocols import PROTOCOLS

_GROUPS = {
    "completions": "Completions",
    "responses": "Responses",
    "messages": "Messages",
    "generations": "Generations",
    "models": "Models",
    "account": "The calling key",
    "organization": "Usage, costs and statements",
    "management": "Management",
}
"""The titles of the document's tags, in the order of the index."""
_TAGS = {operation.tag for protocol in PROTOCOLS.values() for operation in protocol.operations}
assert _GROUPS.keys() >= _TAGS, "a tag of the operations has no title"


@dataclass(frozen=True)
class Answer:
    """An answer of an operation: its status and the type of each kind of content."""

    status: str
    description: SafeString
    contents: Mapping[str, Sequence[Words]]
    headers: Sequence[str]


@dataclass(frozen=True)
class Operation:
    """A method of a route."""

    id: str
    method: str
    path: str
    group: str
    summary: str
    description: SafeString
    parameters: Sequence[Field]
    body: Sequence[Words]
    body_fields: Sequence[Field]
    answers: Sequence[Answer]


@dataclass(frozen=True)
class Object:
    """A schema of the document."""

    name: str
    description: SafeString
    type: Sequence[Words]
    fields: Sequence[Field]


@cache
def operations() -> Mapping[str, Operation]:
    found = [
        _operation(path, method, operation)
        for path, item in content()["paths"].items()
        for method, operation in item.items()
    ]
    return {operation.id: operation for operation in found}


def groups() -> dict[str, list[Operation]]:
    """Return the operations by the titles of their groups, for the index."""
    return {
        title: [operation for operation in operations().values() if operation.group == title]
        for title in _GROUPS.values()
    }


@cache
def schema(name: str) -> Object | None:
    """Return the schema, or None if there is none of this name."""
    found = _schemas().get(name)
    if found is None:
        return None
    members = fields(found)
    return Object(name, blocks(found.get("description", "")), [] if members else list(words(found)), members)


def _schemas() -> Mapping[str, Schema]:
    schemas: Mapping[str, Schema] = content()["components"]["schemas"]
    return schemas


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Operation:
    body = _only_content(operation.get("requestBody", {}))
    whole = _schemas()[body["$ref"].rpartition("/")[2]] if "$ref" in body else body
    return Operation(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        group=_GROUPS[operation["tags"][0]],
        summary=operation["summary"],
        description=blocks(operation["description"]),
        parameters=[_parameter(each) for each in operation["parameters"]],
        body=list(words(body)) if body else [],
        body_fields=fields(whole),
        answers=[_answer(status, each) for status, each in operation["responses"].items()],
    )


def _only_content(body: Mapping[str, Any]) -> Schema:
    contents: Mapping[str, Mapping[str, Schema]] = body.get("content", {})
    return next((each["schema"] for each in contents.values()), {})


def _parameter(parameter: Mapping[str, Any]) -> Field:
    return Field(
        parameter["name"],
        list(words(parameter["schema"])),
        parameter["required"],
        inline(parameter["description"]),
        place=parameter["in"],
    )


def _answer(status: str, answer: Mapping[str, Any]) -> Answer:
    contents = {
        media_type: list(words(each["schema"])) for media_type, each in answer.get("content", {}).items()
    }
    return Answer(status, inline(answer["description"]), contents, list(answer.get("headers", {})))
