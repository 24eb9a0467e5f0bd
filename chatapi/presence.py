"""Which web processes live: each says so every second, and keeps a connection to Redis that its death closes.

    web:<name>               there while the process has said so lately
    channel alive:<name>     it subscribes to this

The kernel closes the connection of a process that has died, however it died. One that is only late (its event
loop is blocked, or it is stopped) keeps it, though it says nothing. So it is dead that neither says anything
nor is connected; and one that has been connected without a word for very long, as it would be whose machine
has lost its power, is taken for dead, too.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.client import PubSub
from redis.exceptions import RedisError, ResponseError

from chatapi.redis_client import connect_from_thread, in_time

log = logging.getLogger(__name__)

INBOX_TTL_MS = 60_000
"""How long an inbox lives whose web process is dead; a living one prolongs it all the time."""


class Signs(NamedTuple):
    """What Redis knows of some web processes, by their names."""

    heard: set[str]
    """They have said lately that they live."""
    connected: set[str]


async def signs(redis: AsyncRedis, prefix: str, names: Sequence[str]) -> Signs:
    """What Redis knows of these; raises `RedisError`."""
    if not names:
        return Signs(set(), set())
    async with in_time(), redis.pipeline(transaction=False) as pipe:
        pipe.mget([f"{prefix}web:{name}" for name in names])
        pipe.pubsub_numsub(*(_channel(prefix, name) for name in names))
        values, listeners = await pipe.execute()
    heard = {name for name, value in zip(names, values, strict=True) if value is not None}
    return Signs(heard, {name for name, (_, count) in zip(names, listeners, strict=True) if count})


class Presence:
    """This web process's, kept by a thread of its own: a blocked event loop does not stop it.

    It also trims what the process has read from its inbox, and keeps the inbox itself.
    """

    SAY_S = 1.0
    ABSENT_MS = 3_000
    RETRY_S = 0.2
    LOOK_S = 0.25
    """How soon it notices that it is to stop."""

    def __init__(
        self,
        url: str,
        prefix: str,
        name: str,
        *,
        read_up_to: Callable[[], bytes],
        is_unknown: Callable[[], None],
    ) -> None:
        """`read_up_to`: which entry of the inbox was read last. `is_unknown` is called in the thread when
        Redis did not know this process.

        It may have lost the inbox, too: `read_up_to` must answer nothing until the reader has begun anew.
        """
        self._url = url
        self._web, self._inbox, self._alive = (
            f"{prefix}web:{name}",
            f"{prefix}inbox:{name}",
            _channel(prefix, name),
        )
        self._read_up_to = read_up_to
        self._is_unknown = is_unknown
        self._stopping = threading.Event()
        self._begun: Future[None] = Future()

    async def start(self) -> None:
        """Return when Redis knows this process; raises `RedisError` when Redis is not there."""
        threading.Thread(target=self._run, name="presence", daemon=True).start()
        await asyncio.wrap_future(self._begun)

    def stop(self) -> None:
        """Say nothing more, and leave."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with (
                    connect_from_thread(self._url) as redis,
                    redis.pubsub(ignore_subscribe_messages=True) as channel,
                ):
                    channel.subscribe(self._alive)
                    self._say_again_and_again(redis, channel)
            except Exception as error:
                if not self._begun.done():
                    self._begun.set_exception(error)
                    return
                if isinstance(error, RedisError | OSError):
                    log.warning("presence: %s", error)
                else:
                    log.exception("presence failed")
                # A Redis that has lost its data must hear of us before a worker misses us twice.
                self._stopping.wait(self.RETRY_S)

    def _say_again_and_again(self, redis: Redis, channel: PubSub) -> None:
        while not self._stopping.is_set():
            wait_s = self.SAY_S
            try:
                self._say(redis)
            except ResponseError as error:  # as a Redis that is full: the connection tells that we live
                if not self._begun.done():
                    raise
                log.warning("presence: %s", error)
                wait_s = self.RETRY_S
            if not self._begun.done():
                self._begun.set_result(None)
            self._listen(channel, time.monotonic() + wait_s)

    def _say(self, redis: Redis) -> None:
        # Not SET at once: a Redis that is full refuses it.
        if not redis.pexpire(self._web, self.ABSENT_MS):
            redis.set(self._web, b"1", px=self.ABSENT_MS)
            self._is_unknown()
        with redis.pipeline(transaction=False) as pipe:
            if read_up_to := self._read_up_to():
                pipe.xtrim(self._inbox, minid=read_up_to, approximate=False)
                pipe.xdel(self._inbox, read_up_to)
            pipe.pexpire(self._inbox, INBOX_TTL_MS)
            pipe.execute()

    def _listen(self, channel: PubSub, until: float) -> None:
        """Wait; nobody publishes here, but it raises `RedisError` at once when the connection is lost."""
        while not self._stopping.is_set() and (left_s := until - time.monotonic()) > 0:
            channel.get_message(timeout=min(left_s, self.LOOK_S))


def _channel(prefix: str, name: str) -> str:
    return f"{prefix}alive:{name}"
