"""The time of this process's event loop, which stands still while the loop does not turn.

A loop that was blocked, or whose process was stopped, finds all its timers due on its next turn, before it
has read what has been waiting in its sockets. Whoever judges others by their silence asks this clock: while
we were deaf, nobody was silent.

Without `start` (tests, management commands) it is `time.monotonic`. It is here, at the bottom of the layers,
because all of them wait.
"""

import asyncio
import threading
import time
from types import TracebackType

TICK_S = 0.25
LATE_S = 0.25
"""A tick that comes later than this stops the clock until it comes: so much is usual under load."""
LAST_LOOK_S = 0.01
"""Between the end of a wait and its timeout: a turn of the loop, in which it reads its sockets."""


class LoopClock:
    """The clock of one loop."""

    def __init__(self) -> None:
        self.ticks = 0
        """So often the loop has turned, at least: a thread can watch it."""
        self.thread_id = 0
        """Of the loop."""
        self._lost_s = 0.0
        self._stops_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tick on this loop, which need not run yet."""
        self._timer = loop.call_later(0, self._begin, loop)

    def stop(self) -> None:
        """Be `time.monotonic` again; the loop may end."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._stops_at, self._lost_s = None, float("inf"), 0.0

    def monotonic(self) -> float:
        """Seconds, but none in which the loop did not turn."""
        now = time.monotonic()
        return (now if now < self._stops_at else self._stops_at) - self._lost_s

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.thread_id = threading.get_ident()
        self._stops_at = time.monotonic() + TICK_S + LATE_S
        self._tick(loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        self._lost_s += max(0.0, now - self._stops_at)
        self._stops_at = now + TICK_S + LATE_S
        self.ticks += 1
        self._timer = loop.call_later(TICK_S, self._tick, loop)


clock = LoopClock()
"""Of this process, which has one loop."""
monotonic = clock.monotonic


class timeout:  # noqa: N801  it takes the place of asyncio.timeout
    """As `asyncio.timeout`, by the loop's clock: an answer that waits in a socket when the time is over is in
    time.

    It does by itself what asyncio's does, because wrapping that costs as much again, many times for each
    stream.
    """

    __slots__ = ("_cancelling", "_ends_at", "_has_ended", "_loop", "_task", "_timer")

    def __init__(self, delay_s: float) -> None:
        self._ends_at = monotonic() + delay_s
        self._has_ended = False

    async def __aenter__(self) -> None:
        """Begin to wait."""
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._loop = task.get_loop()
        self._timer = self._loop.call_later(max(0.0, self._ends_at - monotonic()), self._look)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise TimeoutError if the time was over; a cancellation from elsewhere passes."""
        self._timer.cancel()
        if self._has_ended and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _look(self) -> None:
        left_s = self._ends_at - monotonic()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._timer = self._loop.call_later(LAST_LOOK_S, self._end)

    def _end(self) -> None:
        self._has_ended = True
        self._task.cancel()
