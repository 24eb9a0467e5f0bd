"""The routes of the OpenAPI document: parameters, answers and errors of each operation."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from chatapi.api.management.routes import ROUTES
from chatapi.api.openapi_operations import new_answer, new_operation, new_parameter, with_errors
from chatapi.api.openapi_schemas import Schema, ecma_patterns, ref, ref_to
from chatapi.api.organization import REPORTS, Report
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.protocols import PROTOCOLS, Operation, Protocol
from chatapi.wire.protocols.chat import CHAT
from usage.statements.formats import FORMATS

_STREAM = (402, 404, 409, 502, 504)
_COMPLETION = (*_STREAM, 415, 422)


_TEXT: Schema = {"type": "string"}
_DIALECT = new_parameter(
    "header",
    "X-ChatAPI-Dialect",
    {"enum": list(DIALECTS), **_TEXT},
    "The dialect of the answer; it overrides the URL prefix and the key's default.",
)
_IDEMPOTENCY_KEY = new_parameter(
    "header",
    "Idempotency-Key",
    {"minLength": 1, "maxLength": 255, **_TEXT},
    "The same key again gives the same answer, and costs nothing.",
)
_PREFER = new_parameter(
    "header", "Prefer", {"const": "respond-async"}, "`respond-async` answers with 202 at once (RFC 7240)."
)
_TICKET = new_parameter("query", "ticket", _TEXT, "It stands for a key.", required=True)
_GENERATION_ID = new_parameter("path", "generation_id", _TEXT, "In any dialect's form.")
_RESPONSE_ID = new_parameter("path", "response_id", _TEXT, "As the response object has it.")
_RESPONSE_STREAM = [
    new_parameter("query", "stream", {"type": "boolean"}, "Answer with events."),
    new_parameter("query", "starting_after", {"type": "integer", "minimum": 0}, "The last event's number."),
]
_PAGE = [
    new_parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": 100}, "20 if absent."),
    new_parameter("query", "order", {"enum": ["asc", "desc"], **_TEXT}, "`desc` if absent."),
    new_parameter("query", "after", _TEXT, "The id of the last item of the page before."),
]
_MODEL = new_parameter("path", "model", _TEXT, "The model's id; it may contain slashes.")
_MODELS_PAGE = [
    new_parameter(
        "query",
        "limit",
        {"type": "integer", "minimum": 1, "maximum": 1_000},
        "The most models of a page; without it, all.",
    ),
    new_parameter("query", "after_id", _TEXT, "The `last_id` of the page before."),
    new_parameter("query", "before_id", _TEXT, "The `first_id` of the page behind."),
]
_AFTER = [
    new_parameter(place, name, _TEXT, "The `id` of the last event that has arrived.")
    for place, name in (("header", "Last-Event-ID"), ("query", "starting_after"))
]

_REQUEST_ID: Schema = {"X-Request-Id": {"schema": _TEXT}}
_CHAT_EXAMPLE = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64}


def paths() -> dict[str, Schema]:
    """Return the operations by path and method: those of the protocols beside their code, the others here."""
    found = {
        operation.path: {"post": _creation(operation, protocol)}
        for protocol in PROTOCOLS.values()
        for operation in protocol.operations
    }
    found["/v1/chat/completions"]["get"] = _ticket_stream()
    return found | _tickets() | _responses() | _generations() | _readings() | _management()


def _creation(operation: Operation, protocol: Protocol) -> Schema:
    found = new_operation(
        (operation.tag, operation.operation_id, operation.summary),
        operation.description,
        parameters=[_DIALECT, _IDEMPOTENCY_KEY, *([_PREFER] if operation.event else [])],
        body=_body(operation.request.__name__, operation.example, protocol.media_type),
        answers=_completion(operation.answer, operation.event, protocol.answer_media_type),
        errors=_COMPLETION,
    )
    return with_errors(found, operation.error, operation.overloaded_status)


def _ticket_stream() -> Schema:
    operation = new_operation(
        ("completions", "streamTicket", "Stream what a ticket stands for"),
        "For an `EventSource`; a ticket is good once.",
        parameters=[_TICKET],
        answers=_stream("ChatCompletionChunk"),
        errors=_STREAM,
    )
    return operation | {"security": []}


def _tickets() -> dict[str, Schema]:
    operation = new_operation(
        ("completions", "createChatCompletionTicket", "Create a ticket for a stream"),
        "An `EventSource` can only GET, without a key. Post the request here and let it fetch `url`, once, "
        "within a minute.",
        parameters=[_DIALECT],
        body=_body("ChatRequest", _CHAT_EXAMPLE, CHAT.media_type),
        answers={201: new_answer("The ticket.", "Ticket", _REQUEST_ID)},
        errors=(404, 415),
    )
    return {"/v1/chat/completions/tickets": {"post": operation}}


def _responses() -> dict[str, Schema]:
    response = {200: new_answer("The response as it is now.", "Response", _REQUEST_ID)}
    read = new_answer("The response as it is now, or its events.", "Response", _REQUEST_ID)
    read["content"] |= _events("ResponseStreamEvent")
    reading = new_operation(
        ("responses", "getResponse", "Read a response"),
        "While it is kept; with `stream=true` its events, from its beginning or behind `starting_after`.",
        parameters=[_RESPONSE_ID, *_RESPONSE_STREAM],
        answers={200: read},
        errors=(404,),
    )
    deletion = new_operation(
        ("responses", "deleteResponse", "Delete a response"),
        "Its input and its answer are deleted.",
        parameters=[_RESPONSE_ID],
        answers={200: new_answer("It is deleted.", "DeletedResponse", _REQUEST_ID)},
        errors=(404,),
    )
    cancellation = new_operation(
        ("responses", "cancelResponse", "Cancel a response in the background"),
        "Answers with the response; what was generated is charged.",
        parameters=[_RESPONSE_ID],
        answers=response,
        errors=(404,),
    )
    items = new_operation(
        ("responses", "listInputItems", "List the input of a response"),
        "The items of the whole conversation, the newest first.",
        parameters=[_RESPONSE_ID, *_PAGE],
        answers={200: new_answer("A page of items.", "ResponseItemList", _REQUEST_ID)},
        errors=(404,),
    )
    path = "/v1/responses/{response_id}"
    return {
        path: {"get": reading, "delete": deletion},
        f"{path}/cancel": {"post": cancellation},
        f"{path}/input_items": {"get": items},
    }


def _generations() -> dict[str, Schema]:
    stream = new_operation(
        ("generations", "resumeStream", "Stream a generation again"),
        "From its beginning, or behind the event that `Last-Event-ID` or `starting_after` names.",
        parameters=[_GENERATION_ID, *_AFTER],
        answers=_stream("AnyChunk"),
        errors=(404, 410),
    )
    cancellation = new_operation(
        ("generations", "cancelGeneration", "Cancel a generation"),
        "Its stream ends with the usage of what was generated.",
        parameters=[_GENERATION_ID],
        answers={
            200: new_answer("It had ended already.", "Cancellation", _REQUEST_ID),
            202: new_answer("It will end now.", "Cancellation", _REQUEST_ID),
        },
        errors=(404,),
    )
    return {
        "/v1/generations/{generation_id}/stream": {"get": stream},
        "/v1/generations/{generation_id}/cancel": {"post": cancellation},
    }


def _readings() -> dict[str, Schema]:
    return {
        "/v1/generations/{generation_id}": _retrieval(
            ("generations", "retrieveGeneration", "Show a generation's receipt"),
            "Test keys see the generations of their project's test keys, live keys those of its live keys.",
            "Receipt",
            _GENERATION_ID,
        ),
        "/v1/key": _retrieval(
            ("account", "retrieveKey", "Show the calling key, and what limits it"),
            "All that can refuse its requests: budgets, credit and rate limits.",
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
            *(each for each in _PAGE if each["name"] != "order"),
        ),
        "/v1/organization/statements/{period}": _retrieval(
            ("organization", "retrieveStatement", "Show the statement of a month"),
            "Needs an admin key. Of a month that is not closed it is a preview. `Accept` may ask for "
            "`text/csv` or `application/pdf` too.",
            "StatementDocument",
            new_parameter("path", "period", _TEXT, "A month of UTC, such as `2026-11`."),
            new_parameter("query", "format", {"enum": [*FORMATS], **_TEXT}, "Before `Accept`."),
        ),
        **{f"/v1/organization/{path}": _report(report) for path, report in REPORTS.items()},
    }


def _management() -> dict[str, Schema]:
    """Return the operations of the management API, whose data is beside its routes."""
    found: dict[str, Schema] = {}
    for route in ROUTES:
        path = re.sub(r"<\w+:(\w+)>", r"{\1}", f"/v1/organization/{route.path}")
        inside = [new_parameter("path", name, _TEXT, "Its id.") for name in re.findall(r"{(\w+)}", path)]
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
        "page": (_TEXT, "The `next_page` of the page before."),
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
    return {"type": "array", "items": _TEXT | ({} if allowed is None else {"enum": allowed})}


def _body(schema: str, example: Mapping[str, Any], media_type: str) -> Schema:
    content = {"schema": ref(schema), "example": {"model": "sandbox", **example}}
    return {"required": True, "content": {media_type: content}}


_OVERTAKEN = new_answer("Another change was faster, so nothing was changed.", "Error")


def _completion(schema: str, event: str | None, media_type: str) -> dict[int, Schema]:
    headers = _REQUEST_ID | {"X-Generation-Id": {"schema": _TEXT}}
    completion = new_answer("The completion. `X-Generation-Id` names its receipt.", schema, headers)
    completion["content"] = {media_type: {"schema": ref(schema)}}
    if event is None:
        return {200: completion}
    completion["content"] |= _events(event)
    return {
        200: completion,
        202: new_answer("It runs; its stream is at `Location`.", "Accepted", _REQUEST_ID),
    }


def _stream(chunk: str) -> dict[int, Schema]:
    return {200: {"description": "The stream.", "headers": _REQUEST_ID, "content": _events(chunk)}}


def _events(chunk: str) -> Schema:
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
