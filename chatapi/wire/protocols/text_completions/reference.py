"""The part of the API's reference (OpenAPI) about text completions."""

from typing import Final

from chatapi.wire.api_reference import NUMBER, TEXT, TOKEN_IDS, Schema, new_array, new_object
from chatapi.wire.protocols.chat.reference import COMPLETION, FINISH_REASON_OR_NULL, LOGPROBS, USAGE_OR_NULL
from chatapi.wire.protocols.protocol import Operation
from chatapi.wire.protocols.text_completions.request import TextRequest

_PROMPT: Final[Schema] = {
    "anyOf": [
        TEXT,
        new_array(TEXT, minItems=1, maxItems=128),
        TOKEN_IDS,
        new_array(TOKEN_IDS, minItems=1, maxItems=128),
    ],
    "description": "One text or several, or token ids.",
}
_CHOICE: Final = new_object(
    "One text.",
    "text index logprobs finish_reason",
    **{"text": TEXT, "index": NUMBER, "logprobs": LOGPROBS, "finish_reason": FINISH_REASON_OR_NULL},
)
CREATE: Final = Operation(
    path="/v1/completions",
    operation_id="createCompletion",
    summary="Create a text completion",
    request=TextRequest,
    example={"prompt": "Once upon a time", "max_tokens": 16, "stream": False},
    answer="Completion",
    event="Completion",
    schemas={
        "Completion": new_object(
            "A text completion, whole or an event of a stream (OpenAI's `CreateCompletionResponse`).",
            "id object created model choices",
            object={"const": "text_completion"},
            **(COMPLETION | {"choices": new_array(_CHOICE), "usage": USAGE_OR_NULL}),
        )
    },
    rules={"TextRequest": {"properties": {"prompt": _PROMPT}}},
)
