"""Reports that read a replica of PostgreSQL, if there is one that keeps up.

Every read is the primary's, except inside of a function that is marked as a `report`: sums, charts, lists and
files, which decide nothing. So permissions, keys, limits, forms and money never depend on a replica. A report
reads the primary as well if the replica fails, is no replica of this database or is late, in a transaction,
and for a person who has just changed something.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.models import Model

from usage.database.time_limit import time_limit
from usage.database.watchdog import watchdog
from usage.errors import sqlstate

Result = TypeVar("Result")
P = ParamSpec("P")

REPLICA: Final = "replica"
# A replica that is further behind is not read.
MAX_LAG_S: Final = 30
CHECK_EVERY_S: Final = 1.0
# How long reports read the primary after a failure of the replica.
AWAY_S: Final = 10.0
# The last transaction of an idle primary is old, and its next one may be on its way to the replica.
WAITS_S: Final = (0.0, 0.05, 0.2)
# The time limit of a report, in time limits of a statement.
STATEMENTS: Final = 6
# PostgreSQL's documentation, appendix A: a statement took longer than `statement_timeout`.
QUERY_CANCELED: Final = "57014"

log = logging.getLogger(__name__)
# What is read now: the replica, the primary and nothing else, or None, which a report may change.
_database: ContextVar[str | None] = ContextVar("the database that is read", default=None)


class Router:
    """Django's database router, if there is a replica."""

    def db_for_read(self, model: type[Model], **hints: Any) -> str:
        return alias()

    def db_for_write(self, model: type[Model], **hints: Any) -> str:
        return DEFAULT_DB_ALIAS

    def allow_relation(self, left: Model, right: Model, **hints: Any) -> bool:
        """Return True: both databases have the same rows."""
        return True

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        """Return whether it is the primary, from which the replica gets its tables."""
        return db == DEFAULT_DB_ALIAS


def alias() -> str:
    """Return the name of the database that this code reads."""
    return _database.get() or DEFAULT_DB_ALIAS


@contextmanager
def primary_only() -> Iterator[None]:
    """Let reports inside read the primary."""
    token = _database.set(DEFAULT_DB_ALIAS)
    try:
        yield
    finally:
        _database.reset(token)


def report(function: Callable[P, Result]) -> Callable[P, Result]:
    """Let the function read the replica, within a `time_limit`. It writes nothing, and may be called a second
    time: if the replica fails, it reads the primary.

    A statement that takes too long is an error, as on the primary, which gets no second one of that kind.
    """
    bounded = time_limit()(function)

    @wraps(function)
    def reading(*args: P.args, **kwargs: P.kwargs) -> Result:
        if REPLICA not in connections.settings or _database.get() is not None or not _state.is_usable():
            return bounded(*args, **kwargs)
        token = _database.set(REPLICA)
        try:
            with watchdog.watching(statements=STATEMENTS, alias=REPLICA):
                return bounded(*args, **kwargs)
        except Error as error:
            if sqlstate(error) == QUERY_CANCELED:
                raise
            connections[REPLICA].close()
            _state.fail(_reason(error))
        finally:
            _database.reset(token)
        return bounded(*args, **kwargs)

    return reading


# ---- whether the replica keeps up


class NotAReplica(Exception):
    """The database is not a replica of the primary; the text says what it is."""


_IDENTITY = "current_database(), (SELECT system_identifier FROM pg_control_system())"
_PRIMARY = f"SELECT {_IDENTITY}, pg_current_wal_lsn()::text, clock_timestamp()"
_REPLAYED = (
    f"SELECT {_IDENTITY}, pg_is_in_recovery(), "
    "pg_last_wal_replay_lsn() >= %s::pg_lsn, pg_last_xact_replay_timestamp()"
)


def measure_lag_s() -> float:
    """Return for how many seconds the replica is behind the primary, by the primary's clock.

    0 if it has everything that the primary had a moment ago; infinity if it does not know. Raises
    `NotAReplica`, or Django's errors of either database.
    """
    *identity, position, now = _row(DEFAULT_DB_ALIAS, _PRIMARY)
    lag_s = float("inf")
    for wait_s in WAITS_S:
        time.sleep(wait_s)
        with watchdog.watching(statements=1, alias=REPLICA):
            *own, is_replica, has_all, replayed_at = _row(REPLICA, _REPLAYED, position)
        if own != identity:
            raise NotAReplica("it has another database than DATABASE_URL")
        if not is_replica:
            raise NotAReplica("it is not in recovery: it was promoted, or is the primary itself")
        if has_all:
            return 0.0
        # Everything that was committed before is replayed: a replica replays in the order of commits.
        lag_s = (now - replayed_at).total_seconds() if replayed_at else lag_s
        if lag_s < MAX_LAG_S:
            break
    return max(lag_s, 0.0)


def _row(database: str, sql: str, *parameters: Any) -> tuple[Any, ...]:
    with connections[database].cursor() as cursor:
        cursor.execute(sql, parameters)
        row: tuple[Any, ...] = cursor.fetchone()
        return row


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _State:
    """Whether this process's reports may read the replica, looked up once a second at most."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._valid_until = 0.0
        self._is_usable = False
        self._is_reported = False

    def is_usable(self) -> bool:
        if connections[DEFAULT_DB_ALIAS].in_atomic_block:
            return False  # the transaction's own changes are read
        # While one thread looks, others take the last answer.
        if time.monotonic() >= self._valid_until and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._is_usable

    def fail(self, reason: str) -> None:
        """Let reports read the primary for a while, and log the first of several failures."""
        self._is_usable, self._valid_until = False, time.monotonic() + AWAY_S
        if not self._is_reported:
            log.warning("reports read the primary, because the replica can't be read: %s", reason)
        self._is_reported = True

    def _look(self) -> None:
        try:
            lag_s = measure_lag_s()
        except (Error, NotAReplica) as error:
            connections[REPLICA].close()
            self.fail(_reason(error))
            return
        if lag_s >= MAX_LAG_S:
            self.fail(f"it is {lag_s:.0f} s behind")
            return
        self._is_usable, self._valid_until = True, time.monotonic() + CHECK_EVERY_S
        if self._is_reported:
            log.warning("reports read the replica again")
        self._is_reported = False


_state = _State()
