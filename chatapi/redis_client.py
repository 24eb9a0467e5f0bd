"""Connections to Redis that never repeat a command by themselves and never wait for ever."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis import Redis as ThreadRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry as ThreadRetry

from accounts import loop_clock

REPLY_TIMEOUT_S = 3.0
"""How long a command may take, a blocking read included: a Redis that is frozen is as good as none."""


class _NeverAgain(Retry):
    """A lost reply of XADD would be written twice."""

    def __init__(self) -> None:
        super().__init__(NoBackoff(), 0)

    async def call_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        """Call once; raises `RedisError` also where uvloop raises RuntimeError, on a connection that was
        reset.
        """
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
        protocol=3,  # `DedicatedConnection` passes on what this one says
    )
    return Redis.from_pool(pool)


def connect_from_thread(url: str) -> ThreadRedis:
    """A client for a thread that no event loop is to keep waiting."""
    retry = ThreadRetry(NoBackoff(), 0)
    return ThreadRedis.from_url(
        url, socket_timeout=REPLY_TIMEOUT_S, socket_connect_timeout=2, retry=retry, health_check_interval=0
    )


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Raises `RedisError` when what is inside takes too long."""
    # Not `socket_timeout`: with it redis-py sends by asyncio.wait_for, which on Python 3.11 swallows
    # cancellations.
    try:
        async with loop_clock.timeout(REPLY_TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise RedisTimeoutError("Redis does not answer") from error


Command = Sequence[bytes | str | int]


class DedicatedConnection:
    """One connection of a client's, kept for commands that are sent hundreds of times a second.

    A client's own way, through its pool, retries and metrics, costs as much again as the command. One round
    trip at a time; after an error the connection is made anew. It is closed with its client.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._connection: AbstractConnection | None = None
        self._turn = asyncio.Lock()

    async def call(self, *command: bytes | str | int) -> Any:
        """The command's reply as RESP3 has it (bytes, ints, lists, dicts); raises `RedisError`."""
        [reply] = await self.calls([command])
        return reply

    async def calls(self, commands: Sequence[Command]) -> list[Any]:
        """The replies of commands that go together; raises `RedisError`, also when one of them is refused and
        the others are not.
        """
        async with self._turn, in_time():
            try:
                replies = await self._exchange(commands)
            except RuntimeError as error:  # uvloop's, on a connection that was reset
                raise RedisConnectionError(str(error)) from error
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        connection = await self._connected()
        packed = connection.pack_commands(commands)
        await connection.send_packed_command(packed, check_health=False)
        return [await _reply(connection) for _ in commands]

    async def _connected(self) -> AbstractConnection:
        """The connection; one that Redis has closed meanwhile is left behind, which no command is lost by."""
        if self._connection is None:
            self._connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        # redis-py's own question, `can_read_destructive`, is a read with a timeout of nothing, and as dear as
        # the command.
        reader = self._connection._reader
        if reader is not None and (reader.at_eof() or reader.exception()):
            await self._connection.disconnect(nowait=True)
        return self._connection


async def _reply(connection: AbstractConnection) -> Any:
    """The next reply, a refusal too: those of the other commands are to be read."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
