"""A client's socket: reads its requests in turn, pauses reading, enforces the time limits, and closes.

An `HTTPConnection` lives as long as its socket, an `HTTPRequest` as long as its exchange. After an upgrade
a `WebSocketConnection` takes the bytes, and the `HTTPConnection` still tracks whether the client reads.
"""

# ruff: noqa: N802, N815 - the names are Twisted's

import asyncio
from typing import Any

from twisted.web import http

from accounts.loop_clock import monotonic
from chatapi.web.server import refusals
from chatapi.web.server.chunked_body import BadChunks, ChunkedBody
from chatapi.web.server.client_quotas import ClientQuotas, ConnectionQuota
from chatapi.web.server.http_request import WRITABLE, HTTPRequest
from chatapi.web.server.refusals import Refusal
from chatapi.web.server.server_limits import ServerLimits
from chatapi.web.server.transport import FIRST_READ_BYTES, WANTED_READ_BYTES
from chatapi.web.server.websocket_connection import WebSocketConnection

# The time for which a client may still send after the last response, before its connection is cut.
#
# A socket that is closed with unread bytes sends a reset, which can destroy the response before the client
# has read it (RFC 9112 section 9.6).
LINGER_SECONDS = 3.0
# The first byte of a TLS client (RFC 8446 section 5.1).
_TLS_HANDSHAKE = b"\x16"

# Slots save 1.2 kB here, as in `http_request.py`.
_SLOTS = (
    "_active_at",
    "_arriving_since",
    "_has_had_request",
    "_is_ending",
    "_lingered_bytes",
    "_paused_at",
    "_received_bytes",
    "_stall",
    "is_proxied",
    "limits",
    "quota",
    "websocket",
)


class HTTPConnection(http.HTTPChannel):
    """A client's socket and the requests that it carries, one after the other."""

    __slots__ = _SLOTS
    requestFactory = HTTPRequest
    _path = b""  # Twisted sets it while a request arrives
    writable = WRITABLE

    def __init__(self) -> None:
        super().__init__()
        self.websocket: WebSocketConnection | None = None
        self._is_ending = False
        self._active_at = monotonic()  # when the last byte arrived or the last response ended
        self._arriving_since: float | None = None  # when the incomplete request began to arrive
        self._received_bytes = 0
        self._dataBuffer: list[bytes]  # this and the next two are Twisted's
        self._transferDecoder: Any = None
        self.length: int | None = 0
        self._paused_at: float | None = None  # since when the arriving body waits for its application
        self._has_had_request = False
        self._lingered_bytes = 0  # received and discarded after the last response
        # The number of unsent bytes, and since when the client has taken none of them.
        self._stall: tuple[int, float] | None = None

    def connectionMade(self) -> None:
        """Count the connection for its client's address, or refuse it."""
        super().connectionMade()
        self.limits: ServerLimits = self.factory.limits
        self.factory.open_connections.add(self)
        quotas: ClientQuotas = self.factory.quotas
        self.quota = ConnectionQuota(quotas, self)
        peer = self.transport.client[0]
        self.is_proxied = quotas.is_proxy(peer)
        open_count, max_connections = len(self.factory.open_connections), self.factory.max_connections
        refusal: Refusal | None = None
        if open_count > max_connections * 10 // 9:
            # There is not even room for a response.
            self.transport.abortConnection()
            return
        client = None if self.is_proxied else quotas.of_peer(peer)
        # A client with few connections gets in all the same, so that a flood refuses no probe.
        has_few = client is not None and client.connections < max_connections // 1_000
        if open_count > max_connections and not has_few:
            refusal = refusals.SERVER_FULL
        elif client is not None:
            refusal = self.quota.take(client)
        if refusal is None:
            self._wait_for_request()
        else:
            self.refuse(refusal)

    def connectionLost(self, reason: Any) -> None:
        super().connectionLost(reason)
        self.forget()

    def forget(self) -> None:
        """Leave the set of open connections, and wake an application that waits for its client to read."""
        self.factory.open_connections.discard(self)
        self.quota.release()
        self._set_writable()

    def _set_writable(self) -> None:
        self.writable.set()
        self.writable = WRITABLE

    def _wait_for_request(self) -> None:
        if self.is_proxied:
            self.quota.release()  # the next request may come from another client
        else:
            self.quota.wait_for_request()

    def evict(self) -> None:
        self.quota.release()
        if self._has_had_request:
            self.loseConnection()
        else:
            self.refuse(refusals.TOO_MANY_CONNECTIONS)

    def cut_off(self) -> None:
        self.transport.abortConnection()

    # Reading requests

    def dataReceived(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._active_at = monotonic()
        if not self._handlingRequest:
            if self._arriving_since is None:
                self._arriving_since, self._received_bytes = self._active_at, 0
                if data.startswith(_TLS_HANDSHAKE):
                    # Its hello may lack the end of a line: without this, it waits until its time is over.
                    self.refuse(refusals.NOT_HTTPS)
                    return
            self._received_bytes += len(data)
            if refusal := self._count_arriving(len(data)):
                self.refuse(refusal)
                return
        super().dataReceived(data)
        if not self.requests and not self._buffer:
            self._arriving_since = None  # only an empty line after a body

    def _count_arriving(self, n_bytes: int) -> Refusal | None:
        """Count bytes that the application has not asked for; return the refusal if they are too many."""
        if self.requests and self.requests[-1].body.is_wanted:
            return None
        return self.quota.add_arriving(n_bytes, self._received_bytes)

    def rawDataReceived(self, data: bytes) -> None:
        """Decode bytes of a body, or keep what arrives while a request is answered."""
        # Twisted stops reading when much arrives during a response, and then does not notice that the client
        # leaves. So those bytes are dropped, and the connection closes after the response: a client repeats
        # requests that got no response (RFC 9112 section 9.3.2).
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
        """Parse a line of the head; refuse a folded one (RFC 9112 section 5.2), which would cost a copy."""
        if line[:1] in (b" ", b"\t"):
            self.refuse(refusals.BAD_REQUEST)
        else:
            super().lineReceived(line)

    @property
    def request_line(self) -> tuple[bytes, bytes, bytes]:
        """Return the method, target and version of the arriving request."""
        return self._command, self._path, self._version

    def allHeadersReceived(self) -> None:
        """Refuse a request by its head, or read on."""
        self._has_had_request = True
        refusal = self.requests[-1].check_head() or self._count_request()
        if refusal is None:
            super().allHeadersReceived()
        else:
            self.refuse(refusal)

    def _count_request(self) -> Refusal | None:
        """Count the request for its client's address; return the refusal if the client has too many."""
        request = self.requests[-1]
        if self.is_proxied:
            sent = request.requestHeaders.getAllRawHeaders()
            headers = ((name.lower(), value) for name, values in sent for value in values)
            client = self.factory.quotas.of_request(self.transport.client[0], headers)
            refusal = self.quota.take(client) or self._count_arriving(self._received_bytes)
            if refusal is not None:
                return refusal
        else:
            self.quota.stop_waiting()
        return self.quota.count_handshake() if request.is_websocket else None

    def _send100Continue(self) -> None:
        if not self.requests[-1].expect_continue():
            self.invite_body()

    def invite_body(self) -> None:
        """Send `100 Continue` to a client that waits for it."""
        super()._send100Continue()

    def pause_reading(self) -> None:
        """Stop reading a body until its application wants more of it."""
        if self._paused_at is None and not self._is_ending:
            self._paused_at = monotonic()
            self._networkProducer.pauseProducing()

    def resume_reading(self) -> None:
        """Continue reading; the pause does not count towards the client's time limits."""
        self.quota.release_arriving()
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
        if not self._is_ending:
            self.resume_reading()  # only a socket that is read shows that its client leaves
            self.transport.bufferSize = FIRST_READ_BYTES
            self.quota.release_arriving()
            self._arriving_since = None
            super().allContentReceived()

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        if header == b"Transfer-Encoding":
            # HTTP/1.0 does not have this header: a proxy before us may have used the Content-Length (RFC 9112
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

    # Refusing requests

    def refuse(self, refusal: Refusal) -> None:
        """Answer the arriving request with an error, and close the connection."""
        if self._is_ending:
            return
        if not any(request.has_begun_response for request in self.requests):
            self.transport.write(refusal.response(self._path.decode("latin-1")))
        self._end()
        for request in self.requests:
            request.abandon()

    def _respondToBadRequestAndDisconnect(self) -> None:
        is_too_large = (
            self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders
        )
        self.refuse(refusals.HEADERS_TOO_LARGE if is_too_large else refusals.BAD_REQUEST)

    def lineLengthExceeded(self, line: bytes) -> None:
        self.refuse(refusals.HEADERS_TOO_LARGE if self._receivedHeaderSize else refusals.URI_TOO_LONG)

    # Keep-alive and closing

    def checkPersistence(self, request: HTTPRequest, version: bytes) -> bool:
        """Return whether another request may follow on this connection."""
        is_http_1_1 = version == b"HTTP/1.1"
        if self.factory.is_draining or (is_http_1_1 and request.wants_close):
            self.announce_end(request)
            return False
        return is_http_1_1

    def announce_end(self, request: HTTPRequest) -> None:
        """Make this exchange the connection's last one; its response must not have begun."""
        request.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        self.persistent = False

    def requestDone(self, request: HTTPRequest) -> None:
        """Wait for the next request, or close the connection."""
        self._active_at = monotonic()
        if not request.body.is_complete:
            self.persistent = False
        if self.persistent:
            self._wait_for_request()
        super().requestDone(request)

    def loseConnection(self) -> None:
        """Close the connection: at once, or after lingering if bytes are unsent or still arrive."""
        if self._is_ending:
            return
        if self.transport.unsent_bytes or self._arriving_since is not None:
            self._end()
        else:
            super().loseConnection()

    def _end(self) -> None:
        """Ignore what the client still sends, and close the connection when all output has been written."""
        self._is_ending = True
        self._active_at = monotonic()
        self._stall = None
        self._buffer = b""
        self.quota.release_arriving()
        self._dataBuffer.clear()
        self._networkProducer.unregisterProducer()  # a paused producer would prevent the closing
        self.transport.resumeProducing()  # closing with unread bytes would send a reset
        self.transport.discard_input()
        self.transport.loseWriteConnection()

    def discarded(self, n_bytes: int) -> None:
        """Stop reading when the client has sent too much after the last response."""
        self._lingered_bytes += n_bytes
        if self._lingered_bytes > self.limits.max_linger_bytes:
            self.transport.pauseProducing()

    def start_draining(self) -> None:
        """Make a running exchange the last one if its response has not begun."""
        for request in self.requests:
            if not request.startedWriting:
                self.announce_end(request)

    def drain(self, now: float, idle_seconds: float) -> None:
        """Close the connection if it has been idle for `idle_seconds`; the server calls this repeatedly."""
        if self.websocket is not None:
            self.websocket.drain()
        elif not self.requests and self._arriving_since is None:
            self._close_if_idle(now, idle_seconds)

    def _close_if_idle(self, now: float, idle_seconds: float) -> None:
        # Unread bytes are a request that has just arrived.
        if not self._is_ending and now - self._active_at >= idle_seconds and not self.transport.unread_bytes:
            self.loseConnection()

    # Back-pressure

    def pauseProducing(self) -> None:
        """Make `Server.handle_reply` wait; the transport calls this when it buffers more than 64 KiB."""
        if self.writable is WRITABLE:
            self.writable = asyncio.Event()
        super().pauseProducing()
        if self.websocket is not None:
            self._networkProducer.pauseProducing()  # each ping that is read would be answered
        self.quota.stall()

    def resumeProducing(self) -> None:
        """Let `Server.handle_reply` continue; the transport calls this when its buffer is empty, or lost."""
        self._stall = None
        self.quota.stop_stalling()
        self._set_writable()
        super().resumeProducing()
        if self.websocket is not None:
            self._networkProducer.resumeProducing()
        if self._paused_at is not None:
            self._networkProducer.pauseProducing()

    # Time limits

    def sweep(self, now: float) -> None:
        """Enforce the time limits; the server calls this for every connection several times a second."""
        # A sweep costs less than timers: every request would start and stop two of them.
        if self.websocket is not None:
            self.websocket.check_timeouts()
        if self._is_ending:
            self._sweep_ending(now)
        elif self.transport.disconnecting or not self.writable.is_set():
            self._sweep_stalled(now)
        elif self._paused_at is not None:
            return  # the client waits for the server
        elif self._arriving_since is not None:
            self._sweep_arriving(now, self._arriving_since)
        elif not self._handlingRequest:
            limits = self.limits
            idle_seconds = limits.keep_alive_seconds if self._has_had_request else limits.head_timeout_seconds
            self._close_if_idle(now, idle_seconds)

    def _sweep_ending(self, now: float) -> None:
        if self.transport.unsent_bytes:
            self._active_at = now  # lingering begins when the client has received everything
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
        timeout_seconds = self.limits.body_timeout_seconds
        earned_seconds = self._received_bytes / self.limits.min_body_bytes_per_second
        is_head_late = self.line_mode and now - since > self.limits.head_timeout_seconds
        if (
            is_head_late
            or now - self._active_at > timeout_seconds
            or now - since > timeout_seconds + earned_seconds
        ):
            self.refuse(refusals.REQUEST_TIMEOUT)
