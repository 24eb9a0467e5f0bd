"""The connection of a client after its upgrade to WebSocket."""

# ruff: noqa: N802, N803 - the names are Twisted's

import asyncio
from http import HTTPStatus
from typing import Any

from daphne.ws_protocol import WebSocketProtocol

from chatapi.web.server import refusals
from chatapi.web.server.refusals import Refusal


class WebSocketConnection(WebSocketProtocol):
    """A socket on which the client speaks WebSocket."""

    def connectionMade(self) -> None:
        """Take the socket over; its `HTTPConnection` remains the producer and so applies back-pressure."""
        self._connection: Any = self.transport.producer
        # A frame of six bytes costs 40 to 100 µs: Twisted's 64 KiB of them would take half a second.
        self.transport.bufferSize = self._connection.limits.websocket_read_bytes
        super().connectionMade()

    @property
    def writable(self) -> asyncio.Event:
        """Return the event that is set when the client has read enough, or has left."""
        writable: asyncio.Event = self._connection.writable
        return writable

    def sendMessage(self, *arguments: Any, **options: Any) -> None:
        """Send a message of any length."""
        # autobahn applies the limit of the clients' messages to ours, too.
        self.maxMessagePayloadSize = 0
        try:
            super().sendMessage(*arguments, **options)
        finally:
            self.maxMessagePayloadSize = self._connection.limits.max_websocket_message_bytes

    def onConnect(self, request: object) -> Any:
        """Start the application after a valid handshake."""
        self._connection.websocket = self
        return super().onConnect(request)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """Pass a message to the application; cut the client off if too many messages wait."""
        if self.application_queue.qsize() < self._connection.limits.max_websocket_messages:
            super().onMessage(payload, isBinary)
        else:
            self.transport.abortConnection()

    def connectionLost(self, reason: Any) -> None:
        super().connectionLost(reason)
        self._connection.forget()

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        """Tell the application, if a valid handshake has started it."""
        if self._connection.websocket is self:
            super().onClose(wasClean, code, reason)

    def sendHttpErrorResponse(self, code: int, reason: str, responseHeaders: object = None) -> None:
        """Refuse the handshake with a JSON envelope."""
        # The reason of an internal error may show internals.
        is_ours = code >= HTTPStatus.INTERNAL_SERVER_ERROR
        refusal = refusals.INTERNAL_ERROR if is_ours else Refusal(code, f"{reason}.")
        self.sendData(refusal.response())

    def application_ended(self, error: BaseException | None) -> None:
        """Close the socket that the application left open."""
        if error is None:
            self.handle_reply({"type": "websocket.close"})
        else:
            self.handle_exception(error)

    def drain(self) -> None:
        """Send the close code 1001, going away (RFC 6455 section 7.4.1)."""
        if self.state == self.STATE_OPEN:
            self.sendCloseFrame(code=1001)
