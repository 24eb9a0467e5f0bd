"""The part of the API's reference (OpenAPI) about chat completions."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from chatapi.wire.api_reference import (
    NULL,
    NUMBER,
    REQUEST_ID,
    TEXT,
    TEXT_OR_NULL,
    Route,
    Schema,
    given,
    new_answer,
    new_array,
    new_body,
    new_object,
    new_parameter,
    new_stream,
    ref,
)
from chatapi.wire.protocols.chat.request import ChatRequest
from chatapi.wire.protocols.chat.style import Style
from chatapi.wire.protocols.protocol import Operation

LOGPROBS: Final[Schema] = {"type": ["object", "null"]}
USAGE_OR_NULL: Final[Schema] = {"anyOf": [ref("Usage"), NULL]}
_FINISH_REASON: Final[Schema] = {"enum": ["stop", "length", "tool_calls", "content_filter", "function_call"]}
FINISH_REASON_OR_NULL: Final[Schema] = {"anyOf": [_FINISH_REASON, NULL]}
COMPLETION: Final[dict[str, Schema]] = {
    "id": TEXT,
    "created": NUMBER,
    "model": TEXT,
    "system_fingerprint": TEXT,
}
_MESSAGE: Final[dict[str, Schema]] = {
    "role": {"const": "assistant"},
    "reasoning_content": TEXT,
    "tool_calls": new_array({"type": "object"}) | {"description": "As in OpenAI's API reference."},
}
_CHOICE: Final = new_object(
    "One answer.",
    "index message logprobs finish_reason",
    index=NUMBER,
    message=new_object(
        "What the model said.",
        "role content refusal",
        **(_MESSAGE | {"content": TEXT_OR_NULL, "refusal": TEXT_OR_NULL}),
    ),
    logprobs=LOGPROBS,
    finish_reason=_FINISH_REASON,
)
_CHUNK_CHOICE: Final = new_object(
    "A piece of one answer.",
    "index delta finish_reason",
    index=NUMBER,
    delta=new_object("A piece of the message.", "", **(_MESSAGE | {"content": TEXT, "refusal": TEXT})),
    logprobs={"type": "object"},
    finish_reason=FINISH_REASON_OR_NULL,
)
_NAMED_TOOL: Final[Schema] = {"anyOf": [{"type": "object"}, {"const": "required"}]}
_WITH_AUDIO: Final[Schema] = {"type": "array", "contains": {"const": "audio"}}
# The rules that `__post_init__` of these types enforces.
_RULES: Final[Mapping[str, Schema]] = {
    "ChatRequest": {
        "allOf": [
            {"if": given("top_logprobs"), "then": given("logprobs", {"const": True})},
            {"if": given("tool_choice", _NAMED_TOOL), "then": given("tools")},
            {"if": given("function_call", {"type": "object"}), "then": given("functions")},
            {"if": given("modalities", _WITH_AUDIO), "then": given("audio")},
        ]
    },
    "AssistantMessage": {
        "anyOf": [
            *(given(member) for member in ("content", "refusal", "function_call", "audio")),
            given("tool_calls", {"type": "array", "minItems": 1}),
        ]
    },
    "File": {"oneOf": [given("file_data"), given("file_id")]},
    "ImageUrl": {
        "properties": {
            "url": {"pattern": r"^(data:image/[a-z0-9.+-]{1,64};base64,[A-Za-z0-9+/]+={0,2}|https?://.+)$"}
        }
    },
}
_EXAMPLE: Final[Mapping[str, Any]] = {
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 64,
}


def create(styles: Collection[Style]) -> Operation:
    """Return the operation that creates chat completions in these dialects."""
    chunk_name = {
        "enum": list(dict.fromkeys(style.chunk_object for style in styles)),
        "description": "By dialect: "
        + ", ".join(f"`{style.name}` `{style.chunk_object}`" for style in styles)
        + ".",
    }
    return Operation(
        path="/v1/chat/completions",
        operation_id="createChatCompletion",
        summary="Create a chat completion",
        request=ChatRequest,
        example={**_EXAMPLE, "stream": False},
        answer="ChatCompletion",
        event="ChatCompletionChunk",
        schemas={
            "ChatCompletion": new_object(
                "A whole answer (OpenAI's `CreateChatCompletionResponse`).",
                "id object created model choices usage",
                object={"const": "chat.completion"},
                **(COMPLETION | {"choices": new_array(_CHOICE), "usage": ref("Usage")}),
            ),
            "ChatCompletionChunk": new_object(
                "A piece of a streamed answer (OpenAI's `CreateChatCompletionStreamResponse`).",
                "id object created model choices",
                object=chunk_name,
                **(COMPLETION | {"choices": new_array(_CHUNK_CHOICE), "usage": USAGE_OR_NULL}),
            ),
            "Ticket": new_object(
                "The right to fetch one stream, once, before `expires_at`. `url` is a path on this server.",
                "object id expires_at url",
                object={"const": "chat.completion.ticket"},
                **{"id": TEXT, "expires_at": NUMBER, "url": TEXT},
            ),
        },
        rules=_RULES,
    )


ROUTES: Final = (
    Route(
        method="get",
        path="/v1/chat/completions",
        tag="completions",
        operation_id="streamTicket",
        summary="Stream the completion of a ticket",
        description="For an `EventSource`. A ticket can be used once.",
        parameters=[new_parameter("query", "ticket", TEXT, "Replaces the API key.", required=True)],
        answers={200: new_stream("ChatCompletionChunk")},
        errors=(402, 404, 409, 502, 504),
        needs_key=False,
    ),
    Route(
        method="post",
        path="/v1/chat/completions/tickets",
        tag="completions",
        operation_id="createChatCompletionTicket",
        summary="Create a ticket for a stream",
        description="An `EventSource` can only GET, without a key. Post the request here and let it fetch "
        "`url`, once, within a minute.",
        chooses_dialect=True,
        body=new_body("ChatRequest", _EXAMPLE),
        answers={201: new_answer("The ticket.", "Ticket", REQUEST_ID)},
        errors=(404, 415),
    ),
)
