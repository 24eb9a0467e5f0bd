"""Refuses requests of an organization whose earlier ones wait too long for a worker.

Others are served: workers take turns between organizations, so only the organization's own requests delay it.
Within an organization, a request is refused if a request of its own class, or of an earlier class, has waited
too long. Waits of later classes do not count.
The waits are read once a second at most, for all requests of the process.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from chatapi import errors
from chatapi.concurrency import CachedValue
from chatapi.task_queue import QueueClass

# How long a refused client is to wait: the queue needs time to become shorter.
RETRY_AFTER_MS: Final = 5_000


# In ms, by organization and class; None is a class that an earlier release did not write.
Waits = dict[int, dict[int | None, int]]


class QueueAge:
    """The longest waits of all organizations and classes, at most a second old."""

    def __init__(self, read: Callable[[], Awaitable[Waits]], max_age_ms: int) -> None:
        """`read` returns the longest waits; `max_age_ms` is their bound, 0 for none."""
        self._longest_waits = CachedValue(read)
        self._max_age_ms = max_age_ms

    async def check(self, organization_id: int, queue_class: QueueClass) -> None:
        """Raise a 503 if a request of the organization, of this class or one before, has waited too long."""
        if not self._max_age_ms:
            return
        waits = (await self._longest_waits.get()).get(organization_id, {})
        ahead = (
            wait_ms for each, wait_ms in waits.items() if (each or QueueClass.INTERACTIVE) <= queue_class
        )
        if max(ahead, default=0) > self._max_age_ms:
            raise errors.queue_too_old(RETRY_AFTER_MS)
