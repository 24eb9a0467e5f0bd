"""The differences between the dialects of chat and text completions, and OpenAI's dialect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from chatapi.wire.deltas import Failed, FinishReason
from chatapi.wire.protocols.envelope import STREAM_HEADERS, ErrorAnswer, openai_error, openai_error_body
from chatapi.wire.sse import frame

DONE: Final = b"data: [DONE]\n\n"
to_json = msgspec.json.Encoder().encode


def canonical_failure(failure: Failed, head: bytes) -> bytes:
    return frame(openai_error_body(failure)) + DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one dialect writes chats and texts. The defaults are OpenAI's."""

    name: str
    id_prefix: str = ""
    """The prefix of its ids; empty: the usual one of the kind of answer."""
    id_form: Callable[[str], str] = str
    """Returns the rest of an id, from a generation's 32 hex digits."""
    chunk_object: str = "chat.completion.chunk"
    """The `object` of a chat's chunks."""
    has_role: bool = True
    """Whether the first chunk of a choice has the role."""
    empty_delta: bytes = b"{}"
    """The JSON of a chat's delta without content."""
    usage_is_opt_in: bool = True
    """Whether a stream has a usage only if the client asks for it."""
    usage_ends_choices: bool = False
    """Whether the ends of choices wait for the usage, the last one has it, and no `[DONE]` follows."""
    has_whole_calls: bool = False
    """Whether a tool call comes in one piece, at its choice's end."""
    requires_model: bool = True
    """Whether a request must name its model."""
    ignored_parameters: frozenset[str] = frozenset()
    """See `Dialect.ignored_parameters`."""
    finish_reasons: Mapping[FinishReason, FinishReason] = field(default_factory=dict)
    """What the dialect writes instead of a reason that it has no word for."""
    failed: Callable[[Failed, bytes], bytes] = canonical_failure
    """Returns the frames that end a broken stream. Its second argument is the beginning of a chunk, up to its
    choices.
    """
    invalid_stream: Callable[[Failed], bytes] | None = None
    """Returns a stream, with status 200, that refuses an invalid request for one; None: an HTTP error."""

    def envelope(
        self, failure: Failed, *, request_id: str = "", is_invalid_stream: bool = False
    ) -> ErrorAnswer:
        """Return the failure as an HTTP answer; see `protocol.Envelope`."""
        if is_invalid_stream and self.invalid_stream is not None:
            return ErrorAnswer(200, STREAM_HEADERS, self.invalid_stream(failure))
        return openai_error(failure)


OPENAI: Final = Style(name="openai")
