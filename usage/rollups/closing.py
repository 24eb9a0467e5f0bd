"""Closing of days: a day of UTC that is over is added up once, so that reports need not read its hours.

In one transaction, its rows of `DailyUsage`, `DailyTotals` and `DailyFirstTokens` are written and its
`ClosedDay` says so. A day is closed an hour after its end. An entry carries the time at which its transaction
began, and transactions end within seconds, so no entry of the day comes later: corrections of an old charge
count in the hour in which they are written. If a row is changed by hand all the same, or a transaction stood
still for an hour, `verifyledger` finds the difference and `manage.py rollup` closes the days again.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import Min, OuterRef, Subquery

from accounts.models import Organization
from usage.database.clock import database_now
from usage.database.snapshot import snapshot
from usage.database.sql import db_value, execute
from usage.models import (
    ClosedDay,
    DailyFirstTokens,
    DailyTotals,
    DailyUsage,
    Dimension,
    HourlyUsage,
    ItemizedDay,
    Kind,
    LedgerEntry,
)
from usage.models.generations import FAILED
from usage.rollups import retention_horizon
from usage.rollups.closed_days import COLUMNS, DAY, GROUP, SUMS, midnight, spans
from usage.rollups.first_token_buckets import bucket_of

# Far longer than any transaction.
GRACE = timedelta(hours=1)
# The most ledger entries in one part of a day, which are read in about 3 s: a fifth of a read's time limit.
MAX_ENTRIES = 50_000
# Requests by dimension, member and bucket.
FirstTokens = Counter[tuple[Dimension, str, int]]

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """A span of time within a day; its end is exclusive."""

    start: datetime
    end: datetime


def close_next() -> date | None:
    """Close the oldest day that is over and not closed, and return it; None when there is none.

    Any number of processes may call it at the same time, outside of transactions: two that close the same day
    write the same rows. A caller with a time limit for each call makes the three steps itself.
    """
    if (day := next_day()) is None:
        return None
    close(day, sum(map(count_first_tokens, parts(day)), FirstTokens()))
    return day


def next_day() -> date | None:
    """Return the oldest day that is over and not closed, None when there is none."""
    return _first_not_closed(first_open_day(ClosedDay))


def parts(day: date) -> Iterator[Part]:
    """Yield the day's parts that have ledger entries: `MAX_ENTRIES` each, and more only if they are of the
    same moment. Each step reads the times of one part from their index.
    """
    part = Part(midnight(day), midnight(day))
    while part.end < (end := midnight(day + DAY)):
        entries = LedgerEntry.objects.filter(created_at__gte=part.end, created_at__lt=end)
        times = entries.order_by("created_at", "id").values_list("created_at", flat=True)
        if (first := times.first()) is None:
            return
        beyond = times[MAX_ENTRIES : MAX_ENTRIES + 1].first() or end
        yield (part := Part(first, max(beyond, first + timedelta.resolution)))


def count_first_tokens(part: Part) -> FirstTokens:
    """Count the times to first token of a part of a day; this reads all of its charges."""
    charges = LedgerEntry.objects.filter(
        kind=Kind.CHARGE, created_at__gte=part.start, created_at__lt=part.end
    )
    rows = charges.order_by().values_list("generation__first_token_ms", *GROUP)
    with snapshot():
        # Requests that are alike in everything are counted first: a tenth of the work on a busy day.
        alike = Counter(
            (bucket_of(ms), *members) for ms, *members in rows.iterator(chunk_size=5_000) if ms is not None
        )
    counts = FirstTokens()
    for (bucket, *members), requests in alike.items():
        for dimension, member in zip(COLUMNS, members, strict=True):
            counts[dimension, str(member), bucket] += requests
    return counts


def close(day: date, first_tokens: FirstTokens) -> None:
    """Close the day, with the counts of all of its parts."""
    # Asked after the counting: generations that were dropped meanwhile are missing in these counts.
    # Retention demands that the day was closed before, so its counts are there already.
    is_dropped = retention_horizon.is_dropped(day)
    with transaction.atomic():
        # First: a second process that closes the day, and a rebuild of the hours, wait for this row.
        ClosedDay.objects.update_or_create(day=day, defaults={"has_first_tokens": True})
        _add_up(day)
        if not is_dropped:
            DailyFirstTokens.objects.filter(dimension__in=Dimension.values, day=day).delete()
            rows = (
                DailyFirstTokens(
                    day=day, dimension=dimension, member=member, bucket=bucket, requests=requests
                )
                for (dimension, member, bucket), requests in sorted(first_tokens.items())
            )
            DailyFirstTokens.objects.bulk_create(rows, batch_size=500)


def first_open_day(table: type[ClosedDay | ItemizedDay]) -> date:
    """Return the first day that is not over, and delete the table's rows from that day on: they were written
    because the database's clock was fast for a while.
    """
    first_open = (database_now() - GRACE).date()
    too_early = table._default_manager.filter(day__gte=first_open)
    # Read first: a DELETE waits for SQLite's writers even if there is nothing to delete.
    if days := [str(row) for row in too_early]:
        log.warning("%s: written too early, by a clock that was fast: %s", table.__name__, ", ".join(days))
        too_early.delete()
    return first_open


def _first_not_closed(first_open: date) -> date | None:
    # One look into the index for each organization, with which it begins.
    first_hour = HourlyUsage.objects.filter(organization=OuterRef("pk")).order_by("hour").values("hour")[:1]
    organizations = Organization.objects.annotate(first_hour=Subquery(first_hour))
    first = organizations.aggregate(first=Min("first_hour"))["first"]
    if first is None:
        return None
    open_spans = spans(midnight(first.date()), midnight(first_open)).open
    return open_spans[0][0].date() if open_spans else None


def _add_up(day: date) -> None:
    """Write the day's rows of `DailyUsage` and `DailyTotals` again."""
    DailyUsage.objects.filter(organization__in=Organization.objects.values("pk"), day=day).delete()
    DailyTotals.objects.filter(dimension__in=Dimension.values, day=day).delete()
    every = "organization_id IN (SELECT id FROM accounts_organization)"  # the indexes begin with it
    group, columns, sums = ", ".join(GROUP), ", ".join(SUMS), ", ".join(f"SUM({name})" for name in SUMS)
    execute(
        f"""INSERT INTO usage_dailyusage ({group}, day, {columns})
        SELECT {group}, %s, {sums} FROM usage_hourlyusage
        WHERE {every} AND hour >= %s AND hour < %s GROUP BY {group}""",  # noqa: S608  the text is ours
        [db_value(day), db_value(midnight(day)), db_value(midnight(day + DAY))],
    )
    outcomes = ", ".join(f"'{outcome.value}'" for outcome in FAILED)
    failed = f"SUM(CASE WHEN outcome IN ({outcomes}) THEN requests ELSE 0 END)"
    for dimension, member in COLUMNS.items():
        execute(
            f"""INSERT INTO usage_dailytotals (dimension, member, day, failed_requests, {columns})
            SELECT '{dimension.value}', CAST({member} AS VARCHAR(128)), day, {failed}, {sums}
            FROM usage_dailyusage WHERE {every} AND day = %s GROUP BY {member}, day""",  # noqa: S608
            [db_value(day)],
        )
