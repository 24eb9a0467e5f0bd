"""The rows of the rollups that cover a range of time, from the smallest table that can answer.

`DailyTotals` has closed days by one dimension, `DailyUsage` by all of them. Hours are read for the rest:
today, the edges of a range that are not full UTC days, and buckets that are hours or days of another zone.
`DailyEndUserUsage` has all days of the projects that count their end users.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, Literal, TypeVar

from django.db.models import Aggregate, Count, Model, Q, QuerySet, Sum, Value
from django.db.models.expressions import Combinable

from accounts import end_users
from accounts.models import EndUser, Organization, Project
from usage.database.clock import StartOfDay, TruncUTC
from usage.insights import end_user_ranking
from usage.insights.range import Range
from usage.models import DailyEndUserUsage, DailyTotals, DailyUsage, Dimension, HourlyUsage, Kind, LedgerEntry
from usage.models.generations import FAILED
from usage.rollups import closed_days
from usage.rollups.closed_days import COLUMNS

GroupBy = Literal["organization", "project", "key", "model", "outcome", "error", "end_user", "metadata"]
# Those whose members are numbers.
NUMERIC_GROUPS: tuple[GroupBy, ...] = ("organization", "project", "key")
_NUMERIC = (Dimension.ORGANIZATION, Dimension.PROJECT, Dimension.KEY)
_SUMS = {f"sum_{name}": Sum(name, default=0) for name in closed_days.SUMS}
_FAILED = Sum("requests", filter=Q(outcome__in=FAILED), default=0)

# Fields that are no columns of rollups.
_NO_COLUMNS = (
    "error", "metadata", "metadata_key", "is_test", "is_by_request", "is_stored_name", "home_id", "is_void",
)  # fmt: skip

# SQLite's SQLITE_MAX_COMPOUND_SELECT is 500.
_MAX_PARTS = 400

Rows = TypeVar("Rows", bound=Model)


@dataclass(frozen=True, slots=True)
class Filters:
    """Restricts a report to the requests that match every field that is not None.

    No rollup has errors and metadata: reports by them, or about one, read the newest requests. Reports by end
    user, or about one, read the newest requests if `is_by_request` is set. Otherwise they read the rollup of
    end users, which needs `project_id` and cannot be filtered by key or outcome.
    """

    organization_id: int | None = None
    project_id: int | None = None
    api_key_id: int | None = None
    model: str | None = None
    outcome: str | None = None
    end_user: str | None = None
    """The name as clients send it; with `is_stored_name`, as rows have it."""
    error: str | None = None
    metadata: tuple[str, str] | None = None
    """A key, and the value that matching requests have for it."""
    metadata_key: str | None = None
    """The key by whose values a report is grouped."""
    is_test: bool | None = None
    """Whether the requests are those of test keys (True) or of live keys (False)."""
    is_by_request: bool = False
    """Whether end users' sums are those of the newest requests, with failures, instead of the rollup's."""
    is_stored_name: bool = False
    """Whether `end_user` is already the stored name, so that no look-up is needed."""
    home_id: int | None = None
    """The project's organization, if it is known, so that lists of requests do not look it up."""
    is_void: bool = False
    """Whether organization, project and key are known not to belong together, so that no request matches."""

    @property
    def has_days_of_end_user(self) -> bool:
        """Return whether the report is about an end user, and is the rollup's."""
        return self.end_user is not None and not self.is_by_request

    def narrow(self, rows: QuerySet[Rows]) -> QuerySet[Rows]:
        """Return the rows that match; their model must have these columns, and the key."""
        rows = rows.filter(**self.by_column())
        return rows if self.is_test is None else rows.filter(api_key__is_test=self.is_test)

    def by_column(self) -> dict[str, Any]:
        """Return the values that are set, by their column in the rollups."""
        columns = [each.name for each in fields(Filters) if each.name not in _NO_COLUMNS]
        values = {name: getattr(self, name) for name in columns}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Source:
    """Rows, and how to group them and add them up."""

    rows: QuerySet[Any]
    start: Combinable
    """The start of the bucket that a row counts in."""
    group: str
    """The column of the group."""
    sums: Mapping[str, Aggregate]
    """The failed requests, then `closed_days.SUMS`, always in this order."""
    is_text: bool = False
    """Whether the group is a number that is stored as text."""


def rows_of(queries: Sequence[QuerySet[Any, Any]]) -> Iterator[Any]:
    """Yield the rows of all queries, which have the same columns, from one statement; from several if days
    that are closed and open alternate so often that SQLite would refuse it.
    """
    for start in range(0, len(queries), _MAX_PARTS):
        first, *others = queries[start : start + _MAX_PARTS]
        yield from first.union(*others, all=True) if others else first


def sources(
    over: Range, group_by: GroupBy | None, filters: Filters, *, by_start: bool = False
) -> Iterator[Source]:
    """Yield the sources that cover the range; with `by_start` their rows can be grouped by bucket."""
    if group_by == "end_user" or filters.end_user is not None:
        yield _days_of_end_users(over, group_by, filters)
        return
    # A day of another zone, and an hour, can't be computed from rows of UTC days.
    if by_start and not over.has_utc_days:
        yield _hours(over, over.start, over.end, group_by, filters)
        return
    spans = closed_days.spans(over.start, over.end)
    for first, last in spans.closed:
        yield _days(first, last, group_by, filters)
    for start, end in spans.open:
        yield _hours(over, start, end, group_by, filters)


def overages(over: Range, filters: Filters) -> Source:
    """Return the ledger entries of the range that charge for usage beyond a hold."""
    rows = LedgerEntry.objects.filter(kind=Kind.OVERAGE, created_at__gte=over.start, created_at__lt=over.end)
    # Of tokens the charges have the sums.
    sums: dict[str, Aggregate] = {
        f"sum_{name}": Sum(Value(0), default=0) for name in ("failed_requests", *closed_days.SUMS[:-1])
    }
    sums |= {
        "sum_requests": Count("amount_nanodollars"),
        "sum_amount_nanodollars": _SUMS["sum_amount_nanodollars"],
    }
    return Source(filters.narrow(rows), TruncUTC("hour", "created_at"), "outcome", sums)


def _hours(over: Range, start: datetime, end: datetime, group_by: GroupBy | None, filters: Filters) -> Source:
    rows = _by_index(HourlyUsage.objects.filter(hour__gte=start, hour__lt=end), filters)
    bucket = TruncUTC("day" if over.has_utc_days else "hour", "hour")
    return Source(rows, bucket, _column(group_by), {"sum_failed_requests": _FAILED, **_SUMS})


def _days(first: date, last: date, group_by: GroupBy | None, filters: Filters) -> Source:
    dimension = single_dimension(group_by, filters)
    if dimension is None:
        rows = _by_index(DailyUsage.objects.filter(day__gte=first, day__lt=last), filters)
        return Source(rows, StartOfDay("day"), _column(group_by), {"sum_failed_requests": _FAILED, **_SUMS})
    totals = DailyTotals.objects.filter(dimension=dimension, day__gte=first, day__lt=last)
    for member in filters.by_column().values():
        totals = totals.filter(member=str(member))
    sums = {"sum_failed_requests": Sum("failed_requests", default=0), **_SUMS}
    return Source(totals, StartOfDay("day"), "member", sums, is_text=dimension in _NUMERIC)


def _days_of_end_users(over: Range, group_by: GroupBy | None, filters: Filters) -> Source:
    """Return the full UTC days of the range, of the end user or of those that spent most.

    They don't know which requests failed.
    """
    first, last = end_user_ranking.days_of(over)
    project = filters.project_id
    assert project is not None
    if (name := filters.end_user) is not None:
        # Both forms, because a project may have begun or stopped to hash its end users in between.
        same = EndUser.objects.filter(project=project, name__in=[name, end_users.digest(name)])
        ids = list(same.values_list("pk", flat=True))
    else:
        ids = end_user_ranking.largest(over, project, filters.model)
    # Without the project, which the end users imply: no other index fits then.
    rows = DailyEndUserUsage.objects.filter(end_user__in=ids, day__gte=first, day__lte=last)
    rows = rows.filter(model=filters.model) if filters.model is not None else rows
    group = "end_user__name" if group_by == "end_user" else _column(group_by)
    return Source(rows, StartOfDay("day"), group, {"sum_failed_requests": Sum(Value(0), default=0), **_SUMS})


def _column(group_by: GroupBy | None) -> str:
    return COLUMNS[Dimension(group_by or Dimension.OUTCOME)]


def single_dimension(group_by: GroupBy | None, filters: Filters) -> Dimension | None:
    """Return the one dimension that the report groups or filters by; None if there are several.

    A report without any is one of all outcomes.
    """
    if filters.is_test is not None:
        return None
    columns = filters.by_column()
    dimensions = {dimension for dimension, column in COLUMNS.items() if column in columns}
    dimensions |= {Dimension(group_by)} if group_by else set()
    if len(dimensions) > 1:
        return None
    return dimensions.pop() if dimensions else Dimension.OUTCOME


def _by_index(rows: QuerySet[Rows], filters: Filters) -> QuerySet[Rows]:
    """Return the rows that match, found by their organizations, with which the index begins."""
    rows = filters.narrow(rows)
    if filters.organization_id is not None:
        return rows
    owners: QuerySet[Any, Any]
    if filters.api_key_id is not None:
        owners = Project.objects.filter(api_keys=filters.api_key_id).values("organization_id")
    elif filters.project_id is not None:
        owners = Project.objects.filter(pk=filters.project_id).values("organization_id")
    else:
        # All organizations, as a list that the index can be searched by. Without it, the database would
        # read the whole table.
        owners = Organization.objects.order_by().values("id")
    return rows.filter(organization_id__in=owners)
