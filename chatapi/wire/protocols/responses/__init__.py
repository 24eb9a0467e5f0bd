"""Responses: `POST /v1/responses` and `/v1/responses/input_tokens` (docs/responses.md)."""

from dataclasses import replace

from chatapi.wire.protocols.envelope import openai_error
from chatapi.wire.protocols.protocol import Dialect, Operation, Protocol
from chatapi.wire.protocols.responses.encoder import CountFolder, Encoder, Folder
from chatapi.wire.protocols.responses.request import (
    COUNT_NAME,
    NAME,
    ResponsesRequest,
    parse,
    parse_count,
    parse_resolved,
    parse_resolved_count,
)
from chatapi.wire.protocols.responses.response import ID_PREFIX
from chatapi.wire.protocols.responses.stored import accepted

_WORD = {"type": "string"}
_LIST = {"type": "array", "items": {"type": "object"}}
# What the API's reference says of the answers.
SCHEMAS = {
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

_DIALECT = Dialect(
    name="openai",
    public_id=(ID_PREFIX + "{}").format,
    encoder=Encoder,
    folder=Folder,
    envelope=openai_error,
    accepted=accepted,
)
RESPONSES = Protocol(
    name=NAME,
    parse=parse,
    parse_resolved=parse_resolved,
    dialects={_DIALECT.name: _DIALECT},
    id_prefixes=(ID_PREFIX,),
    model_kind="chat",
    operations=(
        Operation(
            path="/v1/responses",
            operation_id="createResponse",
            summary="Create a response",
            description="Answers with one object, or with typed server-sent events when `stream` is true.",
            request=ResponsesRequest,
            example={"input": "Say hello.", "max_output_tokens": 64, "stream": False},
            answer="Response",
            event="ResponseStreamEvent",
            schemas=SCHEMAS,
        ),
    ),
)
COUNT_INPUT = Protocol(
    name=COUNT_NAME,
    parse=parse_count,
    parse_resolved=parse_resolved_count,
    dialects={_DIALECT.name: replace(_DIALECT, encoder=None, folder=CountFolder)},
    id_prefixes=(),
    model_kind="chat",
    counts_tokens=True,
    operations=(
        Operation(
            path="/v1/responses/input_tokens",
            operation_id="countInputTokens",
            summary="Estimate the tokens of an input",
            description="Costs nothing, and counts in the limits of requests.",
            request=ResponsesRequest,
            example={"input": "Say hello."},
            answer="InputTokens",
            event=None,
        ),
    ),
)
