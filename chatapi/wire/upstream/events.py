"""Decodes an upstream's event: a chunk of an answer, or an error.

Members that are not needed are ignored. A needed one of another type than documented is an error, except in a
usage: an invalid usage is dropped, because this service can count.
"""

import json
from typing import Any

import msgspec

from chatapi.wire.sse import Event
from chatapi.wire.upstream.logprobs import Logprobs
from chatapi.wire.upstream.tool_calls import Fragment, Function
from chatapi.wire.upstream.upstream_errors import (
    INVALID_RESPONSE,
    Complaint,
    UpstreamError,
    complaint_in,
    failure_of_complaint,
)
from chatapi.wire.upstream.usage import SentUsage

DONE = Event(b"[DONE]")


# `gc=False`: these structs are in no cycle, and need no garbage collection.
class SentAudio(msgspec.Struct, gc=False, omit_defaults=True):
    """A piece of a spoken answer."""

    id: str | None = None
    data: str | None = None
    transcript: str | None = None
    expires_at: int | None = None


class ContentPart(msgspec.Struct, gc=False):
    """A part of the content from Mistral's reasoning models: a text, or thinking, which consists of texts."""

    text: str | None = None
    thinking: list["ContentPart"] | None = None


class Message(msgspec.Struct, gc=False, omit_defaults=True):
    """A piece of a choice, or a whole choice."""

    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking_signature: str = ""
    redacted_thinking: str = ""
    """Both Anthropic's, as `anthropic_stream` passes them on."""
    refusal: str | None = None
    tool_calls: list[Fragment] | None = None
    function_call: Function | None = None
    audio: SentAudio | None = None
    annotations: list[dict[str, Any]] | None = None


class Choice(msgspec.Struct, gc=False, omit_defaults=True):
    """A choice of a chat chunk (`delta`), of a text chunk (`text`), or of an answer that ignored `stream`
    (`message`).
    """

    index: int | None = None
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    """vLLM's: the stop sequence or the id of the token that ended the choice."""
    logprobs: Logprobs | None = None


class Chunk(msgspec.Struct, gc=False, omit_defaults=True):
    """A chunk, of a chat or of text completions."""

    choices: list[Choice] | None = None
    usage: SentUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    error: Any = None
    message: Any = None
    """Only a flat error object has it."""


_decoder = msgspec.json.Decoder(Chunk)


def decode(event: Event) -> Chunk:
    """Return the event's chunk. Raises `UpstreamError` for an error object, and for data that is no chunk."""
    if event.type == "error":
        raise UpstreamError(failure_of_complaint(_complaint(event.data)))
    try:
        chunk = _decoder.decode(event.data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        chunk = _decode_leniently(event.data)
    # An error may come with status 200 and without `event: error`: many servers fail so in mid-stream.
    if chunk.error or (chunk.choices is None and isinstance(chunk.message, str)):
        raise UpstreamError(failure_of_complaint(_complaint(event.data)))
    return chunk


def _decode_leniently(data: bytes) -> Chunk:
    """Return a chunk that has half a character or an invalid usage. Raises `UpstreamError`."""
    try:
        return _decoder.decode(json.dumps(_without_bad_usage(json.loads(whole_characters(data)))).encode())
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise UpstreamError(INVALID_RESPONSE) from None


def whole_characters(data: bytes) -> bytes:
    """Return the JSON document with U+FFFD or "?" for half a character: bad UTF-8 or a lone surrogate, where
    a server cut its text between tokens. Raises `ValueError` or `RecursionError`.
    """
    document = json.loads(data.decode("utf-8", "replace"))
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


def _without_bad_usage(document: Any) -> Any:
    """Return the document without an invalid usage, which mostly comes after all content and must not fail
    the answer.
    """
    if not isinstance(document, dict):
        return document
    try:
        msgspec.convert(document.get("usage"), SentUsage | None)
    except msgspec.ValidationError:
        return {**document, "usage": None}
    return document


def _complaint(data: bytes) -> Complaint | None:
    try:
        return complaint_in(msgspec.json.decode(data))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
