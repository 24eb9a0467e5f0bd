"""The schemas of the OpenAPI document: requests and resources from their types, answers as in OpenAI's."""

from typing import Any

import msgspec

from chatapi.api.management.routes import ROUTES
from chatapi.api.organization import REPORTS
from chatapi.api.resources import Key, ModelList, Receipt
from chatapi.api.statements import StatementPage
from chatapi.wire import caps
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.protocols.chat import ENCODERS
from chatapi.wire.request_body import client_parameters
from usage.statements.document import StatementDocument

Schema = dict[str, Any]

_REF = "#/components/schemas/{name}"


def ref(name: str) -> Schema:
    return {"$ref": _REF.format(name=name)}


def ref_to(type_: Any) -> Schema:
    found, _ = msgspec.json.schema_components([type_], ref_template=_REF)
    return dict(found[0])


def all_schemas() -> dict[str, Schema]:
    operations = [each for protocol in PROTOCOLS.values() for each in protocol.operations]
    requests = [operation.request for operation in operations]
    managing = [operation for route in ROUTES for operation in route.operations.values()]
    types = [*requests, ModelList, Key, Receipt, *(report.page for report in REPORTS.values())]
    types += [StatementPage, StatementDocument]
    types += [each for operation in managing for each in (operation.body, operation.answer) if each]
    _, found = msgspec.json.schema_components(types, ref_template=_REF)
    for schema in found.values():
        schema["description"] = " ".join(schema.get("description", "").split())
    for request_type in requests:
        schema, sent = found[request_type.__name__], client_parameters(request_type)
        schema["properties"] = {name: schema["properties"][name] for name in sent}
        schema["required"] = [name for name in schema["required"] if name in sent]
    for name, rule in _RULES.items():
        found[name] |= rule
    found["TextRequest"]["properties"]["prompt"] = _PROMPT
    found["EmbeddingsRequest"]["properties"]["input"] = _INPUT
    found["ImageUrl"]["properties"]["url"]["pattern"] = _PICTURE_PATTERN
    schemas: dict[str, Schema] = ecma_patterns(found)
    return schemas | _ANSWERS | {k: dict(v) for each in operations for k, v in each.schemas.items()}


def ecma_patterns(schema: Any) -> Any:
    r"""JSON schema's patterns are ECMAScript's, where Python's `\Z` is `$`."""
    match schema:
        case dict():
            return {
                key: value.replace(r"\Z", "$") if key == "pattern" else ecma_patterns(value)
                for key, value in schema.items()
            }
        case list():
            return [ecma_patterns(item) for item in schema]
        case _:
            return schema


# ---- requests: the rules that the types' `__post_init__` enforces

_NULL: Schema = {"type": "null"}


def _given(member: str, schema: Schema | None = None) -> Schema:
    """Return a schema for objects that have this member, not null, and fitting if `schema` is given."""
    return {"required": [member], "properties": {member: schema or {"not": _NULL}}}


def _array(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


_TOKENS = _array({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, minItems=1)
_TEXTS = _array({"type": "string"}, minItems=1, maxItems=128)
_PROMPT: Schema = {
    "anyOf": [{"type": "string"}, _TEXTS, _TOKENS, _array(_TOKENS, minItems=1, maxItems=128)],
    "description": "One text or several, or token ids.",
}
_EMBEDDED: Schema = {"type": "string", "minLength": 1}
_INPUT: Schema = {
    "anyOf": [
        _EMBEDDED,
        _array(_EMBEDDED, minItems=1, maxItems=caps.MAX_INPUTS),
        _TOKENS,
        _array(_TOKENS, minItems=1, maxItems=caps.MAX_INPUTS),
    ],
    "description": "One text or several, or token ids.",
}
_PICTURE_PATTERN = r"^(data:image/[a-z0-9.+-]{1,64};base64,[A-Za-z0-9+/]+={0,2}|https?://.+)$"
_NAMED_TOOL: Schema = {"anyOf": [{"type": "object"}, {"const": "required"}]}
_WITH_AUDIO: Schema = {"type": "array", "contains": {"const": "audio"}}
_RULES: dict[str, Schema] = {
    "ChatRequest": {
        "allOf": [
            {"if": _given("top_logprobs"), "then": _given("logprobs", {"const": True})},
            {"if": _given("tool_choice", _NAMED_TOOL), "then": _given("tools")},
            {"if": _given("function_call", {"type": "object"}), "then": _given("functions")},
            {"if": _given("modalities", _WITH_AUDIO), "then": _given("audio")},
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
    names = required.split()
    return {"type": "object", "description": description, "required": names, "properties": properties}


_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer"}
_LOGPROBS: Schema = {"type": ["object", "null"]}
_USAGE_OR_NULL: Schema = {"anyOf": [ref("Usage"), _NULL]}
_FINISH_REASON: Schema = {"enum": ["stop", "length", "tool_calls", "content_filter", "function_call"]}
_FINISH_REASON_OR_NULL: Schema = {"anyOf": [_FINISH_REASON, _NULL]}
_MESSAGE: dict[str, Schema] = {
    "role": {"const": "assistant"},
    "reasoning_content": _TEXT,
    "tool_calls": _array({"type": "object"}) | {"description": "As in OpenAI's API reference."},
}
_COMPLETION: dict[str, Schema] = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "system_fingerprint": _TEXT}
_CHOICE = _object(
    "One answer.",
    "index message logprobs finish_reason",
    index=_COUNT,
    message=_object(
        "What the model said.",
        "role content refusal",
        **(_MESSAGE | {"content": _TEXT_OR_NULL, "refusal": _TEXT_OR_NULL}),
    ),
    logprobs=_LOGPROBS,
    finish_reason=_FINISH_REASON,
)
_CHUNK_CHOICE = _object(
    "A piece of one answer.",
    "index delta finish_reason",
    index=_COUNT,
    delta=_object("A piece of the message.", "", **(_MESSAGE | {"content": _TEXT, "refusal": _TEXT})),
    logprobs={"type": "object"},
    finish_reason=_FINISH_REASON_OR_NULL,
)
_TEXT_CHOICE = _object(
    "One text.",
    "text index logprobs finish_reason",
    **{"text": _TEXT, "index": _COUNT, "logprobs": _LOGPROBS, "finish_reason": _FINISH_REASON_OR_NULL},
)
_CHUNK_NAME = {
    "enum": list(dict.fromkeys(encoder.chunk_object for encoder in ENCODERS.values())),
    "description": "By dialect: "
    + ", ".join(f"`{dialect}` `{encoder.chunk_object}`" for dialect, encoder in ENCODERS.items())
    + ".",
}
_ANSWERS: dict[str, Schema] = {
    "ChatCompletion": _object(
        "A whole answer (OpenAI's `CreateChatCompletionResponse`).",
        "id object created model choices usage",
        object={"const": "chat.completion"},
        **(_COMPLETION | {"choices": _array(_CHOICE), "usage": ref("Usage")}),
    ),
    "ChatCompletionChunk": _object(
        "A piece of a streamed answer (OpenAI's `CreateChatCompletionStreamResponse`).",
        "id object created model choices",
        object=_CHUNK_NAME,
        **(_COMPLETION | {"choices": _array(_CHUNK_CHOICE), "usage": _USAGE_OR_NULL}),
    ),
    "Completion": _object(
        "A text completion, whole or an event of a stream (OpenAI's `CreateCompletionResponse`).",
        "id object created model choices",
        object={"const": "text_completion"},
        **(_COMPLETION | {"choices": _array(_TEXT_CHOICE), "usage": _USAGE_OR_NULL}),
    ),
    "AnyChunk": {
        "anyOf": [
            ref(name) for name in ("ChatCompletionChunk", "Completion", "MessageEvent", "ResponseStreamEvent")
        ],
        "description": "A piece of a streamed answer of any protocol.",
    },
    "Ticket": _object(
        "The right to one stream, once and soon. `url` is a path on this server.",
        "object id expires_at url",
        object={"const": "chat.completion.ticket"},
        **{"id": _TEXT, "expires_at": _COUNT, "url": _TEXT},
    ),
    "Accepted": _object(
        "A generation that runs without its client (`Prefer: respond-async`).",
        "id object stream_url receipt_url",
        object={"const": "generation"},
        **dict.fromkeys(("id", "stream_url", "receipt_url"), _TEXT),
    ),
    "Cancellation": _object(
        "The state of a generation that was cancelled.",
        "object id state",
        **{"object": {"const": "generation.cancellation"}, "id": _TEXT},
        state={"enum": ["cancelling", "settled"]},
    ),
    "Error": _object(
        "The form of every error (OpenAI's `ErrorResponse`).",
        "error",
        error=_object(
            "What is wrong.",
            "message type param code",
            **{"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL},
        ),
    ),
}
