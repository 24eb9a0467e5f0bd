"""One HTTP request, its body and its response, as an ASGI application sees them."""

# ruff: noqa: N802, N815 - the names are Twisted's

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import unquote

from daphne.http_protocol import WebRequest
from twisted.web import http
from twisted.web.http import NO_BODY_CODES  # by name: a lookup in the module `http` costs a microsecond
from twisted.web.http_headers import Headers

from chatapi.web.server import refusals
from chatapi.web.server.refusals import Refusal
from chatapi.wire.protocols import all_key_headers

# Twisted knows no status newer than 2010, and would call 429 "Unknown Status".
http.RESPONSES.update(refusals.PHRASES)

_KEY_HEADERS = [name.encode() for name in all_key_headers()]
# The event of all connections whose clients read: an event for each of them would take 800 bytes.
WRITABLE = asyncio.Event()
WRITABLE.set()

# Replaces headers that are not read any more: those of a request and its response take 2 kB of a stream.
NO_HEADERS = Headers()

# Slots leave the instance's dict so few keys that Python shares them, which saves 1.2 kB. They are not
# written in the class, because mypy would take them for the complete list of attributes.
_SLOTS = (
    "_parsePOSTFormSubmission",
    "_response_started",
    "application_queue",
    "body",
    "client",
    "client_addr",
    "cookies",
    "host",
    "notifications",
    "queued",
    "received_cookies",
    "requestHeaders",
    "responseHeaders",
    "server",
    "server_addr",
    "transport",
)


class RequestBody:
    """A bounded buffer for a body between the socket and the application: the arrived part, and `receive`.

    1. A body of at most `piece_bytes` is passed on in one message, when it is complete.
    2. For a larger body the application starts early, and its first message is the part that has arrived.
    3. Its second `receive` makes the server read on, so that it can check the head first.
    """

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._on_wanted = _ignore
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self.received_bytes = 0
        self.is_complete = False
        self.is_wanted = False  # the application has asked for more than the first message
        self._has_begun = self._has_ended = False  # whether the first and the last message are taken
        self._is_disconnected = False
        # A thousand open streams wait here for their end; an `asyncio.Event` takes six times the memory.
        self._waiter: asyncio.Future[None] | None = None

    def start(self, on_wanted: Callable[[], None]) -> None:
        """Set the callback for the application's wait for more of the body."""
        self._on_wanted = on_wanted

    @property
    def is_full(self) -> bool:
        """Return whether reading should pause until the application has taken the buffered pieces."""
        return self._waiting_bytes >= self._piece_bytes if self.is_wanted else not self.is_complete

    def feed(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        self.received_bytes += len(data)
        self._wake()

    def complete(self) -> None:
        self.is_complete = True
        self._wake()

    def disconnect(self) -> None:
        """Make `receive` return a disconnect, and drop the pieces of an incomplete body."""
        self._is_disconnected = True
        self._on_wanted = _ignore  # the callback and its request are a reference cycle
        if not self.is_complete:
            self._pieces.clear()
        self._wake()

    async def receive(self) -> dict[str, Any]:
        """Return the next ASGI message, when there is one."""
        while not self._is_ready():
            if not (self.is_complete or self._is_disconnected):
                self.is_wanted = True
                self._on_wanted()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._has_ended or (self._is_disconnected and not self.is_complete):
            return {"type": "http.disconnect"}
        return self._next_message()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _is_ready(self) -> bool:
        if self._is_disconnected:
            return True
        return not self._has_ended and (bool(self._pieces) or self.is_complete or not self._has_begun)

    def _next_message(self) -> dict[str, Any]:
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        was_full = self.is_full
        self._waiting_bytes = 0
        self._has_begun = True
        self._has_ended = self.is_complete
        if was_full and self.is_wanted and not self.is_complete:
            self._on_wanted()
        return {"type": "http.request", "body": body, "more_body": not self.is_complete}


def _ignore() -> None:
    """Replace `on_wanted` before the application starts and after a disconnect."""


class HTTPRequest(WebRequest):
    """A request and its response, for Daphne and for the application."""

    __slots__ = _SLOTS
    # An HTTPConnection, until Twisted deletes it at the end of the response or its socket is closed.
    channel: Any = None
    requestHeaders: Headers
    responseHeaders: Headers
    is_started = False
    _expects_continue = False
    # Daphne's are functions in Python, which each look-up of a connection would call.
    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, channel: Any, queued: object) -> None:
        # Twisted would parse forms into `args`, which an ASGI application never sees.
        super().__init__(channel, queued, parsePOSTFormSubmission=False)
        self.body = RequestBody(channel.limits.body_piece_bytes)

    @property
    def writable(self) -> asyncio.Event:
        """Return the event that is set when the client has read enough, or has left."""
        return WRITABLE if self.channel is None else self.channel.writable

    # Its head

    def check_head(self) -> Refusal | None:
        """Return the refusal of a request that must not be read any further."""
        header_values = self.requestHeaders.getRawHeaders
        command, path, version = self.channel.request_line
        length = self.channel.length
        if version == b"HTTP/1.1" and len(header_values(b"host", ())) != 1:
            return refusals.NOT_ONE_HOST
        if any(len(header_values(name, ())) > 1 for name in _KEY_HEADERS):
            return refusals.REPEATED_KEY
        if not path.startswith(b"/") or path.startswith(b"//"):
            return refusals.NOT_A_PATH
        if length is not None and length > self.channel.limits.max_body_bytes:
            return refusals.REQUEST_TOO_LARGE
        # Daphne would refuse these later, and all that came in one read in one turn of the loop. It would
        # fail to decode a subprotocol that is not ASCII.
        subprotocols = header_values(b"sec-websocket-protocol", ())
        if self.is_websocket and (length != 0 or not all(map(bytes.isascii, subprotocols))):
            return refusals.BAD_REQUEST if command == b"GET" else refusals.NOT_A_HANDSHAKE
        return None if path.isascii() else refusals.BAD_REQUEST

    @property
    def wants_close(self) -> bool:
        """Return whether a `Connection` header has `close` (RFC 9110 section 7.6.1).

        Twisted looks only at the header's first line, and does not split it at commas.
        """
        lines = self.requestHeaders.getRawHeaders(b"Connection", ())
        return any(value.strip().lower() == b"close" for line in lines for value in line.split(b","))

    @property
    def is_websocket(self) -> bool:
        """Return whether the client requests an upgrade to WebSocket."""
        upgrade = self.requestHeaders.getRawHeaders(b"Upgrade")
        return bool(upgrade) and upgrade[0].lower() == b"websocket"

    # Its body

    def gotLength(self, length: int | None) -> None:
        """Start the application before a large body arrives, so that it decides whether to read the body."""
        if length is not None and length > self.channel.limits.body_piece_bytes:
            self._start_early()

    def handleContentChunk(self, data: bytes) -> None:
        """Take a piece of the body, up to the cap; stop reading while the application has not taken it."""
        # Daphne has no limit: it would read the whole body before the application could refuse it.
        if self.body.received_bytes + len(data) > self.channel.limits.max_body_bytes:
            self.channel.refuse(refusals.REQUEST_TOO_LARGE)
            return
        self.body.feed(data)
        if not self.is_started and self.body.received_bytes > self.channel.limits.body_piece_bytes:
            self._start_early()
        if self.is_started and self.body.is_full:
            self.channel.pause_reading()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Start the application, unless a large body has already started it."""
        self.body.complete()
        if not self.is_started:
            self._start(command, path, version)
        if not self.is_websocket:
            self.requestHeaders = NO_HEADERS

    def parseCookies(self) -> None:
        """Do nothing: the application parses the cookies."""

    def expect_continue(self) -> bool:
        """Return whether `100 Continue` waits for the application's decision (RFC 9110 section 10.1.1)."""
        self._expects_continue = self.is_started
        return self._expects_continue

    def _body_wanted(self) -> None:
        if self.channel is None:
            return
        if self._expects_continue:
            self._expects_continue = False
            self.channel.invite_body()
        self.channel.resume_reading()

    # The application

    def _start_early(self) -> None:
        self._start(*self.channel.request_line)
        self.channel.pause_reading()

    def _start(self, command: bytes, path: bytes, version: bytes) -> None:
        """Do what Twisted's `requestReceived` does, but leave the query to the application."""
        self.is_started = True
        self.method, self.uri, self.clientproto = command, path, version
        self.path, _, self.query_string = path.partition(b"?")
        self.process()

    def process(self) -> Any:
        """Start the application like Daphne, but with our `receive`; Daphne starts it for a WebSocket."""
        self.requestHeaders.removeHeader(b"daphne-root-path")  # a client could choose SCRIPT_NAME by it
        if self.is_websocket:
            self.content = BytesIO()
            return super().process()
        self.client_addr = [str(self.client.host), self.client.port]
        self.server_addr = [str(self.host.host), self.host.port]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": self.clientproto.partition(b"/")[2].decode("ascii"),
            "method": self.method.decode("ascii"),
            "path": unquote(self.path.decode("ascii")),
            "raw_path": self.path,
            "root_path": "",
            "scheme": "http",
            "query_string": self.query_string,
            # A proxy may take `X_Name` for `X-Name` (CVE-2015-0219).
            "headers": [
                (name.lower(), value)
                for name, values in self.requestHeaders.getAllRawHeaders()
                if b"_" not in name
                for value in values
            ],
            "client": self.client_addr,
            "server": self.server_addr,
        }
        self.body.start(self._body_wanted)
        self.application_queue = self.body  # Daphne calls send_disconnect() only if there is one
        self.server.start_application(self, scope, self.body.receive)
        return None

    def send_disconnect(self) -> None:
        """Tell the application that its client has left or that its response is complete."""
        self.body.disconnect()

    def abandon(self) -> None:
        """Disconnect the application, because the server has answered in its place."""
        self.body.disconnect()
        self.server.protocol_disconnected(self)

    def handle_reply(self, message: dict[str, Any]) -> None:
        """Write an ASGI message to the client."""
        # Nearly every message is a chunk of a running stream; by Daphne and Twisted it would take four times
        # as long.
        if self.chunked and message.get("more_body") and not self.finished and self.channel is not None:
            body = message.get("body", b"")
            if body:
                self.transport.send(b"%x\r\n%b\r\n" % (len(body), body))
            return
        if self.startedWriting and (self.method == b"HEAD" or self.code in NO_BODY_CODES):
            # Twisted drops only the first piece of a body that must not be sent; the client would take the
            # rest for the next response.
            message = {**message, "body": b""}
        if self.finished or self.channel is None:
            return
        # Daphne would look up names in Twisted's module `http`, and write a line of a log.
        is_beginning = message["type"] == "http.response.start"
        if is_beginning == self._response_started:
            raise ValueError(f"{message['type']} out of order")
        if is_beginning:
            self._begin_response(message["status"], message.get("headers", ()))
            return
        self.transport.hold()
        try:
            self.write(message.get("body", b""))
            self.responseHeaders = NO_HEADERS
            if not message.get("more_body"):
                self.finish()
        finally:
            self.transport.flush()

    def _begin_response(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._response_started = True
        if not self.body.is_complete:
            self.channel.announce_end(self)  # the rest of the request's body is never read
        self.setResponseCode(status)
        for name, value in headers:
            self.responseHeaders.addRawHeader(name, value)

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """Answer with a JSON envelope in place of Daphne's HTML page."""
        is_ours = status == HTTPStatus.INTERNAL_SERVER_ERROR
        self._answer(refusals.INTERNAL_ERROR if is_ours else Refusal(status, f"{body}."))

    def application_ended(self, error: BaseException | None) -> None:
        """Complete a response that the application left unfinished: with an error, or by closing."""
        if self.finished or self.channel is None:
            return
        if self.has_begun_response:
            self.channel.loseConnection()
        else:
            self._answer(refusals.INTERNAL_ERROR)

    @property
    def has_begun_response(self) -> bool:
        """Return whether it is too late to send an error status."""
        return bool(self._response_started)

    def _answer(self, refusal: Refusal) -> None:
        answer = refusal.answer(self.path.decode("latin-1"))
        self.handle_reply({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        self.handle_reply({"type": "http.response.body", "body": answer.body})
