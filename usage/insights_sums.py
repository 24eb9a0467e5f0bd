"""Sums of the hourly rollup: of a range, of its hours or days, of the groups that spent most."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from operator import add
from typing import Any, Literal, TypeVar

from django.db.models import Case, F, IntegerField, Model, Q, QuerySet, Sum, Value, When
from django.db.models.expressions import Combinable

from accounts.models import APIKey, Organization, Project
from usage.insights_range import Range
from usage.insights_starts import StartOf
from usage.insights_time_limit import time_limit
from usage.models import HourlyUsage, Outcome

GroupBy = Literal["organization", "project", "key", "model", "outcome"]
MAX_GROUPS = 8
"""Groups of a series that have their own name; more colours nobody can tell apart."""
FAILED = (Outcome.FAILED, Outcome.WORKER_LOST, Outcome.NOT_STARTED)
"""The outcomes that count as errors. A client that left is none."""
_COLUMNS: dict[GroupBy, str] = {
    "organization": "organization_id",
    "project": "project_id",
    "key": "api_key_id",
    "model": "model",
    "outcome": "outcome",
}

Rows = TypeVar("Rows", bound=Model)


@dataclass(frozen=True, slots=True)
class Filters:
    """Which requests a report is about: those that fit all that is set."""

    organization_id: int | None = None
    project_id: int | None = None
    api_key_id: int | None = None
    model: str | None = None
    outcome: str | None = None

    def narrow(self, rows: QuerySet[Rows]) -> QuerySet[Rows]:
        """Those rows that fit; their model has these columns."""
        wanted = {each.name: getattr(self, each.name) for each in fields(Filters)}
        return rows.filter(**{name: value for name, value in wanted.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of requests. Cached tokens are among the prompt's, reasoning tokens among the completion's."""

    requests: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    amount_nanodollars: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Totals)))

    @property
    def total_tokens(self) -> int:
        """Of prompts and completions."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def error_rate(self) -> float:
        """The failed requests' share, from 0 to 1; 0 without requests."""
        return self.failed_requests / self.requests if self.requests else 0.0

    @property
    def cached_share(self) -> float:
        """The cached tokens' share of the prompts', from 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The sums of one organization, project, key, model or outcome."""

    group_id: str
    label: str
    totals: Totals


@dataclass(frozen=True, slots=True)
class Point:
    """One group's sums in one bucket. `group_id` is None for what is not one group: "all" of them, or the "other" ones."""

    start: datetime
    group_id: str | None
    group_label: str
    totals: Totals


@time_limit()
def totals(over: Range, filters: Filters | None = None) -> Totals:
    """The sums of the whole range."""
    return _totals(_hours(over, filters or Filters()).aggregate(**_SUMS))


@time_limit()
def top(over: Range, group_by: GroupBy, filters: Filters | None = None, n: int = 5) -> list[Row]:
    """The `n` groups that spent most, the dearest first; among equals the one with more requests."""
    column = _COLUMNS[group_by]
    rows = _hours(over, filters or Filters()).values(column).annotate(**_SUMS)
    found = {row[column]: _totals(row) for row in rows.order_by("-sum_amount_nanodollars", "-sum_requests", column)[:n]}
    labels = _labels(group_by, found)
    return [Row(str(key), labels[key], sums) for key, sums in found.items()]


@time_limit()
def series(over: Range, group_by: GroupBy | None = None, filters: Filters | None = None) -> list[Point]:
    """Each bucket's sums by group, for every bucket and group: by time, then the dearest group first.

    The `MAX_GROUPS` dearest groups have their own points, the rest of them are one group, "other".
    """
    filters = filters or Filters()
    groups: list[tuple[Any, str | None, str]] = [(None, None, "all")]
    if group_by is not None:
        dearest = _dearest(over, group_by, filters)
        labels = _labels(group_by, dearest)
        groups = [(key, str(key), labels[key]) for key in dearest[:MAX_GROUPS]]
        groups += [(None, None, "other")] if len(dearest) > MAX_GROUPS else []
    sums = _sums_by_start(over, group_by, filters, [key for key, _, _ in groups])
    nothing = Totals()
    return [Point(start, name, label, sums.get((start, key), nothing)) for start in over.starts() for key, name, label in groups]


_SUMS = {
    # As the fields of `Totals`, and in their order; by another name, because these names are the rollup's columns.
    f"sum_{each.name}": Sum("requests", filter=Q(outcome__in=FAILED), default=0)
    if each.name == "failed_requests"
    else Sum(each.name, default=0)
    for each in fields(Totals)
}


def _totals(row: Mapping[str, int]) -> Totals:
    return Totals(*(row[name] for name in _SUMS))


def _hours(over: Range, filters: Filters) -> QuerySet[HourlyUsage]:
    """The rollup's rows of that time. Each is found by its organization: the index begins with it."""
    rows = filters.narrow(HourlyUsage.objects.filter(hour__gte=over.start, hour__lt=over.end))
    if filters.organization_id is None:
        rows = rows.filter(organization_id__in=_organizations(filters))
    return rows


def _organizations(filters: Filters) -> QuerySet[Any, Any]:
    """The ids of the organizations that the filters leave."""
    if filters.api_key_id is not None:
        return Project.objects.filter(api_keys=filters.api_key_id).values("organization_id")
    if filters.project_id is not None:
        return Project.objects.filter(pk=filters.project_id).values("organization_id")
    return Organization.objects.order_by().values("id")


def _dearest(over: Range, group_by: GroupBy, filters: Filters) -> list[Any]:
    """The groups as `top` has them, one more than get their own name."""
    column = _COLUMNS[group_by]
    rows = _hours(over, filters).values_list(column).annotate(spent=Sum("amount_nanodollars"), count=Sum("requests"))
    return [key for key, _, _ in rows.order_by("-spent", "-count", column)[: MAX_GROUPS + 1]]


def _sums_by_start(over: Range, group_by: GroupBy | None, filters: Filters, named: list[Any]) -> dict[tuple[datetime, Any], Totals]:
    """The sums by bucket and group; if None is among the named, it stands for the groups that are not."""
    # Where days are UTC's the database adds up their hours.
    rows = _hours(over, filters).annotate(start=StartOf("day" if over.has_utc_days else "hour", "hour"), group=_group(group_by, named))
    starts = over.starts()
    sums: dict[tuple[datetime, Any], list[int]] = {}
    for start, group, *numbers in rows.order_by().values_list("start", "group").annotate(**_SUMS):
        key = (starts[max(bisect_right(starts, start) - 1, 0)], group)
        known = sums.get(key)
        sums[key] = numbers if known is None else list(map(add, known, numbers))
    return {key: Totals(*numbers) for key, numbers in sums.items()}


def _group(group_by: GroupBy | None, named: list[Any]) -> Combinable:
    """What rows are grouped by; the column itself where all have a name, which costs the database much less."""
    if group_by is None:
        return Value(None, IntegerField())
    column = _COLUMNS[group_by]
    return Case(When(**{f"{column}__in": named[:-1]}, then=F(column)), default=None) if None in named else F(column)


def _labels(group_by: GroupBy, ids: Iterable[Any]) -> dict[Any, str]:
    """How the groups are called now."""
    match group_by:
        case "organization":
            return {row.pk: row.name for row in Organization.objects.filter(pk__in=ids)}
        case "project":
            return {row.pk: str(row) for row in Project.objects.filter(pk__in=ids).select_related("organization")}
        case "key":
            return {row.pk: str(row) for row in APIKey.objects.filter(pk__in=ids)}
        case "model":
            return {name: name for name in ids}
        case "outcome":
            return dict(Outcome.choices)
