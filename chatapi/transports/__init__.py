"""The transports of delta streams: all other code knows only `DeltaStream`."""

from collections.abc import Callable
from typing import Final

from django.conf import settings
from redis.asyncio import Redis

from accounts.redis_urls import REDIS_SCHEMES, SENTINEL_SCHEMES
from chatapi.delta_stream import DeltaStream
from chatapi.transports.redis_stream import RedisStream

RedisOf = Callable[[str], Redis]
"""Returns the process's client of the Redis with this URL, which may serve other purposes, too."""


def _redis(url: str, redis_of: RedisOf) -> DeltaStream:
    return RedisStream(
        redis_of(url),
        settings.REDIS_KEY_PREFIX,
        url=url,
        ttl_ms=settings.STREAM_TTL_MS,
        queue_ttl_ms=settings.QUEUE_TTL_MS,
    )


# By the scheme of a URL of `CHATAPI_STREAMS_URL`. All but Redis ignore the second argument.
TRANSPORTS: Final[dict[str, Callable[[str, RedisOf], DeltaStream]]] = {
    **dict.fromkeys((*REDIS_SCHEMES, *SENTINEL_SCHEMES), _redis),
}


def stream_of(url: str, redis_of: RedisOf) -> DeltaStream:
    """Return the delta streams of the server with this URL, one of `CHATAPI_STREAMS_URL`."""
    return TRANSPORTS[url.partition("://")[0]](url, redis_of)
