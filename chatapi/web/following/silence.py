"""Finds out why streams are silent: reads the rows of all silent ones of the process once a second.

What happens to a silent stream depends on the state of its generation:

1. It waits in the queue, or its worker lives: the client waits on.
2. It is settled, but its terminal delta did not arrive: the log and the row have the end.
3. Its time in the queue is over and it is still open: the end is `queue_timeout`, and `relay.py` voids it.
   If the database takes no write, the end is `stream_unavailable`.
4. Its worker has died: the end is `worker_lost`. The reaper closes the books later.

A worker has died if the reaper has taken its generation over, or if its lease has run out and it has no
connection to Redis although Redis answers. A late heartbeat alone proves nothing, because the database may
have been locked. While the database can't be read, a connection that is missing for longer is the proof.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from uuid import UUID
from weakref import WeakSet

from django.conf import settings

from accounts import loop_clock
from chatapi.delta_stream import StreamServers, StreamUnavailable
from usage.books import reports
from usage.books.ledger import CLAIM_FENCE
from usage.books.reports import GenerationStatus
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import State

log = logging.getLogger(__name__)

LOOK_S = 1.0
# The silence after which the database is asked.
SILENT_S = 2.0
# How long a query may take before the database counts as out of reach.
READ_S = 1.0
BATCH = 500
# How long a worker whose lease has run out must be without a connection; a living one connects again within a
# second.
MISSING_S = 2.0
# The same while the database can't be read.
MISSING_UNREAD_S = 4.0


class Finding(Enum):
    """The reason why a silent stream must not wait any longer."""

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
        self.status: GenerationStatus | None = None
        """The generation's status at the last read of the database."""
        self.finding: Finding | None = None
        self.wake = wake

    def heard(self, now: float) -> None:
        """Note that deltas have come; `now` is `time.monotonic()`."""
        self.heard_at = now
        self.finding = None

    def take(self) -> Finding | None:
        """Return what was found since the last call."""
        finding, self.finding = self.finding, None
        return finding


class MissingWorkers:
    """How long each worker has been without a connection to Redis while Redis answered."""

    def __init__(self) -> None:
        self.none_connected_s = 0.0
        """How long no worker has been connected. It stays 0 until a first one was, because workers of earlier
        versions do not show their connection.
        """
        self._missing_s: dict[str, float] = {}
        self._looked_at = time.monotonic()
        self._has_seen_any = False

    def missing_s(self, worker: str) -> float:
        """Return how long that worker has been missing, and begin to count for one that is new."""
        return self._missing_s.setdefault(worker, 0.0)

    def look(self, connected: set[str]) -> None:
        """Count the time since the last look for all workers that are not connected."""
        now = time.monotonic()
        # Of a long time without a look only a part counts: a late event loop finds no worker missing.
        passed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_S), now
        self._has_seen_any |= bool(connected)
        are_all_missing = self._has_seen_any and not connected
        self.none_connected_s = self.none_connected_s + passed_s if are_all_missing else 0.0
        missing_s = {worker: before_s + passed_s for worker, before_s in self._missing_s.items()}
        self._missing_s = missing_s | dict.fromkeys(connected, 0.0)

    def start_again(self) -> None:
        """Forget all counts after Redis failed to answer: every worker gets the time to connect again."""
        self.none_connected_s = 0.0
        self._missing_s = {}


class Silence:
    """The watches of a web process."""

    def __init__(self, commits: GroupCommit, streams: StreamServers) -> None:
        self._commits = commits
        self._streams = streams
        self._workers = MissingWorkers()
        self._watches: WeakSet[Watch] = WeakSet()

    def watch(self, generation_id: UUID, wake: Callable[[], None] | None = None) -> Watch:
        """Watch a generation for as long as the returned object is kept; calls `wake` after each finding."""
        watch = Watch(generation_id, wake)
        self._watches.add(watch)
        return watch

    async def look_for_workers(self) -> None:
        """Ask Redis every second which workers are connected, for ever."""
        while True:
            try:
                self._workers.look(await self._streams.connected_workers())
            except StreamUnavailable as error:
                log.warning("connected workers: %r", error)
                self._workers.start_again()
            await asyncio.sleep(LOOK_S)

    async def ask_books(self) -> None:
        """Look into all silent watches every second, for ever."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, LOOK_S - (time.monotonic() - began)))

    async def look(self) -> None:
        """Look into all silent watches, and wake those with a finding."""
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
                watch.finding = finding
                if watch.wake is not None:
                    watch.wake()

    def _finding(self, watch: Watch, status: GenerationStatus | None) -> Finding | None:
        last, watch.status = watch.status, status
        if status is None:
            return Finding.NO_ROW
        if status.state == State.SETTLED:
            return Finding.SETTLED
        if status.state == State.ADMITTED:
            return Finding.EXPIRED if status.overdue_ms > 2 * settings.REAPER_MS + 1_000 else None
        if not status.was_claimed:
            return None  # the reaper has it, and needs no Redis to close it
        # The reaper must hold it in two looks in a row: if it can reach Redis, it publishes the end between
        # them.
        is_left = status.fence > CLAIM_FENCE and last is not None and last.fence > CLAIM_FENCE
        is_dead = status.overdue_ms > 0 and self._workers.missing_s(status.worker) >= MISSING_S
        return Finding.WORKER_LOST if is_left or is_dead else None

    def _unread_finding(self, watch: Watch) -> Finding | None:
        """Return the finding without the database, by missing connections alone."""
        if watch.status is not None and watch.status.worker:
            is_dead = self._workers.missing_s(watch.status.worker) >= MISSING_UNREAD_S
            return Finding.WORKER_LOST if is_dead else None
        return Finding.UNKNOWN if self._workers.none_connected_s >= MISSING_UNREAD_S else None
