"""Fair turns on an event loop: when there is more to do than one iteration should do, parties take turns.

An event loop runs whatever is ready, so three hundred streams of one organization make every iteration long,
and a stream of another organization waits for all of them. Work that asks `FairTurns` first is bounded per
iteration, however much is ready, and what does not fit waits in a line of its party; the parties are served
in rounds (deficit round robin, Shreedhar and Varghese 1995).
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable

ITERATION_UNITS = 512
"""The work of one iteration, in deltas: some milliseconds of tallying, encoding and sending."""

VISIT_UNITS = 32
"""The work that one party may do before the next party in line has its turn."""


class FairTurns:
    """The turns of one event loop. A party is anything hashable: here the id of an organization."""

    def __init__(self, iteration_units: int = ITERATION_UNITS, visit_units: int = VISIT_UNITS) -> None:
        self._iteration_units = iteration_units
        self._visit_units = visit_units
        self._used_units = 0
        self._lines: OrderedDict[Hashable, deque[tuple[asyncio.Future[None], int]]] = OrderedDict()
        self._owed_units: dict[Hashable, int] = {}
        self._is_tick_due = False

    def try_take(self, units: int) -> bool:
        """Take a turn without waiting; returns False if this iteration is full or a party waits, and the
        caller must `wait`.

        The paths that every delta takes call this first: a coroutine would cost them a tenth of their time.
        """
        if self._lines or self._used_units >= self._iteration_units:
            return False
        self._used(units)
        return True

    async def take(self, party: Hashable, units: int) -> None:
        """Return when the party may do so much work: at once while this iteration has room and no party
        waits.
        """
        if not self.try_take(units):
            await self.wait(party, units)

    async def wait(self, party: Hashable, units: int) -> None:
        """Return when it is the party's turn to do so much work, behind all that has waited for longer."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(party, deque()).append((turn, units))
        if not self._is_tick_due:
            self._schedule_tick()
        await turn

    def _used(self, units: int) -> None:
        self._used_units += units
        # Little work needs no tick: what it used counts with the work of the next iterations.
        if self._used_units >= self._visit_units and not self._is_tick_due:
            self._schedule_tick()

    def _schedule_tick(self) -> None:
        self._is_tick_due = True
        asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """Begin an iteration: serve the parties that wait, in rounds, up to the bound."""
        self._is_tick_due = False
        self._used_units = 0
        while self._lines and self._used_units < self._iteration_units:
            party, line = self._lines.popitem(last=False)
            self._visit(party, line)
            if line:
                self._lines[party] = line
            else:
                self._owed_units.pop(party, None)

    def _visit(self, party: Hashable, line: deque[tuple[asyncio.Future[None], int]]) -> None:
        """Serve one party's line for one visit; what its last turn had too much is owed at its next visits."""
        room = self._visit_units - self._owed_units.pop(party, 0)
        while line and room > 0:
            turn, units = line.popleft()
            if not turn.done():  # its stream may have been cancelled
                turn.set_result(None)
                room -= units
                self._used(units)
        if room < 0:
            self._owed_units[party] = -room
