"""What an OpenAI-compatible upstream is asked for a generation: the path and the JSON body."""

from typing import Any, Final

import msgspec

from chatapi.wire.generation_request import GenerationRequest, Messages, Texts

_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_PATHS: Final = {Messages: "/chat/completions", Texts: "/completions"}
# The first of them are sent with our own values; the others are for us.
_NOT_FORWARDED: Final = frozenset(
    {"model", "stream", "max_tokens", "prompt"}
    | {"include_usage", "extras", "ignored", "idle_parameters", "media_param", "digest", "context"}
    | {"announces_prompt_tokens"}
)
_FORWARDED: Final = frozenset(GenerationRequest.__struct_fields__) - _NOT_FORWARDED
PARAMETERS: Final = _FORWARDED | {
    *("model", "stream", "stream_options", "max_tokens"),
    *Messages.__struct_fields__,
    *Texts.__struct_fields__,
}
"""All members that a body may have, beside the parameters of engines."""


def upstream_path(request: GenerationRequest) -> str:
    """Return the path below the upstream's base URL."""
    return _PATHS[type(request.prompt)]


def upstream_body(
    request: GenerationRequest,
    *,
    model: str,
    max_output_tokens: int,
    extra_parameters: frozenset[str],
    is_streamed: bool = True,
) -> dict[str, Any]:
    """Return the JSON-able body: what the client sent, but counted, capped, and streamed where that can be.

    `model` is the upstream's name of the model, `extra_parameters` what the deployment may receive beyond
    OpenAI's parameters.
    """
    body: dict[str, Any] = {"model": model}
    for name, value in msgspec.to_builtins(request).items():
        if name == "prompt":
            del value["kind"]
            body |= value
        elif name in _FORWARDED:
            body[name] = value
    body |= {name: value for name, value in request.extras.items() if name in extra_parameters}
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    body |= {"model": model, limit: max_output_tokens}
    return body | _STREAMED if is_streamed and request.can_stream else body
