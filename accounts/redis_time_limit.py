"""A time limit for commands to Redis, and its failures as one error."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from accounts import loop_clock
from accounts.loop_clock import REPLY_TIMEOUT_S


@asynccontextmanager
async def in_time(timeout_s: float | None = None) -> AsyncIterator[None]:
    """Raise `RedisError` if the block takes longer, by default `REPLY_TIMEOUT_S`, or can't reach Redis."""
    # Not `socket_timeout`: with it redis-py sends by asyncio.wait_for, which swallows cancellations on
    # Python 3.11.
    try:
        async with loop_clock.timeout(REPLY_TIMEOUT_S if timeout_s is None else timeout_s):
            yield
    except TimeoutError as error:
        raise RedisTimeoutError("Redis does not answer") from error
    except OSError as error:
        raise RedisConnectionError(str(error)) from error
