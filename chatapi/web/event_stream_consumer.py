"""A Channels consumer that ends the moment its client leaves.

Channels' own AsyncHttpConsumer reads no message while `handle` runs, so a lost client is noticed only when `handle` ends
(https://github.com/django/channels/issues/1249). Here `handle` runs as a task beside `receive`.
"""

import asyncio
from collections.abc import Iterable

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from channels.consumer import AsyncConsumer


class EventStreamConsumer(AsyncConsumer):
    """Handles one HTTP request; subclasses write `handle`.

    If the client leaves before the response is complete, `handle` is cancelled where it awaits. It may clean up in `finally`, which
    is waited for. After the last `send_body` it is left to finish in peace.
    """

    is_started: bool
    """`send_headers` has been called: an error can no longer become a status."""

    is_complete: bool
    """The last `send_body` has been called: nothing more can be sent."""

    channel_layer_alias = None  # a channel layer costs every request a round trip to Redis

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serves one request as an ASGI application."""
        self.scope = scope
        self.base_send = send
        self.is_started = self.is_complete = False
        body = await _receive_body(receive)
        if body is not None:
            await self._handle_while_connected(body, receive)

    async def _handle_while_connected(self, body: bytes, receive: ASGIReceiveCallable) -> None:
        handling = asyncio.create_task(self._handle(body))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((handling, leaving), return_when=asyncio.FIRST_COMPLETED)
            if self.is_complete:  # servers report a disconnect at the end of a response as well
                await asyncio.wait((handling,))
        finally:
            handling.cancel()
            leaving.cancel()
            await asyncio.wait((handling, leaving))
        for task in (handling, leaving):
            if not task.cancelled():
                task.result()

    async def handle(self, body: bytes) -> None:
        """Answers the request with `send_headers` and `send_body`."""
        raise NotImplementedError

    async def handle_error(self, error: Exception) -> None:
        """Answers a request whose `handle` raised `error`; by default the server does."""
        raise error

    async def send_headers(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begins the response; servers may hold the headers back until the first `send_body`."""
        self.is_started = True
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def send_body(self, data: bytes, more: bool = True) -> None:
        """Sends a piece of the body; `more=False` makes it the last. Waits while the client reads too slowly."""
        self.is_complete = not more
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def _handle(self, body: bytes) -> None:
        try:
            await self.handle(body)
        except Exception as error:
            await self.handle_error(error)


async def _receive_body(receive: ASGIReceiveCallable) -> bytes | None:
    """The whole request body, or None if the client left before it was complete."""
    pieces = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _wait_for_disconnect(receive: ASGIReceiveCallable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
