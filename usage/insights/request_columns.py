"""How many requests of a list finished in each hour or day, and how many of them failed.

The rollups answer if they have all columns of the filters. Otherwise the newest requests of the range do.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db.models import Count, Q

from usage.database.clock import TruncUTC
from usage.database.replica import report
from usage.insights.generation_list import newest_matching
from usage.insights.range import Range
from usage.insights.request_filters import RequestFilters
from usage.insights.sources import Filters
from usage.insights.sums import series
from usage.models.generations import ANY_ERROR, FAILED


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """The requests and the failed requests of each hour or day of a range."""

    counts: Sequence[tuple[int, int]]
    since: datetime | None = None
    """The time of the oldest request that was searched, if older ones were not; else None."""


@report
def request_columns(over: Range, filters: RequestFilters) -> RequestColumns:
    """Return the requests that match the filters and finished in the range; the filters' own times and order
    are ignored.
    """
    if (known := filters.of_rollups) is not None:
        return RequestColumns(_of_rollups(over, known))
    asked = replace(filters, time="settled", since=over.start, until=over.end, sort="newest")
    newest = newest_matching(asked)
    rows = newest.rows.order_by().annotate(start=TruncUTC("hour", "settled_at")).values_list("start")
    starts = [start.astimezone(UTC) for start in over.starts()]
    counts = [(0, 0)] * len(starts)
    for start, requests, failed in rows.annotate(
        requests=Count("id"), failed=Count("id", filter=Q(outcome__in=FAILED))
    ):
        # The first hour may have begun before the range.
        at = max(bisect_right(starts, start) - 1, 0)
        counts[at] = (counts[at][0] + requests, counts[at][1] + failed)
    return RequestColumns(counts, newest.since)


def _of_rollups(over: Range, filters: Filters) -> list[tuple[int, int]]:
    is_any_error = filters.outcome == ANY_ERROR
    points = series(over, None, replace(filters, outcome=None) if is_any_error else filters)
    counts = [(point.totals.requests, point.totals.failed_requests) for point in points]
    return [(failed, failed) for _, failed in counts] if is_any_error else counts
