"""The recent activity of API keys: requests by day, their tokens and cost, and the last request."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import OuterRef, Subquery

from accounts.models import APIKey
from usage.database.time_limit import time_limit
from usage.insights.recent_sums import DAYS, first_day_of, sums_by_day
from usage.models import Dimension, Generation


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
    first_day = first_day_of(now)
    days = {key.pk: [0] * DAYS for key in keys}
    sums = {key.pk: (0, 0) for key in keys}
    owners = {key.pk: key.project.organization_id for key in keys}
    for key_id, day, requests, tokens, amount in sums_by_day(Dimension.KEY, owners, first_day):
        days[key_id][(day - first_day.date()).days] += requests
        sums[key_id] = sums[key_id][0] + tokens, sums[key_id][1] + amount
    newest = newest_requests(keys)
    return {key.pk: KeyActivity(first_day, days[key.pk], *sums[key.pk], newest[key.pk]) for key in keys}


def newest_requests(keys: Sequence[APIKey]) -> dict[int, datetime | None]:
    """Return when each key's newest request was admitted: one look into an index for each key."""
    newest = (
        Generation.objects.filter(api_key=OuterRef("pk")).order_by("-admitted_at").values("admitted_at")[:1]
    )
    rows = APIKey.objects.filter(pk__in=[key.pk for key in keys]).order_by()
    return dict(rows.annotate(newest=Subquery(newest)).values_list("pk", "newest"))
