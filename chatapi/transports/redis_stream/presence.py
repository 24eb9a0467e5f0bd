"""Shows which web processes live.

    web:<name>               a key that each process renews every second; it expires after three
    channel alive:<name>     a subscription that each process holds

1. A process that renews its key lives.
2. A process that is only subscribed is late: its thread does not run, or a full Redis refuses the key. When a
   process dies, the kernel closes its connection.
3. A process with neither is dead. So is one that has been late for very long: a machine that loses its power
   closes no connection.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.client import PubSub
from redis.exceptions import ResponseError

from chatapi.delta_stream import Signs, StreamUnavailable
from chatapi.redis_client import connect_from_thread
from chatapi.transports.redis_stream.errors import in_time, redis_errors

log = logging.getLogger(__name__)

# How long the inbox of a dead web process is kept; a living process renews it.
INBOX_TTL_MS = 60_000


async def signs(redis: AsyncRedis, prefix: str, names: Sequence[str]) -> Signs:
    """Return the signs of life of these processes. Raises `StreamUnavailable`."""
    if not names:
        return Signs(set(), set())
    async with in_time(), redis.pipeline(transaction=False) as pipe:
        pipe.mget([f"{prefix}web:{name}" for name in names])
        pipe.pubsub_numsub(*(f"{prefix}alive:{name}" for name in names))
        values, listeners = await pipe.execute()
    heard = {name for name, value in zip(names, values, strict=True) if value is not None}
    return Signs(heard, {name for name, (_, count) in zip(names, listeners, strict=True) if count})


class RedisPresence:
    """A `Presence` in Redis. Its thread also renews the inbox."""

    RENEW_S = 1.0
    TTL_MS = 3_000
    RETRY_S = 0.2
    LOOK_S = 0.25
    """How soon the thread notices that it should stop."""

    def __init__(
        self,
        url: str,
        prefix: str,
        name: str,
        *,
        read_up_to: Callable[[], bytes],
        is_unknown: Callable[[], None],
    ) -> None:
        """`read_up_to` and `is_unknown`: see `DeltaStream.presence`."""
        self._url = url
        self._web, self._inbox, self._alive = (f"{prefix}{kind}:{name}" for kind in ("web", "inbox", "alive"))
        self._read_up_to = read_up_to
        self._is_unknown = is_unknown
        self._stopping = threading.Event()
        self._begun: Future[None] = Future()

    async def start(self) -> None:
        threading.Thread(target=self._run, name="presence", daemon=True).start()
        await asyncio.wrap_future(self._begun)

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with (
                    redis_errors(),
                    connect_from_thread(self._url) as redis,
                    redis.pubsub(ignore_subscribe_messages=True) as channel,
                ):
                    channel.subscribe(self._alive)
                    self._keep_renewing(redis, channel)
            except Exception as error:
                if not self._begun.done():
                    self._begun.set_exception(error)
                    return
                if isinstance(error, StreamUnavailable):
                    log.warning("presence: %s", error)
                else:
                    log.exception("presence failed")
                # Retry soon: a Redis that has lost its data must know this process before a worker misses it
                # twice.
                self._stopping.wait(self.RETRY_S)

    def _keep_renewing(self, redis: Redis, channel: PubSub) -> None:
        while not self._stopping.is_set():
            wait_s = self.RENEW_S
            try:
                self._renew(redis)
            except ResponseError as error:  # Redis is full; the subscription still shows life
                if not self._begun.done():
                    raise
                log.warning("presence: %s", error)
                wait_s = self.RETRY_S
            if not self._begun.done():
                self._begun.set_result(None)
            # The channel has no messages, but reading raises `RedisError` at once if the connection is lost.
            until = time.monotonic() + wait_s
            while not self._stopping.is_set() and (left_s := until - time.monotonic()) > 0:
                channel.get_message(timeout=min(left_s, self.LOOK_S))

    def _renew(self, redis: Redis) -> None:
        # SET only if necessary: a full Redis refuses it.
        if not redis.pexpire(self._web, self.TTL_MS):
            redis.set(self._web, b"1", px=self.TTL_MS)
            self._is_unknown()
        with redis.pipeline(transaction=False) as pipe:
            if read_up_to := self._read_up_to():
                pipe.xtrim(self._inbox, minid=read_up_to, approximate=False)
                pipe.xdel(self._inbox, read_up_to)
            pipe.pexpire(self._inbox, INBOX_TTL_MS)
            pipe.execute()
