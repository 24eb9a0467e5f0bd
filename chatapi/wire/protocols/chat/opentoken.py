"""OpenToken's dialect (seed 004): a usage chunk always ends the stream, and `stream_options` is ignored."""

from typing import Final

from chatapi.wire.deltas import Failed
from chatapi.wire.protocols.chat.style import DONE, Style, to_json
from chatapi.wire.sse import frame


def _failed(failure: Failed, head: bytes) -> bytes:
    """Return the frames that end a broken stream; in a frame the envelope has three members."""
    error = {"message": failure.message, "type": failure.type, "code": failure.code}
    return frame(to_json({"error": error})) + DONE


OPENTOKEN: Final = Style(
    name="opentoken",
    usage_is_opt_in=False,
    ignored_parameters=frozenset({"stream_options"}),
    failed=_failed,
)
