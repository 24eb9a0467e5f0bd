"""The routes of the OpenAPI document, from their descriptions beside the routes' code."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from accounts.authentication import KEY_HEADERS
from chatapi.api import generations_reference
from chatapi.api.management import ROUTES
from chatapi.api.openapi_operations import new_operation, security_with, with_errors
from chatapi.api.openapi_schemas import ecma_patterns, ref_to
from chatapi.api.organization import REPORTS, Report
from chatapi.api.statements import StatementOfMonth, Statements
from chatapi.api.views import Key, Models, OneModel, Receipt
from chatapi.wire.api_reference import (
    REQUEST_ID,
    TEXT,
    Route,
    Schema,
    events,
    new_answer,
    new_body,
    new_parameter,
    ref,
)
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.protocols import PROTOCOLS, Operation, Protocol, all_key_headers

_COMPLETION = (402, 404, 409, 410, 415, 422, 502, 504)


_DIALECT = new_parameter(
    "header",
    "X-ChatAPI-Dialect",
    {"enum": list(DIALECTS), **TEXT},
    "The dialect of the answer; it overrides the URL prefix and the key's default.",
)
_IDEMPOTENCY_KEY = new_parameter(
    "header",
    "Idempotency-Key",
    {"minLength": 1, "maxLength": 255, **TEXT},
    "The same key again gives the same answer, and costs nothing.",
)
_PREFER = new_parameter(
    "header", "Prefer", {"const": "respond-async"}, "`respond-async` answers with 202 at once (RFC 7240)."
)
# The views that read, without reports, in the document's order.
_READINGS = (Receipt, Key, Models, OneModel, Statements, StatementOfMonth)


def paths() -> dict[str, Schema]:
    """Return the operations by path and method."""
    found: dict[str, Schema] = {}
    for protocol in PROTOCOLS.values():
        for operation in protocol.operations:
            found[operation.path] = {"post": _creation(operation, protocol)}
    for protocol in PROTOCOLS.values():
        for route in protocol.routes:
            found.setdefault(route.path, {})[route.method] = _operation(route, protocol.key_headers)
    for route in generations_reference.ROUTES:
        found.setdefault(route.path, {})[route.method] = _operation(route, all_key_headers())
    for route in (view.reference for view in _READINGS):
        found.setdefault(route.path, {})[route.method] = _operation(route, KEY_HEADERS)
    reports = {f"/v1/organization/{path}": _report(report) for path, report in REPORTS.items()}
    return found | reports | _management()


def _creation(operation: Operation, protocol: Protocol) -> Schema:
    found = new_operation(
        (operation.tag, operation.operation_id, operation.summary),
        operation.description,
        parameters=[_DIALECT, _IDEMPOTENCY_KEY, *([_PREFER] if operation.event else [])],
        body=new_body(operation.request.__name__, operation.example, protocol.media_type),
        answers=_completion(operation.answer, operation.event, protocol.answer_media_type),
        errors=_COMPLETION,
    )
    found["security"] = security_with(protocol.key_headers)
    return with_errors(found, operation.error, operation.overloaded_status)


def _operation(route: Route, key_headers: Iterable[str]) -> Schema:
    operation = new_operation(
        (route.tag, route.operation_id, route.summary),
        route.description,
        parameters=[*([_DIALECT] if route.chooses_dialect else []), *route.parameters],
        body=route.body,
        answers=route.answers,
        errors=route.errors,
    )
    return operation | {"security": security_with(key_headers) if route.needs_key else []}


def _management() -> dict[str, Schema]:
    """Return the operations of the management API, whose data is beside its routes."""
    found: dict[str, Schema] = {}
    for route in ROUTES:
        path = re.sub(r"<\w+:(\w+)>", r"{\1}", f"/v1/{route.below}{route.path}")
        inside = [new_parameter("path", name, TEXT, "Its id.") for name in re.findall(r"{(\w+)}", path)]
        found[path] = {
            method.lower(): new_operation(
                ("management", each.id, each.summary),
                f"Needs a key whose role permits `{each.permission}`. {each.description}".strip(),
                answers={200: {"description": "The result."} | _json(each.answer), 409: _OVERTAKEN},
                errors=(404, 415),
                parameters=[*inside, *_query(each.query)],
                body=None if each.body is None else {"required": True} | _json(each.body),
            )
            for method, each in route.operations.items()
        }
    return found


def _json(type_: Any) -> Schema:
    return {"content": {"application/json": {"schema": ref_to(type_)}}}


def _query(query_type: type[msgspec.Struct] | None) -> Iterable[Schema]:
    """Yield the parameters of a query; lists are repeated, with brackets."""
    if query_type is None:
        return
    _, components = msgspec.json.schema_components([query_type])
    for name, schema in components[query_type.__name__]["properties"].items():
        plain = ecma_patterns(schema.get("anyOf", [schema])[0])
        shown = f"{name}[]" if plain.get("type") == "array" else name
        yield new_parameter("query", shown, plain, "As in OpenAI's API reference.")


def _report(report: Report) -> dict[str, Schema]:
    spec = report.spec
    limits = ", ".join(f"`{word}`: {usual}, at most {most}" for word, (_, usual, most) in spec.widths.items())
    width = {"type": "string", "enum": list(spec.widths), "default": "1d"}
    number: Schema = {"type": "integer"}
    parameters = {
        "start_time": (number, "Unix seconds; the bucket that it lies in is the first one."),
        "end_time": (number, "Unix seconds, not included; now if it is left out."),
        "bucket_width": (width, "How long a bucket is."),
        "group_by[]": (_texts(list(spec.groups)), "Dimensions with their own results; the others are null."),
        "project_ids[]": (_texts(), "Only these projects."),
        "end_users[]": (_texts(), "Only these end users, of projects that count them; by the day."),
        "api_key_ids[]": (_texts(), "Only these keys."),
        f"{spec.models}[]": (_texts(), "Only these models."),
        "limit": (number, f"Buckets of a page ({limits})."),
        "page": (TEXT, "The `next_page` of the page before."),
    }
    query = [
        new_parameter("query", name, schema, description, required=name == "start_time")
        for name, (schema, description) in parameters.items()
    ]
    answers = {
        200: new_answer("Buckets, oldest first.", report.pages.page.__name__),
        400: new_answer("A parameter is missing or wrong; `param` names it.", "Error"),
        403: new_answer("The key is not an admin key, or lacks the scope `usage`.", "Error"),
    }
    names = "organization", report.operation_id, report.summary
    return {"get": new_operation(names, "For admin keys.", parameters=query, answers=answers)}


def _texts(allowed: list[str] | None = None) -> Schema:
    return {"type": "array", "items": TEXT | ({} if allowed is None else {"enum": allowed})}


_OVERTAKEN = new_answer("Another request changed the object first, so nothing was changed.", "Error")


def _completion(schema: str, event: str | None, media_type: str) -> dict[int, Schema]:
    headers = REQUEST_ID | {"X-Generation-Id": {"schema": TEXT}}
    completion = new_answer("The completion. `X-Generation-Id` names its receipt.", schema, headers)
    completion["content"] = {media_type: {"schema": ref(schema)}}
    if event is None:
        return {200: completion}
    completion["content"] |= events(event)
    return {
        200: completion,
        202: new_answer("It runs; its stream is at `Location`.", "Accepted", REQUEST_ID),
    }
