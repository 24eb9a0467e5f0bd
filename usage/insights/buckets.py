"""One organization's usage in minutes, hours or days of UTC, grouped by any of its dimensions: what its usage
API reads.

Days that are over and hours are the rollups'. Minutes are the ledger's, counted like the rollup but from a
bounded number of entries: when there are more, the buckets end early and the reader goes on from there.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.db.models import Aggregate, Count, F, Q, QuerySet, Sum
from django.db.models.expressions import Combinable

from usage.database.time_limit import time_limit
from usage.database.trunc_utc import TruncUTC, Width
from usage.models import SPENT, DailyUsage, HourlyUsage, Kind, LedgerEntry
from usage.rollups import closed_days

WIDTHS: dict[Width, timedelta] = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
MAX_ENTRIES = 30_000
"""Ledger entries that one answer by the minute adds up."""
_TOKENS_AND_MONEY = ("prompt_tokens", "cached_tokens", "completion_tokens", "amount_nanodollars")


@dataclass(frozen=True, slots=True)
class BucketQuery:
    """What to add up: from `start` up to `end`, both on the width's full UTC minute, hour or day.

    `group_by` are columns: project_id, api_key_id, model. Filters that are None leave everything, empty ones
    nothing.
    """

    organization_id: int
    width: Width
    start: datetime
    end: datetime
    group_by: tuple[str, ...] = ()
    project_ids: tuple[int, ...] | None = None
    api_key_ids: tuple[int, ...] | None = None
    models: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sums:
    """What one group used in one bucket; `group` has a value for each column of `group_by`."""

    group: dict[str, Any]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    amount_nanodollars: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """One minute, hour or day, from `start` up to `end`, and what each group used in it: nothing, if nobody
    used anything.
    """

    start: datetime
    end: datetime
    sums: list[Sums]


@time_limit()
def buckets(query: BucketQuery) -> list[Bucket]:
    """Every bucket from the query's start to its end, or to where `MAX_ENTRIES` end."""
    end = _readable_end(query) if query.width == "minute" else query.end
    found: defaultdict[datetime, list[Sums]] = defaultdict(list)
    for rows in _rows(query, end):
        for row in rows:
            found[_moment(row["start"])].append(_sums(row, query.group_by))
    width = WIDTHS[query.width]
    starts = [query.start + number * width for number in range((end - query.start) // width)]
    return [Bucket(start, start + width, found.get(start, [])) for start in starts]


def _rows(query: BucketQuery, end: datetime) -> Iterator[QuerySet[Any, dict[str, Any]]]:
    """The sums by bucket and group; each bucket's are all in one of them."""
    if query.width == "minute":
        yield _added_up(_fitting(_entries(query, end), query), TruncUTC("minute", "created_at"), query)
        return
    mine = {"organization_id": query.organization_id}
    spans = (
        closed_days.spans(query.start, end)
        if query.width == "day"
        else closed_days.Spans([], [(query.start, end)])
    )
    for first, last in spans.closed:
        days = DailyUsage.objects.filter(**mine, day__gte=first, day__lt=last)
        yield _added_up(_fitting(days, query), F("day"), query)
    for start, stop in spans.open:
        hours = HourlyUsage.objects.filter(**mine, hour__gte=start, hour__lt=stop)
        yield _added_up(_fitting(hours, query), TruncUTC(query.width, "hour"), query)


def _entries(query: BucketQuery, end: datetime) -> QuerySet[LedgerEntry]:
    return LedgerEntry.objects.filter(
        organization_id=query.organization_id, created_at__gte=query.start, created_at__lt=end
    )


def _readable_end(query: BucketQuery) -> datetime:
    """Where the entries that may be read end, on a full minute; one minute is read, however many it has."""
    beyond = (
        _entries(query, query.end)
        .order_by("created_at")
        .values_list("created_at", flat=True)[MAX_ENTRIES:]
        .first()
    )
    if beyond is None:
        return query.end
    return max(beyond.replace(second=0, microsecond=0), query.start + WIDTHS["minute"])


def _fitting(rows: QuerySet[Any], query: BucketQuery) -> QuerySet[Any]:
    filters = {
        "project_id__in": query.project_ids,
        "api_key_id__in": query.api_key_ids,
        "model__in": query.models,
    }
    return rows.filter(**{name: values for name, values in filters.items() if values is not None})


def _added_up(rows: QuerySet[Any], start: Combinable, query: BucketQuery) -> QuerySet[Any, dict[str, Any]]:
    requests: Aggregate = Sum("requests")
    if rows.model is LedgerEntry:
        # As in the rollup: what else is spent is more or less money for a request that its charge has
        # counted.
        rows, requests = rows.filter(kind__in=SPENT), Count("id", filter=Q(kind=Kind.CHARGE))
    sums = {f"sum_{name}": Sum(name) for name in _TOKENS_AND_MONEY}
    columns = ("start", *query.group_by)
    rows = rows.annotate(start=start).order_by(*columns)
    found: QuerySet[Any, dict[str, Any]] = rows.values(*columns).annotate(sum_requests=requests, **sums)
    return found


def _moment(start: datetime | date) -> datetime:
    return start if isinstance(start, datetime) else closed_days.midnight(start)


def _sums(row: dict[str, Any], columns: tuple[str, ...]) -> Sums:
    numbers = {name: row[f"sum_{name}"] for name in ("requests", *_TOKENS_AND_MONEY)}
    return Sums({column: row[column] for column in columns}, **numbers)
