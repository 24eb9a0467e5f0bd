"""A bounded buffer for a request's body between the socket and the application."""

import asyncio
from collections.abc import Callable
from typing import Any


class RequestBody:
    """The arrived part of a body, and the application's `receive`.

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
