"""What test keys have used: requests and tokens that cost nothing and ask no upstream, by model and outcome.

A key is a test key for ever, so that the rollups, which are by key, tell them from others. They have rows of
their own in none: each day's rows of the organizations that have test keys are read, 20 ms for a year of 20
organizations.
"""

from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet, Sum

from accounts.models import APIKey
from usage.database.time_limit import time_limit
from usage.insights.range import Range
from usage.insights.sums import Totals
from usage.models import DailyUsage, HourlyUsage
from usage.models.outcomes import FAILED
from usage.rollups import closed_days

_COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


@time_limit()
def sums_of_test_keys(over: Range) -> dict[tuple[str, str], Totals]:
    """The sums by model and outcome; without money, of which there is none."""
    keys = APIKey.objects.filter(is_test=True)
    found: dict[tuple[str, str], Totals] = {}
    for rows in _rows(over):
        # By its organization, too: the index begins with it.
        theirs = rows.filter(
            api_key__in=keys.values("pk"), organization__in=keys.values("project__organization_id")
        )
        sums = (
            theirs.order_by()
            .values_list("model", "outcome")
            .annotate(**{f"sum_{name}": Sum(name) for name in _COUNTS})
        )
        for model, outcome, requests, *tokens in sums:
            part = Totals(requests, requests if outcome in FAILED else 0, *tokens)
            found[model, outcome] = found.get((model, outcome), Totals()) + part
    return found


def _rows(over: Range) -> Iterator[QuerySet[Any]]:
    """Closed days, and the hours of what is left."""
    spans = closed_days.spans(over.start, over.end)
    for first, last in spans.closed:
        yield DailyUsage.objects.filter(day__gte=first, day__lt=last)
    for start, end in spans.open:
        yield HourlyUsage.objects.filter(hour__gte=start, hour__lt=end)
