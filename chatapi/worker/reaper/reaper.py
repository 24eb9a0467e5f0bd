"""Closes what a dead process left open: fence off, seal the log, charge what it shows, tell the client."""

import asyncio
import logging
import time
from datetime import datetime, timedelta

import msgspec
from django.conf import settings
from redis.exceptions import RedisError

from accounts.rate_limits import LEASE_MS, RateLimits
from chatapi.concurrency import shield_until_done
from chatapi.delta_log import Sealed
from chatapi.delta_stream import NOT_STARTED, WORKER_LOST, DeltaStream, Entry, Job
from chatapi.wire import deltas, requests
from chatapi.wire.deltas import Failed
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.runs.heavy_work import aside
from chatapi.worker.runs.run_usage import RunUsage, counted_completion, prompt_tokens
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
CLOSE_S = 2.0
NOTHING = Sealed([], 0, is_whole=False)


class Reaper:
    """Looks for generations whose lease has run out; any number of reapers may run beside each other."""

    def __init__(self, commits: GroupCommit, stream: DeltaStream) -> None:
        self._commits = commits
        self._stream = stream
        self._limits = RateLimits(stream.redis, settings.REDIS_KEY_PREFIX, lease_ms=LEASE_MS)
        self._was_blind_at = float("-inf")
        self._looked_at: datetime | None = None
        """When the last look found nothing, by the database's clock; None after one that found something,
        which may take long.
        """
        self._giving_back: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Look every `REAPER_MS`, for ever."""
        while True:
            try:
                while await self.reap() == BATCH:
                    pass
            except UsageError as error:
                log.warning("reaper: %r", error)
            await asyncio.sleep(settings.REAPER_MS / 1_000)

    async def close(self) -> None:
        """Wait for what is still being given back, but for a Redis that is away only a moment; call when
        `run` has ended.
        """
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=CLOSE_S)

    async def reap(self) -> int:
        """Close up to `BATCH` orphans; answers how many there were."""
        orphans = await self._take_over()
        await asyncio.gather(*(self._close(orphan) for orphan in orphans))
        return len(orphans)

    async def _take_over(self) -> list[Orphan]:
        """The orphans. When the database was away the living could not prolong their leases either: they get
        a lease's time to.

        So they do when its clock has leapt, as it does where the whole machine has slept.
        """
        began = time.monotonic()
        is_prompt = False
        try:
            asked_at = await self._commits.read(database_now)
            if self._has_leapt(asked_at):
                self._was_blind_at = time.monotonic()
            limit = BATCH if (began - self._was_blind_at) * 1_000 > settings.LEASE_MS else 0
            orphans = await self._commits.write(
                ledger.take_over, ledger.TakeOver(limit, settings.LEASE_MS, asked_at)
            )
            is_prompt = (time.monotonic() - began) * 1_000 < settings.HEARTBEAT_MS
        finally:
            if not is_prompt:
                self._was_blind_at = time.monotonic()
        self._looked_at = None if orphans else asked_at
        return orphans

    def _has_leapt(self, asked_at: datetime) -> bool:
        """Whether so much time has passed since the last look that leases may have run out which nobody could
        prolong meanwhile.
        """
        if self._looked_at is None:
            return False
        passed_ms: float = (asked_at - self._looked_at) / timedelta(milliseconds=1)
        most_ms: int = max(settings.LEASE_MS - settings.HEARTBEAT_MS, 2 * settings.REAPER_MS)
        return passed_ms > most_ms

    async def _close(self, orphan: Orphan) -> None:
        """One orphan. One that was started stays ours while Redis is away, until our own lease runs out, and
        is taken over again.
        """
        try:
            sealed, job = await self._look_back(orphan)
            failpoint("reaper.after_seal")
            await self._settle(orphan, sealed, job)
        except AlreadyResolved:
            return
        except (UsageError, RedisError, OSError) as error:
            log.warning("%s is not closed, or nobody told: %r", orphan.id.hex, error)
        except Exception:
            # One that can't be read must not keep the others open.
            log.exception("%s can't be closed", orphan.id.hex)

    async def _look_back(self, orphan: Orphan) -> tuple[Sealed, Job | None]:
        """What was published, and for whom. Of one that was never started Redis need not tell."""
        try:
            sealed = await self._stream.seal(orphan.id, orphan.fence) if orphan.was_started else NOTHING
            ((job, _),) = await self._stream.jobs([orphan.id])
        except (RedisError, OSError):
            if orphan.was_started:
                raise
            return NOTHING, None
        return sealed, job

    async def _settle(self, orphan: Orphan, sealed: Sealed, job: Job | None) -> None:
        failure = WORKER_LOST if orphan.was_started else NOT_STARTED
        # Counting takes its time with a long prompt or answer, and living streams share this loop.
        settlement = await aside(lambda: _settlement(orphan, sealed, _request(job), failure))
        end = Entry(
            orphan.id,
            orphan.fence,
            sealed.last_seq + 1,
            deltas.encode([failure]),
            job.inbox if job else "",
            is_last=True,
        )
        await shield_until_done(self._end(orphan, settlement, end))

    async def _end(self, orphan: Orphan, settlement: Settlement, end: Entry) -> None:
        """Nobody comes back to what is settled: who is waiting is told, and what it took given back, though
        this process ends.
        """
        await self._commits.write(ledger.settle, settlement)
        failpoint("reaper.after_commit")
        log.warning(
            "closed %s: %s after %d completion tokens",
            orphan.id.hex,
            settlement.error_code,
            settlement.tokens.completion_tokens,
        )
        try:
            await self._stream.publish([end])
        finally:
            self._give_back(orphan, settlement.tokens)

    def _give_back(self, orphan: Orphan, used: Tokens) -> None:
        """Its web process may be gone, too, and no job tell what it took. For a Redis that is away the next
        orphans do not wait.
        """
        taken = self._limits.on_receipt(orphan.id)
        giving = asyncio.create_task(
            self._limits.give_back_patiently(taken, used.prompt_tokens + used.completion_tokens)
        )
        self._giving_back.add(giving)
        giving.add_done_callback(self._giving_back.discard)


def _settlement(
    orphan: Orphan, sealed: Sealed, request: GenerationRequest | None, failure: Failed
) -> Settlement:
    """Charges what the log shows, which is what the client may have seen."""
    usage = RunUsage()
    if request is not None:
        usage.expect_echo(request, is_whole=sealed.is_whole)
    usage.add(sealed.deltas)
    completion = counted_completion(usage, orphan.completion_tokens_cap)
    if not sealed.is_whole:
        # The last heartbeat's count is what is left when Redis has lost the log.
        completion = max(completion, min(orphan.completion_tokens, orphan.completion_tokens_cap))
    return Settlement(
        orphan.id,
        orphan.fence,
        Outcome.WORKER_LOST if orphan.was_started else Outcome.NOT_STARTED,
        Tokens(prompt_tokens(request), completion, None, _at_most(usage.reasoning_tokens, completion))
        if completion
        else Tokens(),
        UsageSource.COUNTED if completion else UsageSource.NONE,
        error_code=failure.code or "",
        error_message=failure.message,
    )


def _request(job: Job | None) -> GenerationRequest | None:
    """What was asked for; one that another version has written and we can't read must be closed like one that
    is lost.
    """
    try:
        return requests.from_bytes(job.request) if job else None
    except msgspec.DecodeError as error:
        log.error("a job can't be read: %s", error)
        return None


def _at_most(tokens: int | None, cap: int) -> int | None:
    return None if tokens is None else min(tokens, cap)
