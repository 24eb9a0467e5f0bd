"""Answers of Messages: typed events, or one message (Anthropic's API reference, "Streaming messages").

Blocks come strictly one after another: SDKs add each delta to the last block. While a call's arguments are
incomplete, all other content is held back; calls that an upstream interleaves come at the end, each in one
piece.
"""

from collections.abc import Iterable, Iterator
from typing import Any, assert_never

import msgspec

from chatapi.wire.completion import CollectedToolCall, Completion
from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Audio,
    Failed,
    Finished,
    OtherContent,
    Reasoning,
    Refusal,
    Started,
    Text,
    ToolCall,
    Usage,
)
from chatapi.wire.json_guard import as_object
from chatapi.wire.protocols.envelope import END_LOST
from chatapi.wire.protocols.messages.envelope import error_document
from chatapi.wire.protocols.protocol import Answer

# Deltas that Anthropic's documents have no place for, neither in a stream nor in a message.
UnwrittenDelta = Audio | Annotations | OtherContent
to_json = msgspec.json.Encoder().encode


def event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json({"type": kind} | members))


PING = event("ping")


def public_id(id: str) -> str:
    """Return the id that clients see, from a generation's 32 hex digits."""
    return f"msg_{id}"


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _thinking_block(thinking: str, signature: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": thinking, "signature": signature}


def _redacted_block(delta: Reasoning) -> dict[str, Any]:
    return {"type": "redacted_thinking", "data": delta.redacted}


def _call_block(
    number: int, call: ToolCall | CollectedToolCall, context: dict[str, Any], arguments: str = ""
) -> dict[str, Any]:
    """Return a call; its input is empty if the arguments are not a whole JSON object, as in a cut call."""
    # The client's own name of a tool that has a shorter name at upstreams (`request._short`).
    name = context.get("tools", {}).get(call.name, call.name or "")
    return {
        "type": "tool_use",
        "id": call.id or f"call_{number}",
        "name": name,
        "input": as_object(arguments) or {},
    }


_STARTS = {"text": _text_block(""), "thinking": _thinking_block("")}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
# The type of a block's deltas, and their member with the text.
_CALL_DELTA = ("input_json_delta", "partial_json")


class _Block:
    """A content block in the making. Its key is its type, or the number of a call."""

    def __init__(self, key: str | int, start: dict[str, Any]) -> None:
        self.key = key
        self.start = start
        self.pieces: list[str] = []
        """Pieces of a call's arguments, or of text that is held back."""
        self.signature = ""

    @property
    def may_end(self) -> bool:
        """Whether another block may begin: a call must be whole, and text can go on in a further block."""
        return isinstance(self.key, str) or as_object("".join(self.pieces)) is not None


class MessagesEncoder:
    """Writes one answer as events."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._context: dict[str, Any] = {}
        # No block is open yet; the first one has index 0.
        self._index = -1
        self._open: _Block | None = None
        # Blocks that came while a call was incomplete.
        self._held: dict[str | int, _Block] = {}
        self._ended_calls: set[int] = set()
        self._has_refused = False
        self._finished: Finished | None = None

    def encode(self, batch: Iterable[AnyDelta]) -> bytes:
        """Return the batch's events; see `protocol.Encoder`."""
        return b"".join(frame for delta in batch for frame in self._frames(delta))

    def failed(self, failure: Failed) -> bytes:
        """Return the event that ends a broken stream."""
        document = error_document(failure, self._answer.request_id)
        return event("error", **{name: document[name] for name in ("error", "request_id")})

    def _frames(self, delta: AnyDelta) -> Iterator[bytes]:
        match delta:
            case Text() | Refusal():
                self._has_refused |= isinstance(delta, Refusal)
                yield from self._write("text", delta.text)
            case Reasoning():
                yield from self._think(delta)
            case ToolCall():
                yield from self._write(delta.call_index, delta.arguments, delta)
            case _:
                yield from self._framing(delta)

    def _framing(self, delta: Started | UnwrittenDelta | Finished | Usage | Failed) -> Iterator[bytes]:
        if isinstance(delta, UnwrittenDelta):
            return
        match delta:
            case Started():
                self._context = delta.context
                # An estimate: the upstream's figure replaces it in `message_delta`, as SDKs expect.
                usage = usage_body(Usage(delta.prompt_tokens or 0, 0))
                yield event("message_start", message=_message(self._answer, delta, [], None, None, usage))
            case Finished():
                self._finished = delta
            case Usage():
                yield from self._end(delta)
            case Failed():
                yield from self._release()
                yield self.failed(delta)
            case _:
                assert_never(delta)

    def _write(self, key: str | int, text: str, call: ToolCall | None = None) -> Iterator[bytes]:
        """Yield the frames for a piece of the block `key`, which may be open, held back, or new."""
        if self._open is None or self._open.key != key:
            if key in self._ended_calls or not (text or call):
                return  # only white space can follow a whole JSON object
            start = _STARTS[str(key)] if call is None else _call_block(call.call_index, call, self._context)
            block = _Block(key, start)
            # Anthropic's streams have one open block at a time, so others wait until the call is whole.
            if self._held or not (self._open is None or self._open.may_end):
                self._held.setdefault(key, block).pieces.append(text)
                return
            yield from self._begin(block)
        yield from self._piece(text)

    def _think(self, delta: Reasoning) -> Iterator[bytes]:
        if delta.redacted:
            yield from self._begin(_Block("redacted_thinking", _redacted_block(delta)))
            yield from self._stop()
        elif delta.signature:
            yield from self._sign(delta.signature)
        else:
            yield from self._write("thinking", delta.text)

    def _sign(self, signature: str) -> Iterator[bytes]:
        """Yield the frames that end a block of thinking, which may have no text."""
        # The text that is signed may be held back.
        block = self._held.get("thinking") or self._open
        if block is None or block.key != "thinking":
            block = _Block("thinking", _STARTS["thinking"])
            yield from self._begin(block)
        block.signature = signature
        if block is self._open:
            yield from self._stop()

    def _begin(self, block: _Block) -> Iterator[bytes]:
        yield from self._stop()
        self._index += 1
        self._open = block
        yield event("content_block_start", index=self._index, content_block=block.start)

    def _piece(self, text: str) -> Iterator[bytes]:
        block = self._open
        assert block is not None
        if isinstance(block.key, int):
            block.pieces.append(text)
        if text:
            yield self._delta(*(_CALL_DELTA if isinstance(block.key, int) else _DELTAS[block.key]), text)

    def _stop(self) -> Iterator[bytes]:
        """Yield the frames that end the open block, if there is one."""
        if self._open is None:
            return
        if isinstance(self._open.key, int):
            self._ended_calls.add(self._open.key)
        elif self._open.key == "thinking":
            yield self._delta("signature_delta", "signature", self._open.signature)
        yield event("content_block_stop", index=self._index)
        self._open = None

    def _delta(self, kind: str, member: str, text: str) -> bytes:
        return event("content_block_delta", index=self._index, delta={"type": kind, member: text})

    def _release(self) -> Iterator[bytes]:
        """Yield the frames of the blocks that are held back; the last one stays open."""
        held, self._held = self._held, {}
        # In the order in which they began.
        for block in held.values():
            text = "".join(block.pieces)
            block.pieces = []
            yield from self._begin(block)
            yield from self._piece(text)

    def _end(self, usage: Usage) -> Iterator[bytes]:
        yield from self._release()
        if self._finished is None:
            # For the usage, which is charged; an error has no place for it.
            nothing = {"stop_reason": None, "stop_sequence": None}
            yield event("message_delta", delta=nothing, usage=usage_body(usage))
            yield self.failed(END_LOST)
            return
        yield from self._stop()
        ending = _ending(self._finished, bool(self._ended_calls), self._has_refused)
        yield event("message_delta", delta=ending, usage=usage_body(usage))
        yield event("message_stop")


class MessagesFolder(Completion):
    """Writes one answer as one message."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer
        self._has_refused = False
        # Blocks of thinking that are signed or encrypted.
        self._thinking: list[dict[str, Any]] = []
        # The pieces of one that is not signed yet.
        self._thought: list[str] = []
        self._finished: Finished | None = None

    def add(self, delta: AnyDelta) -> None:
        """Add one delta. A refusal becomes text, in the order of arrival."""
        if isinstance(delta, UnwrittenDelta):
            return
        match delta:
            case Refusal():
                self._has_refused = True
                delta = Text(delta.text)
            case Reasoning():
                self._think(delta)
            case Finished():
                self._finished = delta
            case Usage() if self._finished is None:
                self.failure = END_LOST
            case Started() | Text() | ToolCall() | Usage() | Failed():
                pass  # `Completion` keeps it for `body`
            case _:
                assert_never(delta)
        super().add(delta)

    def _think(self, delta: Reasoning) -> None:
        if delta.redacted:
            self._thinking.append(_redacted_block(delta))
            return
        self._thought += [delta.text] if delta.text else []
        if delta.signature:
            self._thinking.append(_thinking_block("".join(self._thought), delta.signature))
            self._thought = []

    def body(self) -> bytes:
        """Return the message; its end and the usage must have come."""
        assert self.usage is not None
        assert self._finished is not None
        choice = self.choice(0)
        content = self._thinking + ([_thinking_block("".join(self._thought))] if self._thought else [])
        if choice.text:
            content.append(_text_block(choice.text))
        for number, call in sorted(choice.tool_calls.items()):
            content.append(_call_block(number, call, self.context, call.arguments))
        ending = _ending(self._finished, bool(choice.tool_calls), self._has_refused)
        return to_json(_message(self._answer, self, content, usage=usage_body(self.usage), **ending))


class CountFolder(Completion):
    """Writes the answer of `count_tokens`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()

    def body(self) -> bytes:
        """Return the object; the usage must have come."""
        assert self.usage is not None
        return to_json({"input_tokens": self.usage.prompt_tokens})


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return the usage: its three kinds of input add up to our `prompt_tokens`."""
    written, written_1h = usage.cache_write_tokens or 0, usage.cache_write_1h_tokens or 0
    body: dict[str, Any] = {
        # Anthropic's input excludes tokens read from a cache or written to it; OpenAI's includes them.
        "input_tokens": usage.uncached_tokens,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached_tokens or 0,
        "output_tokens": usage.completion_tokens,
    }
    if written:
        kinds = {"ephemeral_5m_input_tokens": written - written_1h, "ephemeral_1h_input_tokens": written_1h}
        body["cache_creation"] = kinds
    if usage.reasoning_tokens is not None:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return body


def _message(
    answer: Answer,
    started: Started | Completion,
    content: list[dict[str, Any]],
    stop_reason: str | None,
    stop_sequence: str | None,
    usage: dict[str, Any],
    **others: Any,
) -> dict[str, Any]:
    return {
        "id": public_id(answer.id),
        "type": "message",
        "role": "assistant",
        "model": started.model or answer.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        **others,
        "usage": usage,
    }


def _ending(end: Finished, has_calls: bool, has_refused: bool) -> dict[str, Any]:
    """Return the members with the reason of the answer's end."""
    # First: a client must not run the calls of an answer that was refused.
    if end.finish_reason == "content_filter" or has_refused:
        details = {"type": "refusal", "category": None, "explanation": None}
        return {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}
    # Before the calls: the last of them may be cut.
    if end.finish_reason == "length":
        reason = "model_context_window_exceeded" if end.is_window_full else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}
    # Before the calls: those of a cancelled answer are not to be run, and the last of them may be cut.
    if end.is_cancelled:
        return {"stop_reason": "end_turn", "stop_sequence": None}
    # Not the upstream's own reason: some end an answer with calls by "stop", but clients run tools only for
    # this one.
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if end.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_sequence}
    return {"stop_reason": "end_turn", "stop_sequence": None}
