"""Refuses requests of an organization whose earlier ones wait too long for a worker.

Others are served: workers take turns between organizations, so only the organization's own requests delay it.
The waits are read once a second at most, for all requests of the process.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from chatapi import errors
from chatapi.concurrency import CachedValue

# How long a refused client is to wait: the queue needs time to become shorter.
RETRY_AFTER_MS: Final = 5_000


class QueueAge:
    """The longest waits of all organizations, at most a second old."""

    def __init__(self, read: Callable[[], Awaitable[dict[int, int]]], max_age_ms: int) -> None:
        """`read` returns the longest wait in ms by organization; `max_age_ms` is its bound, 0 for none."""
        self._longest_waits = CachedValue(read)
        self._max_age_ms = max_age_ms

    async def check(self, organization_id: int) -> None:
        """Raise a 503 if a request of the organization has waited too long."""
        if not self._max_age_ms:
            return
        waits = await self._longest_waits.get()
        if waits.get(organization_id, 0) > self._max_age_ms:
            raise errors.queue_too_old(RETRY_AFTER_MS)
