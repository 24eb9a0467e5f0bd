"""The parts of a protocol: the records of the table `PROTOCOLS`, and the interfaces of their members."""

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from chatapi.wire.api_reference import Route
from chatapi.wire.deltas import AnyDelta, Failed, Usage
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.protocols.envelope import ErrorAnswer, Header
from chatapi.wire.sse import PING, PING_LINE


@dataclass(frozen=True, slots=True)
class Answer:
    """The values that all parts of one answer share."""

    id: str
    """32 hex digits; each dialect writes them in its own form."""
    created: int
    """Unix seconds."""
    model: str
    choices_count: int = 1
    include_usage: bool = False
    request_id: str = ""
    """The answer's `x-request-id`, for protocols that repeat it in errors."""


class Parser(typing.Protocol):
    """Parses a body into a request."""

    def __call__(
        self, body: bytes, default_model: str | None = None, *, is_ticket: bool = False
    ) -> GenerationRequest:
        """Return the request. Raises `InvalidRequest` naming the client's own parameter, or
        `UnresolvedReferences`.

        `default_model` is for a body without a model; None: it must name one. A ticket's request asks for a
        stream, even if its body does not. Remote pictures are accepted: whether the model allows them is
        checked later.
        """
        ...


class Encoder(typing.Protocol):
    """Writes one answer as a stream: deltas in, frames out. It lives as long as the answer."""

    def encode(self, batch: Iterable[AnyDelta]) -> bytes:
        """Return the batch's frames, each ended by a blank line; a terminal delta brings the stream's end."""
        ...

    def failed(self, failure: Failed) -> bytes:
        """Return the frames that end this stream early, without content that is held back: the generation may
        go on, and the client gets the rest when it reads the stream again. A `Failed` in `encode` is the end
        of the generation itself.
        """
        ...


class Folder(typing.Protocol):
    """Collects the deltas of one answer, and writes it as one object."""

    @property
    def usage(self) -> Usage | None:
        """The answer's usage, once it has come."""
        ...

    @property
    def failure(self) -> Failed | None:
        """Why there is no answer."""
        ...

    def add(self, delta: AnyDelta) -> None: ...

    def body(self) -> bytes | Iterable[bytes]:
        """Return the object, once the usage has come; a large one in pieces, each made when it is sent."""
        ...


class Envelope(typing.Protocol):
    """Writes a failure before the first byte of an answer."""

    def __call__(
        self, failure: Failed, *, request_id: str = "", is_invalid_stream: bool = False
    ) -> ErrorAnswer:
        """Return the failure as an HTTP answer.

        `is_invalid_stream`: the request asked for a stream and is invalid; some dialects send this error
        inside a stream.
        """
        ...


# Takes a value of `IN_HEADERS` in accounts/limits.py (`requests`, `tokens`), the limit, the remaining part,
# and the time when all of it is available again.
LimitHeaders = Callable[[str, int, int, datetime], list[Header]]


def no_limit_headers(counts: str, most: int, remaining: int, reset_at: datetime) -> list[Header]:
    return []


# Where OpenAI's SDKs send the key, and where Anthropic's do.
USUAL_KEY_HEADERS: typing.Final[Mapping[str, str]] = {"Authorization": "Bearer", "x-api-key": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one dialect of a protocol writes its answers."""

    name: str
    public_id: Callable[[str], str]
    """Returns the id that clients see, from a generation's 32 hex digits."""
    encoder: Callable[[Answer], Encoder] | None
    """None if no answer can be streamed."""
    folder: Callable[[Answer], Folder]
    envelope: Envelope
    accepted: Callable[[Answer, bytes], bytes] | None = None
    """Writes the answer, with status 200, to a request in the background from its state; None: a 202."""
    keep_alive: bytes = PING
    keep_alive_with_ids: bytes = PING_LINE
    """For streams with SSE ids, after the first id."""
    requires_model: bool = True
    """Whether a request must name its model."""
    refuses_idle_parameters: bool = False
    """Whether parameters that only affect streams are refused if no stream is requested, or ignored."""
    ignored_parameters: frozenset[str] = frozenset()
    """Names of parameters that its document says are ignored: any value of them is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A `POST` that a protocol answers, as the API's reference (OpenAPI) describes it."""

    path: str
    operation_id: str
    summary: str
    description: str = "Answers with one object, or with server-sent events when `stream` is true."
    request: type[msgspec.Struct]
    """The struct of the body; its fields are the parameters."""
    example: Mapping[str, typing.Any]
    """An example of the body; the reference adds the model `sandbox` if it names none."""
    answer: str
    """The name of the answer's schema."""
    event: str | None
    """The name of the schema of a streamed event's data; None: nothing is streamed."""
    tag: str = "completions"
    error: str = "Error"
    """The name of the errors' schema."""
    overloaded_status: int = 503
    schemas: Mapping[str, Mapping[str, typing.Any]] = field(default_factory=dict)
    """Schemas that the reference does not have yet, by name. They refer to others as
    `{"$ref": "#/components/schemas/<name>"}`.
    """
    rules: Mapping[str, Mapping[str, typing.Any]] = field(default_factory=dict)
    """Rules that are added to the schemas of the body's structs, by the struct's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A family of clients: the requests that they send, and the dialects of their answers."""

    name: str
    """The `endpoint` of a generation's row. The part before the first dot is the first segment of its paths
    after `/v1/`.
    """
    parse: Parser
    dialects: Mapping[str, Dialect]
    id_prefixes: tuple[str, ...]
    """The prefixes of the ids that clients see."""
    counts_tokens: bool = False
    """Its requests only ask for an estimate of their prompts' tokens. A child process parses them all."""
    parse_resolved: Callable[[bytes, str | None], GenerationRequest] | None = None
    """Parses a body to which the service has added the earlier answers that it refers to."""
    ticket: Callable[[str, int, str], bytes] | None = None
    """Writes the object of a ticket for a stream (`Kind.is_ticket`) from its secret, its expiry in Unix
    seconds and the path before `/v1`; None if the protocol has no tickets.
    """
    operations: tuple[Operation, ...] = ()
    routes: tuple[Route, ...] = ()
    """Its other routes, for the API's reference."""
    media_type: str = "application/json"
    """The media type of its requests' bodies."""
    answer_media_type: str = "application/json"
    """The media type of its whole answers. The envelope sets that of errors."""
    model_kind: str
    """The kind of models that answer its requests (`chatapi.models.ModelKind`)."""
    parameter_names: Mapping[str, str] = field(default_factory=dict)
    """The client's names of parameters, by their names in a `GenerationRequest`, where they differ."""
    request_id_headers: tuple[bytes, ...] = (b"x-request-id",)
    """The response headers that hold the request's id."""
    client_headers: tuple[str, ...] = ()
    """The names, in lower case, of the request headers that only its clients send: they select the protocol
    on routes that all protocols share.
    """
    key_headers: Mapping[str, str] = field(default_factory=lambda: USUAL_KEY_HEADERS)
    """The names of the request headers that may hold the API key, each with the scheme before the key, which
    is empty if the value is the key. A header of this protocol alone is in `client_headers`, too.
    """
    limit_headers: LimitHeaders = no_limit_headers
    """Returns the protocol's headers about a rate limit, beside OpenAI's `x-ratelimit-*`."""

    def dialect(self, name: str) -> Dialect:
        """Return the dialect of that name, or the first one if the protocol does not have it."""
        return self.dialects.get(name) or next(iter(self.dialects.values()))

    def named(self, parameters: Iterable[str]) -> tuple[str, ...]:
        """Return the client's names of members of a `GenerationRequest`."""
        return tuple(self.parameter_names.get(name, name) for name in parameters)

    @property
    def can_stream(self) -> bool:
        return any(dialect.encoder is not None for dialect in self.dialects.values())
