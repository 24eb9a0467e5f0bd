"""A Channels consumer that ends the moment its client leaves.

Channels' own AsyncHttpConsumer reads no message while `handle` runs, so a lost client is noticed only when
`handle` ends (https://github.com/django/channels/issues/1249). Here `handle` runs as a task beside `receive`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPRequestEvent, HTTPScope
from channels.consumer import AsyncConsumer


class EventStreamConsumer(AsyncConsumer):
    """Handles one HTTP request with `handler`, or with a subclass's own `handle`.

    `handle` runs as soon as the first piece of the body is there, and reads the others with `next_piece` or
    `read_body`; a server may leave them unread until then. If the client leaves before the response is
    complete, `handle` is cancelled where it awaits if it has read the whole body, else in its next call of
    `next_piece`. The consumer waits for its `finally`. After the last `send_body` it is not cancelled.
    """

    is_started: bool
    """`send_headers` was called: an error can no longer become a status."""

    is_complete: bool
    """The last `send_body` was called: nothing more can be sent."""

    channel_layer_alias = None  # a channel layer costs every request a round trip to Redis

    def __init__(self, handler: "Callable[[EventStreamConsumer], Awaitable[None]] | None" = None) -> None:
        self._handler = handler

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one request as an ASGI application."""
        self.scope = scope
        self.base_send = send
        self.is_started = self.is_complete = False
        self._receive = receive
        self._pieces: list[bytes] = []
        # Done when the whole body has arrived; an `asyncio.Event` takes six times the memory.
        self._whole_body: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        first = await receive()
        if first["type"] == "http.request":
            self._arrived(first)
            await self._handle_while_connected()

    def _arrived(self, message: HTTPRequestEvent) -> None:
        self._pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            self._whole_body.set_result(None)

    async def _handle_while_connected(self) -> None:
        handling = asyncio.create_task(self._handle())
        leaving = asyncio.create_task(self._wait_for_disconnect())
        try:
            await asyncio.wait((handling, leaving), return_when=asyncio.FIRST_COMPLETED)
            if self.is_complete:  # servers report a disconnect at the end of a response as well
                await asyncio.wait((handling,))
        finally:
            for task in (handling, leaving):
                task.add_done_callback(_retrieve_error)
                task.cancel()
            await asyncio.wait((handling, leaving))
        for task in (handling, leaving):
            if not task.cancelled():
                task.result()

    async def _wait_for_disconnect(self) -> None:
        if self.has_more_body:  # until it is whole, messages are pieces of the body
            # By `wait`, because cancelling an `await` of the future itself would make the body look whole.
            await asyncio.wait((self._whole_body,))
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # ---- the body

    @property
    def has_more_body(self) -> bool:
        """Whether the body is longer than what has arrived of it."""
        return not self._whole_body.done()

    @property
    def unread_bytes(self) -> int:
        """The length of what has arrived and was not read."""
        return sum(map(len, self._pieces))

    async def next_piece(self) -> bytes | None:
        """Return the next piece of the body, None behind the last one.

        Raises `CancelledError` if the client leaves.
        """
        if not self._pieces and self.has_more_body:
            await self._receive_piece()
        return self._pieces.pop(0) if self._pieces else None

    async def has_body_above(self, n_bytes: int) -> bool:
        """Return whether the unread body is longer than that, as soon as enough of it has arrived."""
        while self.has_more_body and self.unread_bytes <= n_bytes:
            await self._receive_piece()
        return self.unread_bytes > n_bytes

    async def read_body(self) -> bytes:
        pieces = []
        while (piece := await self.next_piece()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    async def _receive_piece(self) -> None:
        message = await self._receive()
        if message["type"] != "http.request":
            raise asyncio.CancelledError("the client has left while it sent the body")
        self._arrived(message)

    # ---- the response

    def handle(self) -> Awaitable[None]:
        """Answer the request with `send_headers` and `send_body`."""
        if self._handler is None:
            raise NotImplementedError
        return self._handler(self)

    async def handle_error(self, error: Exception) -> None:
        """Answer a request whose `handle` raised `error`; by default the server does."""
        raise error

    async def send_headers(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin the response; servers may hold the headers back until the first `send_body`."""
        self.is_started = True
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})

    def send_body(self, data: bytes, more: bool = True) -> Awaitable[None]:
        """Send a piece of the body, `more=False` the last one. Waits while the client reads too slowly, and
        then keeps no reference to the piece.
        """
        self.is_complete = not more
        return self.base_send({"type": "http.response.body", "body": data, "more_body": more})

    async def _handle(self) -> None:
        try:
            await self.handle()
        except Exception as error:
            await self.handle_error(error)


def _retrieve_error(task: "asyncio.Task[None]") -> None:
    """Mark the error as seen: if the server has cancelled the request, asyncio would log it."""
    if not task.cancelled():
        task.exception()
