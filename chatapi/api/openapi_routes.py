"""The routes of the OpenAPI document: parameters, answers and errors of each operation."""

from collections.abc import Iterable
from typing import Any

from chatapi.api.openapi_schemas import Schema, ref
from chatapi.api.organization_query import COMPLETIONS, COSTS, UsageRouteSpec
from chatapi.wire.dialects import DIALECTS

_ERRORS = {
    400: "The request is malformed; `param` names the parameter.",
    401: "No valid API key. The answer is the same for every reason.",
    402: "A budget, or the credit, has no room for what the request can cost.",
    403: "The API key may not do this: it lacks a scope (`permission_denied` says which), or may not use the "
    "model (`model_not_allowed`). Or an operator stopped the request (`stopped_by_operator`).",
    404: "There is no such model or object, or it is not yours.",
    405: "Another method is allowed here; `Allow` says which.",
    408: "The request took too long to arrive.",
    409: "The generation was cancelled before it was answered.",
    410: "The stream is not kept any more; the receipt is.",
    413: "The body is too large.",
    415: "The body is not `application/json`, or it is compressed.",
    422: "The `Idempotency-Key` was sent before, with another request.",
    429: "A budget or limit is taken for now; `Retry-After` says when to try again.",
    500: "The server failed. It is a bug.",
    502: "The upstream failed. Nothing was charged unless the receipt says so.",
    503: "A part of the service is away for the moment. Nothing was charged unless the receipt says so.",
    504: "The upstream took too long. Nothing was charged unless the receipt says so.",
    529: "A part of the service is away for the moment. Nothing was charged unless the receipt says so.",
}
_ANY_ROUTE = (400, 401, 403, 405, 408, 413, 429, 500, 503)
"""Errors of every route; those of `_operation` are what a route has besides."""
_STREAM = (402, 404, 409, 502, 504)
_COMPLETION = (*_STREAM, 415, 422)
_MESSAGES_ERRORS = {503: 529}
"""Statuses that Messages have in the place of others."""


def _parameter(place: str, name: str, schema: Schema, description: str, *, required: bool = False) -> Schema:
    required = required or place == "path"
    return {"name": name, "in": place, "required": required, "schema": schema, "description": description}


_TEXT: Schema = {"type": "string"}
_DIALECT = _parameter(
    "header",
    "X-ChatAPI-Dialect",
    {"enum": list(DIALECTS), **_TEXT},
    "The dialect of the answer; stronger than the prefix and the key's default.",
)
_IDEMPOTENCY_KEY = _parameter(
    "header",
    "Idempotency-Key",
    {"minLength": 1, "maxLength": 255, **_TEXT},
    "The same key again gives the same answer, and costs nothing.",
)
_PREFER = _parameter(
    "header", "Prefer", {"const": "respond-async"}, "`respond-async` answers with 202 at once (RFC 7240)."
)
_TICKET = _parameter("query", "ticket", _TEXT, "It stands for a key.", required=True)
_GENERATION_ID = _parameter("path", "generation_id", _TEXT, "In any dialect's form.")
_MODEL = _parameter("path", "model", _TEXT, "The model's id; it may contain slashes.")
_AFTER = [
    _parameter(place, name, _TEXT, "The `id` of the last event that has arrived.")
    for place, name in (("header", "Last-Event-ID"), ("query", "starting_after"))
]

_REQUEST_ID: Schema = {"X-Request-Id": {"schema": _TEXT}}
_CHAT_EXAMPLE = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64}
_MESSAGES_EXAMPLE = {"messages": [{"role": "user", "content": "Say hello."}]}
_TEXT_EXAMPLE = {"prompt": "Once upon a time", "max_tokens": 16}


def paths() -> dict[str, Schema]:
    """Return the operations by path and method."""
    return {
        "/v1/chat/completions": {
            "post": _operation(
                ("completions", "createChatCompletion", "Create a chat completion"),
                "Answers with one object, or with server-sent events when `stream` is true.",
                parameters=[_DIALECT, _IDEMPOTENCY_KEY, _PREFER],
                body=_body("ChatRequest", {**_CHAT_EXAMPLE, "stream": False}),
                answers=_completion("ChatCompletion", "ChatCompletionChunk"),
                errors=_COMPLETION,
            ),
            "get": _operation(
                ("completions", "streamTicket", "Stream what a ticket stands for"),
                "For an `EventSource`; a ticket is good once.",
                parameters=[_TICKET],
                answers=_stream("ChatCompletionChunk"),
                errors=_STREAM,
            )
            | {"security": []},
        },
        "/v1/chat/completions/tickets": {
            "post": _operation(
                ("completions", "createChatCompletionTicket", "Create a ticket for a stream"),
                "An `EventSource` can only GET, without a key. Post the request here and let it fetch `url`, "
                "once, within a minute.",
                parameters=[_DIALECT],
                body=_body("ChatRequest", _CHAT_EXAMPLE),
                answers={201: _answer("The ticket.", "Ticket", _REQUEST_ID)},
                errors=(404, 415),
            )
        },
        "/v1/completions": {
            "post": _operation(
                ("completions", "createCompletion", "Create a text completion"),
                "Answers with one object, or with server-sent events when `stream` is true.",
                parameters=[_DIALECT, _IDEMPOTENCY_KEY, _PREFER],
                body=_body("TextRequest", {**_TEXT_EXAMPLE, "stream": False}),
                answers=_completion("Completion", "Completion"),
                errors=_COMPLETION,
            )
        },
        "/v1/messages": {
            "post": _of_messages(
                _operation(
                    ("messages", "createMessage", "Create a message"),
                    "Anthropic's: one message, or server-sent events when `stream` is true.",
                    parameters=[_IDEMPOTENCY_KEY, _PREFER],
                    body=_body("MessagesRequest", {**_MESSAGES_EXAMPLE, "max_tokens": 64, "stream": False}),
                    answers=_completion("Message", "MessageEvent"),
                    errors=_COMPLETION,
                )
            )
        },
        "/v1/messages/count_tokens": {
            "post": _of_messages(
                _operation(
                    ("messages", "countTokens", "Estimate the tokens of a prompt"),
                    "Costs nothing, and counts in the limits of requests.",
                    body=_body("CountTokensRequest", _MESSAGES_EXAMPLE),
                    answers={200: _answer("The estimate.", "TokenCount", _REQUEST_ID)},
                    errors=(404, 415),
                )
            )
        },
        "/v1/generations/{generation_id}/stream": {
            "get": _operation(
                ("generations", "resumeStream", "Stream a generation again"),
                "From its beginning, or behind the event that `Last-Event-ID` or `starting_after` names.",
                parameters=[_GENERATION_ID, *_AFTER],
                answers=_stream("AnyChunk"),
                errors=(404, 410),
            )
        },
        "/v1/generations/{generation_id}/cancel": {
            "post": _operation(
                ("generations", "cancelGeneration", "Cancel a generation"),
                "Its stream ends with the usage of what was generated.",
                parameters=[_GENERATION_ID],
                answers={
                    200: _answer("It had ended already.", "Cancellation", _REQUEST_ID),
                    202: _answer("It will end now.", "Cancellation", _REQUEST_ID),
                },
                errors=(404,),
            )
        },
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
        ),
        "/v1/models/{model}": _retrieval(
            ("models", "retrieveModel", "Show one model"), "If the key can use it.", "Model", _MODEL
        ),
        "/v1/organization/costs": _report(
            ("organization", "listCosts", "List the organization's costs by day"), "CostPage", COSTS
        ),
        "/v1/organization/usage/completions": _report(
            (
                "organization",
                "listUsageOfCompletions",
                "List the organization's usage by minute, hour or day",
            ),
            "UsagePage",
            COMPLETIONS,
        ),
    }


def _operation(
    names: tuple[str, str, str],
    description: str,
    *,
    answers: dict[int, Schema],
    errors: Iterable[int] = (),
    parameters: Iterable[Schema] = (),
    body: Schema | None = None,
) -> Schema:
    """Return an operation; `names` are its tag, its id and its summary."""
    tag, operation_id, summary = names
    found = {status: _answer(_ERRORS[status], "Error") for status in (*_ANY_ROUTE, *errors)} | answers
    operation: Schema = {
        "operationId": operation_id,
        "summary": summary,
        "description": description,
        "tags": [tag],
        "security": [{"APIKey": []}],
        "parameters": list(parameters),
        "responses": {str(status): found[status] for status in sorted(found)},
    }
    return operation if body is None else operation | {"requestBody": body}


def _of_messages(operation: Schema) -> Schema:
    """Return the operation with the errors of Messages."""
    answers = {int(status): answer for status, answer in operation["responses"].items()}
    errors = [_MESSAGES_ERRORS.get(status, status) for status in answers if status >= 400]
    found = {status: answer for status, answer in answers.items() if status < 400}
    found |= {status: _answer(_ERRORS[status], "MessagesError") for status in errors}
    return operation | {"responses": {str(status): found[status] for status in sorted(found)}}


def _retrieval(
    names: tuple[str, str, str], description: str, schema: str, *path: Schema
) -> dict[str, Schema]:
    answers = {200: _answer(names[2], schema)}
    errors = (404,) if path else ()
    return {"get": _operation(names, description, parameters=path, answers=answers, errors=errors)}


def _report(names: tuple[str, str, str], page: str, spec: UsageRouteSpec) -> dict[str, Schema]:
    limits = ", ".join(f"`{word}`: {usual}, at most {most}" for word, (_, usual, most) in spec.widths.items())
    width = {"type": "string", "enum": list(spec.widths), "default": "1d"}
    number: Schema = {"type": "integer"}
    parameters = {
        "start_time": (number, "Unix seconds; the bucket that it lies in is the first one."),
        "end_time": (number, "Unix seconds, not included; now if it is left out."),
        "bucket_width": (width, "How long a bucket is."),
        "group_by[]": (_texts(list(spec.groups)), "Dimensions with their own results; the others are null."),
        "project_ids[]": (_texts(), "Only these projects."),
        "api_key_ids[]": (_texts(), "Only these keys."),
        f"{spec.models}[]": (_texts(), "Only these models."),
        "limit": (number, f"Buckets of a page ({limits})."),
        "page": (_TEXT, "The `next_page` of the page before."),
    }
    query = [
        _parameter("query", name, schema, description, required=name == "start_time")
        for name, (schema, description) in parameters.items()
    ]
    answers = {
        200: _answer("Buckets, oldest first.", page),
        400: _answer("A parameter is missing or wrong; `param` names it.", "Error"),
        403: _answer("The key is not an admin key, or lacks the scope `usage`.", "Error"),
    }
    return {"get": _operation(names, "For admin keys.", parameters=query, answers=answers)}


def _texts(allowed: list[str] | None = None) -> Schema:
    return {"type": "array", "items": _TEXT | ({} if allowed is None else {"enum": allowed})}


def _body(schema: str, example: Schema) -> Schema:
    content = {"schema": ref(schema), "example": {"model": "sandbox", **example}}
    return {"required": True, "content": {"application/json": content}}


def _answer(description: str, schema: str, headers: Schema | None = None) -> dict[str, Any]:
    answer = {"description": description, "content": {"application/json": {"schema": ref(schema)}}}
    return answer if headers is None else answer | {"headers": headers}


def _completion(schema: str, chunk: str) -> dict[int, Schema]:
    headers = _REQUEST_ID | {"X-Generation-Id": {"schema": _TEXT}}
    completion = _answer("The completion. `X-Generation-Id` names its receipt.", schema, headers)
    completion["content"] |= _events(chunk)
    return {
        200: completion,
        202: _answer("It runs; its stream is at `Location`.", "Accepted", _REQUEST_ID),
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
