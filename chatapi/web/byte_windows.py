"""Bounds the bytes that each owner puts into Redis in a fixed period of the clock."""

import time
from typing import cast

from redis.asyncio import Redis

from accounts.redis_time_limit import in_time


class WindowFull(Exception):
    """The owner's bytes have no room until `retry_after_ms` have passed."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"try again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class ByteWindows:
    """Counters in Redis of the bytes that each owner has put there."""

    def __init__(self, redis: Redis, prefix: str, *, period_ms: int, max_bytes: int) -> None:
        """`prefix` begins the counters' keys; `max_bytes` bounds one owner's bytes in each period."""
        self.max_bytes = max_bytes
        self._redis = redis
        self._prefix = prefix
        self._period_ms = period_ms

    async def take(self, owner: int, n_bytes: int) -> str:
        """Count the bytes and return the key of their counter; raises `WindowFull` or `RedisError`."""
        window, begun_ms_ago = divmod(time.time_ns() // 1_000_000, self._period_ms)
        counter = f"{self._prefix}{owner}:{window}"
        async with in_time(), self._redis.pipeline(transaction=True) as pipe:
            pipe.incrby(counter, n_bytes)
            pipe.pexpire(counter, 2 * self._period_ms)  # longer than the bytes that it counts are kept
            total_bytes, _ = await pipe.execute()
        if cast(int, total_bytes) > self.max_bytes:
            await self.release(counter, n_bytes)
            raise WindowFull(self._period_ms - begun_ms_ago)
        return counter

    async def release(self, counter: str, n_bytes: int) -> None:
        """Take the bytes off their counter. Raises `RedisError`."""
        async with in_time(), self._redis.pipeline(transaction=True) as pipe:
            pipe.decrby(counter, n_bytes)
            pipe.pexpire(counter, 2 * self._period_ms)  # if Redis has lost it, DECRBY has made a new one
            await pipe.execute()
