"""How much memory large request bodies may take in a web process, and whose turn it is to send one.

A body has its room before it is read, and keeps it until its request is queued. A body that waits for room is not read, which the
client's machine notices (TCP's flow control). Room is given to organizations in turn, so that one which sends many large bodies delays
its own.
"""

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict, deque
from typing import Final

LARGE_BYTES: Final = 64 * 1024
"""A body of more than this is large: it needs room, and is parsed by another process."""
LEAST_BYTES: Final = 1024 * 1024
"""Room that even the smallest of them takes: it bounds how many wait to be parsed."""
BODIES, BODIES_EACH = 4, 2
"""So many bodies of the greatest length find room, of all organizations and of one."""
MOST_WAITING_EACH: Final = 64
"""Requests of one organization that may wait: each holds a connection and up to `LARGE_BYTES`."""
WAIT_S: Final = 20.0
"""The longest wait for room."""
HOLD_S, LEAST_BYTES_PER_S = 5.0, 1024 * 1024
"""A body that takes longer to arrive, plus a second for each so many bytes, gives way when others wait."""


class NoRoom(Exception):
    """There was no room in time, or a slow body gave way to others."""


class Room:
    """The room of one body."""

    def __init__(self, owner: "BodyRoom", organization_id: int, n_bytes: int) -> None:
        self._owner = owner
        self.organization_id = organization_id
        self.n_bytes = n_bytes
        self.is_held = False
        self.due_at = 0.0
        """When the body should have arrived, by `time.monotonic`."""

    @property
    def must_give_way(self) -> bool:
        """Whether the body is late, and others wait."""
        return time.monotonic() >= self.due_at and self._owner.is_wanted_from(self.organization_id)

    def release(self) -> None:
        """Give the room back; a second call does nothing."""
        if self.is_held:
            self.is_held = False
            self._owner.take_back(self)


class BodyRoom:
    """The room for all large bodies of a process."""

    def __init__(self, most_body_bytes: int, *, wait_s: float = WAIT_S) -> None:
        """`most_body_bytes`: the length of the largest body that is accepted."""
        largest = max(most_body_bytes, LEAST_BYTES)
        self._free_bytes = BODIES * largest
        self._most_bytes_each = BODIES_EACH * largest
        self._wait_s = wait_s
        self._held_bytes: Counter[int] = Counter()
        self._waiting: OrderedDict[int, deque[tuple[Room, asyncio.Future[None]]]] = OrderedDict()

    def is_wanted_from(self, organization_id: int) -> bool:
        """Whether a body waits that could have what this organization holds."""
        return any(waiting_id == organization_id or self._is_share(queue[0][0]) for waiting_id, queue in self._waiting.items())

    async def acquire(self, organization_id: int, n_bytes: int) -> Room:
        """Room for a body of at most that many bytes; raises `NoRoom`."""
        room = Room(self, organization_id, max(n_bytes, LEAST_BYTES))
        if not self._waiting and self._fits(room):
            self._give(room)
            return room
        queue = self._waiting.setdefault(organization_id, deque())
        if len(queue) >= MOST_WAITING_EACH:
            raise NoRoom("too many large bodies of this organization wait")
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
        """`Room.release` calls it."""
        self._free_bytes += room.n_bytes
        self._held_bytes[room.organization_id] -= room.n_bytes
        if not self._held_bytes[room.organization_id]:
            del self._held_bytes[room.organization_id]
        self._give_to_next()

    def _leave(self, room: Room, turn: "asyncio.Future[None]") -> None:
        if room.is_held:  # it was given in the same moment
            room.release()
            return
        queue = self._waiting.get(room.organization_id)
        if queue is not None:
            with contextlib.suppress(ValueError):
                queue.remove((room, turn))
            if not queue:
                del self._waiting[room.organization_id]
        self._give_to_next()

    def _fits(self, room: Room) -> bool:
        return room.n_bytes <= self._free_bytes and self._is_share(room)

    def _is_share(self, room: Room) -> bool:
        return self._held_bytes[room.organization_id] + room.n_bytes <= self._most_bytes_each

    def _give(self, room: Room) -> None:
        self._free_bytes -= room.n_bytes
        self._held_bytes[room.organization_id] += room.n_bytes
        room.is_held = True
        room.due_at = time.monotonic() + HOLD_S + room.n_bytes / LEAST_BYTES_PER_S

    def _give_to_next(self) -> None:
        """Serve organizations in turn. Where the next one's body is too large for what is free, the others wait, lest it wait for ever;
        an organization that holds its share is passed over."""
        while (found := self._next()) is not None and self._fits(found[0]):
            room, turn = found
            queue = self._waiting[room.organization_id]
            queue.popleft()
            self._waiting.move_to_end(room.organization_id)
            if not queue:
                del self._waiting[room.organization_id]
            if not turn.done():  # else its request has been cancelled, and has yet to notice
                self._give(room)
                turn.set_result(None)

    def _next(self) -> "tuple[Room, asyncio.Future[None]] | None":
        return next((queue[0] for queue in self._waiting.values() if self._is_share(queue[0][0])), None)
