"""What all hot endpoints share: who asks in which dialect, headers that identify an answer, and errors as
designed.
"""

import logging
import time
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from django.conf import settings

from accounts import client_ip
from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.models import KeyScope
from chatapi import errors, identity
from chatapi.delta_log import StreamUnavailable
from chatapi.fair_room import NoRoom
from chatapi.web.body_parser import ParserUnavailable
from chatapi.web.body_room import LARGE_BYTES
from chatapi.web.event_stream_consumer import EventStreamConsumer
from chatapi.web.services import Services
from chatapi.wire import dialects
from chatapi.wire.deltas import Failed
from chatapi.wire.dialects import Dialect, OpenAI
from usage.errors import DatabaseUnavailable
from usage.failpoints import failpoint
from usage.rollups.refused_requests import Refusal, refused_requests

log = logging.getLogger(__name__)

JSON_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
MOST_LENGTH_DIGITS = 19
REQUEST_UNITS = 64
"""What a request costs before its stream begins, in deltas (`fair_turns.py`)."""
OPENAI_VERSION = (b"openai-version", identity.OPENAI_VERSION.encode())


class Endpoint(EventStreamConsumer):
    """One request to a hot endpoint; subclasses answer it."""

    required_scope: ClassVar[KeyScope]
    """What a key that is narrowed to some scopes needs here."""
    takes_body: ClassVar[bool] = False
    """Whether a body of more than `LARGE_BYTES` can be meant for this endpoint."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.began_at = time.monotonic()
        self.request_headers: dict[bytes, bytes] = {}
        self.identifying: list[tuple[bytes, bytes]] = []
        self.generation_id = identity.new_id()
        self.dialect: Dialect | None = None
        self.api_key_id: int | None = None
        self.known_caller: Caller | None = None
        """Who asks, once the key is known to be good; its scopes may still refuse the request."""

    async def handle(self) -> None:
        """Answer one request; every failure before the first byte is a JSON error with its own status."""
        self.request_headers = _by_name(self.scope["headers"])
        wish = self.request_headers.get(b"x-request-id")
        self.identifying = [(b"x-request-id", identity.request_id(wish, self.generation_id)), OPENAI_VERSION]
        if not self.takes_body and await self.has_large_body():
            raise errors.body_too_large("This route takes no request body.")
        await self.answer_request()

    async def answer_request(self) -> None:
        """Check the request and answer it."""
        raise NotImplementedError

    async def handle_error(self, error: Exception) -> None:
        """Tell the client, as an HTTP error."""
        if not self.is_complete:
            await self.send_error(self.told(error))

    @property
    def is_nothing_charged(self) -> bool:
        """Whether a client whose request fails now may be told so: nothing that costs something is behind it."""
        return False

    def told(self, error: Exception) -> Failed:
        """What the client is told about the error; one before the answer began is counted as a refusal of its
        key.
        """
        failure = self._told(error)
        if self.api_key_id is not None and not self.is_started:
            refused_requests.count(Refusal(self.api_key_id, failure.status, failure.code or failure.type))
        return failure

    def _told(self, error: Exception) -> Failed:
        """What the client is told, one that nobody foresaw is logged; the headers that go with it are made
        ready.
        """
        if isinstance(error, RateLimited):
            self.identifying += error.headers()
        if (away := _AWAY.get(type(error))) is not None:
            return errors.unavailable(
                f"{away} Nothing was charged." if self.is_nothing_charged else away
            ).failure
        found = errors.from_exception(error).failure
        if found.code == "internal_error":
            log.error("a request failed", exc_info=error)
        if self.known_caller is not None and 400 <= found.status < 500:
            self.note_refusal(self.known_caller, error, found)
        if found.status in _NOT_NOW and self.api_key_id is not None:
            # Nothing else knows of these: the books begin with what is admitted. What the client has said is
            # not told, its own request id neither: it may be a key, or a part of a prompt.
            why = "" if found.code in _QUOTING else f": {found.message!r}"
            ours = identity.request_id(None, self.generation_id).decode()
            log.info("%s of key %d is refused: %d %s%s", ours, self.api_key_id, found.status, found.code, why)
        return found

    def note_refusal(self, caller: Caller, error: Exception, failure: Failed) -> None:
        """Called once for each request of a good key that is refused. Override it to count them."""

    # ---- what comes in

    def allow(self, *methods: str) -> None:
        """Raises 405 for any other method."""
        if self.scope["method"] not in methods:
            allowed = ", ".join(methods)
            self.identifying.append((b"allow", allowed.encode()))
            raise errors.method_not_allowed(self.scope["method"], allowed)

    async def caller(self, services: Services) -> Caller:
        """Who asks, whose dialect is chosen herewith; raises an `AccountsError` or `UnknownDialect`."""
        caller = await services.authenticate(self.header(b"authorization"), self.client_address)
        self.know(caller)
        await services.turns.take(caller.organization_id, REQUEST_UNITS)
        caller.require(self.required_scope)
        self.choose_dialect(caller.default_dialect)
        return caller

    async def has_large_body(self) -> bool:
        """Whether the body has more than `LARGE_BYTES`; reads no more of it than that."""
        if self.announced_bytes is not None:
            return self.announced_bytes > LARGE_BYTES
        return await self.has_body_above(LARGE_BYTES)

    @property
    def announced_bytes(self) -> int | None:
        """The body's length, if the client tells it."""
        length = self.request_headers.get(b"content-length", b"")
        return int(length) if length.isdigit() and len(length) < MOST_LENGTH_DIGITS else None

    def know(self, caller: Caller) -> None:
        """Remember who asks: from now on, refusals are the caller's."""
        self.known_caller, self.api_key_id = caller, caller.api_key_id

    def choose_dialect(self, usual: str) -> Dialect:
        """Header, then URL prefix, then what is usual for this caller, then the server's default."""
        prefix = self.route_arguments.get("dialect") or ""
        self.dialect = dialects.choose(
            self.header(b"x-chatapi-dialect") or "", prefix, usual, settings.DEFAULT_DIALECT
        )
        return self.dialect

    @property
    def client_address(self) -> str:
        """Where the request comes from, behind any proxies that are trusted."""
        return client_ip.of_request(self.scope, settings.TRUSTED_PROXIES)

    @property
    def route_arguments(self) -> dict[str, str | None]:
        """What the URL's pattern has captured."""
        found: dict[str, str | None] = cast(dict[str, Any], self.scope)["url_route"][
            "kwargs"
        ]  # Channels adds it to ASGI's own keys
        return found

    def header(self, name: bytes) -> str | None:
        """A request header's value."""
        value = self.request_headers.get(name)
        return None if value is None else value.decode("latin-1")

    # ---- what goes out

    async def send_error(self, failure: Failed) -> None:
        """Answer with the error's status and envelope."""
        await self.send_json(failure.status, OpenAI.error_body(failure), errors.headers(failure))

    async def send_json(
        self, status: int, body: bytes, more_headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Answer with one JSON document."""
        length = (b"content-length", b"%d" % len(body))
        await self.send_head(status, [*JSON_HEADERS, length, *(more_headers or [])])
        await self.send_body(body, more=False)

    async def send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Begin the answer with these headers and those that identify it."""
        failpoint("view.before_first_byte")
        took_ms = (b"openai-processing-ms", b"%d" % ((time.monotonic() - self.began_at) * 1_000))
        await self.send_headers(status, [*headers, *self.identifying, took_ms])


_NOT_NOW = frozenset({402, 403, 429})
_QUOTING = frozenset({"model_not_allowed"})
"""Refusals whose message repeats what the client has said."""
_AWAY: dict[type[Exception], str] = {
    StreamUnavailable: "The service can't reach its workers right now.",
    DatabaseUnavailable: "The service can't reach its books right now.",
    ParserUnavailable: "The service can't read large requests right now.",
    NoRoom: "Too many large requests arrive at the same time.",
}


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Each header's value; lines of the same name are one list (RFC 9110, section 5.3), and no value of a
    header that takes but one.
    """
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found
