"""Closes what a dead process left open: fence off, seal the log, charge what it shows, tell the client."""

import asyncio
import logging

from django.conf import settings
from redis.exceptions import RedisError

from chatapi.delta_stream import DeltaStream, Entry
from chatapi.wire import deltas, requests
from chatapi.wire.deltas import AnyDelta, Failed
from chatapi.worker.tally import Tally, prompt_tokens
from usage import ledger
from usage.errors import AlreadyResolved, UsageError
from usage.group_commit import GroupCommit
from usage.ledger import Orphan, Settlement
from usage.models import Outcome, UsageSource
from usage.pricing import Tokens

log = logging.getLogger(__name__)

BATCH = 50
WORKER_LOST = Failed("The worker was lost while it generated. What you received is charged.", code="worker_lost", status=502)
NOT_STARTED = Failed("No worker was free in time. Nothing was charged; try again.", code="queue_timeout", status=503, retry_after_ms=1_000)


class Reaper:
    """Looks for generations whose lease has run out; any number of reapers may run beside each other."""

    def __init__(self, commits: GroupCommit, stream: DeltaStream) -> None:
        self._commits = commits
        self._stream = stream

    async def run(self) -> None:
        """Look every `REAPER_MS`, for ever."""
        while True:
            try:
                while await self.reap() == BATCH:
                    pass
            except (UsageError, RedisError, OSError) as error:
                log.warning("reaper: %r", error)
            await asyncio.sleep(settings.REAPER_MS / 1_000)

    async def reap(self) -> int:
        """Close up to `BATCH` orphans; answers how many there were."""
        orphans = await self._commits.write(ledger.take_over, ledger.TakeOver(BATCH, settings.LEASE_MS))
        await asyncio.gather(*(self._close(orphan) for orphan in orphans.rows))
        return len(orphans.rows)

    async def _close(self, orphan: Orphan) -> None:
        """One orphan. While Redis is away it stays ours until our own lease runs out, and is taken over again."""
        try:
            seen = await self._stream.seal(orphan.id, orphan.fence)
            ((job, _),) = await self._stream.jobs([orphan.id])
        except (RedisError, OSError) as error:
            log.warning("%s can't be closed yet: %r", orphan.id.hex, error)
            return
        request = requests.from_bytes(job.request) if job else None
        failure = WORKER_LOST if orphan.was_started else NOT_STARTED
        tokens = Tokens()
        tally = Tally()
        tally.add(seen)
        # The heartbeat's count is what is left when Redis has lost the log.
        completion = max(tally.completion_tokens, orphan.completion_tokens)
        if completion:
            tokens = Tokens(prompt_tokens(request), completion, None, tally.reasoning_tokens)
        settlement = Settlement(
            orphan.id,
            orphan.fence,
            Outcome.WORKER_LOST if orphan.was_started else Outcome.NOT_STARTED,
            tokens,
            UsageSource.COUNTED if completion else UsageSource.NONE,
            error_code=failure.code or "",
            error_message=failure.message,
        )
        try:
            await self._commits.write(ledger.settle, settlement)
        except AlreadyResolved:
            return
        log.warning("closed %s: %s after %d completion tokens", orphan.id.hex, failure.code, completion)
        await self._tell(orphan, failure, len(seen), job.inbox if job else "")

    async def _tell(self, orphan: Orphan, failure: Failed, last_seq: int, inbox: str) -> None:
        end: list[AnyDelta] = [failure]
        await self._stream.publish([Entry(orphan.id, orphan.fence, last_seq + 1, deltas.encode(end), inbox, is_last=True)])
