"""The operations of the OpenAPI document, with the errors that every route has."""

from collections.abc import Iterable, Mapping

from accounts.authentication import KEY_HEADERS
from chatapi.wire.api_reference import Schema, new_answer

_ERRORS = {
    400: "The request is malformed; `param` names the parameter.",
    401: "No valid API key. The answer is the same for every reason, unless a valid key may not be used from "
    "the client's IP address (`ip_not_authorized`), or not without another client certificate "
    "(`certificate_required`).",
    402: "A budget, or the credit, has no room for what the request can cost.",
    403: "The API key may not do this: it lacks a scope (`permission_denied` says which), or may not use the "
    "model (`model_not_allowed`). Or a person stopped the request (`stopped_by_operator`).",
    404: "There is no such model or object, or it is not yours.",
    405: "Another method is allowed here; `Allow` says which.",
    408: "The request took too long to arrive.",
    409: "The generation was cancelled before it was answered.",
    410: "The stream is not kept any more; the receipt is.",
    413: "The body is too large.",
    415: "The body has another media type than the request has here, or it is compressed.",
    422: "The `Idempotency-Key` was sent before, with another request.",
    429: "A budget or limit is taken for now; `Retry-After` says when to try again.",
    500: "The server failed. It is a bug.",
    502: "The upstream failed, or the worker was lost. Nothing was charged unless the receipt says so.",
    503: "A part of the service is unavailable for now. Nothing was charged unless the receipt says so.",
    504: "The upstream took too long. Nothing was charged unless the receipt says so.",
    529: "A part of the service is unavailable for now. Nothing was charged unless the receipt says so.",
}
# Errors of every route; `new_operation` adds a route's own.
_ANY_ROUTE = (400, 401, 403, 405, 408, 413, 429, 500, 503)


def new_operation(
    names: tuple[str, str, str],
    description: str,
    *,
    answers: Mapping[int, Schema],
    errors: Iterable[int] = (),
    parameters: Iterable[Schema] = (),
    body: Schema | None = None,
) -> Schema:
    """Return an operation; `names` are its tag, its id and its summary."""
    tag, operation_id, summary = names
    found = {status: new_answer(_ERRORS[status], "Error") for status in (*_ANY_ROUTE, *errors)}
    found.update(answers)
    operation: Schema = {
        "operationId": operation_id,
        "summary": summary,
        "description": description,
        "tags": [tag],
        "security": security_with(KEY_HEADERS),
        "parameters": list(parameters),
        "responses": {str(status): found[status] for status in sorted(found)},
    }
    return operation if body is None else operation | {"requestBody": body}


def key_scheme(header: str) -> str:
    """Return the security scheme's name for a key in this header. Generated clients rely on two names."""
    return {"Authorization": "APIKey", "x-api-key": "APIKeyHeader"}.get(header, header)


def security_with(key_headers: Iterable[str]) -> list[Schema]:
    """Return an operation's security: a key in one of these headers."""
    return [{key_scheme(header): []} for header in key_headers]


def with_errors(operation: Schema, error: str, overloaded_status: int) -> Schema:
    """Return the operation with errors of another schema, and another status for overload."""
    answers = {int(status): answer for status, answer in operation["responses"].items()}
    errors = [overloaded_status if status == 503 else status for status in answers if status >= 400]
    found = {status: answer for status, answer in answers.items() if status < 400}
    found |= {status: new_answer(_ERRORS[status], error) for status in errors}
    return operation | {"responses": {str(status): found[status] for status in sorted(found)}}
