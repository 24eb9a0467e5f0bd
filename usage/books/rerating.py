"""Re-rating: a period's charges at today's price and discount rows; each difference becomes a correction.

The price rows say what should have been charged. Corrections made by hand stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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

# Charges per transaction. Settlements of the same budgets wait meanwhile.
PAGE = 500


@dataclass(frozen=True, slots=True)
class Rerating:
    """How many charges were compared and corrected, and the sum of the corrections."""

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
class ReratingSpec:
    """Which charges to re-rate: a model's, written from `since` up to, not including, `until`."""

    model: str
    since: datetime
    until: datetime
    recorded_by: str


def has_history(model: str) -> bool:
    """Return whether the model ever had a price or a charge."""
    return (
        Price.objects.filter(model=model).exists()
        or LedgerEntry.objects.filter(kind=Kind.CHARGE, model=model).exists()
    )


def rerate(spec: ReratingSpec, *, is_dry_run: bool = False) -> Rerating:
    """Correct the charges; a second run finds nothing left to correct. A dry run only counts.

    Raises `Dropped` if generations of the period were dropped, before or meanwhile. Corrections made by then
    stay.
    """
    retention_horizon.refuse_before(spec.since)
    history = History()
    charges = LedgerEntry.objects.filter(
        kind=Kind.CHARGE,
        model=spec.model,
        created_at__gte=spec.since,
        created_at__lt=spec.until,
        generation__is_test=False,
    )
    done = Rerating()
    for page in pages(charges, PAGE):
        with transaction.atomic():
            found = _differences(history, spec, page)
            if found and not is_dry_run:
                corrections.write(database_now(), found)
                _record(spec, found)
        done += Rerating(len(page), len(found), sum(each.amount_nanodollars for each in found))
    # Rows that were dropped between two pages are on neither page.
    retention_horizon.refuse_before(spec.since)
    return done


def _record(spec: ReratingSpec, found: Sequence[Correction]) -> None:
    """Write an audit entry on the newest price in effect by then: without a price nothing is re-rated."""
    price = Price.objects.filter(model=spec.model, effective_from__lt=spec.until).latest("effective_from")
    facts = {
        "charges": len(found),
        "difference_nanodollars": sum(each.amount_nanodollars for each in found),
        "from": spec.since,
        "to": spec.until,
    }
    recorder.record("re-rated charges", price, {name: [None, value] for name, value in facts.items()})


def _differences(history: History, spec: ReratingSpec, charges: Sequence[LedgerEntry]) -> list[Correction]:
    ids = sorted(charge.generation_id for charge in charges if charge.generation_id)
    # Locked in id order, as settlements do: two re-ratings at once do not correct the same charge.
    rows = {row.id: row for row in Generation.objects.select_for_update().filter(id__in=ids).order_by("id")}
    # Checked again: the horizon moves before anything is dropped, and dropping waits for these locks.
    retention_horizon.refuse_before(spec.since)
    rerated = LedgerEntry.objects.filter(generation_id__in=ids, is_rerating=True).order_by()
    before = dict(rerated.values_list("generation_id").annotate(Sum("amount_nanodollars")))
    left = corrections.charged_of(ids)
    found: list[Correction] = []
    for charge in charges:
        assert charge.generation_id is not None
        row = rows[charge.generation_id]
        price = history.at(spec.model, row.admitted_at, row.organization_id)
        if price is None or row.is_waived:
            continue
        tokens = Tokens.of(row)
        difference = pricing.amount(tokens, price) - row.amount_nanodollars - before.get(row.id, 0)
        # An amount that was already given back by hand cannot be given back again.
        if difference := max(difference, -left[row.id]):
            found.append(
                Correction(charge, difference, f"{spec.model} re-rated", spec.recorded_by, is_rerating=True)
            )
    return found
