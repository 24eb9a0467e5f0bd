"""Prices and discounts in effect, and new ones."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from usage import pricing
from usage.database.clock import database_now
from usage.models import Discount, Price
from usage.pricing import PRICE_COLUMNS

Row = TypeVar("Row", Price, Discount)


def current(now: datetime | None = None) -> dict[str, pricing.Price]:
    """Return the price in effect of each priced model, before any discount. `now` is the database's time, if
    it is known already.
    """
    rows = _in_effect(Price.objects.all(), "model", now).values_list("model", *PRICE_COLUMNS)
    return {model: pricing.Price(*columns) for model, *columns in rows}


def current_discounts() -> dict[int, int]:
    """Return the discounts in effect, in basis points by organization id (`pricing.discounted`)."""
    return dict(
        _in_effect(Discount.objects.all(), "organization").values_list("organization", "basis_points")
    )


def announced(now: datetime) -> dict[str, list[Price]]:
    """Return the prices that have not begun, the next ones first, by model."""
    found: defaultdict[str, list[Price]] = defaultdict(list)
    for row in Price.objects.filter(effective_from__gt=now).order_by("effective_from"):
        found[row.model].append(row)
    return found


def _in_effect(rows: QuerySet[Row], owner: str, now: datetime | None = None) -> QuerySet[Row]:
    """Return each owner's latest row that has begun; the database leaves out the many others."""
    begun = rows.filter(effective_from__lte=now or database_now())
    later = begun.filter(**{owner: OuterRef(owner)}, effective_from__gt=OuterRef("effective_from"))
    return begun.exclude(Exists(later)).order_by()


def change(model: str, price: pricing.Price, effective_from: datetime | None = None) -> bool:
    """Give the model a price from then on (default: now); return False if it has that price then."""
    return add(Price(model=model, effective_from=effective_from or database_now(), **price.columns()))


def add(row: Price) -> bool:
    """Save a new price; return False, and save nothing, if its model has that price then."""
    if not is_change(row):
        return False
    row.save()
    return True


def withdraw(price_id: int) -> Price | None:
    """Delete a price that has not begun, and return it; None if it has begun, or was withdrawn already."""
    with transaction.atomic():
        # Its row is locked, so that of two people only one withdraws it.
        row = Price.objects.select_for_update().filter(pk=price_id, effective_from__gt=database_now()).first()
        if row is not None:
            row.delete()
        return row


def is_change(row: Price) -> bool:
    """Return whether an unsaved price differs from the one in effect when it begins."""
    earlier = Price.objects.filter(model=row.model, effective_from__lte=row.effective_from)
    last = earlier.order_by("-effective_from").first()
    return last is None or last.value != row.value


def add_discount(row: Discount) -> bool:
    """Save a new discount; return False, and save nothing, if its organization has that discount then."""
    if not is_discount_change(row):
        return False
    row.save()
    return True


def is_discount_change(row: Discount) -> bool:
    """Return whether an unsaved discount differs from the one in effect when it begins, which may be none."""
    earlier = Discount.objects.filter(organization=row.organization, effective_from__lte=row.effective_from)
    last = earlier.order_by("-effective_from").first()
    return row.basis_points != (last.basis_points if last else 0)


class History:
    """The prices of all models and the discounts of one or all organizations, as the rows are today.

    Each table is read once, when it is needed; discounts not if the organization's are given.
    """

    def __init__(
        self, organization_id: int | None = None, discounts: list[tuple[datetime, int]] | None = None
    ) -> None:
        self._organization_id = organization_id
        if organization_id is not None and discounts is not None:
            self._discounts = defaultdict(list, {organization_id: discounts})

    @cached_property
    def _prices(self) -> Mapping[str, list[tuple[datetime, pricing.Price]]]:
        found = defaultdict(list)
        for row in Price.objects.order_by("effective_from"):
            found[row.model].append((row.effective_from, row.value))
        return found

    @cached_property
    def _discounts(self) -> Mapping[int, list[tuple[datetime, int]]]:
        rows = Discount.objects.order_by("effective_from")
        rows = rows.filter(organization=self._organization_id) if self._organization_id else rows
        found = defaultdict(list)
        for row in rows:
            found[row.organization_id].append((row.effective_from, row.basis_points))
        return found

    def at(self, model: str, moment: datetime, organization_id: int) -> pricing.Price | None:
        """Return the organization's price at that time; None before the model's first price."""
        listed = self.listed_at(model, moment)
        if listed is None:
            return None
        return pricing.discounted(listed, self.discount_at(moment, organization_id))

    def listed_at(self, model: str, moment: datetime) -> pricing.Price | None:
        """Return the price at that time before discounts; None before the model's first price."""
        # "Right", because a price is in effect from its very first moment on.
        prices = self._prices[model]
        position = bisect_right(prices, moment, key=lambda row: row[0])
        return prices[position - 1][1] if position else None

    def discounts_of(self, organization_id: int) -> list[tuple[datetime, int]]:
        """Return the times from which the organization's discounts are in effect, with their basis points."""
        return self._discounts[organization_id]

    def discount_at(self, moment: datetime, organization_id: int) -> int:
        """Return the organization's discount at that time, in basis points."""
        discounts = self.discounts_of(organization_id)
        applied = bisect_right(discounts, moment, key=lambda row: row[0])
        return discounts[applied - 1][1] if applied else 0
