"""Finds out why clients hear nothing: asks the database once a second about all silent clients of the
process.

What a client is told depends on the state of its generation:

1. It waits in the queue, or its worker lives: nothing, the client waits on.
2. It is settled, but its end did not arrive: the end, from the log and the row.
3. Its time in the queue is over and nobody has closed it: `queue_timeout`, and it is voided here.
4. Its worker has died: `worker_lost`. The reaper closes the books later.

A worker has died if the reaper has taken its generation over, or if its lease has run out and it has no
connection to Redis although Redis answers. A late heartbeat alone proves nothing, because the database may
have been locked. While the database can't be read, the missing connection has to do, if it has been missing
for longer.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from uuid import UUID
from weakref import WeakSet

from django.conf import settings
from redis.exceptions import RedisError

from accounts import loop_clock
from chatapi.delta_stream import DeltaStream
from usage.books import reports
from usage.books.ledger import CLAIM_FENCE
from usage.books.reports import GenerationStatus
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import State

log = logging.getLogger(__name__)

LOOK_S = 1.0
SILENT_S = 2.0
"""How long a client hears nothing before the database is asked."""
READ_S = 1.0
"""How long a query may take before the database counts as out of reach."""
BATCH = 500
MISSING_S = 2.0
"""How long a worker whose lease has run out must be without a connection; a living one connects again within
a second.
"""
MISSING_UNREAD_S = 4.0
"""The same while the database can't be read."""


class Finding(Enum):
    """What is known about a silent generation whose client must not simply wait on."""

    SETTLED = auto()
    EXPIRED = auto()
    """Its time in the queue is over, and nobody has closed it."""
    WORKER_LOST = auto()
    UNKNOWN = auto()
    """The database can't be read, and no worker is connected."""
    NO_ROW = auto()


class Watch:
    """One client that waits for the deltas of one generation."""

    def __init__(self, generation_id: UUID, wake: Callable[[], None] | None) -> None:
        self.id = generation_id
        self.heard_at = time.monotonic()
        self.standing: GenerationStatus | None = None
        """As of the last look."""
        self.finding: Finding | None = None
        self._wake = wake

    def heard(self) -> None:
        """Call when deltas have come."""
        self.heard_at = time.monotonic()
        self.finding = None

    def tell(self, finding: Finding) -> None:
        """Let the client's task know."""
        self.finding = finding
        if self._wake is not None:
            self._wake()

    def take(self) -> Finding | None:
        """Return what was found since the last call."""
        finding, self.finding = self.finding, None
        return finding


class MissingWorkers:
    """How long workers have been without a connection to Redis, as far as Redis answered.

    Time counts only as often as somebody looked, so that a late event loop finds no worker missing.
    """

    def __init__(self) -> None:
        self.none_connected_s = 0.0
        """How long no worker at all has been connected; 0 until one was, because earlier versions do not say
        that they are there.
        """
        self._missing_s: dict[str, float] = {}
        self._looked_at = time.monotonic()
        self._has_seen_any = False

    def missing_s(self, worker: str) -> float:
        """How long that worker has been missing."""
        return self._missing_s.setdefault(worker, 0.0)

    def look(self, connected: set[str]) -> None:
        """Take note of the workers that Redis knows."""
        now = time.monotonic()
        passed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_S), now
        self._has_seen_any |= bool(connected)
        self.none_connected_s = (
            self.none_connected_s + passed_s if self._has_seen_any and not connected else 0.0
        )
        known = self._missing_s.keys() | connected
        self._missing_s = {
            worker: 0.0 if worker in connected else self.missing_s(worker) + passed_s for worker in known
        }

    def start_again(self) -> None:
        """Redis did not answer: everybody gets the time to connect again."""
        self.none_connected_s = 0.0
        self._missing_s = {}


class Silence:
    """The watches of a web process."""

    def __init__(self, commits: GroupCommit, stream: DeltaStream) -> None:
        self._commits = commits
        self._stream = stream
        self._workers = MissingWorkers()
        self._watches: WeakSet[Watch] = WeakSet()

    def watch(self, generation_id: UUID, wake: Callable[[], None] | None = None) -> Watch:
        """Watch a generation for as long as the returned object is kept; `wake` is called after each finding."""
        watch = Watch(generation_id, wake)
        self._watches.add(watch)
        return watch

    async def look_for_workers(self) -> None:
        """Ask Redis every second which workers are connected, for ever."""
        while True:
            try:
                self._workers.look(await self._stream.connected_workers())
            except (RedisError, OSError) as error:
                log.warning("connected workers: %r", error)
                self._workers.start_again()
            await asyncio.sleep(LOOK_S)

    async def ask_books(self) -> None:
        """Look into the silence every second, for ever."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, LOOK_S - (time.monotonic() - began)))

    async def look(self) -> None:
        """Tell all silent watches what is found out about them."""
        silent_since = time.monotonic() - SILENT_S
        silent = [watch for watch in self._watches if watch.heard_at <= silent_since]
        for start in range(0, len(silent), BATCH):
            await self._look_into(silent[start : start + BATCH])

    async def _look_into(self, silent: Sequence[Watch]) -> None:
        found: Mapping[UUID, GenerationStatus] | None = None
        try:
            async with loop_clock.timeout(READ_S):
                found = await self._commits.read(reports.statuses, [watch.id for watch in silent])
        except (DatabaseUnavailable, TimeoutError) as error:
            log.warning("silent generations: %r", error)
        for watch in silent:
            finding = (
                self._unread_finding(watch) if found is None else self._finding(watch, found.get(watch.id))
            )
            if finding is not None:
                watch.tell(finding)

    def _finding(self, watch: Watch, standing: GenerationStatus | None) -> Finding | None:
        last, watch.standing = watch.standing, standing
        if standing is None:
            return Finding.NO_ROW
        if standing.state == State.SETTLED:
            return Finding.SETTLED
        if standing.state == State.ADMITTED:
            return Finding.EXPIRED if standing.overdue_ms > 2 * settings.REAPER_MS + 1_000 else None
        if not standing.was_claimed:
            return None  # the reaper has it, and needs no Redis to close it
        # Seen twice: a reaper that can reach Redis closes it at once and tells everybody.
        is_left = standing.fence > CLAIM_FENCE and last is not None and last.fence > CLAIM_FENCE
        is_dead = standing.overdue_ms > 0 and self._workers.missing_s(standing.worker) >= MISSING_S
        return Finding.WORKER_LOST if is_left or is_dead else None

    def _unread_finding(self, watch: Watch) -> Finding | None:
        if watch.standing is not None and watch.standing.worker:
            return (
                Finding.WORKER_LOST
                if self._workers.missing_s(watch.standing.worker) >= MISSING_UNREAD_S
                else None
            )
        return Finding.UNKNOWN if self._workers.none_connected_s >= MISSING_UNREAD_S else None
