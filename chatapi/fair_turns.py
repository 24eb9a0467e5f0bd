"""Fair turns on an event loop: when there is more to do than one iteration should do, parties take turns.

An event loop runs everything that is ready, so three hundred streams of one organization make every iteration
long, and a stream of another organization waits for all of them. `FairTurns` bounds the work per iteration.
Work beyond the bound waits in its party's queue; the queues are served in rounds (deficit round robin,
Shreedhar and Varghese 1995).
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Hashable

# The work of one iteration, in deltas: some milliseconds of tallying, encoding and sending.
ITERATION_UNITS = 512

# The work that one party may do before the next party has its turn.
VISIT_UNITS = 32

# A loop counts as shared for this long after the last request that followed one of another party.
SHARED_S = 10.0


class FairTurns:
    """The turns of one event loop. A party is a hashable value: here an organization's id."""

    def __init__(self, iteration_units: int = ITERATION_UNITS, visit_units: int = VISIT_UNITS) -> None:
        self._iteration_units = iteration_units
        self._visit_units = visit_units
        self._used_units = 0
        self._lines: OrderedDict[Hashable, deque[tuple[asyncio.Future[None], int]]] = OrderedDict()
        self._owed_units: dict[Hashable, int] = {}
        self._is_tick_due = False

    def try_take(self, units: int) -> bool:
        """Take a turn without waiting; return False if the caller must `wait`.

        Code that runs for every delta calls this first: a coroutine would cost a tenth of its time.
        """
        if self._lines or self._used_units >= self._iteration_units:
            return False
        self._used(units)
        return True

    async def take(self, party: Hashable, units: int) -> None:
        """Return when the party may do `units` of work: at once if the iteration has room and none waits."""
        if not self.try_take(units):
            await self.wait(party, units)

    async def wait(self, party: Hashable, units: int) -> None:
        """Join the party's queue, and return when it is its turn to do `units` of work."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(party, deque()).append((turn, units))
        if not self._is_tick_due:
            self._schedule_tick()
        await turn

    def _used(self, units: int) -> None:
        self._used_units += units
        # Little work needs no tick: it counts towards the next iterations.
        if self._used_units >= self._visit_units and not self._is_tick_due:
            self._schedule_tick()

    def _schedule_tick(self) -> None:
        self._is_tick_due = True
        asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """Begin an iteration: serve the waiting parties in rounds, up to the bound."""
        self._is_tick_due = False
        self._used_units = 0
        while self._lines and self._used_units < self._iteration_units:
            party, line = self._lines.popitem(last=False)
            # If a party's last turn takes more than the visit has left, the rest is subtracted from its next
            # visits.
            room = self._visit_units - self._owed_units.pop(party, 0)
            while line and room > 0:
                turn, units = line.popleft()
                if not turn.done():  # its stream may have been cancelled
                    turn.set_result(None)
                    room -= units
                    self._used(units)
            if room < 0:
                self._owed_units[party] = -room
            if line:
                self._lines[party] = line
            else:
                self._owed_units.pop(party, None)


class Senders:
    """Notices whether requests of several parties come to an event loop."""

    def __init__(self, shared_s: float = SHARED_S) -> None:
        self._shared_s = shared_s
        self._last_party: Hashable = None
        self._shared_until = float("-inf")

    def is_shared_with(self, party: Hashable) -> bool:
        """Note a request of `party`; return whether another party has sent one within `shared_s`."""
        now = time.monotonic()
        if party != self._last_party:
            if self._last_party is not None:
                self._shared_until = now + self._shared_s
            self._last_party = party
        return now < self._shared_until
