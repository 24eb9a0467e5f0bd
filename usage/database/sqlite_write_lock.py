"""An advisory lock around writes to SQLite, for which processes wait in steps of 0.3 ms.

SQLite has one writer at a time and no queue. A connection that finds it busy sleeps 1, 2, 5 … 100 ms and
tries again, so processes that try often starve the others, and requests start in bursts. This lock makes the
waiting fair and guards nothing: after `PATIENCE_S` a process goes on without it, and SQLite's own lock
decides.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.sqlite3.base import DatabaseWrapper

STEP_S = 0.000_3
# Longer than any transaction. A process that is stopped inside one is left to SQLite's timeout.
PATIENCE_S = 1.0
log = logging.getLogger(__name__)


class SQLiteWriteLock:
    """One thread's handle of the lock of a database file."""

    def __init__(self, database: str, patience_s: float = PATIENCE_S) -> None:
        """Open nothing yet. `database` is the file's path; if it is empty, the lock is always free."""
        self._database = database
        self._patience_s = patience_s
        self._file: int | None = None

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Wait for the lock and hold it inside; yield False if it was not free in time."""
        if self._database and self._file is None:
            self._open()
        if self._file is None:
            yield True
            return
        is_held = self._acquire(self._file)
        try:
            yield is_held
        finally:
            if is_held:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        # A separate file: closing any descriptor of the database's file drops SQLite's locks in this process.
        path = f"{self._database}-turn"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:  # another user's file, or no descriptor is left: neither should stop writes
            log.warning("writing without the lock from now on, so under load some wait longer: %s", error)
            self._database = ""

    def _acquire(self, file: int) -> bool:
        give_up_at = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    return False
                time.sleep(STEP_S)
            else:
                return True


def database_file() -> str:
    """Return the path of the default database; empty for PostgreSQL and for a database in memory."""
    database = connections[DEFAULT_DB_ALIAS]
    if not isinstance(database, DatabaseWrapper) or database.is_in_memory_db():
        return ""
    return str(database.settings_dict["NAME"])
