"""All that was ever used and charged: counters that only grow, read from the books each time, so that no
crash loses any of it.

What test keys used is left out: whoever is woken by these numbers should not be by a tenant's tests. Sums are
those of closed days and of the hours since. Only overages and corrections are read from the ledger, through
indexes of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import Count, Q, Sum

from usage.database.clock import database_now
from usage.database.snapshot import snapshot
from usage.database.time_limit import time_limit
from usage.insights.overages import Overage, overages_by_model
from usage.insights.range import HOUR, Range
from usage.insights.sandbox_use import sums_of_test_keys
from usage.insights.sums import Totals, sums_by_group
from usage.models import Kind, LedgerEntry, Outcome


@dataclass(frozen=True, slots=True)
class Corrections:
    """How often charges were raised and lowered later, and by how much; neither sum is negative."""

    raised: int = 0
    raised_nanodollars: int = 0
    lowered: int = 0
    lowered_nanodollars: int = 0


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """What one model was used for since its first request."""

    totals: Totals
    overage: Overage
    corrections: Corrections

    @property
    def charged_nanodollars(self) -> int:
        """All charges and overages, as they were settled: unlike the totals' amount, which corrections lower
        too, it only grows.
        """
        return (
            self.totals.amount_nanodollars
            - self.corrections.raised_nanodollars
            + self.corrections.lowered_nanodollars
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """Every outcome's requests, also of those that never were, and the counters of every model that was ever
    used.
    """

    requests: Mapping[str, int]
    models: Mapping[str, ModelCounters]


@time_limit()
def counters() -> Counters:
    """All of one moment: a correction that is in one sum is in the others."""
    with snapshot(has_time_limit=True):
        outcomes, totals = _totals()
        overages, corrections = overages_by_model(), _corrections_by_model()
    requests = {outcome.value: outcomes.get(outcome.value, Totals()).requests for outcome in Outcome}
    models = {
        name: ModelCounters(sums, overages.get(name, Overage()), corrections.get(name, Corrections()))
        for name, sums in totals.items()
    }
    return Counters(requests, models)


def _totals() -> tuple[dict[str, Totals], dict[str, Totals]]:
    """By outcome and by model; a model that only test keys have used is there, with zeros."""
    always = Range(
        datetime(1970, 1, 1, tzinfo=UTC), database_now() + HOUR, "hour"
    )  # "day" would list the days since
    outcomes, models = sums_by_group(always, "outcome"), sums_by_group(always, "model")
    for (model, outcome), tested in sums_of_test_keys(always).items():
        outcomes[outcome] -= tested
        models[model] -= tested
    return outcomes, models


def _corrections_by_model() -> dict[str, Corrections]:
    up, down = Q(amount_nanodollars__gt=0), Q(amount_nanodollars__lt=0)
    rows = LedgerEntry.objects.filter(kind=Kind.CORRECTION).order_by().values_list("model")
    found = rows.annotate(
        raised=Count("amount_nanodollars", filter=up),
        raised_nanodollars=Sum("amount_nanodollars", filter=up, default=0),
        lowered=Count("amount_nanodollars", filter=down),
        lowered_nanodollars=-Sum("amount_nanodollars", filter=down, default=0),
    )
    return {model: Corrections(*numbers) for model, *numbers in found}
