"""The one door from asyncio to the database: concurrent writes share a transaction, reads run in threads.

A single thread takes all operations that are queued, runs them in one transaction, commits, and only then
resolves their futures. Under load the batches grow by themselves, so many generations share a commit; alone,
an operation never waits.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from usage.database import clock
from usage.database.sqlite_write_lock import SQLiteWriteLock, database_file
from usage.database.watchdog import watchdog
from usage.errors import DatabaseUnavailable, UsageError, is_unavailable, sqlstate

Item = TypeVar("Item")
Result = TypeVar("Result")
P = ParamSpec("P")
Operation = Callable[[datetime, Sequence[Item]], Sequence[Result | UsageError]]

MAX_BATCH = 256
# PostgreSQL's documentation, appendix A, "PostgreSQL Error Codes".
DEADLOCK_DETECTED = "40P01"
DEADLOCK_RETRIES = 3
# A connection that was idle for longer is checked before it is used.
IDLE_S = 1.0
NEVER = float("-inf")
log = logging.getLogger(__name__)
# `at`: the monotonic time at which this thread last used its connection.
_last_use = threading.local()


class _Waiting(NamedTuple):
    operation: Operation[Any, Any]
    item: Any
    future: asyncio.Future[Any] | Future[Any]


class GroupCommit:
    """Runs batch operations (see `usage/books/ledger.py`) on its own thread and connection."""

    def __init__(self, read_threads: int = 2) -> None:
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(
            read_threads, thread_name_prefix="database-read", initializer=self._begin_to_read
        )
        self._read_connections: list[BaseDatabaseWrapper] = []
        self._write_lock = SQLiteWriteLock(database_file())
        self._writer = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._writer.start()

    async def write(self, operation: Operation[Item, Result], item: Item) -> Result:
        """Run `operation` on the item in the next transaction and return its result after the commit.

        Raises the `UsageError` that the operation returned for the item, or `DatabaseUnavailable`. After the
        latter the item may have been written all the same, if only the commit's reply was lost: an operation
        that is retried must recognize its own earlier write.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.put(_Waiting(operation, item, future))
        return await future

    def write_from_thread(self, operation: Operation[Item, Result], item: Item) -> Result:
        """Run `write` from a thread without an event loop; blocks until the commit."""
        future: Future[Result] = Future()
        self._queue.put(_Waiting(operation, item, future))
        return future.result()

    async def read(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run a function in a thread with its own connection; raises `DatabaseUnavailable`.

        The function may write in transactions of its own.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, lambda: _guarded(lambda: function(*args, **kwargs)))

    async def close(self) -> None:
        """Finish all queued operations and end the threads; nothing may be submitted afterwards."""
        self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._end_threads)

    def _end_threads(self) -> None:
        self._writer.join()
        self._readers.shutdown(wait=True)
        for each in self._read_connections:
            each.close()

    def _begin_to_read(self) -> None:
        """Keep this reading thread's connection, so that `_end_threads` can close it."""
        own = connections[DEFAULT_DB_ALIAS]
        own.inc_thread_sharing()
        self._read_connections.append(own)

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                _resolve(self._commit(batch))
        finally:
            connection.close()
            self._write_lock.close()

    def _next_batch(self) -> list[_Waiting]:
        """Wait for an operation, and return all that are queued; empty after `close`."""
        batch: list[_Waiting] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if len(batch) >= MAX_BATCH or self._queue.empty():
                return batch
            item = self._queue.get()
        if batch:
            # `close` came after these operations: the next call must find it, too.
            self._queue.put(None)
        return batch

    def _commit(self, batch: list[_Waiting]) -> list[tuple[_Waiting, Any]]:
        try:
            return _guarded(lambda: self._transact_again(batch))
        except DatabaseUnavailable as error:
            return [(waiting, error) for waiting in batch]
        except Exception as error:
            if len(batch) == 1:
                log.exception("a database operation failed")
                return [(batch[0], error)]
            # One item has failed the whole transaction: retry each alone, so that only that one fails.
            return [pair for waiting in batch for pair in self._commit([waiting])]

    def _transact_again(self, batch: Sequence[_Waiting]) -> list[tuple[_Waiting, Any]]:
        """Run the batch, again after a deadlock."""
        # Each operation locks its rows in order, but two of them may lock rows of the same table.
        for _ in range(DEADLOCK_RETRIES):
            try:
                return self._transact(batch)
            except OperationalError as error:
                if sqlstate(error) != DEADLOCK_DETECTED:
                    raise
                log.info("a deadlock: once more")
        return self._transact(batch)

    def _transact(self, batch: Sequence[_Waiting]) -> list[tuple[_Waiting, Any]]:
        groups: dict[Operation[Any, Any], list[_Waiting]] = {}
        for waiting in batch:
            groups.setdefault(waiting.operation, []).append(waiting)
        results: list[tuple[_Waiting, Any]] = []
        with self._write_lock.held(), transaction.atomic():
            now = clock.begin()
            # By name, so that all processes run the operations in one order: two transactions then never wait
            # for each other's locks on different tables.
            for operation in sorted(groups, key=attrgetter("__module__", "__qualname__")):
                group = groups[operation]
                results.extend(zip(group, operation(now, [waiting.item for waiting in group]), strict=True))
        return results


def _guarded(function: Callable[[], Result]) -> Result:
    """Run the function on this thread's connection, which stays open.

    Raises `DatabaseUnavailable` if the database is down, locked, too slow or read-only; the next call then
    checks the connection that the pool gives it.
    """
    try:
        _close_if_dead()
        with watchdog.watching():
            return function()
    except Error as error:
        if not is_unavailable(error):
            raise
        # A connection that was cut, or is inside of a statement, must not serve the next call.
        connection.close()
        _last_use.at = NEVER
        log.warning("the database is away, or too slow: %s", error)
        raise DatabaseUnavailable(str(error)) from error


def _close_if_dead() -> None:
    """Close a connection that has died while it was idle, and its pool's, which may have died too."""
    own, now = connections[DEFAULT_DB_ALIAS], time.monotonic()
    # A thread's first connection may be one that another thread has left in the pool.
    is_idle = now - getattr(_last_use, "at", NEVER) > IDLE_S
    _last_use.at = now
    if is_idle:
        with watchdog.watching(statements=1):
            is_usable = _is_usable(own)
        if not is_usable:
            own.close()
            if pool := getattr(own, "pool", None):
                pool.drain()


def _is_usable(own: BaseDatabaseWrapper) -> bool:
    """Return whether the connection answers; connect if there is none."""
    try:
        own.ensure_connection()
    except OperationalError:
        if own.connection is None:
            raise  # there was no connection, and the server gave none
        return False
    return own.is_usable()


def _resolve(results: Sequence[tuple[_Waiting, Any]]) -> None:
    """Resolve the futures from the writer's thread: those of an event loop together, which wakes it once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for waiting, result in results:
        if isinstance(waiting.future, asyncio.Future):
            by_loop.setdefault(waiting.future.get_loop(), []).append((waiting.future, result))
        else:
            _set(waiting.future, result)
    for loop, pairs in by_loop.items():
        loop.call_soon_threadsafe(_set_all, pairs)


def _set_all(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if not future.done():  # else the caller was cancelled; the write is committed all the same
            _set(future, result)


def _set(future: asyncio.Future[Any] | Future[Any], result: Any) -> None:
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
