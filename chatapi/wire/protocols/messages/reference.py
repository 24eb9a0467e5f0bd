"""What the API's reference (OpenAPI) says about Messages."""

from typing import Any, Final

from chatapi.wire.protocols.messages.request import CountTokensRequest, MessagesRequest
from chatapi.wire.protocols.protocol import Operation

_TEXT = {"type": "string"}
_KINDS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


def _object(description: str, required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "required": list(required),
        "properties": properties,
    }


_BLOCK = _object(
    "A content block.", ("type",), type={"enum": ["thinking", "redacted_thinking", "text", "tool_use"]}
)
_USAGE = _object(
    "Tokens; the three kinds of input add up to the receipt's `prompt_tokens`.",
    _KINDS,
    **{kind: {"type": "integer"} for kind in _KINDS},
)
_SCHEMAS: Final = {
    "Message": _object(
        "A whole answer of Messages (Anthropic's `Message`).",
        ("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"),
        id=_TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=_TEXT,
        content={"type": "array", "items": _BLOCK},
        stop_reason=_TEXT,
        stop_sequence={"type": ["string", "null"]},
        usage=_USAGE,
    ),
    "MessageEvent": _object("An event (Anthropic's `RawMessageStreamEvent`).", ("type",), type=_TEXT),
    "TokenCount": _object("An estimate of a prompt.", ("input_tokens",), input_tokens={"type": "integer"}),
    "MessagesError": _object(
        "The form of the errors of Messages (Anthropic's `ErrorResponse`).",
        ("type", "error", "request_id"),
        type={"const": "error"},
        error=_object("What is wrong.", ("type", "message"), type=_TEXT, message=_TEXT),
        request_id=_TEXT,
    ),
}
_EXAMPLE = {"messages": [{"role": "user", "content": "Say hello."}]}
_ERRORS: Final[dict[str, Any]] = {"tag": "messages", "error": "MessagesError", "overloaded_status": 529}
CREATE: Final = Operation(
    path="/v1/messages",
    operation_id="createMessage",
    summary="Create a message",
    description="Anthropic's: one message, or server-sent events when `stream` is true.",
    request=MessagesRequest,
    example={**_EXAMPLE, "max_tokens": 64, "stream": False},
    answer="Message",
    event="MessageEvent",
    schemas=_SCHEMAS,
    **_ERRORS,
)
COUNT: Final = Operation(
    path="/v1/messages/count_tokens",
    operation_id="countTokens",
    summary="Estimate the tokens of a prompt",
    description="Costs nothing, and counts in the limits of requests.",
    request=CountTokensRequest,
    example=_EXAMPLE,
    answer="TokenCount",
    event=None,
    **_ERRORS,
)
