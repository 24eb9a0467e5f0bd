"""Connections to Redis that never retry a command by themselves.

`DedicatedConnection` bounds its waits; the commands of `connect`'s clients are sent within `in_time`.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis as ThreadRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry as ThreadRetry

from accounts.loop_clock import REPLY_TIMEOUT_S
from accounts.redis_sentinel import pool_options, thread_options
from accounts.redis_time_limit import in_time

# Made once: each connection would search the files of the installed packages for it, which takes 0.3 ms, and
# a burst of requests opens 64 of them.
_DRIVER = DriverInfo()


class UnreadableURL(RedisError):
    """redis-py can't read a URL of the settings."""

    def __init__(self) -> None:
        super().__init__("its URL can't be read")


@contextmanager
def url_errors() -> Iterator[None]:
    """Raise `UnreadableURL` if redis-py can't read the URL with which the block connects.

    redis-py reads some parameters only with the first command. Its error may contain a password.
    """
    try:
        yield
    except (AttributeError, TypeError, ValueError):  # the first one is for `?retry=5`
        raise UnreadableURL from None


def connect(url: str, *, max_connections: int = 64) -> Redis:
    """Return a client that never retries by itself. Send its commands within `in_time`."""
    options: dict[str, Any] = {
        "max_connections": max_connections,
        "timeout": 5,
        "socket_timeout": None,
        "socket_connect_timeout": 2,
        # After a lost reply, a repeated XADD would write its entry twice.
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "driver_info": _DRIVER,
        "protocol": 3,  # the protocol of its `DedicatedConnection`s, too
    }
    # Not `from_url`, in which the URL's scheme alone chooses the class of connections.
    return Redis.from_pool(BlockingConnectionPool(**options | pool_options(url)))


def connect_from_thread(
    url: str, *, timeout_s: float = REPLY_TIMEOUT_S, connect_timeout_s: float = 2.0
) -> ThreadRedis:
    """Return a blocking client, for a thread that must not depend on the event loop."""
    plain_url, options = thread_options(url)
    return ThreadRedis.from_url(
        plain_url,
        socket_timeout=timeout_s,
        socket_connect_timeout=connect_timeout_s,
        retry=ThreadRetry(NoBackoff(), 0),
        health_check_interval=0,
        **options,
    )


Command = Sequence[bytes | str | float]


class DedicatedConnection:
    """A connection of a client's pool that is kept for commands sent hundreds of times a second.

    The client's pool, retries and metrics would cost as much again as the command. The connection makes one
    round trip at a time, is renewed after an error, and is closed with its client.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._connection: AbstractConnection | None = None
        self._turn = asyncio.Lock()

    async def call(self, *command: bytes | str | float) -> Any:
        """Send a command and return its RESP3 reply (bytes, ints, lists, dicts). Raises `RedisError`."""
        [reply] = await self.calls([command])
        return reply

    async def calls(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together and return their replies.

        Raises `RedisError`, also if Redis refuses one of the commands and executes the others.
        """
        # The wait for the turn counts, too: those behind a frozen Redis must not fail one after the other.
        async with in_time(), self._turn:
            replies = await self._exchange(commands)
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
        """Return the connection, renewed if Redis has closed it in the meantime."""
        if self._connection is None:
            self._connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        # redis-py's check, `can_read_destructive`, is a read with a timeout of zero that costs as much as the
        # command.
        reader = self._connection._reader
        if reader is not None and (reader.at_eof() or reader.exception()):
            await self._connection.disconnect(nowait=True)
        return self._connection


async def _reply(connection: AbstractConnection) -> Any:
    """Return the next reply or error, so that the replies of the other commands are read, too."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
