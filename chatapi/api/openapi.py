"""The OpenAPI document: reading routes from their views, hot routes by hand, schemas from the types that serve them."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from django.http import HttpRequest, HttpResponse
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from chatapi.api import resources
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.requests import ChatRequest

Schema = dict[str, Any]
View = TypeVar("View", bound=Callable[..., Any])

_REF = "#/components/schemas/{name}"
_STATUSES = {
    400: "The request is malformed; `param` names the parameter.",
    401: "No valid API key. The answer is the same for every reason.",
    402: "A budget has no room for what the request can cost.",
    404: "There is no such model or object, or it is not yours.",
    413: "The body is too large.",
    429: "A budget or limit is taken by requests that still run; `Retry-After` says when to try again.",
    503: "A part of the service is away for the moment. Nothing was charged.",
}
_PREFIXES = ", ".join(f"`/{name}/v1`" for name in DIALECTS)
DESCRIPTION = f"""Hosts chat completions for many tenants and accounts for every token.

Use any OpenAI client: set its base URL to `/v1` here and its API key to yours. The same routes under {_PREFIXES} answer in that
dialect, as does the header `X-ChatAPI-Dialect`. Test keys (`ck_test_…`) reach only the sandbox engine and cost nothing."""


def describe(operation_id: str, summary: str, schema: str, *statuses: int, **parameters: str) -> Callable[[View], View]:
    """Document a reading route: what it answers, which errors it knows, and what its path's parameters mean."""
    path = [OpenApiParameter(name, str, OpenApiParameter.PATH, description=meaning) for name, meaning in parameters.items()]
    responses: dict[Any, Any] = {200: OpenApiResponse(_ref(schema), description=summary)}
    responses |= {status: OpenApiResponse(_ref("Error"), description=_STATUSES[status]) for status in (401, *statuses)}
    decorate: Callable[[View], View] = extend_schema(
        operation_id=operation_id, summary=summary, responses=responses, parameters=path, tags=[operation_tag(operation_id)]
    )
    return decorate


def operation_tag(operation_id: str) -> str:
    """The group that /docs shows the operation in."""
    return "models" if "Model" in operation_id else "account"


class APIKeyScheme(OpenApiAuthenticationExtension):
    """How `APIKeyAuthentication` is written in the document."""

    target_class = "accounts.api.APIKeyAuthentication"
    name = "APIKey"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        """HTTP bearer authentication."""
        return {"type": "http", "scheme": "bearer", "description": "An API key: `ck_live_…` or `ck_test_…`."}


def document(request: HttpRequest) -> HttpResponse:
    """`GET /openapi.json`."""
    return HttpResponse(_document(), content_type="application/json")


@cache
def _document() -> bytes:
    """The whole document; the same for everyone until the process ends, and not cheap to make."""
    return msgspec.json.encode(SchemaGenerator().get_schema(request=None, public=True))


def only_client_routes(endpoints: list[tuple[str, str, str, Any]]) -> list[tuple[str, str, str, Any]]:
    """Leave out the dialects' prefixes, which repeat everything (drf-spectacular's preprocessing hook)."""
    return [endpoint for endpoint in endpoints if endpoint[0].startswith("/v1/")]


def add_hot_routes(result: Schema, **context: Any) -> Schema:
    """Add what does not pass through Django, and all schemas (drf-spectacular's postprocessing hook)."""
    result["info"]["description"] = DESCRIPTION
    result["paths"] = {"/v1/chat/completions": {"post": _create_chat_completion()}} | result["paths"]
    result["components"].setdefault("schemas", {}).update(_schemas())
    return result


def _create_chat_completion() -> Schema:
    stream = {"schema": {"type": "string", "description": "Each `data:` line is a ChatCompletionChunk, the last one `[DONE]`."}}
    return {
        "operationId": "createChatCompletion",
        "summary": "Create a chat completion",
        "description": "Answers with one object, or with server-sent events when `stream` is true.",
        "tags": ["chat"],
        "security": [{"APIKey": []}],
        "parameters": [
            {
                "name": "X-ChatAPI-Dialect",
                "in": "header",
                "description": "The dialect of the answer; stronger than the prefix and the key's default.",
                "schema": {"type": "string", "enum": list(DIALECTS)},
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("ChatRequest"), "example": _EXAMPLE}}},
        "responses": {
            "200": {
                "description": "The completion. `X-Generation-Id` names its receipt.",
                "headers": {"X-Generation-Id": {"schema": {"type": "string"}}, "X-Request-Id": {"schema": {"type": "string"}}},
                "content": {"application/json": {"schema": _ref("ChatCompletion")}, "text/event-stream": stream},
            }
        }
        | {str(status): _error(meaning) for status, meaning in _STATUSES.items()},
    }


_EXAMPLE = {"model": "sandbox", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64, "stream": False}


def _error(meaning: str) -> Schema:
    return {"description": meaning, "content": {"application/json": {"schema": _ref("Error")}}}


def _ref(name: str) -> Schema:
    return {"$ref": _REF.format(name=name)}


def _schemas() -> dict[str, Schema]:
    types = [ChatRequest, resources.ModelList, resources.Key, resources.Receipt]
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    # What the struct keeps for itself is not sent by clients.
    for field in ("request", "extras", "ignored"):
        schemas["ChatRequest"]["properties"].pop(field, None)
    found: dict[str, Schema] = _ecma_patterns(schemas)
    return found | _ANSWERS


def _ecma_patterns(schema: Any) -> Any:
    r"""JSON schema's patterns are ECMAScript's, where Python's `\Z` is `$`."""
    match schema:
        case dict():
            return {key: value.replace(r"\Z", "$") if key == "pattern" else _ecma_patterns(value) for key, value in schema.items()}
        case list():
            return [_ecma_patterns(item) for item in schema]
        case _:
            return schema


def _object(description: str, required: str, **properties: Schema) -> Schema:
    return {"type": "object", "description": description, "required": required.split(), "properties": properties}


_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer"}
_FINISH_REASON: Schema = {"enum": ["stop", "length", "tool_calls", "content_filter", "function_call"]}
_TOOL_CALLS: Schema = {"type": "array", "items": {"type": "object"}, "description": "As in OpenAI's API reference."}

_MESSAGE = _object(
    "What the model said.",
    "role content refusal",
    role={"const": "assistant"},
    content=_TEXT_OR_NULL,
    refusal=_TEXT_OR_NULL,
    reasoning_content=_TEXT,
    tool_calls=_TOOL_CALLS,
)
_DELTA = _object(
    "A piece of the message.",
    "",
    role={"const": "assistant"},
    content=_TEXT,
    refusal=_TEXT,
    reasoning_content=_TEXT,
    tool_calls=_TOOL_CALLS,
)
_CHOICE = _object(
    "One answer.",
    "index message logprobs finish_reason",
    index=_COUNT,
    message=_MESSAGE,
    logprobs={"type": ["object", "null"]},
    finish_reason=_FINISH_REASON,
)
_CHUNK_CHOICE = _object(
    "A piece of one answer.",
    "index delta finish_reason",
    index=_COUNT,
    delta=_DELTA,
    logprobs={"type": "object"},
    finish_reason={"anyOf": [_FINISH_REASON, {"type": "null"}]},
)
_ANSWERS: dict[str, Schema] = {
    "ChatCompletion": _object(
        "A whole answer (OpenAI's `CreateChatCompletionResponse`).",
        "id object created model choices usage",
        id=_TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model=_TEXT,
        choices={"type": "array", "items": _CHOICE},
        usage=_ref("Usage"),
        system_fingerprint=_TEXT,
    ),
    "ChatCompletionChunk": _object(
        "A piece of a streamed answer (OpenAI's `CreateChatCompletionStreamResponse`).",
        "id object created model choices",
        id=_TEXT,
        object={"const": "chat.completion.chunk"},
        created=_COUNT,
        model=_TEXT,
        choices={"type": "array", "items": _CHUNK_CHOICE},
        usage={"anyOf": [_ref("Usage"), {"type": "null"}]},
        system_fingerprint=_TEXT,
    ),
    "Error": _object(
        "What every error looks like (OpenAI's `ErrorResponse`).",
        "error",
        error=_object("What is wrong.", "message type param code", message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL),
    ),
}
