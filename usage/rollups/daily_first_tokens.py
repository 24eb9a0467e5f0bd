"""How soon requests began to answer, by closed day: counts in buckets, so that percentiles of months add up
from a few rows.

A bucket is an eighth of a doubling: the time that it stands for is at most 4.4 % from what was measured, and
so is a percentile.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import date
from math import log2

from django.db import transaction
from django.db.models import Sum

from usage.models import ClosedDay, DailyFirstTokens, DailyTotals, Dimension, Kind, LedgerEntry
from usage.rollups import closed_days, retention_horizon
from usage.rollups.closed_days import COLUMNS, DAY, midnight

_PER_DOUBLING = 8

Member = tuple[Dimension, str]


def bucket_of(ms: int) -> int:
    """The bucket of a time in milliseconds; nothing is faster than one."""
    return round(_PER_DOUBLING * log2(max(ms, 1)))


def ms_of(bucket: int) -> int:
    """The time in milliseconds that a bucket stands for."""
    return round(2 ** (bucket / _PER_DOUBLING))


def percentile(counts: Mapping[int, float], percent: int) -> int:
    """The nearest-rank percentile of counts by bucket, in milliseconds: so many percent took no longer. There
    is a count at least.
    """
    rank, reached = sum(counts.values()) * percent / 100, 0.0
    for bucket in sorted(counts):
        reached += counts[bucket]
        # A little less will do: scaled counts are no whole numbers.
        if reached >= rank - 1e-6:
            break
    return ms_of(bucket)


def count_next() -> date | None:
    """Count the oldest closed day that is not counted yet; None when there is none, or when it has just been
    reopened.

    For each reaper to call at any time, outside of transactions. It reads the day's charges and looks each
    one's generation up.
    """
    row = ClosedDay.objects.filter(has_first_tokens=False).order_by("day").first()
    if row is None:
        return None
    found = None if _is_dropped(row.day) else _counted(row.day)
    # Asked again: what is dropped meanwhile has no times any more.
    if found is None or _is_dropped(row.day):
        # It was counted before its generations were dropped, and nobody can count it anew.
        ClosedDay.objects.filter(day=row.day).update(has_first_tokens=True)
        return row.day
    requests, counts = found
    with transaction.atomic():
        is_closed = ClosedDay.objects.select_for_update().filter(day=row.day, has_first_tokens=False).exists()
        closed_with = DailyTotals.objects.filter(day=row.day, dimension=Dimension.OUTCOME).aggregate(
            sum=Sum("requests", default=0)
        )
        if not is_closed or closed_with["sum"] != requests:
            return None
        _write(row.day, counts)
    return row.day


def _is_dropped(day: date) -> bool:
    kept_since = retention_horizon.horizon()
    return kept_since is not None and day < kept_since.date()


def _counted(day: date) -> tuple[int, Counter[tuple[Member, int]]]:
    """How many requests were settled that day, and how many of each member's are in each bucket."""
    charges = LedgerEntry.objects.filter(
        kind=Kind.CHARGE, created_at__gte=midnight(day), created_at__lt=midnight(day + DAY)
    )
    rows = charges.order_by().values_list("generation__first_token_ms", *closed_days.GROUP)
    # First what is alike in everything: a tenth of the work where there are many requests.
    alike = Counter(
        (None if ms is None else bucket_of(ms), *members) for ms, *members in rows.iterator(chunk_size=5_000)
    )
    counts = Counter[tuple[Member, int]]()
    for (bucket, *members), requests in alike.items():
        for dimension, member in zip(COLUMNS, members, strict=True) if bucket is not None else ():
            counts[(dimension, str(member)), bucket] += requests
    return alike.total(), counts


def _write(day: date, counts: Counter[tuple[Member, int]]) -> None:
    DailyFirstTokens.objects.filter(dimension__in=Dimension.values, day=day).delete()
    DailyFirstTokens.objects.bulk_create(
        (
            DailyFirstTokens(day=day, dimension=dimension, member=member, bucket=bucket, requests=requests)
            for ((dimension, member), bucket), requests in sorted(counts.items())
        ),
        batch_size=500,
    )
    ClosedDay.objects.filter(day=day).update(has_first_tokens=True)
