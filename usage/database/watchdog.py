"""Cuts the connection of a thread whose database has stopped to answer.

PostgreSQL's own time limits do not help when its backend, disk or host hangs, or when the network loses every
packet. The watchdog shuts the socket of the waiting thread down, which then gets the error of a lost
connection. A `watching` block has one time limit for all of its statements together. Elsewhere, as in pages,
each statement has its own, because a page may wait for other services between two statements.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

# The time limit of a transaction, in time limits of a statement.
STATEMENTS = 3
# Rounds of the watchdog in the time limit of one statement.
CHECKS = 10

log = logging.getLogger(__name__)


class Watchdog:
    """Watches the threads of this process, from a thread that the first of them starts."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, str], tuple[int, BaseDatabaseWrapper]] = {}
        # The rounds in a row in which each connection's last statement waited for its server.
        self._rounds_waited: WeakKeyDictionary[BaseDatabaseWrapper, int] = WeakKeyDictionary()
        # Time is counted in rounds: a process that was stopped has missed time, but no rounds, and its answer
        # may have arrived meanwhile.
        self._rounds = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, *, statements: int = STATEMENTS, alias: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
        """Cut this thread's connection to a database when the block takes longer than `statements` time
        limits.

        SQLite is no server and needs no watching.
        """
        database, place = connections[alias], (threading.get_ident(), alias)
        if database.vendor == "sqlite":
            yield
            return
        with self._lock:
            self._waiting[place] = self._rounds + statements * CHECKS, database
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="database-watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[place]

    def watch(self, database: BaseDatabaseWrapper) -> None:
        """Cut this connection when the statement that begins now takes longer than `STATEMENTS` limits.

        Only processes with a block that is `watching` cut: the statements of a command may take any time.
        """
        with self._lock:
            self._rounds_waited[database] = 0

    def _run(self) -> None:
        while True:
            time.sleep(settings.DATABASE_TIMEOUT_MS / 1_000 / CHECKS)
            self.look()

    def look(self) -> None:
        """Go one round: cut the connections of all that have waited for too many."""
        with self._lock:  # a thread leaves under the lock, so no connection is cut after its answer
            self._rounds += 1
            for last_round, database in self._waiting.values():
                if self._rounds > last_round:
                    _cut(database)
            for database, rounds in list(self._rounds_waited.items()):
                rounds_waited = rounds + 1 if _is_waiting(database) else 0
                self._rounds_waited[database] = rounds_waited
                if rounds_waited > STATEMENTS * CHECKS:
                    _cut(database)


def _is_waiting(database: BaseDatabaseWrapper) -> bool:
    """Return whether a statement was sent whose answer has not arrived."""
    connection = database.connection
    return connection is not None and connection.info.transaction_status.name == "ACTIVE"


def _cut(database: BaseDatabaseWrapper) -> None:
    """Shut the socket down, and leave closing it to its thread."""
    connection = database.connection
    if connection is None:
        return  # it is connecting, which has its own time limit
    # The connection may end by itself at the same moment.
    with suppress(OSError, Error), database.wrap_database_errors:
        with socket.fromfd(connection.fileno(), socket.AF_UNSPEC, socket.SOCK_STREAM) as found:
            found.shutdown(socket.SHUT_RDWR)
        log.warning("a connection to a database that does not answer was cut")


# The watchdog of this process.
watchdog = Watchdog()
