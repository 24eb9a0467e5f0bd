"""Cuts the connection of a thread whose database has stopped to answer.

PostgreSQL ends what takes too long, but its time limits stop with it: where a backend, its disk or its host
hangs, or the network swallows everything, nobody but us ends the wait. The socket is shut down under the
waiting thread, which then gets the error of any lost connection.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

STATEMENTS = 3
"""A transaction may take as long as so many of the longest statements."""
CHECKS = 10
"""How often the watchdog looks in the time that one statement may take."""

log = logging.getLogger(__name__)


class Watchdog:
    """Watches the threads of this process; its own begins with the first of them."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, BaseDatabaseWrapper]] = {}
        self._rounds = 0
        """A process that was stopped for a while has missed the time, but no rounds: what it waits for may be
        there.
        """
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, *, statements: int = STATEMENTS) -> Iterator[None]:
        """Around what this thread asks of the database, which may take as long as so many statements.

        SQLite, which is no server, needs no watching.
        """
        database = connections[DEFAULT_DB_ALIAS]
        if database.vendor == "sqlite":
            yield
            return
        self._watch(database, statements * CHECKS)
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[threading.get_ident()]

    def _watch(self, database: BaseDatabaseWrapper, rounds: int) -> None:
        with self._lock:
            self._waiting[threading.get_ident()] = self._rounds + rounds, database
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="database-watchdog", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(settings.DATABASE_TIMEOUT_MS / 1_000 / CHECKS)
            with self._lock:  # so that a connection is not cut just as its thread has got its answer
                self._rounds += 1
                for last_round, database in self._waiting.values():
                    if self._rounds > last_round:
                        _cut(database)


def _cut(database: BaseDatabaseWrapper) -> None:
    """Shut the socket down; closing it is left to its thread. Connecting has a time limit of its own."""
    connection = database.connection
    if connection is None:
        return
    # It may end by itself at this very moment.
    with suppress(OSError, Error), database.wrap_database_errors:
        with socket.fromfd(connection.fileno(), socket.AF_UNSPEC, socket.SOCK_STREAM) as found:
            found.shutdown(socket.SHUT_RDWR)
        log.warning("a connection to a database that does not answer was cut")


watchdog = Watchdog()
"""Of this process."""
