"""A value that is read now and then: whoever asks gets one that is a second old at most."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

MAX_AGE_S = 1.0

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Read again when it is older than whoever asks will have it; all who ask meanwhile share that one reading, or its error."""

    def __init__(self, read: Callable[[], Awaitable[Value]]) -> None:
        self._read = read
        self._value: Value | None = None
        self._read_at = float("-inf")
        """When its reading began."""
        self._reading: asyncio.Task[None] | None = None

    async def get(self, max_age_s: float = MAX_AGE_S) -> Value:
        """The value, as it was `max_age_s` ago or is; raises what the reading raises.

        Who is cancelled here takes nothing from those who wait with them.
        """
        oldest = time.monotonic() - max_age_s
        while self._value is None or self._read_at < oldest:
            if self._reading is None:
                self._reading = asyncio.create_task(self._refresh())
                self._reading.add_done_callback(_look_at_error)
            await asyncio.shield(self._reading)
        return self._value

    async def _refresh(self) -> None:
        began_at = time.monotonic()
        try:
            self._value = await self._read()
            self._read_at = began_at
        finally:
            self._reading = None


def _look_at_error(reading: "asyncio.Task[None]") -> None:
    """Nobody may be left who waits for it, and then asyncio would log it."""
    if not reading.cancelled():
        reading.exception()
