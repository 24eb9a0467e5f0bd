"""The connections of a process to its Redis servers and to its servers of streams."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from django.conf import settings
from redis.asyncio import Redis
from redis.exceptions import RedisError

from accounts.redis_time_limit import in_time
from accounts.redis_urls import all_redis_urls, shared_url, stream_urls
from chatapi.delta_stream import (
    ByServer,
    DeltaStream,
    KeepAndEnqueue,
    KeptRequest,
    StreamServers,
    StreamUnavailable,
)
from chatapi.redis_client import Command, DedicatedConnection, connect
from chatapi.transports import stream_of


class RedisServers:
    """The clients of all servers: one for each URL, even if it serves several purposes."""

    def __init__(self) -> None:
        clients = {url: connect(url) for url in all_redis_urls()}
        self._clients = clients.values()
        self.broker = clients[settings.BROKER_URL]
        self.shared = clients[shared_url()]
        """The client of the server with the data that all processes share, such as rate limits
        (`accounts/redis_urls.py`).
        """
        streams = [stream_of(url, clients.__getitem__) for url in stream_urls()]
        self.streams = StreamServers(streams)
        self.keep_and_enqueue: ByServer[KeepAndEnqueue] = ByServer(
            [
                stream.keep_and_enqueue(settings.BROKER_URL) or partial(self._keep_and_enqueue, stream)
                for stream in streams
            ]
        )
        self._messages = DedicatedConnection(self.broker)

    async def _keep_and_enqueue(
        self, stream: DeltaStream, requests: Sequence[KeptRequest], enqueueing: Command
    ) -> None:
        # Jobs and states before the messages: a worker that pops a message must find its job.
        await stream.keep(requests)
        await self.enqueue(enqueueing)

    async def enqueue(self, enqueueing: Command) -> None:
        """Execute a command of the queue. Raises `StreamUnavailable` if the broker can't be reached."""
        try:
            await self._messages.call(*enqueueing)
        except RedisError as error:
            raise StreamUnavailable(str(error)) from error

    async def close(self) -> None:
        for each in (*self.streams, *self._clients):
            await each.aclose()


@asynccontextmanager
async def stream_servers() -> AsyncIterator[StreamServers]:
    """Yield the servers of streams for a moment: each has one connection, which its first use opens."""
    streams = [stream_of(url, partial(connect, max_connections=1)) for url in stream_urls()]
    try:
        yield StreamServers(streams)
    finally:
        await _close(streams)


async def servers_away(within_s: float) -> dict[str, Exception]:
    """Return, by URL, why the broker and servers of streams do not answer; those that do are left out.

    All are asked at the same time.
    """
    away: dict[str, Exception] = {}

    async def ask(url: str, pinging: Awaitable[None]) -> None:
        try:
            await pinging
        except (RedisError, StreamUnavailable) as error:
            away[url] = error

    async with stream_servers() as servers:
        pings = {url: stream.ping(within_s) for url, stream in zip(stream_urls(), servers, strict=True)}
        if settings.BROKER_URL not in pings:
            pings[settings.BROKER_URL] = _ping_broker(within_s)
        await asyncio.gather(*(ask(url, ping) for url, ping in pings.items()))
    return away


async def _ping_broker(within_s: float) -> None:
    redis = connect(settings.BROKER_URL, max_connections=1)
    try:
        async with in_time(within_s):
            await redis.ping()
    finally:
        await _close([redis])


async def _close(parts: Iterable[DeltaStream | Redis]) -> None:
    """Close the parts. A server that keeps its end of a connection open has answered all the same."""
    await asyncio.gather(*(each.aclose() for each in parts), return_exceptions=True)
