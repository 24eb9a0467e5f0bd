"""A bounded resource of a process that parties share fairly.

Each party has a queue, and the queues are served in turn. So a party with many requests delays only itself.
"""

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable


class NoRoom(Exception):
    """The wait for room, or its queue, is too long; or a slow holder has given its room up for others."""


class Room:
    """The units that one holder has, or waits for."""

    def __init__(self, owner: "FairRoom", party: Hashable, units: int, hold_s: float) -> None:
        self._owner = owner
        self.party = party
        self.units = units
        self.is_held = False
        self._hold_s = hold_s
        self._due_at = float("inf")

    @property
    def must_give_way(self) -> bool:
        """Return whether it has been held for longer than `hold_s`, and others wait for it."""
        return time.monotonic() >= self._due_at and self._owner.is_wanted_from(self.party)

    def hold(self) -> None:
        """Mark the room as held; only `FairRoom` calls this."""
        self.is_held = True
        self._due_at = time.monotonic() + self._hold_s

    def release(self) -> None:
        """Give the room back; a second call does nothing."""
        if self.is_held:
            self.is_held = False
            self._owner.take_back(self)


class FairRoom:
    """Room for `units`, of which one party holds at most `units_each`."""

    def __init__(
        self,
        units: float,
        units_each: int,
        *,
        wait_s: float | None = None,
        most_waiting_each: float = float("inf"),
    ) -> None:
        """Set the longest wait for room, and the longest queue of one party."""
        self._units = self._free_units = units
        self._units_each = units_each
        self._wait_s = wait_s
        self._most_waiting_each = most_waiting_each
        self._held_units: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[tuple[Room, asyncio.Future[None]]]] = OrderedDict()

    @property
    def is_full(self) -> bool:
        """Return whether a request for one unit would wait."""
        return self._free_units < 1 or bool(self._waiting)

    def resize(self, units: int) -> None:
        """Set the units of all parties and of one; units held beyond that stay held until released."""
        if units != self._units:
            self._free_units += units - self._units
            self._units = self._units_each = units
            self._give_to_next()

    def is_wanted_from(self, party: Hashable) -> bool:
        """Return whether a waiting request could use the units that this party holds."""
        return any(
            waiting == party or self._is_share(queue[0][0]) for waiting, queue in self._waiting.items()
        )

    async def acquire(self, party: Hashable, units: int = 1, *, hold_s: float = float("inf")) -> Room:
        """Wait for room and return it; after `hold_s` it must give way to others. Raises `NoRoom`."""
        room = Room(self, party, units, hold_s)
        if not self._waiting and self._fits(room):
            self._give(room)
            return room
        queue = self._waiting.setdefault(party, deque())
        if len(queue) >= self._most_waiting_each:
            raise NoRoom("too many requests of this party wait")
        turn = asyncio.get_running_loop().create_future()
        queue.append((room, turn))
        self._give_to_next()
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            self._leave(room, turn)
            if isinstance(error, TimeoutError):
                raise NoRoom("the wait took too long") from error
            raise
        return room

    def take_back(self, room: Room) -> None:
        """Free the units of a room; only `Room.release` calls this."""
        self._free_units += room.units
        self._held_units[room.party] -= room.units
        if not self._held_units[room.party]:
            del self._held_units[room.party]
        self._give_to_next()

    def _leave(self, room: Room, turn: "asyncio.Future[None]") -> None:
        if room.is_held:  # it was given at the same moment
            room.release()
            return
        queue = self._waiting.get(room.party)
        if queue is not None:
            with contextlib.suppress(ValueError):
                queue.remove((room, turn))
            if not queue:
                del self._waiting[room.party]
        self._give_to_next()

    def _fits(self, room: Room) -> bool:
        return room.units <= self._free_units and self._is_share(room)

    def _is_share(self, room: Room) -> bool:
        return self._held_units[room.party] + room.units <= self._units_each

    def _give(self, room: Room) -> None:
        self._free_units -= room.units
        self._held_units[room.party] += room.units
        room.hold()

    def _give_to_next(self) -> None:
        """Serve the parties in turn, except those that hold their share.

        If the next one needs more than is free, the others wait, too: otherwise it might never get its room.
        """
        while (found := self._next()) is not None and self._fits(found[0]):
            room, turn = found
            queue = self._waiting[room.party]
            queue.popleft()
            self._waiting.move_to_end(room.party)
            if not queue:
                del self._waiting[room.party]
            if not turn.done():  # a done one has been cancelled and will leave
                self._give(room)
                turn.set_result(None)

    def _next(self) -> "tuple[Room, asyncio.Future[None]] | None":
        return next((queue[0] for queue in self._waiting.values() if self._is_share(queue[0][0])), None)
