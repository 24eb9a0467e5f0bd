"""The operations of the OpenAPI document that Django does not serve: what web/consumers.py and
web/generations.py answer.
"""

from chatapi.api.openapi_schemas import Schema, ref
from chatapi.wire.dialects import DIALECTS

STATUSES = {
    400: "The request is malformed; `param` names the parameter.",
    401: "No valid API key. The answer is the same for every reason.",
    402: "A budget, or the credit, has no room for what the request can cost.",
    403: "The API key may not do this: it lacks a scope (`permission_denied` says which), or may not use the model (`model_not_allowed`). "
    "Or an operator stopped the request (`stopped_by_operator`).",
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
}
OF_ALL_ROUTES = (400, 401, 403, 405, 408, 413, 429, 500, 503)
"""The errors that any route can answer with; those below are what a route has beside them."""
_OF_A_REQUEST = (404, 415)
_OF_A_STREAM = (402, 404, 409, 502, 504)
_OF_A_COMPLETION = (*_OF_A_STREAM, 415, 422)


def errors(*statuses: int) -> dict[str, Schema]:
    """The responses with those error statuses."""
    content = {"application/json": {"schema": ref("Error")}}
    return {str(status): {"description": STATUSES[status], "content": content} for status in statuses}


def tag(operation_id: str) -> str:
    """The group that /docs shows the operation in."""
    words = {"Model": "models", "Completion": "completions", "Ticket": "completions", "Key": "account"}
    return next((group for word, group in words.items() if word in operation_id), "generations")


def hot_paths() -> dict[str, Schema]:
    """The hot routes by path."""
    return {
        "/v1/chat/completions": {"post": _create_chat_completion(), "get": _redeem_ticket()},
        "/v1/chat/completions/tickets": {"post": _create_ticket()},
        "/v1/completions": {"post": _create_completion()},
        "/v1/generations/{generation_id}/stream": {"get": _resume_stream()},
        "/v1/generations/{generation_id}/cancel": {"post": _cancel_generation()},
    }


def _create_chat_completion() -> Schema:
    stream = _events("ChatCompletionChunk")
    return _operation(
        "createChatCompletion",
        "Create a chat completion",
        "Answers with one object, or with server-sent events when `stream` is true.",
        parameters=[_DIALECT, _IDEMPOTENCY_KEY, _PREFER],
        body=_body(
            "ChatRequest",
            {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64, "stream": False},
        ),
        responses={"200": _completion("ChatCompletion", stream), "202": _accepted()}
        | errors(*_OF_A_COMPLETION),
    )


def _create_completion() -> Schema:
    stream = _events("Completion")
    return _operation(
        "createCompletion",
        "Create a text completion",
        "Answers with one object, or with server-sent events when `stream` is true.",
        parameters=[_DIALECT, _IDEMPOTENCY_KEY, _PREFER],
        body=_body("TextRequest", {"prompt": "Once upon a time", "max_tokens": 16, "stream": False}),
        responses={"200": _completion("Completion", stream), "202": _accepted()} | errors(*_OF_A_COMPLETION),
    )


def _create_ticket() -> Schema:
    return _operation(
        "createChatCompletionTicket",
        "Create a ticket for a stream",
        "An `EventSource` can only GET, without a key. Post the request here and let it fetch `url`, once, within a minute.",
        parameters=[_DIALECT],
        body=_body(
            "ChatRequest", {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64}
        ),
        responses={"201": {"description": "The ticket.", "headers": _IDS, "content": _json("Ticket")}}
        | errors(*_OF_A_REQUEST),
    )


def _redeem_ticket() -> Schema:
    ticket = {
        "name": "ticket",
        "in": "query",
        "required": True,
        "description": "It stands for a key.",
        "schema": {"type": "string"},
    }
    events = _events("ChatCompletionChunk")
    answer = {"description": "The stream.", "headers": _IDS, "content": {"text/event-stream": events}}
    return _operation(
        "streamTicket",
        "Stream what a ticket stands for",
        "For an `EventSource`; a ticket is good once.",
        parameters=[ticket],
        responses={"200": answer} | errors(*_OF_A_STREAM),
    ) | {"security": []}


def _resume_stream() -> Schema:
    events = _events("AnyChunk")
    after = {"type": "string", "description": "The `id` of the last event that has arrived."}
    return _operation(
        "resumeStream",
        "Stream a generation again",
        "From its beginning, or behind the event that `Last-Event-ID` or `starting_after` names.",
        parameters=[
            _GENERATION_ID,
            {"name": "Last-Event-ID", "in": "header", "schema": after},
            {"name": "starting_after", "in": "query", "schema": after},
        ],
        responses={
            "200": {"description": "The stream.", "headers": _IDS, "content": {"text/event-stream": events}}
        }
        | errors(400, 401, 404, 410),
    )


def _cancel_generation() -> Schema:
    return _operation(
        "cancelGeneration",
        "Cancel a generation",
        "Its stream ends with the usage of what was generated.",
        parameters=[_GENERATION_ID],
        responses={
            "200": {
                "description": "It had ended already.",
                "headers": _IDS,
                "content": _json("Cancellation"),
            },
            "202": {"description": "It will end now.", "headers": _IDS, "content": _json("Cancellation")},
        }
        | errors(404),
    )


def _operation(
    operation_id: str,
    summary: str,
    description: str,
    *,
    parameters: list[Schema],
    responses: Schema,
    body: Schema | None = None,
) -> Schema:
    operation: Schema = {
        "operationId": operation_id,
        "summary": summary,
        "description": description,
        "tags": [tag(operation_id)],
        "security": [{"APIKey": []}],
        "parameters": parameters,
        "responses": responses,
    }
    return operation if body is None else operation | {"requestBody": body}


def _body(schema: str, example: Schema) -> Schema:
    return {
        "required": True,
        "content": {"application/json": {"schema": ref(schema), "example": {"model": "sandbox", **example}}},
    }


def _completion(schema: str, stream: Schema) -> Schema:
    return {
        "description": "The completion. `X-Generation-Id` names its receipt.",
        "headers": _IDS | {"X-Generation-Id": {"schema": {"type": "string"}}},
        "content": {**_json(schema), "text/event-stream": stream},
    }


def _accepted() -> Schema:
    return {
        "description": "It runs; its stream is at `Location`.",
        "headers": _IDS,
        "content": _json("Accepted"),
    }


def _events(schema: str) -> Schema:
    """What each event is: Open API 3.1 knows nothing of streams, and tools apply the schema to every event of
    one.
    """
    told = {
        "anyOf": [
            ref(schema),
            {"type": "object", "required": ["error"], "description": "Why the stream breaks off."},
        ]
    }
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": told}
    event = {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}},
    }
    return {
        "schema": event | {"description": "A server-sent event; in most dialects the last one is `[DONE]`."}
    }


def _json(schema: str) -> Schema:
    return {"application/json": {"schema": ref(schema)}}


_IDS: Schema = {"X-Request-Id": {"schema": {"type": "string"}}}
_DIALECT: Schema = {
    "name": "X-ChatAPI-Dialect",
    "in": "header",
    "description": "The dialect of the answer; stronger than the prefix and the key's default.",
    "schema": {"type": "string", "enum": list(DIALECTS)},
}
_IDEMPOTENCY_KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key again gives the same answer, and costs nothing.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_PREFER: Schema = {
    "name": "Prefer",
    "in": "header",
    "description": "`respond-async` answers with 202 at once (RFC 7240).",
    "schema": {"const": "respond-async"},
}
_GENERATION_ID: Schema = {
    "name": "generation_id",
    "in": "path",
    "required": True,
    "description": "In any dialect's form.",
    "schema": {"type": "string"},
}
