"""The time of this process's event loop, which stands still while the loop does not run.

A loop that was blocked, or whose process was stopped, finds all its timers due on its next turn, before it
has read the data that waits in its sockets. Code that takes others for dead after a silence uses this clock,
so that a silence counts only while this process could have heard them.

Without `start` (tests, management commands) it is `time.monotonic`. It is in the lowest package because all
packages wait.
"""

import asyncio
import threading
import time
from types import TracebackType

TICK_S = 0.25
# A tick that is later than this stops the clock until it comes; less is usual under load.
LATE_S = 0.25
# From the end of a wait to its timeout: one turn of the loop, in which it reads its sockets.
LAST_LOOK_S = 0.01
# What a server has for its answer to a command, blocking reads included; a frozen one counts as unavailable.
REPLY_TIMEOUT_S = 3.0


class LoopClock:
    """The clock of one event loop."""

    def __init__(self) -> None:
        self.ticks = 0
        """Grows as long as the loop runs, so that another thread can see that it is not blocked."""
        self.thread_id = 0
        """The loop's thread."""
        self._lost_s = 0.0
        self._lag_s = 0.0
        self._stops_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to tick on this loop, which need not run yet."""
        self._timer = loop.call_later(0, self._tick, loop)

    def stop(self) -> None:
        """Stop ticking, so that the loop may end; `monotonic` is `time.monotonic` again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._stops_at, self._lost_s = None, float("inf"), 0.0

    def monotonic(self) -> float:
        """Return seconds, without those in which the loop did not run."""
        now = time.monotonic()
        return (now if now < self._stops_at else self._stops_at) - self._lost_s

    def take_lag_s(self) -> float:
        """Return by how much the latest tick since the last call was late."""
        lag_s, self._lag_s = self._lag_s, 0.0
        return lag_s

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.thread_id = threading.get_ident()
        now = time.monotonic()
        self._lost_s += max(0.0, now - self._stops_at)
        self._lag_s = max(self._lag_s, now - (self._stops_at - LATE_S))
        self._stops_at = now + TICK_S + LATE_S
        self.ticks += 1
        self._timer = loop.call_later(TICK_S, self._tick, loop)


# Of this process, which has one loop.
clock = LoopClock()
monotonic = clock.monotonic


class timeout:  # noqa: N801  it takes the place of asyncio.timeout
    """Like `asyncio.timeout`, by the loop's clock: an answer that waits in a socket at the end is in time.

    It does not wrap asyncio's, because that costs twice as much, many times per stream.
    """

    __slots__ = ("_cancelling", "_ends_at", "_has_ended", "_loop", "_task", "_timer")

    def __init__(self, delay_s: float) -> None:
        self._ends_at = monotonic() + delay_s
        self._has_ended = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._loop = task.get_loop()
        self._timer = self._loop.call_later(max(0.0, self._ends_at - monotonic()), self._look)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise TimeoutError if the time was over; other cancellations pass."""
        self._timer.cancel()
        # As in asyncio.timeout, another cancellation at the same moment is not turned into a TimeoutError.
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
