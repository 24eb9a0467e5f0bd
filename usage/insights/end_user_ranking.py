"""The end users of a project that spent most in a range of UTC days, from a bounded number of rows.

Those of a calendar month are at the front of an index. Other ranges are added up if they have few rows.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import QuerySet, Sum

from accounts.models import Project
from usage.insights.range import Range
from usage.models import DailyEndUserUsage, MonthlyEndUserUsage

MAX_END_USERS = 100
MAX_ROWS = 20_000
"""The most rows that are added up for a range that is not a calendar month."""


def days_of(over: Range) -> tuple[date, date]:
    """Return the first and the last UTC day of the range."""
    # The end is not included: a range that ends at midnight does not contain the day that begins then.
    first, last = (moment.astimezone(UTC).date() for moment in (over.start, over.end - timedelta.resolution))
    return first, last


def can_rank(over: Range, project_id: int, model: str | None) -> bool:
    """Return whether the range is a calendar month of all models, or has no more than `MAX_ROWS`."""
    return _is_month(over, model) or not _days(over, project_id)[MAX_ROWS:].exists()


def largest(over: Range, project_id: int, model: str | None) -> list[int]:
    """Return the ids of the end users that spent most, the most expensive first; `can_rank` must hold."""
    if _is_month(over, model):
        rows: QuerySet[Any, Any] = MonthlyEndUserUsage.objects.filter(
            project=project_id, month=days_of(over)[0], requests__gt=0
        )
        order = ["-amount_nanodollars", "-requests", "end_user_id"]
        return list(rows.order_by(*order).values_list("end_user_id", flat=True)[:MAX_END_USERS])
    rows = _days(over, project_id)
    rows = rows.filter(model=model) if model is not None else rows
    summed = rows.values("end_user_id").annotate(amount=Sum("amount_nanodollars"), sent=Sum("requests"))
    found = summed.order_by("-amount", "-sent", "end_user_id")[:MAX_END_USERS]
    return [row["end_user_id"] for row in found]


def _days(over: Range, project_id: int) -> QuerySet[DailyEndUserUsage]:
    first, last = days_of(over)
    # Each day by itself, so that the index leads past the other projects' end users.
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    owner = Project.objects.filter(pk=project_id).values("organization_id")
    return DailyEndUserUsage.objects.filter(
        organization_id__in=owner, day__in=days, project=project_id
    ).order_by()


def _is_month(over: Range, model: str | None) -> bool:
    """Return whether the range is a month, or the current one up to its last hour, of all models."""
    first, last = days_of(over)
    next_month = (first.replace(day=1) + timedelta(days=32)).replace(day=1)
    # Nothing is later than today.
    is_whole = last + timedelta(days=1) == next_month or (
        last < next_month and last >= datetime.now(UTC).date()
    )
    return model is None and first.day == 1 and is_whole
