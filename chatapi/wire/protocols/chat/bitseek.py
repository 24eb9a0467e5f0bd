"""Bitseek's dialect (seeds 000 and 002): no role, no `[DONE]`; the last chunk has finish_reason and usage.

A stream ends when its connection closes. A tool call comes in one piece, with its number; a failure is a
chunk without choices that has an `error`.
"""

from typing import Final
from uuid import UUID

from chatapi.wire.deltas import Failed
from chatapi.wire.protocols.chat.style import Style, to_json


def _id_form(id: str) -> str:
    return str(UUID(id))


def _failed(failure: Failed, head: bytes) -> bytes:
    """Return the chunk that ends a broken stream."""
    error = {"message": failure.message, "type": failure.type, "code": failure.code}
    return head + b'],"error":' + to_json(error) + b"}\n\n"


BITSEEK: Final = Style(
    name="bitseek",
    id_prefix="stream:chat:",
    id_form=_id_form,
    chunk_object="chat.completion",
    has_role=False,
    empty_delta=b'{"content":""}',
    usage_is_opt_in=False,
    usage_ends_choices=True,
    has_whole_calls=True,
    finish_reasons={"length": "stop", "content_filter": "stop", "function_call": "tool_calls"},
    failed=_failed,
)
