"""The normalised deltas that cross Redis between a worker and the web.

A generation is a sequence of batches (the deltas of one read from the upstream), and so of deltas:

    Started  Content*  Finished*  Usage        the good end
    [Started Content*] Failed                  the bad end

Content is Text, Reasoning, Refusal, ToolCall, Audio or Annotations, of any choice that has not finished; or
it is one Vector for each input: embeddings have no choices, and so no Finished.

`Usage` and `Failed` are terminal: nothing follows them. They are published after the settlement's commit, so
when a client sees one, the settled row exists. Every engine produces these deltas and every dialect reads
them.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self

import msgspec
from msgspec.structs import replace

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
# The last one is the call for a request with the deprecated `functions`: one for each choice, without an id.
ToolKind = Literal["function", "custom", "function_call"]
# The assumed length, when encoded, of a token's log probability and of each alternative.
LOGPROB_CHARS = 48


# `gc=False`: an answer has thousands of these, and none can be a part of a cycle.
class TopLogprob(msgspec.Struct, frozen=True, gc=False):
    """One alternative of a sampled token, as in OpenAI's `top_logprobs`."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """One sampled token with its log probability, as in OpenAI's `logprobs.content[]`."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] = []


# Arrays and not maps: in Redis a delta of one token costs a few bytes more than its text. So fields may be
# added at the end, and none may be removed or moved.
class Delta(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="delta"):
    """The base class of all deltas, never sent itself. Its properties and methods are the defaults for deltas
    without content.
    """

    @property
    def counted_text(self) -> str | None:
        """The text whose tokens are counted and charged; None if the delta has none."""
        return None

    @property
    def content_chars(self) -> int:
        """The approximate number of characters of the encoded content."""
        return 0

    def cut(self, max_chars: int) -> Sequence[Self]:
        """Return the same content in deltas of at most `max_chars` characters; some can't be cut."""
        return [self]

    def joined(self, following: Sequence[Self]) -> Sequence[Self]:
        """Return the content of this delta and the following ones of its kind, in one delta if possible."""
        return [self, *following]


class Started(Delta, tag=1, frozen=True):
    """The engine answers: from here on the HTTP status is 200 and a failure is an event of the stream."""

    system_fingerprint: str | None = None
    service_tier: ServiceTier | None = None
    context: dict[str, Any] = {}
    """The parts of the request that the answer repeats (`GenerationRequest.context`). They are in the log,
    because a web process that resumes the stream never sees the request.
    """
    prompt_tokens: int | None = None
    """Our estimate of the prompt, for protocols that begin with it; `Usage` has what is charged."""
    model: str | None = None
    """The name of the model that answers, where it is not the requested one."""
    prompt_usage: "Usage | None" = None
    """The upstream's own figures of the prompt, if it sends them before its answer. They are charged if the
    answer is cut off, because we can't count pictures.
    """


class Text(Delta, tag=2, frozen=True):
    """A piece of choice `index`'s visible text; `logprobs` covers exactly this piece."""

    text: str
    index: int = 0
    logprobs: list[TokenLogprob] | None = None

    @property
    def counted_text(self) -> str:
        return self.text

    @property
    def content_chars(self) -> int:
        return len(self.text) if self.logprobs is None else len(self.text) + _chars_of(self.logprobs)

    def cut(self, max_chars: int) -> Sequence[Self]:
        # Log probabilities belong to the whole text.
        if len(self.text) <= max_chars or self.logprobs is not None:
            return [self]
        return [replace(self, text=part) for part in _cut(self.text, max_chars)]

    def joined(self, following: Sequence[Self]) -> Sequence[Self]:
        pieces = (self, *following)
        return [replace(self, text=_text_of(pieces), logprobs=_logprobs_of(pieces))]


class Reasoning(Delta, tag=3, frozen=True):
    """A piece of choice `index`'s reasoning text (`reasoning_content` on the wire).

    A signature or an encrypted block comes in a delta without text; only some protocols have a place for it.
    """

    text: str
    index: int = 0
    signature: str = ""
    """Anthropic's signature of the reasoning since the last one; it ends a block of thinking."""
    redacted: str = ""
    """A block that Anthropic has encrypted."""

    @property
    def counted_text(self) -> str:
        return self.text

    @property
    def content_chars(self) -> int:
        return len(self.text) + len(self.signature) + len(self.redacted)

    def cut(self, max_chars: int) -> Sequence[Self]:
        if len(self.text) <= max_chars:
            return [self]
        return [replace(self, text=part) for part in _cut(self.text, max_chars)]

    def joined(self, following: Sequence[Self]) -> Sequence[Self]:
        return [replace(self, text=_text_of((self, *following)))]


class Refusal(Delta, tag=4, frozen=True):
    """A piece of choice `index`'s refusal text; `logprobs` covers exactly this piece."""

    text: str
    index: int = 0
    logprobs: list[TokenLogprob] | None = None

    @property
    def counted_text(self) -> str:
        return self.text

    @property
    def content_chars(self) -> int:
        return len(self.text) if self.logprobs is None else len(self.text) + _chars_of(self.logprobs)

    def cut(self, max_chars: int) -> Sequence[Self]:
        if len(self.text) <= max_chars or self.logprobs is not None:
            return [self]
        return [replace(self, text=part) for part in _cut(self.text, max_chars)]

    def joined(self, following: Sequence[Self]) -> Sequence[Self]:
        pieces = (self, *following)
        return [replace(self, text=_text_of(pieces), logprobs=_logprobs_of(pieces))]


class ToolCall(Delta, tag=5, frozen=True):
    """A piece of choice `index`'s tool call number `call_index`.

    `id`, `name` and `extra_content` are set on the call's first piece only; `arguments` (a custom tool's
    `input`) is a fragment to append.
    """

    call_index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    index: int = 0
    kind: ToolKind = "function"
    extra_content: dict[str, Any] | None = None
    """Data that Gemini wants back with the call: a signature of its reasoning."""

    @property
    def counted_text(self) -> str:
        # The model has generated the name, too.
        return self.name + self.arguments if self.name else self.arguments

    @property
    def content_chars(self) -> int:
        return len(self.arguments)

    def cut(self, max_chars: int) -> Sequence[Self]:
        if len(self.arguments) <= max_chars:
            return [self]
        first, *rest = _cut(self.arguments, max_chars)
        return [
            replace(self, arguments=first),
            *(replace(self, arguments=part, id=None, name=None, extra_content=None) for part in rest),
        ]

    def joined(self, following: Sequence[Self]) -> Sequence[Self]:
        return [replace(self, arguments="".join([each.arguments for each in (self, *following)]))]


class Audio(Delta, tag=9, frozen=True):
    """A piece of choice `index`'s spoken answer: base64 that can be decoded by itself, and its transcript.

    `id` (to name the answer by in later messages) and `expires_at` (Unix seconds) come on one piece only.
    """

    data: str = ""
    transcript: str = ""
    index: int = 0
    id: str | None = None
    expires_at: int | None = None

    @property
    def counted_text(self) -> str:
        # Speech has no text tokens that could be counted; its transcript is the least that was generated.
        return self.transcript

    @property
    def content_chars(self) -> int:
        return len(self.data) + len(self.transcript)


class Annotations(Delta, tag=10, frozen=True):
    """The sources of choice `index`'s text, as in OpenAI's `annotations[]` of a message (the pages that a web
    search has found).
    """

    annotations: list[dict[str, Any]]
    index: int = 0

    @property
    def counted_text(self) -> None:
        """None: the model has not generated them."""

    @property
    def content_chars(self) -> int:
        return 0

    def joined(self, following: Sequence[Self]) -> Sequence[Self]:
        return [replace(self, annotations=[one for each in (self, *following) for one in each.annotations])]


class Vector(Delta, tag=11, frozen=True):
    """The embedding of input `index`."""

    values: bytes
    """32-bit floats, the least significant byte first: an eighth of the memory of Python's floats."""
    index: int = 0

    @property
    def counted_text(self) -> None:
        """None: a vector has no tokens; its input has."""

    @property
    def content_chars(self) -> int:
        return len(self.values)


class Finished(Delta, tag=6, frozen=True):
    """Choice `index` has ended."""

    finish_reason: FinishReason
    index: int = 0
    is_cancelled: bool = False
    """The client cancelled the generation before this choice's end."""
    stop_sequence: str | None = None
    """Which of the request's stop sequences ended it, where the upstream says so."""
    is_window_full: bool = False
    """The model's context window ended it, where the upstream says so: then `finish_reason` is `length`."""


class Usage(Delta, tag=7, frozen=True):
    """Tokens of the whole request, equal to the settled row: the good terminal.

    A detail that is None is not known, and left out on the wire: null would violate OpenAI's schema.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    is_added: bool = False
    """The engine has added up usages that the upstream sent for each choice. Not published."""
    cache_write_tokens: int | None = None
    """Tokens of the prompt that were written to the cache, for 5 minutes or an hour; `cached_tokens` excludes
    them.
    """
    cache_write_1h_tokens: int | None = None
    """The part of the written tokens that the cache keeps for an hour."""
    completed_at: int | None = None
    """When the row was settled, in Unix seconds. The log has it, so that each replay has the same time."""

    @property
    def uncached_tokens(self) -> int:
        """Tokens of the prompt that were neither read from the cache nor written to it."""
        return self.prompt_tokens - (self.cached_tokens or 0) - (self.cache_write_tokens or 0)

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


class Failed(Delta, tag=8, frozen=True):
    """The failure of a request, or of a stream that broke off: the bad terminal.

    `status` is the HTTP status if no byte has been sent yet; `retry_after_ms` becomes `retry-after` headers.
    """

    message: str
    type: str = "server_error"
    code: str | None = None
    param: str | None = None
    status: int = 500
    retry_after_ms: int | None = None

    @property
    def is_request_fault(self) -> bool:
        """Return whether the request is at fault, so that no other attempt helps."""
        return self.status < 500 and self.status != 429


ChatContent = Text | Reasoning | Refusal | ToolCall | Audio | Annotations
OtherContent = Vector
"""The content of answers that continue no prompt. Chats, text completions, Messages and Responses leave it
out.
"""
Content = ChatContent | OtherContent
ChatDelta = Started | ChatContent | Finished | Usage | Failed
AnyDelta = ChatDelta | OtherContent
# A stream has one of these, last.
TERMINAL = (Usage, Failed)


def _cut(text: str, max_chars: int) -> list[str]:
    return [text[start : start + max_chars] for start in range(0, len(text), max_chars)]


def _chars_of(logprobs: Sequence[TokenLogprob]) -> int:
    return LOGPROB_CHARS * sum([1 + len(token.top_logprobs) for token in logprobs])


def _text_of(pieces: Sequence[Text | Refusal | Reasoning]) -> str:
    return "".join([each.text for each in pieces])


def _logprobs_of(pieces: Sequence[Text | Refusal]) -> list[TokenLogprob] | None:
    return [one for each in pieces for one in each.logprobs or ()] or None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyDelta])


def encode(batch: Sequence[AnyDelta]) -> bytes:
    """Return a batch as MessagePack bytes, for Redis."""
    return _encoder.encode(batch)


def decode(data: bytes) -> list[AnyDelta]:
    """Return the batch that `encode` wrote; raises `msgspec.DecodeError` on anything else."""
    return _decoder.decode(data)
