"""The connections, caches and background tasks of a web process, shared by all its requests."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar

from django.conf import settings
from redis.exceptions import RedisError

from accounts import authentication
from accounts.authentication import Caller, CallerCache, RefusedKey
from accounts.errors import AccountsError
from accounts.failed_attempts import SHARE_S, attempts
from accounts.rate_limits import RUNNING_LEASE_MS, RateLimits
from chatapi import catalog, errors, response_store
from chatapi.catalog import CatalogModel
from chatapi.concurrency import MAX_AGE_S, Batch, CachedValue, repeat, supervise
from chatapi.delta_stream import StreamUnavailable
from chatapi.fair_room import FairRoom
from chatapi.fair_turns import FairTurns, Senders
from chatapi.process_metrics import publish_forever
from chatapi.redis_servers import RedisServers
from chatapi.web.body_parser import BodyParser
from chatapi.web.body_room import MOST_WAITING_EACH, WAIT_S, BodyRoom
from chatapi.web.byte_windows import ByteWindows
from chatapi.web.cancellations import Cancellations
from chatapi.web.following.inboxes import Inboxes
from chatapi.web.following.silence import Silence
from chatapi.web.generation_queue import GenerationQueue
from chatapi.web.open_generations import OpenGenerations
from chatapi.web.queue_age import QueueAge
from chatapi.web.rates import Rates
from chatapi.web.refused_bytes import RefusedBytes
from chatapi.web.tickets import Tickets
from chatapi.wire import caps
from usage.books import prices, reports
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError
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


class Services:
    """The process's connections and caches; one instance, made by the first request (`Services.get`)."""

    _instance: ClassVar["Services | None"] = None
    _starting: ClassVar["asyncio.Task[Services] | None"] = None

    def __init__(self) -> None:
        self.commits = GroupCommit()
        self._redis = RedisServers()
        self.streams, shared = self._redis.streams, self._redis.shared
        self.turns = FairTurns()
        self.senders = Senders()
        # A follower looks at the time once in a tick, so a tick is never longer than the keep-alive's
        # interval.
        tick_s = min(TICK_MS, settings.PING_MS or TICK_MS) / 1_000
        self.inboxes = Inboxes.of_streams(self.streams, self.turns, tick_s=tick_s)
        max_bytes = MAX_TICKET_BODIES * max(settings.MAX_BODY_BYTES, MEBIBYTE)
        self.tickets = Tickets(
            shared, settings.REDIS_KEY_PREFIX, ttl_ms=settings.TICKET_TTL_MS, max_bytes=max_bytes
        )
        self._background: set[asyncio.Task[Any]] = set()
        self.cancellations = Cancellations(self.streams, self.in_background)
        self.queue = GenerationQueue(self._redis, self.commits, self.cancellations, self.in_background)
        self.states = ByteWindows(
            shared,
            f"{settings.REDIS_KEY_PREFIX}states:",
            period_ms=settings.STREAM_TTL_MS,
            max_bytes=MAX_STATES_BYTES,
        )
        """The bound on the bytes of states that an organization stores in a period."""
        self._full_stores: dict[int, CachedValue[bool]] = {}
        self.callers = CallerCache(settings.KEY_CACHE_MS)
        self._look_ups = Batch(self._look_up_all)
        self.catalog = CachedValue(lambda: self.commits.read(catalog.load))
        self.discounts = CachedValue(lambda: self.commits.read(prices.current_discounts))
        limits = RateLimits(shared, settings.REDIS_KEY_PREFIX, lease_ms=RUNNING_LEASE_MS, share=Batch)
        self.rates = Rates(limits, lambda run: self.commits.read(reports.end_of, run), self.in_background)
        self.open_generations = OpenGenerations(
            lambda: self.commits.read(reports.open_by_organization), settings.MAX_OPEN_GENERATIONS
        )
        self.queue_age = QueueAge(lambda: self.commits.read(reports.longest_waits), settings.MAX_QUEUE_AGE_MS)
        self.room = BodyRoom(settings.MAX_BODY_BYTES)
        self.test_room = BodyRoom(settings.MAX_BODY_BYTES, bodies=math.inf, bodies_each=1)
        """The room for requests of test keys: one body for each organization, which delays no other one."""
        self.answer_room = BodyRoom(MAX_ANSWER_BYTES, bodies=MAX_ANSWERS)
        """The room for answers that are collected before they are sent."""
        self.parser = BodyParser()
        self.counting_turns = FairRoom(1, 1, wait_s=WAIT_S, most_waiting_each=MOST_WAITING_EACH)
        """The turns of requests that only count tokens: one at a time, organizations in turn."""
        self.refused_bytes = RefusedBytes(settings.REFUSED_BODY_BYTES_PER_MINUTE)
        self.silence = Silence(self.commits, self.streams)
        self.is_closing = False
        """Set shortly before the process ends: streams that still run must end now."""

    @classmethod
    async def get(cls) -> "Services":
        """Return the process's services, started; raises `StreamUnavailable` while Redis is away."""
        if cls._instance is None:
            # All callers share one attempt; cancelling one of them does not end it.
            cls._starting = cls._starting or asyncio.create_task(cls._start())
            return await asyncio.shield(cls._starting)
        return cls._instance

    @classmethod
    async def _start(cls) -> "Services":
        try:
            services = cls()
            try:
                await services.inboxes.start()
            except StreamUnavailable:
                # Leave nothing half started: the next request makes everything again.
                await services.inboxes.stop()
                await services.commits.close()
                raise
        finally:
            cls._starting = None
        shared, prefix = services._redis.shared, settings.REDIS_KEY_PREFIX
        share = partial(attempts.share, shared, prefix)
        for loop in (
            services.rates.renew,
            services.silence.look_for_workers,
            services.silence.ask_books,
            partial(repeat, SHARE_S, "failed attempts are not shared", share, expected=(RedisError,)),
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

    async def authenticate(self, sent_key: Callable[[], str], address: str) -> Caller:
        """Return the owner of the key that `sent_key` returns.

        Raises `NotAuthenticated`, `TwoKeys`, or `TooManyFailedAttempts` or `IPNotAllowed` for that IP.
        """
        with attempts.counted(address):
            key = sent_key()
            caller = await self.callers.authenticate(key, lambda key: self._look_up(key, address))
        # Behind the cache, whose callers may have come from another address.
        caller.require_ip(address)
        return caller

    async def _look_up(self, key: str, address: str) -> Caller:
        with attempts.permitted(address, key):
            return authentication.admitted(await self._look_ups(key))

    async def _look_up_all(self, keys: Sequence[str]) -> list[Caller | RefusedKey | None]:
        """Look up keys, each once for all requests that wait: a busy key has many when its entry expires."""
        found = await self.commits.read(authentication.look_up_all, set(keys))
        return [found.get(key) for key in keys]

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
        expected = errors.APIError | AccountsError | UsageError | StreamUnavailable | RedisError
        if error is not None and not isinstance(error, expected):
            log.error("%s failed", task.get_coro(), exc_info=error)
