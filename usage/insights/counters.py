"""All-time counters of requests, tokens and money for metrics.

Counters are read from the books each time, so no crash loses a count. Usage of test keys is left out, so that
a tenant's tests alert nobody. Sums come from closed days and from the hours of the other days; overages and
corrections are few, and come from the ledger through a partial index each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import Count, Q, QuerySet, Sum

from accounts.models import APIKey
from usage.database.clock import database_now
from usage.database.snapshot import snapshot
from usage.database.time_limit import time_limit
from usage.insights.range import HOUR, Range
from usage.insights.sums import Totals, sums_by_group
from usage.models import DailyUsage, HourlyUsage, Kind, LedgerEntry, Outcome
from usage.models.generations import FAILED
from usage.rollups import closed_days

_COUNTS = closed_days.SUMS[:-1]


@dataclass(frozen=True, slots=True)
class Overage:
    """How many entries charge for usage beyond a hold, and their sum."""

    count: int = 0
    nanodollars: int = 0

    @classmethod
    def of(cls, sums: Totals) -> "Overage":
        return cls(sums.requests, sums.amount_nanodollars)


@dataclass(frozen=True, slots=True)
class Corrections:
    """How often charges were raised and lowered later, and by how much; neither sum is negative."""

    raised: int = 0
    raised_nanodollars: int = 0
    lowered: int = 0
    lowered_nanodollars: int = 0


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """The usage of one model since its first request."""

    totals: Totals
    overage: Overage
    corrections: Corrections

    @property
    def charged_nanodollars(self) -> int:
        """Return all charges and overages as they were settled. Corrections lower the totals' amount, but not
        this one, so it only grows.
        """
        corrected = self.corrections.raised_nanodollars - self.corrections.lowered_nanodollars
        return self.totals.amount_nanodollars - corrected


@dataclass(frozen=True, slots=True)
class Counters:
    """Requests by outcome (every outcome is there), and the counters of every model that was ever used."""

    requests: Mapping[str, int]
    models: Mapping[str, ModelCounters]


@time_limit()
def counters() -> Counters:
    """Return all counters as of one moment, so that a correction is in all of the sums or in none."""
    with snapshot(has_time_limit=True):
        outcomes, totals = _totals()
        overages, corrections = _overages_by_model(), _corrections_by_model()
    requests = {outcome.value: outcomes.get(outcome.value, Totals()).requests for outcome in Outcome}
    models = {
        name: ModelCounters(sums, overages.get(name, Overage()), corrections.get(name, Corrections()))
        for name, sums in totals.items()
    }
    return Counters(requests, models)


def _totals() -> tuple[dict[str, Totals], dict[str, Totals]]:
    """Return the totals by outcome and by model; a model that only test keys have used has zeros."""
    # "hour": a range of days would list them all since 1970.
    always = Range(datetime(1970, 1, 1, tzinfo=UTC), database_now() + HOUR, "hour")
    outcomes, models = sums_by_group(always, "outcome"), sums_by_group(always, "model")
    for (model, outcome), tested in _sums_of_test_keys(always).items():
        outcomes[outcome] -= tested
        models[model] -= tested
    return outcomes, models


def _sums_of_test_keys(over: Range) -> dict[tuple[str, str], Totals]:
    """Return the test keys' sums by model and outcome; they have no money in them.

    This reads each day's rows of the organizations that have test keys: 20 ms for a year of 20 organizations.
    """
    spans = closed_days.spans(over.start, over.end)
    tables: list[QuerySet[DailyUsage] | QuerySet[HourlyUsage]] = [
        *(DailyUsage.objects.filter(day__gte=first, day__lt=last) for first, last in spans.closed),
        *(HourlyUsage.objects.filter(hour__gte=start, hour__lt=end) for start, end in spans.open),
    ]
    keys = APIKey.objects.filter(is_test=True)
    # The indexes begin with the organization.
    theirs = Q(api_key__in=keys.values("pk"), organization__in=keys.values("project__organization_id"))
    found: dict[tuple[str, str], Totals] = {}
    for rows in tables:
        sums = {f"sum_{name}": Sum(name) for name in _COUNTS}
        by_group = rows.filter(theirs).order_by().values_list("model", "outcome").annotate(**sums)
        for model, outcome, requests, *tokens in by_group:
            part = Totals.of([requests if outcome in FAILED else 0, requests, *tokens, 0])
            found[model, outcome] = found.get((model, outcome), Totals()) + part
    return found


def _overages_by_model() -> dict[str, Overage]:
    rows = LedgerEntry.objects.filter(kind=Kind.OVERAGE).order_by().values_list("model")
    found = rows.annotate(count=Count("amount_nanodollars"), sum=Sum("amount_nanodollars"))
    return {model: Overage(*numbers) for model, *numbers in found}


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
