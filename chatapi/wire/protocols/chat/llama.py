"""The llama server's dialect (seed 003): canonical chunks; a failure is an `error` event, and nothing follows
it.
"""

from typing import Final

from chatapi.wire.deltas import Failed
from chatapi.wire.protocols.chat.style import Style, to_json
from chatapi.wire.sse import frame


def _failed(failure: Failed, head: bytes) -> bytes:
    """Return the event that ends a broken stream. The document has one type for it, even for a context that
    has overflowed.
    """
    return _error_event(failure, "server_error")


def _invalid_stream(failure: Failed) -> bytes:
    """Return the error event as the whole stream: no role frame comes before it."""
    return _error_event(failure, failure.type)


def _error_event(failure: Failed, type: str) -> bytes:
    """Return the event with the document's two members, and with the envelope: without it, SDKs take a broken
    stream for a whole one.
    """
    error = {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code}
    return b"event: error\n" + frame(to_json({"message": failure.message, "type": type, "error": error}))


LLAMA: Final = Style(
    name="llama",
    requires_model=False,
    finish_reasons={"content_filter": "stop", "function_call": "tool_calls"},
    failed=_failed,
    invalid_stream=_invalid_stream,
)
