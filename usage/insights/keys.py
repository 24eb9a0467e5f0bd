"""The recent activity of API keys: requests by day, their tokens and cost, and the last request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import CharField, F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Cast

from accounts.models import APIKey
from usage.database.clock import StartOfDay, TruncUTC
from usage.database.time_limit import time_limit
from usage.insights.sources import rows_of
from usage.models import DailyTotals, Dimension, Generation, HourlyUsage
from usage.rollups import closed_days

DAYS = 30


@dataclass(frozen=True, slots=True)
class KeyActivity:
    """One key's last `DAYS` UTC days; requests count when they are settled."""

    first_day: datetime
    requests_by_day: Sequence[int]
    """Oldest first, today last."""
    total_tokens: int
    amount_nanodollars: int
    last_request_at: datetime | None
    """When the newest request that is kept was admitted."""

    @property
    def requests(self) -> int:
        return sum(self.requests_by_day)


@time_limit()
def key_activity(keys: Sequence[APIKey], now: datetime) -> dict[int, KeyActivity]:
    """Return the activity by key id, in a constant number of queries if the keys' projects are loaded."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first_day = today - timedelta(days=DAYS - 1)
    days = {key.pk: [0] * DAYS for key in keys}
    sums = {key.pk: (0, 0) for key in keys}
    for key_id, day, requests, tokens, amount in _sums_by_day(keys, first_day):
        days[key_id][(day - first_day.date()).days] += requests
        sums[key_id] = sums[key_id][0] + tokens, sums[key_id][1] + amount
    newest = newest_requests(keys)
    return {key.pk: KeyActivity(first_day, days[key.pk], *sums[key.pk], newest[key.pk]) for key in keys}


_SUMS = {
    "all_requests": Sum("requests"),
    "all_tokens": Sum(F("prompt_tokens") + F("completion_tokens")),
    "all_nanodollars": Sum("amount_nanodollars"),
}
# A key's id, a day, and its requests, tokens and amount on that day.
_Day = tuple[int, date, int, int, int]


def _sums_by_day(keys: Sequence[APIKey], first_day: datetime) -> Iterator[_Day]:
    spans = closed_days.spans(first_day, first_day + timedelta(days=DAYS))
    # By their organizations, too, with which the index of hours begins.
    owners = {key.project.organization_id for key in keys}
    members = [str(key.pk) for key in keys]
    parts: list[QuerySet[Any]] = [
        DailyTotals.objects.filter(
            dimension=Dimension.KEY, day__gte=first, day__lt=last, member__in=members
        ).annotate(owner=F("member"), start=StartOfDay("day"))
        for first, last in spans.closed
    ]
    parts += [
        HourlyUsage.objects.filter(
            organization_id__in=owners, api_key_id__in=keys, hour__gte=start, hour__lt=end
        ).annotate(owner=Cast("api_key_id", CharField()), start=TruncUTC("day", "hour"))
        for start, end in spans.open
    ]
    queries = [part.order_by().values_list("owner", "start").annotate(**_SUMS) for part in parts]
    for owner, midnight, *numbers in rows_of(queries):
        yield (int(owner), midnight.date(), *numbers)


def newest_requests(keys: Sequence[APIKey]) -> dict[int, datetime | None]:
    """Return when each key's newest request was admitted: one look into an index for each key."""
    newest = (
        Generation.objects.filter(api_key=OuterRef("pk")).order_by("-admitted_at").values("admitted_at")[:1]
    )
    rows = APIKey.objects.filter(pk__in=[key.pk for key in keys]).order_by()
    return dict(rows.annotate(newest=Subquery(newest)).values_list("pk", "newest"))
