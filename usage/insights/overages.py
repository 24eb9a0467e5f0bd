"""What was charged beyond holds: an overage is an entry of its own, and rare enough to have an index of its
own.
"""

from dataclasses import dataclass

from django.db.models import Count, Sum

from usage.database.time_limit import time_limit
from usage.insights.range import Range
from usage.insights.sources import Filters
from usage.models import Kind, LedgerEntry


@dataclass(frozen=True, slots=True)
class Overage:
    """So many entries, and what they add up to."""

    count: int = 0
    nanodollars: int = 0


@time_limit()
def overage(over: Range, filters: Filters | None = None) -> Overage:
    """The overages that were written in the range."""
    rows = LedgerEntry.objects.filter(kind=Kind.OVERAGE, created_at__gte=over.start, created_at__lt=over.end)
    found = (
        (filters or Filters())
        .narrow(rows)
        .aggregate(count=Count("amount_nanodollars"), sum=Sum("amount_nanodollars", default=0))
    )
    return Overage(found["count"], found["sum"])


@time_limit()
def overages_by_model() -> dict[str, Overage]:
    """All overages that there are."""
    rows = LedgerEntry.objects.filter(kind=Kind.OVERAGE).order_by().values_list("model")
    found = rows.annotate(count=Count("amount_nanodollars"), sum=Sum("amount_nanodollars"))
    return {model: Overage(*numbers) for model, *numbers in found}
