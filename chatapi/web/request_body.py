"""A request's body on its way from the socket to the application, of which only a bounded piece is here at a
time.
"""

import asyncio
from collections.abc import Callable
from typing import Any


class RequestBody:
    """What has arrived of a body, and the `receive` that hands it to the application.

    A body of at most `piece_bytes` is handed over in one message, when it is complete. The application of a
    larger one starts before it is complete. It gets in its first message what is there, and only its second
    `receive` makes the server read on, so that it can look at the head before anybody pays for the rest.
    """

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._on_wanted = _nobody_reads
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self.received_bytes = 0
        self.is_complete = False
        self.is_wanted = False  # the application has asked for more than the first message
        self._has_begun = self._has_ended = False  # the first and the last message have been taken
        self._is_disconnected = False
        self._changed = asyncio.Event()

    def start(self, on_wanted: Callable[[], None]) -> None:
        """The application starts; `on_wanted` is called when it waits for more than there is."""
        self._on_wanted = on_wanted

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read before the application has taken what is here."""
        return self._waiting_bytes >= self._piece_bytes if self.is_wanted else not self.is_complete

    def feed(self, data: bytes) -> None:
        """Adds what has arrived."""
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        self.received_bytes += len(data)
        self._changed.set()

    def complete(self) -> None:
        """All has arrived."""
        self.is_complete = True
        self._changed.set()

    def disconnect(self) -> None:
        """The client has left, or its answer is over; what has arrived of an incomplete body is forgotten."""
        self._is_disconnected = True
        self._on_wanted = _nobody_reads  # else this and its request would keep each other, until Python's collector finds them
        if not self.is_complete:
            self._pieces.clear()
        self._changed.set()

    async def receive(self) -> dict[str, Any]:
        """The application's `receive`."""
        while not self._is_ready():
            if not (self.is_complete or self._is_disconnected):
                self.is_wanted = True
                self._on_wanted()
            self._changed.clear()
            await self._changed.wait()
        if self._has_ended or (self._is_disconnected and not self.is_complete):
            return {"type": "http.disconnect"}
        return self._next_message()

    def _is_ready(self) -> bool:
        """Whether there is a message."""
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


def _nobody_reads() -> None:
    """Takes the place of `on_wanted` before the application has started, and when nothing more comes."""
