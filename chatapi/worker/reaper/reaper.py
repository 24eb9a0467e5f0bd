"""Closes the generations of dead processes.

1. Take over generations whose lease has run out, with a new fence.
2. Seal their logs, so that the old worker can publish nothing more.
3. Settle what the logs show.
4. Publish the terminal delta.
"""

import asyncio
import logging
import time
from datetime import datetime, timedelta

import msgspec
from django.conf import settings

from chatapi.concurrency import repeat, shield_until_done
from chatapi.delta_stream import (
    MAX_SEQ,
    NOT_STARTED,
    WORKER_LOST,
    Entry,
    Job,
    Sealed,
    StreamServers,
    StreamUnavailable,
)
from chatapi.end_log import log_end
from chatapi.wire import deltas, requests
from chatapi.wire.deltas import Failed
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.runs.heavy_work import in_thread
from chatapi.worker.runs.run_usage import RunUsage, counted_completion, counted_tokens, prompt_tokens
from usage.books import ledger
from usage.books.ledger import Orphan, Settlement
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.errors import AlreadyResolved, UsageError
from usage.failpoints import failpoint
from usage.models import Outcome, UsageSource
from usage.pricing import Tokens

log = logging.getLogger(__name__)

BATCH = 50
NOTHING = Sealed([], is_whole=False)


class Reaper:
    """Looks for generations whose lease has run out. Any number of reapers may run at the same time."""

    def __init__(self, commits: GroupCommit, streams: StreamServers) -> None:
        self._commits = commits
        self._streams = streams
        # The last time at which living workers may have been unable to prolong their leases.
        self._last_outage_at = float("-inf")
        # The time of the last look, by the database's clock, if it found nothing. None if it found orphans:
        # closing them may take so long that the next look would seem to be a leap of the clock.
        self._looked_at: datetime | None = None

    async def run(self) -> None:
        """Look every `REAPER_MS`, for ever."""
        await repeat(settings.REAPER_MS / 1_000, "reaper", self._reap_all, expected=(UsageError,))

    async def _reap_all(self) -> None:
        while await self.reap() == BATCH:
            pass

    async def reap(self) -> int:
        """Close up to `BATCH` orphans; return their number."""
        orphans = await self._take_over()
        await asyncio.gather(*(self._close(orphan) for orphan in orphans))
        return len(orphans)

    async def _take_over(self) -> list[Orphan]:
        began = time.monotonic()
        is_prompt = False
        try:
            asked_at = await self._commits.read(database_now)
            if self._has_leapt(asked_at):
                self._last_outage_at = time.monotonic()
            # While the database was away, living workers could not prolong their leases either. So nothing is
            # taken over for `LEASE_MS` after a slow or failed look, nor after a leap of the database's clock,
            # as when the whole machine has slept.
            limit = BATCH if (began - self._last_outage_at) * 1_000 > settings.LEASE_MS else 0
            orphans = await self._commits.write(
                ledger.take_over, ledger.TakeOver(limit, settings.LEASE_MS, asked_at)
            )
            is_prompt = (time.monotonic() - began) * 1_000 < settings.HEARTBEAT_MS
        finally:
            if not is_prompt:
                self._last_outage_at = time.monotonic()
        self._looked_at = None if orphans else asked_at
        return orphans

    def _has_leapt(self, asked_at: datetime) -> bool:
        """Return whether leases may have run out since the last look without a chance to prolong them."""
        if self._looked_at is None:
            return False
        passed_ms: float = (asked_at - self._looked_at) / timedelta(milliseconds=1)
        most_ms: int = max(settings.LEASE_MS - settings.HEARTBEAT_MS, 2 * settings.REAPER_MS)
        return passed_ms > most_ms

    async def _close(self, orphan: Orphan) -> None:
        """Close one orphan; if that fails, it is taken over again when the new lease runs out."""
        try:
            sealed, job = await self._seal(orphan)
            failpoint("reaper.after_seal")
            await self._settle(orphan, sealed, job)
        except AlreadyResolved:
            return
        except (UsageError, StreamUnavailable) as error:
            log.warning("%s is not closed, or its end is not published: %r", orphan.id.hex, error)
        except Exception:
            # An orphan that can't be read must not keep the others open.
            log.exception("%s can't be closed", orphan.id.hex)

    async def _seal(self, orphan: Orphan) -> tuple[Sealed, Job | None]:
        """Seal the log; return it with the job. An orphan that never started is closed without Redis, too."""
        try:
            stream = self._streams.of(orphan.id)
            sealed = await stream.seal(orphan.id, orphan.fence) if orphan.was_started else NOTHING
            ((job, _),) = await stream.jobs([orphan.id])
        except StreamUnavailable:
            if orphan.was_started:
                raise
            return NOTHING, None
        return sealed, job

    async def _settle(self, orphan: Orphan, sealed: Sealed, job: Job | None) -> None:
        failure = WORKER_LOST if orphan.was_started else NOT_STARTED
        # Counting a long prompt or answer takes long, and streams share this loop in a worker.
        settlement = await in_thread(lambda: _settlement(orphan, sealed, _request(job), failure))
        end = Entry(
            orphan.id,
            orphan.fence,
            # Clients may have deltas that the log has lost, even if it looks whole.
            MAX_SEQ if orphan.was_started else 1,
            deltas.encode([failure]),
            job.inbox if job else "",
            is_last=True,
        )
        # To its end, even if this process must stop: no reaper returns to a settled row to publish its end.
        await shield_until_done(self._end(orphan, settlement, end))

    async def _end(self, orphan: Orphan, settlement: Settlement, end: Entry) -> None:
        charge = await self._commits.write(ledger.settle, settlement)
        failpoint("reaper.after_commit")
        log_end(charge)
        log.warning(
            "closed %s: %s after %d completion tokens",
            orphan.id.hex,
            settlement.error_code,
            settlement.tokens.completion_tokens,
        )
        await self._streams.of(orphan.id).publish([end])


def _settlement(
    orphan: Orphan, sealed: Sealed, request: GenerationRequest | None, failure: Failed
) -> Settlement:
    """Return a settlement that charges what the log shows: what the client may have seen."""
    usage = RunUsage()
    if request is not None:
        usage.expect_echo(request, is_whole=sealed.is_whole)
    usage.add(sealed.deltas)
    completion = counted_completion(usage, orphan.completion_tokens_cap)
    if not sealed.is_whole:
        # Redis has lost a part of the log: the last heartbeat's count may be higher.
        completion = max(completion, min(orphan.completion_tokens, orphan.completion_tokens_cap))
    return Settlement(
        orphan.id,
        orphan.fence,
        Outcome.WORKER_LOST if orphan.was_started else Outcome.NOT_STARTED,
        counted_tokens(orphan, usage, prompt_tokens(request), completion) if completion else Tokens(),
        UsageSource.COUNTED if completion else UsageSource.NONE,
        error_code=failure.code or "",
        error_message=failure.message,
    )


def _request(job: Job | None) -> GenerationRequest | None:
    """Decode the request; return None if it is lost, or written by a version that this one can't read."""
    try:
        return requests.from_bytes(job.request) if job else None
    except msgspec.DecodeError as error:
        log.error("a job can't be read: %s", error)
        return None
