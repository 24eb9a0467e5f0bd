"""How fast a process lets new work begin: no faster than its event loop keeps up with what runs already.

To begin a request costs as much as a hundred of its tokens. Where more come at once than the machine has time for, each would make all
running streams late; so the new ones wait, in their order, and those who read already go on reading at the same pace.
"""

import asyncio
from contextlib import suppress

TICK_S = 0.005
LATE_S = 0.002
"""A loop that wakes up so much later than it asked for has more to do than it has time for."""
PATIENCE_S = 0.5
"""Nobody waits longer, however late the loop is: there is no refusing here, and no queue that grows."""
LULL_S = 1.0
"""So long after the last beginning the loop is not looked at any more: an idle process sleeps."""


class Pace:
    """The pace of one event loop."""

    def __init__(self) -> None:
        self.is_late = False
        """Whether the last tick came late."""
        self._turn = asyncio.Lock()
        self._is_busy = asyncio.Event()
        self._asked_at = 0.0
        self._tick: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Return when one more may begin: at once while the loop is on time, else one a tick, the first who asked first."""
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        self._is_busy.set()
        give_up_at = self._asked_at + PATIENCE_S
        async with self._turn:
            if self.is_late:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(give_up_at):
                        await asyncio.shield(self._tick)

    async def run(self) -> None:
        """Watch the loop for ever, while anything begins."""
        while True:
            await self._is_busy.wait()
            await self._watch()
            if asyncio.get_running_loop().time() - self._asked_at > LULL_S:
                self._is_busy.clear()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        self.is_late = loop.time() - due > LATE_S
        self._tick.set_result(None)
        self._tick = loop.create_future()
