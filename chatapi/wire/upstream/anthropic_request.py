"""Writes the body of a request to an Anthropic upstream."""

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile, groupby
from typing import Any, Final, assert_never

import msgspec

from chatapi.wire.deltas import Failed
from chatapi.wire.generation_request import GenerationRequest, check_fields
from chatapi.wire.json_guard import as_object
from chatapi.wire.messages import (
    AssistantMessage,
    AudioPart,
    CacheControl,
    CalledFunction,
    CustomCall,
    DeveloperMessage,
    File,
    FilePart,
    FunctionCall,
    FunctionMessage,
    ImagePart,
    ImageUrl,
    Message,
    Part,
    RefusalPart,
    SystemMessage,
    TextPart,
    Thought,
    ToolMessage,
    UserMessage,
    texts,
)
from chatapi.wire.parameters import (
    AllowedToolsChoice,
    FunctionChoice,
    FunctionDefinition,
    FunctionTool,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    Tool,
    custom_tools,
)
from chatapi.wire.prompts import Messages
from chatapi.wire.upstream.openai_request import OURS
from chatapi.wire.upstream.upstream_errors import UpstreamError

VERSION: Final = {"anthropic-version": "2023-06-01"}
# Each field of a request is in one of these sets, or in `OURS`.
_REWRITTEN: Final = frozenset(
    {"model", "prompt", "stream", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop"}
    | {"user", "safety_identifier", "tools", "tool_choice", "parallel_tool_calls", "tool_cache_marks"}
    | {"response_format", "reasoning_effort", "extras"}
)
# Without these the answer may differ, but stays acceptable. By name, whether a value is lost: a penalty of 0
# is not. Some belong to a refused parameter: `audio` to `modalities`.
_LEFT_OUT: Final[Mapping[str, Callable[[Any], bool]]] = {
    "best_of": bool,
    "frequency_penalty": bool,
    "presence_penalty": bool,
    "logit_bias": bool,
    "seed": lambda seed: seed is not None,
    "top_logprobs": bool,
    "verbosity": bool,
    "function_call": bool,
    "audio": bool,
    "prediction": bool,
    "store": bool,
    "prompt_cache_options": bool,
    "prompt_cache_retention": bool,
}
# The service itself acts on these: it stores metadata, queues by the tier, and chooses the deployment by the
# cache's key. Only deployments of other engines get a dear tier (`GenerationRequest.extra_names`).
_BY_SERVICE: Final = frozenset({"metadata", "service_tier", "prompt_cache_key"})
# These change the answer's form or meaning. By name, whether a value is refused.
_REFUSED: Final[Mapping[str, Callable[[Any], bool]]] = {
    "functions": bool,
    "logprobs": bool,
    "web_search_options": bool,
    "modalities": lambda modalities: "audio" in (modalities or ()),
    "moderation": bool,
    "n": lambda count: (count or 1) > 1,
}
check_fields(GenerationRequest, _REWRITTEN, _LEFT_OUT, _BY_SERVICE, _REFUSED, OURS)
UNSUPPORTED: Final = frozenset({*_LEFT_OUT, *_REFUSED} - {"store"})
"""The parameters that this API does not have. In Responses, the service itself acts on `store`."""
# The same for parameters whose other values are sent.
_LEFT_OUT_VALUES: Final[Mapping[str, Callable[[Any], bool]]] = {
    # Every object in Anthropic's schemas has a fixed set of properties, so "any object" has no schema.
    "response_format": lambda form: isinstance(form, JsonObjectFormat) or _has_no_schema(form),
    # Without an effort, most models do not think.
    "reasoning_effort": lambda effort: effort == "none",
}
# The same for nested structs, except for those that are refused as a whole: members that are written, then
# those that are left out or refused.
_REFUSED_MEMBERS: Final = ("function_call", "audio")
check_fields(
    AssistantMessage,
    {"content", "refusal", "tool_calls", "thoughts", "cache_control"},
    {"name", "reasoning_content"},
    _REFUSED_MEMBERS,
)
check_fields(Thought, {"thinking", "signature", "data"})
check_fields(DeveloperMessage | SystemMessage | UserMessage, {"content"}, {"name"})
check_fields(ToolMessage, {"content", "tool_call_id", "is_error", "cache_control"})
check_fields(TextPart, {"text", "cache_control"}, {"prompt_cache_breakpoint"})
check_fields(RefusalPart, {"refusal"})
check_fields(ImagePart, {"image_url", "cache_control"}, {"prompt_cache_breakpoint"})
check_fields(ImageUrl, {"url"}, {"detail"})
check_fields(FilePart, {"file", "cache_control"}, {"prompt_cache_breakpoint"})
check_fields(File, {"file_data", "filename"}, {"file_id"})
check_fields(FunctionCall, {"id", "function"}, {"extra_content"})
check_fields(CalledFunction, {"name", "arguments"})
check_fields(FunctionTool, {"function"})
check_fields(FunctionDefinition, {"name", "description", "parameters", "strict"})
check_fields(JsonSchemaFormat, {"json_schema"})
check_fields(JsonSchema, {"schema", "description"}, {"name", "strict"})
# Engine parameters that are Anthropic's own; others would be refused as unknown.
FORWARDED_EXTRAS: Final = frozenset({"cache_control", "thinking", "top_k"})
_TOOL_USE_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_DATA_URL: Final = re.compile(r"data:([^;,]+);base64,")
# The types of files that are text.
_TEXTS: Final = ("text/", "application/json")
# The beginning of every PDF, "%PDF-".
_PDF_IN_BASE64: Final = "JVBERi"
_tools_decoder = msgspec.json.Decoder(list[Tool])


def lacks(request: GenerationRequest) -> bool:
    """Return whether Anthropic's API lacks one of the request's parameters. The messages are not checked:
    `messages_body` may still refuse them.
    """
    return (
        _is_refused(request)
        or isinstance(request.tool_choice, AllowedToolsChoice)
        # The choice of a custom tool needs no check: its tool is in `tools`.
        or bool(custom_tools(bytes(request.tools)))
    )


def _is_refused(request: GenerationRequest) -> bool:
    """Return whether Anthropic's API lacks a parameter that has no other form, either."""
    asked = (is_refused(getattr(request, name)) for name, is_refused in _REFUSED.items())
    return not isinstance(request.prompt, Messages) or any(asked)


def left_out(request: GenerationRequest) -> tuple[str, ...]:
    """Return the names of the request's parameters that Anthropic's API does not get, though it answers."""
    rules = (*_LEFT_OUT.items(), *_LEFT_OUT_VALUES.items())
    names = tuple(name for name, is_lost in rules if is_lost(getattr(request, name)))
    # If it refuses the request, only deployments that get all of it answer.
    return () if _is_refused(request) else names


def messages_body(
    request: GenerationRequest,
    *,
    model: str,
    max_output_tokens: int,
    extra_parameters: frozenset[str],
    is_streamed: bool = True,
) -> dict[str, Any]:
    """Return the JSON-able body of `POST /v1/messages`; see `openai_request.upstream_body`. It always asks
    for a stream.

    Raises `UpstreamError` for a request that can't be expressed in Anthropic's API.
    """
    assert isinstance(request.prompt, Messages)
    for name, is_refused in _REFUSED.items():
        if is_refused(getattr(request, name)):
            raise unsupported(name)
    marks = "cache_control" in extra_parameters
    messages = request.prompt.messages
    conversation = [*dropwhile(lambda each: isinstance(each, SystemMessage | DeveloperMessage), messages)]
    instructions = messages[: len(messages) - len(conversation)]
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_output_tokens,
        # Always: a silent connection may break before a long answer is whole (Anthropic's "Long requests").
        "stream": True,
        # Instructions before the conversation go here; later ones stay in their place.
        "system": [block for message in instructions for block in _message_blocks(message, marks)],
        "messages": list(_turns(conversation, marks)),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop_sequences": request.stop_sequences,
        "metadata": request.end_user and {"user_id": request.end_user},
        "output_config": _output_config(request),
    }
    if request.tools:
        tool_marks = request.tool_cache_marks if marks else {}
        body["tools"] = [_tool(tool, tool_marks) for tool in _tools_decoder.decode(request.tools)]
        body["tool_choice"] = _tool_choice(request)
    extras = FORWARDED_EXTRAS & extra_parameters
    body |= {name: value for name, value in request.extras.items() if name in extras}
    # The client's own budget is exact.
    if request.is_effort_estimated and "thinking" in body:
        body["output_config"].pop("effort", None)
    # A temperature of 0 is a value; None and empty lists were not sent.
    return {name: value for name, value in body.items() if value or value == 0}


def _turns(messages: Sequence[Message], marks: bool) -> Iterator[dict[str, Any]]:
    """Yield the turns of the conversation. Tool results and a user's message behind them are one turn."""
    # Anthropic merges turns of one role, but a tool's result must be in the turn right after its call.
    for role, group in groupby(messages, key=_role):
        # Anthropic refuses a turn without content.
        if content := [block for message in group for block in _message_blocks(message, marks)]:
            yield {"role": role, "content": content}


def _role(message: Message) -> str:
    match message:
        case SystemMessage() | DeveloperMessage():
            return "system"
        case AssistantMessage():
            return "assistant"
        case UserMessage() | ToolMessage() | FunctionMessage():
            return "user"
        case _:
            assert_never(message)


def _message_blocks(message: Message, marks: bool) -> Iterator[dict[str, Any]]:
    match message:
        case ToolMessage():
            content = "".join(texts(message))
            call_id = _tool_use_id(message.tool_call_id)
            block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
            error = {"is_error": True} if message.is_error else {}
            yield block | error | _mark(message.cache_control, marks)
        case AssistantMessage():
            blocks = [*_assistant_blocks(message, marks)]
            # A message's mark caches the prompt up to its end, so the last block gets it.
            blocks[-1:] = [block | _mark(message.cache_control, marks) for block in blocks[-1:]]
            yield from blocks
        case FunctionMessage():
            raise unsupported("messages")
        case UserMessage() | SystemMessage() | DeveloperMessage():
            yield from _content_blocks(message.content, marks)
        case _:
            assert_never(message)


def _assistant_blocks(message: AssistantMessage, marks: bool) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a turn, without reasoning that Anthropic has not signed: it would be refused."""
    if any(getattr(message, name) for name in _REFUSED_MEMBERS):
        raise unsupported("messages")
    for thought in message.thoughts or ():
        if thought.data:
            yield {"type": "redacted_thinking", "data": thought.data}
        elif thought.signature:
            yield {"type": "thinking", "thinking": thought.thinking, "signature": thought.signature}
    said = [*_content_blocks(message.content or "", marks), *_content_blocks(message.refusal or "", marks)]
    # Other models often write only line breaks before a call, and Anthropic refuses a block of white space.
    yield from (block for block in said if block["text"].strip())
    for call in message.tool_calls or ():
        yield _call(call)


def _mark(mark: CacheControl | None, marks: bool) -> dict[str, Any]:
    return {"cache_control": mark} if marks and mark is not None else {}


def _content_blocks(content: str | Sequence[Part], marks: bool) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a message's content, with their `cache_control` if `marks`."""
    parts = [TextPart(content)] if isinstance(content, str) else content
    for part in parts:
        block: dict[str, Any]
        match part:
            # Anthropic refuses empty text blocks, and OpenAI's clients send them beside tool calls.
            case TextPart(text="") | RefusalPart(refusal=""):
                continue
            case TextPart():
                block = {"type": "text", "text": part.text}
            case RefusalPart():
                block = {"type": "text", "text": part.refusal}
            case ImagePart():
                block = {"type": "image", "source": _source(part.image_url.url)}
            case FilePart() if url := _data_url(part.file):
                block = {"type": "document", "source": _document(url), "title": part.file.filename}
            case FilePart() | AudioPart():
                raise unsupported("messages")
            case _:
                assert_never(part)
        yield block | _mark(getattr(part, "cache_control", None), marks)


def _data_url(file: File) -> str | None:
    """Return the file's data as a URL; None if they are not there, or their type is not known."""
    data = file.file_data or ""
    if data.startswith(_PDF_IN_BASE64):
        return f"data:application/pdf;base64,{data}"
    return data if _DATA_URL.match(data) else None


def _document(url: str) -> dict[str, Any]:
    """Return the source of a document: text, or a PDF. Anthropic refuses other types by their name."""
    found = _DATA_URL.match(url)
    if found is None or not found[1].startswith(_TEXTS):
        return _source(url)
    try:
        text = base64.b64decode(url[found.end() :], validate=True).decode()
    except ValueError:
        raise unsupported("messages") from None
    return {"type": "text", "media_type": "text/plain", "data": text}


def _source(url: str) -> dict[str, Any]:
    found = _DATA_URL.match(url)
    if found is None:
        return {"type": "url", "url": url}
    media_type = "image/jpeg" if found[1] == "image/jpg" else found[1]  # Anthropic knows only its right name
    return {"type": "base64", "media_type": media_type, "data": url[found.end() :]}


def _call(call: FunctionCall | CustomCall) -> dict[str, Any]:
    if not isinstance(call, FunctionCall):
        raise unsupported("messages")
    # OpenAI's arguments are the model's text; Anthropic requires an object.
    arguments = as_object(call.function.arguments or "{}")
    if arguments is None:
        message = (
            f"The arguments of the tool call '{call.id}' are no JSON object, which the upstream requires."
        )
        raise UpstreamError(Failed(message, "invalid_request_error", "invalid_value", "messages", 400))
    return {
        "type": "tool_use",
        "id": _tool_use_id(call.id),
        "name": call.function.name,
        "input": arguments,
    }


def _tool_use_id(call_id: str) -> str:
    """Return the id, or a checksum of it if it has characters that Anthropic refuses."""
    if _TOOL_USE_ID.fullmatch(call_id):
        return call_id
    return f"toolu_{hashlib.sha256(call_id.encode()).hexdigest()[:24]}"


def _tool(tool: Tool, marks: dict[str, CacheControl]) -> dict[str, Any]:
    if not isinstance(tool, FunctionTool):
        raise unsupported("tools")
    function = tool.function
    found = {
        "name": function.name,
        "description": function.description,
        # OpenAI allows a function without parameters, or a schema without a type; Anthropic requires both.
        "input_schema": {"type": "object"} | (function.parameters or {}),
        "strict": function.strict,
        "cache_control": marks.get(function.name),
    }
    return {name: value for name, value in found.items() if value is not None}


def _tool_choice(request: GenerationRequest) -> dict[str, Any]:
    found: dict[str, Any]
    match request.tool_choice:
        case None | "auto":
            found = {"type": "auto"}
        case "required":
            found = {"type": "any"}
        case "none":
            return {"type": "none"}
        case FunctionChoice(function=named):
            found = {"type": "tool", "name": named.name}
        case _:
            raise unsupported("tool_choice")
    return found | ({"disable_parallel_tool_use": True} if request.parallel_tool_calls is False else {})


def _output_config(request: GenerationRequest) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if request.reasoning_effort not in (None, "none"):
        # Anthropic's scale begins at low.
        found["effort"] = "low" if request.reasoning_effort == "minimal" else request.reasoning_effort
    if isinstance(request.response_format, JsonSchemaFormat) and not _has_no_schema(request.response_format):
        named = request.response_format.json_schema
        # OpenAI's models read the description.
        described = {"description": named.description} if named.description else {}
        found["format"] = {"type": "json_schema", "schema": described | (named.schema or {})}
    return found


def _has_no_schema(form: Any) -> bool:
    return isinstance(form, JsonSchemaFormat) and form.json_schema.schema is None


def unsupported(param: str) -> UpstreamError:
    """Return the error for a parameter, or a form of it, that the upstream's API does not have."""
    message = f"This model's upstream does not support '{param}', or this form of it."
    return UpstreamError(Failed(message, "invalid_request_error", "unsupported_parameter", param, 400))
