"""The time limit of commands to Redis, whose failures are all `RedisError`.

redis-py raises `RedisError` for each failure to resolve, connect, encrypt, send and read. Two others are
left: the time limit's own, and uvloop's `RuntimeError` for a write to a connection that was reset a moment
ago. So every command of an asynchronous client is sent within `in_time`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from accounts import loop_clock
from accounts.loop_clock import REPLY_TIMEOUT_S

_UVLOOP_CLOSED = "the handler is closed"


@asynccontextmanager
async def in_time(timeout_s: float | None = None) -> AsyncIterator[None]:
    """Raise `RedisError` if Redis takes longer than that (default: `REPLY_TIMEOUT_S`), or is out of reach."""
    # Not `socket_timeout`: with it redis-py sends by asyncio.wait_for, which swallows cancellations on
    # Python 3.11.
    try:
        async with loop_clock.timeout(REPLY_TIMEOUT_S if timeout_s is None else timeout_s):
            yield
    except TimeoutError as error:
        raise RedisTimeoutError("Redis does not answer") from error
    except RuntimeError as error:
        if _UVLOOP_CLOSED not in str(error):
            raise  # a bug, which must not look like a Redis that is away
        raise RedisConnectionError(str(error)) from error
