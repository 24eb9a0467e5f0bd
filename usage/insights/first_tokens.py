"""How soon requests begin to answer: percentiles of a range, from counts where its days are counted and from
a sample where not.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import date

from django.db.models import Sum

from usage.database.time_limit import time_limit
from usage.insights.generation_list import newest_first_token_ms
from usage.insights.range import Range
from usage.insights.sources import Filters, only_dimension, wanted
from usage.insights.sums import totals
from usage.models import ClosedDay, DailyFirstTokens, Dimension
from usage.rollups import closed_days, daily_first_tokens
from usage.rollups.closed_days import Spans


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In milliseconds, at most 4.4 % from what was measured."""

    p50: int
    p95: int
    sample_size: int
    """How many requests they are made of."""


@time_limit()
def first_token_ms(over: Range, filters: Filters | None = None) -> Percentiles | None:
    """From claim to first token, of the requests in the range that fit; None when none has begun to answer.

    Closed days are counted, by one dimension each. Of the rest, such as today, the newest requests stand for
    all of them.
    """
    filters = filters or Filters()
    dimension = only_dimension(None, filters)
    spans = Spans([], [(over.start, over.end)])
    if dimension is not None:
        spans = closed_days.spans(over.start, over.end, ClosedDay.objects.filter(has_first_tokens=True))
    parts = [(_counted(first, last, dimension, filters), 1.0) for first, last in spans.closed if dimension]
    # With nothing else to weigh it against, any weight will do.
    is_alone = not parts and len(spans.open) == 1
    parts += [
        _sampled(Range(start, end, over.bucket), filters, is_weighed=not is_alone)
        for start, end in spans.open
    ]
    counts: defaultdict[int, float] = defaultdict(float)
    for part, weight in parts:
        for bucket, requests in part.items():
            counts[bucket] += requests * weight
    if not counts:
        return None
    size = sum(part.total() for part, _ in parts)
    return Percentiles(
        daily_first_tokens.percentile(counts, 50), daily_first_tokens.percentile(counts, 95), size
    )


def _counted(first: date, last: date, dimension: Dimension, filters: Filters) -> Counter[int]:
    rows = DailyFirstTokens.objects.filter(dimension=dimension, day__gte=first, day__lt=last)
    for member in wanted(filters).values():
        rows = rows.filter(member=str(member))
    return Counter(dict(rows.order_by().values_list("bucket").annotate(Sum("requests"))))


def _sampled(over: Range, filters: Filters, *, is_weighed: bool) -> tuple[Counter[int], float]:
    """The newest requests, and for how many each of them stands."""
    sample = Counter(map(daily_first_tokens.bucket_of, newest_first_token_ms(over, filters)))
    if not sample or not is_weighed:
        return sample, 1.0
    return sample, max(totals(over, filters).requests / sample.total(), 1.0)
