"""Turns the stream of an Anthropic upstream into chat chunks.

`ChunkReader` reads these chunks like any other upstream's, with its limits, errors and usage.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from chatapi.wire import sse
from chatapi.wire.json_guard import as_object
from chatapi.wire.sse import Event
from chatapi.wire.upstream.events import DONE, Choice, Chunk, Message, whole_characters
from chatapi.wire.upstream.tool_calls import Fragment, Function

to_json = msgspec.json.Encoder().encode


# Every member has a default: new kinds of events and blocks are skipped, as Anthropic's versioning policy
# asks. Null is the same as nothing, as in Anthropic's SDKs.
class _Block(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    data: str | None = None
    """Encrypted thinking."""
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    """A call's input: Anthropic's begins empty, and other servers may send all of it here."""


class _Delta(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Head(msgspec.Struct, frozen=True, gc=False):
    usage: Any = None
    """Of any type, as in `_MessageEvent`: a wrong one must not spoil the answer, because we can count."""


class _MessageEvent(msgspec.Struct, gc=False):
    type: str
    message: _Head | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None


_decoder = msgspec.json.Decoder(_MessageEvent)


def _decoded(data: bytes) -> _MessageEvent:
    """Return the event. Raises `MsgspecError`, `ValueError` or `RecursionError` for invalid data."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _decoder.decode(whole_characters(data))


class MessagesParser:
    """Turns the bytes of one stream of Anthropic's into the events of a chat in OpenAI's API."""

    def __init__(self) -> None:
        self._parser = sse.Parser()
        self._usage: dict[str, Any] = {}
        self._calls_count = 0
        # Whether the last call has no arguments yet, and those that came with its beginning.
        self._is_call_empty = False
        self._whole_input = ""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes; see `sse.Parser.feed`."""
        return [chunk for event in self._parser.feed(data) for chunk in self._chunks(event)]

    def close(self) -> list[Event]:
        """Return the events that the end of the input leaves."""
        return [chunk for event in self._parser.close() for chunk in self._chunks(event)]

    def _chunks(self, event: Event) -> Iterator[Event]:
        try:
            sent = _decoded(event.data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            yield Event(b"{")  # invalid JSON, which the reader refuses
            return
        match sent.type:
            case "error":
                yield Event(event.data, "error")
            case "message_start":
                # The prompt's figures come here, the answer's with `message_delta`. No text has come yet, so
                # `output_tokens` do not count the answer here.
                usage = sent.message and sent.message.usage
                self._usage = _members(usage) | {"output_tokens": None}
                yield Event(to_json({"choices": [], "usage": self._usage}))
            case "content_block_start":
                yield from self._start(sent.content_block or _Block())
            case "content_block_delta":
                yield from self._piece(sent.delta or _Delta())
            case "message_delta":
                yield from self._end(sent)
            case "message_stop":
                yield DONE

    def _start(self, block: _Block) -> Iterator[Event]:
        yield from self._end_call()
        if block.type == "tool_use":
            # Anthropic numbers blocks of all kinds, OpenAI only the calls.
            call = Fragment(self._calls_count, block.id, Function(block.name))
            self._calls_count += 1
            self._is_call_empty = True
            sent = bytes(block.input).decode("utf-8", "replace")
            self._whole_input = sent if as_object(sent) and sent.strip("{} \t\r\n") else ""
            yield _chunk(Message(tool_calls=[call]))
        elif block.data:
            yield _chunk(Message(redacted_thinking=block.data))
        elif block.text or block.thinking:
            yield _chunk(Message(content=block.text, reasoning_content=block.thinking))

    def _piece(self, delta: _Delta) -> Iterator[Event]:
        match delta.type:
            case "text_delta":
                yield _chunk(Message(content=delta.text))
            case "thinking_delta":
                yield _chunk(Message(reasoning_content=delta.thinking))
            case "signature_delta":
                yield _chunk(Message(thinking_signature=delta.signature or ""))
            case "input_json_delta":
                self._is_call_empty &= not delta.partial_json
                yield self._arguments(delta.partial_json or "")

    def _arguments(self, text: str) -> Event:
        # One block is open at a time, so a piece belongs to the last call.
        call = Fragment(self._calls_count - 1, function=Function(arguments=text))
        return _chunk(Message(tool_calls=[call]))

    def _end_call(self) -> Iterator[Event]:
        """Yield the arguments of a call that ends without pieces of them: the input that it began with, or
        `{}`. Anthropic sends none, but chat clients decode the arguments as JSON.
        """
        if self._is_call_empty:
            self._is_call_empty = False
            yield self._arguments(self._whole_input or "{}")

    def _end(self, sent: _MessageEvent) -> Iterator[Event]:
        delta = sent.delta or _Delta()
        reason = delta.stop_reason
        # With another reason, a call whose input comes in pieces may be incomplete.
        if reason == "tool_use" or self._whole_input:
            yield from self._end_call()
        if reason is not None:
            said = "content_filter" if reason == "refusal" else reason
            yield _chunk(Message(), said, delta.stop_sequence)
        # A later figure replaces an earlier one: they are running totals. Null means unchanged.
        self._usage |= {name: value for name, value in _members(sent.usage).items() if value is not None}
        details = self._usage.get("output_tokens_details")
        if isinstance(details, dict):
            reasoning_tokens = details.get("thinking_tokens")
            self._usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        yield Event(to_json({"choices": [], "usage": self._usage}))


def _members(usage: object) -> dict[str, Any]:
    return usage if isinstance(usage, dict) else {}


def _chunk(message: Message, finish_reason: str | None = None, stop_sequence: str | None = None) -> Event:
    choice = Choice(0, message, finish_reason=finish_reason, stop_reason=stop_sequence)
    return Event(to_json(Chunk([choice])))
