"""Embeddings: `POST /v1/embeddings`, one dialect, never a stream."""

from typing import Final

from chatapi.wire.protocols.embeddings.folder import EmbeddingsFolder
from chatapi.wire.protocols.embeddings.request import NAME, EmbeddingsRequest, parse
from chatapi.wire.protocols.envelope import openai_error
from chatapi.wire.protocols.protocol import Dialect, Operation, Protocol

_TOKENS: Final = {"type": "integer"}
_EMBEDDING: Final = {
    "type": "object",
    "required": ["object", "index", "embedding"],
    "properties": {
        "object": {"const": "embedding"},
        "index": {"type": "integer"},
        "embedding": {
            "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}],
            "description": "Numbers, or with `encoding_format` `base64` 32-bit floats, low byte first.",
        },
    },
}
_LIST: Final = {
    "type": "object",
    "description": "The vectors, in the order of the inputs (OpenAI's `CreateEmbeddingResponse`).",
    "required": ["object", "data", "model", "usage"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": _EMBEDDING},
        "model": {"type": "string"},
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "total_tokens"],
            "properties": {"prompt_tokens": _TOKENS, "total_tokens": _TOKENS},
        },
    },
}

EMBEDDINGS = Protocol(
    name=NAME,
    parse=parse,
    dialects={
        "openai": Dialect(
            name="openai",
            public_id="embd-{}".format,
            encoder=None,
            folder=EmbeddingsFolder,
            envelope=openai_error,
        )
    },
    id_prefixes=("embd-",),
    model_kind="embeddings",
    operations=(
        Operation(
            path="/v1/embeddings",
            operation_id="createEmbedding",
            summary="Embed texts",
            description="Answers with a vector for each input, once all of them are made.",
            request=EmbeddingsRequest,
            example={"model": "sandbox-embedding", "input": ["a cat", "a dog"]},
            answer="EmbeddingList",
            event=None,
            schemas={"EmbeddingList": _LIST},
        ),
    ),
)
