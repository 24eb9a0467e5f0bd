"""OpenToken's dialect (seed 004): a usage chunk always ends the stream, and `stream_options` is ignored."""

from typing import ClassVar

import msgspec

from chatapi.wire.deltas import Failed
from chatapi.wire.dialects.openai import DONE, Answer, OpenAI


class OpenToken(OpenAI):
    """One answer in OpenToken's dialect."""

    name: ClassVar[str] = "opentoken"

    def __init__(self, answer: Answer) -> None:
        # Only the last chunk carries a usage field here, so the canonical opt-in must not add `usage: null` to the others.
        super().__init__(Answer(answer.id, answer.created, answer.model, answer.choices_count))

    @property
    def sends_usage(self) -> bool:
        """Always."""
        return True

    def failed(self, failure: Failed) -> bytes:
        """The envelope in a data frame has three members here."""
        error = {"message": failure.message, "type": failure.type, "code": failure.code}
        return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n" + DONE
