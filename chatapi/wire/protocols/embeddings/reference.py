"""The part of the API's reference (OpenAPI) about embeddings."""

from typing import Final

from chatapi.wire import caps
from chatapi.wire.api_reference import TOKEN_IDS, new_array
from chatapi.wire.protocols.embeddings.request import EmbeddingsRequest
from chatapi.wire.protocols.protocol import Operation

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
_TEXT: Final = {"type": "string", "minLength": 1}
_INPUT: Final = {
    "anyOf": [
        _TEXT,
        new_array(_TEXT, minItems=1, maxItems=caps.MAX_INPUTS),
        TOKEN_IDS,
        new_array(TOKEN_IDS, minItems=1, maxItems=caps.MAX_INPUTS),
    ],
    "description": "One text or several, or token ids.",
}
EMBED: Final = Operation(
    path="/v1/embeddings",
    operation_id="createEmbedding",
    summary="Embed texts",
    description="Answers with a vector for each input, once all of them are made.",
    request=EmbeddingsRequest,
    example={"model": "sandbox-embedding", "input": ["a cat", "a dog"]},
    answer="EmbeddingList",
    event=None,
    schemas={"EmbeddingList": _LIST},
    rules={"EmbeddingsRequest": {"properties": {"input": _INPUT}}},
)
