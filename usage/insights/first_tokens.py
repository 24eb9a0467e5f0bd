"""Percentiles of the time from claim to first token.

Closed days are counted, by one dimension each. Of the rest, such as today, the newest requests stand for all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db.models import Count, F, Sum, Value

from usage.insights import request_sums
from usage.insights.generation_list import newest_first_tokens
from usage.insights.range import Range
from usage.insights.sources import Filters, rows_of, single_dimension
from usage.models import DailyFirstTokens, Dimension
from usage.rollups import closed_days
from usage.rollups.first_token_buckets import ms_of, percentile

# Columns of a chart that are read as `percentiles` reads a range although they are no closed days: today, and
# at most two others. Each reads as many requests as the whole range does.
_MAX_OPEN_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In milliseconds, at most 4.4 % from what was measured; exact if no day is counted."""

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
    reading = Reading(ranges, filters)
    found = reading.percentiles(rows_of(reading.queries), requests)
    return [found[over] for over in ranges]


class Reading:
    """The queries for the percentiles of some ranges. Each has the rows of a part of one range: the number of
    the part, a bucket or a time in milliseconds as `value`, and how many `times` it was measured.
    """

    @classmethod
    def of_chart(cls, over: Range, columns: Sequence[Range], filters: Filters) -> "Reading":
        """Return the reading of the range if its closed days are counted, and of its columns if at most
        `_MAX_OPEN_COLUMNS` are no closed days; otherwise that of no range.
        """
        if _dimension(filters) is None:
            return cls([], filters)
        open_count = sum(bool(_parts(column, filters)[1]) for column in columns)
        measured = columns if open_count <= _MAX_OPEN_COLUMNS else []
        return cls(list(dict.fromkeys([over, *measured])), filters)

    def __init__(self, ranges: Sequence[Range], filters: Filters) -> None:
        self.ranges = ranges
        self.queries: list[Any] = []
        # Of each part the number of its range, and what was sampled; None if the part is counted.
        self._parts: list[tuple[int, Range | None]] = []
        spans: list[tuple[int, Range]] = []
        for number, over in enumerate(ranges):
            closed, sampled = _parts(over, filters)
            spans += [(number, span) for span in sampled]
            for first, last in closed:
                self.queries.append(_counted(first, last, filters, len(self.queries)))
                self._parts.append((number, None))
        samples = newest_first_tokens([span for _, span in spans], filters)
        for span, newest in zip(spans, samples, strict=True):
            rows = newest.order_by().annotate(part=Value(len(self.queries)), value=F("first_token_ms"))
            self.queries.append(rows.values_list("part", "value").annotate(times=Count("id")))
            self._parts.append(span)

    def statement(self) -> tuple[str, list[Any]]:
        """Return the SQL of the queries, and its parameters, to read them together with something else."""
        found = []
        for query in self.queries:
            with suppress(EmptyResultSet):
                found.append(query.query.sql_with_params())
        statement = " UNION ALL ".join(
            # PostgreSQL's sums are decimals, and would make decimals of all that stands in their column.
            f"SELECT part, value, CAST(times AS bigint) AS times FROM ({sql}) AS part_{at}"  # noqa: S608
            for at, (sql, _) in enumerate(found)
        )
        return statement, [parameter for _, parameters in found for parameter in parameters]

    def percentiles(
        self, rows: Iterable[tuple[int, int, int]], requests: Mapping[Range, int]
    ) -> dict[Range, Percentiles | None]:
        """Return the percentiles of each range from the rows of the queries; see `percentiles`."""
        counts: list[Counter[int]] = [Counter() for _ in self.queries]
        for part, value, times in rows:
            counts[part][ms_of(value) if self._parts[part][1] is None else value] += times
        found: list[list[tuple[Counter[int], float]]] = [[] for _ in self.ranges]
        for sample, (number, measured) in zip(counts, self._parts, strict=True):
            known = requests.get(measured, 0) if measured is not None and sample else 0
            found[number].append((sample, max(known / sample.total(), 1.0) if known else 1.0))
        return {over: _together(parts) for over, parts in zip(self.ranges, found, strict=True)}


def _together(parts: Sequence[tuple[Counter[int], float]]) -> Percentiles | None:
    counts: defaultdict[int, float] = defaultdict(float)
    for part, weight in parts:
        for ms, times in part.items():
            counts[ms] += times * weight
    if not counts:
        return None
    return Percentiles(percentile(counts, 50), percentile(counts, 95), sum(part.total() for part, _ in parts))


def _dimension(filters: Filters) -> Dimension | None:
    return None if request_sums.are_needed(None, filters) else single_dimension(None, _narrowest(filters))


def _narrowest(filters: Filters) -> Filters:
    """Return the filters without the organization, if it is known to be that of the project."""
    is_own = filters.project_id is not None and filters.home_id == filters.organization_id
    return replace(filters, organization_id=None) if is_own and not filters.is_void else filters


def _parts(over: Range, filters: Filters) -> tuple[list[tuple[date, date]], list[Range]]:
    """Return the runs of closed days that are counted, and the parts of the range that are sampled."""
    if _dimension(filters) is None:
        return [], [over]
    spans = closed_days.spans(over.start, over.end)
    return spans.closed, [Range(start, end, over.bucket) for start, end in spans.open]


def _counted(first: date, last: date, filters: Filters, part: int) -> Any:
    rows = DailyFirstTokens.objects.filter(dimension=_dimension(filters), day__gte=first, day__lt=last)
    for member in _narrowest(filters).by_column().values():
        rows = rows.filter(member=str(member))
    rows = rows.order_by().annotate(part=Value(part), value=F("bucket"))
    return rows.values_list("part", "value").annotate(times=Sum("requests"))
