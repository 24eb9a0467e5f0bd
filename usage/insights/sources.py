"""Where sums come from: which rows of which rollup cover a range of time, each table read where it is the
smallest that will do.

Of closed days one dimension alone is in `DailyTotals`, several are in `DailyUsage`; hours are read for what
is left: today, the edges of a range that are not full days of UTC, and bars that are hours or days of another
time zone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, Literal, TypeVar

from django.db.models import F, Model, Q, QuerySet, Sum
from django.db.models.expressions import Combinable

from accounts.models import Organization, Project
from usage.database.trunc_utc import TruncUTC
from usage.insights.range import Range
from usage.models import DailyTotals, DailyUsage, Dimension, HourlyUsage
from usage.models.outcomes import FAILED
from usage.rollups import closed_days
from usage.rollups.closed_days import COLUMNS

GroupBy = Literal["organization", "project", "key", "model", "outcome"]
_BY_NUMBER = (Dimension.ORGANIZATION, Dimension.PROJECT, Dimension.KEY)
_SUMS = {f"sum_{name}": Sum(name, default=0) for name in closed_days.SUMS}
_FAILED = Sum("requests", filter=Q(outcome__in=FAILED), default=0)

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
        return rows.filter(**wanted(self))


def wanted(filters: Filters) -> dict[str, Any]:
    """What is set, by column."""
    values = {each.name: getattr(filters, each.name) for each in fields(Filters)}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Source:
    """Some rows, and how they are grouped and added up."""

    rows: QuerySet[Any]
    start: Combinable
    """The start of the bar that a row counts in."""
    group: str
    """The column that says the group."""
    sums: Mapping[str, Sum]
    """What is added up, always in the same order: the failed requests, then `closed_days.SUMS`."""
    is_text: bool = False
    """Whether a number that says the group is text here."""

    def group_in_rows(self, member: Any) -> Any:
        """A group as these rows name it."""
        return str(member) if self.is_text else member


def sources(
    over: Range, group_by: GroupBy | None, filters: Filters, *, by_start: bool = False
) -> Iterator[Source]:
    """What covers the range; with `by_start` its bars can be told apart."""
    if by_start and not over.has_utc_days:
        yield _hours(over, over.start, over.end, group_by, filters)
        return
    spans = closed_days.spans(over.start, over.end)
    for first, last in spans.closed:
        yield _days(first, last, group_by, filters)
    for start, end in spans.open:
        yield _hours(over, start, end, group_by, filters)


def _hours(over: Range, start: datetime, end: datetime, group_by: GroupBy | None, filters: Filters) -> Source:
    rows = _of_organizations(HourlyUsage.objects.filter(hour__gte=start, hour__lt=end), filters)
    bar = TruncUTC("day" if over.has_utc_days else "hour", "hour")
    return Source(rows, bar, _column(group_by), {"sum_failed_requests": _FAILED, **_SUMS})


def _days(first: date, last: date, group_by: GroupBy | None, filters: Filters) -> Source:
    dimension = only_dimension(group_by, filters)
    if dimension is None:
        rows = _of_organizations(DailyUsage.objects.filter(day__gte=first, day__lt=last), filters)
        return Source(rows, F("day"), _column(group_by), {"sum_failed_requests": _FAILED, **_SUMS})
    totals = DailyTotals.objects.filter(dimension=dimension, day__gte=first, day__lt=last)
    for member in wanted(filters).values():
        totals = totals.filter(member=str(member))
    sums = {"sum_failed_requests": Sum("failed_requests", default=0), **_SUMS}
    return Source(totals, F("day"), "member", sums, is_text=dimension in _BY_NUMBER)


def _column(group_by: GroupBy | None) -> str:
    return COLUMNS[Dimension(group_by or Dimension.OUTCOME)]


def only_dimension(group_by: GroupBy | None, filters: Filters) -> Dimension | None:
    """The one that the question is about; None when it is about several. A question about none is one about
    all outcomes.
    """
    columns = wanted(filters)
    asked = {dimension for dimension, column in COLUMNS.items() if column in columns}
    asked |= {Dimension(group_by)} if group_by else set()
    if len(asked) > 1:
        return None
    return asked.pop() if asked else Dimension.OUTCOME


def _of_organizations(rows: QuerySet[Rows], filters: Filters) -> QuerySet[Rows]:
    """Those of the rows that fit, each found by its organization: the index begins with it."""
    rows = filters.narrow(rows)
    return (
        rows
        if filters.organization_id is not None
        else rows.filter(organization_id__in=_organizations(filters))
    )


def _organizations(filters: Filters) -> QuerySet[Any, Any]:
    """The ids of the organizations that the filters leave."""
    if filters.api_key_id is not None:
        return Project.objects.filter(api_keys=filters.api_key_id).values("organization_id")
    if filters.project_id is not None:
        return Project.objects.filter(pk=filters.project_id).values("organization_id")
    return Organization.objects.order_by().values("id")
