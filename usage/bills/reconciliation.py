"""Compares the books with an upstream's bill: tokens and cost by UTC day and model.

Our tokens are those of all settled generations, whether the upstream reported them or we counted them. Our
cost is those tokens at the upstream's own price if given, else what we charged for them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import TruncDay

from usage import pricing
from usage.bills.upstream_bill import ANY_MODEL, COST, COUNTS, Bill
from usage.database.snapshot import snapshot
from usage.models import CHARGED, Generation, Kind, LedgerEntry, UsageSource
from usage.models.rollups import HourlyUsage
from usage.pricing import TOKEN_COLUMNS, Price, Tokens
from usage.rollups import retention_horizon

Group = tuple[date, str]


@dataclass(frozen=True, slots=True)
class ReconciliationSpec:
    """What is compared, and how."""

    since: datetime
    until: datetime
    deployment: str = ""
    """Only requests that ran on this deployment are compared; empty: all."""
    names: Mapping[str, str] = field(default_factory=dict)
    """By our name of a model: its name in the bill, if that differs."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """The upstream's prices, by the bill's name of the model."""
    tolerance_percent: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Booked:
    """Our amounts of a day and model, named as in `usage/bills/upstream_bill.py`."""

    amounts: Mapping[str, int]
    counted: int
    """The number of requests whose tokens we counted, because the upstream did not report them."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """An amount that differs by more than the tolerance."""

    day: date
    model: str
    name: str
    ours: int
    theirs: int
    counted: int

    def __str__(self) -> str:
        show = (lambda amount: f"${pricing.to_usd(amount)}") if self.name == COST else str
        counted = f", {self.counted} of our requests counted by us" if self.counted else ""
        name = "cost" if self.name == COST else self.name
        amounts = f"ours {show(self.ours)}, theirs {show(self.theirs)}"
        return f"{self.day} {self.model or 'all models'} {name}: {amounts}{counted}"


def compare(bill: Bill, spec: ReconciliationSpec) -> Iterator[Discrepancy]:
    """Return the differences beyond the tolerance, ordered by day. Amounts that the bill does not report are
    not compared.

    Raises `Dropped` if generations of the period were dropped: only they say which deployment ran them.
    """
    with snapshot():  # without it, generations that are dropped meanwhile would silently be missing
        retention_horizon.refuse_before(spec.since)
        ours = _ours(spec, names_models=bill.names_models)
    for group in sorted(billed_in_period(bill, spec) | ours.keys()):
        us = ours.get(group, Booked({}, 0))
        them = bill.lines.get(group, {})
        for name in [
            name for name in (*COUNTS, COST) if name in bill.reported and (*group, name) not in bill.missing
        ]:
            discrepancy = Discrepancy(*group, name, us.amounts.get(name, 0), them.get(name, 0), us.counted)
            # Multiplied, not divided: the bill's amount may be zero, and integers and Decimal stay exact.
            if abs(discrepancy.ours - discrepancy.theirs) * 100 > spec.tolerance_percent * discrepancy.theirs:
                yield discrepancy


def billed_in_period(bill: Bill, spec: ReconciliationSpec) -> set[Group]:
    """Return the days and models of the period that the bill has."""
    first, last = (
        spec.since.astimezone(UTC).date(),
        (spec.until - timedelta.resolution).astimezone(UTC).date(),
    )
    return {group for group in bill.lines if first <= group[0] <= last}


def without_deployment(spec: ReconciliationSpec) -> tuple[int, int]:
    """Return how many charged requests have no known deployment, and their nanodollars."""
    entries = _entries(spec).filter(generation__deployment="").filter(_USED)
    found = entries.aggregate(
        requests=Count("id", filter=_CHARGES), charged=Sum("amount_nanodollars", default=0)
    )
    return found["requests"], found["charged"]


def has_served(deployment: str) -> bool:
    return Generation.objects.filter(deployment=deployment).exists()


def unknown_models(names: Iterable[str]) -> list[str]:
    """Return the names that no charge has."""
    return [name for name in names if not HourlyUsage.objects.filter(model=name).exists()]


def unused_prices(bill: Bill, spec: ReconciliationSpec) -> list[str]:
    """Return the models with a price that neither the bill nor the books have."""
    ours = {
        spec.names.get(model, model)
        for model in HourlyUsage.objects.values_list("model", flat=True).distinct()
    }
    return [model for model in spec.prices if model not in ours | {model for _, model in bill.lines}]


_CHARGES = Q(kind=Kind.CHARGE)
_USED = Q(generation__prompt_tokens__gt=0) | Q(generation__completion_tokens__gt=0)


def _ours(spec: ReconciliationSpec, *, names_models: bool) -> dict[Group, Booked]:
    # A request without usage and without a deployment cost no upstream anything. A lost worker may not have
    # reported its deployment.
    ran = (
        Q(generation__deployment=spec.deployment)
        if spec.deployment
        else ~Q(generation__deployment="") | _USED
    )
    rows: list[Any] = list(
        _entries(spec)
        .filter(ran)
        .annotate(day=TruncDay("created_at", tzinfo=UTC))
        .order_by()
        .values("day", "model")
        .annotate(
            requests=Count("id", filter=_CHARGES),
            **{f"sum_{name}": Sum(name) for name in TOKEN_COLUMNS},
            charged=Sum("amount_nanodollars"),
            counted=Count("id", filter=_CHARGES & ~Q(generation__usage_source=UsageSource.UPSTREAM)),
        )
    )
    found: defaultdict[Group, list[Booked]] = defaultdict(list)
    for row in rows:
        model = spec.names.get(row["model"], row["model"])
        tokens = Tokens(*(row[f"sum_{name}"] for name in TOKEN_COLUMNS))
        cost = pricing.amount(tokens, spec.prices[model]) if model in spec.prices else row["charged"]
        amounts = {**tokens.columns(), "requests": row["requests"], COST: cost}
        found[row["day"].date(), model if names_models else ANY_MODEL].append(
            Booked({name: amounts[name] or 0 for name in (*COUNTS, COST)}, row["counted"])
        )
    # Several of our models may be one of the upstream's.
    return {
        group: Booked(
            {name: sum(part.amounts[name] for part in parts) for name in (*COUNTS, COST)},
            sum(part.counted for part in parts),
        )
        for group, parts in found.items()
    }


def _entries(spec: ReconciliationSpec) -> "QuerySet[LedgerEntry]":
    """Return all entries that were charged in the period, without tests."""
    period = {"created_at__gte": spec.since, "created_at__lt": spec.until}
    return LedgerEntry.objects.filter(kind__in=CHARGED, generation__is_test=False, **period)
