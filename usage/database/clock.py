"""The database's clock: the only one that stamps rows, so that no machine's own clock matters."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from django.db import connection

from usage.database.sql import fetch_all


def database_now() -> datetime:
    """The database's time now, in UTC; SQLite has none of its own, as it runs in this process."""
    if connection.vendor == "sqlite":
        return datetime.now(UTC)
    now: datetime = fetch_all("SELECT clock_timestamp()")[0][0]
    return now


def local_day(now: datetime, time_zone: str) -> date:
    """The calendar day at `now` in that IANA time zone."""
    return now.astimezone(ZoneInfo(time_zone)).date()
