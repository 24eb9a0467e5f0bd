"""The ledger summed by hour: written by the settling transaction, and rebuilt from the ledger on demand.

`closing.py` adds the hours of a day up once the day is over.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from usage.database.clock import hour_of
from usage.database.sql import execute, insert
from usage.models import (
    SPENT,
    ClosedDay,
    DailyEndUserUsage,
    DailyTotals,
    DailyUsage,
    HourlyUsage,
    Kind,
    MonthlyEndUserUsage,
)
from usage.models.budget_keys import BudgetOwners
from usage.rollups import closing
from usage.rollups.closed_days import SUMS

_GROUP = ("organization_id", "hour", "project_id", "api_key_id", "model", "outcome")
_END_USER_GROUP = ("organization_id", "day", "project_id", "end_user_id", "model")

Group = tuple[Any, ...]


class Entry(NamedTuple):
    """A ledger entry as it is written: its fields are columns, of which the owners' are gathered."""

    kind: str
    generation_id: UUID
    owners: BudgetOwners
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

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the values of `ENTRY_COLUMNS`."""
        kind, generation_id, owners, *others = self
        return kind, generation_id, *owners, *others


ENTRY_COLUMNS = (*Entry._fields[:2], *BudgetOwners._fields, *Entry._fields[3:])


def add(entries: Iterable[Entry]) -> None:
    """Add the entries (at least one) to their hours, and those of end users that count to their days; must
    run in the transaction that writes them.
    """
    hours: dict[Group, list[int]] = {}
    days: dict[Group, list[int]] = {}
    for entry in entries:
        owners = entry.owners
        group = (owners.project_id, owners.api_key_id, entry.model, entry.outcome)
        _count(hours, (owners.organization_id, hour_of(entry.created_at), *group), entry)
        if owners.end_user_id is not None:
            person = (owners.project_id, owners.end_user_id, entry.model)
            _count(days, (owners.organization_id, entry.created_at.astimezone(UTC).date(), *person), entry)
    _grow("usage_hourlyusage", _GROUP, hours)
    if days:
        _grow("usage_dailyenduserusage", _END_USER_GROUP, days)


def _count(totals: dict[Group, list[int]], group: Group, entry: Entry) -> None:
    numbers = totals.setdefault(group, [0] * len(SUMS))
    # An overage or a correction changes the amount of a request that its charge has counted.
    numbers[0] += entry.kind == Kind.CHARGE
    for position, name in enumerate(SUMS[1:], start=1):
        numbers[position] += getattr(entry, name)


def _grow(table: str, columns: tuple[str, ...], totals: dict[Group, list[int]]) -> None:
    # Sorted, so that all writers lock the rows in one order.
    rows = [(*group, *numbers) for group, numbers in sorted(totals.items())]
    grown = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in SUMS)
    conflict = f"ON CONFLICT ({', '.join(columns)}) DO UPDATE SET {grown}"
    insert(table, (*columns, *SUMS), rows, conflict)


class Rebuilt(NamedTuple):
    """How many rows there were, and are now."""

    hours_before: int
    hours: int
    days_before: int
    days: int


def rebuild() -> Rebuilt:
    """Rebuild all hours from the ledger in one transaction, and then close again all days that are over.

    Settlements and other rebuilds wait for the transaction, so nothing is counted twice or lost. Until a day
    is closed, reports read its hours.
    """
    with transaction.atomic():
        if connection.vendor == "postgresql":  # SQLite's IMMEDIATE transaction is alone already
            # Settlements wait for this lock, and the heartbeats of the same process behind them. So reapers
            # must wait too, or they would take over running requests. `usage_generation` comes first, as in a
            # settlement, so that the two can't deadlock.
            tables = "usage_generation, usage_ledgerentry, usage_hourlyusage, usage_closedday"
            execute(f"LOCK TABLE {tables} IN EXCLUSIVE MODE", [])
            # The service's time limits are for requests; a year's books take longer.
            execute("SET LOCAL statement_timeout = 0", [])
        before = (HourlyUsage.objects.count(), DailyUsage.objects.count())
        daily = (ClosedDay, DailyTotals, DailyUsage, DailyEndUserUsage)
        for table in (*daily, MonthlyEndUserUsage, HourlyUsage):
            table.objects.all().delete()
        _add_up_ledger()
    while closing.close_next():
        pass
    return Rebuilt(before[0], HourlyUsage.objects.count(), before[1], DailyUsage.objects.count())


def _add_up_ledger() -> None:
    hour, day = {
        "sqlite": ("substr(created_at, 1, 13) || ':00:00'", "substr(created_at, 1, 10)"),  # times are text
        "postgresql": ("date_trunc('hour', created_at, 'UTC')", "(created_at AT TIME ZONE 'UTC')::date"),
    }[connection.vendor]
    sums = ", ".join(f"SUM({name})" for name in SUMS[1:])
    spent = ", ".join(f"'{kind.value}'" for kind in SPENT)
    for table, columns, start, only in (
        ("usage_hourlyusage", _GROUP, hour, ""),
        ("usage_dailyenduserusage", _END_USER_GROUP, day, "AND end_user_id IS NOT NULL"),
    ):
        group = ", ".join((columns[0], "of_start", *columns[2:]))
        execute(
            f"""INSERT INTO {table} ({", ".join((*columns, *SUMS))})
            SELECT {group.replace("of_start", f"{start} AS of_start")},
                SUM(CASE WHEN kind = 'charge' THEN 1 ELSE 0 END), {sums}
            FROM usage_ledgerentry WHERE kind IN ({spent}) {only}
            GROUP BY {group} ORDER BY of_start""",  # noqa: S608  the text is ours
            [],
        )
