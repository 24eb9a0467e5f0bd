"""The schemas of the OpenAPI document: those of all protocols, of the resources and of the management API."""

from collections.abc import Mapping
from typing import Any

import msgspec

from chatapi.api.management import ROUTES
from chatapi.api.organization import REPORTS
from chatapi.api.resources import Key, ModelList, Receipt
from chatapi.api.statements import StatementPage
from chatapi.wire.api_reference import REF, TEXT, TEXT_OR_NULL, Schema, new_object, ref
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.request_body import client_parameters
from usage.statements.document import StatementDocument


def ref_to(type_: Any) -> Schema:
    found, _ = msgspec.json.schema_components([type_], ref_template=REF)
    return dict(found[0])


def all_schemas() -> dict[str, Schema]:
    operations = [each for protocol in PROTOCOLS.values() for each in protocol.operations]
    requests = [operation.request for operation in operations]
    managing = [operation for route in ROUTES for operation in route.operations.values()]
    types = [*requests, ModelList, Key, Receipt, *(report.pages.page for report in REPORTS.values())]
    types += [StatementPage, StatementDocument]
    types += [each for operation in managing for each in (operation.body, operation.answer) if each]
    _, found = msgspec.json.schema_components(types, ref_template=REF)
    for schema in found.values():
        schema["description"] = " ".join(schema.get("description", "").split())
    for request_type in requests:
        schema, sent = found[request_type.__name__], client_parameters(request_type)
        schema["properties"] = {name: schema["properties"][name] for name in sent}
        schema["required"] = [name for name in schema["required"] if name in sent]
    for operation in operations:
        for name, rules in operation.rules.items():
            found[name] = _merged(found[name], rules)
    schemas: dict[str, Schema] = ecma_patterns(found)
    events = sorted({operation.event for operation in operations if operation.event})
    any_chunk = {
        "anyOf": [ref(name) for name in events],
        "description": "A piece of a streamed answer of any protocol.",
    }
    own = {name: dict(schema) for operation in operations for name, schema in operation.schemas.items()}
    return schemas | _ANSWERS | {"AnyChunk": any_chunk} | own


def _merged(schema: Schema, rules: Mapping[str, Any]) -> Schema:
    """Return the schema with these members; those that are objects in both are merged."""
    merged = {
        name: _merged(schema[name], rule) if isinstance(rule, dict) and name in schema else rule
        for name, rule in rules.items()
    }
    return schema | merged


def ecma_patterns(schema: Any) -> Any:
    r"""Return the schema with ECMAScript's patterns, as JSON Schema demands: `\Z` becomes `$`."""
    match schema:
        case dict():
            return {
                key: value.replace(r"\Z", "$") if key == "pattern" else ecma_patterns(value)
                for key, value in schema.items()
            }
        case list():
            return [ecma_patterns(item) for item in schema]
        case _:
            return schema


_ANSWERS: dict[str, Schema] = {
    "Accepted": new_object(
        "A generation that runs without its client (`Prefer: respond-async`).",
        "id object stream_url receipt_url",
        object={"const": "generation"},
        **dict.fromkeys(("id", "stream_url", "receipt_url"), TEXT),
    ),
    "Cancellation": new_object(
        "The state of a generation that was cancelled.",
        "object id state",
        **{"object": {"const": "generation.cancellation"}, "id": TEXT},
        state={"enum": ["cancelling", "settled"]},
    ),
    "Error": new_object(
        "The form of every error (OpenAI's `ErrorResponse`).",
        "error",
        error=new_object(
            "What is wrong.",
            "message type param code",
            **{"message": TEXT, "type": TEXT, "param": TEXT_OR_NULL, "code": TEXT_OR_NULL},
        ),
    ),
}
