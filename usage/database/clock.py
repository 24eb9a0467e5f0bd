"""The database's clock, which stamps all rows, so that no other machine's clock matters."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from django.db import connection

from usage.database.sql import fetch_all


def database_now() -> datetime:
    """Return the database's time in UTC. SQLite runs in this process and has its clock."""
    if connection.vendor == "sqlite":
        return datetime.now(UTC)
    now: datetime = fetch_all("SELECT clock_timestamp()")[0][0]
    return now


def local_day(now: datetime, time_zone: str) -> date:
    """Return the calendar day at `now` in the IANA time zone."""
    return now.astimezone(ZoneInfo(time_zone)).date()
