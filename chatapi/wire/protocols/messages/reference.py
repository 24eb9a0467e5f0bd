"""The part of the API's reference (OpenAPI) about Messages."""

from typing import Any, Final

from chatapi.wire.api_reference import NUMBER, TEXT, TEXT_OR_NULL, new_array, new_object
from chatapi.wire.protocols.messages.request import CountTokensRequest, MessagesRequest
from chatapi.wire.protocols.protocol import Operation

_KINDS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


_BLOCK = new_object(
    "A content block.", "type", type={"enum": ["thinking", "redacted_thinking", "text", "tool_use"]}
)
_USAGE = new_object(
    "Tokens; the three kinds of input add up to the receipt's `prompt_tokens`.",
    " ".join(_KINDS),
    **dict.fromkeys(_KINDS, NUMBER),
)
_SCHEMAS: Final = {
    "Message": new_object(
        "A whole answer of Messages (Anthropic's `Message`).",
        "id type role model content stop_reason stop_sequence usage",
        id=TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=TEXT,
        content=new_array(_BLOCK),
        stop_reason=TEXT,
        stop_sequence=TEXT_OR_NULL,
        usage=_USAGE,
    ),
    "MessageEvent": new_object("An event (Anthropic's `RawMessageStreamEvent`).", "type", type=TEXT),
    "TokenCount": new_object("An estimate of a prompt.", "input_tokens", input_tokens=NUMBER),
    "MessagesError": new_object(
        "The form of the errors of Messages (Anthropic's `ErrorResponse`).",
        "type error request_id",
        type={"const": "error"},
        error=new_object("What is wrong.", "type message", type=TEXT, message=TEXT),
        request_id=TEXT,
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
    description="Costs nothing, but counts towards the limits on requests.",
    request=CountTokensRequest,
    example=_EXAMPLE,
    answer="TokenCount",
    event=None,
    **_ERRORS,
)
