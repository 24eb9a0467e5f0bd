"""The database's clock: the only one that stamps rows, so that no machine's own clock matters."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from django.db import connection

_QUERIES = {
    "postgresql": "SELECT clock_timestamp()",
    "sqlite": "SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')",
}


def database_now() -> datetime:
    """The database's time now, in UTC."""
    with connection.cursor() as cursor:
        cursor.execute(_QUERIES[connection.vendor])
        (now,) = cursor.fetchone()
    return now if isinstance(now, datetime) else datetime.fromisoformat(now).replace(tzinfo=UTC)


def local_day(now: datetime, time_zone: str) -> date:
    """The calendar day at `now` in that IANA time zone."""
    return now.astimezone(ZoneInfo(time_zone)).date()
