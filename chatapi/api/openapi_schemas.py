"""The schemas of the OpenAPI document: requests from the types that read them, answers and errors as OpenAI
documents them.
"""

from typing import Any

import msgspec

from chatapi.api import resources
from chatapi.wire.protocols.chat.request import ChatRequest
from chatapi.wire.protocols.text_completions.request import TextRequest

Schema = dict[str, Any]

_REF = "#/components/schemas/{name}"
_NOT_SENT = ("request", "extras", "ignored")
"""What the structs of requests keep for themselves."""


def ref(name: str) -> Schema:
    """A reference to the schema of that name."""
    return {"$ref": _REF.format(name=name)}


def all_schemas() -> dict[str, Schema]:
    """Every schema of the document, by name."""
    types = [ChatRequest, TextRequest, resources.ModelList, resources.Key, resources.Receipt]
    _, found = msgspec.json.schema_components(types, ref_template=_REF)
    for schema in found.values():
        schema["description"] = " ".join(schema.get("description", "").split())
    for name in ("ChatRequest", "TextRequest"):
        _leave_out(found[name], _NOT_SENT)
    for name, rule in _RULES.items():
        found[name] |= rule
    found["TextRequest"]["properties"]["prompt"] = _PROMPT
    found["ImageUrl"]["properties"]["url"]["pattern"] = _PICTURE_PATTERN
    schemas: dict[str, Schema] = _ecma_patterns(found)
    return schemas | _ANSWERS


def _leave_out(schema: Schema, members: tuple[str, ...]) -> None:
    for member in members:
        schema["properties"].pop(member, None)
    schema["required"] = [name for name in schema["required"] if name not in members]


def _ecma_patterns(schema: Any) -> Any:
    r"""JSON schema's patterns are ECMAScript's, where Python's `\Z` is `$`."""
    match schema:
        case dict():
            return {
                key: value.replace(r"\Z", "$") if key == "pattern" else _ecma_patterns(value)
                for key, value in schema.items()
            }
        case list():
            return [_ecma_patterns(item) for item in schema]
        case _:
            return schema


# ---- requests: the rules that the types' `__post_init__` enforces


def _given(member: str, schema: Schema | None = None) -> Schema:
    """The member is there, is not null, and fits."""
    return {"required": [member], "properties": {member: schema or {"not": {"type": "null"}}}}


def _array(items: Schema, most: int | None = None) -> Schema:
    return {"type": "array", "items": items, "minItems": 1} | ({} if most is None else {"maxItems": most})


_TOKENS = _array({"type": "integer", "minimum": 0, "maximum": 2**31 - 1})
_PROMPT: Schema = {
    "anyOf": [
        {"type": "string"},
        _array({"type": "string"}, 128),
        _TOKENS,
        _array(_TOKENS, 128),
        {"type": "null"},
    ],
    "description": "One text or several, or token ids.",
}
_PICTURE_PATTERN = r"^(data:image/[a-z0-9.+-]{1,64};base64,[A-Za-z0-9+/]+={0,2}|https?://.+)$"
_NAMED_TOOL: Schema = {"anyOf": [{"type": "object"}, {"const": "required"}]}
_RULES: dict[str, Schema] = {
    "ChatRequest": {
        "allOf": [
            {"if": _given("top_logprobs"), "then": _given("logprobs", {"const": True})},
            {"if": _given("tool_choice", _NAMED_TOOL), "then": _given("tools")},
            {"if": _given("function_call", {"type": "object"}), "then": _given("functions")},
            {
                "if": _given("modalities", {"type": "array", "contains": {"const": "audio"}}),
                "then": _given("audio"),
            },
        ]
    },
    "AssistantMessage": {
        "anyOf": [
            *(_given(member) for member in ("content", "refusal", "function_call", "audio")),
            _given("tool_calls", {"type": "array", "minItems": 1}),
        ]
    },
    "File": {"oneOf": [_given("file_data"), _given("file_id")]},
}

# ---- answers


def _object(description: str, required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "required": required.split(),
        "properties": properties,
    }


_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer"}
_FINISH_REASON: Schema = {"enum": ["stop", "length", "tool_calls", "content_filter", "function_call"]}
_TOOL_CALLS: Schema = {
    "type": "array",
    "items": {"type": "object"},
    "description": "As in OpenAI's API reference.",
}

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
_TEXT_CHOICE = _object(
    "One text.",
    "text index logprobs finish_reason",
    text=_TEXT,
    index=_COUNT,
    logprobs={"type": ["object", "null"]},
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
        usage=ref("Usage"),
        system_fingerprint=_TEXT,
    ),
    "ChatCompletionChunk": _object(
        "A piece of a streamed answer (OpenAI's `CreateChatCompletionStreamResponse`).",
        "id object created model choices",
        id=_TEXT,
        object={
            "enum": ["chat.completion.chunk", "chat.completion"],
            "description": "The latter in the dialect `bitseek`.",
        },
        created=_COUNT,
        model=_TEXT,
        choices={"type": "array", "items": _CHUNK_CHOICE},
        usage={"anyOf": [ref("Usage"), {"type": "null"}]},
        system_fingerprint=_TEXT,
    ),
    "Completion": _object(
        "A whole text completion (OpenAI's `CreateCompletionResponse`). The events of a stream look the same.",
        "id object created model choices",
        id=_TEXT,
        object={"const": "text_completion"},
        created=_COUNT,
        model=_TEXT,
        choices={"type": "array", "items": _TEXT_CHOICE},
        usage={"anyOf": [ref("Usage"), {"type": "null"}]},
        system_fingerprint=_TEXT,
    ),
    "AnyChunk": {
        "anyOf": [ref("ChatCompletionChunk"), ref("Completion")],
        "description": "A piece of whatever was streamed.",
    },
    "Ticket": _object(
        "The right to one stream, once and soon. `url` is a path on this server.",
        "object id expires_at url",
        object={"const": "chat.completion.ticket"},
        id=_TEXT,
        expires_at=_COUNT,
        url=_TEXT,
    ),
    "Accepted": _object(
        "A generation that runs without its client (`Prefer: respond-async`).",
        "id object stream_url receipt_url",
        id=_TEXT,
        object={"const": "generation"},
        stream_url=_TEXT,
        receipt_url=_TEXT,
    ),
    "Cancellation": _object(
        "What becomes of a generation that was cancelled.",
        "object id state",
        object={"const": "generation.cancellation"},
        id=_TEXT,
        state={"enum": ["cancelling", "settled"]},
    ),
    "Error": _object(
        "What every error looks like (OpenAI's `ErrorResponse`).",
        "error",
        error=_object(
            "What is wrong.",
            "message type param code",
            message=_TEXT,
            type=_TEXT,
            param=_TEXT_OR_NULL,
            code=_TEXT_OR_NULL,
        ),
    ),
}
