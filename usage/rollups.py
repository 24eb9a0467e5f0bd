"""The ledger summed by hour: kept up in the settling transaction, and rebuilt from the ledger on demand."""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from usage.models import SPENT, HourlyUsage, LedgerEntry
from usage.sql import execute, insert

_GROUP = ("organization_id", "hour", "project_id", "api_key_id", "model", "outcome")
_SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "amount_nanodollars")

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
        group = (entry.organization_id, hour_of(entry.created_at), entry.project_id, entry.api_key_id, entry.model, entry.outcome)
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
    insert("usage_hourlyusage", (*_GROUP, *_SUMS), rows, f"ON CONFLICT ({', '.join(_GROUP)}) DO UPDATE SET {grown}")


def rebuild() -> tuple[int, int]:
    """Drop and rebuild all hours from the ledger in one transaction: (rows before, rows after).

    Settlements wait meanwhile, so that nothing is counted twice or lost; two rebuilds wait for each other.
    """
    with transaction.atomic():
        _lock_table()
        before, _ = HourlyUsage.objects.all().delete()
        totals: dict[Group, list[int]] = {}
        for entry in LedgerEntry.objects.filter(kind__in=SPENT).order_by("id").iterator(chunk_size=5_000):
            for group, numbers in summed([entry]).items():
                known = totals.setdefault(group, [0] * len(_SUMS))
                totals[group] = [a + b for a, b in zip(known, numbers, strict=True)]
        HourlyUsage.objects.bulk_create(
            [HourlyUsage(**dict(zip((*_GROUP, *_SUMS), (*group, *numbers), strict=True))) for group, numbers in sorted(totals.items())],
            batch_size=500,
        )
    return before, len(totals)


def _lock_table() -> None:
    """Keep settlements out; SQLite's IMMEDIATE transaction is alone already."""
    if connection.vendor == "postgresql":
        execute("LOCK TABLE usage_ledgerentry, usage_hourlyusage IN EXCLUSIVE MODE", [])
