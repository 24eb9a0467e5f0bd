"""The database's clock, which stamps all rows, so that no other machine's clock matters, and its calendar."""

from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import DateTimeField, F, Func

from usage.database.sql import db_value, fetch_all, send

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Width = Literal["minute", "hour", "day"]
# SQLite stores times as text, such as "2026-11-21 06:04:27.123456".
_KEPT_CHARACTERS_AND_SUFFIX = {"minute": (16, ":00"), "hour": (13, ":00:00"), "day": (10, " 00:00:00")}


def database_now() -> datetime:
    """Return the database's time in UTC. SQLite runs in this process and has its clock."""
    if connection.vendor == "sqlite":
        return datetime.now(UTC)
    now: datetime = fetch_all("SELECT clock_timestamp()")[0][0]
    return now


def clock_in_statement() -> tuple[str, list[Any]]:
    """Return the database's time as an expression of a statement, which spares one, and its parameters."""
    if connection.vendor == "sqlite":
        return "%s", [db_value(database_now())]
    return "statement_timestamp()", []


def begin() -> datetime:
    """Begin the transaction of an `atomic` block and return the database's time, in one round trip."""
    if connection.vendor == "sqlite":
        return database_now()
    # psycopg would send a BEGIN of its own before the first statement, and wait for its answer.
    microseconds = send("BEGIN; SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    return _EPOCH + timedelta(microseconds=int(microseconds))


def local_day(now: datetime, time_zone: str) -> date:
    """Return the calendar day at `now` in the IANA time zone."""
    return now.astimezone(ZoneInfo(time_zone)).date()


def hour_of(moment: datetime) -> datetime:
    """Return the beginning of the hour that the moment lies in."""
    return moment.replace(minute=0, second=0, microsecond=0)


class StartOfDay(Func):
    """The start of the UTC day that a column of dates names, as `TruncUTC` returns it."""

    output_field = DateTimeField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="(%(expressions)s || ' 00:00:00')", **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "(%(expressions)s::timestamp AT TIME ZONE 'UTC')"
        return self.as_sql(compiler, connection, template=template, **context)


class TruncUTC(Func):
    """The start of the UTC minute, hour or day of a column, e.g. `TruncUTC("day", "hour")`."""

    # Django's `Trunc` calls a Python function for each row on SQLite.

    output_field = DateTimeField()

    def __init__(self, width: Width, column: str) -> None:
        super().__init__(F(column))
        self._width = width

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        length, suffix = _KEPT_CHARACTERS_AND_SUFFIX[self._width]
        template = f"(substr(%(expressions)s, 1, {length}) || '{suffix}')"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = f"date_trunc('{self._width}', %(expressions)s, 'UTC')"
        return self.as_sql(compiler, connection, template=template, **context)
