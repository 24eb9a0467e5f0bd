"""Logging filters that shorten or drop what Django logs of refused requests and of outages of the database.

For a request that is suspicious, such as a filter by an unknown column, and for one that fails because the
database is away, Django logs 90 lines of traceback, which may repeat what the client has sent.
"""

import logging
import threading
import time

from chatapi.log_formats import route_of
from usage.errors import is_unavailable

MAX_LINES_PER_MINUTE = 20
MAX_CHARACTERS = 300


class ByRoute(logging.Filter):
    """Replaces a request's path by its route: a path may contain a secret, such as an invitation's."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record in place; return True."""
        if (request := getattr(record, "request", None)) is not None:
            record.msg, record.args = record.getMessage().replace(request.path, route_of(request)), ()
        return True


class OneLine(ByRoute):
    """Makes each record a line without a traceback, and lets a bounded number of lines pass in a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._minute_ends_at = 0.0
        self._lines = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record, which is changed in place: its handler must be the only one."""
        with self._lock:
            left_out = self._take_line()
        if left_out is None:
            return False
        super().filter(record)
        request = getattr(record, "request", None)
        where = "" if request is None else f"{request.method} {route_of(request)}: "
        text = f"{where}{record.getMessage()}".encode("unicode_escape").decode("ascii")
        more = f" ({left_out} more lines were left out)" if left_out else ""
        record.msg, record.args = f"{text[:MAX_CHARACTERS]}{more}", ()
        record.exc_info = record.exc_text = record.stack_info = None
        # The client's mistake, not the server's.
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True

    def _take_line(self) -> int | None:
        """Return the number of records left out since the last line, or None if no line is left."""
        now = time.monotonic()
        if now >= self._minute_ends_at:
            self._minute_ends_at, self._lines = now + 60, 0
        if self._lines >= MAX_LINES_PER_MINUTE:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class WithoutOutages(logging.Filter):
    """Leaves out errors of a database that is away: `api/error_pages.py` logs a line for each."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not (isinstance(error, Exception) and is_unavailable(error))
