"""The canonical dialect: OpenAI's chat completion chunks and bodies (seed 001, OpenAI's API reference).

Role chunk, content chunks, one finish chunk per choice with an empty delta, a usage chunk when `stream_options.include_usage`
asks for it (then all other chunks carry `usage: null`), `data: [DONE]`. A failure in mid-stream is an error frame and `[DONE]`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from chatapi.wire.deltas import (
    AnyDelta,
    Choice,
    CollectedToolCall,
    Completion,
    Failed,
    Finished,
    Reasoning,
    Refusal,
    Started,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
)

_json = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What stays the same in all chunks of one answer."""

    id: str
    """32 hex digits: each dialect writes its own form of it."""
    created: int
    """Unix seconds."""
    model: str
    choices_count: int = 1
    include_usage: bool = False


class OpenAI:
    """One answer in the canonical dialect: deltas in, bytes out."""

    name: ClassVar[str] = "openai"
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._usage_field = b',"usage":null' if answer.include_usage else b""
        self._frame(None)

    # ---- what the other dialects may override

    @property
    def public_id(self) -> str:
        """The generation's id as clients see it."""
        return f"chatcmpl-{self.answer.id}"

    @property
    def sends_usage(self) -> bool:
        """Whether a usage chunk ends the stream."""
        return self.answer.include_usage

    def failed(self, failure: Failed) -> bytes:
        """The frames that end a stream that broke off."""
        return b"data: " + self.error_body(failure) + b"\n\n" + DONE

    # ---- streaming

    def encode(self, batch: Iterable[AnyDelta]) -> bytes:
        """The batch's chunks as server-sent events; a terminal delta brings the stream's end with it."""
        writers = _WRITERS
        return b"".join([writers[type(delta)](self, delta) for delta in batch])

    def _started(self, delta: Started) -> bytes:
        self._frame(delta.system_fingerprint)
        return b"".join([self._choice(index, b'{"role":"assistant"}') for index in range(self.answer.choices_count)])

    def _text(self, delta: Text) -> bytes:
        return self._choice(delta.index, b'{"content":' + _json(delta.text) + b"}", _logprobs(delta.logprobs, None))

    def _reasoning(self, delta: Reasoning) -> bytes:
        return self._choice(delta.index, b'{"reasoning_content":' + _json(delta.text) + b"}")

    def _refusal(self, delta: Refusal) -> bytes:
        return self._choice(delta.index, b'{"refusal":' + _json(delta.text) + b"}", _logprobs(None, delta.logprobs))

    def _tool_call(self, delta: ToolCall) -> bytes:
        return self._choice(delta.index, b'{"tool_calls":[' + _json(_tool_fragment(delta)) + b"]}")

    def _finished(self, delta: Finished) -> bytes:
        return self._choice(delta.index, b"{}", finish=_json(delta.finish_reason))

    def _frame(self, fingerprint: str | None) -> None:
        """Lay ready what all chunks share, so that a chunk costs three copies."""
        head = {"id": self.public_id, "object": self.chunk_object, "created": self.answer.created, "model": self.answer.model}
        if fingerprint is not None:
            head["system_fingerprint"] = fingerprint
        self._head = b"data: " + _json(head)[:-1] + b',"choices":['
        self._tail = b'"finish_reason":null}]' + self._usage_field + b"}\n\n"

    def _choice(self, index: int, delta: bytes, logprobs: bytes = b"", finish: bytes = b"") -> bytes:
        tail = b'"finish_reason":' + finish + b"}]" + self._usage_field + b"}\n\n" if finish else self._tail
        return b'%s{"index":%d,"delta":%s,%s%s' % (self._head, index, delta, logprobs, tail)

    def usage(self, usage: Usage) -> bytes:
        """The frames that end a stream well."""
        if not self.sends_usage:
            return DONE
        return self._head + b'],"usage":' + _json(usage_body(usage)) + b"}\n\n" + DONE

    # ---- not streaming

    def body(self, completion: Completion) -> bytes:
        """The whole answer as one JSON object; `completion.usage` must be set."""
        assert completion.usage is not None, "a completion is only shown after its settlement"
        body: dict[str, Any] = {
            "id": self.public_id,
            "object": "chat.completion",
            "created": self.answer.created,
            "model": self.answer.model,
            "choices": [_choice_body(completion.choice(index)) for index in range(self.answer.choices_count)],
            "usage": usage_body(completion.usage),
        }
        if completion.system_fingerprint is not None:
            body["system_fingerprint"] = completion.system_fingerprint
        return _json(body)

    @staticmethod
    def error_body(failure: Failed) -> bytes:
        """The error envelope, as an HTTP body and inside a stream (OpenAI's `ErrorResponse`)."""
        error = {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code}
        return _json({"error": error})


_WRITERS: dict[type[AnyDelta], Callable[[OpenAI, Any], bytes]] = {
    Started: OpenAI._started,
    Text: OpenAI._text,
    Reasoning: OpenAI._reasoning,
    Refusal: OpenAI._refusal,
    ToolCall: OpenAI._tool_call,
    Finished: OpenAI._finished,
    # Looked up on the instance: dialects override how a stream ends.
    Usage: lambda self, delta: self.usage(delta),
    Failed: lambda self, delta: self.failed(delta),
}


def usage_body(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object; details that are not known are left out."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.cached_tokens is not None:
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return body


def _logprobs(content: Sequence[TokenLogprob] | None, refusal: Sequence[TokenLogprob] | None) -> bytes:
    if content is None and refusal is None:
        return b""
    return b'"logprobs":' + _json({"content": content, "refusal": refusal}) + b","


def _tool_fragment(delta: ToolCall) -> dict[str, Any]:
    fragment: dict[str, Any] = {"index": delta.call_index}
    payload: dict[str, str] = {}
    if delta.id is not None:
        fragment |= {"id": delta.id, "type": delta.kind}
    if delta.name is not None:
        payload["name"] = delta.name
    payload["arguments" if delta.kind == "function" else "input"] = delta.arguments
    fragment[delta.kind] = payload
    return fragment


def _whole_tool_call(call: CollectedToolCall) -> dict[str, Any]:
    payload = {"name": call.name, "arguments" if call.kind == "function" else "input": call.arguments}
    return {"id": call.id, "type": call.kind, call.kind: payload}


def _choice_body(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": choice.refusal}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [_whole_tool_call(call) for _, call in sorted(choice.tool_calls.items())]
    elif choice.text is None and choice.refusal is None:
        message["content"] = ""
    logprobs = None
    if choice.logprobs is not None or choice.refusal_logprobs is not None:
        logprobs = {"content": choice.logprobs, "refusal": choice.refusal_logprobs}
    return {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}
