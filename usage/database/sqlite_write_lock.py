"""Whose turn it is to write to SQLite: processes queue here in steps of a fraction of a millisecond.

SQLite has one writer at a time and no queue: a connection that finds it busy sleeps 1, 2, 5 … 100 ms and
looks again, so whoever asks often gets in and the others starve; requests then start in bursts. The turn is a
courtesy between our processes and guards nothing: whoever waits in vain for it goes on, and SQLite's own lock
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
PATIENCE_S = 1.0
"""Longer than any transaction of ours; a process that is stopped in the middle of one is SQLite's timeout's
business.
"""
log = logging.getLogger(__name__)


class WriteTurn:
    """One thread's place in the queue for a database file."""

    def __init__(self, database: str, patience_s: float = PATIENCE_S) -> None:
        """`database`: the file's path; empty for a database that has its own queue, where every turn comes at
        once.
        """
        self._database = database
        self._patience_s = patience_s
        self._file: int | None = None

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Wait for the turn, keep it inside, pass it on; yields False when the wait was in vain."""
        if self._database and self._file is None:
            self._open()
        if self._file is None:
            yield True
            return
        is_mine = self._take(self._file)
        try:
            yield is_mine
        finally:
            if is_mine:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave the queue."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        # A file of its own: to close any descriptor of the database's file would drop SQLite's locks in this
        # process.
        path = f"{self._database}-turn"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:  # somebody else's file, or no descriptor is left: no reason to write nothing
            log.warning("writing without a turn from now on, so under load some wait longer: %s", error)
            self._database = ""

    def _take(self, file: int) -> bool:
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
    """The file that the default database is in; empty for a server's, and for one in memory."""
    database = connections[DEFAULT_DB_ALIAS]
    if not isinstance(database, DatabaseWrapper) or database.is_in_memory_db():
        return ""
    return str(database.settings_dict["NAME"])
