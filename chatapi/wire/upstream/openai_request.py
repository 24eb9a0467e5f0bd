"""Writes the body of a request to an OpenAI-compatible upstream."""

from itertools import dropwhile
from typing import Any, Final

import msgspec

from chatapi.wire.generation_request import GenerationRequest, check_fields
from chatapi.wire.messages import (
    CalledCustomTool,
    CalledFunction,
    CustomCall,
    File,
    FunctionCall,
    ImageUrl,
    InputAudio,
    Message,
    Part,
)
from chatapi.wire.parameters import (
    COMPLETION_LIMIT,
    SERVICE_TIER,
    CustomDefinition,
    FunctionDefinition,
    Tool,
)
from chatapi.wire.prompts import PROMPTS, Messages

_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
# A third of the length of numbers, and exact. A server that does not know it sends numbers.
_BASE64 = {"encoding_format": "base64"}
# Each field of a request is in one of these sets, so that no new field is sent by accident.
_FORWARDED: Final = frozenset(
    {"n", "best_of", "temperature", "top_p", "frequency_penalty", "presence_penalty", "logit_bias", "seed"}
    | {"stop", "max_completion_tokens", "logprobs", "top_logprobs", "tools", "tool_choice"}
    | {"parallel_tool_calls", "functions", "function_call", "response_format", "reasoning_effort"}
    | {"verbosity", "modalities", "audio", "prediction", "web_search_options", "moderation", "metadata"}
    | {"user", "safety_identifier", "store", "service_tier"}
    | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
)
# `upstream_body` writes these itself.
_REWRITTEN: Final = frozenset({"model", "prompt", "stream", "max_tokens", "extras"})
# Only Anthropic's API has a place for these.
_LEFT_OUT: Final = frozenset({"tool_cache_marks"})
OURS: Final = frozenset(
    {"models", "include_usage", "idle_parameters", "ignored", "media_param", "digest", "is_background"}
    | {"state", "context", "announces_prompt_tokens", "is_effort_estimated"}
)
"""No upstream gets them."""
_BETWEEN_INSTRUCTIONS: Final = "\n\n"
# An extra parameter that is a member of assistant messages.
REASONING: Final = "reasoning_content"
# An extra parameter that is a member of the calls in them: Gemini's signatures of its reasoning.
EXTRA_CONTENT: Final = "extra_content"
# All members that a body may have beside engine parameters.
PARAMETERS: Final = _FORWARDED | {
    *("model", "stream", "stream_options", "max_tokens", *_BASE64),
    *(name for prompt in PROMPTS for name in prompt.__struct_encode_fields__),
}

check_fields(GenerationRequest, _FORWARDED, _REWRITTEN, _LEFT_OUT, OURS)
# The same for nested structs: members that are sent, then those that `_translate` rewrites or drops. It looks
# at names only, so structs of one kind are checked together.
check_fields(
    Message,
    {"content", "name", "refusal", "tool_calls", "function_call", "audio", "tool_call_id"},
    {"thoughts", REASONING, "is_error", "cache_control"},
)
check_fields(
    Part,
    {"text", "refusal", "image_url", "input_audio", "file", "prompt_cache_breakpoint"},
    {"cache_control"},
)
check_fields(
    ImageUrl | InputAudio | File, {"url", "detail", "data", "format", "file_data", "file_id", "filename"}
)
check_fields(FunctionCall | CustomCall, {"id", "function", "custom"}, {EXTRA_CONTENT})
check_fields(CalledFunction | CalledCustomTool, {"name", "arguments", "input"})
check_fields(Tool, {"function", "custom"})
check_fields(FunctionDefinition, {"name", "description", "parameters", "strict"})
check_fields(CustomDefinition, {"name", "description", "format"})


def upstream_body(
    request: GenerationRequest,
    *,
    model: str,
    max_output_tokens: int,
    extra_parameters: frozenset[str],
    is_streamed: bool = True,
) -> dict[str, Any]:
    """Return the JSON-able body of a completion: the client's parameters with our limit of output tokens,
    streamed with its usage if possible.

    `model` is the upstream's name of the model, `extra_parameters` those that the deployment gets beyond
    OpenAI's.
    """
    body = _forwarded(request, model, extra_parameters)
    is_wanted = COMPLETION_LIMIT in extra_parameters and isinstance(request.prompt, Messages)
    limit = COMPLETION_LIMIT if is_wanted or COMPLETION_LIMIT in body else "max_tokens"
    body |= {limit: max_output_tokens}
    return body | _STREAMED if is_streamed and request.can_stream else body


def embeddings_body(
    request: GenerationRequest, *, model: str, extra_parameters: frozenset[str], **_: Any
) -> dict[str, Any]:
    """Return the JSON-able body of a request to embed inputs; see `upstream_body`."""
    return _forwarded(request, model, extra_parameters) | _BASE64


def _forwarded(request: GenerationRequest, model: str, extra_parameters: frozenset[str]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model}
    for name, value in msgspec.to_builtins(request, builtin_types=[msgspec.Raw]).items():
        if name == "prompt":
            del value["kind"]
            body |= value
            for message in body.get("messages", ()):
                _translate(message, extra_parameters)
            if "messages" in body:
                body["messages"] = _with_one_beginning(body["messages"])
        elif name in _FORWARDED:
            body[name] = value
    if request.has_dear_tier and SERVICE_TIER not in extra_parameters:
        del body[SERVICE_TIER]
    extras = {name: value for name, value in request.extras.items() if name in extra_parameters}
    return body | extras | {"model": model}


def _with_one_beginning(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with one of all instructions that the conversation begins with.

    Codex sends several, and many chat templates take one system message only, as the first message. Those
    with a name stay by themselves: they are examples of a conversation.
    """
    rest = [*dropwhile(lambda message: message["role"] == "system" and "name" not in message, messages)]
    contents = [message["content"] for message in messages[: len(messages) - len(rest)]]
    if len(contents) < 2:
        return messages
    parts = [part for content in contents for part in _parts(content)]
    is_plain = all(part.keys() == {"type", "text"} for part in parts)
    content = _BETWEEN_INSTRUCTIONS.join(part["text"] for part in parts) if is_plain else parts
    return [{"role": "system", "content": content}, *rest]


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _translate(message: dict[str, Any], extra_parameters: frozenset[str]) -> None:
    """Rewrite what only OpenAI's or Anthropic's API has, and drop what the deployment does not get."""
    # OpenAI's models read both roles alike. Templates of others refuse this one, or leave its text out.
    if message["role"] == "developer":
        message["role"] = "system"
    if thoughts := [each["thinking"] for each in message.pop("thoughts", ()) if "thinking" in each]:
        message.setdefault(REASONING, "\n\n".join(thoughts))
    if REASONING not in extra_parameters:
        message.pop(REASONING, None)
    for call in message.get("tool_calls", ()):
        if EXTRA_CONTENT not in extra_parameters or not isinstance(call.get(EXTRA_CONTENT), dict):
            call.pop(EXTRA_CONTENT, None)
    content = message.get("content")
    if message.pop("is_error", False) and isinstance(content, str):
        message["content"] = f"Error: {content}"
    if "cache_control" not in extra_parameters:
        _drop_marks(message, content)


def _drop_marks(message: dict[str, Any], content: Any) -> None:
    message.pop("cache_control", None)
    if not isinstance(content, list):
        return
    marks = [part.pop("cache_control", None) for part in content]
    if any(marks) and len(content) == 1 and content[0].keys() == {"type", "text"}:
        message["content"] = content[0]["text"]
