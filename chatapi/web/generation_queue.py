"""Hands admitted generations to the workers, and voids those that do not get there."""

import logging
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from chatapi.celery import GENERATE_TASK, app
from chatapi.concurrency import Batch
from chatapi.delta_stream import NOT_STARTED, ByServer, Job, KeepAndEnqueue, KeptRequest, StreamUnavailable
from chatapi.end_log import log_end
from chatapi.redis_servers import RedisServers
from chatapi.task_queue import Entry, TaskQueue
from chatapi.web.cancellations import Cancellations, InBackground, retry_or_warn
from usage.books import ledger, reports
from usage.database.group_commit import GroupCommit
from usage.errors import AlreadyResolved, DatabaseUnavailable, UsageError

log = logging.getLogger(__name__)

# How long after the admission the admitting process may still enqueue a generation.
ENQUEUES_WITHIN_MS = 1_000


class GenerationQueue:
    """The generations that a web process enqueues."""

    def __init__(
        self,
        redis: RedisServers,
        commits: GroupCommit,
        cancellations: Cancellations,
        in_background: InBackground,
    ) -> None:
        self._redis = redis
        self._streams = redis.streams
        self._commits = commits
        self._cancellations = cancellations
        self._in_background = in_background
        self._tasks = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
        self._batches = ByServer(
            [
                Batch(partial(self._enqueue_all, keep_and_enqueue))
                for keep_and_enqueue in redis.keep_and_enqueue
            ]
        )

    async def enqueue(
        self, entry: Entry, job: Job, state: bytes = b"", *, stores_response: bool = False
    ) -> None:
        """Hand an admitted generation to the workers, and keep its state; if this fails, withdraw the
        generation and raise `StreamUnavailable`.

        `stores_response`: its response is stored in the database after its end, if it has a state.
        """
        generation_id = UUID(entry.generation_id)
        request = KeptRequest(generation_id, job, state, stores_response)
        try:
            await self._batches.of(generation_id)((entry, request))
        except StreamUnavailable:
            # A worker may have it although the reply was lost: then the client gets its answer.
            if await self._withdraw(generation_id):
                raise

    async def enqueue_again(self, entry: Entry, request: KeptRequest) -> None:
        """Enqueue an admitted generation if its request is not in Redis, because it never was or is lost.

        Raises `StreamUnavailable` or `DatabaseUnavailable`.
        """
        generation_id = request.generation_id
        was_lost = await self._streams.of(generation_id).keep_again(request)
        # The admitting process may be about to enqueue it, with the name of its inbox in the job.
        if was_lost and await self._commits.read(reports.is_waiting_since, ENQUEUES_WITHIN_MS, generation_id):
            await self._redis.enqueue(self._tasks.enqueueing([entry]))

    async def _enqueue_all(
        self, keep_and_enqueue: KeepAndEnqueue, admitted: Sequence[tuple[Entry, KeptRequest]]
    ) -> list[None]:
        """Hand generations of one server of streams to the workers."""
        enqueueing = self._tasks.enqueueing([entry for entry, _ in admitted])
        await keep_and_enqueue([request for _, request in admitted], enqueueing)
        return [None] * len(admitted)

    async def expire(self, generation_id: UUID) -> bool:
        """Void a generation whose time in the queue is over. Return False if that fails, for example because
        a worker or the reaper has it. Raises `DatabaseUnavailable`.
        """
        try:
            await self._void(generation_id, NOT_STARTED.code or "", NOT_STARTED.message)
        except DatabaseUnavailable:
            raise
        except UsageError as error:
            log.warning("%s can't be voided: %r", generation_id.hex, error)
            return False
        return True

    async def _withdraw(self, generation_id: UUID) -> bool:
        """Void a generation that could not be queued; return False if a worker has it, because only Redis's
        reply was lost.
        """
        try:
            await self._void(generation_id, "service_unavailable", "The request could not be queued.")
        except AlreadyResolved:
            return False
        except UsageError as error:
            log.warning("%s is left to the reaper: %r", generation_id.hex, error)
            self._cancellations.give_up(generation_id)  # in case it is queued after all
        return True

    async def _void(self, generation_id: UUID, code: str, message: str) -> None:
        log_end(await self._commits.write(ledger.withdraw, ledger.Withdrawal(generation_id, code, message)))
        self.forget(generation_id)  # else its prompt would stay for a day

    def forget(self, generation_id: UUID, *, log_ms: int = 0) -> None:
        """Delete, in the background, what Redis keeps of a generation: its request now, the rest in
        `log_ms`.
        """
        self._in_background(self._forget_stream(generation_id, log_ms))

    async def _forget_stream(self, generation_id: UUID, log_ms: int) -> None:
        drop = partial(self._streams.of(generation_id).forget, {generation_id: log_ms})
        await retry_or_warn(drop, f"the request of {generation_id.hex} may stay in Redis")
