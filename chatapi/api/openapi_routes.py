"""The routes of the OpenAPI document, from their descriptions beside the routes' code."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from chatapi.api import generations_reference
from chatapi.api.generations_reference import GENERATION_ID
from chatapi.api.management import ROUTES
from chatapi.api.openapi_operations import new_operation, security_with, with_errors
from chatapi.api.openapi_schemas import ecma_patterns, ref_to
from chatapi.api.organization import REPORTS, Report
from chatapi.wire.api_reference import (
    PAGE,
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
from usage.statements.formats import FORMATS

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
_MODEL = new_parameter("path", "model", TEXT, "The model's id; it may contain slashes.")
_MODELS_PAGE = [
    new_parameter(
        "query",
        "limit",
        {"type": "integer", "minimum": 1, "maximum": 1_000},
        "The most models of a page; without it, all.",
    ),
    new_parameter("query", "after_id", TEXT, "The `last_id` of the page before."),
    new_parameter("query", "before_id", TEXT, "The `first_id` of the page behind."),
    new_parameter(
        "query",
        "lifecycle[]",
        {"type": "array", "items": {"enum": ["active", "deprecated", "retired"], **TEXT}},
        "Only models in these stages.",
    ),
]


def paths() -> dict[str, Schema]:
    """Return the operations by path and method. Those of the protocols, of generations and of the management
    API are described beside their code, the others here.
    """
    found: dict[str, Schema] = {}
    for protocol in PROTOCOLS.values():
        for operation in protocol.operations:
            found[operation.path] = {"post": _creation(operation, protocol)}
    for protocol in PROTOCOLS.values():
        for route in protocol.routes:
            found.setdefault(route.path, {})[route.method] = _operation(route, protocol.key_headers)
    for route in generations_reference.ROUTES:
        found.setdefault(route.path, {})[route.method] = _operation(route, all_key_headers())
    return found | _readings() | _management()


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


def _readings() -> dict[str, Schema]:
    return {
        "/v1/generations/{generation_id}": _retrieval(
            ("generations", "retrieveGeneration", "Show a generation's receipt"),
            "Test keys see the generations of their project's test keys, live keys those of its live keys.",
            "Receipt",
            GENERATION_ID,
        ),
        "/v1/key": _retrieval(
            ("account", "retrieveKey", "Show the calling key, and what limits it"),
            "The budgets, the credit and the rate limits that can refuse its requests, without those of end "
            "users. `GET /v1/models` lists the models that it can use.",
            "Key",
        ),
        "/v1/models": _retrieval(
            ("models", "listModels", "List the models that the key can use"),
            "Those that are active, have an active deployment and a price, and that the key may use.",
            "ModelList",
            *_MODELS_PAGE,
        ),
        "/v1/models/{model}": _retrieval(
            ("models", "retrieveModel", "Show one model"), "If the key can use it.", "Model", _MODEL
        ),
        "/v1/organization/statements": _retrieval(
            ("organization", "listStatements", "List the organization's statements of closed months"),
            "Needs an admin key. The newest statement is the first one.",
            "StatementPage",
            *PAGE,
        ),
        "/v1/organization/statements/{period}": _retrieval(
            ("organization", "retrieveStatement", "Show the statement of a month"),
            "Needs an admin key. Of a month that is not closed it is a preview. `Accept` may ask for "
            "`text/csv` or `application/pdf` too.",
            "StatementDocument",
            new_parameter("path", "period", TEXT, "A month of UTC, such as `2026-11`."),
            new_parameter("query", "format", {"enum": [*FORMATS], **TEXT}, "Before `Accept`."),
        ),
        **{f"/v1/organization/{path}": _report(report) for path, report in REPORTS.items()},
    }


def _management() -> dict[str, Schema]:
    """Return the operations of the management API, whose data is beside its routes."""
    found: dict[str, Schema] = {}
    for route in ROUTES:
        path = re.sub(r"<\w+:(\w+)>", r"{\1}", f"/v1/organization/{route.path}")
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


def _retrieval(
    names: tuple[str, str, str], description: str, schema: str, *parameters: Schema
) -> dict[str, Schema]:
    answers = {200: new_answer(names[2], schema)}
    errors = (404,) if any(each["in"] == "path" for each in parameters) else ()
    return {"get": new_operation(names, description, parameters=parameters, answers=answers, errors=errors)}


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
        200: new_answer("Buckets, oldest first.", report.page.__name__),
        400: new_answer("A parameter is missing or wrong; `param` names it.", "Error"),
        403: new_answer("The key is not an admin key, or lacks the scope `usage`.", "Error"),
    }
    names = "organization", report.operation_id, report.summary
    return {"get": new_operation(names, "For admin keys.", parameters=query, answers=answers)}


def _texts(allowed: list[str] | None = None) -> Schema:
    return {"type": "array", "items": TEXT | ({} if allowed is None else {"enum": allowed})}


_OVERTAKEN = new_answer("Another change was faster, so nothing was changed.", "Error")


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
