"""How much memory large request bodies may take in a web process, and whose turn it is to send one.

A body has its room before it is read, and keeps it until its request is queued. A body that waits for room is
not read, which the client's machine notices (TCP's flow control). Room is given to organizations in turn, so
that one which sends many large bodies delays its own.
"""

from typing import Final

from chatapi.fair_room import FairRoom, Room

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


class BodyRoom:
    """The room for the large bodies of a process."""

    def __init__(self, most_body_bytes: int, *, bodies: float = BODIES, wait_s: float = WAIT_S) -> None:
        """`most_body_bytes`: the length of the largest body that is accepted; `bodies`: how many of them find
        room.
        """
        largest = max(most_body_bytes, LEAST_BYTES)
        self._room = FairRoom(
            bodies * largest, BODIES_EACH * largest, wait_s=wait_s, most_waiting_each=MOST_WAITING_EACH
        )

    async def acquire(self, organization_id: int, n_bytes: int) -> Room:
        """Room for a body of at most that many bytes; raises `NoRoom`."""
        units = max(n_bytes, LEAST_BYTES)
        return await self._room.acquire(organization_id, units, hold_s=HOLD_S + units / LEAST_BYTES_PER_S)
