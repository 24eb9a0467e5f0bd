"""Re-rating: a period's charges at the prices and discounts that the rows name for it today; the difference
is a correction each.

The price rows say what should have been charged; nobody's price changes by itself. What people corrected by
hand stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Sum

from accounts.audit import recorder
from usage import pricing
from usage.books import corrections
from usage.books.corrections import Correction
from usage.books.prices import History
from usage.database.clock import database_now
from usage.database.snapshot import pages
from usage.models import Generation, Kind, LedgerEntry, Price
from usage.pricing import Tokens
from usage.rollups import retention_horizon

PAGE = 500
"""Charges a transaction: settlements of the same budgets wait meanwhile."""


@dataclass(frozen=True, slots=True)
class Rerating:
    """How many charges were looked at and corrected, and by how much in sum."""

    charges: int = 0
    corrected: int = 0
    difference_nanodollars: int = 0

    def __add__(self, other: "Rerating") -> "Rerating":
        return Rerating(
            self.charges + other.charges,
            self.corrected + other.corrected,
            self.difference_nanodollars + other.difference_nanodollars,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """Which charges to re-rate: a model's, written from `since` up to, and not including, `until`; and who
    asked for it.
    """

    model: str
    since: datetime
    until: datetime
    recorded_by: str


def is_known(model: str) -> bool:
    """Whether the model ever had a price or a charge."""
    return (
        Price.objects.filter(model=model).exists()
        or LedgerEntry.objects.filter(kind=Kind.CHARGE, model=model).exists()
    )


def rerate(order: Order, *, is_dry_run: bool = False) -> Rerating:
    """Correct what the order names; done twice, there is nothing left to correct. A dry run only counts.

    Raises `Dropped` for a period whose generations are not all there, or dropped meanwhile: what is corrected
    by then stays.
    """
    retention_horizon.refuse_before(order.since)
    history = History(order.model)
    charges = LedgerEntry.objects.filter(
        kind=Kind.CHARGE,
        model=order.model,
        created_at__gte=order.since,
        created_at__lt=order.until,
        generation__is_test=False,
    )
    done = Rerating()
    for page in pages(charges, PAGE):
        with transaction.atomic():
            found = _differences(history, order, page)
            if found and not is_dry_run:
                corrections.write(database_now(), found)
                _record(order, found)
        done += Rerating(len(page), len(found), sum(each.amount_nanodollars for each in found))
    # What is dropped between two pages is on neither.
    retention_horizon.refuse_before(order.since)
    return done


def _record(order: Order, found: Sequence[Correction]) -> None:
    """In the audit log, of the last price that was in effect by then: without one nothing is re-rated."""
    price = Price.objects.filter(model=order.model, effective_from__lt=order.until).latest("effective_from")
    told = {
        "charges": len(found),
        "difference_nanodollars": sum(each.amount_nanodollars for each in found),
        "from": order.since,
        "to": order.until,
    }
    recorder.record("re-rated charges", price, {name: [None, value] for name, value in told.items()})


def _differences(history: History, order: Order, charges: Sequence[LedgerEntry]) -> list[Correction]:
    ids = sorted(charge.generation_id for charge in charges if charge.generation_id)
    # Locked in id order, as by settlements: two re-ratings at once don't correct the same charge.
    rows = {row.id: row for row in Generation.objects.select_for_update().filter(id__in=ids).order_by("id")}
    # Asked again: the horizon moves before anything is dropped, and what is locked here waits for us.
    retention_horizon.refuse_before(order.since)
    before, left = _rerated(ids), corrections.charged_of(ids)
    found: list[Correction] = []
    for charge in charges:
        assert charge.generation_id is not None
        row = rows[charge.generation_id]
        price = history.at(row.admitted_at, row.organization_id)
        if price is None or row.is_waived:
            continue
        tokens = Tokens.of(row)
        difference = pricing.amount(tokens, price) - row.amount_nanodollars - before.get(row.id, 0)
        # What somebody has taken back already can't be taken once more.
        if difference := max(difference, -left[row.id]):
            found.append(
                Correction(charge, difference, f"{order.model} re-rated", order.recorded_by, is_rerating=True)
            )
    return found


def _rerated(ids: Sequence[UUID]) -> dict[UUID, int]:
    """By how much earlier re-ratings have corrected each generation."""
    entries = LedgerEntry.objects.filter(generation_id__in=ids, is_rerating=True).order_by()
    return dict(entries.values_list("generation_id").annotate(Sum("amount_nanodollars")))
