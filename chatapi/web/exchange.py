"""One HTTP exchange of a hot route: the request's headers and body in, a response or an error out."""

import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from urllib.parse import parse_qs

from django.conf import settings

from accounts import authentication, forwarding
from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.models import KeyScope
from accounts.rate_limits import Reservation
from chatapi import errors, identity, tracing
from chatapi.fair_room import Room
from chatapi.tracing import NO_SPAN, Span
from chatapi.web.body_room import LARGE_BYTES
from chatapi.web.event_stream_consumer import EventStreamConsumer
from chatapi.web.services import Services
from chatapi.wire import dialects
from chatapi.wire.deltas import Failed
from chatapi.wire.invalid_request import duplicate
from chatapi.wire.protocols import PROTOCOLS, Dialect, protocol_of
from chatapi.wire.protocols.envelope import JSON_HEADERS, Header
from chatapi.wire.protocols.protocol import Encoder
from usage.failpoints import failpoint

OPENAI_VERSION: Final = (b"openai-version", identity.OPENAI_VERSION.encode())
MAX_LENGTH_DIGITS: Final = 19
# The cost of a request before its stream begins, in deltas (`fair_turns.py`).
REQUEST_UNITS: Final = 64
# The same while several organizations send requests: two begin in an iteration, where eight would make each
# of another organization's steps wait for the later steps of all of them. One organization alone gets larger
# batches instead, which cost less.
SHARED_REQUEST_UNITS: Final = 256


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request. `kinds.py` has the table of all kinds."""

    name: str
    path: str
    """The regular expression of the path after `/v1/`."""
    code: Callable[["Exchange"], Awaitable[None]]
    """Checks the request and responds to it, or raises an error."""
    scope: KeyScope
    """The scope that a restricted key needs."""
    protocol: str = ""
    """The name of the protocol (`PROTOCOLS`) of the request in the body; empty if the route takes no body."""
    is_ticket: bool = False
    """Whether the request is kept, so that an EventSource can stream its answer."""
    resolve: Callable[..., Awaitable[list[bytes]]] | None = None
    """Returns the body with the content that it refers to (`stored_responses.resolve`)."""


class Exchange:
    """A request and its response; `connection` carries the bytes."""

    def __init__(self, kind: Kind, connection: EventStreamConsumer) -> None:
        self.kind = kind
        self.id = identity.new_id()
        """Identifies the request, and the generation that it creates."""
        self.request_headers = _by_name(connection.scope["headers"])
        self.response_headers = [OPENAI_VERSION]
        """Headers that every response has, errors too."""
        self.caller: Caller | None = None
        """Set by `set_caller`, once the key is known to be valid; its scopes may still refuse the request."""
        self.span: Span = NO_SPAN
        """The span of a request with a valid key; other requests have none."""
        self.error_code = ""
        """The code of the failure that the client got."""
        self.protocol = PROTOCOLS.get(kind.protocol) or protocol_of(
            connection.scope["path"], {name.decode("latin-1") for name in self.request_headers}
        )
        """The protocol of the response: the kind's. For a URL that names a generation, it is the client's
        until the generation is found, and then the generation's.
        """
        self.key_headers = self.protocol.key_headers
        """The headers that may hold the API key; they stay the request's when `protocol` changes."""
        self.dialect: Dialect | None = None
        self.status: int | None = None
        """The response's HTTP status, once it has begun."""
        self.is_admitted = False
        """Whether the request has created a generation."""
        self.timed_model: str | None = None
        """The model for which the time to the stream's first content is measured; None: no measurement."""
        self.encoder: Encoder | None = None
        """Writes the stream, and an error inside it."""
        self.large_bytes = 0
        """Bytes of a large body that were read."""
        self.rooms: list[Room] = []
        """Room in memory that is released when the exchange ends."""
        self.is_counted = False
        """Whether the request counts in the caller's rate limits."""
        self._connection = connection
        self.began_at = time.monotonic()

    @property
    def took_ms(self) -> int:
        return round((time.monotonic() - self.began_at) * 1_000)

    # ---- the request

    @property
    def request_id(self) -> str:
        return identity.request_id(self.request_headers.get(b"x-request-id"), self.id).decode()

    def set_caller(self, caller: Caller) -> None:
        """Set the caller, and begin the request's span."""
        self.caller = caller
        took_s = time.monotonic() - self.began_at
        self.span = tracing.begin_request(self.method, self.kind.path, self.request_headers, took_s)

    @property
    def method(self) -> str:
        return self._connection.scope["method"]

    @property
    def client_ip(self) -> str:
        """Return the client's IP address, behind any trusted proxies."""
        return forwarding.of_scope(self._connection.scope, settings.TRUSTED_PROXIES).ip

    def sent_certificate(self) -> str | None:
        """Return the client's certificate, as `forwarding.client_certificate` does."""
        peer, _ = self._connection.scope.get("client") or ("", None)
        name = settings.CLIENT_CERTIFICATE_HEADER.encode()
        return forwarding.client_certificate(peer, self.request_headers.get(name, b"").decode("latin-1"))

    @property
    def route_arguments(self) -> dict[str, str | None]:
        """Return the named groups of the URL's pattern."""
        scope = cast(dict[str, Any], self._connection.scope)  # Channels adds a key to ASGI's own
        return cast(dict[str, str | None], scope["url_route"]["kwargs"])

    def header(self, name: bytes) -> str | None:
        value = self.request_headers.get(name)
        return None if value is None else value.decode("latin-1")

    def sent_key(self) -> str:
        """Return the API key. Raises `KeyMissing` or `TwoKeys`."""
        return authentication.sent_key(self.key_headers, lambda name: self.header(name.lower().encode()))

    @property
    def end_user(self) -> str:
        """Return the end user in the header that `END_USER_HEADER` names, or an empty text."""
        value = self.request_headers.get(settings.END_USER_HEADER.encode(), b"")
        try:
            return value.decode()  # UTF-8, as in bodies, so that both name the same end user
        except UnicodeDecodeError:
            return value.decode("latin-1")

    def query(self, name: str) -> str | None:
        """Return the value of a query parameter, which may be empty. Raises `InvalidRequest` for several."""
        query = parse_qs(self._connection.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        values = query.get(name, [])
        if len(values) > 1:
            raise duplicate(name)
        return values[0] if values else None

    def allow(self, *methods: str) -> None:
        """Raise 405 for any other method."""
        if self.method not in methods:
            self.response_headers.append((b"allow", ", ".join(methods).encode()))
            raise errors.method_not_allowed(self.method, " or ".join(methods))

    @property
    def creates_generation(self) -> bool:
        """Return whether the request is to be admitted, unlike one for a ticket or a count of tokens."""
        return bool(self.kind.protocol) and not self.kind.is_ticket and not self.protocol.counts_tokens

    def choose_dialect(self, callers_default: str) -> Dialect:
        """Choose by the header, else the URL's prefix, else the caller's default, else the server's."""
        name = dialects.choose(
            self.header(b"x-chatapi-dialect") or "",
            self.route_arguments.get("dialect") or "",
            callers_default,
            settings.DEFAULT_DIALECT,
        )
        self.dialect = self.protocol.dialect(name)
        return self.dialect

    @property
    def announced_bytes(self) -> int | None:
        """Return the body's length, if the client announces it."""
        length = self.request_headers.get(b"content-length", b"")
        return int(length) if length.isdigit() and len(length) < MAX_LENGTH_DIGITS else None

    async def has_large_body(self) -> bool:
        """Return whether the body has more than `LARGE_BYTES`; read no more of it than that."""
        if self.announced_bytes is not None:
            return self.announced_bytes > LARGE_BYTES
        return await self._connection.has_body_above(LARGE_BYTES)

    def read_body(self) -> Awaitable[bytes]:
        """Return the whole body, which is small."""
        return self._connection.read_body()

    async def next_piece(self) -> bytes | None:
        """Return the next piece of a large body; None behind the last one."""
        piece = await self._connection.next_piece()
        self.large_bytes += len(piece or b"")
        return piece

    # ---- the response

    @property
    def is_started(self) -> bool:
        """Return whether the status is sent."""
        return self._connection.is_started

    @property
    def is_complete(self) -> bool:
        """Return whether the last piece of the response is sent."""
        return self._connection.is_complete

    def add_limits(self, taken: Reservation | RateLimited) -> None:
        """Add the headers that describe the caller's rate limits: OpenAI's, and the protocol's own."""
        if not taken.statuses:
            return
        self.response_headers += taken.headers()
        now = datetime.now(UTC)
        for status in taken.tightest():
            reset_at = now + timedelta(milliseconds=status.reset_ms)
            limit = status.limit
            self.response_headers += self.protocol.limit_headers(
                limit.counts, limit.most, status.remaining, reset_at
            )

    async def send_head(self, status: int, headers: Iterable[Header]) -> None:
        """Begin the response with these headers and `response_headers`."""
        failpoint("view.before_first_byte")
        self.status = status
        self.span.add_event("response")
        took_ms = (b"openai-processing-ms", b"%d" % self.took_ms)
        ids = ((name, self.request_id.encode()) for name in self.protocol.request_id_headers)
        await self._connection.send_headers(status, [*headers, *ids, *self.response_headers, took_ms])

    def send_body(self, data: bytes, more: bool = True) -> Awaitable[None]:
        """Send a piece of the body; `more=False` makes it the last."""
        return self._connection.send_body(data, more)

    async def send_json(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        await self.send_whole(status, body, [*JSON_HEADERS, *headers])

    async def send_whole(self, status: int, body: bytes, headers: Iterable[Header]) -> None:
        """Respond with one body, whose media type is in the headers."""
        length = (b"content-length", b"%d" % len(body))
        await self.send_head(status, [*headers, length])
        await self.send_body(body, more=False)

    def note_failure(self, failure: Failed) -> None:
        """Note the failure that the client gets, as an error or inside the stream."""
        self.error_code = failure.code or failure.type

    def end_span(self) -> None:
        """End the span: a failed one if the server is at fault, or the stream ended with an error."""
        attributes: dict[str, str | int | bool] = {"chatapi.generation.id": self.id.hex}
        if self.status is not None:
            attributes["http.response.status_code"] = self.status
        if self.error_code:
            attributes["error.type"] = self.error_code
        if not self.is_complete:
            attributes["chatapi.client_left"] = True
        is_client_at_fault = self.status is not None and 400 <= self.status < 500
        self.span.end(attributes, is_failed=bool(self.error_code) and not is_client_at_fault)

    async def send_error(self, failure: Failed, *, is_invalid_stream: bool = False) -> None:
        """Respond with the error in the protocol's envelope; see `protocol.Envelope`."""
        self.note_failure(failure)
        dialect = self.dialect or self.protocol.dialect("")
        answer = dialect.envelope(failure, request_id=self.request_id, is_invalid_stream=is_invalid_stream)
        headers = [*answer.headers]
        if answer.status >= 400:  # below, it is a stream
            headers.append((b"content-length", b"%d" % len(answer.body)))
        await self.send_head(answer.status, headers)
        await self.send_body(answer.body, more=False)


async def authenticate(exchange: Exchange, services: Services) -> tuple[Caller, Dialect]:
    """Return the key's owner and the dialect of the response.

    Raises an `AccountsError` for a key that is not valid here, `UnknownDialect`, or `DatabaseUnavailable`.
    """
    caller = await services.authenticate(exchange.sent_key, exchange.client_ip)
    caller.require_certificate(exchange.sent_certificate)
    exchange.set_caller(caller)
    is_shared = services.senders.is_shared_with(caller.organization_id)
    with _arriving(exchange, caller, services):
        units = SHARED_REQUEST_UNITS if is_shared else REQUEST_UNITS
        await services.turns.take(caller.organization_id, units)
    caller.require(exchange.kind.scope)
    return caller, exchange.choose_dialect(caller.default_dialect)


def _arriving(exchange: Exchange, caller: Caller, services: Services) -> AbstractContextManager[None]:
    """Count a request that waits for its turn, if it is to create a generation."""
    if not exchange.creates_generation:
        return nullcontext()
    may_repeat = exchange.header(b"idempotency-key") is not None
    return services.open_generations.arriving(caller.organization_id, may_repeat=may_repeat)


def _by_name(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Return each header's value; lines of the same name are joined to one list (RFC 9110, section 5.3)."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found
