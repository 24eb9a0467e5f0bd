"""OpenAI's objects in chunks and bodies of chats: messages, tool calls, log probabilities, usage."""

from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from chatapi.wire.completion import Choice, CollectedAudio, CollectedToolCall
from chatapi.wire.deltas import TokenLogprob, ToolCall, ToolKind, Usage
from chatapi.wire.protocols.chat.style import to_json


class LogprobObjects:
    """Log probabilities as the JSON of `logprobs.content`: decoded, they would take ten times the memory."""

    def __init__(self) -> None:
        self._json = bytearray()

    def add(self, logprobs: Sequence[TokenLogprob], text: str, start: int) -> None:
        """Add the log probabilities of a piece of the choice; see `completion.Logprobs`."""
        if logprobs:
            # Without brackets: in `body` all pieces become one array.
            self._json += to_json(logprobs)[1:-1] + b","

    @property
    def body(self) -> msgspec.Raw:
        return msgspec.Raw(b"[" + self._json[:-1] + b"]")


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage object; details that are not known are left out."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    details = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
    if known := {name: count for name, count in details.items() if count is not None}:
        body["prompt_tokens_details"] = known
    if usage.reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return body


def whole_calls(choice: Choice) -> dict[str, Any]:
    """Return the members of a message that hold the choice's calls, in the order of their numbers."""
    calls = [call for _, call in sorted(choice.tool_calls.items())]
    # The deprecated `functions` allow one call, outside the list of tool calls.
    if calls and calls[0].kind == "function_call":
        return {"function_call": _payload(calls[0].kind, calls[0].name, calls[0].arguments)}
    return {"tool_calls": [_whole_tool_call(call) for call in calls]} if calls else {}


def _whole_tool_call(call: CollectedToolCall) -> dict[str, Any]:
    payload = _payload(call.kind, call.name, call.arguments)
    return {"id": call.id, "type": call.kind, call.kind: payload, **_extra_content(call)}


def _extra_content(call: CollectedToolCall | ToolCall) -> dict[str, Any]:
    """Return the data that the upstream wants back with the call; it is not OpenAI's."""
    return {"extra_content": call.extra_content} if call.extra_content else {}


def _payload(kind: ToolKind, name: str | None, text: str) -> dict[str, str]:
    """Return the called name and the text; only the first piece of a call has the name."""
    named = {} if name is None else {"name": name}
    match kind:
        case "function" | "function_call":
            return named | {"arguments": text}
        case "custom":
            return named | {"input": text}
        case _:
            assert_never(kind)


def _whole_audio(audio: CollectedAudio) -> dict[str, Any]:
    return {
        "id": audio.id,
        "data": audio.data,
        "expires_at": audio.expires_at,
        "transcript": audio.transcript,
    }


def piece_of_call(delta: ToolCall) -> dict[str, Any]:
    """Return the members of a chunk's delta that hold a piece of a call."""
    payload = _payload(delta.kind, delta.name, delta.arguments)
    if delta.kind == "function_call":
        return {"function_call": payload}
    # Only in the first piece of a call: SDKs would append a repeated id.
    identity = {} if delta.id is None else {"id": delta.id, "type": delta.kind}
    call = {"index": delta.call_index, **identity, delta.kind: payload, **_extra_content(delta)}
    return {"tool_calls": [call]}


def logprobs_member(content: Sequence[TokenLogprob] | None, refusal: Sequence[TokenLogprob] | None) -> bytes:
    if content is None and refusal is None:
        return b""
    return b'"logprobs":' + to_json({"content": content, "refusal": refusal}) + b","


def message_body(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": choice.refusal}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    if choice.annotations:
        message["annotations"] = choice.annotations
    if choice.audio is not None:
        message["audio"] = _whole_audio(choice.audio)
    if choice.tool_calls:
        message |= whole_calls(choice)
    # Null would mean that the content is in another member; here there is none.
    elif choice.text is None and choice.refusal is None and choice.audio is None:
        message["content"] = ""
    return message
