"""Percentiles of the time to first token: from the counts of closed days, and from a sample elsewhere."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import date

from django.db.models import Sum

from usage.database.replica import report
from usage.database.time_limit import time_limit
from usage.insights import request_sums
from usage.insights.generation_list import newest_first_token_ms
from usage.insights.range import Range
from usage.insights.sources import Filters, single_dimension
from usage.insights.sums import totals
from usage.models import DailyFirstTokens, Dimension
from usage.rollups import closed_days
from usage.rollups.closed_days import Spans
from usage.rollups.first_token_buckets import bucket_of, percentile


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In milliseconds, at most 4.4 % from what was measured."""

    p50: int
    p95: int
    sample_size: int
    """The number of requests that were counted or sampled."""


@report
@time_limit()
def first_token_ms(over: Range, filters: Filters | None = None) -> Percentiles | None:
    """Return percentiles of the time from claim to first token; None when no request has begun to answer.

    Closed days are counted, by one dimension each. Of the rest, such as today, the newest requests stand for
    all of them.
    """
    filters = filters or Filters()
    dimension = None if request_sums.are_needed(None, filters) else single_dimension(None, filters)
    spans = closed_days.spans(over.start, over.end) if dimension else Spans([], [(over.start, over.end)])
    parts = [(_counted(first, last, dimension, filters), 1.0) for first, last in spans.closed if dimension]
    # A sample with nothing to weigh it against needs no weight, which costs a read.
    is_alone = not parts and len(spans.open) == 1
    for start, end in spans.open:
        span = Range(start, end, over.bucket)
        sample = Counter(map(bucket_of, newest_first_token_ms(span, filters)))
        is_whole = is_alone or not sample
        weight = 1.0 if is_whole else max(totals(span, filters).requests / sample.total(), 1.0)
        parts.append((sample, weight))
    counts: defaultdict[int, float] = defaultdict(float)
    for part, weight in parts:
        for bucket, requests in part.items():
            counts[bucket] += requests * weight
    if not counts:
        return None
    return Percentiles(percentile(counts, 50), percentile(counts, 95), sum(part.total() for part, _ in parts))


def _counted(first: date, last: date, dimension: Dimension, filters: Filters) -> Counter[int]:
    rows = DailyFirstTokens.objects.filter(dimension=dimension, day__gte=first, day__lt=last)
    for member in filters.by_column().values():
        rows = rows.filter(member=str(member))
    return Counter(dict(rows.order_by().values_list("bucket").annotate(Sum("requests"))))
