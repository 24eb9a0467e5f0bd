"""Chooses the transport of delta streams; all other code knows only `DeltaStream`."""

from collections.abc import Callable

from django.conf import settings
from redis.asyncio import Redis

from chatapi.delta_stream import DeltaStream
from chatapi.redis_stream import RedisStream


def stream_of(url: str, redis_of: Callable[[str], Redis]) -> DeltaStream:
    """Return the delta streams of the server with this URL, one of `CHATAPI_STREAMS_URL`.

    `redis_of` returns the caller's Redis client of a URL, which may serve other purposes, too: the caller
    closes it. A transport other than Redis does not call it.
    """
    return RedisStream(
        redis_of(url),
        settings.REDIS_KEY_PREFIX,
        url=url,
        ttl_ms=settings.STREAM_TTL_MS,
        queue_ttl_ms=settings.QUEUE_TTL_MS,
    )
