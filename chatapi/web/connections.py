"""Daphne's connections with back-pressure, a body cap, time limits and JSON errors.

An `HTTPConnection` lives as long as its socket, an `HTTPRequest` as long as its exchange. After an upgrade
the socket's bytes go to a `WebSocketConnection`, but its `HTTPConnection` stays the one that knows whether
the client reads.
"""

# ruff: noqa: N802, N803, N815 - the names are Twisted's

import asyncio
import resource
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import unquote

from daphne.http_protocol import WebRequest
from daphne.ws_protocol import WebSocketProtocol
from twisted.web import http
from twisted.web.http import NO_BODY_CODES  # by itself: each look into the module `http` costs a microsecond

from accounts.loop_clock import monotonic
from chatapi.web import refusals
from chatapi.web.chunked_body import BadChunks, ChunkedBody
from chatapi.web.client_quotas import Client, ClientQuotas
from chatapi.web.event_loop import loop
from chatapi.web.limits import Limits
from chatapi.web.read_turns import ReadTurns
from chatapi.web.refusals import Refusal
from chatapi.web.request_body import RequestBody
from chatapi.web.transport import FIRST_READ_BYTES, WANTED_READ_BYTES

LINGER_SECONDS = 3.0
"""How long a client that has been sent the last answer may go on sending before its connection is cut. A
socket that is closed with unread bytes sends a reset, which can destroy the answer before the client has read
it (RFC 9112 section 9.6).
"""


# Twisted knows no status newer than 2010, and would call 429 "Unknown Status".
http.RESPONSES.update({status.value: status.phrase.encode() for status in HTTPStatus})


class HTTPRequest(WebRequest):
    """One request and its response."""

    channel: Any  # an HTTPConnection; None when its socket is closed

    def __init__(self, channel: "HTTPConnection", queued: object) -> None:
        # Twisted would parse forms into `args`, which an ASGI application never sees.
        super().__init__(channel, queued, parsePOSTFormSubmission=False)
        self.writable = channel.writable
        self.body = RequestBody(channel.limits.body_piece_bytes)
        self.is_started = False
        self._expects_continue = False

    # The body

    def gotLength(self, length: int | None) -> None:
        """The head is complete. A large body is not waited for: the application decides whether it is to be
        read.
        """
        if length is not None and length > self.channel.limits.body_piece_bytes:
            self._start_early()

    def handleContentChunk(self, data: bytes) -> None:
        """Takes a piece of the body, up to the cap; stops reading when the application has to take it first."""
        if self.body.received_bytes + len(data) > self.channel.limits.max_body_bytes:
            self.channel.refuse(refusals.REQUEST_TOO_LARGE)
            return
        self.body.feed(data)
        if not self.is_started and self.body.received_bytes > self.channel.limits.body_piece_bytes:
            self._start_early()
        if self.is_started and self.body.is_full:
            self.channel.pause_reading()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The body is complete: starts the application, unless a large body has started it before."""
        self.body.complete()
        if not self.is_started:
            self._start(command, path, version)

    def parseCookies(self) -> None:
        """Leaves them to the application."""

    def expect_continue(self) -> bool:
        """Whether the application decides if the client is invited to send the body (RFC 9110 section
        10.1.1).
        """
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
        """Does what Twisted's `requestReceived` does, without parsing the query, which an ASGI application
        does for itself.
        """
        self.is_started = True
        self.method, self.uri, self.clientproto = command, path, version
        self.path, _, self.query_string = path.partition(b"?")
        self.process()

    def process(self) -> Any:
        """Starts the application, as Daphne does, but with our `receive`; a WebSocket's is left to Daphne."""
        self.requestHeaders.removeHeader(b"daphne-root-path")  # by which a client could choose SCRIPT_NAME
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

    @property
    def is_websocket(self) -> bool:
        """Whether the client asks for an upgrade to WebSocket."""
        upgrade = self.requestHeaders.getRawHeaders(b"Upgrade")
        return bool(upgrade) and upgrade[0].lower() == b"websocket"

    def send_disconnect(self) -> None:
        """Tells the application that its client has left, or that its answer is complete."""
        self.body.disconnect()

    def abandon(self) -> None:
        """The server has answered instead of the application, which from now on writes to nobody."""
        self.body.disconnect()
        self.server.protocol_disconnected(self)

    def handle_reply(self, message: dict[str, Any]) -> None:
        """Writes one ASGI message to the client."""
        # A chunk of a running stream, which is nearly every message: by Daphne and Twisted it would take four
        # times as long.
        if self.chunked and message.get("more_body") and not self.finished and self.channel is not None:
            body = message.get("body", b"")
            if body:
                self.transport.send(b"%x\r\n%b\r\n" % (len(body), body))
            return
        if self.startedWriting and (self.method == b"HEAD" or self.code in NO_BODY_CODES):
            # Twisted drops only the first piece of a body that must not be sent; the rest would read as the
            # next response.
            message = {**message, "body": b""}
        if (
            message.get("type") == "http.response.start"
            and not self.body.is_complete
            and self.channel is not None
        ):
            self.channel.announce_end(self)  # the rest of the body is never read
        super().handle_reply(message)
        self.transport.flush()

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """Answers with a JSON envelope where Daphne has an HTML page."""
        self._answer(
            refusals.INTERNAL_ERROR
            if status == HTTPStatus.INTERNAL_SERVER_ERROR
            else Refusal(status, f"{body}.")
        )

    def application_ended(self, error: BaseException | None) -> None:
        """Ends a response that the application left unfinished; what has begun can only be cut short."""
        if self.finished or self.channel is None:
            return
        if self.has_begun_response:
            self.channel.loseConnection()
        else:
            self._answer(refusals.INTERNAL_ERROR)

    @property
    def has_begun_response(self) -> bool:
        """Whether an error can no longer become a status."""
        return bool(self._response_started)

    def _answer(self, refusal: Refusal) -> None:
        body = refusal.body()
        self.handle_reply(
            {"type": "http.response.start", "status": refusal.status, "headers": refusal.headers(body)}
        )
        self.handle_reply({"type": "http.response.body", "body": body})


class HTTPConnection(http.HTTPChannel):
    """One client's socket and the requests that come over it, one after the other."""

    requestFactory = HTTPRequest

    def __init__(self) -> None:
        super().__init__()
        self.writable = asyncio.Event()
        self.writable.set()
        self.websocket: WebSocketConnection | None = None
        self._is_ending = False
        self._active_at = monotonic()  # the last byte received, or the last response ended
        self._arriving_since: float | None = None  # the first byte of a request that is not complete yet
        self._received_bytes = 0
        self._dataBuffer: list[bytes]  # Twisted's, as are the next two
        self._transferDecoder: Any = None
        self.length: int | None = 0
        self._paused_at: float | None = None  # since when the body that arrives waits for its application
        self._has_had_request = False
        self._arriving_bytes = 0  # which count for the client's address
        self._lingered_bytes = 0  # received since the last answer, and ignored
        self._stall: tuple[int, float] | None = (
            None  # bytes that wait for the client, and since when it has taken none
        )

    def connectionMade(self) -> None:
        """A client has connected."""
        super().connectionMade()
        self.limits: Limits = self.factory.limits
        self.factory.open_connections.add(self)
        self.quotas: ClientQuotas = self.factory.quotas
        peer = self.transport.client[0]
        self.is_proxied = self.quotas.is_proxy(peer)
        self.client: Client | None = None
        if self.factory.is_overfull():
            self.transport.abortConnection()
            return
        refusal = self.factory.refusal_of_another() or (
            None if self.is_proxied else self._count_for(self.quotas.of_peer(peer))
        )
        if refusal is None:
            self._wait_for_request()
        else:
            self.refuse(refusal)

    def connectionLost(self, reason: Any) -> None:
        """The socket is closed, by whichever side."""
        super().connectionLost(reason)
        self.forget()

    def forget(self) -> None:
        """Leaves the set of open connections and lets a waiting application see that its client is gone."""
        self.factory.open_connections.discard(self)
        self._uncount()
        self.writable.set()

    # What counts for the client's address

    def _count_for(self, client: Client) -> Refusal | None:
        """Counts the connection, or its one request, for this address."""
        refusal = self.quotas.connect(client)
        if refusal is None:
            self.client = client
        return refusal

    def _uncount(self) -> None:
        client = self.client
        if client is not None:
            self._uncount_arriving()
            self.client = None
            client.waiting.pop(self, None)
            client.stalled.pop(self, None)
            self.quotas.disconnect(client)

    def _count_arriving(self, size: int) -> Refusal | None:
        """Counts bytes of a request that the application has not asked for."""
        if self.client is None or (self.requests and self.requests[-1].body.is_wanted):
            return None
        self._arriving_bytes += size
        return self.quotas.arrive(self.client, size, self._received_bytes)

    def _uncount_arriving(self) -> None:
        if self.client is not None and self._arriving_bytes:
            self.quotas.arrived(self.client, self._arriving_bytes)
            self._arriving_bytes = 0

    def _wait_for_request(self) -> None:
        if self.is_proxied:
            self._uncount()
        elif self.client is not None:
            self.client.waiting[self] = None

    def evict(self) -> None:
        """Ends the connection, which waits for a request: another one needs its place."""
        self._uncount()
        if self._has_had_request:
            self.loseConnection()
        else:
            self.refuse(refusals.TOO_MANY_CONNECTIONS)

    def cut_off(self) -> None:
        """Ends the connection, whose client reads nothing."""
        self.transport.abortConnection()

    # Requests in

    def dataReceived(self, data: bytes) -> None:
        """Takes bytes from the client."""
        if self._is_ending:
            self._ignore(data)
            return
        self._active_at = monotonic()
        if not self._handlingRequest:
            if self._arriving_since is None:
                self._arriving_since, self._received_bytes = self._active_at, 0
            self._received_bytes += len(data)
            if refusal := self._count_arriving(len(data)):
                self.refuse(refusal)
                return
        super().dataReceived(data)
        if not self.requests and not self._buffer:
            self._arriving_since = None  # it was no more than an empty line behind a body

    def rawDataReceived(self, data: bytes) -> None:
        """Takes bytes that are no line: a body, or what comes while a request is answered.

        Behind much of that, Twisted would not read on, and never notice that its client leaves. So that is
        ignored, and the connection ends with the answer: a client sends again what got none (RFC 9112 section
        9.3.2).
        """
        if (
            self._handlingRequest
            and sum(len(each) for each in self._dataBuffer) + len(data) > self._optimisticEagerReadSize
        ):
            self.persistent = False
        if self._handlingRequest and not self.persistent:
            self._dataBuffer.clear()
        elif self._is_ending:
            return
        elif self._handlingRequest:
            super().rawDataReceived(data)
        else:
            try:
                self._transferDecoder.dataReceived(data)
            except BadChunks as error:
                self.refuse(error.refusal)

    def lineReceived(self, line: bytes) -> None:
        """Takes a line of the head. One that continues the line before is refused (RFC 9112 section 5.2),
        each would cost a copy of it.
        """
        if line[:1] in (b" ", b"\t"):
            self.refuse(refusals.BAD_REQUEST)
        else:
            super().lineReceived(line)

    @property
    def request_line(self) -> tuple[bytes, bytes, bytes]:
        """Method, target and version of the request that is arriving."""
        return self._command, self._path, self._version

    def allHeadersReceived(self) -> None:
        """Refuses by the head alone what need not be read any further."""
        self._has_had_request = True
        refusal = self._refusal_of_head() or self._refusal_of_client()
        if refusal is None:
            super().allHeadersReceived()
        else:
            self.refuse(refusal)

    def _refusal_of_head(self) -> Refusal | None:
        header_values = self.requests[-1].requestHeaders.getRawHeaders
        if self._version == b"HTTP/1.1" and len(header_values(b"host", ())) != 1:
            return refusals.NOT_ONE_HOST
        if len(header_values(b"authorization", ())) > 1:
            return refusals.REPEATED_AUTHORIZATION
        if not self._path.startswith(b"/") or self._path.startswith(b"//"):
            return refusals.NOT_A_PATH
        if self.length is not None and self.length > self.limits.max_body_bytes:
            return refusals.REQUEST_TOO_LARGE
        # What is refused later, by Daphne, would be answered at once, and a read full of such requests in one
        # turn of the event loop.
        if self.requests[-1].is_websocket and self.length != 0:
            return refusals.BAD_REQUEST if self._command == b"GET" else refusals.NOT_A_HANDSHAKE
        return None if self._path.isascii() else refusals.BAD_REQUEST

    def _refusal_of_client(self) -> Refusal | None:
        """Counts the request for its client's address."""
        request = self.requests[-1]
        if self.is_proxied:
            forwarded_for = b",".join(request.requestHeaders.getRawHeaders(b"x-forwarded-for", ())).decode(
                "latin-1"
            )
            refusal = self._count_for(self.quotas.of_request(self.transport.client[0], forwarded_for))
            refusal = refusal or self._count_arriving(self._received_bytes)
            if refusal is not None:
                return refusal
        elif self.client is not None:
            self.client.waiting.pop(self, None)
        return (
            self.quotas.shake_hands(self.client) if request.is_websocket and self.client is not None else None
        )

    def _send100Continue(self) -> None:
        if not self.requests[-1].expect_continue():
            self.invite_body()

    def invite_body(self) -> None:
        """Asks a client that waits for it to send the body."""
        super()._send100Continue()

    def pause_reading(self) -> None:
        """Reads no more of a body until its application wants it."""
        if self._paused_at is None and not self._is_ending:
            self._paused_at = monotonic()
            self._networkProducer.pauseProducing()

    def resume_reading(self) -> None:
        """Reads on; the client is not charged with the time in which nothing was read."""
        self._uncount_arriving()
        self.transport.bufferSize = WANTED_READ_BYTES
        if self._paused_at is None or self._is_ending:
            return
        self._active_at = monotonic()
        if self._arriving_since is not None:
            self._arriving_since += self._active_at - self._paused_at
        self._paused_at = None
        if not self._waitingForTransport:
            self._networkProducer.resumeProducing()

    def allContentReceived(self) -> None:
        """The request is complete."""
        if not self._is_ending:
            self.resume_reading()  # a client that leaves is to be noticed
            self.transport.bufferSize = FIRST_READ_BYTES
            self._uncount_arriving()
            self._arriving_since = None
            super().allContentReceived()

    def checkPersistence(self, request: HTTPRequest, version: bytes) -> bool:
        """Whether another request may follow on this connection; not while the server drains."""
        is_http_1_1 = version == b"HTTP/1.1"
        # Twisted looks at the first line only, and for no comma.
        if self.factory.is_draining or (is_http_1_1 and b"close" in _list(request, b"Connection")):
            self.announce_end(request)
            return False
        return is_http_1_1

    def announce_end(self, request: HTTPRequest) -> None:
        """Makes this exchange the last one of the connection; its head must not have been written."""
        request.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        self.persistent = False

    def requestDone(self, request: HTTPRequest) -> None:
        """The response has been written."""
        self._active_at = monotonic()
        if not request.body.is_complete:
            self.persistent = False
        if self.persistent:
            self._wait_for_request()
        super().requestDone(request)

    def loseConnection(self) -> None:
        """Closes the connection, or lets it end where the client may lack some of what it was sent, or is
        sending.
        """
        if self._is_ending:
            return
        if self.transport.unsent_bytes or self._arriving_since is not None:
            self._end()
        else:
            super().loseConnection()

    def _end(self) -> None:
        """Ignores what else the client sends, and hangs up when all has been written."""
        self._is_ending = True
        self._active_at = monotonic()
        self._stall = None
        self._buffer = b""
        self._uncount_arriving()
        self._dataBuffer.clear()
        self._networkProducer.unregisterProducer()  # while that is paused, nothing would be hung up
        self.transport.resumeProducing()  # what is not read would end in a reset
        self.transport.loseWriteConnection()

    def _ignore(self, data: bytes) -> None:
        """Drops what comes behind the last answer; from a client that does not stop nothing more is read."""
        self._lingered_bytes += len(data)
        if self._lingered_bytes > self.limits.max_linger_bytes:
            self.transport.pauseProducing()

    # Refusals

    def refuse(self, refusal: Refusal) -> None:
        """Answers the request that is arriving with an error, ignores what else the client sends, and hangs
        up.
        """
        if self._is_ending:
            return
        if not any(request.has_begun_response for request in self.requests):
            self.transport.write(refusal.response())
        self._end()
        for request in self.requests:
            request.abandon()

    def _respondToBadRequestAndDisconnect(self) -> None:
        is_too_large = (
            self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders
        )
        self.refuse(refusals.HEADERS_TOO_LARGE if is_too_large else refusals.BAD_REQUEST)

    def lineLengthExceeded(self, line: bytes) -> None:
        """A line of the head is longer than any we take."""
        self.refuse(refusals.HEADERS_TOO_LARGE if self._receivedHeaderSize else refusals.URI_TOO_LONG)

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        if header == b"Transfer-Encoding":
            # HTTP/1.0 knows no such header: a proxy before us may have gone by the Content-Length (RFC 9112
            # section 6.1).
            if (
                data.lower() != b"chunked"
                or self._version != b"HTTP/1.1"
                or self._transferDecoder is not None
            ):
                return bool(self._failChooseTransferDecoder())
            self.length = None
            self._transferDecoder = ChunkedBody(self.requests[-1].handleContentChunk, self._finishRequestBody)
            return True
        try:
            return bool(super()._maybeChooseTransferDecoder(header, data))
        except ValueError:  # a Content-Length with more digits than int() takes
            return bool(self._failChooseTransferDecoder())

    # Back-pressure: the transport calls these when its buffer passes 64 KiB, when it has run empty, and when
    # it is gone

    def pauseProducing(self) -> None:
        """The client reads too slowly: `Server.handle_reply` waits from now on."""
        self.writable.clear()
        super().pauseProducing()
        if self.websocket is not None:
            self._networkProducer.pauseProducing()  # each ping that is read would be answered
        if self.client is not None:
            self.quotas.stall(self.client, self)

    def resumeProducing(self) -> None:
        """The client has taken everything."""
        self._stall = None
        if self.client is not None:
            self.client.stalled.pop(self, None)
        self.writable.set()
        super().resumeProducing()
        if self.websocket is not None:
            self._networkProducer.resumeProducing()
        if self._paused_at is not None:
            self._networkProducer.pauseProducing()

    # Time limits

    def sweep(self, now: float) -> None:
        """Enforces the limits on time; the server calls it for every connection several times a second.

        A sweep costs less than timers, of which every request would need to start and stop two.
        """
        if self.websocket is not None:
            self.websocket.check_timeouts()
        if self._is_ending:
            self._sweep_ending(now)
        elif self.transport.disconnecting or not self.writable.is_set():
            self._sweep_stalled(now)
        elif self._paused_at is not None:
            return  # the client waits for us
        elif self._arriving_since is not None:
            self._sweep_arriving(now, self._arriving_since)
        elif not self._handlingRequest:
            self._close_if_idle(now, self._patience_seconds)

    @property
    def _patience_seconds(self) -> float:
        """How long the connection may be idle."""
        return self.limits.keep_alive_seconds if self._has_had_request else self.limits.head_timeout_seconds

    def _sweep_ending(self, now: float) -> None:
        if self.transport.unsent_bytes:
            self._active_at = now  # the time to linger begins when the client has all
            self._sweep_stalled(now)
        elif now - self._active_at > LINGER_SECONDS:
            self.transport.abortConnection()

    def _sweep_stalled(self, now: float) -> None:
        unsent_bytes = self.transport.unsent_bytes
        if self._stall is None or unsent_bytes < self._stall[0]:
            self._stall = unsent_bytes, now
        elif now - self._stall[1] > self.limits.stall_seconds:
            self.transport.abortConnection()

    def _sweep_arriving(self, now: float, since: float) -> None:
        patience_seconds = self.limits.body_timeout_seconds
        earned_seconds = self._received_bytes / self.limits.min_body_bytes_per_second
        is_head_late = self.line_mode and now - since > self.limits.head_timeout_seconds
        if (
            is_head_late
            or now - self._active_at > patience_seconds
            or now - since > patience_seconds + earned_seconds
        ):
            self.refuse(refusals.REQUEST_TIMEOUT)

    # Drain

    def start_draining(self) -> None:
        """Makes a running exchange the last one, if its client can still be told so."""
        for request in self.requests:
            if not request.startedWriting:
                self.announce_end(request)

    def drain(self, now: float, idle_seconds: float) -> None:
        """Closes the connection if it has been idle for so long. May be called again and again."""
        if self.websocket is not None:
            self.websocket.drain()
        elif not self.requests and self._arriving_since is None:
            self._close_if_idle(now, idle_seconds)

    def _close_if_idle(self, now: float, idle_seconds: float) -> None:
        """Closes the connection unless its client has used it lately, or has sent something just now."""
        if not self._is_ending and now - self._active_at >= idle_seconds and not self.transport.unread_bytes:
            self.loseConnection()


class WebSocketConnection(WebSocketProtocol):
    """What a connection becomes after an upgrade to WebSocket."""

    def connectionMade(self) -> None:
        """Takes the socket over. Its HTTPConnection remains the transport's producer, so back-pressure works
        as before.
        """
        self._connection: HTTPConnection = self.transport.producer
        self.writable = self._connection.writable
        # A frame of six bytes costs 40 to 100 µs: Twisted's 64 KiB of them would take half a second.
        self.transport.bufferSize = self._connection.limits.websocket_read_bytes
        super().connectionMade()

    def sendMessage(self, *arguments: Any, **options: Any) -> None:
        """Sends a message of any length: autobahn would hold it to the limit for what clients send."""
        self.maxMessagePayloadSize = 0
        try:
            super().sendMessage(*arguments, **options)
        finally:
            self.maxMessagePayloadSize = self._connection.limits.max_websocket_message_bytes

    def onConnect(self, request: object) -> Any:
        """The client's handshake is valid: starts the application."""
        self._connection.websocket = self
        return super().onConnect(request)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """Hands a message to the application, unless that has too many to take."""
        if self.application_queue.qsize() < self._connection.limits.max_websocket_messages:
            super().onMessage(payload, isBinary)
        else:
            self.transport.abortConnection()

    def connectionLost(self, reason: Any) -> None:
        """The socket is closed, by whichever side."""
        super().connectionLost(reason)
        self._connection.forget()

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        """Tells the application, if a valid handshake has started one."""
        if self._connection.websocket is self:
            super().onClose(wasClean, code, reason)

    def sendHttpErrorResponse(self, code: int, reason: str, responseHeaders: object = None) -> None:
        """Refuses the handshake with a JSON envelope."""
        is_ours = code >= HTTPStatus.INTERNAL_SERVER_ERROR  # whose reason may show what is inside
        refusal = refusals.INTERNAL_ERROR if is_ours else Refusal(code, f"{reason}.")
        self.sendData(refusal.response())

    def application_ended(self, error: BaseException | None) -> None:
        """Closes the socket that the application left open."""
        if error is None:
            self.handle_reply({"type": "websocket.close"})
        else:
            self.handle_exception(error)

    def drain(self) -> None:
        """Tells the client to come back later (RFC 6455 section 7.4.1: 1001, going away)."""
        if self.state == self.STATE_OPEN:
            self.sendCloseFrame(code=1001)


class ConnectionFactory(http.HTTPFactory):
    """Makes an `HTTPConnection` of every accepted socket and keeps the set of those that are open."""

    protocol = HTTPConnection  # not Twisted's default, a proxy that can switch to HTTP/2
    timeOut = None

    def __init__(self, server: object, limits: Limits, quotas: ClientQuotas) -> None:
        super().__init__(timeout=None)  # sweep() replaces Twisted's timer
        self.server = server
        self.limits = limits
        self.quotas = quotas
        self.read_turns = ReadTurns(limits.read_seconds_per_turn, loop.call_soon)
        self.max_connections = min(limits.max_connections, _descriptors() * 3 // 4)
        self.open_connections: set[HTTPConnection] = set()
        self.is_draining = False

    def refusal_of_another(self) -> Refusal | None:
        """The answer to a connection that is one too many."""
        return refusals.SERVER_FULL if len(self.open_connections) > self.max_connections else None

    def is_overfull(self) -> bool:
        """Whether there is no room even for the connections that are told so."""
        return len(self.open_connections) > self.max_connections * 10 // 9

    def start_draining(self) -> None:
        """From now on each answer ends its connection."""
        self.is_draining = True
        for connection in self.open_connections:
            connection.start_draining()

    def make_room(self) -> None:
        """Closes waiting connections when there is not much room left; the server calls it with their sweeps."""
        surplus = len(self.open_connections) - self.max_connections * 9 // 10
        if surplus > 0:
            self.quotas.make_room(surplus)

    def startFactory(self) -> None:
        """Opens no access log, which Twisted would format a line for even if nobody reads it."""


def _list(request: HTTPRequest, name: bytes) -> set[bytes]:
    """The header's values, of all its lines (RFC 9110 section 5.6.1), in lower case."""
    return {
        value.strip().lower()
        for line in request.requestHeaders.getRawHeaders(name, ())
        for value in line.split(b",")
    }


def _descriptors() -> int:
    """How many files and sockets the system lets this process have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
