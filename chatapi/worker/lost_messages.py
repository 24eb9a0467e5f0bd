"""Finds generations whose queue message was lost, and enqueues them again.

A worker claims a generation within milliseconds after it has taken its message. So a message is lost if, at
two looks half a second apart, its generation is unclaimed a second after its admission and the message waits
in no queue. One look is not enough: during a flood it takes so long that workers have meanwhile claimed what
its read of the database had found unclaimed. Each worker with a free slot looks.

There are three causes: Redis was emptied, a worker was killed between the pop and the claim, or a web process
was killed between the commit and the enqueueing. If the request is lost, too, the worker that claims the
generation voids it with `request_lost`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import RedisError

from chatapi.concurrency import repeat
from chatapi.task_queue import Entry, QueueClass, TaskQueue
from usage.books import reports
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError

log = logging.getLogger(__name__)

LOOK_S = 0.5
# How long after its admission an unclaimed generation counts as lost.
MIN_AGE_MS = 1_000
BATCH = 1_000


@dataclass
class LostMessages:
    """Looks for lost messages. Every worker runs one."""

    commits: GroupCommit
    broker: Redis
    queue: TaskQueue
    has_free_slot: Callable[[], bool]
    holds: Callable[[UUID], bool]
    """Returns whether this worker is about to claim a generation, or runs it."""
    missing: set[str] = field(default_factory=set)
    """The generations whose messages were in no queue at the last look."""

    async def run(self) -> None:
        """Look every `LOOK_S`, for ever."""
        await repeat(LOOK_S, "lost messages", self.look, expected=(RedisError, UsageError))

    async def look(self) -> None:
        """Enqueue the lost generations again if this worker has a free slot.

        Raises `RedisError` or `UsageError`.
        """
        if not self.has_free_slot():
            return
        waiting = await self.commits.read(reports.waiting_since, MIN_AGE_MS, BATCH)
        # A busy worker claims late what it has taken.
        entries = [
            Entry(each.hex, organization_id, QueueClass(queue_class or QueueClass.INTERACTIVE))
            for each, organization_id, queue_class in waiting
            if not self.holds(each)
        ]
        before, self.missing = self.missing, await self.queue.missing(self.broker, entries)
        # A second message for the same generation changes nothing, because only one claim succeeds.
        lost = [entry for entry in entries if entry.generation_id in before & self.missing]
        for generation_id in await self.queue.enqueue_lost(self.broker, lost):
            log.warning("%s is enqueued again: its message was lost", generation_id)
