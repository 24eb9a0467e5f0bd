"""The ledger summed by hour: written by the settling transaction, and rebuilt from the ledger on demand.

`closing.py` adds the hours of a day up once the day is over.
"""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from usage.database.sql import execute, insert
from usage.models import SPENT, ClosedDay, DailyTotals, DailyUsage, HourlyUsage, Kind
from usage.rollups import closing
from usage.rollups.closed_days import SUMS

_GROUP = ("organization_id", "hour", "project_id", "api_key_id", "model", "outcome")

Group = tuple[Any, ...]


class Entry(NamedTuple):
    """A ledger entry as it is written: the columns and their values."""

    kind: str
    generation_id: UUID
    organization_id: int
    project_id: int
    api_key_id: int
    model: str
    outcome: str
    budget_day: date
    created_at: datetime
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cache_write_tokens: int
    cache_write_1h_tokens: int
    amount_nanodollars: int


def hour_of(moment: datetime) -> datetime:
    """Return the full UTC hour that the moment lies in."""
    return moment.replace(minute=0, second=0, microsecond=0)


def add(entries: Iterable[Entry]) -> None:
    """Add the entries (at least one) to their hours; must run in the transaction that writes them."""
    totals: dict[Group, list[int]] = {}
    for entry in entries:
        owner = (entry.project_id, entry.api_key_id, entry.model, entry.outcome)
        group = (entry.organization_id, hour_of(entry.created_at), *owner)
        numbers = totals.setdefault(group, [0] * len(SUMS))
        # An overage or a correction changes the amount of a request that its charge has counted.
        numbers[0] += entry.kind == Kind.CHARGE
        for position, name in enumerate(SUMS[1:], start=1):
            numbers[position] += getattr(entry, name)
    # Sorted, so that all writers lock the rows in one order.
    rows = [(*group, *numbers) for group, numbers in sorted(totals.items())]
    grown = ", ".join(f"{name} = usage_hourlyusage.{name} + excluded.{name}" for name in SUMS)
    conflict = f"ON CONFLICT ({', '.join(_GROUP)}) DO UPDATE SET {grown}"
    insert("usage_hourlyusage", (*_GROUP, *SUMS), rows, conflict)


class Rebuilt(NamedTuple):
    """How many rows there were, and are now."""

    hours_before: int
    hours: int
    days_before: int
    days: int


def rebuild() -> Rebuilt:
    """Rebuild all hours from the ledger in one transaction, and then close all days that are over anew.

    Settlements and other rebuilds wait for the transaction, so nothing is counted twice or lost. Until a day
    is closed, reports read its hours.
    """
    with transaction.atomic():
        if connection.vendor == "postgresql":  # SQLite's IMMEDIATE transaction is alone already
            execute("LOCK TABLE usage_ledgerentry, usage_hourlyusage, usage_closedday IN EXCLUSIVE MODE", [])
            # The service's time limits are for requests; a year's books take longer.
            execute("SET LOCAL statement_timeout = 0", [])
        before = (HourlyUsage.objects.count(), DailyUsage.objects.count())
        for table in (ClosedDay, DailyTotals, DailyUsage, HourlyUsage):
            table.objects.all().delete()
        _add_up_ledger()
    while closing.close_next():
        pass
    return Rebuilt(before[0], HourlyUsage.objects.count(), before[1], DailyUsage.objects.count())


def _add_up_ledger() -> None:
    hour = {
        "sqlite": "substr(created_at, 1, 13) || ':00:00'",  # times are text
        "postgresql": "date_trunc('hour', created_at, 'UTC')",
    }[connection.vendor]
    columns = ", ".join(SUMS)
    sums = ", ".join(f"SUM({name})" for name in SUMS[1:])
    spent = ", ".join(f"'{kind.value}'" for kind in SPENT)
    execute(
        f"""INSERT INTO usage_hourlyusage ({", ".join(_GROUP)}, {columns})
        SELECT organization_id, {hour} AS of_hour, project_id, api_key_id, model, outcome,
            SUM(CASE WHEN kind = 'charge' THEN 1 ELSE 0 END), {sums}
        FROM usage_ledgerentry WHERE kind IN ({spent})
        GROUP BY organization_id, of_hour, project_id, api_key_id, model, outcome ORDER BY of_hour""",  # noqa: S608  the text is ours
        [],
    )
