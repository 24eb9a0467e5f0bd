"""The connections of a process to all its Redis servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from django.conf import settings
from redis.asyncio import Redis

from accounts.redis_urls import all_urls, shared_url, stream_urls
from chatapi.delta_stream import DeltaStream, StreamServers
from chatapi.redis_client import connect


class RedisServers:
    """A client for each server, which is one client where two purposes have the same URL."""

    def __init__(self) -> None:
        clients = {url: connect(url) for url in all_urls()}
        self._clients = clients.values()
        self.broker = clients[settings.BROKER_URL]
        self.shared = clients[shared_url()]
        """Has what all processes share, such as rate limits (`accounts/redis_urls.py`)."""
        self.of_streams = [clients[url] for url in stream_urls()]
        """In the order of their numbers."""
        self.streams = StreamServers([_stream(redis) for redis in self.of_streams])

    async def close(self) -> None:
        for redis in self._clients:
            await redis.aclose()


@asynccontextmanager
async def stream_servers() -> AsyncIterator[StreamServers]:
    """Yield the servers of streams for a moment: each has one connection, which its first use opens."""
    clients = [connect(url, max_connections=1) for url in stream_urls()]
    try:
        yield StreamServers([_stream(redis) for redis in clients])
    finally:
        await asyncio.gather(*(redis.aclose() for redis in clients))


def _stream(redis: Redis) -> DeltaStream:
    return DeltaStream(redis, settings.REDIS_KEY_PREFIX, ttl_ms=settings.STREAM_TTL_MS)
