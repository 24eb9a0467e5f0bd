"""Connections of redis-py that ask sentinels where the primary is, each time that they connect.

So when a primary dies, everything that connects again reaches the next one as soon as the sentinels have
chosen it, and callers need not know of sentinels. This follows
https://redis.io/docs/latest/develop/reference/sentinel-clients/ but for the command ROLE, which access lists
often forbid: a server that has become a replica is left when it refuses a write.

A primary that is replaced while it is well keeps its connections for up to 10 s. If some connections of the
service were still there and others at the next primary, workers would miss web processes and stop their
streams. So a thread asks once a second, and ends the connections to a primary that has been replaced.
"""

import asyncio
import random
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast
from weakref import WeakSet

from redis import Redis as ThreadRedis
from redis import connection as thread
from redis.asyncio import Redis
from redis.asyncio import connection as on_loop
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry as ThreadRetry

from accounts.redis_time_limit import in_time
from accounts.redis_urls import SentinelURLs, sentinel_urls, without_secrets

# How long one sentinel may take: then the next one still has time within a command's `REPLY_TIMEOUT_S`.
SENTINEL_TIMEOUT_S = 1.0
WATCH_S = 1.0
_QUESTION = "SENTINEL GET-MASTER-ADDR-BY-NAME"
# Made once: it reads the metadata of installed packages, which takes 0.3 ms.
_DRIVER = DriverInfo()
Address = tuple[str, int]

# The sentinel that has answered last. It is asked first: a sentinel that is down then delays one connection
# instead of every third.
_answered: dict[SentinelURLs, str] = {}
# Its own generator: the watching thread draws at any time, and must not change what other code draws.
_orders = random.Random()  # noqa: S311  nothing secret


async def primary_address(urls: SentinelURLs) -> Address:
    """Return the host and port of the primary. Raises `RedisError` if no sentinel knows it."""
    failed: dict[str, RedisError | None] = {}
    for url in _in_order(urls):
        options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "driver_info": _DRIVER}
        sentinel = Redis.from_pool(
            on_loop.ConnectionPool(**options, decode_responses=True, **pool_options(url))
        )
        try:
            async with in_time(SENTINEL_TIMEOUT_S):
                found: Address | None = await cast(Any, sentinel).execute_command(_QUESTION, urls.name)
            if found is not None:
                _answered[urls] = url
                return found
            failed[url] = None
        except RedisError as error:
            failed[url] = error
        except asyncio.CancelledError:
            _answered.pop(urls, None)  # a caller with a shorter time limit must not ask it first for ever
            raise
        finally:
            await sentinel.aclose()
    raise _unknown(urls, failed)


def primary_address_from_thread(urls: SentinelURLs) -> Address:
    """Return what `primary_address` does, without an event loop."""
    failed: dict[str, RedisError | None] = {}
    for url in _in_order(urls):
        try:
            with open_sentinel(url) as sentinel:
                found: Address | None = cast(Any, sentinel).execute_command(_QUESTION, urls.name)
            if found is not None:
                _answered[urls] = url
                return found
            failed[url] = None
        except RedisError as error:
            failed[url] = error
    raise _unknown(urls, failed)


def open_sentinel(url: str) -> ThreadRedis:
    """Return a blocking client of one sentinel."""
    return ThreadRedis.from_url(
        url,
        socket_timeout=SENTINEL_TIMEOUT_S,
        socket_connect_timeout=SENTINEL_TIMEOUT_S,
        retry=ThreadRetry(NoBackoff(), 0),
        decode_responses=True,
    )


def _in_order(urls: SentinelURLs) -> list[str]:
    shuffled = _orders.sample(urls.sentinels, len(urls.sentinels))
    return sorted(shuffled, key=lambda url: url != _answered.get(urls))


def _unknown(urls: SentinelURLs, failed: Mapping[str, RedisError | None]) -> RedisConnectionError:
    reasons = [f"{sentinel_place(url)}: {_reason(error)}" for url, error in failed.items()]
    return RedisConnectionError(f"no sentinel knows the primary {urls.name} ({'; '.join(reasons)})")


def _reason(error: RedisError | None) -> str:
    if error is None:
        return "does not know this name"
    return "does not answer" if isinstance(error, RedisTimeoutError) else str(error).rstrip(".")


def sentinel_place(url: str) -> str:
    """Return the host and port of a sentinel."""
    return without_secrets(url).partition("://")[2]


class _Watch:
    """Ends the connections of this process to a primary that has been replaced."""

    def __init__(self) -> None:
        self._connections: dict[SentinelURLs, WeakSet[SentinelConnection | ThreadSentinelConnection]] = {}
        self._lock = threading.Lock()

    def add(self, urls: SentinelURLs, connection: "SentinelConnection | ThreadSentinelConnection") -> None:
        """Watch a connection for as long as something else refers to it."""
        with self._lock:
            if urls not in self._connections:
                self._connections[urls] = WeakSet()
                threading.Thread(target=self._run, args=(urls,), name="sentinels", daemon=True).start()
            self._connections[urls].add(connection)

    def _run(self, urls: SentinelURLs) -> None:
        while True:
            time.sleep(WATCH_S)
            with self._lock:
                if not self._connections[urls]:
                    del self._connections[urls]
                    return
            with suppress(RedisError):
                self._end_others(urls, primary_address_from_thread(urls))

    def _end_others(self, urls: SentinelURLs, primary: Address) -> None:
        with self._lock:
            connections = list(self._connections[urls])
        for connection in connections:
            if (connection.host, connection.port) != primary:
                connection.leave(primary)


_watch = _Watch()


def _has_left(error: ResponseError) -> bool:
    """Return whether the server has become a replica."""
    # Redis sends UNBLOCKED to clients that wait in BLPOP or XREAD when it becomes a replica.
    return isinstance(error, ReadOnlyError) or str(error).startswith("UNBLOCKED ")


# The minute in which they were first used, and the certificates, by the options of the URL.
_certificates: dict[str, tuple[int, on_loop.RedisSSLContext]] = {}


class TLSConnection(on_loop.SSLConnection):
    """A connection with TLS, which shares certificates with others of the same minute.

    Reading a machine's certificates takes 17 ms, in which the event loop does nothing else.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        key = repr(sorted((name, value) for name, value in options.items() if name.startswith("ssl_")))
        minute = int(time.monotonic() // 60)
        if key not in _certificates or _certificates[key][0] != minute:
            _certificates[key] = minute, self.ssl_context
        self.ssl_context = _certificates[key][1]


class SentinelConnection(on_loop.Connection):
    """A connection to the primary."""

    def __init__(self, *, sentinels: SentinelURLs, **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels

    async def _connect(self) -> None:
        self.host, self.port = await primary_address(self._sentinels)
        try:
            await super()._connect()  # type: ignore[no-untyped-call]
        except BaseException:
            _answered.pop(self._sentinels, None)  # another sentinel may know better
            raise
        self._loop = asyncio.get_running_loop()
        _watch.add(self._sentinels, self)

    def leave(self, primary: Address) -> None:
        """End the connection, unless it is one to this primary by now. The watching thread calls it."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._leave, primary)

    def _leave(self, primary: Address) -> None:
        if (self.host, self.port) != primary and self._writer:
            self._writer.transport.abort()

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the next reply; raise `ConnectionError` if the server is the primary no more."""
        try:
            return await super().read_response(*args, **options)
        except ResponseError as error:
            if not _has_left(error):
                raise
            _answered.pop(self._sentinels, None)  # another sentinel may know better
            await self.disconnect(nowait=True)
            raise RedisConnectionError("the primary has become a replica") from error


class TLSSentinelConnection(SentinelConnection, TLSConnection):
    """The same with TLS, which verifies the certificate for the address that the sentinels name."""


class ThreadSentinelConnection(thread.Connection):
    """A connection to the primary, without an event loop."""

    def __init__(self, *, sentinels: SentinelURLs, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._sentinels = sentinels

    def _connect(self) -> Any:
        self.host, self.port = primary_address_from_thread(self._sentinels)
        try:
            connected = super()._connect()  # type: ignore[no-untyped-call]
        except BaseException:
            _answered.pop(self._sentinels, None)  # another sentinel may know better
            raise
        _watch.add(self._sentinels, self)
        return connected

    def leave(self, _: Address) -> None:
        """End the connection, which another thread may be using. The watching thread calls it."""
        if connected := cast(socket.socket | None, self._sock):
            with suppress(OSError):
                # Not the own method of a TLS socket, after which the other thread would not encrypt any more.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the next reply; raise `ConnectionError` if the server is the primary no more."""
        try:
            return super().read_response(*args, **options)
        except ResponseError as error:
            if not _has_left(error):
                raise
            _answered.pop(self._sentinels, None)  # another sentinel may know better
            self.disconnect()  # type: ignore[no-untyped-call]
            raise RedisConnectionError("the primary has become a replica") from error


class TLSThreadSentinelConnection(ThreadSentinelConnection, thread.SSLConnection):
    """The same with TLS, which verifies the certificate for the address that the sentinels name."""


def pool_options(url: str) -> dict[str, Any]:
    """Return the arguments that a URL of the settings gives to an asynchronous pool of redis-py."""
    urls = sentinel_urls(url)
    if urls is None:
        options: dict[str, Any] = {**on_loop.parse_url(url)}
        if options.get("connection_class") is on_loop.SSLConnection:
            options["connection_class"] = TLSConnection
        return options
    kind = TLSSentinelConnection if urls.has_tls else SentinelConnection
    return {**on_loop.parse_url(urls.primary), "connection_class": kind, "sentinels": urls}


def thread_options(url: str) -> tuple[str, dict[str, Any]]:
    """Return the URL that a blocking client's `from_url` gets for one of the settings, and more arguments."""
    urls = sentinel_urls(url)
    if urls is None:
        return url, {}
    kind = TLSThreadSentinelConnection if urls.has_tls else ThreadSentinelConnection
    return urls.primary, {"connection_class": kind, "sentinels": urls}
