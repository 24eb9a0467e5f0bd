"""One organization's usage by UTC minute, hour or day, grouped by any dimension: the reads of the usage API.

Hours and days come from the rollups. Minutes come from a bounded number of ledger entries, counted as in the
rollups; if there are more entries, the buckets end early and the reader continues from there.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, get_args

from django.db.models import Aggregate, Count, F, Q, QuerySet, Sum
from django.db.models.expressions import Combinable

from usage.database.clock import TruncUTC, Width
from usage.database.replica import report
from usage.models import SPENT, DailyEndUserUsage, DailyUsage, HourlyUsage, Kind, LedgerEntry
from usage.rollups import closed_days
from usage.rollups.closed_days import Spans

WIDTHS: dict[Width, timedelta] = {name: timedelta(**{f"{name}s": 1}) for name in get_args(Width)}
# Ledger entries that one answer by the minute adds up at most.
MAX_ENTRIES = 30_000


@dataclass(frozen=True, slots=True)
class BucketQuery:
    """A question about the time from `start` up to `end`, both on a full UTC minute, hour or day.

    `group_by` has columns: project_id, api_key_id, model, end_user_id. A filter that is None matches
    everything, an empty one nothing. End users have days, and no keys.
    """

    organization_id: int
    width: Width
    start: datetime
    end: datetime
    group_by: tuple[str, ...] = ()
    project_ids: tuple[int, ...] | None = None
    api_key_ids: tuple[int, ...] | None = None
    models: tuple[str, ...] | None = None
    but_models: tuple[str, ...] = ()
    """Models to leave out."""
    end_user_ids: tuple[int, ...] | None = None

    @property
    def is_by_end_user(self) -> bool:
        return self.end_user_ids is not None or "end_user_id" in self.group_by

    @property
    def is_of_all_end_users(self) -> bool:
        """Return whether each end user has its own sums, which `end_user_pages` reads."""
        return self.end_user_ids is None and "end_user_id" in self.group_by


@dataclass(frozen=True, slots=True)
class Sums:
    """The usage of one group in one bucket; `group` has a value for each column of `group_by`."""

    group: dict[str, Any]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    completion_tokens: int
    amount_nanodollars: int


# The columns that are added up.
NUMBERS = tuple(each.name for each in fields(Sums) if each.name != "group")


@dataclass(frozen=True, slots=True)
class Bucket:
    """One minute, hour or day, with the sums of each group that used something in it."""

    start: datetime
    end: datetime
    sums: list[Sums]


@report
def buckets(query: BucketQuery) -> list[Bucket]:
    """Return every bucket from the start to the end, or to the one that `MAX_ENTRIES` do not cover.

    The query must not be of all end users.
    """
    # Minutes and named end users have as many rows as there are requests or names; hours and days by key are
    # few.
    is_bounded = query.width == "minute" or query.is_by_end_user
    end = _readable_end(query) if is_bounded else query.end
    found: defaultdict[datetime, list[Sums]] = defaultdict(list)
    for rows in _rows(query, end):
        for row in rows:
            start = row["start"]
            moment = start if isinstance(start, datetime) else closed_days.midnight(start)
            numbers = {name: row[f"sum_{name}"] for name in NUMBERS}
            found[moment].append(Sums({column: row[column] for column in query.group_by}, **numbers))
    width = WIDTHS[query.width]
    # Every bucket is there, also without usage: clients draw charts from them.
    starts = [query.start + number * width for number in range((end - query.start) // width)]
    return [Bucket(start, start + width, found.get(start, [])) for start in starts]


def _rows(query: BucketQuery, end: datetime) -> Iterator[QuerySet[Any, dict[str, Any]]]:
    """Yield querysets of sums by bucket and group; each bucket is in one of them."""
    if query.width == "minute":
        yield _added_up(_fitting(_entries(query, end), query), TruncUTC("minute", "created_at"), query)
        return
    if query.is_by_end_user:
        yield _added_up(_fitting(_days_of_end_users(query, end), query), F("day"), query)
        return
    mine = {"organization_id": query.organization_id}
    is_by_day = query.width == "day"
    spans = closed_days.spans(query.start, end) if is_by_day else Spans([], [(query.start, end)])
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


def _days_of_end_users(query: BucketQuery, end: datetime) -> QuerySet[DailyEndUserUsage]:
    return DailyEndUserUsage.objects.filter(
        organization_id=query.organization_id, day__gte=query.start.date(), day__lt=end.date()
    )


def _readable_end(query: BucketQuery) -> datetime:
    """Return the full minute, of end users the full day, up to which entries are read."""
    if query.is_by_end_user:
        rows = _fitting(_days_of_end_users(query, query.end), query).order_by("day")
        # The day of the first entry too many: it is left out as a whole, because half a day would look like
        # a whole one.
        day = rows.values_list("day", flat=True)[MAX_ENTRIES:].first()
        return query.end if day is None else max(closed_days.midnight(day), query.start + WIDTHS["day"])
    times = _entries(query, query.end).order_by("created_at").values_list("created_at", flat=True)
    beyond = times[MAX_ENTRIES:].first()
    if beyond is None:
        return query.end
    return max(beyond.replace(second=0, microsecond=0), query.start + WIDTHS["minute"])


def _fitting(rows: QuerySet[Any], query: BucketQuery) -> QuerySet[Any]:
    filters = {
        "project_id__in": query.project_ids,
        "api_key_id__in": query.api_key_ids,
        "model__in": query.models,
        "end_user_id__in": query.end_user_ids,
    }
    found = rows.filter(**{name: values for name, values in filters.items() if values is not None})
    return found.exclude(model__in=query.but_models) if query.but_models else found


def _added_up(rows: QuerySet[Any], start: Combinable, query: BucketQuery) -> QuerySet[Any, dict[str, Any]]:
    requests: Aggregate = Sum("requests")
    if rows.model is LedgerEntry:
        # As in the rollups: overages and corrections change the amount of a request that its charge counts.
        rows, requests = rows.filter(kind__in=SPENT), Count("id", filter=Q(kind=Kind.CHARGE))
    sums: dict[str, Aggregate] = {f"sum_{name}": Sum(name) for name in NUMBERS} | {"sum_requests": requests}
    columns = ("start", *query.group_by)
    rows = rows.annotate(start=start).order_by(*columns)
    found: QuerySet[Any, dict[str, Any]] = rows.values(*columns).annotate(**sums)
    return found
