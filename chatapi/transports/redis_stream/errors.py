"""Turns the failures of Redis into the errors of a delta stream."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from redis.exceptions import RedisError

from accounts.redis_time_limit import in_time as redis_in_time
from chatapi.delta_stream import StreamUnavailable


@contextmanager
def redis_errors() -> Iterator[None]:
    """Raise each `RedisError` of the block as `StreamUnavailable`."""
    try:
        yield
    except RedisError as error:
        raise StreamUnavailable(str(error)) from error


@asynccontextmanager
async def in_time(timeout_s: float | None = None) -> AsyncIterator[None]:
    """Raise each failure of `accounts.redis_time_limit.in_time` as `StreamUnavailable`."""
    with redis_errors():
        async with redis_in_time(timeout_s):
            yield
