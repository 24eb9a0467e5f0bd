"""The errors of this room, in place of those of Redis: a reader of the streams does not know their transport.

StreamUnavailable   the transport can't be reached now; the next call may succeed
StreamLost          deltas that should be there are lost, or can't be read; no call brings them back
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from redis.exceptions import RedisError

from accounts.redis_time_limit import in_time as redis_in_time


class StreamUnavailable(Exception):
    """Redis can't be reached, does not answer in time, or refuses the command, as a full one does."""


class StreamLost(Exception):
    """Deltas that should be there are missing or unreadable, or Redis was away for too long."""


@contextmanager
def redis_errors() -> Iterator[None]:
    """Raise each `RedisError` of the block as `StreamUnavailable`."""
    try:
        yield
    except RedisError as error:
        raise StreamUnavailable(str(error)) from error


@asynccontextmanager
async def in_time(timeout_s: float | None = None) -> AsyncIterator[None]:
    """Raise `StreamUnavailable` if the block takes longer, by default `REPLY_TIMEOUT_S`, or can't reach
    Redis.
    """
    with redis_errors():
        async with redis_in_time(timeout_s):
            yield
