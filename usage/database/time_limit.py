"""The time that a read of the operator's pages may take: where the database has no limit of its own, we end
the statement.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.conf import settings
from django.db import connection

_STEPS = 100_000
"""SQLite's steps between two looks at the clock: a few milliseconds."""
_is_running: ContextVar[bool] = ContextVar("time limit", default=False)


@contextmanager
def time_limit() -> Iterator[None]:
    """`DATABASE_TIMEOUT_MS` for all statements inside, then Django's `OperationalError`. PostgreSQL has its
    `statement_timeout`.

    Inside another one it is that one's time.
    """
    if connection.vendor != "sqlite" or not settings.DATABASE_TIMEOUT_MS or _is_running.get():
        yield
        return
    connection.ensure_connection()
    database = connection.connection
    token = _is_running.set(True)
    end = time.monotonic() + settings.DATABASE_TIMEOUT_MS / 1_000
    database.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    try:
        yield
    finally:
        database.set_progress_handler(None, 0)
        _is_running.reset(token)
