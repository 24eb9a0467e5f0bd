"""Lets a burst through a few at a time, so that streams which already run keep their pace; nobody holds up the others for long.

A process that begins a hundred generations at once does nothing else for a while. Here the hundred wait, which only makes their own
first token later, and the event loop gets back to the running streams in between. A slow database or Redis must not make a queue of
what would rather share one transaction: whoever takes longer than `hold_s` stays inside and counts no more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

WIDTH = 4
HOLD_S = 0.01


class Turnstile:
    """`width` may be inside at once, not counting those who have been for longer than `hold_s` seconds."""

    def __init__(self, width: int = WIDTH, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._places = asyncio.Semaphore(width)

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Inside, in the order of arrival."""
        await self._places.acquire()
        place = _Place(self._places)
        leaving = asyncio.get_running_loop().call_later(self._hold_s, place.leave)
        try:
            yield
        finally:
            leaving.cancel()
            place.leave()


class _Place:
    """One who is inside; leaves once, however often it is told to."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_taken = True

    def leave(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._places.release()
