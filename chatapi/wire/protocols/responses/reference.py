"""What the API's reference (OpenAPI) says about Responses."""

from typing import Any, Final

from chatapi.wire.protocols.protocol import Operation
from chatapi.wire.protocols.responses.request import ResponsesRequest

_WORD = {"type": "string"}
_LIST = {"type": "array", "items": {"type": "object"}}
_SCHEMAS: Final[dict[str, Any]] = {
    "Response": {
        "type": "object",
        "required": ["id", "object", "created_at", "status", "model", "output", "usage", "error", "store"],
        "properties": {
            "id": _WORD,
            "object": {"const": "response"},
            "created_at": {"type": "integer"},
            "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]},
            "model": _WORD,
            "output": _LIST,
            "usage": {"type": ["object", "null"]},
            "error": {"type": ["object", "null"]},
            "store": {"type": "boolean"},
        },
    },
    "ResponseStreamEvent": {
        "type": "object",
        "required": ["type", "sequence_number"],
        "properties": {"type": _WORD, "sequence_number": {"type": "integer"}},
    },
    "ResponseItemList": {
        "type": "object",
        "required": ["object", "data", "first_id", "last_id", "has_more"],
        "properties": {"object": {"const": "list"}, "data": _LIST, "has_more": {"type": "boolean"}},
    },
    "InputTokens": {
        "type": "object",
        "required": ["object", "input_tokens"],
        "properties": {
            "object": {"const": "response.input_tokens"},
            "input_tokens": {"type": "integer", "minimum": 0},
        },
    },
    "DeletedResponse": {
        "type": "object",
        "required": ["id", "object", "deleted"],
        "properties": {"id": _WORD, "object": {"const": "response"}, "deleted": {"const": True}},
    },
}
CREATE: Final = Operation(
    path="/v1/responses",
    operation_id="createResponse",
    summary="Create a response",
    description="Answers with one object, or with typed server-sent events when `stream` is true.",
    request=ResponsesRequest,
    example={"input": "Say hello.", "max_output_tokens": 64, "stream": False},
    answer="Response",
    event="ResponseStreamEvent",
    schemas=_SCHEMAS,
)
COUNT: Final = Operation(
    path="/v1/responses/input_tokens",
    operation_id="countInputTokens",
    summary="Estimate the tokens of an input",
    description="Costs nothing, and counts in the limits of requests.",
    request=ResponsesRequest,
    example={"input": "Say hello."},
    answer="InputTokens",
    event=None,
)
