"""Connections to Redis that never repeat a command by themselves and never wait for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

REPLY_TIMEOUT_S = 3.0
"""How long a command may take, a blocking read included: a Redis that is frozen is as good as none."""


class _NeverAgain(Retry):
    """A lost reply of XADD would be written twice."""

    def __init__(self) -> None:
        super().__init__(NoBackoff(), 0)

    async def call_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        """Call once; raises `RedisError` also where uvloop raises RuntimeError, on a connection that was reset."""
        try:
            return await super().call_with_retry(*args, **kwargs)
        except RuntimeError as error:
            raise RedisConnectionError(str(error)) from error


def connect(url: str, *, max_connections: int = 64) -> Redis:
    """A client that never retries by itself: a lost reply of XADD would write twice."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=5,
        socket_timeout=None,
        socket_connect_timeout=2,
        retry=_NeverAgain(),
        health_check_interval=0,
        protocol=3,  # `Line` passes on what this one says
    )
    return Redis.from_pool(pool)


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Raises `RedisError` when what is inside takes too long."""
    # Not `socket_timeout`: with it redis-py sends by asyncio.wait_for, which on Python 3.11 swallows cancellations.
    try:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise RedisTimeoutError("Redis does not answer") from error


class Line:
    """One connection of a client's, kept for a command that is sent hundreds of times a second.

    A client's own way, through its pool, retries and metrics, costs as much again as the command. One command at a time; after an
    error the connection is made anew. It is closed with its client.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._connection: AbstractConnection | None = None
        self._turn = asyncio.Lock()

    async def call(self, *command: bytes | str | int) -> Any:
        """The command's reply as RESP3 has it (bytes, ints, lists, dicts); raises `RedisError`."""
        async with self._turn, in_time():
            try:
                if self._connection is None:
                    self._connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
                await self._connection.send_command(*command, check_health=False)
                return await self._connection.read_response()
            except RuntimeError as error:  # uvloop's, on a connection that was reset
                raise RedisConnectionError(str(error)) from error
