"""Percentiles of the time from claim to first token.

Closed days are counted, by one dimension each. Of the rest, such as today, the newest requests stand for all.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db.models import Count, Sum, Value

from usage.insights import request_sums
from usage.insights.generation_list import newest_first_tokens
from usage.insights.range import Range
from usage.insights.sources import Filters, rows_of, single_dimension
from usage.models import DailyFirstTokens, Dimension
from usage.rollups import closed_days
from usage.rollups.first_token_buckets import bucket_of, percentile


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In milliseconds, at most 4.4 % from what was measured."""

    p50: int
    p95: int
    sample_size: int
    """The number of requests that were counted or sampled."""


def weighed(ranges: Sequence[Range], filters: Filters) -> list[Range]:
    """Return the parts of the ranges whose sample is weighed by the number of their requests."""
    parts = [_parts(over, filters) for over in ranges]
    # A sample with nothing to weigh it against needs no weight.
    return [span for closed, sampled in parts for span in sampled if closed or len(sampled) > 1]


def percentiles(
    ranges: Sequence[Range], filters: Filters, requests: Mapping[Range, int]
) -> list[Percentiles | None]:
    """Return the percentiles of each range, in one statement; None when no request has begun to answer.

    `requests` has the number of requests of each range that `weighed` returns.
    """
    queries: list[Any] = []
    weighed_by: list[tuple[int, Range | None]] = []
    spans: list[tuple[int, Range]] = []
    for number, over in enumerate(ranges):
        closed, sampled = _parts(over, filters)
        spans += [(number, span) for span in sampled]
        for first, last in closed:
            queries.append(_counted(first, last, filters, len(queries)))
            weighed_by.append((number, None))
    for span, newest in zip(spans, newest_first_tokens([span for _, span in spans], filters), strict=True):
        rows = newest.order_by().annotate(part=Value(len(queries)))
        queries.append(rows.values_list("part", "first_token_ms").annotate(times=Count("id")))
        weighed_by.append(span)
    counts: list[Counter[int]] = [Counter() for _ in queries]
    for part, value, times in rows_of(queries):
        counts[part][value if weighed_by[part][1] is None else bucket_of(value)] += times
    found: list[list[tuple[Counter[int], float]]] = [[] for _ in ranges]
    for sample, (number, measured) in zip(counts, weighed_by, strict=True):
        known = requests.get(measured, 0) if measured is not None and sample else 0
        found[number].append((sample, max(known / sample.total(), 1.0) if known else 1.0))
    return [_together(parts) for parts in found]


def _together(parts: Sequence[tuple[Counter[int], float]]) -> Percentiles | None:
    counts: defaultdict[int, float] = defaultdict(float)
    for part, weight in parts:
        for bucket, requests in part.items():
            counts[bucket] += requests * weight
    if not counts:
        return None
    return Percentiles(percentile(counts, 50), percentile(counts, 95), sum(part.total() for part, _ in parts))


def _dimension(filters: Filters) -> Dimension | None:
    return None if request_sums.are_needed(None, filters) else single_dimension(None, filters)


def _parts(over: Range, filters: Filters) -> tuple[list[tuple[date, date]], list[Range]]:
    """Return the runs of closed days that are counted, and the parts of the range that are sampled."""
    if _dimension(filters) is None:
        return [], [over]
    spans = closed_days.spans(over.start, over.end)
    return spans.closed, [Range(start, end, over.bucket) for start, end in spans.open]


def _counted(first: date, last: date, filters: Filters, part: int) -> Any:
    rows = DailyFirstTokens.objects.filter(dimension=_dimension(filters), day__gte=first, day__lt=last)
    for member in filters.by_column().values():
        rows = rows.filter(member=str(member))
    rows = rows.order_by().annotate(part=Value(part))
    return rows.values_list("part", "bucket").annotate(times=Sum("requests"))
