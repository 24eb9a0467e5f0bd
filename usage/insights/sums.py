"""Sums of the rollups: of a range, of its hours or days, and of the groups that spent most."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import add
from typing import Any

from django.db.models import Case, F, When
from django.db.models.expressions import Combinable

from accounts.models import APIKey, Organization, Project
from usage.database.replica import report
from usage.database.time_limit import time_limit
from usage.insights import request_sums
from usage.insights.range import DAY, Range
from usage.insights.sources import Filters, GroupBy, Source, sources
from usage.models import Outcome
from usage.rollups import closed_days

# Groups of a series that have their own name: nobody can tell more colours apart.
MAX_GROUPS = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of requests. Cached and written tokens are among the prompt's, reasoning tokens among the
    completion's.
    """

    requests: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    amount_nanodollars: int = 0

    @classmethod
    def of(cls, sums: Iterable[int]) -> "Totals":
        """Return the totals of the sums of a source, in their order."""
        failed, requests, *others = sums
        return cls(requests, failed, *others)

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Totals)))

    def __sub__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(Totals)))

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def uncached_tokens(self) -> int:
        """Return the prompt's tokens that were neither read from a cache nor written to one."""
        return self.prompt_tokens - self.cached_tokens - self.cache_write_tokens

    @property
    def error_rate(self) -> float:
        """Return the share of failed requests, from 0 to 1; 0 without requests."""
        return self.failed_requests / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The sums of one group, such as a project, a model or an error code."""

    group_id: str
    label: str
    totals: Totals


@dataclass(frozen=True, slots=True)
class Point:
    """The sums of one group in one bucket. `group_id` is None for the groups "all" and "other"."""

    start: datetime
    group_id: str | None
    group_label: str
    totals: Totals


@report
@time_limit()
def totals(over: Range, filters: Filters | None = None) -> Totals:
    """Return the sums of the whole range."""
    parts = (source.rows.aggregate(**source.sums) for source in _sources(over, None, filters or Filters()))
    return sum((Totals.of(list(part.values())) for part in parts), Totals())


@report
@time_limit()
def top(over: Range, group_by: GroupBy, filters: Filters | None = None, n: int = 5) -> list[Row]:
    """Return the `n` groups that spent most, the most expensive first, then the one with more requests."""
    found = _by_amount(over, group_by, filters or Filters())[:n]
    labels = _labels(group_by, [key for key, _ in found])
    return [Row(str(key), labels[key], sums) for key, sums in found]


@report
@time_limit()
def series(over: Range, group_by: GroupBy | None = None, filters: Filters | None = None) -> list[Point]:
    """Return a point for every bucket and group: by time, then the most expensive group first.

    The `MAX_GROUPS` most expensive groups have their own points; the rest are one group, "other". Of end
    users, these are all other requests of the project.
    """
    filters = filters or Filters()
    groups: list[tuple[Any, str | None, str]] = [(None, None, "all")]
    if group_by is not None:
        ranked = [key for key, _ in _by_amount(over, group_by, filters)]
        labels = _labels(group_by, ranked[:MAX_GROUPS])
        groups = [(key, str(key), labels[key]) for key in ranked[:MAX_GROUPS]]
        groups += [(None, None, "other")] if len(ranked) > MAX_GROUPS else []
    sums = _sums_by_bucket(over, group_by, filters, [key for key, _, _ in groups])
    nothing = Totals()
    return [
        Point(start, name, label, sums.get((bucket, key), nothing))
        for bucket, start in enumerate(over.starts())
        for key, name, label in groups
    ]


@report
@time_limit()
def sums_by_group(over: Range, group_by: GroupBy, filters: Filters | None = None) -> dict[Any, Totals]:
    """Return the sums of all groups (of end users: of the most expensive), by their ids or names."""
    found: dict[Any, Totals] = {}
    for source in _sources(over, group_by, filters or Filters()):
        rows = source.rows.order_by().values_list(source.group).annotate(**source.sums)
        for key, *numbers in rows:
            group = int(key) if source.is_text else key
            found[group] = found.get(group, Totals()) + Totals.of(numbers)
    return found


def _sources(
    over: Range, group_by: GroupBy | None, filters: Filters, *, by_start: bool = False
) -> Iterator[Source]:
    """Yield the rollups that cover the range, or its newest requests where the rollups know too little."""
    if request_sums.are_needed(group_by, filters):
        yield request_sums.source(over, group_by, filters)
        return
    yield from sources(over, group_by, filters, by_start=by_start)


def _by_amount(over: Range, group_by: GroupBy, filters: Filters) -> list[tuple[Any, Totals]]:
    found = sums_by_group(over, group_by, filters)
    # The id decides last, so that equal groups keep their colours from one view of the page to the next.
    return sorted(found.items(), key=lambda row: (-row[1].amount_nanodollars, -row[1].requests, row[0]))


def _sums_by_bucket(
    over: Range, group_by: GroupBy | None, filters: Filters, named: list[Any]
) -> dict[tuple[int, Any], Totals]:
    """Return the sums by bucket and group; None among the named groups stands for all others.

    A bucket is named by its index: on the day on which clocks are put back, two of them begin at 2:00.
    """
    starts = [start.astimezone(UTC) for start in over.starts()]
    sums: dict[tuple[int, Any], list[int]] = {}
    for source in _sources(over, group_by, filters, by_start=True):
        rows = source.rows.annotate(start=source.start)
        groups = ["start"]
        if group_by is not None:
            rows, groups = rows.annotate(group=_group(source, named)), ["start", "group"]
        for row in rows.order_by().values_list(*groups).annotate(**source.sums):
            group = row[1] if group_by is not None else None
            # Sources of days yield dates, those of hours moments.
            moment = row[0] if isinstance(row[0], datetime) else closed_days.midnight(row[0])
            # The UTC day of an end user may begin before the range does; it counts in the first bucket.
            bucket = max(bisect_right(starts, moment) - 1, 0)
            key = (bucket, int(group) if source.is_text and group is not None else group)
            sums[key] = list(map(add, sums.get(key, [0] * len(source.sums)), row[len(groups) :]))
    found = {key: Totals.of(numbers) for key, numbers in sums.items()}
    if group_by == "end_user" and None in named:
        return _with_rest(found, over, filters, named)
    return found


def _with_rest(
    found: dict[tuple[int, Any], Totals], over: Range, filters: Filters, named: list[Any]
) -> dict[tuple[int, Any], Totals]:
    """Return the sums of the named end users, and of each UTC day all others and requests without one: a sum
    of all end users would read a row for each.
    """
    end = -(-(over.end - _EPOCH) // DAY) * DAY + _EPOCH
    days = Range(over.start - (over.start - _EPOCH) % DAY, end, "day")
    rest = _sums_by_bucket(days, None, filters, [None])
    own = {key: sums for key, sums in found.items() if key[1] in named and key[1] is not None}
    for (bucket, _), sums in own.items():
        rest[bucket, None] = rest.get((bucket, None), Totals()) - sums
    return own | rest


def _group(source: Source, named: list[Any]) -> Combinable:
    if None not in named:
        return F(source.group)  # which costs the database much less
    chosen = [member for member in named if member is not None]
    members = list(map(str, chosen)) if source.is_text else chosen
    return Case(When(**{f"{source.group}__in": members}, then=F(source.group)), default=None)


def _labels(group_by: GroupBy, ids: Iterable[Any]) -> dict[Any, str]:
    """Return the current names of the groups."""
    match group_by:
        case "organization":
            return {row.pk: row.name for row in Organization.objects.filter(pk__in=ids)}
        case "project":
            return {
                row.pk: str(row) for row in Project.objects.filter(pk__in=ids).select_related("organization")
            }
        case "key":
            return {row.pk: str(row) for row in APIKey.objects.filter(pk__in=ids)}
        case "model" | "end_user" | "error":
            return {name: name for name in ids}
        case "metadata":
            return {value: value or "none" for value in ids}
        case "outcome":
            return dict(Outcome.choices)
