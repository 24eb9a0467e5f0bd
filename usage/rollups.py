"""The ledger summed by hour: kept up in the settling transaction, and rebuilt from the ledger on demand."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from usage.models import HourlyUsage, LedgerEntry
from usage.sql import execute

_GROUP = ("organization_id", "hour", "project_id", "api_key_id", "model", "outcome")
_SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "amount_nanodollars")

Group = tuple[Any, ...]


def hour_of(moment: datetime) -> datetime:
    """The full UTC hour that the moment lies in."""
    return moment.replace(minute=0, second=0, microsecond=0)


def summed(entries: Iterable[LedgerEntry]) -> dict[Group, list[int]]:
    """The entries' sums by group, in the order of the group's columns (so that locks are taken in one order)."""
    totals: dict[Group, list[int]] = {}
    for entry in entries:
        group = (entry.organization_id, hour_of(entry.created_at), entry.project_id, entry.api_key_id, entry.model, entry.outcome)
        numbers = totals.setdefault(group, [0] * len(_SUMS))
        for position, name in enumerate(_SUMS[1:], start=1):
            numbers[position] += getattr(entry, name)
        # An overage is more money for a request that its charge has counted.
        numbers[0] += entry.kind == "charge"
    return dict(sorted(totals.items()))


def add(entries: Iterable[LedgerEntry]) -> None:
    """Add the entries to their hours; must run in the transaction that writes them."""
    rows = [(*_adapted(group), *numbers) for group, numbers in summed(entries).items()]
    if rows:
        _upsert(rows)


def rebuild() -> tuple[int, int]:
    """Drop and rebuild all hours from the ledger in one transaction: (rows before, rows after).

    Settlements wait meanwhile, so that nothing is counted twice or lost; two rebuilds wait for each other.
    """
    with transaction.atomic():
        _lock_table()
        before, _ = HourlyUsage.objects.all().delete()
        totals: dict[Group, list[int]] = {}
        for entry in LedgerEntry.objects.order_by("id").iterator(chunk_size=5_000):
            for group, numbers in summed([entry]).items():
                known = totals.setdefault(group, [0] * len(_SUMS))
                totals[group] = [a + b for a, b in zip(known, numbers, strict=True)]
        HourlyUsage.objects.bulk_create(
            [HourlyUsage(**dict(zip((*_GROUP, *_SUMS), (*group, *numbers), strict=True))) for group, numbers in sorted(totals.items())],
            batch_size=500,
        )
    return before, len(totals)


def _upsert(rows: list[tuple[Any, ...]]) -> None:
    columns = (*_GROUP, *_SUMS)
    row = "(" + ", ".join(["%s"] * len(columns)) + ")"
    grown = ", ".join(f"{name} = usage_hourlyusage.{name} + excluded.{name}" for name in _SUMS)
    execute(
        f"INSERT INTO usage_hourlyusage ({', '.join(columns)}) VALUES {', '.join([row] * len(rows))} "  # noqa: S608  the text is ours
        f"ON CONFLICT ({', '.join(_GROUP)}) DO UPDATE SET {grown}",
        [value for values in rows for value in values],
    )


def _adapted(group: Group) -> list[Any]:
    return [connection.ops.adapt_datetimefield_value(value) if isinstance(value, datetime) else value for value in group]


def _lock_table() -> None:
    """Keep settlements out; SQLite's IMMEDIATE transaction is alone already."""
    if connection.vendor == "postgresql":
        execute("LOCK TABLE usage_ledgerentry, usage_hourlyusage IN EXCLUSIVE MODE", [])
