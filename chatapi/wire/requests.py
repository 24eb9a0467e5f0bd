"""Request JSON in, a validated `ChatRequest` or `TextRequest` out, or `InvalidRequest` naming the parameter.

Parameters are OpenAI's (API reference, "Create chat completion" and "Create completion"), types are strict
("5" is not 5, true is not 1, 1.0 is no integer), `null` is the same as absent, caps are in caps.py. What is
not OpenAI's goes one of two ways: a known parameter of an engine is kept in `extras` for deployments that ask
for it; anything else is dropped and named in `ignored`.

Rules that belong to a dialect or to a served model are the caller's: a default for an absent `model`, and two
refusals, `refuse_idle_stream_options` and `refuse_remote_media`. Any `max_tokens` is accepted here.
"""

import re
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from chatapi.wire import caps, json_guard
from chatapi.wire.invalid_request import InvalidRequest, explain
from chatapi.wire.parameters import ENGINE_PARAMETERS, OWN_FIELDS
from chatapi.wire.protocols.chat.request import ChatRequest
from chatapi.wire.protocols.text_completions.request import TextRequest

__all__ = ["ENGINE_PARAMETERS", "ChatRequest", "InvalidRequest", "TextRequest"]
__all__ += ["from_bytes", "ignored_parameters", "parse_chat", "parse_text", "to_bytes", "upstream_body"]
__all__ += ["refuse_idle_stream_options", "refuse_remote_media"]

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.\-\[\]]")

_R = TypeVar("_R", ChatRequest, TextRequest)


def parse_chat(
    body: bytes, default_model: str | None = None, *, remote_media_allowed: bool = False
) -> ChatRequest:
    """The chat request that `body` holds; raises `InvalidRequest`.

    A request without `model` means `default_model`, where there is one. Who does not know yet whether the
    model's deployments allow remote media says that they are allowed, and asks `refuse_remote_media` later.
    """
    request = _parse(body, ChatRequest, default_model)
    if not remote_media_allowed:
        refuse_remote_media(request)
    return request


def parse_text(body: bytes, default_model: str | None = None) -> TextRequest:
    """The text request that `body` holds, for `default_model` when it names none; raises `InvalidRequest`."""
    return _parse(body, TextRequest, default_model)


class Facts(Protocol):
    """What the rules of dialects and models ask of a request, or of its summary."""

    @property
    def stream(self) -> bool:
        """It asks for a stream."""

    @property
    def has_stream_options(self) -> bool:
        """The client sent `stream_options`."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of the parameters that no deployment can receive."""

    @property
    def extras(self) -> Iterable[str]:
        """Names of the engine parameters that were sent."""

    def remote_media(self) -> Iterable[str]:
        """The paths of remote pictures' addresses, at least of the first."""


def refuse_remote_media(request: Facts) -> None:
    """Raises `InvalidRequest` when there is a picture that someone would have to fetch. We never do."""
    for param in request.remote_media():
        message = f"Invalid value for '{param}': remote pictures are not allowed here, send a data: URL."
        raise InvalidRequest(message, param, "unsupported_media", is_stream=request.stream)


def refuse_idle_stream_options(request: Facts) -> None:
    """Raises `InvalidRequest` for `stream_options` without `stream`, as OpenAI does; OpenToken's document
    says: ignored.
    """
    if request.has_stream_options and not request.stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options"
        )


def to_bytes(request: ChatRequest | TextRequest) -> bytes:
    """The request as JSON, for Redis (MessagePack has no integers beyond 64 bits, which JSON schemas may)."""
    return _encoder.encode(request)


def from_bytes(data: bytes) -> ChatRequest | TextRequest:
    """The request that `to_bytes` wrote; raises `msgspec.DecodeError` on anything else."""
    return _decoder.decode(data)


def ignored_parameters(request: Facts, extra_parameters: frozenset[str]) -> tuple[str, ...]:
    """What is not forwarded to a deployment that may receive `extra_parameters`."""
    return request.ignored + tuple(name for name in request.extras if name not in extra_parameters)


def upstream_body(
    request: ChatRequest | TextRequest,
    *,
    model: str,
    max_output_tokens: int,
    extra_parameters: frozenset[str],
) -> dict[str, Any]:
    """The JSON-able body for an OpenAI-compatible upstream: what the client sent, but streamed where that can
    be, counted and capped.

    `model` is the upstream's name of the model, `extra_parameters` what the deployment may receive beyond
    OpenAI's parameters.
    """
    body: dict[str, Any] = msgspec.to_builtins(request)
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    for name in (*OWN_FIELDS, "max_tokens", "stream", "stream_options"):
        body.pop(name, None)
    body |= {name: value for name, value in request.extras.items() if name in extra_parameters}
    body |= {"model": model, limit: max_output_tokens}
    if not isinstance(request, TextRequest):
        return body | _STREAMED
    body["prompt"] = "" if request.prompt is None else request.prompt
    if request.logprobs_count is None:
        body.pop("logprobs", None)
    else:
        body["logprobs"] = request.logprobs_count
    return body | _STREAMED if request.can_stream else body


_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[ChatRequest | TextRequest] = msgspec.json.Decoder(ChatRequest | TextRequest)
_PARAMETERS = {
    type_: frozenset(type_.__struct_fields__) - frozenset(OWN_FIELDS) for type_ in (ChatRequest, TextRequest)
}


def _parse(body: bytes, request_type: type[_R], default_model: str | None) -> _R:
    try:
        return _converted(body, request_type, default_model)
    except InvalidRequest as error:
        error.is_stream = _asks_for_stream(body)
        raise


def _converted(body: bytes, request_type: type[_R], default_model: str | None) -> _R:
    try:
        sent = json_guard.decode(body)
    except msgspec.ValidationError:
        raise _out_of_range(body, request_type) from None
    found = _sorted(sent, _PARAMETERS[request_type])
    if default_model is not None:
        found.setdefault("model", default_model)
    try:
        return msgspec.convert(found, request_type)
    except msgspec.ValidationError as error:
        raise explain(error, request_type, sent) from None


class _Streaming(msgspec.Struct):
    stream: Any = None


def _asks_for_stream(body: bytes) -> bool:
    """Whether a body that is refused has `"stream": true`; False where it can't be read that far."""
    try:
        return msgspec.json.decode(body, type=_Streaming).stream is True
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def _sorted(sent: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The known parameters by name, the others in `extras` and `ignored`, null nowhere."""
    if len(sent) > len(known) + len(ENGINE_PARAMETERS) + caps.MAX_IGNORED:
        raise _too_many_unknown()  # without a look at each: there can be a quarter of a million
    found: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in sent.items():
        if value is None:
            continue
        if name in known:
            found[name] = value
        elif name in ENGINE_PARAMETERS:
            extras[name] = value
        else:
            ignored.append(name)
    _check_extras(extras)
    return found | {"extras": extras, "ignored": _printable(ignored)}


def _check_extras(extras: dict[str, Any]) -> None:
    for name, value in extras.items():
        if len(_encoder.encode(value)) > caps.MAX_EXTRA_BYTES:
            raise InvalidRequest(
                f"Invalid value for '{name}': expected at most {caps.MAX_EXTRA_BYTES} bytes.", name
            )


def _printable(names: list[str]) -> tuple[str, ...]:
    """The names as they may stand in a header or a log line."""
    if len(names) > caps.MAX_IGNORED:
        raise _too_many_unknown()
    return tuple(_NOT_IN_A_NAME.sub("?", name[: caps.MAX_NAME_CHARS]) for name in names)


def _too_many_unknown() -> InvalidRequest:
    return InvalidRequest(
        f"The body has more than {caps.MAX_IGNORED} unknown parameters.", code="unknown_parameter"
    )


def _out_of_range(body: bytes, request_type: type[_R]) -> InvalidRequest:
    """Which parameter has a number that no float and no integer of 4300 digits holds: typed decoding tells
    the path.
    """
    try:
        msgspec.json.decode(body, type=request_type)
    except msgspec.ValidationError as error:
        found = explain(error, request_type)
        if found.code != "missing_required_parameter":
            return found
    return InvalidRequest("A number in the body is out of range.")
