"""OpenToken's dialect (seed 004): a usage chunk always ends the stream, and `stream_options` is ignored."""

from typing import ClassVar

from chatapi.wire.deltas import Failed
from chatapi.wire.protocols.chat.openai import DONE, OpenAI, to_json
from chatapi.wire.sse import frame


class OpenToken(OpenAI):
    """One chat completion in OpenToken's dialect."""

    usage_is_opt_in: ClassVar[bool] = False
    ignored_parameters: ClassVar[frozenset[str]] = frozenset({"stream_options"})

    def failed(self, failure: Failed) -> bytes:
        """Return the frames that end a stream that broke off; in a frame the envelope has three members."""
        error = {"message": failure.message, "type": failure.type, "code": failure.code}
        return frame(to_json({"error": error})) + DONE
