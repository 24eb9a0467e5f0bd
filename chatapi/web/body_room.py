"""Bounds the memory that large bodies take in a web process, and gives organizations turns.

A body gets room before it is read, and keeps it until its request is queued. A body that waits for room is
not read, so TCP's flow control slows its client down. An organization that sends many large bodies delays
only itself. Answers that are collected before they are sent have a room of the same kind.
"""

from typing import Final

from chatapi.fair_room import FairRoom, Room

# A body of more than this is large: it needs room, and is parsed by another process.
LARGE_BYTES: Final = 64 * 1024
# The least room that a large body takes: it bounds how many wait to be parsed.
LEAST_BYTES: Final = 1024 * 1024
# How many bodies of the greatest length have room, of all organizations and of one.
BODIES, BODIES_EACH = 4, 2
# Requests of one organization that may wait: each holds a connection and up to `LARGE_BYTES`.
MOST_WAITING_EACH: Final = 64
WAIT_S: Final = 20.0
# A body has `HOLD_S`, and a second per `LEAST_BYTES_PER_S`, to arrive; then it gives way if others wait.
HOLD_S, LEAST_BYTES_PER_S = 5.0, 1024 * 1024


class BodyRoom:
    """The room for the large bodies of a process."""

    def __init__(
        self, max_body_bytes: int, *, bodies: float = BODIES, bodies_each: int = BODIES_EACH
    ) -> None:
        """`max_body_bytes` is the length of the largest body; `bodies` of them have room."""
        largest = max(max_body_bytes, LEAST_BYTES)
        self._room = FairRoom(
            bodies * largest, bodies_each * largest, wait_s=WAIT_S, most_waiting_each=MOST_WAITING_EACH
        )

    async def acquire(self, organization_id: int, n_bytes: int) -> Room:
        """Wait for room for a body of at most `n_bytes`; raises `NoRoom` after `WAIT_S`."""
        units = max(n_bytes, LEAST_BYTES)
        return await self._room.acquire(organization_id, units, hold_s=HOLD_S + units / LEAST_BYTES_PER_S)
