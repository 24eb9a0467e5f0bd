"""The connections, caches and background tasks of a web process, shared by all its requests."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from redis.exceptions import RedisError

from accounts import authentication
from accounts.authentication import Caller, CallerCache, KeyHeaders, RefusedKey, sent_key
from accounts.errors import AccountsError
from accounts.failed_attempts import attempts
from accounts.rate_limits import LEASE_MS, RateLimits
from chatapi import catalog, response_store
from chatapi.catalog import CatalogModel
from chatapi.celery import GENERATE_TASK, app
from chatapi.concurrency import MAX_AGE_S, Batch, CachedValue, retry, supervise
from chatapi.delta_stream import (
    NOT_STARTED,
    ByServer,
    Cancellation,
    DeltaStream,
    Job,
    KeptRequest,
    StreamUnavailable,
)
from chatapi.end_log import log_end
from chatapi.fair_room import FairRoom
from chatapi.fair_turns import FairTurns
from chatapi.process_metrics import publish_forever
from chatapi.redis_client import DedicatedConnection
from chatapi.redis_servers import RedisServers
from chatapi.task_queue import Entry, TaskQueue
from chatapi.web.body_parser import BodyParser
from chatapi.web.body_room import MOST_WAITING_EACH, WAIT_S, BodyRoom
from chatapi.web.byte_windows import ByteWindows
from chatapi.web.inboxes import Inboxes
from chatapi.web.open_generations import OpenGenerations
from chatapi.web.queue_age import QueueAge
from chatapi.web.rates import Rates
from chatapi.web.refused_bytes import RefusedBytes
from chatapi.web.silence import Silence
from chatapi.web.tickets import Tickets
from chatapi.wire import caps
from usage.books import ledger, prices, reports
from usage.database.group_commit import GroupCommit
from usage.errors import AlreadyResolved, UsageError
from usage.rollups.refused_requests import refused_requests

log = logging.getLogger(__name__)

# How often a follower without news wakes up, for its keep-alives.
TICK_MS = 1_000
# The age at which a catalog that lacks a model is refreshed: a new model is served soon, and requests for
# models that do not exist cost little.
NEW_MODEL_S = 0.1
MEBIBYTE = 1 << 20
# How many bytes of input an organization may store for later requests in each `STREAM_TTL_MS`.
MAX_STATES_BYTES = 32 * MEBIBYTE
# How long it may go unnoticed that an organization's store of responses is full.
FULL_STORE_S = 10.0
# How many bodies of the greatest length, or MiB if that is more, a key's unused tickets may hold.
MAX_TICKET_BODIES = 4
MAX_ANSWER_BYTES = caps.MAX_VECTOR_VALUES * 4
# How many of the largest embeddings, 96 MiB, are collected at the same time.
MAX_ANSWERS = 8
# How long after the admission the admitting process may still enqueue a generation.
ENQUEUES_WITHIN_MS = 1_000
# Waits between attempts to cancel a generation in Redis: without that it runs on, and is charged.
RETRY_S = (0.5, 1, 2)


class Services:
    """The process's connections and caches; one instance, made by the first request (`Services.get`)."""

    _instance: ClassVar["Services | None"] = None
    _starting: ClassVar["asyncio.Task[Services] | None"] = None

    def __init__(self) -> None:
        self.commits = GroupCommit()
        self._redis = RedisServers()
        self.streams, shared = self._redis.streams, self._redis.shared
        self.turns = FairTurns()
        self.log_readers: Counter[int] = Counter()
        """The number of logs that are followed, by organization."""
        # A follower looks at the time once in a tick, so a tick is never longer than the keep-alive's
        # interval.
        tick_s = min(TICK_MS, settings.PING_MS or TICK_MS) / 1_000
        self.inboxes = Inboxes.of_streams(self.streams, self.turns, tick_s=tick_s)
        max_bytes = MAX_TICKET_BODIES * max(settings.MAX_BODY_BYTES, MEBIBYTE)
        self.tickets = Tickets(
            shared, settings.REDIS_KEY_PREFIX, ttl_ms=settings.TICKET_TTL_MS, max_bytes=max_bytes
        )
        self.queue = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
        self._messages = DedicatedConnection(self._redis.broker)
        have_queue = [redis is self._redis.broker for redis in self._redis.of_streams]
        servers = zip(self.streams, have_queue, strict=True)
        self._enqueue = ByServer([Batch(partial(self._enqueue_all, *each)) for each in servers])
        # Thousands of clients may leave at once: a connection for each would hold up all streams.
        self._cancellations = ByServer([Batch(partial(self._cancel_all, stream)) for stream in self.streams])
        self.states = ByteWindows(
            shared,
            f"{settings.REDIS_KEY_PREFIX}states:",
            period_ms=settings.STREAM_TTL_MS,
            max_bytes=MAX_STATES_BYTES,
        )
        """Of organizations."""
        self._full_stores: dict[int, CachedValue[bool]] = {}
        self.callers = CallerCache(settings.KEY_CACHE_MS)
        self._look_ups = Batch(self._look_up_all)
        self.catalog = CachedValue(lambda: self.commits.read(catalog.load))
        self.discounts = CachedValue(lambda: self.commits.read(prices.current_discounts))
        limits = RateLimits(shared, settings.REDIS_KEY_PREFIX, lease_ms=LEASE_MS, share=Batch)
        self.rates = Rates(limits, lambda generation_id: self.commits.read(reports.end_of, generation_id))
        self.open_generations = OpenGenerations(
            lambda: self.commits.read(reports.open_by_organization), settings.MAX_OPEN_GENERATIONS
        )
        self.queue_age = QueueAge(lambda: self.commits.read(reports.longest_waits), settings.MAX_QUEUE_AGE_MS)
        self.room = BodyRoom(settings.MAX_BODY_BYTES)
        self.test_room = BodyRoom(settings.MAX_BODY_BYTES, bodies=math.inf, bodies_each=1)
        """Without a bound for all: each organization has its own, and delays no other one with its tests."""
        self.answer_room = BodyRoom(MAX_ANSWER_BYTES, bodies=MAX_ANSWERS)
        """For answers that are collected before they are sent."""
        self.parser = BodyParser()
        self.counting_turns = FairRoom(1, 1, wait_s=WAIT_S, most_waiting_each=MOST_WAITING_EACH)
        """Requests that only count tokens use the parser one after the other, organizations in turn."""
        self.refused_bytes = RefusedBytes(settings.REFUSED_BODY_BYTES_PER_MINUTE)
        self.silence = Silence(self.commits, self.streams)
        self.is_closing = False
        """Set shortly before the process ends: streams that still run must end now."""
        self._background: set[asyncio.Task[Any]] = set()

    @classmethod
    async def get(cls) -> "Services":
        """Return the process's services, started; raises `StreamUnavailable` while Redis is away."""
        if cls._instance is None:
            # All callers share one attempt, which the cancellation of one does not end.
            cls._starting = cls._starting or asyncio.create_task(cls._start())
            return await asyncio.shield(cls._starting)
        return cls._instance

    @classmethod
    async def _start(cls) -> "Services":
        services = cls()
        try:
            await services.inboxes.start()
        except StreamUnavailable:
            # The next request makes everything again, so that nothing half started stays.
            await services.commits.close()
            raise
        finally:
            cls._starting = None
        shared, prefix = services._redis.shared, settings.REDIS_KEY_PREFIX
        for loop in (
            services.rates.renew,
            services.silence.look_for_workers,
            services.silence.ask_books,
            partial(attempts.share_forever, shared, prefix),
            partial(publish_forever, shared, prefix, "web", lambda: services.inboxes.open_count),
            partial(refused_requests.write_forever, services.commits),
        ):
            services.in_background(supervise(loop))
        services.in_background(services.parser.start())
        cls._instance = services
        return services

    async def model(self, caller: Caller, name: str) -> CatalogModel | None:
        """Return the model that is served to the caller by this name, or None. Raises `DatabaseUnavailable`.

        A project's own names come first: they must not change when the catalog gets another model.
        """
        name = caller.model_aliases.get(name, name)
        # A name that is unknown may be newer than the cached catalog; asking again has its own, shorter
        # limit.
        for max_age_s in (MAX_AGE_S, NEW_MODEL_S):
            if model := (await self.catalog.get(max_age_s)).get(name):
                return model
        return None

    async def has_full_store(self, organization_id: int) -> bool:
        """Return whether the database has no room for more responses of the organization."""
        if organization_id not in self._full_stores:
            self._full_stores[organization_id] = CachedValue(
                lambda: self.commits.read(response_store.is_full, organization_id)
            )
        return await self._full_stores[organization_id].get(FULL_STORE_S)

    @classmethod
    def end_streams(cls) -> None:
        """End every running stream with a terminal delta."""
        if cls._instance is not None:
            cls._instance.is_closing = True
            cls._instance.inboxes.wake_all()

    async def authenticate(self, headers: KeyHeaders, address: str) -> Caller:
        """Return the owner of the key in these headers.

        Raises `NotAuthenticated`, `TwoKeys`, or `TooManyFailedAttempts` for that IP address.
        """
        with attempts.counted(address):
            key = sent_key(headers)
            return await self.callers.authenticate(key, lambda key: self._look_up(key, address))

    async def _look_up(self, key: str, address: str) -> Caller:
        with attempts.permitted(address, key):
            return authentication.admitted(await self._look_ups(key))

    async def _look_up_all(self, keys: Sequence[str]) -> list[Caller | RefusedKey | None]:
        """Look up keys, each once for all requests that wait: a busy key has many when its entry expires."""
        found = await self.commits.read(authentication.look_up_all, set(keys))
        return [found.get(key) for key in keys]

    async def enqueue(
        self, entry: Entry, job: Job, state: bytes = b"", *, stores_response: bool = False
    ) -> None:
        """Hand an admitted generation to the workers, and keep its state; if this fails, withdraw the
        generation and raise `RedisError` or `StreamUnavailable`.

        `stores_response`: its response is stored in the database after its end, if it has a state.
        """
        generation_id = UUID(entry.generation_id)
        request = KeptRequest(generation_id, job, state, stores_response)
        try:
            await self._enqueue.of(generation_id)((entry, request))
        except (RedisError, StreamUnavailable):
            # A worker may have it although the reply was lost: then the client gets its answer.
            if await self._withdraw(generation_id):
                raise

    async def enqueue_again(self, entry: Entry, job: Job) -> None:
        """Enqueue an admitted generation if its request is not in Redis, because it never was or is lost.

        Raises `StreamUnavailable`, `RedisError` (by the queue) or `DatabaseUnavailable`.
        """
        generation_id = UUID(entry.generation_id)
        was_lost = await self.streams.of(generation_id).keep_again(generation_id, job)
        # The admitting process may be about to enqueue it, with the name of its inbox in the job.
        if was_lost and await self.commits.read(reports.is_waiting_since, ENQUEUES_WITHIN_MS, generation_id):
            await self._messages.call(*self.queue.enqueueing([entry]))

    async def _enqueue_all(
        self, stream: DeltaStream, has_queue: bool, admitted: Sequence[tuple[Entry, KeptRequest]]
    ) -> list[None]:
        """Hand generations of one server of streams to the workers."""
        requests = [request for _, request in admitted]
        enqueueing = self.queue.enqueueing([entry for entry, _ in admitted])
        # Jobs and states before the messages: a worker that pops a message must find its job.
        if has_queue:  # the usual case: one round trip for all
            await stream.keep(requests, enqueueing=enqueueing)
        else:
            await stream.keep(requests)
            await self._messages.call(*enqueueing)
        return [None] * len(admitted)

    def abandon(self, generation_id: UUID) -> None:
        """Tell the worker, in the background, that the generation's client has left."""
        self.in_background(self._cancel(generation_id, Cancellation.CLIENT_LEFT))

    def give_up(self, generation_id: UUID) -> None:
        """Stop a generation, in the background, whose client does not know its id: nobody can fetch it."""
        self.in_background(self._cancel(generation_id, Cancellation.ASKED))

    def forget(self, generation_id: UUID) -> None:
        """Delete, in the background, what Redis keeps of a generation that has ended."""
        self.in_background(self._forget_stream(generation_id))

    async def cancel(self, generation_id: UUID) -> None:
        """Tell the worker to stop the generation, before this call returns. Raises `StreamUnavailable`."""
        stream = self.streams.of(generation_id)
        await stream.cancel(generation_id, Cancellation.ASKED, ttl_ms=settings.CANCELLED_TTL_MS)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a task that outlives its request, and keep a reference to it until it ends."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        # The request that waits for the task answers its client with errors of these kinds.
        expected = AccountsError | UsageError | StreamUnavailable | RedisError
        if error is not None and not isinstance(error, expected):
            log.error("%s failed", task.get_coro(), exc_info=error)

    async def _cancel(self, generation_id: UUID, why: Cancellation) -> None:
        cancel = partial(self._cancellations.of(generation_id), (generation_id, why))
        await _retry(cancel, f"could not cancel {generation_id.hex}, which runs on")

    async def _cancel_all(
        self, stream: DeltaStream, cancellations: Sequence[tuple[UUID, Cancellation]]
    ) -> list[None]:
        await stream.cancel_all(cancellations, ttl_ms=settings.CANCELLED_TTL_MS)
        return [None] * len(cancellations)

    async def _forget_stream(self, generation_id: UUID) -> None:
        drop = partial(self.streams.of(generation_id).forget, {generation_id: 0})
        await _retry(drop, f"the request of {generation_id.hex} may stay in Redis")

    async def expire(self, generation_id: UUID) -> bool:
        """Void a generation whose time in the queue is over; return False if a worker or reaper has it."""
        try:
            await self._void(generation_id, NOT_STARTED.code or "", NOT_STARTED.message)
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
            self.give_up(generation_id)  # in case it is queued after all
        return True

    async def _void(self, generation_id: UUID, code: str, message: str) -> None:
        log_end(await self.commits.write(ledger.withdraw, ledger.Withdrawal(generation_id, code, message)))
        self.forget(generation_id)  # else its prompt would stay for a day


async def _retry(attempt: Callable[[], Awaitable[object]], consequence: str) -> None:
    try:
        await retry(attempt, RETRY_S, (StreamUnavailable,))
    except StreamUnavailable as error:
        log.warning("%s: %s", consequence, error)
