"""The ledger summed by hour: kept up in the settling transaction, and rebuilt from the ledger on demand.

Days that are over are added up from the hours by `closed_days.py`.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from usage.database.clock import database_now
from usage.database.sql import execute, insert
from usage.models import SPENT, ClosedDay, DailyTotals, DailyUsage, HourlyUsage, LedgerEntry
from usage.rollups import closed_days

_GROUP = ("organization_id", "hour", "project_id", "api_key_id", "model", "outcome")
_SUMS = closed_days.SUMS

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
    amount_nanodollars: int


def hour_of(moment: datetime) -> datetime:
    """The full UTC hour that the moment lies in."""
    return moment.replace(minute=0, second=0, microsecond=0)


def summed(entries: Iterable[Entry | LedgerEntry]) -> dict[Group, list[int]]:
    """The entries' sums by group, in the order of the group's columns (so that locks are taken in one order)."""
    totals: dict[Group, list[int]] = {}
    for entry in entries:
        group = (
            entry.organization_id,
            hour_of(entry.created_at),
            entry.project_id,
            entry.api_key_id,
            entry.model,
            entry.outcome,
        )
        numbers = totals.setdefault(group, [0] * len(_SUMS))
        for position, name in enumerate(_SUMS[1:], start=1):
            numbers[position] += getattr(entry, name)
        # An overage and a correction are more or less money for a request that its charge has counted.
        numbers[0] += entry.kind == "charge"
    return dict(sorted(totals.items()))


def add(entries: Iterable[Entry]) -> None:
    """Add the entries (at least one) to their hours; must run in the transaction that writes them."""
    rows = [(*group, *numbers) for group, numbers in summed(entries).items()]
    grown = ", ".join(f"{name} = usage_hourlyusage.{name} + excluded.{name}" for name in _SUMS)
    insert(
        "usage_hourlyusage",
        (*_GROUP, *_SUMS),
        rows,
        f"ON CONFLICT ({', '.join(_GROUP)}) DO UPDATE SET {grown}",
    )


class Rebuilt(NamedTuple):
    """How many rows there were, and are now."""

    hours_before: int
    hours: int
    days_before: int
    days: int


def rebuild() -> Rebuilt:
    """Drop and rebuild all hours from the ledger, and from them all days that are over, in one transaction.

    Settlements wait meanwhile, so that nothing is counted twice or lost; two rebuilds wait for each other.
    """
    with transaction.atomic():
        _lock_tables()
        before = (HourlyUsage.objects.count(), DailyUsage.objects.count())
        for table in (ClosedDay, DailyTotals, DailyUsage, HourlyUsage):
            table.objects.all().delete()
        execute(_ALL_HOURS[connection.vendor], [])
        closed_days.close_all(database_now())
        return Rebuilt(before[0], HourlyUsage.objects.count(), before[1], DailyUsage.objects.count())


def _all_hours(hour: str) -> str:
    """The statement that adds up the whole ledger; `hour` is the start of the hour that an entry was written
    in.
    """
    columns = ", ".join(_SUMS)
    sums = ", ".join(f"SUM({name})" for name in _SUMS[1:])
    spent = ", ".join(f"'{kind.value}'" for kind in SPENT)
    return f"""INSERT INTO usage_hourlyusage (organization_id, hour, project_id, api_key_id, model, outcome, {columns})
        SELECT organization_id, {hour}, project_id, api_key_id, model, outcome, SUM(CASE WHEN kind = 'charge' THEN 1 ELSE 0 END), {sums}
        FROM usage_ledgerentry WHERE kind IN ({spent})
        GROUP BY organization_id, {hour}, project_id, api_key_id, model, outcome ORDER BY {hour}"""  # noqa: S608  the text is ours


_ALL_HOURS: Mapping[str, str] = {
    # SQLite keeps times as text.
    "sqlite": _all_hours("substr(created_at, 1, 13) || ':00:00'"),
    "postgresql": _all_hours("date_trunc('hour', created_at, 'UTC')"),
}


def _lock_tables() -> None:
    """Keep settlements out; SQLite's IMMEDIATE transaction is alone already."""
    if connection.vendor == "postgresql":
        execute("LOCK TABLE usage_ledgerentry, usage_hourlyusage IN EXCLUSIVE MODE", [])
        # The service's time limits are for requests; a year's books take longer.
        execute("SET LOCAL statement_timeout = 0", [])
