"""Bitseek's dialect (seeds 000 and 002): no role, no `[DONE]`; the last chunk has finish_reason and usage.

A stream is over when its connection closes. A tool call comes whole, with its number; a failure is a chunk
without choices that has an `error`.
"""

from typing import ClassVar
from uuid import UUID

from chatapi.wire.completion import Completion
from chatapi.wire.deltas import Failed, Finished, FinishReason, ToolCall, Usage
from chatapi.wire.protocols.chat.openai import OpenAI, to_json, usage_body, whole_calls
from chatapi.wire.protocols.protocol import Answer


class Bitseek(OpenAI):
    """One chat completion in Bitseek's dialect."""

    id_prefix: ClassVar[str] = "stream:chat:"
    chunk_object: ClassVar[str] = "chat.completion"
    usage_is_opt_in: ClassVar[bool] = False
    finish_reasons: ClassVar[dict[FinishReason, FinishReason]] = {
        "length": "stop",
        "content_filter": "stop",
        "function_call": "tool_calls",
    }

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._calls = Completion()
        self._ended: list[Finished] = []

    @classmethod
    def to_public_id(cls, id: str) -> str:
        """Return the id that clients see, with a stream or without."""
        return f"{cls.id_prefix}{UUID(id)}"

    def _announcement(self, index: int) -> bytes:
        """Return nothing if there is one choice only: this dialect has no role."""
        return self._chunk(index, b'{"content":""}') if self.answer.choices_count > 1 else b""

    def _tool_call(self, delta: ToolCall) -> bytes:
        self._calls.add(delta)
        return b""

    def _finished(self, delta: Finished) -> bytes:
        """Return the choice's tool calls, as none can grow any more; its end waits for the usage."""
        self._ended.append(delta)
        called = whole_calls(self._calls.choice(delta.index))
        if "tool_calls" in called:
            called["tool_calls"] = [
                {"index": number, **call} for number, call in enumerate(called["tool_calls"])
            ]
        cited = self._cited(delta.index)
        return cited + self._chunk(delta.index, to_json(called)) if called else cited

    def _finish_chunk(self, delta: Finished) -> bytes:
        return self._chunk(delta.index, b'{"content":""}', finish_reason=self._word_for(delta.finish_reason))

    def usage(self, usage: Usage) -> bytes:
        """Return the chunks that end the choices; the last one of all has the usage."""
        *others, last = self._ended
        ends = [self._finish_chunk(end) for end in others]
        self._usage_field = b',"usage":' + to_json(usage_body(usage))
        return b"".join(ends) + self._finish_chunk(last)

    def failed(self, failure: Failed) -> bytes:
        """Return the chunk that ends a stream that broke off."""
        error = {"message": failure.message, "type": failure.type, "code": failure.code}
        return self._head + b'],"error":' + to_json(error) + b"}\n\n"
