"""The usage of the last `DAYS` UTC days, today included, of the rows that a page lists."""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import CharField, F, QuerySet, Sum
from django.db.models.functions import Cast

from usage.database.clock import StartOfDay, TruncUTC
from usage.database.time_limit import time_limit
from usage.insights.sources import rows_of
from usage.models import DailyTotals, Dimension, HourlyUsage
from usage.rollups import closed_days

DAYS = 30
_SUMS = {
    "all_requests": Sum("requests"),
    "all_tokens": Sum(F("prompt_tokens") + F("completion_tokens")),
    "all_nanodollars": Sum("amount_nanodollars"),
}
# A row's id, a day, and its requests, tokens and amount on that day.
_Day = tuple[int, date, int, int, int]


def first_day_of(now: datetime) -> datetime:
    """Return the midnight with which the last `DAYS` days begin."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=DAYS - 1)


@time_limit()
def spent(dimension: Dimension, organizations: Mapping[int, int], now: datetime) -> dict[int, int]:
    """Return the nanodollars of each row that `organizations` names, in a constant number of queries."""
    amounts = dict.fromkeys(organizations, 0)
    for member, _, _, _, nanodollars in sums_by_day(dimension, organizations, first_day_of(now)):
        amounts[member] += nanodollars
    return amounts


def sums_by_day(
    dimension: Dimension, organizations: Mapping[int, int], first_day: datetime
) -> Iterator[_Day]:
    """Yield the days of organizations, projects or keys; their organizations are given by their ids."""
    spans = closed_days.spans(first_day, first_day + timedelta(days=DAYS))
    column, members = closed_days.COLUMNS[dimension], list(organizations)
    parts: list[QuerySet[Any]] = [
        DailyTotals.objects.filter(
            dimension=dimension, day__gte=first, day__lt=last, member__in=map(str, members)
        ).annotate(owner=F("member"), start=StartOfDay("day"))
        for first, last in spans.closed
    ]
    parts += [
        # By their organizations, too, with which the index of hours begins.
        HourlyUsage.objects.filter(
            organization_id__in=set(organizations.values()), hour__gte=start, hour__lt=end
        )
        .filter(**{f"{column}__in": members})
        .annotate(owner=Cast(column, CharField()), start=TruncUTC("day", "hour"))
        for start, end in spans.open
    ]
    queries = [part.order_by().values_list("owner", "start").annotate(**_SUMS) for part in parts]
    for owner, midnight, *numbers in rows_of(queries):
        yield (int(owner), midnight.date(), *numbers)
