"""Prolongs the leases of the process's generations.

It needs only the database, so that an outage of Redis costs no lease.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from usage.books import ledger
from usage.books.ledger import Beat, Pulse
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError
from usage.failpoints import failpoint

log = logging.getLogger(__name__)

# The most leases that one transaction prolongs: while it runs, other organizations' requests wait for the
# database.
PART = 256
# The share of the interval in which leases are prolonged in parts. After that, one transaction prolongs all
# that are left. Otherwise, with a slow database, the last leases would end while they wait for the parts
# before them.
DIVIDING_SHARE = 0.5


class Held(NamedTuple):
    """The generations that a process has claimed, or is about to."""

    running: Sequence[Pulse]
    claiming: Sequence[Pulse]
    """Generations whose claims may be committed before the event loop has received the result."""


class Heartbeat:
    """Prolongs the leases in a thread of its own, from `start` to `close`."""

    def __init__(
        self, name: str, commits: GroupCommit, held: Callable[[], Held], lost: Callable[[set[UUID]], object]
    ) -> None:
        """`name` is the claimant in the process's claims. `held` is called in the thread, and `lost` on the
        event loop, with the ids of running generations that another process has taken over.
        """
        self._name = name
        self._commits = commits
        self._held = held
        self._lost = lost
        self._stopping = threading.Event()
        self._loop = asyncio.get_running_loop()
        # A separate thread, so that a blocked event loop costs no lease.
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        """Stop the thread and wait for it; call this before `GroupCommit.close`."""
        self._stopping.set()
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while not self._stopping.wait(settings.HEARTBEAT_MS / 1_000):
            try:
                self._beat()
            except Exception:
                log.exception("the heartbeat failed")

    def _beat(self) -> None:
        held = self._held()
        running = {pulse.id for pulse in held.running}
        pulses = [*held.running, *held.claiming]
        divide_until = time.monotonic() + DIVIDING_SHARE * settings.HEARTBEAT_MS / 1_000
        while pulses:
            failpoint("heartbeat.before")
            size = PART if time.monotonic() < divide_until else len(pulses)
            part, pulses = pulses[:size], pulses[size:]
            try:
                alive = self._commits.write_from_thread(
                    ledger.beat, Beat(self._name, part, settings.LEASE_MS)
                )
            except UsageError as error:
                log.warning("heartbeat: %r", error)
                continue  # the leases of the other parts must not end with these
            lost = {pulse.id for pulse in part} & running - alive
            if lost:
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._lost, lost)
