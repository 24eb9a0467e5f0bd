"""The time limit of reads for pages, on SQLite, which has no limit of its own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.conf import settings
from django.db import connection

# SQLite's instructions between two looks at the clock: a few milliseconds.
_STEPS = 100_000
_is_running: ContextVar[bool] = ContextVar("time limit", default=False)


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise Django's `OperationalError` when all statements inside take more than `DATABASE_TIMEOUT_MS`.

    PostgreSQL has its `statement_timeout` instead. Inside another `time_limit`, that one counts.
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
