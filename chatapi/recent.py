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
        self._reading: asyncio.Task[Value] | None = None

    async def get(self, max_age_s: float = MAX_AGE_S) -> Value:
        """The value, read less than `max_age_s` ago; raises what the reading raises.

        Who is cancelled here takes nothing from those who wait with them.
        """
        if self._value is not None and time.monotonic() - self._read_at < max_age_s:
            return self._value
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
            self._reading.add_done_callback(_look_at_error)
        return await asyncio.shield(self._reading)

    async def _refresh(self) -> Value:
        try:
            value = self._value = await self._read()
            self._read_at = time.monotonic()
            return value
        finally:
            self._reading = None


def _look_at_error(reading: "asyncio.Task[Value]") -> None:
    """Nobody may be left who waits for it, and then asyncio would log it."""
    if not reading.cancelled():
        reading.exception()
